// SPDX-License-Identifier: Apache-2.0
//
// Cascade: which leading pages the sequences of a step have in common, whether they are neighbours in it or not. The
// rows of page ids form a tree, as equal pages in a column mean equal pages before it; a slice is an edge of it:
//
//     rows            order    level 0    level 1    own
//     A  1 2 3 4      A        ┐          ┐ 3        4
//     B  1 2 7        C        │ 1 2      ┘          5 6
//     C  1 2 3 5 6    B        ┘          –          7
//     D  8 9          D        –          –          8 9
//
// Each level takes what all entries with a common next page share, so the outermost sharing comes first; what is shared
// deeper than the levels reach is each entry's own. Entries come in the order of their first appearance, but sharers
// stand together. The last result is kept for as long as the caller's version says that it holds.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/lazy_array.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

struct CascadeEntry {
  SequenceId sequence;
  const PageId* pages = nullptr;
  std::uint32_t shareable_pages = 0;  ///< leading pages that may be in a shared slice
};

/// Pages [page_begin, page_end) of the row of each of the entries order()[entry_begin, entry_end). Without pages: the
/// entries share nothing at this level.
struct CascadeSlice {
  std::uint32_t entry_begin = 0;
  std::uint32_t entry_end = 0;
  std::uint32_t page_begin = 0;
  std::uint32_t page_end = 0;

  [[nodiscard]] bool is_empty() const { return page_begin == page_end; }
};

class Cascade {
 public:
  /// For `shared_levels` levels, besides the entries' own one.
  [[nodiscard]] static Result<Cascade> create(std::uint32_t entry_count_max, std::uint32_t shared_levels);

  /// Finds the slices of `entries`, in O(entries x log pages). As long as the version and the list of sequences are
  /// those of the last call, and no slice has more pages than its entries may share now, keeps what was found.
  void update(std::span<const CascadeEntry> entries, std::uint64_t sharing_version);
  /// Whether the last update() was for so many entries and this version.
  [[nodiscard]] bool is_for(std::size_t entry_count, std::uint64_t sharing_version) const {
    return has_result_ && sharing_version == sharing_version_ && entry_count == entry_count_;
  }
  /// Of entry `index` in the last update().
  [[nodiscard]] SequenceId sequence(std::size_t index) const { return sequences_[index]; }

  /// Indices into the entries. This and what follows: of the last update().
  [[nodiscard]] std::span<const std::uint32_t> order() const { return {order_.data(), entry_count_}; }
  /// The slices of a level follow each other and cover all entries.
  [[nodiscard]] std::span<const CascadeSlice> slices(std::uint32_t level) const {
    return {level_data(level), slice_counts_[level]};
  }
  /// Pages of entry `index` (of the entries, not of the order) in all its slices.
  [[nodiscard]] std::uint32_t shared_pages(std::uint32_t index) const { return shared_pages_[index]; }
  [[nodiscard]] std::uint64_t found_count() const { return found_count_; }  ///< updates that had to look

 private:
  struct Slot {  // of the table from page to class; empty unless it carries the current stamp
    std::uint64_t stamp;
    std::uint32_t page;
    std::uint32_t class_index;
  };

  [[nodiscard]] const CascadeSlice* level_data(std::uint32_t level) const {
    return slices_.data() + (std::size_t{level} * entry_count_max_);
  }
  [[nodiscard]] bool still_holds(std::span<const CascadeEntry> entries, std::uint64_t sharing_version) const;
  void find(std::span<const CascadeEntry> entries);
  void split(std::span<const CascadeEntry> entries, const CascadeSlice& outer, std::uint32_t level);
  [[nodiscard]] std::uint32_t gather_classes(std::span<const CascadeEntry> entries, const CascadeSlice& outer);
  [[nodiscard]] std::uint32_t class_of(PageId page, std::uint32_t class_count);
  [[nodiscard]] std::uint32_t common_end(std::span<const CascadeEntry> entries, const CascadeSlice& slice) const;
  void push(std::uint32_t level, const CascadeSlice& slice);

  std::uint32_t entry_count_max_ = 0;
  std::uint32_t shared_levels_ = 0;

  // The result.
  std::uint32_t entry_count_ = 0;
  LazyArray<std::uint32_t> order_;
  LazyArray<CascadeSlice> slices_;  // entry_count_max_ of each level
  LazyArray<std::uint32_t> slice_counts_;
  LazyArray<std::uint32_t> shared_pages_;

  // What it was found for.
  bool has_result_ = false;
  std::uint64_t sharing_version_ = 0;
  LazyArray<SequenceId> sequences_;
  std::uint64_t found_count_ = 0;

  // Scratch of split().
  LazyArray<Slot> slots_;
  std::uint32_t slot_shift_ = 0;
  std::uint64_t stamp_ = 0;
  LazyArray<std::uint32_t> class_of_entry_;
  LazyArray<std::uint32_t> class_ends_;
  LazyArray<std::uint32_t> reordered_;
};

}  // namespace quire
