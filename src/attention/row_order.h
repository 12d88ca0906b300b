// SPDX-License-Identifier: Apache-2.0
//
// RowOrder: the rows of sequences, so ordered that those with equal leading pages stand together, however many pages
// that are; with each row, how many leading pages it has in common with the row before it:
//
//     row            common with the one before
//     1 2 3 4        0
//     1 2 3 5 6      3
//     1 2 7          2         any two rows have in common the least of the numbers
//     8 9            0         between them: 1 2 3 4 and 1 2 7 have 2 pages
//
// It is kept from call to call: a row that stays costs no look at its pages, and one that leaves is taken out without
// one, as it may be gone. A newcomer is compared with the numbers of all rows, and with the pages of those it shares
// some with. Rows that sit out for a while keep their places.
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

class RowOrder {
 public:
  struct Place {
    std::uint32_t sequence_index;
    std::uint32_t common_pages;  // with the place before; of the first place, 0
    std::uint32_t next_page;     // behind these; kNullPage if the row had none to compare
  };

  /// For sequences with indices below `sequence_count_max`.
  [[nodiscard]] static Result<RowOrder> create(std::uint32_t sequence_count_max);

  /// The shareable pages of this sequence's row are others than they were, or it is gone.
  void forget(std::uint32_t sequence_index) {
    if (rows_[sequence_index].has_place) remove(sequence_index);
  }

  /// Takes these in, each sequence at most once. Their pages stay where they are, and what they are, until forget().
  void update(std::span<const CascadeEntry> entries);

  /// All rows in order, those that are not in the last update too. Of these no two have more pages in common than
  /// both could share when they were compared; of those in the update, as many as they can share now.
  [[nodiscard]] std::span<const Place> places() const { return {places_.data(), place_count_}; }
  /// Whether the row is in the last update, and as which entry.
  [[nodiscard]] bool is_present(std::uint32_t sequence_index) const {
    return rows_[sequence_index].last_update == update_count_;
  }
  [[nodiscard]] std::uint32_t entry_of(std::uint32_t sequence_index) const { return rows_[sequence_index].entry; }

 private:
  struct Row {
    const PageId* pages;
    std::uint64_t last_update;  // with it
    std::uint32_t pages_end;    // it is compared up to here
    std::uint32_t depth_max;    // nobody has more pages in common with it
    std::uint32_t entry;        // in that update
    bool has_place;
  };

  [[nodiscard]] static std::uint32_t common_pages(const Row& row, const Row& other, std::uint32_t equal);
  void remove(std::uint32_t sequence_index);
  void remove_missing();
  void insert(std::uint32_t sequence_index);

  LazyArray<Row> rows_;  // by sequence index
  LazyArray<Place> places_;
  std::size_t place_count_ = 0;
  std::uint64_t update_count_ = 0;
  LazyArray<std::uint32_t> newcomers_;  // scratch of update(): sequence indices
};

}  // namespace quire
