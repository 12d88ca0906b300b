// SPDX-License-Identifier: Apache-2.0
//
// GroupPattern: what an engine without a model writes in every group of a cache, and finds there again (page_pattern.h
// says which bytes these are). A request that goes on behind what others left looks at everything its first step may
// read, once the plan's copies are applied:
//
//     full         every token before it              compressed   every whole entry
//     window       the last W - 1 tokens, and the sink, in the pages that the plan lists, or in the sequence's ring
//     snapshot     the state behind the last token, or the rows of the last tokens, in the sequence's state slot
//
// Plans have block tables where there are windows in pages. single-threaded; the cache outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "page_pattern.h"
#include "quire/cache.h"

namespace quire {

/// Full and compressed groups, whose pages have the same ids.
[[nodiscard]] bool keeps_everything(const CacheGroup& group);

/// One entry of a plan, with the history of every token of its sequence.
struct PatternEntry {
  const AttentionPlan* plan = nullptr;
  std::size_t index = 0;  ///< of the entry
  std::span<const std::uint64_t> histories;
};

/// Bytes that are not what was written.
struct WrongByte {
  std::uint32_t group_index = 0;
  bool is_slot = false;        ///< in a state slot
  std::uint32_t page = 0;      ///< or state slot
  std::uint64_t offset = 0;    ///< of the first one, in the page or in the group's part of the slot
  std::uint32_t position = 0;  ///< of the token, or of the last one that an entry is made of
};

class GroupPattern {
 public:
  explicit GroupPattern(const Cache& cache);

  /// What the entry's tokens store, in all groups.
  void write(const PatternEntry& entry);
  /// Compares what the entry goes on from, when `found_tokens` of its sequence need no computing.
  [[nodiscard]] std::optional<WrongByte> first_wrong_byte(const PatternEntry& entry, std::uint32_t found_tokens);
  /// Some byte of a token, in the first group that keeps everything.
  [[nodiscard]] std::byte& byte_of(const PatternEntry& entry, std::uint32_t position);

  /// Bytes that were compared and found right, so far.
  [[nodiscard]] std::uint64_t verified_bytes() const { return verified_bytes_; }

 private:
  struct Group {
    std::uint32_t index = 0;
    CacheGroup group;
    std::uint32_t page_entries = 0;  // of a page, or of one version of a slot
    PagePattern pattern;
  };
  /// Where something is looked for, and what should be there.
  struct Place {
    TokenPlace at;
    std::uint64_t history = 0;
    std::uint32_t position = 0;
  };

  [[nodiscard]] std::vector<Place> places_to_read(const Group& group, const PatternEntry& entry,
                                                  std::uint32_t found_tokens) const;
  void write_state(Group& group, const PatternEntry& entry);

  std::uint32_t page_tokens_ = 0;
  std::vector<Group> groups_;
  std::uint64_t verified_bytes_ = 0;
};

}  // namespace quire
