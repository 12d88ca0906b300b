// SPDX-License-Identifier: Apache-2.0
//
// A model with three kinds of layers: what it stores, where a sequence's state lies, and how many pages each group
// gets. The document docs/hybrid_models.md shows parts of this.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "quire/budget.h"
#include "quire/layout.h"
#include "quire/state_slots.h"

namespace {

template <typename T>
T must(quire::Result<T> result) {
  if (result) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}

quire::ModelLayout make_layout() {
  // [declare]
  const std::vector<quire::Component> keys_and_values = {{.name = "k", .heads = 8, .dim = 64},
                                                         {.name = "v", .heads = 8, .dim = 64}};
  const quire::CacheGroup far{.name = "far", .layers = {3, 7}, .components = keys_and_values};
  const quire::CacheGroup near{.name = "near",
                               .kind = quire::GroupKind::Window,
                               .layers = {1, 5},
                               .components = keys_and_values,
                               .window_tokens = 512};
  const quire::CacheGroup state{
      .name = "state",
      .kind = quire::GroupKind::Snapshot,
      .layers = {0, 2, 4, 6},
      .components = {{.name = "conv", .heads = 16, .dim = 64 * 3},
                     {.name = "state", .element = quire::ElementType::Fp32, .heads = 16, .dim = 64 * 64}},
      .retention = {.rule = quire::RetentionRule::Every, .interval_tokens = 4'096},
      .slot_entries = 1,
      .slot_history = 4};  // four drafted tokens can be taken back
  quire::Result<quire::ModelLayout> layout = quire::ModelLayout::create("three-kinds", {far, near, state});
  // [declare]
  return must(std::move(layout));
}

}  // namespace

int main() {
  const quire::ModelLayout layout = make_layout();
  std::printf("%s\n", must(layout.describe()).c_str());

  // [slots]
  const quire::StateSlots slots = must(quire::StateSlots::create(layout));
  const quire::StateRow row{.version_index = 1'001 % 5, .layer_index = 2, .component_index = 1, .head_index = 3};
  std::printf("a slot has %llu bytes; head 3 of layer 4, after 1,001 tokens, begins at byte %llu\n\n",
              static_cast<unsigned long long>(slots.slot_bytes()),
              static_cast<unsigned long long>(slots.offset_of(row)));
  // [slots]

  // [budget]
  const quire::BudgetRequest request{.device_bytes = 8ULL << 30,
                                     .host_bytes = 32ULL << 30,
                                     .context_tokens_max = 131'072,
                                     .sequence_count_max = 64,
                                     .in_flight_tokens = 2,
                                     .rewind_tokens = 4,
                                     .mix = {{.context_tokens = 2'048, .weight = 9}, {.context_tokens = 65'536}}};
  const quire::Budget budget = must(quire::solve_budget(layout, request));
  std::printf("%s", quire::describe(budget, layout).c_str());
  // [budget]
  return 0;
}
