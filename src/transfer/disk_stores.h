// SPDX-License-Identifier: Apache-2.0
//
// How the pools of a cache share a disk. Each has a file store of its own, with its own capacity: long histories may
// outlive the windows and snapshots that were written with them, and the other way round.
//
//     directory/                the history
//     directory/group-window    a window group
//     directory/group-state     a snapshot group
//
// Where ranks hold different heads, each shard of them has all of this for itself:
//
//     directory/shard-0-of-2/                the history of the first half of the ranks
//     directory/shard-0-of-2/group-window    their window group
//
// Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/config.h"
#include "quire/layout.h"
#include "quire/result.h"
#include "store/file_store.h"

namespace quire {

/// How many ranks that follow one another hold the same heads of all these pages, as far as that divides all ranks
/// evenly: they are a shard. Where every rank holds everything, that is all ranks.
[[nodiscard]] std::uint32_t ranks_per_shard(std::span<const PageGeometry* const> pages);

/// Whether a page holds all heads, on every rank.
[[nodiscard]] bool holds_all_heads(const PageGeometry& page);

/// What the bytes of a page are, and how they lie: whoever writes others, or another way, must not read these. `rank`
/// is one that holds these pages. Those that hold all heads are the same for any rank, and for any number of ranks.
[[nodiscard]] std::uint64_t disk_layout_hash(const PageGeometry& page, std::uint32_t rank);

/// What shard number `shard` has of the disk: its directories and its share of the capacity.
[[nodiscard]] DiskConfig disk_of_shard(const DiskConfig& disk, std::uint32_t shard, std::uint32_t shard_count);

/// What a pool asks of the disk.
struct DiskPool {
  bool is_kept = true;            ///< else nothing of it goes to disk
  std::uint32_t group_index = 0;  ///< in the layout
  std::string name;               ///< of its group; empty: the history
  FileLayout layout;
  double pages_per_page = 1;  ///< that it writes for each page of the history, about: its share of the capacity
};

/// The stores of all pools, the history's first, as `common` and the configuration have them. A pool that keeps nothing
/// has no directories.
[[nodiscard]] Result<std::vector<FileStoreConfig>> share_disk(const DiskConfig& disk, const FileStoreConfig& common,
                                                              std::span<const DiskPool> pools);

}  // namespace quire
