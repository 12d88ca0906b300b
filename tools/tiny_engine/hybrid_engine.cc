// SPDX-License-Identifier: Apache-2.0
//
// HybridEngine: what a plan asks for around a step, and the order of the layers; hybrid_layers.cc has the layers.
#include "hybrid_engine.h"

#include <algorithm>
#include <utility>

#include "arithmetic.h"
#include "quire/host_kernels.h"

namespace tiny_engine {

HybridMemory memory_of(const quire::Cache& cache) {
  const std::uint32_t slot_count = cache.config().device.state_slot_count > 0 ? cache.config().device.state_slot_count
                                                                              : cache.config().sequence_count_max;
  HybridMemory memory{.pools = {}, .states = {cache.state_slots(), cache.state_memory(), slot_count}};
  const auto groups = cache.config().layout.groups();
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    memory.pools.emplace_back();
    if (!quire::has_pages(groups[i])) continue;
    memory.pools.back() = PoolMemory{.geometry = cache.geometry(i), .bytes = cache.device_memory(i)};
  }
  return memory;
}

PoolMemory HybridMemory::state_pool(std::uint32_t group_index) const {
  const auto parts = states.slots().parts();
  const auto at = std::ranges::find(parts, group_index, &quire::StatePart::group_index);
  return {
      .geometry = states.slots().pool_of(static_cast<std::uint32_t>(at - parts.begin()), states.slot_count()).value(),
      .bytes = states.bytes() + at->offset};
}

HybridEngine::HybridEngine(const HybridWeights& weights, HybridMemory memory, const HybridEngineOptions& options)
    : weights_(weights),
      groups_(hybrid_groups(weights.shape)),
      memory_(std::move(memory)),
      options_(options),
      tables_(groups_.groups.size(), PageTable(options.sequence_count_max, options.row_columns)) {}

std::string HybridEngine::wait_for_snapshots(const DevicePlan& plan, const LayerWait& wait) const {
  const std::span<const quire::StateCopy> copies = plan.read(plan.state_copies);
  if (std::string problem = check_states(copies); !problem.empty()) return problem;
  for (const quire::StateCopy& copy : copies) {
    if (copy.kind != quire::StateCopyKind::Restore) continue;
    const auto group = static_cast<std::uint32_t>(copy.group);
    const auto layer_count = static_cast<std::uint32_t>(group_of(group).layers.size());
    if (std::string problem = wait({group, layer_count - 1}); !problem.empty()) return problem;
  }
  return "";
}

std::string HybridEngine::prepare(const DevicePlan& plan) {
  if (plan.groups.size() != groups_.groups.size()) return "the plan is for another number of groups";
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const StagedGroup& group = plan.groups[i];
    std::string problem = apply_deltas(tables_[i], plan.read(group.deltas));
    if (options_.device == nullptr && options_.applies_copies && memory_.pools[i]) {
      if (problem.empty()) {
        problem = apply_moves(*memory_.pools[i], plan.read(group.moves), plan.read(group.move_indptr));
      }
      if (problem.empty()) problem = apply_copies(*memory_.pools[i], plan.read(group.copies));
    }
    if (!problem.empty()) return group_of(static_cast<std::uint32_t>(i)).name + ": " + problem;
  }
  if (std::string problem = check_states(plan.read(plan.state_copies)); !problem.empty()) return problem;
  if (options_.device != nullptr) return options_.device->prepare(plan);
  return options_.applies_copies ? apply_states(plan.read(plan.state_copies)) : "";
}

std::string HybridEngine::save(const DevicePlan& plan) {
  if (std::string problem = check_states(plan.read(plan.state_saves)); !problem.empty()) return problem;
  if (options_.device != nullptr) return options_.device->save(plan);
  return options_.applies_copies ? apply_states(plan.read(plan.state_saves)) : "";
}

std::string HybridEngine::check_states(std::span<const quire::StateCopy> copies) const {
  const auto is_slot = [this](std::int32_t slot) {
    return slot >= 0 && static_cast<std::uint32_t>(slot) < memory_.states.slot_count();
  };
  for (const quire::StateCopy& copy : copies) {
    if (copy.group < 0 || static_cast<std::size_t>(copy.group) >= groups_.groups.size()) return "a state of no group";
    const auto group = static_cast<std::uint32_t>(copy.group);
    if (!quire::has_slot(group_of(group))) return "a state of a group without slots";
    const auto is_page = [&](std::int32_t page) {
      return memory_.pools[group] && page > 0 &&
             static_cast<std::uint32_t>(page) < memory_.pools[group]->geometry.page_count();
    };
    if (copy.position < 0) return "a state before the first token";
    bool is_inside = false;
    switch (copy.kind) {
      case quire::StateCopyKind::Reset:
        is_inside = is_slot(copy.target);
        break;
      case quire::StateCopyKind::Restore:
        is_inside = is_page(copy.source) && is_slot(copy.target);
        break;
      case quire::StateCopyKind::Save:
        is_inside = is_slot(copy.source) && is_page(copy.target);
        break;
      case quire::StateCopyKind::Fork:
        is_inside = is_slot(copy.source) && is_slot(copy.target);
        break;
    }
    if (!is_inside) return "a state copy leaves slots or pool";
  }
  return "";
}

std::string HybridEngine::apply_states(std::span<const quire::StateCopy> copies) {
  std::vector<const quire::PoolGeometry*> geometries;
  std::vector<std::byte*> pools;
  for (const auto& pool : memory_.pools) {
    geometries.push_back(pool ? &pool->geometry : nullptr);
    pools.push_back(pool ? pool->bytes : nullptr);
  }
  quire::copy_states_on_host({.slots = &memory_.states.slots(),
                              .state = memory_.states.bytes(),
                              .slot_count = memory_.states.slot_count(),
                              .geometries = geometries,
                              .pools = pools,
                              .copies = copies});
  return "";
}

std::string HybridEngine::read_chunks(const DevicePlan& plan, std::size_t query_count,
                                      std::vector<Chunk>& chunks) const {
  const auto indptr = plan.read(plan.query_indptr);
  const auto positions = plan.read(plan.query_positions);
  const auto seq_lens = plan.read(plan.seq_lens);
  const auto slots = plan.read(plan.state_slots);
  const auto windows = plan.read(plan.visible_tokens);
  // One group's plan has none.
  const auto context_lens = plan.read(groups_.groups.size() > 1 ? plan.context_lens : plan.seq_lens);
  const bool has_state = !memory_.states.slots().parts().empty();
  std::int32_t next = 0;
  for (std::size_t i = 0; i + 1 < indptr.size() && static_cast<std::size_t>(next) < query_count; ++i) {
    const std::int32_t count = indptr[i + 1] - indptr[i];
    if (indptr[i] != next || count < 1 || static_cast<std::size_t>(indptr[i + 1]) > query_count) {
      return "query_indptr does not cut the step into entries";
    }
    next = indptr[i + 1];
    const bool has_arrays = i < seq_lens.size() && i < slots.size() && i < windows.size() && i < context_lens.size();
    if (!has_arrays || positions.size() < query_count) return "an array is too short";
    const std::int32_t position = context_lens[i] - count;
    const bool is_short = windows[i] == 0 || context_lens[i] <= windows[i];
    if (position < 0 || seq_lens[i] > context_lens[i] || (is_short && seq_lens[i] != context_lens[i])) {
      return "seq_lens and context_lens differ";
    }
    const std::uint32_t rope_end = windows[i] > 0 ? static_cast<std::uint32_t>(windows[i]) : UINT32_MAX;
    for (std::int32_t j = 0; j < count; ++j) {
      const std::uint32_t expected = std::min(static_cast<std::uint32_t>(position + j), rope_end - 1);
      if (positions[static_cast<std::size_t>(indptr[i] + j)] != static_cast<std::int32_t>(expected)) {
        return "positions do not follow each other";
      }
    }
    if (has_state && (slots[i] < 0 || static_cast<std::uint32_t>(slots[i]) >= memory_.states.slot_count())) {
      return "an entry has no such state slot";
    }
    chunks.push_back({.first_query = static_cast<std::uint32_t>(indptr[i]),
                      .query_count = static_cast<std::uint32_t>(count),
                      .position = static_cast<std::uint32_t>(position),
                      .rope_end = rope_end,
                      .slot = has_state ? static_cast<std::uint32_t>(slots[i]) : 0,
                      .index = static_cast<std::uint32_t>(i)});
  }
  return static_cast<std::size_t>(next) == query_count ? "" : "the plan has another number of queries";
}

std::string HybridEngine::find_keys(const DevicePlan& plan, std::size_t query_count, KeysOfGroups& keys) const {
  for (std::size_t layer = 0; layer < weights_.shape.layers.size(); ++layer) {
    const auto [group_index, layer_window] = keys_of_layer(layer);
    const quire::CacheGroup& group = group_of(group_index);
    if (quire::has_slot(group)) continue;
    const auto [at, is_new] = keys.try_emplace({group_index, layer_window});
    if (!is_new) continue;
    const StagedGroup& staged = plan.groups[group_index];
    if (staged.levels.empty()) return group.name + ": no lists of pages";
    if (staged.append_slots.count < query_count) return group.name + ": fewer append slots than tokens";
    const auto trimmed = std::ranges::find(staged.layer_windows, layer_window, &StagedLayerWindow::window_tokens);
    if (layer_window > 0 && trimmed == staged.layer_windows.end()) return group.name + ": no trimmed lists";
    const bool is_compressed = group.kind == quire::GroupKind::Compressed;
    const KeyFinder finder(plan, tables_[group_index],
                           {.page_tokens = options_.page_tokens,
                            .page_count = memory_.pools[group_index]->geometry.page_count(),
                            .new_keys = is_compressed ? NewKeys::InPages : NewKeys::Held,
                            .group_index = group_index,
                            .window_tokens = group.window_tokens});
    at->second.resize(query_count);
    for (std::size_t i = 0; i < query_count; ++i) {
      std::vector<KeyReference>& seen = at->second[i];
      const auto query = static_cast<std::int32_t>(i);
      std::string problem = layer_window > 0 ? finder.find(query, *trimmed, seen) : finder.find(query, seen);
      if (!problem.empty()) return group.name + ": " + problem;
      for (const KeyReference& key : seen) {
        const bool is_of_step = key.query >= 0 && static_cast<std::size_t>(key.query) < query_count;
        if (key.slot == quire::kNoSlot && !is_of_step) return group.name + ": a key is of no query";
      }
    }
  }
  return "";
}

std::string HybridEngine::forward(const DevicePlan& plan, std::span<const quire::TokenId> tokens,
                                  std::vector<double>& logits, const LayerWait& wait) {
  const HybridShape& shape = weights_.shape;
  const std::size_t count = tokens.size();
  std::vector<Chunk> chunks;
  if (std::string problem = read_chunks(plan, count, chunks); !problem.empty()) return problem;
  KeysOfGroups keys;
  if (std::string problem = find_keys(plan, count, keys); !problem.empty()) return problem;

  std::vector<double> hidden(count * shape.width);
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = row_of(weights_.embedding.values, static_cast<std::size_t>(tokens[i]), shape.width);
    std::ranges::copy(row, row_of(hidden, i, shape.width).begin());
  }
  std::vector<double> inputs(hidden.size());
  std::vector<double> heads(count * heads_size());
  std::vector<double> added(shape.width);
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const HybridLayerWeights& layer = weights_.layers[i];
    for (std::size_t j = 0; j < count; ++j) {
      rms_norm(row_of(hidden, j, shape.width), layer.norm, shape.norm_epsilon, row_of(inputs, j, shape.width));
    }
    const Work work{.plan = plan,
                    .chunks = chunks,
                    .weights = layer,
                    .kind = shape.layers[i],
                    .place = groups_.places[i],
                    .inputs = inputs,
                    .heads = heads};
    // State slots were filled before the first layer.
    std::string problem;
    const bool has_pages = !quire::has_slot(group_of(work.place.group_index));
    if (wait && has_pages) problem = wait({work.place.group_index, work.place.layer_index});
    if (!problem.empty()) return problem;
    switch (work.kind.kind) {
      case LayerKind::Full:
      case LayerKind::Window:
        problem = run_attention(work, keys[keys_of_layer(i)]);
        break;
      case LayerKind::Ring:
        problem = run_ring(work);
        break;
      case LayerKind::Compressed:
      case LayerKind::Overlapped:
        problem = run_compressor(work, keys[keys_of_layer(i)]);
        break;
      case LayerKind::Recurrent:
        problem = run_recurrence(work);
        break;
    }
    if (!problem.empty()) return group_of(work.place.group_index).name + ": " + problem;
    for (std::size_t j = 0; j < count; ++j) {
      multiply(layer.output, row_of(heads, j, heads_size()), added);
      const auto own = row_of(hidden, j, shape.width);
      for (std::uint32_t k = 0; k < shape.width; ++k) own[k] += added[k];
    }
  }
  logits.resize(count * shape.vocabulary);
  for (std::size_t i = 0; i < count; ++i) {
    const auto input = row_of(inputs, i, shape.width);
    rms_norm(row_of(hidden, i, shape.width), weights_.final_norm, shape.norm_epsilon, input);
    multiply(weights_.head, input, row_of(logits, i, shape.vocabulary));
  }
  return "";
}

}  // namespace tiny_engine
