// SPDX-License-Identifier: Apache-2.0
//
// Cache: opening the host tier with its mover.
#include <algorithm>

#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Status Cache::Impl::open_host(std::uint32_t page_count) {
  const std::uint32_t clean_reserve_pages = clean_reserve_for(pool_page_count());
  if (clean_reserve_pages > pool_page_count()) {
    return invalid("host.clean_reserve_pages is ", clean_reserve_pages, "; the device pool has ", pool_page_count(),
                   " pages");
  }
  std::uint16_t pool_index = 0;  // as TransferPlan::pool_index counts; the history's is 0
  for (const auto& group : tiers->parts.groups) {
    if (!group->has_pages) continue;
    QUIRE_TRY(open_group_host(*group, page_count));
    group->pages.mover_pool = ++pool_index;
  }
  QUIRE_TRY(tiers->open_host(page_count, clean_reserve_pages));
  completions.resize(tiers->parts.book.capacity());
  return config.host.external_mover ? Status{} : open_mover();
}

Status Cache::Impl::open_group_host(AnchoredGroup& group, std::uint32_t host_page_count) {
  const std::uint32_t page_count = group.pages.device.page_count();
  const std::uint64_t proportional = std::uint64_t{page_count} * host_page_count / std::max(pool_page_count(), 1U);
  const std::uint64_t wanted = config.host.group_page_counts.empty() ? std::max<std::uint64_t>(proportional, page_count)
                                                                     : config.host.group_page_counts[group.group_index];
  if (wanted == 0 || wanted >= PageId::kNoneValue) {
    return invalid("group '", group.group->name, "' would have ", wanted, " host pages: set host.group_page_counts[",
                   plain(group.group_index), "]");
  }
  return group.open_host({.page_count = static_cast<std::uint32_t>(wanted),
                          .tree_page_count = pool_page_count(),
                          .tree_host_page_count = host_page_count,
                          .path_pages_max = sequences.row_pages(),
                          .looks_ahead = sequences.keys().lookahead_tokens() > 0});
}

// The mover has one pool for the history, and one for each anchored group with host pages.
Status Cache::Impl::open_mover() {
  const HostConfig& host = config.host;
  MoverConfig mover_config{.host_region = host.region,
                           .checksums = host.checksums,
                           .queue_depth_max = tiers->parts.book.capacity(),
                           .transfer_pages_max = host.transfer_pages_max,
                           .accelerator = config.device.accelerator,
                           .staging_bytes = host.staging_bytes,
                           .load_paths = host.load_paths,
                           .store_paths = host.store_paths,
                           .load_streams = host.load_streams,
                           .store_streams = host.store_streams};
  const auto part_of = [&](const GroupMemory& memory) {
    MoverPart part{.geometry = &*memory.geometry, .memory = memory.data};
    if (memory.data == nullptr) part.tensors = config.device.adopted_tensors[memory.group_index];
    return part;
  };
  MoverPool& of_history = mover_config.pools.emplace_back();
  of_history.host_page_count = history->host.page_count();
  for (const GroupMemory& memory : history_memory) of_history.parts.push_back(part_of(memory));
  for (const GroupRows& group : groups) {
    if (!group.tier->has_host()) continue;
    MoverPool& of_group = mover_config.pools.emplace_back();
    of_group.host_page_count = group.tier->pages.host.page_count();
    of_group.parts.push_back(part_of(group.memory));
  }
  QUIRE_TRY_ASSIGN(tiers->parts.mover, Mover::open(mover_config));
  host_region = tiers->parts.mover->host_region();
  return {};
}

}  // namespace quire
