// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "testing/policy_hooks.h"

namespace quire {
namespace {

using Runs = testing::PolicyHooks::Runs;

class PriorityPolicyTest : public ::testing::Test {
 protected:
  testing::PolicyHooks priority_{"priority", 100};
};

TEST_F(PriorityPolicyTest, WithoutWishesItIsLru) {
  for (const std::uint32_t run : {3U, 1U, 2U}) priority_.add(run);
  priority_.use(3);
  EXPECT_EQ(priority_.victims(), (Runs{1, 2, 3}));
}

TEST_F(PriorityPolicyTest, TheLowestPriorityGoesFirst) {
  priority_.add(1, 1, {.priority = 127});
  priority_.add(2, 1, {.priority = -128});
  priority_.add(3);
  priority_.add(4, 1, {.priority = -1});
  EXPECT_EQ(priority_.victims(), (Runs{2, 4, 3, 1}));
}

TEST_F(PriorityPolicyTest, TheHighestPriorityOfAllUsesCounts) {
  priority_.add(1);
  priority_.add(2);
  priority_.use(1, {.priority = 5});
  priority_.use(1, {.priority = -5});
  priority_.use(2, {.priority = 1});
  EXPECT_EQ(priority_.victims(), (Runs{2, 1}));
}

TEST_F(PriorityPolicyTest, WhatHasExpiredGoesBeforeEverythingElse) {
  priority_.add(1, 1, {.priority = -7});
  priority_.add(2, 1, {.priority = 7, .expires_at = 10});
  priority_->on_advance(9);
  EXPECT_EQ(priority_.victim(), 1U);
  priority_->on_advance(10);
  EXPECT_EQ(priority_.victims(), (Runs{2, 1}));
}

TEST_F(PriorityPolicyTest, TheExpiredGoInTheOrderTheyExpiredIn) {
  priority_.add(1, 1, {.expires_at = 30});
  priority_.add(2, 1, {.expires_at = 20});
  priority_.add(3, 1, {.expires_at = 20});
  priority_.add(4);
  priority_->on_advance(100);
  EXPECT_EQ(priority_.victims(), (Runs{2, 3, 1, 4}));
}

TEST_F(PriorityPolicyTest, TheLatestExpiryOfAllUsesCounts) {
  priority_.add(1, 1, {.expires_at = 10});
  priority_.use(1, {.expires_at = 50});
  priority_.use(1, {.expires_at = 20});
  priority_.add(2, 1, {.expires_at = 30});
  priority_->on_advance(40);
  EXPECT_EQ(priority_.victims(), (Runs{2, 1}));
}

TEST_F(PriorityPolicyTest, AUseWithoutATimeKeepsItForEver) {
  priority_.add(1, 1, {.expires_at = 10});
  priority_.use(1);
  priority_.add(2);
  priority_.use(1);
  priority_->on_advance(100);
  EXPECT_EQ(priority_.victims(), (Runs{2, 1}));
}

TEST_F(PriorityPolicyTest, AfterItHasExpiredOnlyLaterUsesCount) {
  priority_.add(1, 1, {.priority = 9, .expires_at = 10});
  priority_->on_advance(20);
  priority_.use(1, {.priority = 1, .expires_at = 50});
  priority_.add(2, 1, {.priority = 2});
  EXPECT_EQ(priority_.victims(), (Runs{1, 2}));
}

TEST_F(PriorityPolicyTest, WhatBecomesIdleTooLateIsExpiredAtOnce) {
  priority_.seal(1, 1, {.priority = 9, .expires_at = 10});
  priority_->on_advance(20);
  priority_.add(2);
  priority_->on_idle(RunId{1});
  EXPECT_EQ(priority_.victims(), (Runs{1, 2}));
}

TEST_F(PriorityPolicyTest, BothPartsOfASplitRunExpireLeafFirst) {
  priority_.add(1, 4, {.expires_at = 10});
  priority_.split(1, 7, 2);
  priority_.add(2);
  EXPECT_EQ(priority_->idle_run_count(), 3U);
  priority_->on_advance(10);
  EXPECT_EQ(priority_.victims(), (Runs{1, 7, 2}));
}

TEST_F(PriorityPolicyTest, APinnedRunDoesNotExpire) {
  priority_.add(1, 1, {.expires_at = 10});
  priority_->on_pin(RunId{1});
  priority_->on_advance(20);
  EXPECT_EQ(priority_.victim(), std::nullopt);
  priority_->on_use(RunId{1}, {.expires_at = 30});
  priority_->on_idle(RunId{1});
  priority_.add(2);
  priority_.use(2, {.priority = 1});
  priority_->on_advance(25);
  EXPECT_EQ(priority_.victims(), (Runs{1, 2}));
}

}  // namespace
}  // namespace quire
