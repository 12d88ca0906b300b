// SPDX-License-Identifier: Apache-2.0
//
// Cache: what opening disk and remote tier have in common. Ranks that hold the same heads are a shard: they share a
// mover, which reads the host pages of one of them and writes to those of all. Several shards make one lower tier, a
// RankedTier.
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "base/hash.h"
#include "base/system_error.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "transfer/mover_host.h"

namespace quire {

namespace {

TimeNs unix_time() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// What a lower tier keeps of each pool, the history's first, as a rank has it: any of a shard's.
std::vector<DiskPool> Cache::Impl::lower_pools(const LowerScope& scope, std::uint32_t rank) const {
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
    const GroupRetention below =
        scope.group_retention.empty() ? GroupRetention{} : scope.group_retention[group.memory.group_index];
    pool.is_kept = group.tier->has_host() && below.rule != RetentionRule::None;
    if (!pool.is_kept) continue;
    const PageGeometry& page = group.memory.geometry->page();
    pool.group_index = group.memory.group_index;
    pool.name = group.group->name;
    pool.layout = {.page_bytes = page.page_bytes(), .hash = disk_layout_hash(page, rank)};
    if (lookahead > 0) pool.layout.hash ^= mix64(lookahead);
    // About how many pages the group writes for each page of the history.
    const GroupRetention& in_memory = group.group->retention;
    double every = page_tokens;
    if (below.rule == RetentionRule::Every) {
      every = below.interval_tokens;
    } else if (!group.is_window()) {
      // Snapshots lie where prompts end, too; without an interval, four in a context of full length are assumed.
      every = in_memory.rule == RetentionRule::Every ? in_memory.interval_tokens : context_tokens_max / 4.0;
    }
    const double pages = group.is_window() ? 1 + std::ceil((group.group->window_tokens - 1.0) / page_tokens) : 1;
    const bool is_sparse = below.rule == RetentionRule::Every || !group.is_window();
    pool.pages_per_page = std::clamp(is_sparse ? pages * page_tokens / every : 1, 1.0 / 1'024, 1.0);
  }
  return pools;
}

// The pages of all groups that a lower tier has some of.
std::vector<const PageGeometry*> Cache::Impl::pages_below(const LowerScope& scope) const {
  std::vector<const PageGeometry*> pages;
  for (const GroupMemory& memory : history_memory) pages.push_back(&memory.geometry->page());
  const std::vector<DiskPool> pools = lower_pools(scope, 0);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (pools[i + 1].is_kept) pages.push_back(&groups[i].memory.geometry->page());
  }
  return pages;
}

// How many shards the ranks are, by the heads of all pages that a lower tier has.
std::uint32_t Cache::Impl::shard_count_of(const LowerScope& scope) const {
  return config.host.rank_count == 1 ? 1 : config.host.rank_count / ranks_per_shard(pages_below(scope));
}

// Pages of another rank have the same names, and other heads: a cache that drives one rank has to know which.
Status Cache::Impl::check_lower_rank(const LowerScope& scope) const {
  if (config.host.rank_count > 1 || scope.rank_index) return {};
  for (const PageGeometry* const page : pages_below(scope)) {
    if (holds_all_heads(*page)) continue;
    return invalid(scope.name, ".rank_index is not set: group '", page->group().name,
                   "' has a share of its heads on each of ", plain(config.page.rank_count),
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
      QUIRE_CHECK(pool < given_pools, "a tier without threads has host pages of every pool of every rank");
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

// The host pages of the ranks of each shard, by pool.
Result<Cache::Impl::ShardHosts> Cache::Impl::hosts_of_shards(const LowerScope& scope,
                                                             std::span<HostPages* const> given_hosts) {
  const std::uint32_t shard_count = shard_count_of(scope);
  const std::uint32_t rank_count = config.host.rank_count / shard_count;
  ShardHosts shards(shard_count);
  for (std::uint32_t shard = 0; shard < shard_count; ++shard) {
    std::vector<std::vector<HostPages*>> ranks(rank_count);
    for (std::uint32_t i = 0; i < rank_count; ++i) {
      QUIRE_TRY_ASSIGN(ranks[i], host_pages_of_rank((shard * rank_count) + i, given_hosts));
    }
    shards[shard] = ranks.front();
    for (std::size_t pool = 0; pool < shards[shard].size() && rank_count > 1; ++pool) {
      if (shards[shard][pool] == nullptr) continue;
      std::vector<HostPages*> same;
      for (const std::vector<HostPages*>& each : ranks) same.push_back(each[pool]);
      const std::uint32_t page_count = tiers->parts.homes[pool]->pages.host.page_count();
      QUIRE_TRY_ASSIGN(std::unique_ptr<RankHostPages> all, RankHostPages::create(same, page_count));
      shards[shard][pool] = rank_host_pages.emplace_back(std::move(all)).get();
    }
  }
  return shards;
}

// What movers of lower tiers are made with. A test that gives host pages does the work of their threads, and wants runs
// that repeat: no clock, no random seed.
Result<Cache::Impl::LowerCommon> Cache::Impl::open_lower_common(const LowerScope& scope,
                                                                std::span<HostPages* const> given_hosts) {
  QUIRE_TRY(check_lower_rank(scope));
  const bool has_threads = given_hosts.empty();
  const bool has_mover = tiers->parts.mover != nullptr;
  if (has_threads && !has_mover && config.host.rank_movers.empty()) {
    return unsupported(scope.is_set, " is set with host.external_mover: a ", scope.name,
                       " tier reads and writes the host pages of the engine's movers; give these by host.rank_movers, "
                       "or let the cache have a mover of its own");
  }
  if (has_threads && !has_mover && !lower_events.is_open()) {
    lower_events = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!lower_events.is_open()) {
      return fail(errno_code(errno),
                  "making the eventfd of the " + std::string(scope.name) + " tier: " + errno_text(errno));
    }
  }
  const std::uint32_t host_page_count = history->host.page_count();
  return LowerCommon{.names = {.page_tokens = page_tokens,
                               .device_page_count = pool_page_count() + 1,
                               .host_page_count = host_page_count + 1,
                               .key_space_count_max = config.key_space_count_max},
                     .log = name_log_config(),
                     .has_threads = has_threads,
                     .event_fd = event_fd(),
                     .unix_time = has_threads ? unix_time : nullptr};
}

// Twice what memory holds: the worker that computes names may be far behind, and what is still in memory then is to
// have names all the same, or flush() would miss it. Memory that is not needed for this is never touched.
NameLog::Config Cache::Impl::name_log_config() const {
  const std::uint32_t step_pages = (config.step_tokens_max / page_tokens) + config.sequence_count_max;
  const std::uint32_t memory_pages = pool_page_count() + history->host.page_count();
  return {.page_tokens = page_tokens,
          .entry_count_max = (4 * memory_pages) + (8 * step_pages),
          .page_count_max = (2 * memory_pages) + (8 * step_pages),
          .extra_key_count_max = 4 * (config.extra_key_count_max + step_pages + memory_pages)};
}

// One lower tier of all shards.
Result<LowerTier*> Cache::Impl::rank_shards(std::span<LowerTier* const> shards) {
  if (shards.size() == 1) return shards.front();
  QUIRE_TRY_ASSIGN(
      std::unique_ptr<RankedTier> ranked,
      RankedTier::open({.transfer_count_max = tiers->parts.book.capacity(), .path_pages_max = sequences.row_pages()},
                       shards));
  return ranked_tiers.emplace_back(std::move(ranked)).get();
}

}  // namespace quire
