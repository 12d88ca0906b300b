// SPDX-License-Identifier: Apache-2.0
//
// Pages of several groups, as transfers name them: pool 0 has all groups that keep everything, where an id is a page of
// each, and every other group that has pages is a pool of its own, in the order of the layout. For movers of tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/cache.h"

namespace quire::testing {

/// The groups of each pool, by TransferPlan::pool_index.
[[nodiscard]] inline std::vector<std::vector<std::uint32_t>> transfer_pools(const ModelLayout& layout) {
  std::vector<std::vector<std::uint32_t>> pools(1);
  for (std::uint32_t i = 0; i < layout.groups().size(); ++i) {
    const GroupKind kind = layout.groups()[i].kind;
    if (kind == GroupKind::Full || kind == GroupKind::Compressed) {
      pools.front().push_back(i);
    } else if (has_pages(layout.groups()[i])) {
      pools.push_back({i});
    }
  }
  return pools;
}

/// Of all groups of a pool together.
[[nodiscard]] inline std::uint64_t pool_page_bytes(const Cache& cache, std::span<const std::uint32_t> groups) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t group : groups) bytes += cache.geometry(group).page().page_bytes();
  return bytes;
}

/// visit(device, at, count) for bytes [begin, end) of a page of a pool, group by group and layer by layer, in pieces
/// that lie in one place on the device. `at` counts from the beginning of the page.
template <typename Visit>
void visit_page_bytes(const Cache& cache, std::span<const std::uint32_t> groups, PageId page, std::uint64_t begin,
                      std::uint64_t end, Visit visit) {
  std::uint64_t first = 0;  // of the group
  for (const std::uint32_t group : groups) {
    const PoolGeometry& geometry = cache.geometry(group);
    const std::uint64_t layer_bytes = geometry.page().layer_bytes();
    for (std::uint32_t layer = 0; layer < geometry.page().layer_count(); ++layer, first += layer_bytes) {
      const std::uint64_t from = std::max(begin, first);
      const std::uint64_t to = std::min(end, first + layer_bytes);
      if (from >= to) continue;
      std::byte* const device = cache.device_memory(group) + (page.value * geometry.strides().page) +
                                (layer * geometry.strides().layer) + (from - first);
      visit(device, from, to - from);
    }
  }
}

}  // namespace quire::testing
