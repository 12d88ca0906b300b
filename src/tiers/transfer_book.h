// SPDX-License-Identifier: Apache-2.0
//
// TransferBook: the one table of transfers, of all pools and between all tiers. A transfer that somebody has taken
// keeps its pages until every rank has reported, even if it was called off. The life of a transfer:
//
//     Free ── add() ──► Queued ── take() ──► Moving ── last rank reports ──► Arrived ── remove() ──► Free
//                        │  │                  │                                │
//                        │  │                  │ call_off()                     │ call_off()
//                        │  │                  ▼                                ▼
//                        │  │              CalledOff ── last rank reports ──► Over ──── remove() ──► Free
//                        │  └────────────────── call_off() ─────────────────────▲
//                        └── remove(): the transfer got no pages ──► Free
//
// Somebody touches the pages while a transfer is Moving or CalledOff. Once it is Arrived or Over nobody does: whoever
// added the transfer releases its pages and removes it. What a transfer brings is not used when it is CalledOff or
// Over.
//
// PageTransfer::place means, by transfer:
//
//     Load of the tree                     the page's column: page number `place` of the path
//     Store of the history                 nothing
//     Store of an anchored group           the id of the history's device page that the page hangs on
//     Load, Store of a sequence (Saves)    the place in the sequence's saved row
//     LoadFromBelow                        the number of the page among those of the question, which begins at
//                                          Search::asked_from
//     StoreBelow                           the id, in tier `named_in`, of the history's page that names the page
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/lazy_array.h"
#include "prefix/prefix_tree.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

/// Its answer says how many pages of a path a lower tier has, has read or has written.
[[nodiscard]] constexpr bool asks_for_path(TransferKind kind) {
  return kind == TransferKind::FindBelow || kind == TransferKind::PutBelow || kind == TransferKind::GetFromBelow;
}

struct Transfer {
  enum class State : std::uint8_t { Free, Queued, Moving, CalledOff, Arrived, Over };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  State state = State::Free;
  TransferKind kind = TransferKind::Load;
  TransferPriority priority = TransferPriority::Waiting;
  TransferOutcome outcome = TransferOutcome::Ok;  // of the ranks that have reported
  TransferFault fault = TransferFault::None;
  Tier named_in = Tier::Host;  // of StoreBelow: the tier of the history's pages that name the stored pages
  std::uint16_t pool = 0;
  std::uint16_t lower = 0;     // which lower tier it goes to or comes from
  bool is_read_ahead = false;  // of a load of the tree: steps in flight may read the pages that it fills
  std::uint32_t generation = 0;
  std::uint32_t page_count = 0;
  std::uint32_t good_pages = 0;
  std::uint32_t first_page = 0;  // of a load of the tree, or of history from below: the column of its first page,
  std::uint32_t last_page = 0;   // and, of a load of the tree, that of its last page
  std::uint32_t key_space = 0;   // of a load of the tree, a load from below, a question, a drop
  std::uint32_t search = kNone;  // of a question, and of a load from below: the search that it belongs to
  std::uint64_t reported_ranks = 0;
  TimeNs deadline = INT64_MAX;
  SequenceId sequence;  // of a save or a restore: whose pages it moves; none otherwise
  PrefixTree::Pin pin;  // of a load of the tree, and of a group's load from below: the path of its pages

  [[nodiscard]] bool is_live() const { return state != State::Free; }
  /// It may still bring something, and has not arrived.
  [[nodiscard]] bool is_on_its_way() const { return state == State::Queued || state == State::Moving; }
  [[nodiscard]] bool is_wanted() const { return state != State::CalledOff && state != State::Over; }
  /// Nobody moves its pages any more.
  [[nodiscard]] bool has_ended() const { return state == State::Arrived || state == State::Over; }
  /// It is no save or restore of a sequence.
  [[nodiscard]] bool is_of_tree() const { return sequence == SequenceId{}; }
  /// It brings pages of the tree from the host to the device.
  [[nodiscard]] bool is_tree_load() const { return is_live() && kind == TransferKind::Load && is_of_tree(); }
};

/// How long answers took, weighted: shorter times count more, so that a tier that is fast again is soon known to be.
struct AnswerTime {
  double ns = 0;  // 0: nothing was measured yet
  void measure(TimeNs took_ns);
};

/// How fast bytes came, weighted so that small transfers count little.
struct TransferRate {
  double bytes_per_ns = 0;  // 0: nothing was measured yet
  bool was_late = false;    // the last one: what comes behind it counts whatever its size
  void measure(const Completion& completion);
  /// Not even the first value came in the time that there was, of which half is taken for come.
  void measure_late(const Completion& completion, std::uint64_t value_bytes);
};

class TransferBook {
 public:
  struct Config {
    std::uint32_t transfer_count_max = 0;
    std::uint32_t transfer_pages_max = 0;
    std::uint32_t rank_count = 1;
  };
  [[nodiscard]] static Result<TransferBook> create(const Config& config);

  /// A new transfer without pages, or nothing when all are in use.
  [[nodiscard]] std::optional<std::uint32_t> add(TransferKind kind, TransferPriority priority);
  /// Ends a transfer whose pages nobody moves.
  void remove(std::uint32_t index);
  void add_page(std::uint32_t index, const PageTransfer& page) {
    Transfer& transfer = transfers_[index];
    QUIRE_CHECK(transfer.state == Transfer::State::Queued, "a transfer gets pages after somebody took it");
    QUIRE_CHECK(transfer.page_count < pages_max_, "a transfer has more pages than its row");
    note((std::uint64_t{page.device_page.value} << 32U) + page.host_page.value);
    note(page.name_tag);
    rows_[(std::size_t{index} * pages_max_) + transfer.page_count++] = page;
  }

  /// Somebody moves its pages from here on.
  void take(std::uint32_t index);
  /// Nobody wants what it brings. True: somebody is moving its pages, and is to be told.
  bool call_off(std::uint32_t index);

  /// Whether a completion is of a transfer that somebody moves, and of a rank that has not reported yet.
  [[nodiscard]] bool knows(const Completion& completion) const;
  /// A rank has ended its part; true when it was the last one. `pages_max`: how many pages the transfer could bring at
  /// most. `counts_pages`: Completion::good_pages counts even when the outcome is Ok, which otherwise means all pages.
  [[nodiscard]] bool report(const Completion& completion, std::uint32_t pages_max, bool counts_pages);

  [[nodiscard]] Transfer& operator[](std::uint32_t index) { return transfers_[index]; }
  [[nodiscard]] const Transfer& operator[](std::uint32_t index) const { return transfers_[index]; }
  [[nodiscard]] std::span<PageTransfer> pages(std::uint32_t index) { return row(index).first(at(index).page_count); }
  [[nodiscard]] std::span<const PageTransfer> pages(std::uint32_t index) const {
    return {rows_.data() + (std::size_t{index} * pages_max_), at(index).page_count};
  }
  [[nodiscard]] TransferId id(std::uint32_t index) const { return {index, at(index).generation}; }
  [[nodiscard]] bool is_full_transfer(std::uint32_t index) const { return at(index).page_count == pages_max_; }

  [[nodiscard]] std::uint32_t live_count() const { return live_count_; }
  [[nodiscard]] std::uint32_t capacity() const { return static_cast<std::uint32_t>(transfers_.size()); }
  [[nodiscard]] bool is_full() const { return live_count_ == transfers_.size(); }
  [[nodiscard]] std::uint32_t free_count() const { return capacity() - live_count_; }
  [[nodiscard]] std::uint32_t pages_max() const { return pages_max_; }
  /// All transfers that live have indices below this value.
  [[nodiscard]] std::uint32_t end() const { return end_; }
  /// Transfers that nobody has taken, oldest first. add(), take(), call_off() and remove() change it.
  [[nodiscard]] std::span<const std::uint32_t> queue() const { return queue_; }
  /// Whether any transfer that lives fulfils a condition.
  template <typename Condition>
  [[nodiscard]] bool any(Condition&& condition) const {
    for (std::uint32_t i = 0; i < end_; ++i) {
      if (transfers_[i].is_live() && condition(transfers_[i])) return true;
    }
    return false;
  }
  /// The pages of all transfers that live and fulfil a condition.
  template <typename Condition>
  [[nodiscard]] std::uint32_t count_pages(Condition&& condition) const {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < end_; ++i) {
      if (transfers_[i].is_live() && condition(transfers_[i])) count += transfers_[i].page_count;
    }
    return count;
  }
  /// Transfers that were called off while an external mover had them: each is named once.
  [[nodiscard]] std::span<TransferId> take_called_off(std::span<TransferId> out);
  void tell_called_off(std::uint32_t index) {
    QUIRE_CHECK(at(index).state == Transfer::State::CalledOff, "a transfer is told as called off, and is not");
    called_off_.push_back(id(index));
  }

  /// A hash of which transfers were added, with which pages, called off and removed, in this order. Books that go on
  /// alike have the same.
  [[nodiscard]] std::uint64_t decisions() const { return decisions_; }

  [[nodiscard]] Status check_invariants() const;

 private:
  void note(std::uint64_t what) { decisions_ = mix64(decisions_ ^ what); }
  [[nodiscard]] const Transfer& at(std::uint32_t index) const { return transfers_[index]; }
  [[nodiscard]] std::span<PageTransfer> row(std::uint32_t index) {
    return {rows_.data() + (std::size_t{index} * pages_max_), pages_max_};
  }
  void set_state(std::uint32_t index, Transfer::State state);

  std::vector<Transfer> transfers_;
  LazyArray<PageTransfer> rows_;  // pages_max_ of each transfer
  std::vector<std::uint32_t> queue_;
  std::vector<TransferId> called_off_;
  std::uint32_t pages_max_ = 0;
  std::uint32_t rank_count_ = 1;
  std::uint32_t live_count_ = 0;
  std::uint32_t end_ = 0;
  std::uint64_t decisions_ = 0;
};

}  // namespace quire
