// SPDX-License-Identifier: Apache-2.0
#include "base/index_lists.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using Indices = std::vector<std::uint32_t>;

Indices elements(const IndexLists& list) {
  Indices found;
  for (std::uint32_t i = list.front(); i != IndexLists::kNone; i = list.next(i)) found.push_back(i);
  EXPECT_EQ(found.size(), list.size());
  return found;
}

class IndexListsTest : public ::testing::Test {
 protected:
  IndexListsTest() { EXPECT_TRUE(list_.reserve(10).has_value()); }

  IndexLists list_;
};

TEST_F(IndexListsTest, IsEmptyAtFirst) {
  EXPECT_EQ(list_.size(), 0U);
  EXPECT_EQ(list_.front(), IndexLists::kNone);
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_FALSE(list_.contains(i));
}

TEST_F(IndexListsTest, KeepsTheOrderOfPushing) {
  for (const std::uint32_t i : {3U, 0U, 9U}) list_.push_back(i);
  EXPECT_EQ(elements(list_), (Indices{3, 0, 9}));
  EXPECT_TRUE(list_.contains(0));
  EXPECT_FALSE(list_.contains(1));
}

TEST_F(IndexListsTest, WhatIsPushedToTheFrontIsTheFirst) {
  for (const std::uint32_t i : {3U, 0U, 9U}) list_.push_front(i);
  EXPECT_EQ(elements(list_), (Indices{9, 0, 3}));
  list_.remove(9);
  list_.push_back(9);
  EXPECT_EQ(elements(list_), (Indices{0, 3, 9}));
}

TEST(IndexListsWithSeveral, KeepThemApart) {
  IndexLists lists;
  ASSERT_TRUE(lists.reserve(10, 3).has_value());
  lists.push_back(4, 2);
  lists.push_back(5, 0);
  lists.push_back(6, 2);
  lists.insert_after(5, 7);
  EXPECT_EQ(lists.front(0), 5U);
  EXPECT_EQ(lists.front(1), IndexLists::kNone);
  EXPECT_EQ(lists.front(2), 4U);
  EXPECT_EQ(lists.next(4), 6U);
  EXPECT_EQ(lists.next(6), IndexLists::kNone);
  EXPECT_EQ(lists.next(5), 7U);
  lists.remove(4);
  lists.push_back(4, 1);
  EXPECT_EQ(lists.front(1), 4U);
  EXPECT_EQ(lists.front(2), 6U);
  EXPECT_EQ(lists.size(), 4U);
}

TEST(IndexListsWithSeveral, KeepTheirElementsWhenTheCapacityGrows) {
  IndexLists lists;
  ASSERT_TRUE(lists.reserve(4, 2).has_value());
  lists.push_back(3, 1);
  ASSERT_TRUE(lists.reserve(1'000, 2).has_value());
  lists.push_back(999, 1);
  EXPECT_EQ(lists.front(1), 3U);
  EXPECT_EQ(lists.next(3), 999U);
}

TEST(IndexListsWithSeveral, TakeManyAtOnceInTheirOrder) {
  struct Id {
    std::uint32_t value;
  };
  IndexLists lists;
  ASSERT_TRUE(lists.reserve(10, 2).has_value());
  lists.push_back_all(std::span<const Id>(), 1);
  EXPECT_EQ(lists.front(1), IndexLists::kNone);
  lists.push_back_all(std::span<const Id>(std::array{Id{7}, Id{2}}), 1);
  lists.push_back(0, 1);
  lists.push_back_all(std::span<const Id>(std::array{Id{9}}), 1);
  Indices found;
  for (std::uint32_t i = lists.front(1); i != IndexLists::kNone; i = lists.next(i)) found.push_back(i);
  EXPECT_EQ(found, (Indices{7, 2, 0, 9}));
  EXPECT_EQ(lists.size(), 4U);
  for (const std::uint32_t i : {2U, 9U, 7U, 0U}) lists.remove(i);
  EXPECT_EQ(lists.front(1), IndexLists::kNone);
  EXPECT_EQ(lists.front(0), IndexLists::kNone);
}

TEST_F(IndexListsTest, InsertsDirectlyBehindAnAnchor) {
  list_.push_back(1);
  list_.push_back(2);
  list_.insert_after(1, 5);
  list_.insert_after(2, 6);
  EXPECT_EQ(elements(list_), (Indices{1, 5, 2, 6}));
  list_.push_back(7);
  EXPECT_EQ(elements(list_), (Indices{1, 5, 2, 6, 7}));
}

TEST_F(IndexListsTest, RemovesFromTheFrontTheMiddleAndTheEnd) {
  for (std::uint32_t i = 0; i < 5; ++i) list_.push_back(i);
  list_.remove(2);
  EXPECT_EQ(elements(list_), (Indices{0, 1, 3, 4}));
  list_.remove(0);
  EXPECT_EQ(elements(list_), (Indices{1, 3, 4}));
  list_.remove(4);
  EXPECT_EQ(elements(list_), (Indices{1, 3}));
}

TEST_F(IndexListsTest, WhatWasRemovedCanComeBack) {
  list_.push_back(0);
  list_.push_back(1);
  list_.remove(0);
  list_.push_back(0);
  EXPECT_EQ(elements(list_), (Indices{1, 0}));
}

TEST_F(IndexListsTest, RemovingTheOnlyElementLeavesAnEmptyList) {
  list_.push_back(4);
  list_.remove(4);
  EXPECT_EQ(elements(list_), Indices{});
  list_.push_back(4);
  EXPECT_EQ(elements(list_), (Indices{4}));
}

TEST_F(IndexListsTest, ReservingMoreKeepsTheElements) {
  list_.push_back(9);
  list_.push_back(0);
  ASSERT_TRUE(list_.reserve(1'000'000).has_value());
  EXPECT_EQ(elements(list_), (Indices{9, 0}));
  list_.push_back(999'999);
  EXPECT_EQ(elements(list_), (Indices{9, 0, 999'999}));
}

TEST_F(IndexListsTest, ReservingLessKeepsTheElementsAndTheRoom) {
  list_.push_back(9);
  ASSERT_TRUE(list_.reserve(1).has_value());
  EXPECT_EQ(elements(list_), (Indices{9}));
  list_.push_back(8);
  EXPECT_EQ(elements(list_), (Indices{9, 8}));
}

TEST_F(IndexListsTest, AgreesWithAVectorAfterEveryStep) {
  testing::Random random(1);
  Indices twin;
  for (std::uint32_t step = 0; step < 10'000; ++step) {
    const std::uint32_t index = random.below(10);
    const auto found = std::ranges::find(twin, index);
    if (found != twin.end()) {
      list_.remove(index);
      twin.erase(found);
    } else if (twin.empty() || random.below(2) == 0) {
      list_.push_back(index);
      twin.push_back(index);
    } else {
      const std::uint32_t position = random.below(static_cast<std::uint32_t>(twin.size()));
      list_.insert_after(twin[position], index);
      twin.insert(twin.begin() + position + 1, index);
    }
    ASSERT_EQ(elements(list_), twin);
  }
}

using IndexListDeathTest = IndexListsTest;

TEST_F(IndexListDeathTest, PushingAnElementTwiceStopsTheProgram) {
  list_.push_back(1);
  EXPECT_DEATH(list_.push_back(1), "inserting what is already in a list");
  list_.push_back(2);
  EXPECT_DEATH(list_.insert_after(1, 2), "inserting what is already in a list");
}

TEST_F(IndexListDeathTest, RemovingWhatIsNotThereStopsTheProgram) {
  EXPECT_DEATH(list_.remove(1), "removing what is in no list");
}

}  // namespace
}  // namespace quire
