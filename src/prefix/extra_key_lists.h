// SPDX-License-Identifier: Apache-2.0
//
// ExtraKeyLists: for each run that has any, the extra keys that overlap its tokens, by position. A list is named by
// the index of its first element (kNoExtraKey when empty). An item that crosses from one run into the next stands in
// both lists. Extra keys do not overlap each other, so there are never more elements than tokens.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>

#include "base/lazy_array.h"
#include "prefix/run.h"
#include "quire/types.h"

namespace quire {

/// Positions [begin, end) of a prompt.
struct TokenRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// The keys of a sorted list that overlap the range.
[[nodiscard]] std::span<const ExtraKey> overlapping(std::span<const ExtraKey> keys, TokenRange range);

class ExtraKeyLists {
 public:
  [[nodiscard]] Status reserve(std::size_t token_count_max) { return nodes_.grow(token_count_max); }

  /// Adds the keys that overlap `range` behind those already listed; one that is listed last already is not added
  /// twice.
  void append(std::uint32_t& list, std::span<const ExtraKey> keys, TokenRange range);
  /// Moves what lies before `position` to `prefix`; an item that crosses it stands in both.
  void split(std::uint32_t& suffix, std::uint32_t& prefix, std::uint32_t position);
  /// Drops items that begin at `position` or later.
  void trim(std::uint32_t& list, std::uint32_t position);

  /// The first position in `range` from which `list` and `keys` no longer agree; range.end if they do throughout.
  [[nodiscard]] std::uint32_t first_difference(std::uint32_t list, std::span<const ExtraKey> keys,
                                               TokenRange range) const;
  /// Folds the items of `list` that overlap `range` into a hash, as hash_of() does with a prompt's keys.
  [[nodiscard]] std::uint64_t fold(std::uint64_t hash, std::uint32_t list, TokenRange range) const;
  [[nodiscard]] static std::uint64_t fold(std::uint64_t hash, std::span<const ExtraKey> keys, TokenRange range);

  template <typename Visitor>
  void for_each(std::uint32_t list, Visitor&& visit) const {
    for (std::uint32_t i = list; i != kNoExtraKey; i = nodes_[i].next) visit(nodes_[i].key);
  }
  [[nodiscard]] std::uint32_t used_count() const { return used_count_; }

 private:
  friend struct PrefixTreePeer;

  struct Node {
    ExtraKey key;
    std::uint32_t next;
  };

  [[nodiscard]] std::uint32_t take(const ExtraKey& key);
  void give_back_from(std::uint32_t first);

  LazyArray<Node> nodes_;
  std::uint32_t first_free_ = kNoExtraKey;
  std::uint32_t fresh_ = 0;
  std::uint32_t used_count_ = 0;
};

}  // namespace quire
