// SPDX-License-Identifier: Apache-2.0
//
// How the pools of a cache share a disk. Each has a file store of its own, with its own capacity: long histories may
// outlive the windows and snapshots that were written with them, and the other way round.
//
//     directory/                the history
//     directory/group-window    a window group
//     directory/group-state     a snapshot group
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

/// How the bytes of a page lie: whoever writes them another way must not read these.
[[nodiscard]] std::uint64_t disk_layout_hash(const PageGeometry& page);

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
