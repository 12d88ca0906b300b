// SPDX-License-Identifier: Apache-2.0
//
// Saves: copies on the host of the pages of preempted sequences. The copies belong to the sequence alone, so that
// nobody can evict them. A sequence's pages of all pools are saved together or not at all: the sequence keeps its
// device pages until every copy is made, and goes on as if nothing had happened when one cannot be made.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "sequence/refusal.h"
#include "tiers/tier_parts.h"

namespace quire {

/// What a sequence holds of one pool: a row of pages, null pages among them, and the source page of its tail.
struct HeldPages {
  PageHome* home = nullptr;
  std::span<const PageId> row;
  PageId tail;  // none: the sequence has no tail
  [[nodiscard]] std::uint32_t place_count() const {
    return static_cast<std::uint32_t>(row.size()) + (tail.is_none() ? 0 : 1);
  }
  [[nodiscard]] PageId at(std::uint32_t place) const { return place < row.size() ? row[place] : tail; }
  [[nodiscard]] std::uint32_t page_count() const;
};

/// Transfers that the pages of several pools take.
struct TransferNeed {
  std::uint32_t page_count = 0;
  std::uint32_t transfer_count = 0;
  void add(std::uint32_t pages, std::uint32_t pages_max) {
    page_count += pages;
    transfer_count += (pages + pages_max - 1) / pages_max;
  }
};

class Saves {
 public:
  explicit Saves(TierParts& parts) : parts_(parts) {}
  [[nodiscard]] Status open();

  // Saving.

  /// Whether the host has room for the pages, and transfers are free.
  [[nodiscard]] Status check_save(std::uint32_t sequence, std::span<const HeldPages> held) const;
  void start_saving(std::uint32_t sequence, std::span<const HeldPages> held);
  void finish_save(std::uint32_t transfer);
  /// The sequence ends before its pages are saved. Pages of the tree among them may be evicted from now on, but are not
  /// used for anything else until the stores that read them have ended.
  void abandon_saving(std::uint32_t sequence);

  // Restoring.

  /// How many pages of a pool are saved of a sequence, from place `first` on.
  [[nodiscard]] std::uint32_t page_count(std::uint32_t sequence, const PageHome& home, std::uint32_t first = 0) const;
  [[nodiscard]] Status check_transfers(const TransferNeed& need, const Refusal& refused) const;
  /// Releases the saved pages at the first places of the history: the tree has these pages too.
  void release_first(std::uint32_t sequence, std::uint32_t page_count);
  /// Starts loads of the saved pages from place `first` on into `targets`, and writes the ids of the targets to their
  /// places in `row`; the null page where nothing was saved.
  void start_restoring(std::uint32_t sequence, PageHome& home, std::uint32_t first, std::span<PageId> row,
                       std::span<const PageId> targets);
  void finish_restore(std::uint32_t transfer);
  /// The sequence ends before its pages are back: they belong to the transfers until these have ended. Calls
  /// forget_page(home, place) for each of them.
  template <typename ForgetPage>
  void abandon_restoring(std::uint32_t sequence, ForgetPage&& forget_page);

  /// Releases the saved pages of a sequence. Copies that are being made are released when their transfers end.
  void release(std::uint32_t sequence);
  [[nodiscard]] std::uint32_t place_count(std::uint32_t sequence, const PageHome& home) const {
    return rows_[home.pool].counts[sequence];
  }
  [[nodiscard]] bool is_moving(std::uint32_t sequence) const { return saved_[sequence].transfers_in_flight > 0; }
  /// A page could not be copied, or did not come back.
  [[nodiscard]] bool has_lost_pages(std::uint32_t sequence) const { return saved_[sequence].has_lost_pages; }

  [[nodiscard]] Status check_invariants() const;

 private:
  struct Saved {
    std::uint32_t transfers_in_flight = 0;
    bool has_lost_pages = false;
  };
  struct Rows {  // of one pool
    LazyArray<PageId> pages;
    std::vector<std::uint32_t> counts;  // by sequence: places in its row
  };

  [[nodiscard]] std::span<PageId> row(std::uint32_t sequence, const PageHome& home) {
    const std::size_t stride = std::size_t{parts_.sequences.row_pages()} + 1;
    return {rows_[home.pool].pages.data() + (sequence * stride), rows_[home.pool].counts[sequence]};
  }
  [[nodiscard]] std::span<const PageId> row(std::uint32_t sequence, const PageHome& home) const {
    const std::size_t stride = std::size_t{parts_.sequences.row_pages()} + 1;
    return {rows_[home.pool].pages.data() + (sequence * stride), rows_[home.pool].counts[sequence]};
  }
  void add_page(std::uint32_t sequence, TransferKind kind, PageHome& home, PageId device_page, std::uint32_t place,
                std::uint32_t& transfer);

  TierParts& parts_;
  std::vector<Saved> saved_;
  std::vector<Rows> rows_;  // by pool
};

template <typename ForgetPage>
void Saves::abandon_restoring(std::uint32_t sequence, ForgetPage&& forget_page) {
  const SequenceId id{sequence, parts_.sequences[sequence].generation};
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    const Transfer& transfer = parts_.book[i];
    if (!transfer.is_live() || transfer.sequence != id) continue;
    PageHome& home = *parts_.homes[transfer.pool];
    ++parts_.counters.load_outcomes[static_cast<std::size_t>(TransferOutcome::Cancelled)];
    const bool is_queued = transfer.state == Transfer::State::Queued;
    parts_.call_off(i);
    for (const PageTransfer& page : parts_.book.pages(i)) {
      forget_page(home, page.place);
      row(sequence, home)[page.place] = kNullPage;
      home.pages.host.fence({&page.host_page, 1});
    }
    if (is_queued) finish_restore(i);
  }
  saved_[sequence].transfers_in_flight = 0;
}

}  // namespace quire
