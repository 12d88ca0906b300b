// SPDX-License-Identifier: Apache-2.0
//
// CacheForTests: lets tests open a cache on a file system of their own, do the work of the disk tier's threads
// themselves, and look inside the cache.
//
// single-threaded
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "quire/cache.h"
#include "quire/config.h"
#include "quire/mover.h"
#include "quire/result.h"
#include "store/file_system.h"
#include "store/host_pages.h"
#include "tiers/tier_parts.h"
#include "transfer/disk_mover.h"
#include "transfer/remote_mover.h"

namespace quire {

struct CacheForTests {
  /// A cache whose disk tier has no threads: the test does their work. `files` and `host_pages` must outlive the cache.
  /// `host_pages` has one entry for each pool, as TransferPlan::pool_index counts pools, of rank 0, then of rank 1, and
  /// so on; with an external mover they are the mover's.
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config, FileSystem& files,
                                                           std::span<HostPages* const> host_pages) {
    return Cache::open(std::move(config), &files, host_pages);
  }
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config, FileSystem& files,
                                                           HostPages& host_pages) {
    HostPages* const pool = &host_pages;
    return Cache::open(std::move(config), &files, {&pool, 1});
  }
  /// As Cache::open(), with other files, which must outlive the cache: the disk tier has threads and uses the host
  /// pages of the cache's own mover.
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config, FileSystem& files) {
    return Cache::open(std::move(config), &files, {});
  }
  /// The disk tier of one shard of ranks. Where there are several, completions come from lowers().
  [[nodiscard]] static DiskMover& disk(Cache& cache, std::uint32_t shard = 0);
  /// The remote tier of one shard, whose clock is then the cache's time.
  [[nodiscard]] static RemoteMover& remote(Cache& cache, std::uint32_t shard = 0);
  [[nodiscard]] static std::uint32_t disk_shard_count(const Cache& cache);
  /// The cache's own.
  [[nodiscard]] static Mover& mover(Cache& cache);
  /// Lower tiers in the order in which they are asked, behind the disk if there is one, for a cache that has not been
  /// used. They must outlive it. Key spaces are made afterwards.
  struct LowerRow {
    LowerTier& tier;
    LowerSettings settings;
  };
  [[nodiscard]] static Status add_lowers(Cache& cache, std::span<const LowerRow> rows, const NameLog::Config& names);
  /// What the tiers know of them.
  [[nodiscard]] static std::span<const Lower> lowers(const Cache& cache);
  /// Calls visit(tier, page) for each page of the history on which a host page of a window or snapshot group hangs.
  /// `page` is the history's device page as long as there is one, else its host page.
  static void visit_host_pages(const Cache& cache, std::uint32_t group_index,
                               const std::function<void(Tier, PageId)>& visit);
  /// Host pages of window and snapshot groups that wait to be written to disk, or are being written.
  [[nodiscard]] static std::uint32_t unwritten_anchored_pages(const Cache& cache);
  /// Which pool a transfer that is under way belongs to: 0 for the history.
  [[nodiscard]] static std::uint32_t pool_of(const Cache& cache, TransferId id);
  /// Pages that a sequence saves or has back, of all pools, in transfers that are not over.
  [[nodiscard]] static std::uint32_t own_pages_moving(const Cache& cache, SequenceId id);
  /// Whether a sequence that waits for room to load has let go of its path, because others needed the pages.
  [[nodiscard]] static bool has_let_go(const Cache& cache, SequenceId id);
  /// Pages that memory has given up, whether a lower tier has them or not.
  [[nodiscard]] static std::uint64_t given_up_page_total(const Cache& cache);
  /// Bytes in loads from disk that were started and are not over.
  [[nodiscard]] static std::uint64_t disk_loading_bytes(const Cache& cache);
};

}  // namespace quire
