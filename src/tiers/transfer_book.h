// SPDX-License-Identifier: Apache-2.0
//
// TransferBook: the one table of transfers, of all pools and between all tiers. It keeps the pages of a transfer until
// every rank has reported, whatever has become of the transfer meanwhile. The life of a transfer:
//
//     Free ─ add() ─► Queued ─ take() ─► Moving ─ all ranks reported ─► Arrived ───── remove() ─► Free
//                       │                  │                              │ call_off()              ▲
//                       │                  └─ call_off() ─► CalledOff     ▼                         │
//                       └──────── call_off() ─────────────────── └─────► Over ─────── remove() ─────┘
//
// Nobody uses what a transfer that is CalledOff or Over brings. Nobody moves the pages of a transfer that is Arrived or
// Over: whoever added it releases them, and removes it.
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/lazy_array.h"
#include "prefix/prefix_tree.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

[[nodiscard]] constexpr bool is_of_lower_tier(TransferKind kind) {
  return kind != TransferKind::Load && kind != TransferKind::Store;
}

struct Transfer {
  enum class State : std::uint8_t { Free, Queued, Moving, CalledOff, Arrived, Over };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  State state = State::Free;
  TransferKind kind = TransferKind::Load;
  TransferPriority priority = TransferPriority::Waiting;
  TransferOutcome outcome = TransferOutcome::Ok;  // of the ranks that have reported
  TransferFault fault = TransferFault::None;
  Tier named_in = Tier::Host;  // of a store to a lower tier: where the pages lie by whose names it stores its own
  std::uint16_t pool = 0;
  std::uint16_t lower = 0;  // which lower tier it goes to or comes from
  std::uint32_t generation = 0;
  std::uint32_t page_count = 0;
  std::uint32_t good_pages = 0;
  std::uint32_t first_page = 0;  // of a load of the history: the column of its first page
  std::uint32_t key_space = 0;   // of a load, a search, a drop
  std::uint32_t search = kNone;  // that a load from a lower tier, or the question itself, belongs to
  std::uint64_t reported_ranks = 0;
  TimeNs deadline = INT64_MAX;
  SequenceId sequence;  // whose pages it saves or brings back; none for pages of the tree
  PrefixTree::Pin pin;  // of a load: keeps the path that its pages belong to

  [[nodiscard]] bool is_live() const { return state != State::Free; }
  [[nodiscard]] bool is_on_its_way() const { return state == State::Queued || state == State::Moving; }
  [[nodiscard]] bool is_wanted() const { return state != State::CalledOff && state != State::Over; }
  /// Nobody moves its pages any more.
  [[nodiscard]] bool has_ended() const { return state == State::Arrived || state == State::Over; }
  [[nodiscard]] bool is_of_tree() const { return sequence == SequenceId{}; }
  /// It brings pages of the tree from the host to the device.
  [[nodiscard]] bool is_tree_load() const { return is_live() && kind == TransferKind::Load && is_of_tree(); }
};

/// How fast bytes came, weighted so that small transfers count little.
struct TransferRate {
  double bytes_per_ns = 0;  // 0: nothing was measured yet
  void measure(const Completion& completion);
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
  void add_page(std::uint32_t index, const PageTransfer& page);

  /// Somebody moves its pages from here on.
  void take(std::uint32_t index);
  /// Nobody wants what it brings. True: somebody is moving its pages, and is to be told.
  bool call_off(std::uint32_t index);

  /// Whether a completion is of a transfer that somebody moves, and of a rank that has not reported yet.
  [[nodiscard]] bool knows(const Completion& completion) const;
  /// A rank has ended its part; true when it was the last one. `pages_max`: so many pages could have been good.
  /// `counts_pages`: the completion says how many are, even when all went well.
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
  /// Transfers that live have indices below it.
  [[nodiscard]] std::uint32_t end() const { return end_; }
  /// Transfers that nobody has taken, oldest first. take() and remove() change it.
  [[nodiscard]] std::span<const std::uint32_t> queue() const { return queue_; }
  /// Whether transfers that live fulfil a condition.
  template <typename Condition>
  [[nodiscard]] bool any(Condition&& condition) const {
    for (std::uint32_t i = 0; i < end_; ++i) {
      if (transfers_[i].is_live() && condition(transfers_[i])) return true;
    }
    return false;
  }
  /// Transfers that were called off while an external mover had them: each is named once.
  [[nodiscard]] std::span<TransferId> take_called_off(std::span<TransferId> out);
  void tell_called_off(std::uint32_t index) {
    QUIRE_CHECK(at(index).state == Transfer::State::CalledOff, "a transfer is told as called off, and is not");
    called_off_.push_back(id(index));
  }

  [[nodiscard]] Status check_invariants() const;

 private:
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
};

}  // namespace quire
