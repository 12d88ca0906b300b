// SPDX-License-Identifier: Apache-2.0
//
// The memory of a cache of several groups: a pool of pages for each that has any, and the state slots.
#pragma once

#include <optional>
#include <vector>

#include "pool_memory.h"
#include "quire/cache.h"
#include "state_memory.h"

namespace tiny_engine {

struct HybridMemory {
  std::vector<std::optional<PoolMemory>> pools;  ///< by group; nothing where it has no pages
  StateMemory states;

  /// A group's part of the state slots, by slot x entries of a slot.
  [[nodiscard]] PoolMemory state_pool(std::uint32_t group_index) const;
};
/// A cache's own memory.
[[nodiscard]] HybridMemory memory_of(const quire::Cache& cache);

}  // namespace tiny_engine
