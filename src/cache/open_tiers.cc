// SPDX-License-Identifier: Apache-2.0
//
// Cache: opening the host tier with its mover, and the disk tier.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "base/check.h"
#include "base/hash.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "store/system_files.h"

namespace quire {

namespace {

std::uint64_t random_seed() {
  std::random_device entropy;
  return (std::uint64_t{entropy()} << 32U) | entropy();
}

TimeNs unix_time() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// The host tier

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
                           .store_paths = host.store_paths};
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

// The disk tier

// What the disk tier keeps of each pool, the history's first.
std::vector<DiskPool> Cache::Impl::disk_pools() const {
  const std::uint32_t lookahead = sequences.keys().lookahead_tokens();
  // One record has a page of all groups of the history. With lookahead, pages are named by other tokens, so the hash
  // must differ.
  std::uint64_t hash = disk_layout_hash(history_geometry().page());
  for (const GroupMemory& memory : std::span(history_memory).subspan(1)) {
    hash = mix64(hash) ^ disk_layout_hash(memory.geometry->page());
  }
  if (lookahead > 0) hash = mix64(hash ^ lookahead);
  std::vector<DiskPool> pools = {{.layout = {.page_bytes = history->page_bytes, .hash = hash}}};
  for (const GroupRows& group : groups) {
    DiskPool& pool = pools.emplace_back();
    const GroupRetention on_disk =
        config.disk.group_retention.empty() ? GroupRetention{} : config.disk.group_retention[group.memory.group_index];
    pool.is_kept = group.tier->has_host() && on_disk.rule != RetentionRule::None;
    if (!pool.is_kept) continue;
    const PageGeometry& page = group.memory.geometry->page();
    pool.group_index = group.memory.group_index;
    pool.name = group.group->name;
    pool.layout = {.page_bytes = page.page_bytes(), .hash = disk_layout_hash(page)};
    if (lookahead > 0) pool.layout.hash ^= mix64(lookahead);
    // About how many pages the group writes for each page of the history.
    const GroupRetention& in_memory = group.group->retention;
    double every = page_tokens;
    if (on_disk.rule == RetentionRule::Every) {
      every = on_disk.interval_tokens;
    } else if (!group.is_window()) {
      // Snapshots lie where prompts end, too; without an interval, four in a context of full length are assumed.
      every = in_memory.rule == RetentionRule::Every ? in_memory.interval_tokens : context_tokens_max / 4.0;
    }
    const double pages = group.is_window() ? 1 + std::ceil((group.group->window_tokens - 1.0) / page_tokens) : 1;
    const bool is_sparse = on_disk.rule == RetentionRule::Every || !group.is_window();
    pool.pages_per_page = std::clamp(is_sparse ? pages * page_tokens / every : 1, 1.0 / 1'024, 1.0);
  }
  return pools;
}

Status Cache::Impl::open_disk(FileSystem* given_files, std::span<HostPages* const> given_hosts) {
  const DiskConfig& settings = config.disk;
  TierParts& parts = tiers->parts;
  // A test that gives host pages does the work of the disk tier's threads, and wants runs that repeat: no clock, no
  // random seed.
  const bool has_threads = given_hosts.empty();
  if (has_threads && parts.mover == nullptr) {
    return unsupported("disk.directories is set with host.external_mover: a disk tier needs the cache's own mover");
  }
  if (given_files == nullptr) files = std::make_unique<SystemFiles>();
  const std::uint32_t host_page_count = history->host.page_count();
  const std::uint32_t step_pages = (config.step_tokens_max / page_tokens) + config.sequence_count_max;
  const NameLog::Config log_config{.page_tokens = page_tokens,
                                   .entry_count_max = (4 * (pool_page_count() + host_page_count)) + (8 * step_pages),
                                   .page_count_max = 8 * step_pages,
                                   .extra_key_count_max = 4 * (config.extra_key_count_max + step_pages)};
  const FileStoreConfig common{.directories = settings.directories,
                               .capacity_bytes = settings.capacity_bytes,
                               .segment_bytes = settings.segment_bytes,
                               .queue_depth = settings.queue_depth,
                               .zstd_level = settings.zstd_level,
                               .random_seed = has_threads ? random_seed() : config.hash_seed,
                               .now_ns = has_threads ? unix_time() : 0};
  QUIRE_TRY_ASSIGN(std::vector<FileStoreConfig> stores, share_disk(settings, common, disk_pools()));
  std::vector<HostPages*> hosts(parts.homes.size());
  for (std::size_t i = 0; i < parts.homes.size(); ++i) {
    if (!parts.homes[i]->pages.has_host()) continue;
    const std::uint16_t pool = parts.homes[i]->pages.mover_pool;
    QUIRE_CHECK(has_threads || pool < given_hosts.size(), "a disk tier without threads has host pages of every pool");
    hosts[i] = has_threads ? &parts.mover->host_pages(pool) : given_hosts[pool];
  }
  QUIRE_TRY_ASSIGN(disk, DiskMover::open({.names = {.page_tokens = page_tokens,
                                                    .device_page_count = pool_page_count() + 1,
                                                    .host_page_count = host_page_count + 1,
                                                    .key_space_count_max = config.key_space_count_max},
                                          .log = log_config,
                                          .stores = std::move(stores),
                                          .transfer_count_max = parts.book.capacity(),
                                          .transfer_pages_max = config.host.transfer_pages_max,
                                          .path_pages_max = sequences.row_pages(),
                                          .has_threads = has_threads,
                                          .event_fd = parts.mover != nullptr ? parts.mover->event_fd() : -1,
                                          .unix_time = has_threads ? unix_time : nullptr},
                                         given_files == nullptr ? *files : *given_files, hosts));
  QUIRE_TRY(tiers->add_lower(*disk, {.tier = Tier::Disk,
                                     .write_policy = settings.write_policy,
                                     .write_hits_min = settings.write_hits_min,
                                     .write_bytes_per_day = settings.write_bytes_per_day,
                                     .group_retention = settings.group_retention}));
  return tiers->open_searches(log_config);
}

}  // namespace quire
