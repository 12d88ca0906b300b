// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer_book.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using State = Transfer::State;

TransferBook book_of(std::uint32_t transfers, std::uint32_t pages, std::uint32_t ranks) {
  Result<TransferBook> book =
      TransferBook::create({.transfer_count_max = transfers, .transfer_pages_max = pages, .rank_count = ranks});
  EXPECT_TRUE(book.has_value());
  return std::move(*book);
}

// A book whose only transfer is in a state.
TransferBook book_in(State state) {
  TransferBook book = book_of(1, 1, 1);
  if (state == State::Free) return book;
  (void)book.add(TransferKind::Store, TransferPriority::Background);
  if (state == State::Moving || state == State::CalledOff || state == State::Arrived) book.take(0);
  if (state == State::CalledOff || state == State::Over) (void)book.call_off(0);
  if (state == State::Arrived) (void)book.report({.id = book.id(0)}, 0, /*counts_pages=*/false);
  EXPECT_EQ(book[0].state, state);
  return book;
}

constexpr std::optional<State> kStops;  // the program

struct Life {
  State now;
  std::optional<State> taken, removed, called_off;
  bool knows_completions;
};

TEST(TransferBookDeathTest, ATransferSkipsNoPartOfItsLife) {
  const std::vector<Life> lives = {
      {State::Free, kStops, kStops, kStops, false},
      {State::Queued, State::Moving, State::Free, State::Over, false},
      {State::Moving, kStops, kStops, State::CalledOff, true},
      {State::CalledOff, kStops, kStops, State::CalledOff, true},
      {State::Arrived, kStops, State::Free, State::Over, false},
      {State::Over, kStops, State::Free, State::Over, false},
  };
  const auto expect = [](State now, const std::optional<State>& then, auto&& call) {
    SCOPED_TRACE(static_cast<int>(now));
    TransferBook book = book_in(now);
    if (!then) {
      EXPECT_DEATH(call(book), "a transfer skips a part of its life");
      return;
    }
    call(book);
    EXPECT_EQ(book[0].state, *then);
    EXPECT_EQ(book.queue().size(), then == State::Queued ? 1U : 0U);
    EXPECT_TRUE(book.check_invariants());
  };
  for (const Life& life : lives) {
    expect(life.now, life.taken, [](TransferBook& book) { book.take(0); });
    expect(life.now, life.removed, [](TransferBook& book) { book.remove(0); });
    expect(life.now, life.called_off, [&](TransferBook& book) {
      EXPECT_EQ(book.call_off(0), life.now == State::Moving);  // somebody is to be told
    });
    const TransferBook book = book_in(life.now);
    EXPECT_EQ(book.knows({.id = book.id(0)}), life.knows_completions);
  }
}

// The same with a list of transfers, oldest first.
class BookModel {
 public:
  explicit BookModel(testing::Random& random)
      : capacity_(1 + random.below(7)),
        pages_max_(1 + random.below(5)),
        rank_count_(1 + random.below(3)),
        book_(book_of(capacity_, pages_max_, rank_count_)),
        generations_(capacity_) {}

  std::string apply(const testing::Op& op) {
    const std::uint32_t at = twins_.empty() ? 0 : op.draws[0] % static_cast<std::uint32_t>(twins_.size());
    if (op.kind % 6 == 0 || twins_.empty()) {
      add(op);
    } else if (op.kind % 6 == 1 && twins_[at].state == State::Queued) {
      book_.take(twins_[at].index);
      twins_[at].state = State::Moving;
    } else if (op.kind % 6 == 2) {
      call_off(at);
    } else if (op.kind % 6 == 3 && twins_[at].state != State::Moving && twins_[at].state != State::CalledOff) {
      book_.remove(twins_[at].index);
      ++generations_[twins_[at].index];
      std::erase(called_off_, twins_[at].index);
      twins_.erase(twins_.begin() + at);
    } else {
      report(at, op);
    }
    if (op.draws[3] % 16 == 0) told_ = take_called_off(op.draws[2] % 3);
    return difference();
  }

 private:
  struct Twin {
    std::uint32_t index = 0;
    State state = State::Queued;
    std::uint32_t page_count = 0;
    std::vector<std::optional<std::uint32_t>> good;  // by rank
    bool is_ok = true;
  };

  void add(const testing::Op& op) {
    const std::optional<std::uint32_t> index = book_.add(TransferKind::Store, TransferPriority::Background);
    if (index.has_value() != (twins_.size() < capacity_)) told_ = "a full book takes one more, or another does not";
    if (!index) return;
    const std::uint32_t page_count = op.draws[1] % (pages_max_ + 1);
    for (std::uint32_t i = 0; i < page_count; ++i) book_.add_page(*index, {.place = *index + i});
    twins_.push_back({.index = *index, .page_count = page_count});
    twins_.back().good.resize(rank_count_);
  }

  void call_off(std::uint32_t at) {
    Twin& twin = twins_[at];
    const bool is_moving = twin.state == State::Moving;
    if (book_.call_off(twin.index) != is_moving) told_ = "who moves it is not told, or nobody is";
    if (is_moving) {
      book_.tell_called_off(twin.index);
      called_off_.push_back(twin.index);
    }
    if (twin.state != State::CalledOff) twin.state = is_moving ? State::CalledOff : State::Over;
  }

  void report(std::uint32_t at, const testing::Op& op) {
    Twin& twin = twins_[at];
    const bool is_ok = op.draws[1] % 3 != 0;
    Completion completion{.id = book_.id(twin.index),
                          .outcome = is_ok ? TransferOutcome::Ok : TransferOutcome::Failed,
                          .rank = static_cast<std::uint16_t>(op.draws[2] % (rank_count_ + 1)),
                          .good_pages = op.draws[3] % (pages_max_ + 2)};
    const bool is_late = op.draws[3] % 7 == 0;
    if (is_late) --completion.id.generation;
    const bool is_moving = twin.state == State::Moving || twin.state == State::CalledOff;
    const bool is_known = is_moving && !is_late && completion.rank < rank_count_ && !twin.good[completion.rank];
    if (book_.knows(completion) != is_known) told_ = "a completion of somebody else, or of nobody";
    if (!is_known) return;
    twin.good[completion.rank] = is_ok ? twin.page_count : std::min(completion.good_pages, twin.page_count);
    twin.is_ok = twin.is_ok && is_ok;
    const bool is_last = std::ranges::all_of(twin.good, [](const auto& good) { return good.has_value(); });
    if (book_.report(completion, twin.page_count, /*counts_pages=*/false) != is_last) told_ = "the last rank";
    if (!is_last) return;
    twin.state = twin.state == State::Moving ? State::Arrived : State::Over;
    if (book_[twin.index].good_pages != **std::ranges::min_element(twin.good)) told_ = "the good pages";
  }

  std::string take_called_off(std::size_t count) {
    std::vector<TransferId> room(count);
    for (const TransferId& id : book_.take_called_off(room)) {
      if (called_off_.empty() || id != TransferId{called_off_[0], generations_[called_off_[0]]}) return "who to tell";
      called_off_.erase(called_off_.begin());
    }
    return "";
  }

  [[nodiscard]] std::string difference() const {
    if (!told_.empty()) return told_;
    if (const Status status = book_.check_invariants(); !status) return status.error().message;
    std::vector<std::uint32_t> queue;
    std::uint32_t end = 0;
    for (const Twin& twin : twins_) {
      if (twin.state == State::Queued) queue.push_back(twin.index);
      end = std::max(end, twin.index + 1);
      const Transfer& transfer = book_[twin.index];
      if (transfer.state != twin.state) return "the state of transfer " + std::to_string(twin.index);
      if (book_.id(twin.index).generation != generations_[twin.index]) return "a generation";
      if ((transfer.outcome == TransferOutcome::Ok) != twin.is_ok) return "an outcome";
      const std::span<const PageTransfer> pages = book_.pages(twin.index);
      if (pages.size() != twin.page_count) return "the pages of a transfer";
      for (std::uint32_t i = 0; i < pages.size(); ++i) {
        if (pages[i].place != twin.index + i) return "a page of another transfer";
      }
    }
    if (!std::ranges::equal(queue, book_.queue())) return "the queue";
    if (book_.end() != end || book_.live_count() != twins_.size()) return "which transfers live";
    return "";
  }

  std::uint32_t capacity_;
  std::uint32_t pages_max_;
  std::uint32_t rank_count_;
  TransferBook book_;
  std::vector<Twin> twins_;
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint32_t> called_off_;
  std::string told_;
};

TEST(TransferBookTest, AgreesWithAListOfTransfers) {
  EXPECT_EQ(testing::run_seeds({.test = "bin/transfer_book_test", .seed_count = 60, .step_count = 400},
                               [](testing::Random& random) { return BookModel(random); }),
            "");
}

TEST(TransferBookTest, LargeTransfersSayHowFastBytesCome) {
  TransferRate rate;
  rate.measure({.moved_bytes = 0, .busy_ns = 5});
  rate.measure({.moved_bytes = 5, .busy_ns = 0});
  EXPECT_EQ(rate.bytes_per_ns, 0);
  rate.measure({.moved_bytes = 10, .busy_ns = 5});
  EXPECT_EQ(rate.bytes_per_ns, 2);  // the first one counts whatever its size
  rate.measure({.moved_bytes = 8, .busy_ns = 1});
  EXPECT_NEAR(rate.bytes_per_ns, 2, 1e-3);
  rate.measure({.moved_bytes = 1U << 23U, .busy_ns = 1U << 20U});
  EXPECT_NEAR(rate.bytes_per_ns, 3.5, 1e-3);
}

TEST(TransferBookTest, WhatDoesNotComeInTimeMakesARateSmallerOnly) {
  TransferRate rate;
  rate.measure_late({.busy_ns = 0}, 40);
  EXPECT_EQ(rate.bytes_per_ns, 0);
  rate.measure_late({.busy_ns = 10}, 40);
  EXPECT_EQ(rate.bytes_per_ns, 2);
  rate.measure_late({.busy_ns = 5}, 40);
  EXPECT_EQ(rate.bytes_per_ns, 2);
  rate.measure_late({.busy_ns = 20}, 40);
  EXPECT_EQ(rate.bytes_per_ns, 1.75);
  rate.measure({.moved_bytes = 11, .busy_ns = 2});
  EXPECT_EQ(rate.bytes_per_ns, 2.6875);
  rate.measure({.moved_bytes = 11, .busy_ns = 1});
  EXPECT_NEAR(rate.bytes_per_ns, 2.6875, 1e-3);
}

TEST(AnswerTime, FollowsShorterTimesFasterThanLongerOnes) {
  AnswerTime time;
  time.measure(0);  // unknown
  EXPECT_EQ(time.ns, 0);
  time.measure(1'000);
  EXPECT_EQ(time.ns, 1'000);
  time.measure(2'000);
  EXPECT_EQ(time.ns, 1'250);
  time.measure(250);
  EXPECT_EQ(time.ns, 750);
}

}  // namespace
}  // namespace quire
