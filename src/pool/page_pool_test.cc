// SPDX-License-Identifier: Apache-2.0
#include "pool/page_pool.h"

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace quire {

/// Breaks one rule at a time, for check_invariants() to name.
struct PagePoolPeer {
  static void set_state(PagePool& pool, std::uint32_t index, PageState state) { pool.states_[index] = state; }
  static void set_count(PagePool& pool, PageState state, std::uint32_t count) {
    pool.counts_[static_cast<std::size_t>(state)] = count;
  }
  static void set_ring(PagePool& pool, std::uint32_t position, PageId page) {
    pool.ring_[(pool.ring_head_ + position) % pool.page_count_] = page;
  }
  static void set_ring_count(PagePool& pool, std::uint32_t count) { pool.ring_count_ = count; }
  static void set_fresh(PagePool& pool, std::uint32_t fresh) { pool.fresh_ = fresh; }
  static void set_extra_owners(PagePool& pool, std::uint32_t index, std::uint32_t count) {
    pool.extra_owners_[index] = count;
  }
};

namespace {

PagePool make_pool(std::uint32_t page_count, std::uint32_t first_page = 0) {
  Result<PagePool> pool = PagePool::create({.page_count = page_count, .first_page = first_page});
  EXPECT_TRUE(pool.has_value());
  return *std::move(pool);
}

std::vector<PageId> pages_of(std::initializer_list<std::uint32_t> values) {
  std::vector<PageId> pages;
  for (const std::uint32_t value : values) pages.push_back(PageId{value});
  return pages;
}

std::vector<PageId> page_range(std::uint32_t begin, std::uint32_t end) {
  std::vector<PageId> pages;
  for (std::uint32_t value = begin; value < end; ++value) pages.push_back(PageId{value});
  return pages;
}

std::vector<PageId> allocate(PagePool& pool, std::size_t count) {
  std::vector<PageId> pages(count);
  EXPECT_TRUE(pool.try_allocate(pages));
  return pages;
}

void expect_counts(const PagePool& pool, std::initializer_list<std::uint32_t> free_open_sealed_private) {
  const std::vector<std::uint32_t> expected(free_open_sealed_private);
  const std::vector<std::uint32_t> counts = {pool.count(PageState::Free), pool.count(PageState::Open),
                                             pool.count(PageState::Sealed), pool.count(PageState::Private)};
  EXPECT_EQ(counts, expected);
  const Status status = pool.check_invariants();
  EXPECT_TRUE(status.has_value()) << status.error().message;
}

// Transitions

TEST(PagePool, EveryPageIsFreeAtFirst) {
  const PagePool pool = make_pool(3);
  EXPECT_EQ(pool.page_count(), 3U);
  EXPECT_EQ(pool.free_count(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(pool.state(PageId{i}), PageState::Free);
  expect_counts(pool, {3, 0, 0, 0});
}

TEST(PagePool, AnAllocatedPageIsOpen) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  EXPECT_EQ(pool.state(pages[0]), PageState::Open);
  EXPECT_EQ(pool.state(pages[1]), PageState::Open);
  expect_counts(pool, {1, 2, 0, 0});
}

TEST(PagePool, AnOpenPageCanBeSealed) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.seal(std::span(pages).first(1));
  EXPECT_EQ(pool.state(pages[0]), PageState::Sealed);
  expect_counts(pool, {1, 1, 1, 0});
}

TEST(PagePool, AnOpenPageCanBecomePrivate) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.make_private(std::span(pages).first(1));
  EXPECT_EQ(pool.state(pages[0]), PageState::Private);
  expect_counts(pool, {1, 1, 0, 1});
}

TEST(PagePool, OpenSealedAndPrivatePagesCanBeReleased) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 3);
  pool.seal(std::span(pages).subspan(1, 1));
  pool.make_private(std::span(pages).subspan(2, 1));
  expect_counts(pool, {0, 1, 1, 1});
  pool.release(pages);
  for (const PageId page : pages) EXPECT_EQ(pool.state(page), PageState::Free);
  expect_counts(pool, {3, 0, 0, 0});
}

TEST(PagePool, StatesHaveTheirGlossaryNames) {
  EXPECT_EQ(to_string(PageState::Free), "free");
  EXPECT_EQ(to_string(PageState::Open), "open");
  EXPECT_EQ(to_string(PageState::Sealed), "sealed");
  EXPECT_EQ(to_string(PageState::Private), "private");
}

// Allocation

TEST(PagePool, AllocatingMoreThanIsFreeChangesNothing) {
  PagePool pool = make_pool(5);
  static_cast<void>(allocate(pool, 3));
  std::vector<PageId> pages(3, PageId{77});
  EXPECT_FALSE(pool.try_allocate(pages));
  EXPECT_EQ(pages, pages_of({77, 77, 77}));
  expect_counts(pool, {2, 3, 0, 0});
  EXPECT_EQ(allocate(pool, 2), pages_of({3, 4}));
}

TEST(PagePool, AllocatingNothingAlwaysSucceeds) {
  PagePool pool = make_pool(1);
  static_cast<void>(allocate(pool, 1));
  EXPECT_TRUE(pool.try_allocate({}));
  PagePool without_pages = make_pool(0);
  EXPECT_TRUE(without_pages.try_allocate({}));
}

TEST(PagePool, APoolWithoutPagesRefusesEveryPage) {
  PagePool pool = make_pool(0);
  std::vector<PageId> pages(1);
  EXPECT_FALSE(pool.try_allocate(pages));
  expect_counts(pool, {0, 0, 0, 0});
}

TEST(PagePool, ThePagesOfAFullPoolAreAllDifferent) {
  PagePool pool = make_pool(100);
  EXPECT_EQ(allocate(pool, 100), page_range(0, 100));
  expect_counts(pool, {0, 100, 0, 0});
}

// The tutorial's demonstration of a free list: 50 slots, two requests of 7, the first one freed.
TEST(PagePool, PagesGoOutInTheOrderTheyCameBack) {
  PagePool pool = make_pool(50);
  const std::vector<PageId> first = allocate(pool, 7);
  const std::vector<PageId> second = allocate(pool, 7);
  EXPECT_EQ(first, page_range(0, 7));
  EXPECT_EQ(second, page_range(7, 14));
  pool.release(first);
  std::vector<PageId> rest = page_range(14, 50);
  for (const PageId page : first) rest.push_back(page);
  EXPECT_EQ(allocate(pool, 43), rest);
}

TEST(PagePool, ReleasedPagesKeepTheOrderOfTheirRelease) {
  PagePool pool = make_pool(4);
  static_cast<void>(allocate(pool, 4));
  pool.release(pages_of({2}));
  pool.release(pages_of({3, 0}));
  EXPECT_EQ(allocate(pool, 3), pages_of({2, 3, 0}));
}

TEST(PagePool, TheOrderOutlastsManyTurnsOfTheRing) {
  PagePool pool = make_pool(5);
  std::vector<PageId> held = allocate(pool, 5);
  for (std::uint32_t turn = 0; turn < 23; ++turn) {
    const std::vector<PageId> back(held.begin(), held.begin() + 2);
    pool.release(back);
    held.erase(held.begin(), held.begin() + 2);
    EXPECT_EQ(allocate(pool, 2), back);
    held.insert(held.end(), back.begin(), back.end());
  }
  expect_counts(pool, {0, 5, 0, 0});
}

TEST(PagePool, TheOrderOutlastsManyTurnsOfALargeRing) {
  PagePool pool = make_pool(5000);
  std::vector<PageId> held = allocate(pool, 5000);
  for (std::uint32_t turn = 0; turn < 100; ++turn) {
    const std::uint32_t count = 1 + (turn * 37 % 900);
    const std::vector<PageId> back(held.begin(), held.begin() + count);
    held.erase(held.begin(), held.begin() + count);
    pool.release(back);
    ASSERT_EQ(allocate(pool, count), back);
    held.insert(held.end(), back.begin(), back.end());
  }
  expect_counts(pool, {0, 5000, 0, 0});
}

TEST(PagePool, AllPagesCanBeReleasedAndTakenAgain) {
  PagePool pool = make_pool(6);
  const std::vector<PageId> pages = allocate(pool, 6);
  pool.seal(pages);
  pool.release(pages);
  expect_counts(pool, {6, 0, 0, 0});
  EXPECT_EQ(allocate(pool, 6), page_range(0, 6));
}

// Ids

TEST(PagePool, IdsBeginAtTheFirstPage) {
  PagePool pool = make_pool(3, 10);
  EXPECT_EQ(pool.first_page(), 10U);
  const std::vector<PageId> pages = allocate(pool, 3);
  EXPECT_EQ(pages, pages_of({10, 11, 12}));
  pool.seal(pages);
  pool.release(pages_of({11}));
  EXPECT_EQ(allocate(pool, 1), pages_of({11}));
  expect_counts(pool, {0, 1, 2, 0});
}

TEST(PagePool, MorePagesThanIdsAreRefused) {
  const Result<PagePool> pool = PagePool::create({.page_count = UINT32_MAX - 1, .first_page = 1});
  ASSERT_FALSE(pool.has_value());
  EXPECT_EQ(pool.error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(pool.error().message, "4294967294 pages: page ids have 32 bits; use more tokens per page");
}

TEST(PagePool, GrowingPastTheIdsIsRefused) {
  PagePool pool = make_pool(4, 1);
  const Status status = pool.resize(UINT32_MAX - 1);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(pool.page_count(), 4U);
  expect_counts(pool, {4, 0, 0, 0});
}

// Resizing

TEST(PagePool, NewPagesGoOutBeforeThoseThatCameBack) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 3);
  pool.release(pages_of({2, 0}));
  ASSERT_TRUE(pool.resize(5).has_value());
  EXPECT_EQ(pool.page_count(), 5U);
  expect_counts(pool, {4, 1, 0, 0});
  EXPECT_EQ(allocate(pool, 4), pages_of({3, 4, 2, 0}));
}

TEST(PagePool, GrowingKeepsTheOrderOfARingThatHasTurned) {
  PagePool pool = make_pool(4);
  static_cast<void>(allocate(pool, 4));
  pool.release(pages_of({0, 1, 2}));
  static_cast<void>(allocate(pool, 2));
  pool.release(pages_of({3, 0}));  // the ring now holds 2, 3, 0 and wraps around its end
  ASSERT_TRUE(pool.resize(6).has_value());
  EXPECT_EQ(allocate(pool, 5), pages_of({4, 5, 2, 3, 0}));
}

TEST(PagePool, GrowingKeepsTheStatesOfPagesInUse) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 3);
  pool.seal(std::span(pages).first(1));
  pool.make_private(std::span(pages).last(1));
  ASSERT_TRUE(pool.resize(9).has_value());
  EXPECT_EQ(pool.state(pages[0]), PageState::Sealed);
  EXPECT_EQ(pool.state(pages[1]), PageState::Open);
  EXPECT_EQ(pool.state(pages[2]), PageState::Private);
  expect_counts(pool, {6, 1, 1, 1});
}

TEST(PagePool, ShrinkingLeavesOutTheFreePagesAboveTheNewEnd) {
  PagePool pool = make_pool(6);
  const std::vector<PageId> pages = allocate(pool, 6);
  pool.release(pages_of({5, 1, 4, 3}));
  ASSERT_TRUE(pool.resize(4).has_value());
  expect_counts(pool, {2, 2, 0, 0});
  EXPECT_EQ(allocate(pool, 2), pages_of({1, 3}));
}

TEST(PagePool, ShrinkingLeavesOutPagesThatNeverWentOut) {
  PagePool pool = make_pool(6);
  static_cast<void>(allocate(pool, 2));
  ASSERT_TRUE(pool.resize(3).has_value());
  expect_counts(pool, {1, 2, 0, 0});
  EXPECT_EQ(allocate(pool, 1), pages_of({2}));
}

TEST(PagePool, ShrinkingBelowAPageInUseIsRefusedAndNamesIt) {
  PagePool pool = make_pool(6, 100);
  const std::vector<PageId> pages = allocate(pool, 5);
  pool.seal(std::span(pages).subspan(3, 1));
  pool.release(std::span(pages).last(1));
  const Status status = pool.resize(2);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(status.error().message, "cannot shrink the pool from 6 to 2 pages: page 102 is open");
  pool.release(std::span(pages).subspan(2, 1));
  EXPECT_EQ(pool.resize(2).error().message, "cannot shrink the pool from 6 to 2 pages: page 103 is sealed");
  EXPECT_EQ(pool.page_count(), 6U);
  expect_counts(pool, {3, 2, 1, 0});
}

TEST(PagePool, APoolThatShrankAndGrewAgainHandsOutTheSamePages) {
  PagePool pool = make_pool(4);
  pool.release(allocate(pool, 4));
  ASSERT_TRUE(pool.resize(0).has_value());
  expect_counts(pool, {0, 0, 0, 0});
  ASSERT_TRUE(pool.resize(4).has_value());
  expect_counts(pool, {4, 0, 0, 0});
  EXPECT_EQ(allocate(pool, 4), page_range(0, 4));
}

// Bugs of a caller

// Pages with several owners, and pages that are fenced.

TEST(PagePool, ASharedPageGoesWithItsLastOwner) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 1);
  EXPECT_FALSE(pool.is_shared(pages[0]));
  pool.share(pages[0]);
  pool.share(pages[0]);
  EXPECT_TRUE(pool.is_shared(pages[0]));
  EXPECT_EQ(pool.owner_count(pages[0]), 3U);
  expect_counts(pool, {2, 1, 0, 0});
  pool.release(pages);
  expect_counts(pool, {2, 0, 0, 1});
  pool.release(pages);
  EXPECT_EQ(pool.owner_count(pages[0]), 1U);
  expect_counts(pool, {2, 0, 0, 1});
  pool.release(pages);
  EXPECT_EQ(pool.owner_count(pages[0]), 0U);
  expect_counts(pool, {3, 0, 0, 0});
}

TEST(PagePool, ASharedPageAmongOthersIsPassedOver) {
  PagePool pool = make_pool(5);
  const std::vector<PageId> pages = allocate(pool, 5);
  pool.share(pages[1]);
  pool.share(pages[4]);
  pool.release(pages);
  expect_counts(pool, {3, 0, 0, 2});
  EXPECT_EQ(allocate(pool, 3), pages_of({0, 2, 3}));
}

TEST(PagePool, AnOwnerThatLeavesByUnshareLeavesTheWriterAlone) {
  PagePool pool = make_pool(2);
  const std::vector<PageId> pages = allocate(pool, 1);
  pool.share(pages[0]);
  pool.unshare(pages[0]);
  EXPECT_EQ(pool.state(pages[0]), PageState::Open);
  EXPECT_FALSE(pool.is_shared(pages[0]));
  pool.seal(pages);
  expect_counts(pool, {1, 0, 1, 0});
}

TEST(PagePool, ASharedPageCanBecomePrivateForAll) {
  PagePool pool = make_pool(2);
  const std::vector<PageId> pages = allocate(pool, 1);
  pool.share(pages[0]);
  pool.make_private(pages);
  EXPECT_EQ(pool.owner_count(pages[0]), 2U);
  expect_counts(pool, {1, 0, 0, 1});
}

TEST(PagePool, APrivatePageOfOneOwnerCanBeWrittenAgain) {
  PagePool pool = make_pool(2);
  const std::vector<PageId> pages = allocate(pool, 1);
  pool.make_private(pages);
  pool.reopen(pages[0]);
  expect_counts(pool, {1, 1, 0, 0});
}

TEST(PagePool, AFencedPageIsOutOfUseUntilItIsReleased) {
  PagePool pool = make_pool(2);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.make_private(std::span(pages).last(1));
  pool.fence(pages);
  EXPECT_EQ(pool.count(PageState::Fenced), 2U);
  EXPECT_EQ(pool.owner_count(pages[0]), 0U);
  expect_counts(pool, {0, 0, 0, 0});
  PageId none;
  EXPECT_FALSE(pool.try_allocate({&none, 1}));
  pool.release(std::span(pages).last(1));
  EXPECT_EQ(allocate(pool, 1), pages_of({1}));
}

TEST(PagePool, OnlyAResizeThatWaitsForFencedPagesAloneCouldHappen) {
  PagePool pool = make_pool(4);
  const std::vector<PageId> pages = allocate(pool, 4);
  pool.fence(std::span(pages).last(2));
  EXPECT_TRUE(pool.check_resize(2));
  EXPECT_FALSE(pool.resize(2));
  EXPECT_FALSE(pool.check_resize(1));
  pool.release(std::span(pages).last(2));
  EXPECT_TRUE(pool.resize(2));
}

TEST(PagePoolDeathTest, SharingAPageThatNobodyOwnsStopsTheProgram) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.seal(std::span(pages).first(1));
  pool.fence(std::span(pages).last(1));
  for (const std::uint32_t page : {0U, 1U, 2U}) {
    EXPECT_DEATH(pool.share(PageId{page}), "sharing a page that nobody owns");
  }
}

TEST(PagePoolDeathTest, TakingAnOwnerThatAPageDoesNotHaveStopsTheProgram) {
  PagePool pool = make_pool(2);
  (void)allocate(pool, 1);
  EXPECT_DEATH(pool.unshare(PageId{0}), "a page loses an owner it does not have");
  EXPECT_DEATH(pool.unshare(PageId{1}), "a page loses an owner it does not have");
}

TEST(PagePoolDeathTest, ReopeningAPageThatIsNotPrivateToOneOwnerStopsTheProgram) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.make_private(std::span(pages).last(1));
  pool.share(pages[1]);
  EXPECT_DEATH(pool.reopen(PageId{0}), "reopening a page that is not private to one owner");
  EXPECT_DEATH(pool.reopen(PageId{1}), "reopening a page that is not private to one owner");
  EXPECT_DEATH(pool.reopen(PageId{2}), "reopening a page that is not private to one owner");
}

TEST(PagePoolDeathTest, SealingASharedPageStopsTheProgram) {
  PagePool pool = make_pool(2);
  const std::vector<PageId> pages = allocate(pool, 1);
  pool.share(pages[0]);
  EXPECT_DEATH(pool.seal(pages), "sealing a page that has other owners");
}

TEST(PagePoolDeathTest, FencingAPageThatIsFreeFencedOrSharedStopsTheProgram) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.share(pages[0]);
  pool.fence(std::span(pages).last(1));
  for (const std::uint32_t page : {0U, 1U, 2U}) {
    EXPECT_DEATH(pool.fence(pages_of({page})), "fencing a page that is free, fenced or somebody else's too");
  }
}

TEST(PagePoolDeathTest, ReleasingAPageTwiceStopsTheProgram) {
  PagePool pool = make_pool(2);
  const std::vector<PageId> pages = allocate(pool, 1);
  pool.release(pages);
  EXPECT_DEATH(pool.release(pages), "a page released twice");
}

TEST(PagePoolDeathTest, ReleasingAPageTwiceInOneCallStopsTheProgram) {
  PagePool pool = make_pool(2);
  const std::vector<PageId> pages = allocate(pool, 2);
  EXPECT_DEATH(pool.release(pages_of({0, 1, 0})), "a page released twice");
}

TEST(PagePoolDeathTest, ReleasingAPageThatNeverWentOutStopsTheProgram) {
  PagePool pool = make_pool(2);
  EXPECT_DEATH(pool.release(pages_of({1})), "a page released twice");
}

TEST(PagePoolDeathTest, SealingAFreeSealedOrPrivatePageStopsTheProgram) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.seal(std::span(pages).first(1));
  pool.make_private(std::span(pages).last(1));
  EXPECT_DEATH(pool.seal(pages_of({0})), "a page is sealed or made private that is not open");
  EXPECT_DEATH(pool.seal(pages_of({1})), "a page is sealed or made private that is not open");
  EXPECT_DEATH(pool.seal(pages_of({2})), "a page is sealed or made private that is not open");
}

TEST(PagePoolDeathTest, MakingAFreeSealedOrPrivatePagePrivateStopsTheProgram) {
  PagePool pool = make_pool(3);
  const std::vector<PageId> pages = allocate(pool, 2);
  pool.seal(std::span(pages).first(1));
  pool.make_private(std::span(pages).last(1));
  EXPECT_DEATH(pool.make_private(pages_of({0})), "a page is sealed or made private that is not open");
  EXPECT_DEATH(pool.make_private(pages_of({1})), "a page is sealed or made private that is not open");
  EXPECT_DEATH(pool.make_private(pages_of({2})), "a page is sealed or made private that is not open");
}

TEST(PagePoolDeathTest, APageOfAnotherPoolStopsTheProgram) {
  PagePool pool = make_pool(3, 10);
  EXPECT_DEATH(static_cast<void>(pool.state(PageId{9})), "a page id that is not of this pool");
  EXPECT_DEATH(static_cast<void>(pool.state(PageId{13})), "a page id that is not of this pool");
  EXPECT_DEATH(pool.release(pages_of({0})), "a page id that is not of this pool");
  EXPECT_DEATH(pool.seal(std::vector{PageId::none()}), "a page id that is not of this pool");
}

// What check_invariants() notices. Of four pages, 0 is open, 1 sealed, 2 in the ring and 3 has never gone
// out.
class PagePoolInvariants : public ::testing::Test {
 protected:
  PagePoolInvariants() : pool_(make_pool(4)) {
    const std::vector<PageId> pages = allocate(pool_, 3);
    pool_.seal(std::span(pages).subspan(1, 1));
    pool_.release(std::span(pages).last(1));
    EXPECT_TRUE(pool_.check_invariants().has_value());
  }

  [[nodiscard]] std::string broken_rule() const {
    const Status status = pool_.check_invariants();
    if (status.has_value()) return "none";
    EXPECT_EQ(status.error().code, ErrorCode::Corrupt);
    return status.error().message;
  }

  PagePool pool_;
};

TEST_F(PagePoolInvariants, NameAPageInUseThatNeverWentOut) {
  PagePoolPeer::set_state(pool_, 3, PageState::Open);
  EXPECT_EQ(broken_rule(), "page pool: a page that was never handed out is in use");
}

TEST_F(PagePoolInvariants, NameWrongCounts) {
  PagePoolPeer::set_count(pool_, PageState::Sealed, 2);
  EXPECT_EQ(broken_rule(), "page pool: the counts per state are wrong");
}

TEST_F(PagePoolInvariants, NameAFreePageThatIsNowhere) {
  PagePoolPeer::set_ring_count(pool_, 0);
  EXPECT_EQ(broken_rule(), "page pool: the free pages are not those in the ring and the fresh ones");
}

TEST_F(PagePoolInvariants, NameAPageOfAnotherPoolInTheRing) {
  PagePoolPeer::set_ring(pool_, 0, PageId{4});
  EXPECT_EQ(broken_rule(), "page pool: the ring holds a page of another pool");
}

TEST_F(PagePoolInvariants, NameAPageThatIsInTheRingTwice) {
  PagePoolPeer::set_fresh(pool_, 4);
  PagePoolPeer::set_ring(pool_, 1, PageId{2});
  PagePoolPeer::set_ring_count(pool_, 2);
  EXPECT_EQ(broken_rule(), "page pool: a page is in the ring twice");
}

TEST_F(PagePoolInvariants, NameAPageInTheRingThatIsNotFree) {
  PagePoolPeer::set_ring(pool_, 0, PageId{1});
  EXPECT_EQ(broken_rule(), "page pool: the ring holds a page that is not free");
}

TEST_F(PagePoolInvariants, NameOwnersOfAPageThatCannotHaveAny) {
  for (const std::uint32_t index : {1U, 2U, 3U}) {  // sealed, free, never used
    PagePoolPeer::set_extra_owners(pool_, index, 1);
    EXPECT_EQ(broken_rule(), "page pool: a page has owners that cannot have any");
    PagePoolPeer::set_extra_owners(pool_, index, 0);
  }
  pool_.fence(pages_of({0}));
  EXPECT_EQ(broken_rule(), "none");
  PagePoolPeer::set_extra_owners(pool_, 0, 1);
  EXPECT_EQ(broken_rule(), "page pool: a page has owners that cannot have any");
}

TEST_F(PagePoolInvariants, NameAFreshPageThatIsInTheRing) {
  PagePoolPeer::set_ring(pool_, 0, PageId{3});
  EXPECT_EQ(broken_rule(), "page pool: the ring holds a page that was never handed out");
}

}  // namespace
}  // namespace quire
