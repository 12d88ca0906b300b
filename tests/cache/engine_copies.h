// SPDX-License-Identifier: Apache-2.0
//
// The copies of a plan, for engines of tests: made by the cache in memory of its own, and by the engine anywhere else.
// What tests call a device is within the processor's reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/cache.h"
#include "quire/host_kernels.h"

namespace quire::testing {

inline void copy_states_in_place(Cache& cache, std::span<const StateCopy> copies) {
  if (copies.empty()) return;
  const std::span<const CacheGroup> groups = cache.config().layout.groups();
  std::vector<const PoolGeometry*> geometries(groups.size());
  std::vector<std::byte*> pools(groups.size());
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    if (!has_pages(groups[g])) continue;
    geometries[g] = &cache.geometry(g);
    pools[g] = cache.device_memory(g);
  }
  const DeviceConfig& device = cache.config().device;
  copy_states_on_host(
      {.slots = &cache.state_slots(),
       .state = cache.state_memory(),
       .slot_count = device.state_slot_count > 0 ? device.state_slot_count : cache.config().sequence_count_max,
       .geometries = geometries,
       .pools = pools,
       .copies = copies});
}

/// Before a step is computed.
[[nodiscard]] inline Status apply_copies(Cache& cache, const Step& step) {
  if (cache.config().device.memory == DeviceMemory::Host) return cache.apply_copies(step);
  for (std::uint32_t g = 0; g < step.plan.groups.size(); ++g) {
    const GroupPlan& group = step.plan.groups[g];
    if (group.moves.empty() && group.copies.empty()) continue;
    std::byte* const pool = cache.device_memory(g);
    move_tokens_on_host({.geometry = &cache.geometry(g), .pool = pool, .moves = group.moves});
    copy_pages_on_host({.geometry = &cache.geometry(g), .pool = pool, .copies = group.copies});
  }
  copy_states_in_place(cache, step.plan.state_copies);
  return {};
}

/// Behind it.
[[nodiscard]] inline Status apply_saves(Cache& cache, const Step& step) {
  if (cache.config().device.memory == DeviceMemory::Host) return cache.apply_saves(step);
  copy_states_in_place(cache, step.plan.state_saves);
  return {};
}

}  // namespace quire::testing
