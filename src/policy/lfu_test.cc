// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "testing/policy_hooks.h"

namespace quire {
namespace {

using Runs = testing::PolicyHooks::Runs;

class LfuPolicyTest : public ::testing::Test {
 protected:
  testing::PolicyHooks lfu_{"lfu", 100};
};

TEST_F(LfuPolicyTest, WhatWasUsedLeastGoesFirst) {
  for (const std::uint32_t run : {1U, 2U, 3U}) lfu_.add(run);
  lfu_.use(1);
  lfu_.use(1);
  lfu_.use(2);
  EXPECT_EQ(lfu_.victims(), (Runs{3, 2, 1}));
}

TEST_F(LfuPolicyTest, OfEqualsTheLeastRecentlyIdleGoesFirst) {
  for (const std::uint32_t run : {1U, 2U, 3U}) lfu_.add(run);
  lfu_.use(2);
  lfu_.use(1);
  EXPECT_EQ(lfu_.victims(), (Runs{3, 2, 1}));
}

TEST_F(LfuPolicyTest, BeingPinnedAloneIsNoUse) {
  lfu_.add(1);
  lfu_.add(2);
  lfu_->on_pin(RunId{1});
  lfu_->on_idle(RunId{1});
  lfu_.use(2);
  EXPECT_EQ(lfu_.victims(), (Runs{1, 2}));
}

TEST_F(LfuPolicyTest, GrowthKeepsTheCount) {
  lfu_.add(1);
  lfu_.use(1);
  lfu_.add(2);
  lfu_->on_pin(RunId{1});
  lfu_.seal(1);
  lfu_->on_idle(RunId{1});
  EXPECT_EQ(lfu_.victims(), (Runs{2, 1}));
}

TEST_F(LfuPolicyTest, BothPartsOfASplitRunHaveItsCount) {
  lfu_.add(1, 4);
  lfu_.use(1);
  lfu_.add(2);
  lfu_.split(1, 7, 2);
  lfu_.use(7);
  EXPECT_EQ(lfu_.victims(), (Runs{2, 1, 7}));
}

TEST_F(LfuPolicyTest, ARunThatComesBackStartsAnew) {
  lfu_.add(1);
  lfu_.use(1);
  lfu_.evict(1, 1);
  lfu_.add(2);
  lfu_.use(2);
  lfu_.add(1);
  EXPECT_EQ(lfu_.victims(), (Runs{1, 2}));
}

TEST_F(LfuPolicyTest, CountsEndAt65535) {
  for (const std::uint32_t run : {1U, 2U, 3U}) lfu_.add(run);
  for (int i = 0; i < 70'000; ++i) lfu_.use(1);
  for (int i = 0; i < 65'534; ++i) lfu_.use(2);
  for (int i = 0; i < 65'533; ++i) lfu_.use(3);
  EXPECT_EQ(lfu_.victims(), (Runs{3, 1, 2}));  // one less; then equals, of which 1 was idle before
}

}  // namespace
}  // namespace quire
