// SPDX-License-Identifier: Apache-2.0
#include "prefix/extra_key_lists.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::extra_key;
using Keys = std::vector<ExtraKey>;

class ExtraKeyListsTest : public ::testing::Test {
 protected:
  ExtraKeyListsTest() { EXPECT_TRUE(lists_.reserve(64).has_value()); }

  [[nodiscard]] std::uint32_t make_list(const Keys& keys, TokenRange range) {
    std::uint32_t list = kNoExtraKey;
    lists_.append(list, keys, range);
    return list;
  }

  [[nodiscard]] Keys keys_of(std::uint32_t list) const {
    Keys keys;
    lists_.for_each(list, [&](const ExtraKey& key) { keys.push_back(key); });
    return keys;
  }

  ExtraKeyLists lists_;
};

Keys overlapping_keys(const Keys& keys, TokenRange range) {
  const auto found = overlapping(keys, range);
  return {found.begin(), found.end()};
}

const ExtraKey kFirst = extra_key(2, 6, 1);
const ExtraKey kSecond = extra_key(6, 7, 2);
const ExtraKey kThird = extra_key(10, 14, 3);
const Keys kAll = {kFirst, kSecond, kThird};

// Overlap

TEST(ExtraKeyOverlap, AnItemThatEndsWhereTheRangeBeginsIsOutside) {
  EXPECT_EQ(overlapping_keys(kAll, {6, 8}), (Keys{kSecond}));
  EXPECT_EQ(overlapping_keys(kAll, {7, 10}), Keys{});
}

TEST(ExtraKeyOverlap, AnItemThatBeginsWhereTheRangeEndsIsOutside) {
  EXPECT_EQ(overlapping_keys(kAll, {0, 2}), Keys{});
  EXPECT_EQ(overlapping_keys(kAll, {0, 3}), (Keys{kFirst}));
}

TEST(ExtraKeyOverlap, AnItemThatCoversTheRangeIsInside) {
  EXPECT_EQ(overlapping_keys(kAll, {11, 12}), (Keys{kThird}));
}

TEST(ExtraKeyOverlap, AllItemsInTheRangeAreInside) {
  EXPECT_EQ(overlapping_keys(kAll, {0, 100}), kAll);
  EXPECT_EQ(overlapping_keys(kAll, {5, 11}), kAll);
}

TEST(ExtraKeyOverlap, NoItemsOverlapNothing) {
  EXPECT_EQ(overlapping_keys({}, {0, 100}), Keys{});
  EXPECT_EQ(overlapping_keys(kAll, {14, 100}), Keys{});
}

// Append

TEST_F(ExtraKeyListsTest, AppendingTakesTheItemsOfTheRange) {
  EXPECT_EQ(keys_of(make_list(kAll, {0, 8})), (Keys{kFirst, kSecond}));
  EXPECT_EQ(lists_.used_count(), 2U);
}

TEST_F(ExtraKeyListsTest, AppendingARangeWithoutItemsLeavesTheListEmpty) {
  EXPECT_EQ(make_list(kAll, {7, 10}), kNoExtraKey);
  EXPECT_EQ(lists_.used_count(), 0U);
}

TEST_F(ExtraKeyListsTest, AnItemThatCrossesFromOneAppendedRangeToTheNextIsListedOnce) {
  std::uint32_t list = kNoExtraKey;
  lists_.append(list, kAll, {0, 4});
  lists_.append(list, kAll, {4, 12});
  lists_.append(list, kAll, {12, 16});
  EXPECT_EQ(keys_of(list), kAll);
  EXPECT_EQ(lists_.used_count(), 3U);
}

// Split

TEST_F(ExtraKeyListsTest, ASplitMovesWhatLiesBeforeItToThePrefix) {
  std::uint32_t suffix = make_list(kAll, {0, 16});
  std::uint32_t prefix = kNoExtraKey;
  lists_.split(suffix, prefix, 8);
  EXPECT_EQ(keys_of(prefix), (Keys{kFirst, kSecond}));
  EXPECT_EQ(keys_of(suffix), (Keys{kThird}));
  EXPECT_EQ(lists_.used_count(), 3U);
}

TEST_F(ExtraKeyListsTest, AnItemThatCrossesTheSplitStandsInBothLists) {
  std::uint32_t suffix = make_list(kAll, {0, 16});
  std::uint32_t prefix = kNoExtraKey;
  lists_.split(suffix, prefix, 4);
  EXPECT_EQ(keys_of(prefix), (Keys{kFirst}));
  EXPECT_EQ(keys_of(suffix), kAll);
  EXPECT_EQ(lists_.used_count(), 4U);
}

TEST_F(ExtraKeyListsTest, AnItemThatEndsAtTheSplitStaysInThePrefix) {
  std::uint32_t suffix = make_list(kAll, {0, 16});
  std::uint32_t prefix = kNoExtraKey;
  lists_.split(suffix, prefix, 6);
  EXPECT_EQ(keys_of(prefix), (Keys{kFirst}));
  EXPECT_EQ(keys_of(suffix), (Keys{kSecond, kThird}));
}

TEST_F(ExtraKeyListsTest, ASplitBeforeAllItemsLeavesThePrefixEmpty) {
  std::uint32_t suffix = make_list(kAll, {0, 16});
  std::uint32_t prefix = kNoExtraKey;
  lists_.split(suffix, prefix, 2);
  EXPECT_EQ(prefix, kNoExtraKey);
  EXPECT_EQ(keys_of(suffix), kAll);
}

TEST_F(ExtraKeyListsTest, ASplitAfterAllItemsLeavesTheSuffixEmpty) {
  std::uint32_t suffix = make_list(kAll, {0, 16});
  std::uint32_t prefix = kNoExtraKey;
  lists_.split(suffix, prefix, 14);
  EXPECT_EQ(keys_of(prefix), kAll);
  EXPECT_EQ(suffix, kNoExtraKey);
}

// Trim

TEST_F(ExtraKeyListsTest, TrimmingDropsWhatBeginsAtThePositionOrLater) {
  std::uint32_t list = make_list(kAll, {0, 16});
  lists_.trim(list, 10);
  EXPECT_EQ(keys_of(list), (Keys{kFirst, kSecond}));
  EXPECT_EQ(lists_.used_count(), 2U);
}

TEST_F(ExtraKeyListsTest, TrimmingKeepsAnItemThatCrossesThePosition) {
  std::uint32_t list = make_list(kAll, {0, 16});
  lists_.trim(list, 4);
  EXPECT_EQ(keys_of(list), (Keys{kFirst}));
}

TEST_F(ExtraKeyListsTest, TrimmingToNothingEmptiesTheList) {
  std::uint32_t list = make_list(kAll, {0, 16});
  lists_.trim(list, 0);
  EXPECT_EQ(list, kNoExtraKey);
  EXPECT_EQ(lists_.used_count(), 0U);
}

TEST_F(ExtraKeyListsTest, WhatWasTrimmedIsUsedAgain) {
  for (std::uint32_t round = 0; round < 100; ++round) {
    std::uint32_t list = make_list(kAll, {0, 16});
    EXPECT_EQ(keys_of(list), kAll);
    lists_.trim(list, 0);
  }
  EXPECT_EQ(lists_.used_count(), 0U);
}

TEST_F(ExtraKeyListsTest, TwoListsDoNotMeet) {
  std::uint32_t a = make_list(kAll, {0, 8});
  const std::uint32_t b = make_list(kAll, {0, 16});
  lists_.trim(a, 0);
  EXPECT_EQ(keys_of(b), kAll);
}

// Comparison

TEST_F(ExtraKeyListsTest, EqualItemsDifferNowhere) {
  const std::uint32_t list = make_list(kAll, {0, 16});
  EXPECT_EQ(lists_.first_difference(list, kAll, {0, 16}), 16U);
  EXPECT_EQ(lists_.first_difference(list, kAll, {4, 8}), 8U);
  EXPECT_EQ(lists_.first_difference(kNoExtraKey, {}, {0, 16}), 16U);
}

TEST_F(ExtraKeyListsTest, AnotherItemAtTheSamePlaceDiffersFromItsBeginning) {
  const std::uint32_t list = make_list(kAll, {0, 16});
  const Keys other = {kFirst, kSecond, extra_key(10, 14, 9)};
  EXPECT_EQ(lists_.first_difference(list, other, {0, 16}), 10U);
  EXPECT_EQ(lists_.first_difference(list, other, {0, 10}), 10U);
}

TEST_F(ExtraKeyListsTest, ALongerItemDiffersFromItsBeginning) {
  const std::uint32_t list = make_list(kAll, {0, 16});
  EXPECT_EQ(lists_.first_difference(list, Keys{extra_key(2, 5, 1), kSecond, kThird}, {0, 16}), 2U);
}

TEST_F(ExtraKeyListsTest, AnItemOnlyOneSideHasDiffersFromItsBeginning) {
  const std::uint32_t list = make_list(kAll, {0, 16});
  EXPECT_EQ(lists_.first_difference(list, Keys{kFirst, kThird}, {0, 16}), 6U);
  EXPECT_EQ(lists_.first_difference(list, {}, {0, 16}), 2U);
  EXPECT_EQ(lists_.first_difference(kNoExtraKey, kAll, {0, 16}), 2U);
  EXPECT_EQ(lists_.first_difference(list, Keys{extra_key(0, 1, 8), kFirst, kSecond, kThird}, {0, 16}), 0U);
}

TEST_F(ExtraKeyListsTest, ADifferenceThatBeganBeforeTheRangeIsOneFromTheRangesBeginning) {
  const std::uint32_t list = make_list(kAll, {0, 16});
  EXPECT_EQ(lists_.first_difference(list, Keys{extra_key(1, 6, 1), kSecond, kThird}, {4, 16}), 4U);
}

TEST_F(ExtraKeyListsTest, ItemsOutsideTheRangeDoNotMatter) {
  const std::uint32_t list = make_list(kAll, {0, 16});
  EXPECT_EQ(lists_.first_difference(list, Keys{kSecond}, {6, 10}), 10U);
  EXPECT_EQ(lists_.first_difference(list, Keys{extra_key(0, 6, 9), kSecond, extra_key(10, 11, 9)}, {6, 10}), 10U);
}

// Hashes

TEST_F(ExtraKeyListsTest, AListAndItsKeysFoldToTheSameHash) {
  const std::uint32_t list = make_list(kAll, {0, 16});
  for (const TokenRange range : {TokenRange{0, 16}, TokenRange{0, 4}, TokenRange{4, 8}, TokenRange{7, 10}}) {
    EXPECT_EQ(lists_.fold(42, list, range), ExtraKeyLists::fold(42, kAll, range));
  }
}

TEST_F(ExtraKeyListsTest, WithoutItemsTheHashIsTheSeed) {
  EXPECT_EQ(lists_.fold(42, kNoExtraKey, {0, 16}), 42U);
  EXPECT_EQ(ExtraKeyLists::fold(42, kAll, {7, 10}), 42U);
}

TEST_F(ExtraKeyListsTest, AnotherItemMakesAnotherHash) {
  EXPECT_NE(ExtraKeyLists::fold(42, kAll, {0, 16}),
            ExtraKeyLists::fold(42, Keys{kFirst, kSecond, extra_key(10, 14, 9)}, {0, 16}));
}

TEST(ExtraKeyListsDeathTest, MoreKeysThanTokensStopTheProgram) {
  ExtraKeyLists lists;
  ASSERT_TRUE(lists.reserve(2).has_value());
  std::uint32_t list = kNoExtraKey;
  EXPECT_DEATH(lists.append(list, kAll, {0, 16}), "more extra keys than tokens");
}

}  // namespace
}  // namespace quire
