// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "testing/policy_hooks.h"

namespace quire {
namespace {

using Runs = testing::PolicyHooks::Runs;

class FifoPolicyTest : public ::testing::Test {
 protected:
  testing::PolicyHooks fifo_{"fifo", 100};
};

TEST_F(FifoPolicyTest, WhatWasSealedFirstGoesFirstHoweverOftenItWasUsed) {
  for (const std::uint32_t run : {3U, 1U, 2U}) fifo_.add(run);
  fifo_.use(3);
  fifo_.use(3);
  EXPECT_EQ(fifo_.victims(), (Runs{3, 1, 2}));
}

TEST_F(FifoPolicyTest, ARunThatGrowsIsAsNewAsItsGrowth) {
  fifo_.seal(1);
  fifo_.add(2);
  fifo_.seal(1);
  fifo_->on_idle(RunId{1});
  EXPECT_EQ(fifo_.victims(), (Runs{2, 1}));
}

TEST_F(FifoPolicyTest, ATrimmedRunStaysFirst) {
  fifo_.add(1, 3);
  fifo_.add(2);
  fifo_.evict(1, 2);
  EXPECT_EQ(fifo_.victims(), (Runs{1, 2}));
}

TEST_F(FifoPolicyTest, ARunWithChildrenWaitsForThemAndFollowsTheLastDirectly) {
  fifo_.add(1);
  fifo_->on_branch(RunId{1});
  fifo_.add(2);  // its child
  fifo_.add(3);
  EXPECT_EQ(fifo_.victim(), 2U);
  fifo_.evict(2, 1);
  fifo_->on_leaf(RunId{1});
  EXPECT_EQ(fifo_.victims(), (Runs{1, 3}));
}

TEST_F(FifoPolicyTest, ARunThatWasPinnedWhenItsTurnCameGoesFirstOnceItIsIdle) {
  fifo_.add(1);
  fifo_.add(2);
  fifo_.add(3);
  fifo_->on_pin(RunId{1});
  EXPECT_EQ(fifo_.victim(), 2U);
  fifo_->on_idle(RunId{1});
  EXPECT_EQ(fifo_.victims(), (Runs{1, 2, 3}));
}

TEST_F(FifoPolicyTest, ARunThatIsPinnedAndHasChildrenWaitsForBoth) {
  fifo_.add(1);
  fifo_.add(2);
  fifo_->on_branch(RunId{1});
  fifo_->on_pin(RunId{1});
  EXPECT_EQ(fifo_.victim(), 2U);
  fifo_->on_leaf(RunId{1});
  EXPECT_EQ(fifo_.victim(), 2U);
  fifo_->on_idle(RunId{1});
  EXPECT_EQ(fifo_.victim(), 1U);
}

TEST_F(FifoPolicyTest, ThePrefixOfASplitRunFollowsItsSuffix) {
  fifo_.add(1, 4);
  fifo_.add(2);
  fifo_.split(1, 7, 2);
  EXPECT_EQ(fifo_->idle_run_count(), 3U);
  EXPECT_EQ(fifo_.victim(), 1U);
  fifo_.evict(1, 2);
  fifo_->on_leaf(RunId{7});
  EXPECT_EQ(fifo_.victims(), (Runs{7, 2}));
}

TEST_F(FifoPolicyTest, ARunThatGrowsAfterItWasPassedOverHasItsTurnAgainLater) {
  fifo_.seal(1);
  fifo_.add(2);
  EXPECT_EQ(fifo_.victim(), 2U);  // the first is pinned
  fifo_.seal(1);
  fifo_.add(3);
  fifo_->on_idle(RunId{1});
  EXPECT_EQ(fifo_.victims(), (Runs{2, 1, 3}));
}

}  // namespace
}  // namespace quire
