// SPDX-License-Identifier: Apache-2.0
//
// Engines that hand out device pages themselves: offer, match, reclaim, take_released.
#include <gtest/gtest.h>

#include <algorithm>

#include "cache_fixture.h"

namespace quire {
namespace {

class CacheExternal : public CacheTest {
 protected:
  void SetUp() override {
    CacheConfig config = test_config(4, 16);
    config.device.pool = DevicePool::External;
    open(std::move(config));
  }
  [[nodiscard]] static std::vector<PageId> ids(std::initializer_list<std::uint32_t> values) {
    std::vector<PageId> pages;
    for (const std::uint32_t value : values) pages.push_back(PageId{value});
    return pages;
  }
  [[nodiscard]] Result<OfferOutcome> offer(std::span<const TokenId> tokens, std::uint32_t first_page,
                                           std::span<const PageId> pages) {
    return cache_->offer(space_, {.prompt = {.tokens = tokens}, .first_page = first_page, .page_ids = pages});
  }
  [[nodiscard]] std::vector<PageId> take_released() {
    std::vector<PageId> buffer(16);
    const std::span<PageId> taken = cache_->take_released(buffer).value();
    return {taken.begin(), taken.end()};
  }
};

TEST_F(CacheExternal, OfferedPagesAreFoundUnderTheEnginesIds) {
  const OfferOutcome outcome = offer(token_range(1, 8), 0, ids({9, 3})).value();
  EXPECT_EQ(outcome.adopted_pages, 2U);
  EXPECT_EQ(outcome.duplicate_pages, 0U);
  const ExternalMatch match = cache_->match(space_, {.tokens = token_range(1, 11)}).value();
  EXPECT_EQ(match.token_count, 8U);
  EXPECT_TRUE(std::ranges::equal(match.pages, ids({9, 3})));
  EXPECT_EQ(stats().sealed_pages, 2U);
}

TEST_F(CacheExternal, APathGrowsByLaterOffers) {
  ASSERT_TRUE(offer(token_range(1, 8), 0, ids({0, 1})));
  EXPECT_EQ(offer(token_range(1, 13), 2, ids({2}))->adopted_pages, 1U);
  EXPECT_EQ(cache_->match(space_, {.tokens = token_range(1, 13)})->token_count, 12U);
}

TEST_F(CacheExternal, PagesThatAreCachedUnderOtherIdsStayTheEngines) {
  ASSERT_TRUE(offer(token_range(1, 8), 0, ids({0, 1})));
  const OfferOutcome outcome = offer(token_range(1, 12), 0, ids({5, 6, 7})).value();
  EXPECT_EQ(outcome.duplicate_pages, 2U);
  EXPECT_EQ(outcome.adopted_pages, 1U);
  // 5 and 6 were not taken: they can be offered for something else.
  EXPECT_TRUE(offer(token_range(50, 8), 0, ids({5, 6})));
}

TEST_F(CacheExternal, OfferingAPageTwiceIsRefusedAndNothingChanges) {
  ASSERT_TRUE(offer(token_range(1, 8), 0, ids({0, 1})));
  const std::string text = "is offered twice";
  expect_error(offer(token_range(1, 8), 0, ids({0, 1})), ErrorCode::InvalidArgument, "page 0 " + text);
  expect_error(offer(token_range(50, 8), 0, ids({4, 1})), ErrorCode::InvalidArgument, "page 1 " + text);
  expect_error(offer(token_range(50, 8), 0, ids({4, 4})), ErrorCode::InvalidArgument, "page 4 " + text);
  EXPECT_EQ(stats().sealed_pages, 2U);
  expect_invariants();
  EXPECT_TRUE(offer(token_range(50, 4), 0, ids({4})));  // it was not left marked
}

TEST_F(CacheExternal, OffersMustFitTheirTokensAndThePool) {
  expect_error(offer(token_range(1, 8), 0, ids({0})), ErrorCode::InvalidArgument, "fill 2 pages");
  expect_error(offer(token_range(1, 8), 0, {}), ErrorCode::InvalidArgument, "at least one page");
  expect_error(offer(token_range(1, 3), 0, ids({0})), ErrorCode::InvalidArgument, "fill 0 pages");
  expect_error(offer(token_range(1, 4), 0, ids({16})), ErrorCode::InvalidArgument,
               "page 16 is not below device.page_count = 16");
  std::vector<TokenId> negative = token_range(1, 4);
  negative[2] = -1;
  expect_error(offer(negative, 0, ids({0})), ErrorCode::InvalidArgument, "token 2 is -1");
  EXPECT_EQ(stats().sealed_pages, 0U);
}

TEST_F(CacheExternal, WithoutItsPrefixAnOfferAdoptsNothing) {
  const OfferOutcome outcome = offer(token_range(1, 12), 2, ids({2})).value();
  EXPECT_EQ(outcome.adopted_pages, 0U);
  EXPECT_EQ(outcome.prefix_pages, 0U);
  EXPECT_TRUE(offer(token_range(1, 4), 0, ids({2})));
}

TEST_F(CacheExternal, ReclaimedPagesAreReportedOnceAndOnlyThenReusable) {
  ASSERT_TRUE(offer(token_range(1, 8), 0, ids({0, 1})));
  ASSERT_TRUE(offer(token_range(50, 4), 0, ids({2})));
  EXPECT_EQ(cache_->reclaim(1).value(), 1U);
  expect_error(offer(token_range(90, 4), 0, ids({1})), ErrorCode::InvalidArgument, "take_released() has not named it");
  EXPECT_EQ(take_released(), ids({1}));
  EXPECT_TRUE(take_released().empty());
  EXPECT_TRUE(offer(token_range(90, 4), 0, ids({1})));
}

TEST_F(CacheExternal, MatchedPagesAreNotReclaimedWhileHeld) {
  ASSERT_TRUE(offer(token_range(1, 8), 0, ids({0, 1})));
  {
    const ExternalMatch match = cache_->match(space_, {.tokens = token_range(1, 8)}).value();
    EXPECT_EQ(cache_->reclaim(16).value(), 0U);
  }
  EXPECT_EQ(cache_->reclaim(16).value(), 2U);
  EXPECT_EQ(take_released(), ids({0, 1}));
}

TEST_F(CacheExternal, DroppedAndResetPagesAreReleased) {
  const KeySpaceId other = cache_->key_space({.salt = "other"}).value();
  ASSERT_TRUE(cache_->offer(other, {.prompt = {.tokens = token_range(1, 4)}, .page_ids = ids({7})}).has_value());
  ASSERT_TRUE(offer(token_range(1, 4), 0, ids({8})));
  EXPECT_EQ(cache_->drop(other).value(), 1U);
  EXPECT_EQ(take_released(), ids({7}));
  ASSERT_TRUE(cache_->reset());
  EXPECT_EQ(take_released(), ids({8}));
}

TEST_F(CacheExternal, ReleasedPagesAreTakenInPiecesOldestFirst) {
  for (std::uint32_t round = 0; round < 10; ++round) {  // the ring wraps around
    const std::uint32_t first = round * 3 % 16;
    const std::vector<PageId> pages = ids({first, (first + 1) % 16, (first + 2) % 16});
    ASSERT_TRUE(offer(token_range(1, 12), 0, pages));
    EXPECT_EQ(cache_->reclaim(3).value(), 3U);
    std::vector<PageId> buffer(2);
    EXPECT_TRUE(std::ranges::equal(cache_->take_released(buffer).value(), std::span(pages).first(2)));
    EXPECT_EQ(take_released(), std::vector<PageId>{pages[2]});
    expect_invariants();
  }
}

}  // namespace
}  // namespace quire
