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
// stand together. The last result is kept for as long as it holds; when the batch changes, what is known of the rows
// that stay is used again.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/row_order.h"
#include "base/lazy_array.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

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

  /// The shareable pages of this sequence are others than in the last update() with it, or it is gone.
  void forget(std::uint32_t sequence_index) {
    if (rows_.is_present(sequence_index)) has_result_ = false;
    rows_.forget(sequence_index);
  }

  /// Finds the slices of `entries`, whose sequences have indices below entry_count_max: in O(entries), and as much for
  /// each sequence that is new or was forgotten. As long as the list of sequences is that of the last call, none of
  /// them was forgotten and no slice has more pages than its entries may share now, keeps what was found.
  void update(std::span<const CascadeEntry> entries);

  /// Indices into the entries. This and what follows: of the last update().
  [[nodiscard]] std::span<const std::uint32_t> order() const { return {order_.data(), entry_count_}; }
  /// The slices of a level follow each other and cover all entries.
  [[nodiscard]] std::span<const CascadeSlice> slices(std::uint32_t level) const {
    return {level_data(level), slice_counts_[level]};
  }
  /// Pages of entry `index` (of the entries, not of the order) in all its slices.
  [[nodiscard]] std::uint32_t shared_pages(std::uint32_t index) const { return entries_[index].shared_pages; }
  [[nodiscard]] std::uint64_t found_count() const { return found_count_; }  ///< updates that had to look

 private:
  static constexpr std::uint32_t kRoot = 0;
  /// Entries with `page_end` leading pages in common, those of a slice if it is not deeper than the levels.
  struct Node {
    std::uint32_t parent;
    std::uint32_t page_end;
    std::uint32_t place_begin;  // among the entries in the order of rows
    std::uint32_t entry_count;
    std::uint32_t level;       // the root's children have 0
    std::uint32_t slice_node;  // itself, or the node that has its entries at the last level
    // The order of the entries, once the first of the node's is reached.
    bool has_place;
    std::uint32_t entry_begin;
    std::uint32_t next_entry;
    std::uint32_t first_child;  // in the order of the entries; kRoot: none
    std::uint32_t last_child;
    std::uint32_t next_sibling;
  };

  /// In one array: several would begin in the same sets of the first cache, and push each other out.
  struct Entry {
    SequenceId sequence;
    std::uint32_t shared_pages;
    std::uint32_t node;  // the deepest that it is in
  };

  [[nodiscard]] bool still_holds(std::span<const CascadeEntry> entries) const;
  void find_nodes();
  [[nodiscard]] std::uint32_t add_node(const Node& node);
  void cut_to_levels();
  void place_entries();
  void place_node(std::uint32_t node);
  void write_slices();
  void push(std::uint32_t level, const CascadeSlice& slice);
  [[nodiscard]] const CascadeSlice* level_data(std::uint32_t level) const {
    return slices_.data() + (std::size_t{level} * entry_count_max_);
  }

  std::uint32_t entry_count_max_ = 0;
  std::uint32_t shared_levels_ = 0;
  RowOrder rows_;

  // The result.
  std::uint32_t entry_count_ = 0;
  LazyArray<std::uint32_t> order_;
  LazyArray<CascadeSlice> slices_;  // entry_count_max_ of each level
  LazyArray<std::uint32_t> slice_counts_;
  LazyArray<Entry> entries_;
  bool has_result_ = false;
  std::uint64_t found_count_ = 0;

  // Scratch of an update.
  LazyArray<Node> nodes_;
  std::uint32_t node_count_ = 0;
  LazyArray<std::uint32_t> open_nodes_;    // from the root to the one being read
  LazyArray<std::uint32_t> closed_nodes_;  // children before their parents
  std::uint32_t closed_count_ = 0;
};

}  // namespace quire
