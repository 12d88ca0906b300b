// SPDX-License-Identifier: Apache-2.0
//
// Partial matches: a page that begins as the rest of a prompt does, found inside a run or among a few
// children.

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::kFourTokens;
using testing::TestTree;
using testing::Tokens;

TEST(PrefixTreePartial, TheNextPageOfTheRunIsFoundWhereTheMatchEndsInsideIt) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const PrefixTree::Match match = tree.match({1, 2, 3, 4, 5, 6, 99});
  EXPECT_EQ(match.page_count, 1U);
  EXPECT_EQ(match.partial_run, match.run);
  EXPECT_EQ(match.partial_page, 1U);
  EXPECT_EQ(match.partial_tokens, 2U);
  EXPECT_EQ(tree->partial_page(match), PageId{1});
}

TEST(PrefixTreePartial, APromptThatEndsInsideAPageMatchesItToItsEnd) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(tree.match({1, 2, 3, 4, 5, 6, 7}).partial_tokens, 3U);
  EXPECT_EQ(tree.match({1, 2}).partial_tokens, 2U);
}

TEST(PrefixTreePartial, APromptOfWholePagesLeavesNothingToMatch) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4, 5, 6, 7, 8});
  const PrefixTree::Match match = tree.match({1, 2, 3, 4});
  EXPECT_EQ(match.page_count, 1U);
  EXPECT_EQ(match.partial_tokens, 0U);
  EXPECT_TRUE(match.partial_run.is_none());
}

TEST(PrefixTreePartial, AChildsFirstPageIsFoundWhereTheMatchEndsAtARunsEnd) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4, 5, 6, 7, 8});
  tree.add({1, 2, 3, 4, 20, 21, 22, 23});
  const PrefixTree::Match match = tree.match({1, 2, 3, 4, 20, 21, 99, 99});
  EXPECT_EQ(match.page_count, 1U);
  EXPECT_EQ(match.partial_tokens, 2U);
  EXPECT_EQ(match.partial_page, 0U);
  EXPECT_EQ(tree->partial_page(match), PageId{2});
}

TEST(PrefixTreePartial, TheChildThatSharesMostIsChosen) {
  TestTree tree(kFourTokens);
  tree.add({1, 1, 1, 1});
  tree.add({1, 1, 2, 2});
  tree.add({1, 2, 2, 2});
  EXPECT_EQ(tree->partial_page(tree.match({1, 1, 1})), PageId{0});
  EXPECT_EQ(tree->partial_page(tree.match({1, 1, 2})), PageId{1});
  EXPECT_EQ(tree->partial_page(tree.match({1, 2, 9})), PageId{2});
}

TEST(PrefixTreePartial, OfEqualChildrenTheMostRecentlyUsedIsChosen) {
  TestTree tree(kFourTokens);
  tree.add({1, 1, 1, 1});
  tree.add({1, 1, 2, 2});
  EXPECT_EQ(tree->partial_page(tree.match({1, 1, 9})), PageId{1});
  tree.pin({1, 1, 1, 1}).reset();
  EXPECT_EQ(tree->partial_page(tree.match({1, 1, 9})), PageId{0});
}

TEST(PrefixTreePartial, OnlyTheFourMostRecentlyUsedChildrenAreLookedAt) {
  TestTree tree(kFourTokens);
  tree.add({1, 1, 1, 1});
  for (const TokenId other : {2, 3, 4, 5}) tree.add({other, other, other, other});
  EXPECT_EQ(tree.match({1, 1, 9}).partial_tokens, 0U);
  tree.pin({1, 1, 1, 1}).reset();
  EXPECT_EQ(tree.match({1, 1, 9}).partial_tokens, 2U);
}

TEST(PrefixTreePartial, TheRestOfALongerPromptIsComparedOnePageLong) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4});
  EXPECT_EQ(tree.match({1, 2, 3, 9, 1, 2, 3, 4}).partial_tokens, 3U);
}

TEST(PrefixTreePartial, PagesOfOneTokenHaveNoParts) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10});
  tree.add({1, 2, 3});
  EXPECT_EQ(tree.match({1, 9}).partial_tokens, 0U);
  EXPECT_EQ(tree.match({9}).partial_tokens, 0U);
}

TEST(PrefixTreePartial, ASplitKeepsTheChildrensOrder) {
  TestTree tree(kFourTokens);
  tree.add({1, 1, 1, 1, 5, 5, 5, 5});
  tree.add({1, 1, 2, 2});
  // Inserting from the root splits the older child; that is no use, so the other one stays in front.
  PrefixTree::Pin pin = tree->pin(tree.match({}));
  tree.extend(pin, {.tokens = {1, 1, 1, 1}, .extra_keys = {}}, 50);
  EXPECT_EQ(tree->run_count(), 3U);
  EXPECT_EQ(tree->partial_page(tree.match({1, 1, 9})), PageId{2});
}

TEST(PrefixTreePartialDeathTest, ThePageOfAnOutdatedMatchStopsTheProgram) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4});
  const PrefixTree::Match match = tree.match({1, 2});
  tree.add({5, 6, 7, 8});
  EXPECT_DEATH(static_cast<void>(tree->partial_page(match)), "the tree has changed since this match");
  EXPECT_DEATH(static_cast<void>(tree->pin_with_partial(match)), "the tree has changed since this match");
}

}  // namespace
}  // namespace quire
