// SPDX-License-Identifier: Apache-2.0
#include "tiers/write_budget.h"

#include <deque>
#include <utility>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

constexpr TimeNs kHourNs = TimeNs{3'600} * 1'000'000'000;

TEST(WriteBudgetTest, WithoutALimitEverythingMayBeWritten) {
  WriteBudget budget(0);
  budget.take(UINT64_MAX);
  budget.refill(1);
  EXPECT_TRUE(budget.allows(UINT64_MAX, /*is_hot=*/false));
}

TEST(WriteBudgetTest, HotPagesMayTakeTheHalfThatOthersLeave) {
  WriteBudget budget(240);  // ten bytes are what a quiet hour saves
  EXPECT_FALSE(budget.allows(11, /*is_hot=*/true));
  EXPECT_FALSE(budget.allows(6, /*is_hot=*/false));
  budget.take(5);
  EXPECT_FALSE(budget.allows(1, /*is_hot=*/false));
  EXPECT_TRUE(budget.allows(5, /*is_hot=*/true));
  budget.take(5);
  EXPECT_FALSE(budget.allows(1, /*is_hot=*/true));
}

TEST(WriteBudgetTest, WhatWasGuessedWronglyIsPaidBack) {
  WriteBudget budget(240);
  budget.take(10);
  budget.correct(10, 7);
  EXPECT_TRUE(budget.allows(3, /*is_hot=*/true));
  EXPECT_FALSE(budget.allows(4, /*is_hot=*/true));
  budget.correct(0, 9);
  budget.refill(kHourNs / 2);  // gives 4.8 of the 6 that are owed
  EXPECT_FALSE(budget.allows(1, /*is_hot=*/true));
}

// Whoever writes whatever is allowed, as soon as it is: in no day more than a day's share, and nearly all of it.
TEST(WriteBudgetTest, NoDayHasMoreThanItsShare) {
  for (const std::uint64_t per_day : {1ULL, 23ULL, 24ULL, 9'973ULL, 1ULL << 40U}) {
    testing::Random random(per_day);
    WriteBudget budget(per_day);
    std::deque<std::pair<TimeNs, std::uint64_t>> writes;  // of the last day
    std::uint64_t of_day = 0;
    std::uint64_t total = 0;
    TimeNs now = 0;
    while (now < 72 * kHourNs) {
      const TimeNs elapsed = random.below(1'000) == 0 ? 3 * kHourNs : random.below(600) * TimeNs{1'000'000'000};
      now += elapsed;
      budget.refill(elapsed);
      while (!writes.empty() && writes.front().first <= now - (24 * kHourNs)) {
        of_day -= writes.front().second;
        writes.pop_front();
      }
      const std::uint64_t bytes = 1 + (random.next() % (1 + (per_day / 500)));
      for (bool is_hot = random.below(2) == 0; budget.allows(bytes, is_hot);) {
        budget.take(bytes);
        writes.emplace_back(now, bytes);
        of_day += bytes;
        total += bytes;
      }
      ASSERT_LE(of_day, per_day);
    }
    EXPECT_GE(total, per_day < 9'973 ? 0 : per_day * 2);  // an hour's share must hold what is written at once
  }
}

}  // namespace
}  // namespace quire
