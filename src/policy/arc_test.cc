// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "testing/policy_hooks.h"

namespace quire {
namespace {

using Runs = testing::PolicyHooks::Runs;

class ArcPolicyTest : public ::testing::Test {
 protected:
  testing::PolicyHooks arc_{"arc", 10};
};

TEST_F(ArcPolicyTest, AtFirstWhatWasNeededOnceGoesFirst) {
  for (const std::uint32_t run : {1U, 2U, 3U}) arc_.add(run);
  arc_.use(1);
  EXPECT_EQ(arc_.victims(), (Runs{2, 3, 1}));
}

TEST_F(ArcPolicyTest, WhatComesBackCountsAsNeededAgain) {
  arc_.add(1);
  arc_.add(2);
  arc_.evict(1, 1);
  arc_.add(1);
  arc_.add(3);
  arc_.add(4);
  EXPECT_EQ(arc_.victims(), (Runs{2, 3, 4, 1}));
}

TEST_F(ArcPolicyTest, GhostsOfTheOnceNeededMakeRoomForMoreOfThem) {
  arc_.add(1, 5);
  arc_.use(1);  // needed again
  arc_.add(2, 5);
  arc_.evict(2, 5);
  arc_.add(2, 5);  // five ghosts come back: the once needed may have five pages
  arc_.evict(2, 5);
  arc_.add(3, 2);
  EXPECT_EQ(arc_.victim(), 1U);
}

TEST_F(ArcPolicyTest, GhostsOfTheAgainNeededTakeThatRoomBack) {
  arc_.add(1, 5);
  arc_.use(1);
  arc_.add(2, 5);
  arc_.evict(2, 5);
  arc_.add(2, 5);
  arc_.evict(2, 5);
  arc_.evict(1, 5);
  arc_.add(1, 5);
  arc_.add(3, 2);
  EXPECT_EQ(arc_.victim(), 3U);
}

TEST_F(ArcPolicyTest, WhatWasDroppedIsNoGhost) {
  arc_.add(1);
  arc_.drop(1);
  arc_.add(1);
  arc_.add(2);
  EXPECT_EQ(arc_.victims(), (Runs{1, 2}));
}

TEST_F(ArcPolicyTest, GhostsAreForgottenWhenTheListsAndTheyExceedTheirBounds) {
  arc_.add(1, 1);
  arc_.evict(1, 1);
  arc_.add(2, 10);  // the once needed and their ghosts are ten pages at most
  arc_.evict(2, 10);
  arc_.add(1, 1);
  arc_.add(3, 1);
  EXPECT_EQ(arc_.victims(), (Runs{1, 3}));
}

TEST_F(ArcPolicyTest, BothPartsOfASplitRunAreInItsList) {
  arc_.add(1, 4);
  arc_.use(1);
  arc_.add(2);
  arc_.split(1, 7, 2);
  EXPECT_EQ(arc_.victims(), (Runs{2, 1, 7}));
}

TEST_F(ArcPolicyTest, WhenOneListHasNothingIdleTheOtherGives) {
  arc_.add(1);
  arc_.add(2);
  arc_.use(2);
  arc_->on_pin(RunId{1});
  EXPECT_EQ(arc_.victim(), 2U);
}

}  // namespace
}  // namespace quire
