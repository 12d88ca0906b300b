// SPDX-License-Identifier: Apache-2.0
//
// CachedChunks: what a cache keeps so that pages are found by their own tokens. The index names device pages of the
// tree, and nothing else: HistoryPages takes a page out when it leaves the device. A pin holds the tree's runs that the
// pages of one match lie in; a run keeps everything before it in its path. All memory is taken by open().
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "prefix/prefix_tree.h"
#include "quire/chunk_index.h"
#include "quire/config.h"
#include "quire/result.h"
#include "sequence/release_queue.h"

namespace quire {

struct CachedChunks {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// What one ChunkPin holds: a list of runs.
  struct PinSlot {
    bool is_live = false;
    std::uint32_t key_space = 0;
    std::uint32_t page_count = 0;  // as counted against pinned_pages_max
    std::uint32_t first = kNone;   // in `runs`
  };
  struct PinnedRun {
    PrefixTree::Pin pin;
    std::uint32_t next = kNone;  // of the same PinSlot, or the next free one
  };

  [[nodiscard]] static Result<std::unique_ptr<CachedChunks>> open(const CacheConfig& config, std::uint32_t page_count,
                                                                  std::uint32_t row_pages) {
    auto chunks = std::make_unique<CachedChunks>();
    QUIRE_TRY_ASSIGN(chunks->index, ChunkIndex::create({.page_tokens = config.page.page_tokens,
                                                        .page_count_max = config.chunks.page_count_max,
                                                        .recompute_ratio = config.chunks.recompute_ratio,
                                                        .hash_seed = config.hash_seed}));
    chunks->pinned_pages_max = std::min(config.chunks.pinned_pages_max.value_or(page_count / 2), page_count);
    chunks->pins.resize(config.chunks.pin_count_max);
    chunks->runs.resize(chunks->pinned_pages_max);  // each pinned run counts as a page at least
    for (std::uint32_t i = 0; i < chunks->runs.size(); ++i) {
      chunks->runs[i].next = i + 1 < chunks->runs.size() ? i + 1 : kNone;
    }
    chunks->first_free = chunks->runs.empty() ? kNone : 0;
    chunks->handles.resize(row_pages);
    chunks->pages.resize(row_pages);
    chunks->released = std::make_shared<ReleaseQueue>(config.chunks.pin_count_max);
    return chunks;
  }

  [[nodiscard]] std::uint32_t run_count() const {
    return static_cast<std::uint32_t>(std::ranges::count_if(runs, [](const PinnedRun& run) { return bool{run.pin}; }));
  }

  std::unique_ptr<ChunkIndex> index;
  std::shared_ptr<ReleaseQueue> released;  // shared with the handles, which may outlive the cache
  std::vector<PinSlot> pins;
  std::vector<PinnedRun> runs;
  std::uint32_t first_free = kNone;  // in `runs`
  std::uint32_t pin_count = 0;
  std::uint32_t pinned_pages = 0;
  std::uint32_t pinned_pages_max = 0;
  std::vector<PageHandle> handles;  // scratch: one for each page of a prompt
  std::vector<PageId> pages;        // scratch: the same
};

}  // namespace quire
