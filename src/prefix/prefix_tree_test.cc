// SPDX-License-Identifier: Apache-2.0
//
// What a match finds and leaves alone, what a split does, and what the tree tells about itself.
#include "prefix/prefix_tree.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quire/policy.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::kFourTokens;
using testing::kOneToken;
using testing::Pages;
using testing::TestTree;
using testing::token_range;
using testing::Tokens;

// Creation

TEST(PrefixTree, PagesWithoutTokensAreRefused) {
  const std::unique_ptr<Policy> policy = *make_policy("lru");
  const auto tree = PrefixTree::create({.page_tokens = 0, .page_count_max = 10}, *policy, nullptr);
  ASSERT_FALSE(tree.has_value());
  EXPECT_EQ(tree.error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(tree.error().message, "page_tokens is 0: a page holds 1 to 1048576 tokens; 16 is usual");
}

TEST(PrefixTree, MorePagesThanRunIdsAreRefused) {
  const std::unique_ptr<Policy> policy = *make_policy("lru");
  const auto tree = PrefixTree::create({.page_tokens = 16, .page_count_max = 1U << 31U}, *policy, nullptr);
  ASSERT_FALSE(tree.has_value());
  EXPECT_EQ(tree.error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(tree.error().message,
            "2147483648 pages: one prefix tree holds at most 2147483647; use more tokens per page");
}

TEST(PrefixTree, MoreTokensThanAnIndexAddressesAreRefused) {
  const std::unique_ptr<Policy> policy = *make_policy("lru");
  const auto tree = PrefixTree::create({.page_tokens = 64, .page_count_max = 1U << 30U}, *policy, nullptr);
  ASSERT_FALSE(tree.has_value());
  EXPECT_EQ(tree.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(tree.error().message.find("one prefix tree addresses 32 GiB"), std::string::npos) << tree.error().message;
}

TEST(PrefixTree, ATreeWithoutRoomForPagesIsATreeThatMatchesNothing) {
  TestTree tree({.page_tokens = 4, .page_count_max = 0});
  EXPECT_EQ(tree.match({1, 2, 3, 4, 5}).page_count, 0U);
  EXPECT_EQ(tree.evict(1), Pages{});
  EXPECT_EQ(tree.broken_rule(), "");
}

// Match

TEST(PrefixTree, AnEmptyTreeMatchesTheRootAndNoPage) {
  const TestTree tree(kFourTokens);
  const PrefixTree::Match match = tree.match({1, 2, 3, 4});
  EXPECT_EQ(match.run, tree.root());
  EXPECT_EQ(match.page_count, 0U);
  EXPECT_EQ(match.pages_in_run, 0U);
  EXPECT_EQ(match.partial_tokens, 0U);
  EXPECT_TRUE(match.partial_run.is_none());
}

TEST(PrefixTree, NoTokensMatchNoPage) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4});
  EXPECT_EQ(tree.match({}).page_count, 0U);
  EXPECT_EQ(tree.match({}).run, tree.root());
}

TEST(PrefixTree, MatchGivesTheWholePagesOfTheLongestKnownPrefix) {
  TestTree tree(kFourTokens);
  tree.add(token_range(0, 12));
  EXPECT_EQ(tree.pages_of(token_range(0, 12)), (Pages{0, 1, 2}));
  EXPECT_EQ(tree.pages_of(token_range(0, 11)), (Pages{0, 1}));
  EXPECT_EQ(tree.pages_of(token_range(0, 40)), (Pages{0, 1, 2}));
}

TEST(PrefixTree, MatchStopsAtTheFirstUnknownPage) {
  TestTree tree(kFourTokens);
  tree.add(token_range(0, 12));
  Tokens tokens = token_range(0, 12);
  tokens[7] = 99;
  EXPECT_EQ(tree.pages_of(tokens), (Pages{0}));
}

TEST(PrefixTree, MatchWalksThroughAllTheRunsOfAPath) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10, .whole_runs = true});
  tree.add({1, 2});
  tree.add({1, 2, 3});
  tree.add({1, 2, 3, 4, 5});
  EXPECT_EQ(tree->run_count(), 3U);
  EXPECT_EQ(tree.pages_of({1, 2, 3, 4, 5, 6}), (Pages{0, 1, 2, 3, 4}));
  EXPECT_EQ(tree.pages_of({1, 2, 3, 4}), (Pages{0, 1, 2, 3}));
}

TEST(PrefixTree, MatchChoosesAmongManyChildren) {
  TestTree tree(kOneToken);
  for (TokenId child = 10; child < 60; ++child) tree.add({1, child});
  for (TokenId child = 10; child < 60; ++child) {
    EXPECT_EQ(tree.pages_of({1, child}), (Pages{0, static_cast<std::uint32_t>(child) - 9}));
  }
  EXPECT_EQ(tree.pages_of({1, 60}), (Pages{0}));
}

TEST(PrefixTree, TokensThatDifferInsideAPageDoNotShareIt) {
  TestTree tree(kFourTokens);
  tree.add({1, 2, 3, 4, 5, 6, 7, 8});
  tree.add({1, 9, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(tree.pages_of({1, 2, 3, 4, 5, 6, 7, 8}), (Pages{0, 1}));
  EXPECT_EQ(tree.pages_of({1, 9, 3, 4, 5, 6, 7, 8}), (Pages{2, 3}));
}

TEST(PrefixTree, ATokenMayHaveAnyValueFromZeroToTheLargest) {
  TestTree tree(kOneToken);
  tree.add({0, INT32_MAX, 0});
  EXPECT_EQ(tree.pages_of({0, INT32_MAX, 0}), (Pages{0, 1, 2}));
}

TEST(PrefixTree, MatchChangesNothing) {
  TestTree tree({.page_tokens = 2, .page_count_max = 100});
  tree.add({1, 2, 3, 4, 5, 6});
  tree.add({1, 2, 3, 4, 7, 8});
  tree.add({1, 2, 9, 9});
  const PrefixTree::Pin pin = tree.pin({1, 2, 9, 9});
  const std::string before = tree.dump();
  const std::optional<RunId> victim = tree.policy().next_victim();
  for (const Tokens& tokens : {Tokens{1, 2}, Tokens{1, 2, 3, 4}, Tokens{1, 2, 3, 4, 5, 6}, Tokens{1, 2, 3},
                               Tokens{1, 2, 9, 8}, Tokens{5}, Tokens{}}) {
    static_cast<void>(tree.match(tokens));
    EXPECT_EQ(tree.dump(), before);
  }
  EXPECT_EQ(tree.policy().next_victim(), victim);
}

TEST(PrefixTree, AMatchInsideARunDoesNotSplitIt) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  const PrefixTree::Match match = tree.match({1, 2, 9});
  EXPECT_EQ(match.page_count, 2U);
  EXPECT_EQ(match.pages_in_run, 2U);
  EXPECT_EQ(tree->run_count(), 1U);
}

TEST(PrefixTree, TheSameMatchCanBeUsedTwiceWhenTheFirstUseChangedNothing) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  const PrefixTree::Match match = tree.match({1, 2});
  const PrefixTree::Pin first = tree->pin(match);
  const PrefixTree::Pin second = tree->pin(match);
  EXPECT_EQ(first.run(), second.run());
}

// Pages of a match

TEST(PrefixTree, PagesCanBeCopiedFromAnyPositionOfTheMatch) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10, .whole_runs = true});
  tree.add({1, 2});
  tree.add({1, 2, 3, 4});
  tree.add({1, 2, 3, 4, 5});
  const PrefixTree::Match match = tree.match({1, 2, 3, 4, 5});
  for (std::uint32_t first = 0; first <= 5; ++first) {
    std::vector<PageId> pages(5 - first);
    tree->copy_pages(match, first, pages);
    for (std::uint32_t i = 0; i < pages.size(); ++i) EXPECT_EQ(pages[i].value, first + i);
  }
}

TEST(PrefixTreeDeathTest, CopyingPagesNeedsRoomForAllOfThem) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  std::vector<PageId> pages(1);
  EXPECT_DEATH(tree->copy_pages(tree.match({1, 2, 3}), 1, pages), "no room for the match's pages");
}

// A match is good until the tree changes.

TEST(PrefixTreeDeathTest, AMatchFromBeforeAnInsertStopsTheProgram) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  const PrefixTree::Match match = tree.match({1, 2});
  tree.add({3});
  EXPECT_DEATH(static_cast<void>(tree->pin(match)), "the tree has changed since this match");
}

TEST(PrefixTreeDeathTest, AMatchFromBeforeAnEvictionStopsTheProgram) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  const PrefixTree::Match match = tree.match({1, 2});
  tree.evict(1);
  EXPECT_DEATH(static_cast<void>(tree->pin(match)), "the tree has changed since this match");
  EXPECT_DEATH(static_cast<void>(tree->soft_pin(match)), "the tree has changed since this match");
  std::vector<PageId> pages(2);
  EXPECT_DEATH(tree->copy_pages(match, 0, pages), "the tree has changed since this match");
}

TEST(PrefixTreeDeathTest, AMatchFromBeforeASplitStopsTheProgram) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  const PrefixTree::Match match = tree.match({1, 2});
  const PrefixTree::Pin pin = tree.pin({1});
  EXPECT_DEATH(static_cast<void>(tree->pin(match)), "the tree has changed since this match");
}

TEST(PrefixTreeDeathTest, AMatchOfARemovedKeySpaceStopsTheProgram) {
  TestTree tree(kOneToken);
  const PrefixTree::Match match = tree.match({1, 2});
  tree->remove_root(tree.root());
  EXPECT_DEATH(static_cast<void>(tree->pin(match)), "the tree has changed since this match");
}

// Splits

TEST(PrefixTree, PinningInsideARunSplitsItThere) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  const PrefixTree::Pin pin = tree.pin({1, 2, 9});
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3 4: 2 3\n");
}

TEST(PrefixTree, InsertingInsideARunSplitsItThere) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  tree.add({1, 2, 9});
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3 4: 2 3\n"
            "  9: 4\n");
}

TEST(PrefixTree, TheOldIdentityKeepsTheSuffixOfASplit) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  const RunId whole = tree.match({1, 2, 3, 4}).run;
  const PrefixTree::Pin pin = tree.pin({1, 2});
  EXPECT_NE(pin.run(), whole);
  EXPECT_EQ(tree.match({1, 2, 3, 4}).run, whole);
  EXPECT_EQ(tree->view(whole).parent, pin.run());
  EXPECT_EQ(tree->view(whole).first_page, 2U);
}

TEST(PrefixTree, ASplitKeepsTheChildrenWithTheSuffix) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  tree.add({1, 2, 3, 4, 5});
  tree.add({1, 2, 3, 4, 6});
  const PrefixTree::Pin pin = tree.pin({1, 2});
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3 4: 2 3\n"
            "    5: 4\n"
            "    6: 5\n");
}

TEST(PrefixTree, ASplitRunIsStillFoundAmongItsSiblings) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({4, 5, 6});
  tree.add({7, 8, 9});
  const PrefixTree::Pin pin = tree.pin({4, 5});
  EXPECT_EQ(tree.pages_of({1, 2, 3}), (Pages{0, 1, 2}));
  EXPECT_EQ(tree.pages_of({4, 5, 6}), (Pages{3, 4, 5}));
  EXPECT_EQ(tree.pages_of({7, 8, 9}), (Pages{6, 7, 8}));
}

TEST(PrefixTree, ARunCanBeSplitAtEveryPage) {
  for (std::uint32_t at = 1; at < 20; ++at) {
    TestTree tree({.page_tokens = 2, .page_count_max = 20});
    tree.add(token_range(0, 40));
    const PrefixTree::Pin pin = tree.pin(token_range(0, static_cast<TokenId>(2 * at)));
    Pages all;
    for (std::uint32_t page = 0; page < 20; ++page) all.push_back(page);
    EXPECT_EQ(tree.pages_of(token_range(0, 40)), all);
    EXPECT_EQ(tree->end_page(pin.run()), at);
    EXPECT_EQ(tree->run_count(), 2U);
  }
}

// Observers

TEST(PrefixTree, AViewTellsEverythingAboutARun) {
  TestTree tree({.page_tokens = 2, .page_count_max = 10});
  tree.add({1, 2, 3, 4});
  const PrefixTree::Pin pin = tree.insert({1, 2, 3, 4, 5, 6});
  const PrefixTree::Pin other = tree.insert({1, 2, 7, 8});
  const RunView run = tree->view(other.run());
  EXPECT_EQ(run.run, other.run());
  EXPECT_EQ(tree->view(run.parent).parent, tree.root());
  EXPECT_EQ(run.first_page, 1U);
  EXPECT_EQ(run.pin_count, 1U);
  EXPECT_EQ(run.soft_pin_count, 0U);
  EXPECT_EQ(run.child_count, 0U);
  EXPECT_EQ(Tokens(run.tokens.begin(), run.tokens.end()), (Tokens{7, 8}));
  ASSERT_EQ(run.pages.size(), 1U);
  EXPECT_EQ(run.pages[0], PageId{3});
  EXPECT_EQ(tree->view(run.parent).child_count, 2U);
  EXPECT_EQ(tree->view(run.parent).pin_count, 2U);
}

TEST(PrefixTree, AVisitSeesParentsBeforeTheirChildrenWithTheirDepth) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({1, 2, 4});
  tree.add({1, 5});
  tree.add({6});
  std::vector<std::uint32_t> depth_of(10, UINT32_MAX);
  std::uint32_t visited = 0;
  tree->for_each_run(tree.root(), [&](const RunView& run) {
    ++visited;
    depth_of[run.run.value] = run.depth;
    if (run.parent.is_none()) {
      EXPECT_EQ(run.depth, 0U);
    } else {
      EXPECT_EQ(run.depth, depth_of[run.parent.value] + 1);
    }
  });
  EXPECT_EQ(visited, 1 + tree->run_count());
}

TEST(PrefixTree, CountsAreExactAfterEachKindOfChange) {
  TestTree tree(kOneToken);
  const auto counts = [&] {
    return std::vector{tree->page_count(), tree->evictable_pages(), tree->pinned_pages(), tree->run_count()};
  };
  EXPECT_EQ(counts(), (std::vector<std::uint32_t>{0, 0, 0, 0}));
  PrefixTree::Pin pin = tree.insert({1, 2, 3, 4});
  EXPECT_EQ(counts(), (std::vector<std::uint32_t>{4, 0, 4, 1}));
  pin.reset();
  EXPECT_EQ(counts(), (std::vector<std::uint32_t>{4, 4, 0, 1}));
  pin = tree.pin({1, 2, 3});
  EXPECT_EQ(counts(), (std::vector<std::uint32_t>{4, 1, 3, 2}));
  EXPECT_EQ(tree.evict(2).size(), 1U);
  EXPECT_EQ(counts(), (std::vector<std::uint32_t>{3, 0, 3, 1}));
  pin.reset();
  EXPECT_EQ(tree.evict(2).size(), 2U);
  EXPECT_EQ(counts(), (std::vector<std::uint32_t>{1, 1, 0, 1}));
  EXPECT_EQ(tree.evict(2).size(), 1U);
  EXPECT_EQ(counts(), (std::vector<std::uint32_t>{0, 0, 0, 0}));
}

// The log

TEST(PrefixTree, TheLogSaysWhatCameAndWhatLeft) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({1, 2, 4, 5});
  tree.evict(2);
  tree.evict_all(tree.root());
  EXPECT_EQ(tree.log(), (std::vector<std::string>{"sealed 1 0 3", "sealed 3 2 2", "evicted 1 2 1", "evicted 3 3 1",
                                                  "dropped 3 2 1", "dropped 2 0 2"}));
}

TEST(PrefixTree, GrowthInPlaceIsLoggedFromWhereItBegan) {
  TestTree tree({.page_tokens = 4, .page_count_max = 10});
  PrefixTree::Pin pin = tree.insert(token_range(0, 4));
  tree.extend(pin, {.tokens = token_range(0, 12), .extra_keys = {}}, 50);
  EXPECT_EQ(tree.log(), (std::vector<std::string>{"sealed 1 0 1", "sealed 1 1 2"}));
}

// Growing the tree

TEST(PrefixTree, AGrownTreeKeepsItsRunsAndTakesMore) {
  TestTree tree({.page_tokens = 1, .page_count_max = 3});
  tree.add({1, 2});
  tree.add({3});
  ASSERT_TRUE(tree->grow(1000).has_value());
  EXPECT_EQ(tree.broken_rule(), "");
  for (TokenId token = 100; token < 600; ++token) tree.add({token});
  EXPECT_EQ(tree.pages_of({1, 2}), (Pages{0, 1}));
  EXPECT_EQ(tree.pages_of({3}), (Pages{2}));
  EXPECT_EQ(tree.pages_of({599}), (Pages{502}));
  EXPECT_EQ(tree->page_count(), 503U);
}

TEST(PrefixTree, GrowingBeyondTheLimitIsRefusedAndChangesNothing) {
  TestTree tree({.page_tokens = 16, .page_count_max = 3});
  tree.add(token_range(0, 16));
  const std::string before = tree.dump();
  EXPECT_EQ(tree->grow(UINT32_MAX).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(tree->grow(1U << 30U).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(tree.dump(), before);
  EXPECT_EQ(tree.broken_rule(), "");
}

TEST(PrefixTree, GrowingToLessKeepsTheRoomThereWas) {
  TestTree tree({.page_tokens = 1, .page_count_max = 8});
  ASSERT_TRUE(tree->grow(2).has_value());
  tree.add(token_range(0, 8));
  EXPECT_EQ(tree->page_count(), 8U);
}

TEST(PrefixTreeDeathTest, MorePagesThanTheTreeWasMadeForStopTheProgram) {
  TestTree tree({.page_tokens = 1, .page_count_max = 3});
  tree.add({1, 2});
  EXPECT_DEATH(tree.add({1, 2, 3, 4}), "more pages than the tree was made for");
}

}  // namespace
}  // namespace quire
