// SPDX-License-Identifier: Apache-2.0
#include "transfer/transfer_table.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using State = TransferTable::State;

constexpr std::uint32_t kDepth = 3;
constexpr std::uint32_t kWorkers = 2;
constexpr std::uint32_t kCompletionsMax = 2 * ((2 * kDepth) + kWorkers);

TransferTable make_table() {
  return TransferTable::create(
             {.queue_depth_max = kDepth, .transfer_pages_max = 4, .worker_count = kWorkers, .rank = 5})
      .value();
}

const std::array<PageTransfer, 2> kPages{
    {{.device_page = PageId{1}, .host_page = PageId{2}}, {.device_page = PageId{3}, .host_page = PageId{4}}}};

TransferPlan plan(std::uint32_t index, TransferKind kind = TransferKind::Load,
                  TransferPriority priority = TransferPriority::Waiting) {
  return {.id = {.index = index, .generation = 1}, .kind = kind, .priority = priority, .pages = kPages};
}

std::optional<std::uint32_t> take_id(TransferTable& table, TransferKind kind = TransferKind::Load) {
  const auto index = table.take(kind);
  if (!index) return std::nullopt;
  return table.record(*index).id.index;
}

TEST(TransferTable, ThoseSomebodyWaitsForGoFirstAndThenTheOldest) {
  TransferTable table = make_table();
  table.add(plan(1, TransferKind::Load, TransferPriority::Background));
  table.add(plan(2, TransferKind::Load, TransferPriority::Waiting));
  table.add(plan(3, TransferKind::Load, TransferPriority::Waiting));
  table.add(plan(4, TransferKind::Store, TransferPriority::Background));
  EXPECT_EQ(take_id(table), 2U);
  EXPECT_EQ(take_id(table), 3U);
  EXPECT_EQ(take_id(table), 1U);
  EXPECT_EQ(take_id(table), std::nullopt);
  EXPECT_EQ(take_id(table, TransferKind::Store), 4U);
}

TEST(TransferTable, EachDirectionHasItsOwnQueue) {
  TransferTable table = make_table();
  for (std::uint32_t i = 0; i < kDepth; ++i) table.add(plan(i));
  EXPECT_FALSE(table.has_room_for(TransferKind::Load));
  EXPECT_TRUE(table.has_room_for(TransferKind::Store));
  ASSERT_TRUE(table.take(TransferKind::Load).has_value());
  EXPECT_TRUE(table.has_room_for(TransferKind::Load)) << "what runs is not queued";
}

TEST(TransferTable, CompletionsThatNobodyPollsHoldTheQueuesUp) {
  TransferTable table = make_table();
  std::uint32_t added = 0;
  while (table.has_room_for(TransferKind::Load)) {
    table.drop(table.add(plan(added)));
    ++added;
  }
  EXPECT_EQ(added, kCompletionsMax);
  EXPECT_FALSE(table.has_room_for(TransferKind::Store));
  std::array<Completion, 3> some;
  const auto polled = table.poll(some);
  ASSERT_EQ(polled.size(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(polled[i].id.index, i) << "oldest first";
    EXPECT_EQ(polled[i].outcome, TransferOutcome::Cancelled);
    EXPECT_EQ(polled[i].rank, 5U);
  }
  EXPECT_TRUE(table.has_room_for(TransferKind::Store));
}

TEST(TransferTable, PlansAreCopied) {
  TransferTable table = make_table();
  std::vector<PageTransfer> pages(kPages.begin(), kPages.end());
  TransferPlan mine = plan(1);
  mine.pages = pages;
  mine.pool_index = 7;
  const std::uint32_t index = table.add(mine);
  pages[0] = {};
  EXPECT_EQ(table.record(index).pool_index, 7U);
  EXPECT_EQ(table.pages(index)[0], kPages[0]);
  EXPECT_EQ(table.pages(index)[1], kPages[1]);
}

TEST(TransferTable, WithoutPagesItHasFinished) {
  TransferTable table = make_table();
  const std::uint32_t index = table.add({.id = {.index = 9, .generation = 9}});
  EXPECT_EQ(table.record(index).state, State::Finished);
  EXPECT_EQ(table.record(index).outcome, TransferOutcome::Empty);
  EXPECT_EQ(table.completion_count(), 1U);
  EXPECT_EQ(table.queued_count() + table.running_count(), 0U);
}

TEST(TransferTable, TheLastOnesAreRememberedAndOlderOnesForgotten) {
  TransferTable table = make_table();
  std::array<Completion, 1> one;
  constexpr std::uint32_t kCount = 1000;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    table.drop(table.add(plan(i)));
    ASSERT_EQ(table.poll(one).size(), 1U);
  }
  for (std::uint32_t i = kCount - kCompletionsMax; i < kCount; ++i) {
    EXPECT_TRUE(table.find({.index = i, .generation = 1}).has_value()) << i;
  }
  EXPECT_FALSE(table.find({.index = 0, .generation = 1}).has_value());
  EXPECT_FALSE(table.find({.index = kCount - 1, .generation = 2}).has_value());
}

TEST(TransferTable, MoreAreRememberedOnRequest) {
  TransferTable table =
      TransferTable::create({.queue_depth_max = 1, .transfer_pages_max = 4, .worker_count = 1, .remembered_min = 100})
          .value();
  EXPECT_EQ(table.remembered_count(), 100U);
  std::array<Completion, 1> one;
  for (std::uint32_t i = 0; i < 300; ++i) {
    table.drop(table.add(plan(i)));
    ASSERT_EQ(table.poll(one).size(), 1U);
  }
  for (std::uint32_t i = 200; i < 300; ++i) EXPECT_TRUE(table.find({.index = i, .generation = 1}).has_value()) << i;
}

TEST(TransferTable, WhatSomebodyWaitsForIsNotForgotten) {
  TransferTable table = make_table();
  const std::uint32_t waited = table.add(plan(77));
  table.drop(waited);
  table.record(waited).waiter_count = 1;
  std::array<Completion, 1> one;
  ASSERT_EQ(table.poll(one).size(), 1U);
  for (std::uint32_t i = 0; i < 500; ++i) {
    table.drop(table.add(plan(1000 + i)));
    ASSERT_EQ(table.poll(one).size(), 1U);
  }
  EXPECT_EQ(table.find({.index = 77, .generation = 1}), waited);
}

TEST(TransferTable, AnIdThatIsOverMayComeAgain) {
  TransferTable table = make_table();
  const std::uint32_t first = table.add(plan(1));
  table.record(first).waiter_count = 1;
  table.drop(first);
  const std::uint32_t second = table.add(plan(1));
  EXPECT_NE(first, second);
  EXPECT_EQ(table.find({.index = 1, .generation = 1}), second);
  EXPECT_EQ(table.record(first).outcome, TransferOutcome::Cancelled) << "for those who waited for the first";
}

// Random calls beside lists and maps.
class TwinModel {
 public:
  std::string apply(const testing::Op& op) {
    const auto kind = static_cast<TransferKind>(op.draws[0] % 2);
    const auto priority = static_cast<TransferPriority>(op.draws[1] % 2);
    switch (op.kind % 6) {
      case 0:
      case 1:
        add(kind, priority, op.draws[2] % 9 == 0);
        break;
      case 2:
        take(kind);
        break;
      case 3:
        finish(op.draws[2]);
        break;
      case 4:
        drop(kind, priority);
        break;
      default:
        if (const std::string difference = poll(op.draws[2] % 4); !difference.empty()) return difference;
    }
    return compare();
  }

 private:
  void add(TransferKind kind, TransferPriority priority, bool is_empty) {
    const bool has_room =
        queues_[{kind, TransferPriority::Waiting}].size() + queues_[{kind, TransferPriority::Background}].size() <
            kDepth &&
        on_their_way() + completions_.size() < kCompletionsMax;
    if (table_.has_room_for(kind) != has_room) wrong_ = "room";
    if (!has_room) return;
    TransferPlan made = plan(++last_id_, kind, priority);
    if (is_empty) made.pages = {};
    const std::uint32_t index = table_.add(made);
    if (is_empty) {
      end(last_id_, TransferOutcome::Empty);
    } else {
      queues_[{kind, priority}].push_back(index);
    }
  }
  void take(TransferKind kind) {
    const auto taken = table_.take(kind);
    std::optional<std::uint32_t> wanted;
    for (const auto priority : {TransferPriority::Waiting, TransferPriority::Background}) {
      auto& queue = queues_[{kind, priority}];
      if (wanted || queue.empty()) continue;
      wanted = queue.front();
      queue.pop_front();
    }
    if (taken != wanted) wrong_ = "the next one";
    if (taken) running_.push_back(*taken);
    // No more run than there are workers.
    if (running_.size() > kWorkers) finish(0);
  }
  void finish(std::uint32_t draw) {
    if (running_.empty()) return;
    const std::size_t at = draw % running_.size();
    const std::uint32_t index = running_[at];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(at));
    const TransferId id = table_.record(index).id;
    table_.finish(index, {.id = id, .outcome = TransferOutcome::Ok});
    end(id.index, TransferOutcome::Ok);
  }
  void drop(TransferKind kind, TransferPriority priority) {
    auto& queue = queues_[{kind, priority}];
    if (queue.empty()) return;
    const std::uint32_t index = queue.back();
    queue.pop_back();
    end(table_.record(index).id.index, TransferOutcome::Cancelled);
    table_.drop(index);
  }
  std::string poll(std::uint32_t count) {
    std::array<Completion, 4> out;
    const auto polled = table_.poll(std::span(out).first(count));
    if (polled.size() != std::min<std::size_t>(count, completions_.size())) return "number of completions";
    for (const Completion& completion : polled) {
      if (completion.id.index != completions_.front().first || completion.outcome != completions_.front().second) {
        return "another completion";
      }
      completions_.pop_front();
    }
    return "";
  }
  void end(std::uint32_t id, TransferOutcome outcome) {
    completions_.emplace_back(id, outcome);
    finished_.emplace_back(id, outcome);
    if (finished_.size() > kCompletionsMax) finished_.pop_front();
  }
  [[nodiscard]] std::size_t on_their_way() const {
    std::size_t count = running_.size();
    for (const auto& [key, queue] : queues_) count += queue.size();
    return count;
  }
  std::string compare() {
    if (!wrong_.empty()) return wrong_;
    if (table_.completion_count() != completions_.size()) return "completion_count";
    if (table_.queued_count() + table_.running_count() != on_their_way()) return "how many are on their way";
    for (const auto& [id, outcome] : finished_) {
      const auto index = table_.find({.index = id, .generation = 1});
      if (!index) return "transfer " + std::to_string(id) + " is forgotten";
      if (table_.record(*index).state != State::Finished || table_.record(*index).outcome != outcome) return "outcome";
    }
    for (const auto& [key, queue] : queues_) {
      for (const std::uint32_t index : queue) {
        if (table_.find(table_.record(index).id) != index) return "a queued one is not found";
      }
    }
    return "";
  }

  TransferTable table_ = make_table();
  std::uint32_t last_id_ = 0;
  std::map<std::pair<TransferKind, TransferPriority>, std::deque<std::uint32_t>> queues_;
  std::vector<std::uint32_t> running_;
  std::deque<std::pair<std::uint32_t, TransferOutcome>> completions_;
  std::deque<std::pair<std::uint32_t, TransferOutcome>> finished_;
  std::string wrong_;
};

TEST(TransferTableTwin, BehavesAsThePlainestForm) {
  EXPECT_EQ(
      testing::run_seeds(
          {.test = "bin/transfer_table_test --gtest_filter=TransferTableTwin.*", .seed_count = 50, .step_count = 2000},
          [](testing::Random&) { return TwinModel(); }),
      "");
}

}  // namespace
}  // namespace quire
