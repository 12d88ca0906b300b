// SPDX-License-Identifier: Apache-2.0
#include "pool/fenced_pages.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

class FencedPagesTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(fenced_.reserve(4)); }

  [[nodiscard]] std::vector<std::uint32_t> released_before(std::uint64_t step) {
    std::vector<std::uint32_t> pages;
    fenced_.release_before(step, [&](PageId page) { pages.push_back(page.value); });
    return pages;
  }

  FencedPages fenced_;
};

using Pages = std::vector<std::uint32_t>;

TEST_F(FencedPagesTest, AreReleasedWhenNoStepBeforeTheOldestUsesThem) {
  fenced_.push(PageId{7}, 3);
  fenced_.push(PageId{5}, 4);
  fenced_.push(PageId{6}, 4);
  EXPECT_EQ(released_before(3), Pages{});
  EXPECT_EQ(released_before(4), (Pages{7}));
  EXPECT_EQ(fenced_.count(), 2U);
  EXPECT_EQ(released_before(UINT64_MAX), (Pages{5, 6}));
  EXPECT_EQ(fenced_.count(), 0U);
}

TEST_F(FencedPagesTest, KeepTheirOrderOverManyTurns) {
  std::uint32_t next = 0;
  for (std::uint32_t turn = 1; turn < 20; ++turn) {
    while (fenced_.count() < 4) fenced_.push(PageId{next++}, turn);
    const std::uint32_t oldest = next - 4;
    EXPECT_EQ(fenced_.pop(), PageId{oldest});
    EXPECT_EQ(fenced_.pop(), PageId{oldest + 1});
    EXPECT_EQ(fenced_.pop(), PageId{oldest + 2});
  }
}

TEST_F(FencedPagesTest, WaitForNoStepThatIsNotComing) {
  (void)fenced_.reserve(4);
  fenced_.push(PageId{1}, 2);
  EXPECT_EQ(released_before(3), (Pages{1}));
  fenced_.push(PageId{1}, 2);
  fenced_.push(PageId{2}, 5);
  fenced_.push(PageId{3}, 6);
  fenced_.wait_at_most_for(4);
  fenced_.push(PageId{4}, 4);
  EXPECT_EQ(released_before(4), (Pages{1}));
  EXPECT_EQ(released_before(5), (Pages{2, 3, 4}));
}

TEST_F(FencedPagesTest, CanBeMadeRoomForAgainWhenThereAreNone) {
  fenced_.push(PageId{1}, 2);
  EXPECT_EQ(fenced_.pop(), PageId{1});
  ASSERT_TRUE(fenced_.reserve(1));
  fenced_.push(PageId{9}, 1);
  EXPECT_EQ(released_before(2), (Pages{9}));
}

using FencedPagesDeathTest = FencedPagesTest;

TEST_F(FencedPagesDeathTest, MoreThanThereIsRoomForStopTheProgram) {
  for (std::uint32_t page = 0; page < 4; ++page) fenced_.push(PageId{page}, 1);
  EXPECT_DEATH(fenced_.push(PageId{4}, 1), "more fenced pages than the pool has");
}

TEST_F(FencedPagesDeathTest, TakingOneWhereThereIsNoneStopsTheProgram) {
  EXPECT_DEATH((void)fenced_.pop(), "no page is fenced");
}

TEST_F(FencedPagesDeathTest, ResizingAQueueInUseStopsTheProgram) {
  fenced_.push(PageId{1}, 1);
  EXPECT_DEATH((void)fenced_.reserve(8), "resizing a queue that is in use");
}

}  // namespace
}  // namespace quire
