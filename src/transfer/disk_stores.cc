// SPDX-License-Identifier: Apache-2.0
#include "transfer/disk_stores.h"

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "layout/text.h"
#include "wire/segment.h"

namespace quire {

namespace {

// Of one store, for reads and for writes.
constexpr std::uint64_t kBufferBytesMax = 64 << 20U;

}  // namespace

std::uint32_t ranks_per_shard(std::span<const PageGeometry* const> pages) {
  std::uint32_t rank_count = pages.front()->options().rank_count;
  for (const PageGeometry* const page : pages) {
    for (std::uint32_t index = 0; index < page->components().size(); ++index) {
      std::uint32_t same = 1;
      while (same < page->options().rank_count && page->heads_on_rank(index, same) == page->heads_on_rank(index, 0)) {
        ++same;
      }
      rank_count = std::gcd(rank_count, same);
    }
  }
  return rank_count;
}

bool holds_all_heads(const PageGeometry& page) {
  bool is_whole = true;
  for (std::uint32_t index = 0; index < page.components().size(); ++index) {
    is_whole = is_whole && page.heads_on_rank(index, 0).count == page.group().components[index].heads;
  }
  return is_whole;
}

std::uint64_t disk_layout_hash(const PageGeometry& page, std::uint32_t rank) {
  std::string form = "quire page layout 1";
  const auto add = [&form](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) form.push_back(static_cast<char>((value >> (8 * byte)) & 0xffU));
  };
  const PageOptions& options = page.options();
  const bool is_whole = holds_all_heads(page);
  add(options.page_tokens);
  // Whole pages are those of a single rank. Of others, the heads tell everything, and stand at the end.
  add(is_whole ? 1 : 0);
  add(static_cast<std::uint64_t>(options.head_order));
  add(static_cast<std::uint64_t>(page.group().keys_rotated));
  add(page.layer_bytes());
  add(page.layer_count());
  for (const std::uint32_t layer : page.group().layers) add(layer);
  for (const Component& component : page.group().components) {
    add(component.name.size());
    form += component.name;
    add(static_cast<std::uint64_t>(component.element));
    add(component.heads);
    add(component.dim);
    add(static_cast<std::uint64_t>(component.sharding));
  }
  // What follows came later: a group without any of it keeps its hash, and so its files.
  for (std::uint32_t index = 0; index < page.components().size(); ++index) {
    const Component& component = page.group().components[index];
    if (component.placement == Placement::Area && component.alignment == 1) continue;
    add(index);
    add(page.components()[index].offset);
    add(page.components()[index].token);
  }
  const CacheGroup& group = page.group();
  if (group.kind != GroupKind::Full) {
    add(static_cast<std::uint64_t>(group.kind));
    add(static_cast<std::uint64_t>(group.window_form));
    for (const std::uint32_t value :
         {group.window_tokens, group.sink_tokens, group.tokens_per_entry, group.overlap_tokens, group.slot_entries,
          group.slot_history, group.snapshot_entries, group.boundary_tokens}) {
      add(value);
    }
  }
  for (std::uint32_t index = 0; index < page.components().size() && !is_whole; ++index) {
    const HeadRange heads = page.heads_on_rank(index, rank);
    add(heads.first);
    add(heads.count);
  }
  return hash_bytes(form.data(), form.size(), 0);
}

DiskConfig disk_of_shard(const DiskConfig& disk, std::uint32_t shard, std::uint32_t shard_count) {
  DiskConfig part = disk;
  if (shard_count == 1) return part;
  for (std::string& directory : part.directories) {
    directory +=
        "/" + std::string(kShardDirectoryPrefix) + std::to_string(shard) + "-of-" + std::to_string(shard_count);
  }
  part.capacity_bytes /= shard_count;
  for (std::uint64_t& bytes : part.group_capacity_bytes) bytes /= shard_count;
  return part;
}

Result<std::vector<FileStoreConfig>> share_disk(const DiskConfig& disk, const FileStoreConfig& common,
                                                std::span<const DiskPool> pools) {
  const std::vector<std::uint64_t>& given_bytes = disk.group_capacity_bytes;
  std::vector<FileStoreConfig> stores(pools.size());
  std::vector<double> weights(pools.size());
  double all = 0;
  std::uint32_t store_count = 0;
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const DiskPool& pool = pools[i];
    if (!pool.is_kept) continue;
    const std::uint64_t page_bytes = pool.layout.page_bytes;
    stores[i] = common;
    stores[i].layout = pool.layout;
    weights[i] = static_cast<double>(record_bytes(page_bytes)) * pool.pages_per_page;
    all += weights[i];
    ++store_count;
    if (i == 0) continue;
    stores[i].random_seed = common.random_seed + pool.group_index + 1;
    stores[i].segment_bytes = std::max(common.segment_bytes, FileStoreConfig::segment_bytes_min(page_bytes));
    // Each store has buffers for what is under way, and a snapshot may have a hundred megabytes.
    stores[i].queue_depth =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(kBufferBytesMax / page_bytes, 1, common.queue_depth));
    for (std::string& directory : stores[i].directories) {
      directory += "/" + std::string(kGroupDirectoryPrefix) + pool.name;
    }
  }
  for (FileStoreConfig& store : stores) store.store_count = store_count;
  if (pools.size() == 1 || common.is_read_only) return stores;
  const std::uint64_t history_least = disk.capacity_bytes_min(stores[0].layout.page_bytes);
  std::uint64_t left = disk.capacity_bytes - std::min(disk.capacity_bytes, history_least);
  for (std::size_t i = 1; i < pools.size(); ++i) {
    FileStoreConfig& store = stores[i];
    if (!pools[i].is_kept) continue;
    const std::uint64_t least = disk.capacity_bytes_min(store.layout.page_bytes);
    const double share = static_cast<double>(disk.capacity_bytes) * weights[i] / all;
    store.capacity_bytes =
        given_bytes.empty() ? std::max(static_cast<std::uint64_t>(share), least) : given_bytes[pools[i].group_index];
    if (store.capacity_bytes < least) {
      return fail(ErrorCode::InvalidArgument,
                  "group '" + pools[i].name + "' has " + with_separators(store.capacity_bytes) +
                      " bytes on disk; its pages of " + with_separators(store.layout.page_bytes) + " bytes need " +
                      with_separators(least) + ": raise disk.group_capacity_bytes[" +
                      std::to_string(pools[i].group_index) + "]");
    }
    if (store.capacity_bytes > left && given_bytes.empty() && left >= least) store.capacity_bytes = left;
    if (store.capacity_bytes > left) {
      return fail(ErrorCode::InvalidArgument,
                  "disk.capacity_bytes is " + with_separators(disk.capacity_bytes) + ": the history needs at least " +
                      with_separators(history_least) + " of it, and when group '" + pools[i].name + "' wants " +
                      with_separators(store.capacity_bytes) + ", " + with_separators(left) +
                      " are left: raise it, or keep less of some groups by disk.group_retention");
    }
    left -= store.capacity_bytes;
  }
  stores[0].capacity_bytes = history_least + left;
  return stores;
}

}  // namespace quire
