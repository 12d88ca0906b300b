// SPDX-License-Identifier: Apache-2.0
//
// Cache: opening the disk tier. Ranks that hold the same heads are a shard: they share a DiskMover, which reads the
// host pages of one of them and writes to those of all. Several shards make one lower tier, a RankedTier.
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <random>

#include "base/check.h"
#include "base/hash.h"
#include "base/system_error.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "store/system_files.h"
#include "transfer/mover_host.h"

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

// What the disk tier keeps of each pool, the history's first, as a rank has it: any of a shard's.
std::vector<DiskPool> Cache::Impl::disk_pools(std::uint32_t rank) const {
  const std::uint32_t lookahead = sequences.keys().lookahead_tokens();
  // One record has a page of all groups of the history. With lookahead, pages are named by other tokens, so the hash
  // must differ.
  std::uint64_t hash = disk_layout_hash(history_geometry().page(), rank);
  for (const GroupMemory& memory : std::span(history_memory).subspan(1)) {
    hash = mix64(hash) ^ disk_layout_hash(memory.geometry->page(), rank);
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
    pool.layout = {.page_bytes = page.page_bytes(), .hash = disk_layout_hash(page, rank)};
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

// The pages of all groups that have some on disk.
std::vector<const PageGeometry*> Cache::Impl::pages_on_disk() const {
  std::vector<const PageGeometry*> pages;
  for (const GroupMemory& memory : history_memory) pages.push_back(&memory.geometry->page());
  const std::vector<DiskPool> pools = disk_pools(0);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (pools[i + 1].is_kept) pages.push_back(&groups[i].memory.geometry->page());
  }
  return pages;
}

// How many shards the ranks are, by the heads of all pages that go to disk.
std::uint32_t Cache::Impl::disk_shard_count() const {
  return config.host.rank_count == 1 ? 1 : config.host.rank_count / ranks_per_shard(pages_on_disk());
}

// Pages of another rank have the same names, and other heads: a cache that drives one rank has to know which.
Status Cache::Impl::check_disk_rank() const {
  if (config.host.rank_count > 1 || config.disk.rank_index) return {};
  for (const PageGeometry* const page : pages_on_disk()) {
    if (holds_all_heads(*page)) continue;
    return invalid("disk.rank_index is not set: group '", page->group().name, "' has a share of its heads on each of ",
                   plain(config.page.rank_count),
                   " ranks; say which of them the cache drives, so that it never reads another one's pages");
  }
  return {};
}

// The host pages of one rank, by pool: those that a test gives, or a mover's.
Result<std::vector<HostPages*>> Cache::Impl::host_pages_of_rank(std::uint32_t rank,
                                                                std::span<HostPages* const> given_hosts) const {
  const TierParts& parts = tiers->parts;
  const std::size_t given_pools = given_hosts.size() / config.host.rank_count;
  const bool is_own = parts.mover != nullptr;
  Mover* const mover = !given_hosts.empty() ? nullptr : is_own ? parts.mover.get() : config.host.rank_movers[rank];
  const std::string name = "host.rank_movers[" + std::to_string(rank) + "]";
  if (mover != nullptr && MoverHost::rank(*mover) != rank) {
    return invalid(name, " reports as rank ", plain(MoverHost::rank(*mover)),
                   ": open it with MoverConfig::rank = ", plain(rank));
  }
  const std::vector<MoverHost::Pool> pools =
      mover != nullptr ? MoverHost::pools(*mover) : std::vector<MoverHost::Pool>();
  std::vector<HostPages*> hosts(parts.homes.size());
  for (std::size_t i = 0; i < parts.homes.size(); ++i) {
    const TierPages& pages = parts.homes[i]->pages;
    if (!pages.has_host()) continue;
    const std::uint16_t pool = pages.mover_pool;
    if (mover == nullptr) {
      QUIRE_CHECK(pool < given_pools, "a disk tier without threads has host pages of every pool of every rank");
      hosts[i] = given_hosts[(rank * given_pools) + pool];
      continue;
    }
    if (pool >= pools.size()) {
      return invalid(name, " has ", count_of(pools.size(), "pool"), ", and none with number ", plain(pool),
                     ": give it one for full and compressed groups, and one for each window and snapshot group that "
                     "has pages, in the layout's order");
    }
    if (pools[pool].page_bytes != pages.page_bytes) {
      return invalid(name, ": a page of pool ", plain(pool), " has ", pools[pool].page_bytes,
                     " bytes; the cache's have ", pages.page_bytes, " on each rank");
    }
    if (pools[pool].page_count < pages.host.page_count()) {
      return invalid(name, ": pool ", plain(pool), " has ", count_of(pools[pool].page_count, "host page"),
                     "; the cache has ", pages.host.page_count());
    }
    hosts[i] = pools[pool].pages;
  }
  return hosts;
}

// `common` has everything but the stores.
Status Cache::Impl::open_disk_shard(std::uint32_t shard, FileSystem& on,
                                    std::span<const std::vector<HostPages*>> rank_hosts,
                                    const DiskMover::Config& common) {
  const std::uint32_t shard_count = disk_shard_count();
  const std::uint32_t rank_count = config.host.rank_count / shard_count;
  const DiskConfig settings = disk_of_shard(config.disk, shard, shard_count);
  // Stores of different shards have different ids, so that a segment of one is none of another.
  const std::uint64_t seed = common.has_threads ? random_seed() : config.hash_seed + (std::uint64_t{shard} << 32U);
  const FileStoreConfig store{.directories = settings.directories,
                              .capacity_bytes = settings.capacity_bytes,
                              .segment_bytes = settings.segment_bytes,
                              .queue_depth = settings.queue_depth,
                              .zstd_level = settings.zstd_level,
                              .random_seed = seed,
                              .now_ns = common.has_threads ? unix_time() : 0,
                              .is_read_only = settings.access == TierAccess::ReadOnly};
  const std::uint32_t rank = config.disk.rank_index.value_or(shard * rank_count);
  DiskMover::Config made = common;
  QUIRE_TRY_ASSIGN(made.stores, share_disk(settings, store, disk_pools(rank)));
  for (FileStoreConfig& each : made.stores) each.store_count *= shard_count;
  const std::span<const std::vector<HostPages*>> ranks = rank_hosts.subspan(shard * rank_count, rank_count);
  std::vector<HostPages*> hosts = ranks.front();
  for (std::size_t pool = 0; pool < hosts.size() && rank_count > 1; ++pool) {
    if (hosts[pool] == nullptr) continue;
    std::vector<HostPages*> same;
    for (const std::vector<HostPages*>& each : ranks) same.push_back(each[pool]);
    const std::uint32_t page_count = tiers->parts.homes[pool]->pages.host.page_count();
    QUIRE_TRY_ASSIGN(std::unique_ptr<RankHostPages> all, RankHostPages::create(same, page_count));
    hosts[pool] = rank_host_pages.emplace_back(std::move(all)).get();
  }
  QUIRE_TRY_ASSIGN(std::unique_ptr<DiskMover> mover, DiskMover::open(made, on, hosts));
  disks.push_back(std::move(mover));
  return {};
}

Status Cache::Impl::open_disk(FileSystem* given_files, std::span<HostPages* const> given_hosts) {
  QUIRE_TRY(check_disk_rank());
  const DiskConfig& settings = config.disk;
  TierParts& parts = tiers->parts;
  // A test that gives host pages does the work of the disk tier's threads, and wants runs that repeat: no clock, no
  // random seed.
  const bool has_threads = given_hosts.empty();
  if (has_threads && parts.mover == nullptr && config.host.rank_movers.empty()) {
    return unsupported(
        "disk.directories is set with host.external_mover: a disk tier reads and writes the host pages of the engine's "
        "movers; give these by host.rank_movers, or let the cache have a mover of its own");
  }
  std::vector<std::vector<HostPages*>> rank_hosts(config.host.rank_count);
  for (std::uint32_t rank = 0; rank < rank_hosts.size(); ++rank) {
    QUIRE_TRY_ASSIGN(rank_hosts[rank], host_pages_of_rank(rank, given_hosts));
  }
  if (given_files == nullptr) files = std::make_unique<SystemFiles>();
  if (has_threads && parts.mover == nullptr) {
    disk_events = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!disk_events.is_open()) return fail(errno_code(errno), "making the disk tier's eventfd: " + errno_text(errno));
  }
  const std::uint32_t host_page_count = history->host.page_count();
  const std::uint32_t step_pages = (config.step_tokens_max / page_tokens) + config.sequence_count_max;
  const std::uint32_t memory_pages = pool_page_count() + host_page_count;
  // Twice what memory holds: the worker that computes names may be far behind, and what is still in memory then is to
  // have names all the same, or flush() would miss it. Memory that is not needed for this is never touched.
  const NameLog::Config log_config{.page_tokens = page_tokens,
                                   .entry_count_max = (4 * memory_pages) + (8 * step_pages),
                                   .page_count_max = (2 * memory_pages) + (8 * step_pages),
                                   .extra_key_count_max = 4 * (config.extra_key_count_max + step_pages + memory_pages)};
  const DiskMover::Config common{.names = {.page_tokens = page_tokens,
                                           .device_page_count = pool_page_count() + 1,
                                           .host_page_count = host_page_count + 1,
                                           .key_space_count_max = config.key_space_count_max},
                                 .log = log_config,
                                 .stores = {},
                                 .transfer_count_max = parts.book.capacity(),
                                 .transfer_pages_max = config.host.transfer_pages_max,
                                 .path_pages_max = sequences.row_pages(),
                                 .has_threads = has_threads,
                                 .event_fd = event_fd(),
                                 .unix_time = has_threads ? unix_time : nullptr};
  std::vector<LowerTier*> shards;
  const std::uint32_t shard_count = disk_shard_count();
  for (std::uint32_t i = 0; i < shard_count; ++i) {
    Status opened = open_disk_shard(i, given_files == nullptr ? *files : *given_files, rank_hosts, common);
    if (!opened && shard_count > 1) {
      return fail(opened.error().code, "shard " + std::to_string(i) + " of " + std::to_string(shard_count) + ", with " +
                                           with_separators(settings.capacity_bytes / shard_count) +
                                           " bytes of disk.capacity_bytes: " + opened.error().message);
    }
    QUIRE_TRY(opened);
    shards.push_back(disks.back().get());
  }
  LowerTier* tier = shards.front();
  if (shard_count > 1) {
    QUIRE_TRY_ASSIGN(ranked_disk, RankedTier::open({.transfer_count_max = common.transfer_count_max,
                                                    .path_pages_max = common.path_pages_max},
                                                   shards));
    tier = ranked_disk.get();
  }
  QUIRE_TRY(tiers->add_lower(*tier, {.tier = Tier::Disk,
                                     .access = settings.access,
                                     .write_policy = settings.write_policy,
                                     .write_hits_min = settings.write_hits_min,
                                     .write_bytes_per_day = settings.write_bytes_per_day,
                                     .group_retention = settings.group_retention}));
  return tiers->open_searches(log_config);
}

}  // namespace quire
