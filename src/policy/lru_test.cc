// SPDX-License-Identifier: Apache-2.0
#include "policy/lru.h"

#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

class LruPolicyTest : public ::testing::Test {
 protected:
  LruPolicyTest() { EXPECT_TRUE(lru_.reserve({.run_count_max = 10, .page_count_max = 10}).has_value()); }

  /// Seals a run that then becomes idle.
  void add(std::uint32_t run) {
    lru_.on_seal(RunId{run}, {.page_count = 1, .pages_left = 1});
    lru_.on_idle(RunId{run});
  }

  /// All victims in order; each is removed before the next is asked for.
  std::vector<std::uint32_t> victims() {
    std::vector<std::uint32_t> found;
    while (const std::optional<RunId> victim = lru_.next_victim()) {
      found.push_back(victim->value);
      lru_.on_remove(*victim, {});
    }
    return found;
  }

  using Runs = std::vector<std::uint32_t>;

  LruPolicy lru_;
};

TEST_F(LruPolicyTest, NothingIsIdleAtFirst) {
  EXPECT_EQ(lru_.next_victim(), std::nullopt);
  EXPECT_EQ(lru_.idle_run_count(), 0U);
}

TEST_F(LruPolicyTest, ASealedRunIsNoVictimUntilItIsIdle) {
  lru_.on_seal(RunId{1}, {.page_count = 3, .pages_left = 3});
  EXPECT_EQ(lru_.next_victim(), std::nullopt);
  lru_.on_idle(RunId{1});
  EXPECT_EQ(lru_.next_victim(), RunId{1});
  EXPECT_EQ(lru_.idle_run_count(), 1U);
}

TEST_F(LruPolicyTest, TheLeastRecentlyIdleGoesFirst) {
  for (const std::uint32_t run : {3U, 1U, 2U}) add(run);
  EXPECT_EQ(victims(), (Runs{3, 1, 2}));
}

TEST_F(LruPolicyTest, AskingTwiceGivesTheSame) {
  add(1);
  add(2);
  EXPECT_EQ(lru_.next_victim(), RunId{1});
  EXPECT_EQ(lru_.next_victim(), RunId{1});
  EXPECT_EQ(lru_.idle_run_count(), 2U);
}

TEST_F(LruPolicyTest, APinnedRunIsNoVictim) {
  add(1);
  add(2);
  lru_.on_pin(RunId{1});
  EXPECT_EQ(lru_.idle_run_count(), 1U);
  EXPECT_EQ(victims(), (Runs{2}));
}

TEST_F(LruPolicyTest, ARunThatWasPinnedIsTheMostRecentWhenItIsIdleAgain) {
  add(1);
  add(2);
  lru_.on_pin(RunId{1});
  lru_.on_idle(RunId{1});
  EXPECT_EQ(victims(), (Runs{2, 1}));
}

TEST_F(LruPolicyTest, GrowthAndTrimsDoNotChangeTheOrder) {
  add(1);
  add(2);
  lru_.on_trim(RunId{1}, {.page_count = 1, .pages_left = 1});
  lru_.on_use(RunId{2}, {});
  EXPECT_EQ(victims(), (Runs{1, 2}));
}

TEST_F(LruPolicyTest, ThePrefixOfAnIdleRunGoesDirectlyAfterIt) {
  add(1);
  add(2);
  lru_.on_split(RunId{1}, RunId{5}, 1);
  EXPECT_EQ(lru_.idle_run_count(), 3U);
  EXPECT_EQ(victims(), (Runs{1, 5, 2}));
}

TEST_F(LruPolicyTest, ThePrefixOfAPinnedRunIsNoVictim) {
  lru_.on_seal(RunId{1}, {.page_count = 2, .pages_left = 2});
  lru_.on_split(RunId{1}, RunId{5}, 1);
  EXPECT_EQ(lru_.idle_run_count(), 0U);
  EXPECT_EQ(lru_.next_victim(), std::nullopt);
}

TEST_F(LruPolicyTest, ARemovedRunMayComeBackAsAnother) {
  add(1);
  add(2);
  lru_.on_remove(RunId{1}, {});
  add(1);
  EXPECT_EQ(victims(), (Runs{2, 1}));
}

TEST_F(LruPolicyTest, ARunCanBeRemovedWhileItIsNotInTheOrder) {
  lru_.on_seal(RunId{1}, {.page_count = 1, .pages_left = 1});
  lru_.on_remove(RunId{1}, {});
  EXPECT_EQ(lru_.idle_run_count(), 0U);
}

TEST_F(LruPolicyTest, ReservingMoreKeepsTheOrder) {
  add(1);
  add(2);
  ASSERT_TRUE(lru_.reserve({.run_count_max = 1000, .page_count_max = 1000}).has_value());
  add(999);
  EXPECT_EQ(victims(), (Runs{1, 2, 999}));
}

}  // namespace
}  // namespace quire
