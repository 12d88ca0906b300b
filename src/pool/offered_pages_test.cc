// SPDX-License-Identifier: Apache-2.0
#include "pool/offered_pages.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

using State = OfferedPages::State;

std::vector<PageId> ids(std::initializer_list<std::uint32_t> values) {
  std::vector<PageId> pages;
  for (const std::uint32_t value : values) pages.push_back(PageId{value});
  return pages;
}

TEST(OfferedPages, APageGoesFromTheEngineToHeldToReleasedAndBack) {
  OfferedPages pages = OfferedPages::create(4).value();
  EXPECT_EQ(pages.count(State::Engine), 4U);
  pages.hold(PageId{2});
  EXPECT_EQ(pages.state(PageId{2}), State::Held);
  pages.release(ids({2}));
  EXPECT_EQ(pages.state(PageId{2}), State::Released);
  std::vector<PageId> out(4);
  EXPECT_EQ(pages.take_released(out).size(), 1U);
  EXPECT_EQ(out[0], PageId{2});
  EXPECT_EQ(pages.count(State::Engine), 4U);
  EXPECT_TRUE(pages.check_invariants());
}

TEST(OfferedPages, AHoldCanBeTakenBack) {
  OfferedPages pages = OfferedPages::create(4).value();
  pages.hold(PageId{1});
  pages.unhold(PageId{1});
  EXPECT_EQ(pages.count(State::Held), 0U);
  pages.hold(PageId{1});
}

TEST(OfferedPages, ReleasedPagesComeOutOldestFirstWhileTheRingGoesRound) {
  OfferedPages pages = OfferedPages::create(3).value();
  std::vector<PageId> out(1);
  for (std::uint32_t round = 0; round < 10; ++round) {
    const PageId first{round % 3};
    const PageId second{(round + 1) % 3};
    pages.hold(first);
    pages.hold(second);
    pages.release(std::vector<PageId>{second, first});
    ASSERT_EQ(pages.take_released(out)[0], second);
    ASSERT_EQ(pages.take_released(out)[0], first);
    ASSERT_TRUE(pages.take_released(out).empty());
    ASSERT_TRUE(pages.check_invariants());
  }
}

TEST(OfferedPagesDeathTest, HoldingAPageTwiceStopsTheProgram) {
  OfferedPages pages = OfferedPages::create(3).value();
  pages.hold(PageId{1});
  EXPECT_DEATH(pages.hold(PageId{1}), "not where it should be");
  EXPECT_DEATH(pages.hold(PageId{3}), "not where it should be");
  EXPECT_DEATH(pages.release(ids({0})), "not where it should be");
}

}  // namespace
}  // namespace quire
