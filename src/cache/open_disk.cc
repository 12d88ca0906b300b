// SPDX-License-Identifier: Apache-2.0
//
// Cache: opening the disk tier, with a DiskMover for each shard of ranks.
#include <random>

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

}  // namespace

// `common` has everything but the stores.
Status Cache::Impl::open_disk_shard(std::uint32_t shard, FileSystem& on, std::span<HostPages* const> hosts,
                                    const DiskMover::Config& common) {
  const std::uint32_t shard_count = shard_count_of(disk_scope());
  const DiskConfig settings = disk_of_shard(config.disk, shard, shard_count);
  // Stores of different shards have different ids, so that a segment of one is none of another.
  const std::uint64_t seed = common.has_threads ? random_seed() : config.hash_seed + (std::uint64_t{shard} << 32U);
  const FileStoreConfig store{.directories = settings.directories,
                              .capacity_bytes = settings.capacity_bytes,
                              .segment_bytes = settings.segment_bytes,
                              .queue_depth = settings.queue_depth,
                              .zstd_level = settings.zstd_level,
                              .random_seed = seed,
                              .now_ns = common.unix_time ? common.unix_time() : 0,
                              .is_read_only = settings.access == TierAccess::ReadOnly};
  const std::uint32_t rank = config.disk.rank_index.value_or(shard * (config.host.rank_count / shard_count));
  DiskMover::Config made = common;
  QUIRE_TRY_ASSIGN(made.stores, share_disk(settings, store, lower_pools(disk_scope(), rank)));
  for (FileStoreConfig& each : made.stores) each.store_count *= shard_count;
  QUIRE_TRY_ASSIGN(std::unique_ptr<DiskMover> mover, DiskMover::open(made, on, hosts));
  disks.push_back(std::move(mover));
  return {};
}

Status Cache::Impl::open_disk(FileSystem* given_files, std::span<HostPages* const> given_hosts) {
  const DiskConfig& settings = config.disk;
  QUIRE_TRY_ASSIGN(const LowerCommon common, open_lower_common(disk_scope(), given_hosts));
  QUIRE_TRY_ASSIGN(const ShardHosts hosts, hosts_of_shards(disk_scope(), given_hosts));
  if (given_files == nullptr) files = std::make_unique<SystemFiles>();
  const DiskMover::Config mover{.names = common.names,
                                .log = common.log,
                                .stores = {},
                                .transfer_count_max = tiers->parts.book.capacity(),
                                .transfer_pages_max = config.host.transfer_pages_max,
                                .path_pages_max = sequences.row_pages(),
                                .has_threads = common.has_threads,
                                .event_fd = common.event_fd,
                                .unix_time = common.unix_time};
  std::vector<LowerTier*> shards;
  for (std::uint32_t i = 0; i < hosts.size(); ++i) {
    Status opened = open_disk_shard(i, given_files == nullptr ? *files : *given_files, hosts[i], mover);
    if (!opened && hosts.size() > 1) {
      return fail(opened.error().code, "shard " + std::to_string(i) + " of " + std::to_string(hosts.size()) +
                                           ", with " + with_separators(settings.capacity_bytes / hosts.size()) +
                                           " bytes of disk.capacity_bytes: " + opened.error().message);
    }
    QUIRE_TRY(opened);
    shards.push_back(disks.back().get());
  }
  QUIRE_TRY_ASSIGN(LowerTier* const tier, rank_shards(shards));
  return tiers->add_lower(*tier, {.tier = Tier::Disk,
                                  .access = settings.access,
                                  .write_policy = settings.write_policy,
                                  .write_hits_min = settings.write_hits_min,
                                  .write_bytes_per_day = settings.write_bytes_per_day,
                                  .answers_at_once = true,
                                  .group_retention = settings.group_retention});
}

}  // namespace quire
