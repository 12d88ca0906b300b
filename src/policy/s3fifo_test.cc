// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "testing/policy_hooks.h"

namespace quire {
namespace {

using Runs = testing::PolicyHooks::Runs;

class S3FifoPolicyTest : public ::testing::Test {
 protected:
  testing::PolicyHooks s3fifo_{"s3fifo", 20};  // of which the small queue has 2
};

TEST_F(S3FifoPolicyTest, WhatWasUsedLessThanTwiceGoesInTheOrderItCame) {
  for (const std::uint32_t run : {1U, 2U, 3U}) s3fifo_.add(run);
  s3fifo_.use(1);
  EXPECT_EQ(s3fifo_.victims(), (Runs{1, 2, 3}));
}

TEST_F(S3FifoPolicyTest, WhatWasUsedTwiceMovesToTheMainQueue) {
  for (const std::uint32_t run : {1U, 2U, 3U}) s3fifo_.add(run);
  s3fifo_.use(1);
  s3fifo_.use(1);
  EXPECT_EQ(s3fifo_.victim(), 2U);
  s3fifo_.evict(2, 1);
  EXPECT_EQ(s3fifo_.victim(), 1U);  // the small queue is below its share, and the main one has been looked at
  EXPECT_EQ(s3fifo_.victims(), (Runs{1, 3}));
}

TEST_F(S3FifoPolicyTest, WhatComesBackSoonGoesToTheMainQueueAtOnce) {
  s3fifo_.add(1, 2);
  s3fifo_.add(2, 2);
  s3fifo_.evict(1, 2);
  s3fifo_.add(1, 2);  // a ghost
  s3fifo_.add(3, 2);
  EXPECT_EQ(s3fifo_.victims(), (Runs{2, 3, 1}));
}

TEST_F(S3FifoPolicyTest, WhatWasDroppedIsNoGhost) {
  s3fifo_.add(1, 2);
  s3fifo_.add(2, 2);
  s3fifo_.drop(1);
  s3fifo_.add(3, 2);
  s3fifo_.add(1, 2);
  EXPECT_EQ(s3fifo_.victims(), (Runs{2, 3, 1}));
}

TEST_F(S3FifoPolicyTest, GhostsAreForgottenBeyondTheSizeOfTheMainQueue) {
  s3fifo_.add(1, 1);
  s3fifo_.evict(1, 1);
  s3fifo_.add(2, 18);
  s3fifo_.evict(2, 18);  // pushes the first out
  s3fifo_.add(1, 2);
  s3fifo_.add(3, 2);
  EXPECT_EQ(s3fifo_.victims(), (Runs{1, 3}));  // both in the small queue
}

TEST_F(S3FifoPolicyTest, InTheMainQueueAUsedRunGoesRoundOnceForEachUse) {
  s3fifo_.add(1);
  s3fifo_.add(2);
  for (const std::uint32_t run : {1U, 2U}) {
    s3fifo_.evict(run, 1);
    s3fifo_.add(run);  // back, in the main queue
  }
  s3fifo_.use(1);
  EXPECT_EQ(s3fifo_.victims(), (Runs{2, 1}));
}

TEST_F(S3FifoPolicyTest, ARunWithChildrenMovesOnToTheMainQueue) {
  s3fifo_.add(1);
  s3fifo_->on_branch(RunId{1});
  s3fifo_.add(2);
  s3fifo_.add(3);
  s3fifo_.add(4);
  EXPECT_EQ(s3fifo_.victim(), 2U);
  s3fifo_->on_leaf(RunId{1});
  EXPECT_EQ(s3fifo_.victims(), (Runs{2, 3, 1, 4}));
}

TEST_F(S3FifoPolicyTest, APinnedRunKeepsItsTurn) {
  s3fifo_.add(1);
  s3fifo_.add(2);
  s3fifo_.add(3);
  s3fifo_->on_pin(RunId{1});
  EXPECT_EQ(s3fifo_.victim(), 2U);
  s3fifo_->on_idle(RunId{1});
  EXPECT_EQ(s3fifo_.victims(), (Runs{1, 2, 3}));
}

TEST_F(S3FifoPolicyTest, WithoutALargerPoolThereIsStillASmallQueue) {
  testing::PolicyHooks tiny("s3fifo", 1);
  tiny.add(1);
  EXPECT_EQ(tiny.victims(), (Runs{1}));
}

}  // namespace
}  // namespace quire
