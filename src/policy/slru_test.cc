// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "testing/policy_hooks.h"

namespace quire {
namespace {

using Runs = testing::PolicyHooks::Runs;

class SlruPolicyTest : public ::testing::Test {
 protected:
  testing::PolicyHooks slru_{"slru", 10};  // of which 8 may be protected
};

TEST_F(SlruPolicyTest, WhatWasUsedAgainGoesLast) {
  for (const std::uint32_t run : {1U, 2U, 3U}) slru_.add(run);
  slru_.use(1);
  EXPECT_EQ(slru_.victims(), (Runs{2, 3, 1}));
}

TEST_F(SlruPolicyTest, BeyondFourFifthsTheOldestProtectedReturnsAsTheNewestOnProbation) {
  slru_.add(1, 5);
  slru_.use(1);
  slru_.add(2, 4);
  slru_.add(3, 1);
  slru_.use(2);  // 9 pages would be protected
  EXPECT_EQ(slru_.victims(), (Runs{3, 1, 2}));
}

TEST_F(SlruPolicyTest, ProtectedRunsThatGrowPushOthersOut) {
  slru_.add(1, 4);
  slru_.use(1);
  slru_.add(2, 4);
  slru_.use(2);
  slru_->on_pin(RunId{2});
  slru_.seal(2, 1);
  slru_->on_idle(RunId{2});
  slru_.add(3, 1);
  EXPECT_EQ(slru_.victims(), (Runs{1, 3, 2}));
}

TEST_F(SlruPolicyTest, TrimsAndRemovalsMakeRoomAmongTheProtected) {
  slru_.add(1, 5);
  slru_.use(1);
  slru_.evict(1, 2);
  slru_.add(2, 5);
  slru_.use(2);  // 8
  slru_.add(3, 1);
  EXPECT_EQ(slru_.victims(), (Runs{3, 1, 2}));
}

TEST_F(SlruPolicyTest, BothPartsOfASplitRunAreProtectedAsItWas) {
  slru_.add(1, 4);
  slru_.use(1);
  slru_.add(2);
  slru_.split(1, 7, 3);
  EXPECT_EQ(slru_.victims(), (Runs{2, 1, 7}));
}

TEST_F(SlruPolicyTest, AProtectedRunAloneIsTheVictim) {
  slru_.add(1);
  slru_.use(1);
  EXPECT_EQ(slru_.victim(), 1U);
}

}  // namespace
}  // namespace quire
