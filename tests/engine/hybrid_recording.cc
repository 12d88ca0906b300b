// SPDX-License-Identifier: Apache-2.0
#include "hybrid_recording.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace quire::testing {

using tiny_engine::DevicePlan;
using tiny_engine::StagedArray;
using tiny_engine::StagedGroup;
using tiny_engine::StagedNumbers;

namespace {

// What counts as wrong.
constexpr double kLogitTolerance = 1e-7;

template <typename Element>
StagedNumbers number_of(const StagedArray<Element>& array, std::uint64_t at, std::uint32_t width) {
  return {.name = "", .offset = array.offset + at, .stride = sizeof(Element), .width = width, .count = array.count};
}

}  // namespace

HybridRecording::HybridRecording(HybridRig& rig, std::size_t changed_count)
    : rig_(rig),
      groups_(tiny_engine::hybrid_groups(rig.setup().shape).groups),
      changed_count_(changed_count),
      expected_(rig.texts().logits(rig.weights())) {}

HybridRecording::World HybridRecording::make_world() const {
  constexpr std::byte kGarbage{0x41};
  const HybridSetup& setup = rig_.setup();
  tiny_engine::HybridMemory memory = tiny_engine::memory_of(rig_.cache());
  const std::uint32_t slot_count = memory.states.slot_count() + 1;
  memory.states = {memory.states.slots(), nullptr, slot_count};
  World world{.pools = {},
              .state = std::vector<std::byte>(slot_count * memory.states.slots().slot_bytes(), kGarbage),
              .engine = {rig_.weights(), memory,
                         tiny_engine::HybridEngineOptions{
                             .sequence_count_max = setup.sequence_count_max + 1,
                             .row_columns = (setup.context_tokens_max + setup.page_tokens - 1) / setup.page_tokens,
                             .page_tokens = setup.page_tokens}}};
  for (const auto& pool : memory.pools) {
    world.pools.emplace_back(pool ? pool->geometry.pool_bytes() : 0, kGarbage);
    if (pool) std::fill_n(world.pools.back().begin(), pool->geometry.page().page_bytes(), std::byte{0});
  }
  connect(world);
  return world;
}

HybridRecording::World HybridRecording::copy_world(const World& world) {
  World copy = world;
  connect(copy);
  return copy;
}

void HybridRecording::connect(World& world) {
  tiny_engine::HybridMemory& memory = world.engine.memory();
  for (std::size_t i = 0; i < world.pools.size(); ++i) {
    if (memory.pools[i]) memory.pools[i]->bytes = world.pools[i].data();
  }
  memory.states.set_bytes(world.state.data());
}

std::string HybridRecording::replay_step(World& world, const HybridRig::Recorded& step, const DevicePlan& plan) const {
  if (std::string problem = world.engine.prepare(plan); !problem.empty()) return problem;
  std::vector<double> logits;
  if (std::string problem = world.engine.forward(plan, step.tokens, logits); !problem.empty()) return problem;
  if (std::string problem = world.engine.save(plan); !problem.empty()) return problem;
  const std::size_t vocabulary = rig_.weights().shape.vocabulary;
  for (std::size_t i = 0; i < step.texts.size(); ++i) {
    if (step.texts[i] < 0) continue;
    const std::vector<double>& right = expected_[static_cast<std::size_t>(step.texts[i])];
    double largest = 0.0;
    double difference = 0.0;
    for (std::size_t j = 0; j < vocabulary; ++j) {
      largest = std::max(largest, std::abs(right[j]));
      const double off = std::abs(right[j] - logits[(i * vocabulary) + j]);
      difference = off <= difference ? difference : off;  // NaN stays
    }
    if (difference <= kLogitTolerance * largest) continue;
    return "logits of query " + std::to_string(i) + " are off by " + std::to_string(difference / largest);
  }
  return "";
}

std::string HybridRecording::replay() {
  World world = make_world();
  for (std::size_t i = 0; i < rig_.recorded().size(); ++i) {
    before_.push_back(copy_world(world));
    const HybridRig::Recorded& step = rig_.recorded()[i];
    const std::string problem = replay_step(world, step, step.plan);
    if (!problem.empty()) return "step " + std::to_string(i) + ": " + problem;
  }
  return "";
}

std::string HybridRecording::replay(const PlanChange& change) const {
  DevicePlan changed = rig_.recorded()[change.step_index].plan;
  for (const auto& [numbers, index, value] : change.numbers) changed.set_number(numbers, index, value);
  World world = copy_world(before_.at(change.step_index));
  for (std::size_t i = change.step_index; i < rig_.recorded().size(); ++i) {
    const HybridRig::Recorded& step = rig_.recorded()[i];
    const std::string problem = replay_step(world, step, i == change.step_index ? changed : step.plan);
    if (!problem.empty()) return "step " + std::to_string(i) + ": " + problem;
  }
  return "";
}

bool HybridRecording::is_idle(const StateCopy& copy) const {
  const CacheGroup& group = groups_[static_cast<std::size_t>(copy.group)];
  const bool has_rows_before_the_first = group.kind == GroupKind::Snapshot && group.snapshot_entries > 0;
  return copy.kind == StateCopyKind::Reset && !has_rows_before_the_first;
}

std::vector<PlanChange> HybridRecording::omissions() const {
  std::vector<PlanChange> all;
  const auto spare_row = static_cast<std::int64_t>(rig_.setup().sequence_count_max);
  const std::uint32_t spare_slot = tiny_engine::memory_of(rig_.cache()).states.slot_count();
  for (std::size_t step = 0; step < changed_count_; ++step) {
    const DevicePlan& plan = rig_.recorded()[step].plan;
    std::set<std::uint64_t> listed;  // groups may have arrays in common
    const auto add = [&](const std::string& what, StagedNumbers numbers, std::uint64_t index, std::int64_t value) {
      if (!listed.insert(numbers.offset + (index * numbers.stride)).second) return;
      all.push_back({.what = what,
                     .step_index = step,
                     .numbers = {{.numbers = std::move(numbers), .index = index, .value = value}}});
    };
    for (std::size_t i = 0; i < plan.groups.size(); ++i) {
      const StagedGroup& group = plan.groups[i];
      const std::string kind = " of a " + std::string(has_slot(groups_[i]) && groups_[i].kind == GroupKind::Window
                                                          ? "ring"
                                                          : to_string(groups_[i].kind));
      for (std::uint64_t j = 0; j < group.append_slots.count; ++j) {
        if (plan.read(group.append_slots)[j] == kNoSlot) continue;
        add("append slot" + kind, number_of(group.append_slots, 0, 8), j, kNoSlot);
      }
      for (std::uint64_t j = 0; j < group.deltas.count; ++j) {
        if (plan.read(group.deltas)[j].page == kNullPage.value) continue;
        add("delta" + kind, number_of(group.deltas, offsetof(PageDelta, row), 4), j, spare_row);
      }
      for (std::uint64_t j = 0; j < group.copies.count; ++j) {
        add("copy" + kind, number_of(group.copies, offsetof(PageCopy, token_count), 4), j, 0);
      }
    }
    const auto add_states = [&](const char* name, const StagedArray<StateCopy>& copies) {
      constexpr const char* kNames[] = {"reset", "restore", "save", "fork"};
      for (std::uint64_t j = 0; j < copies.count; ++j) {
        const StateCopy& copy = plan.read(copies)[j];
        if (is_idle(copy)) continue;
        // Something that nobody has is reset instead.
        all.push_back({.what = std::string(name) + " " + kNames[static_cast<std::size_t>(copy.kind)] + " of " +
                               groups_[static_cast<std::size_t>(copy.group)].name,
                       .step_index = step,
                       .numbers = {{number_of(copies, offsetof(StateCopy, kind), 4), j, 0},
                                   {number_of(copies, offsetof(StateCopy, target), 4), j, spare_slot}}});
      }
    };
    add_states("state copy:", plan.state_copies);
    add_states("state save:", plan.state_saves);
  }
  return all;
}

std::vector<PlanChange> HybridRecording::places() const {
  std::vector<PlanChange> all;
  for (std::size_t step = 0; step < changed_count_; ++step) {
    const HybridRig::Recorded& recorded = rig_.recorded()[step];
    std::set<std::uint64_t> listed;
    for (const StagedNumbers& numbers : recorded.plan.numbers()) {
      for (std::uint64_t index = 0; index < numbers.count; ++index) {
        if (!listed.insert(numbers.offset + (index * numbers.stride)).second) continue;
        if (!is_used(recorded, numbers, index)) continue;
        const std::int64_t value = recorded.plan.number(numbers, index);
        all.push_back({.what = numbers.name,
                       .step_index = step,
                       .numbers = {{.numbers = numbers, .index = index, .value = value}}});
      }
    }
  }
  return all;
}

bool HybridRecording::is_used(const HybridRig::Recorded& step, const StagedNumbers& numbers,
                              std::uint64_t index) const {
  const DevicePlan& plan = step.plan;
  const std::string& name = numbers.name;
  const std::int64_t value = plan.number(numbers, index);
  const auto entry_count = static_cast<std::uint64_t>(plan.read(plan.query_indptr).size()) - 1;
  if (name.starts_with("state_copies.") || name.starts_with("state_saves.")) {
    const StateCopy& copy = plan.read(name.starts_with("state_copies.") ? plan.state_copies : plan.state_saves)[index];
    if (is_idle(copy)) return false;
    const bool has_source = copy.kind != StateCopyKind::Reset;
    const bool has_position = copy.kind == StateCopyKind::Restore || copy.kind == StateCopyKind::Save;
    if (name.ends_with(".source")) return has_source;
    if (name.ends_with(".position")) return has_position;
    return true;
  }
  // Lists of pages that nothing is read from, and what lies behind their end.
  if (name.starts_with("levels.")) {
    const StagedGroup& group = plan.groups[numbers.group_index];
    const auto page_indptr = plan.read(group.levels[numbers.level_index].page_indptr);
    const bool has_pages = index + 1 < page_indptr.size() && page_indptr[index] < page_indptr[index + 1];
    return name.ends_with("_indptr") ? index <= entry_count : has_pages;
  }
  if (name == "block_table") {
    const auto page_indptr = plan.read(plan.groups[numbers.group_index].levels[0].page_indptr);
    const std::uint64_t entry = index / plan.shape.columns;
    const auto listed = static_cast<std::uint64_t>(page_indptr[entry + 1] - page_indptr[entry]);
    if (index % plan.shape.columns >= listed) return false;
  }
  const bool is_page = name == "page_indices" || name == "block_table" || name == "deltas.page";
  if (is_page && value == kNullPage.value) return false;
  // A text without trees and windows of its own.
  return name != "tree_indptr" && name != "window_tokens";
}

}  // namespace quire::testing
