// SPDX-License-Identifier: Apache-2.0
//
// CachePeer: how tests give a cache a disk of their own, and are its disk tier's threads if they like.
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
#include "quire/result.h"
#include "store/file_system.h"
#include "store/host_pages.h"
#include "transfer/disk_mover.h"

namespace quire {

struct CachePeer {
  /// All must outlive the cache. Its disk tier has no threads; with an external mover, `host_pages` are that one's, of
  /// every pool as TransferPlan::pool_index counts them.
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config, FileSystem& files,
                                                           std::span<HostPages* const> host_pages) {
    return Cache::open(std::move(config), &files, host_pages);
  }
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config, FileSystem& files,
                                                           HostPages& host_pages) {
    HostPages* const pool = &host_pages;
    return Cache::open(std::move(config), &files, {&pool, 1});
  }
  /// `files` must outlive the cache, whose disk tier has threads and its own mover's host pages, as with Cache::open().
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config, FileSystem& files) {
    return Cache::open(std::move(config), &files, {});
  }
  [[nodiscard]] static DiskMover& disk(Cache& cache);
  /// Pages of the history that a window or snapshot group has something of on the host, as visit(tier, page): by the
  /// device page as long as there is one, else by the host page.
  static void visit_host_pages(const Cache& cache, std::uint32_t group_index,
                               const std::function<void(Tier, PageId)>& visit);
  /// Host pages of window and snapshot groups that are to be written to disk, and are not there yet.
  [[nodiscard]] static std::uint32_t unwritten_side_pages(const Cache& cache);
  /// Of loads from disk that were started and are not over.
  [[nodiscard]] static std::uint64_t disk_loading_bytes(const Cache& cache);
};

}  // namespace quire
