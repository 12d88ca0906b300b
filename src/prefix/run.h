// SPDX-License-Identifier: Apache-2.0
//
// Run: one node of the prefix tree, a cache line of links and counts. Its tokens and page ids lie in RunStorage.
// Links are run indices; kNoRun ends them.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr std::uint32_t kNoRun = UINT32_MAX;
inline constexpr std::uint32_t kNoExtraKey = UINT32_MAX;

/// A device run that is to be given up.
enum class Leaving : std::uint8_t {
  No,
  Copying,  // until its pages are copied
  Left,     // by the next evict()
};

struct alignas(64) Run {
  std::uint32_t parent;  // kNoRun for a root; of a free run: the next free one
  std::uint32_t first_child;
  std::uint32_t last_child;
  std::uint32_t next_sibling;  // siblings stand most recently used first
  std::uint32_t previous_sibling;

  std::uint32_t bucket_next;  // the next run in the same bucket of the child table
  std::uint32_t key_hash;     // of parent, first page's tokens and extra keys; of a root: a number of its own

  std::uint32_t first_page;  // position in the path from the root, in pages
  std::uint32_t page_count;  // 0 for a root
  std::uint32_t block;       // where tokens and page ids lie, in units of RunStorage::kUnitBytes
  std::uint32_t extra_keys;  // first of its list, or kNoExtraKey

  std::uint32_t pins;        // pins that end here, plus one for each pinned child
  std::uint32_t soft_pins;   // the same for soft pins
  std::uint32_t generation;  // grows when the run is removed
  std::uint32_t root;        // the root of its path
  std::uint8_t size_class;   // of its block
  bool is_live;
  bool is_on_host;  // its pages are host pages; else device pages
  Leaving leaving;
};
static_assert(sizeof(Run) == 64, "a run is one cache line");

}  // namespace quire
