// SPDX-License-Identifier: Apache-2.0
//
// For tests of engines that hand out device pages of several groups themselves.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"

namespace quire {

/// Pages of 4 tokens, so many of each group; the first keeps everything.
[[nodiscard]] inline CacheConfig external_config(std::vector<CacheGroup> groups,
                                                 std::vector<std::uint32_t> page_counts) {
  const std::uint32_t page_count = page_counts.front();
  CacheConfig config = groups_config(std::move(groups), 4, page_count, 64);
  config.device.pool = DevicePool::External;
  config.device.group_page_counts = std::move(page_counts);
  return config;
}

}  // namespace quire
