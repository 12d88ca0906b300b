// SPDX-License-Identifier: Apache-2.0
//
// Cache: opening the remote tier, with a RemoteMover and a RemoteStore for each shard of ranks; and its status.
#include <algorithm>
#include <bit>

#include "base/hash.h"
#include "cache/cache_for_tests.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "transfer/mover_host.h"
#include "transfer/remote_fields.h"
#include "wire/extent.h"

namespace quire {

// As many pages as extent_bytes has room for, a power of two, and no more than one transfer moves.
std::uint32_t Cache::Impl::remote_extent_pages() const {
  const std::uint64_t fitting = config.remote.extent_bytes / extent_bytes(1, history->page_bytes);
  const std::uint64_t pages_max = std::min(config.host.transfer_pages_max, kExtentPagesMax);
  return static_cast<std::uint32_t>(std::bit_floor(std::clamp<std::uint64_t>(fitting, 1, pages_max)));
}

// The store of one shard, with the memory that it moves.
Result<RemoteStore*> Cache::Impl::open_remote_store(std::uint32_t shard, std::uint32_t shard_count) {
  const RemoteConfig& settings = config.remote;
  RemoteStore* store = settings.store;
  if (store == nullptr) {
    QUIRE_TRY_ASSIGN(
        std::unique_ptr<RemoteStore> opened,
        open_redis_store({.urls = settings.urls,
                          .cluster = settings.cluster,
                          .user = settings.user,
                          .password = settings.password,
                          .password_file = settings.password_file,
                          .ca_file = settings.ca_file,
                          .certificate_file = settings.certificate_file,
                          .key_file = settings.key_file,
                          .server_name = settings.server_name,
                          .key_prefix = settings.key_prefix + ":",
                          .max_age_ns = TimeNs{settings.max_age_s} * 1'000'000'000,
                          .is_read_only = settings.access == TierAccess::ReadOnly,
                          .requires_server = settings.is_required})
            .map_error([](const Error& error) { return Error{error.code, in_remote_fields(error.message)}; }));
    store = own_remote_stores.emplace_back(std::move(opened)).get();
  }
  const std::uint32_t rank_count = config.host.rank_count / shard_count;
  for (std::uint32_t i = 0; i < rank_count; ++i) {
    Mover* const own = tiers->parts.mover.get();
    const std::uint32_t rank = (shard * rank_count) + i;
    Mover* const mover = own == nullptr && rank < config.host.rank_movers.size() ? config.host.rank_movers[rank] : own;
    if (mover == nullptr) continue;
    const std::span<std::byte> memory = MoverHost::memory(*mover);
    QUIRE_TRY(store->register_memory(memory));
    registered_memory.push_back(std::make_unique<RegisteredMemory>(*store, memory));
  }
  return store;
}

Status Cache::Impl::open_remote(std::span<HostPages* const> given_hosts) {
  const RemoteConfig& settings = config.remote;
  QUIRE_TRY_ASSIGN(const LowerCommon common, open_lower_common(remote_scope(), given_hosts));
  QUIRE_TRY_ASSIGN(const ShardHosts hosts, hosts_of_shards(remote_scope(), given_hosts));
  if (settings.store != nullptr && hosts.size() > 1) {
    return unsupported("remote.store is one store, but ", plain(hosts.size()),
                       " shards of ranks hold different heads, and each needs its own: give remote.urls, or let each "
                       "rank have a cache with remote.rank_index");
  }
  RemoteMover::Config mover{.names = common.names,
                            .log = common.log,
                            .pools = {},
                            .transfer_count_max = tiers->parts.book.capacity(),
                            .transfer_pages_max = config.host.transfer_pages_max,
                            .path_pages_max = sequences.row_pages(),
                            .is_read_only = settings.access == TierAccess::ReadOnly,
                            .key_prefix = settings.key_prefix,
                            .find_timeout_ns = settings.find_timeout_ns,
                            .load_timeout_ns = settings.load_timeout_ns,
                            .store_timeout_ns = settings.store_timeout_ns,
                            .has_threads = common.has_threads,
                            .event_fd = common.event_fd,
                            .clock = nullptr,
                            .unix_time = common.unix_time};
  if (!common.has_threads) mover.clock = [this] { return tiers->parts.now; };
  std::vector<LowerTier*> shards;
  for (std::uint32_t i = 0; i < hosts.size(); ++i) {
    const auto shard_count = static_cast<std::uint32_t>(hosts.size());
    QUIRE_TRY_ASSIGN(RemoteStore* const store, open_remote_store(i, shard_count));
    const std::uint32_t rank = settings.rank_index.value_or(i * (config.host.rank_count / shard_count));
    mover.pools.clear();
    for (const DiskPool& pool : lower_pools(remote_scope(), rank)) {
      // Groups of one shape share a server, where each has a directory of its own on disk.
      FileLayout layout = pool.layout;
      if (!mover.pools.empty()) layout.hash = mix64(layout.hash + mover.pools.size());
      mover.pools.push_back({.is_kept = pool.is_kept, .layout = layout});
    }
    mover.pools.front().extent_pages = remote_extent_pages();
    QUIRE_TRY_ASSIGN(std::unique_ptr<RemoteMover> opened, RemoteMover::open(mover, *store, hosts[i]));
    shards.push_back(remotes.emplace_back(Remote{.store = store, .mover = std::move(opened)}).mover.get());
  }
  QUIRE_TRY_ASSIGN(LowerTier* const tier, rank_shards(shards));
  return tiers->add_lower(*tier, {.tier = Tier::Remote,
                                  .access = settings.access,
                                  .write_policy = settings.write_policy,
                                  .write_hits_min = settings.write_hits_min,
                                  .write_bytes_per_day = settings.write_bytes_per_day,
                                  .find_timeout_ns = settings.find_timeout_ns,
                                  .load_timeout_ns = settings.load_timeout_ns,
                                  .store_timeout_ns = settings.store_timeout_ns,
                                  .group_retention = settings.group_retention});
}

// Status

Result<RemoteTierStatus> Cache::remote_status() const {
  const Impl& impl = *impl_;
  QUIRE_TRY(impl_->enter());
  if (impl.remotes.empty()) return unsupported("remote_status: the cache has no remote tier");
  const Lower& lower = *impl.find_lower(Tier::Remote);
  RemoteTierStatus status{.extent_pages = lower.extent_pages,
                          .question_ns = lower.question_time.ns,
                          .load_bytes_per_ns = lower.load_rate.bytes_per_ns};
  for (const Impl::Remote& remote : impl.remotes) {
    const RemoteStatus store = remote.store->status();
    status.is_usable = status.is_usable && store.is_usable;
    status.node_count = std::max(status.node_count, store.node_count);
    status.failed_nodes = std::max(status.failed_nodes, store.failed_nodes);
    status.waiting_bytes += store.waiting_bytes;
    if (status.last_error.empty()) status.last_error = in_remote_fields(store.last_error);
    const RemoteMoverStats stats = remote.mover->stats();
    status.asked_names += stats.asked_names;
    status.spared_names += stats.spared_names;
    status.got_values += stats.got_values;
    status.got_bytes += stats.got_bytes;
    status.put_values += stats.put_values;
    status.put_bytes += stats.put_bytes;
    status.kept_values += stats.kept_values;
    status.absent_values += stats.absent_values;
    status.corrupt_values += stats.corrupt_values;
    status.foreign_values += stats.foreign_values;
    status.late_objects += stats.late_objects;
    status.failed_objects += stats.failed_objects;
    status.failed_drops += stats.failed_drops;
  }
  return status;
}

// CacheForTests, for tests

RemoteMover& CacheForTests::remote(Cache& cache, std::uint32_t shard) {
  return *cache.impl_->remotes[shard].mover;
}

}  // namespace quire
