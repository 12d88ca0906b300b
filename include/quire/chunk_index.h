// SPDX-License-Identifier: Apache-2.0
//
// ChunkIndex: finds pages by their own tokens, wherever they stood. The prefix tree finds a page only behind the very
// tokens it was computed behind, so what it finds is exact; a document that comes second in one prompt and fifth in
// another is never found. This index finds it, and says of each page whether its K and V are exact here or only
// similar (computed behind other tokens), so that an engine can recompute part of them (docs/chunk_reuse.md).
//
// A Cache carries one of its own, if CacheConfig::chunks asks for it, and keeps it true: handles are then device pages,
// and a page that leaves the device is not found from the same call on (Cache::add_chunks, lookup_chunks, pin_chunks).
// What is found here is never counted as a hit there. An engine that keeps its pages elsewhere makes one itself: pages
// are named by handles of its own, and it says when one is given up.
//
//     auto index = *ChunkIndex::create({.page_tokens = 16, .page_count_max = 100'000});
//     auto inserted = index->insert(space, {.tokens = text}, handles);      // K and V of `text` were computed exactly
//     auto match = *index->lookup(space, chunks, pages);                    // pages[i].status, pages[i].handle
//     …                                                                     // the page behind a handle is evicted:
//     index->erase(handle);
//
// Tokens are compared by 256-bit names; shorter hashes only choose where to look. Nothing allocates after create(), but
// for check_invariants() and the text of an Error.
//
// single-threaded
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/types.h"

namespace quire {

/// Where the engine has a page's K and V: any number that it finds them by.
struct PageHandle {
  std::uint64_t value = std::numeric_limits<std::uint64_t>::max();

  [[nodiscard]] static constexpr PageHandle none() { return {}; }
  [[nodiscard]] constexpr bool is_none() const { return *this == none(); }
  friend constexpr auto operator<=>(PageHandle, PageHandle) = default;
};

/// Tokens that may stand anywhere in a prompt. Positions of extra keys count from its first token.
struct Chunk {
  std::span<const TokenId> tokens = {};
  std::span<const ExtraKey> extra_keys = {};
};

enum class ChunkStatus : std::uint8_t {
  Exact,            ///< found, computed behind exactly the tokens that stand before it here: K and V are right
  Partial,          ///< its tokens are found; K and V were computed behind others, and are similar at best
  NotMatchExact,    ///< not found, and no Partial page before it: computing it gives exact K and V
  NotMatchPartial,  ///< not found, behind a Partial page: what is computed here is approximate
};

[[nodiscard]] constexpr std::string_view to_string(ChunkStatus status) {
  switch (status) {
    case ChunkStatus::Exact:
      return "exact";
    case ChunkStatus::Partial:
      return "partial";
    case ChunkStatus::NotMatchExact:
      return "not match exact";
    case ChunkStatus::NotMatchPartial:
      return "not match partial";
  }
  return "unknown";
}

struct ChunkPage {
  ChunkStatus status = ChunkStatus::NotMatchExact;
  PageHandle handle = {};  ///< none, where nothing was found
  friend constexpr bool operator==(const ChunkPage&, const ChunkPage&) = default;
};

/// What was found of some chunks. Not a prefix match: Partial pages are no cache hits.
struct ChunkMatch {
  std::span<const ChunkPage> pages = {};  ///< all whole pages of all chunks, in order; in the memory given to lookup()
  std::size_t exact_pages = 0;
  std::size_t partial_pages = 0;
  std::size_t dropped_tokens = 0;      ///< of the chunks' tails, which fill no page
  std::uint64_t recompute_tokens = 0;  ///< of the Partial pages' tokens, so many are to be computed again
  std::uint64_t scratch_pages = 0;     ///< that these fill, rounded up

  /// Of the page with this number in the text; those beyond the chunks too.
  [[nodiscard]] constexpr ChunkStatus status(std::size_t page_index) const {
    if (page_index < pages.size()) return pages[page_index].status;
    return partial_pages > 0 ? ChunkStatus::NotMatchPartial : ChunkStatus::NotMatchExact;
  }
};

struct ChunkInsertion {
  std::uint32_t inserted_pages = 0;
  std::uint32_t known_pages = 0;     ///< there already behind the same tokens; they keep their handles
  std::uint32_t replaced_pages = 0;  ///< least recently used ones that made room
};

struct ChunkIndexConfig {
  std::uint32_t page_tokens = 16;  ///< as in the Cache
  std::uint32_t page_count_max = 0;
  /// How much of the Partial pages an engine computes again, from 0 to 1, to a millionth.
  double recompute_ratio = 0.2;
  /// Places pages in hash tables. A secret one keeps strangers from choosing what collides.
  std::uint64_t hash_seed = 0;
};

class ChunkIndex {
 public:
  [[nodiscard]] static Result<std::unique_ptr<ChunkIndex>> create(const ChunkIndexConfig& config);
  ~ChunkIndex();
  ChunkIndex(const ChunkIndex&) = delete;
  ChunkIndex& operator=(const ChunkIndex&) = delete;

  /// The pages of a text, from its first token on, can be found: handles[i] has page i, or is none() for a page that
  /// only stands before others. K and V must be exact: never those of a Partial or NotMatchPartial page. A tail that
  /// fills no page is left out. A handle that had another page before has this one from now on.
  [[nodiscard]] Result<ChunkInsertion> insert(KeySpaceId key_space, const Chunk& prefix,
                                              std::span<const PageHandle> handles);

  /// What is known of the text that the chunks make, one behind the other. Only whole pages of each chunk are looked
  /// for. A tail that fills no page still stands before what follows: nothing behind it is Exact. Of several pages with
  /// the same tokens, a Partial one is the most recently used. `out` has room for all pages of all chunks. Changes
  /// nothing, not even recency.
  [[nodiscard]] Result<ChunkMatch> lookup(KeySpaceId key_space, std::span<const Chunk> chunks,
                                          std::span<ChunkPage> out) const;

  /// The page was used: others are replaced before it. False if it is not there.
  bool touch(PageHandle handle);
  /// The engine has given the page up: it is not found again. False if it was not there.
  bool erase(PageHandle handle);
  /// Forgets all pages of a key space, and says how many. O(page_count_max).
  std::uint32_t drop(KeySpaceId key_space);
  void clear();

  [[nodiscard]] std::uint32_t page_count() const;
  [[nodiscard]] const ChunkIndexConfig& config() const;
  /// Visits every page, the least recently used one first. `visit` must not call the index.
  void visit_pages(const std::function<void(PageHandle, KeySpaceId)>& visit) const;
  /// Names the first rule that does not hold, if any.
  [[nodiscard]] Status check_invariants() const;

 private:
  struct Impl;
  explicit ChunkIndex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
