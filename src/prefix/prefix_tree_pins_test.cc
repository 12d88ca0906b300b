// SPDX-License-Identifier: Apache-2.0
//
// Pins: what they keep, how they are counted, and what splits do to them.
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::kOneToken;
using testing::kWholeRuns;
using testing::Pages;
using testing::TestTree;

TEST(PrefixTreePins, APinnedPathIsNotEvicted) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin pin = tree.insert({1, 2});
  tree.add({3});
  EXPECT_EQ(tree.evict(10), (Pages{2}));
  EXPECT_EQ(tree.pages_of({1, 2}), (Pages{0, 1}));
}

TEST(PrefixTreePins, APathIsEvictableAgainWhenItsPinIsGone) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.insert({1, 2});
  EXPECT_EQ(tree.evict(10), Pages{});
  pin.reset();
  EXPECT_FALSE(pin);
  EXPECT_EQ(tree.evict(10), (Pages{0, 1}));
}

TEST(PrefixTreePins, APinEndsWithItsScope) {
  TestTree tree(kOneToken);
  {
    const PrefixTree::Pin pin = tree.insert({1, 2});
    EXPECT_EQ(tree->pinned_pages(), 2U);
  }
  EXPECT_EQ(tree->pinned_pages(), 0U);
}

TEST(PrefixTreePins, APinKeepsEverythingAboveIt) {
  TestTree tree(kWholeRuns);
  tree.add({1});
  tree.add({1, 2});
  const PrefixTree::Pin pin = tree.insert({1, 2, 3});
  EXPECT_EQ(tree->pinned_pages(), 3U);
  EXPECT_EQ(tree->evictable_pages(), 0U);
}

TEST(PrefixTreePins, APinKeepsNothingBelowIt) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  const PrefixTree::Pin pin = tree.pin({1, 2});
  EXPECT_EQ(tree->pinned_pages(), 2U);
  EXPECT_EQ(tree.evict(10), (Pages{2, 3}));
}

TEST(PrefixTreePins, TwoPinsOnAPathAreCountedOnceInTheSizes) {
  TestTree tree(kOneToken);
  PrefixTree::Pin first = tree.insert({1, 2});
  PrefixTree::Pin second = tree.pin({1, 2});
  EXPECT_EQ(tree->pinned_pages(), 2U);
  EXPECT_EQ(tree->view(first.run()).pin_count, 2U);
  first.reset();
  EXPECT_EQ(tree->pinned_pages(), 2U);
  second.reset();
  EXPECT_EQ(tree->pinned_pages(), 0U);
}

TEST(PrefixTreePins, ASharedPrefixIsPinnedUntilTheLastOfItsPinsIsGone) {
  TestTree tree(kOneToken);
  PrefixTree::Pin left = tree.insert({1, 2, 3});
  PrefixTree::Pin right = tree.insert({1, 2, 4, 5});
  EXPECT_EQ(tree->pinned_pages(), 5U);
  left.reset();
  EXPECT_EQ(tree->pinned_pages(), 4U);
  right.reset();
  EXPECT_EQ(tree->pinned_pages(), 0U);
}

TEST(PrefixTreePins, ARunCountsItsOwnPinsAndItsPinnedChildren) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin left = tree.insert({1, 2, 3});
  const PrefixTree::Pin right = tree.insert({1, 2, 4});
  const PrefixTree::Pin here = tree.pin({1, 2});
  const PrefixTree::Pin again = tree.pin({1, 2, 4});
  EXPECT_EQ(tree->view(here.run()).pin_count, 3U);
  EXPECT_EQ(tree->view(right.run()).pin_count, 2U);
  EXPECT_EQ(tree->view(tree.root()).pin_count, 1U);
}

TEST(PrefixTreePins, AClonedPinOutlivesItsOriginal) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.insert({1, 2});
  PrefixTree::Pin clone = tree->clone(pin);
  EXPECT_EQ(clone.run(), pin.run());
  pin.reset();
  EXPECT_EQ(tree.evict(10), Pages{});
  clone.reset();
  EXPECT_EQ(tree.evict(10), (Pages{0, 1}));
}

TEST(PrefixTreePins, AMovedPinIsGivenBackOnce) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.insert({1, 2});
  PrefixTree::Pin moved = std::move(pin);
  EXPECT_FALSE(pin);  // NOLINT(bugprone-use-after-move): what it is about
  EXPECT_TRUE(moved);
  pin.reset();
  EXPECT_EQ(tree->pinned_pages(), 2U);
  moved.reset();
  moved.reset();
  EXPECT_EQ(tree->pinned_pages(), 0U);
}

TEST(PrefixTreePins, AnAssignedPinGivesBackWhatItHeldInTheEnd) {
  TestTree tree(kOneToken);
  tree.add({1});
  tree.add({2, 3});
  {
    PrefixTree::Pin pin = tree.pin({1});
    pin = tree.pin({2, 3});
    EXPECT_EQ(tree->view(pin.run()).pages.size(), 2U);
  }
  EXPECT_EQ(tree->pinned_pages(), 0U);
}

TEST(PrefixTreePins, APinOnNothingKeepsTheKeySpace) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.pin({9});
  EXPECT_EQ(pin.run(), tree.root());
  EXPECT_FALSE(tree->is_empty(tree.root()));
  EXPECT_TRUE(tree->is_pinned(tree.root()));
  pin.reset();
  EXPECT_TRUE(tree->is_empty(tree.root()));
}

TEST(PrefixTreePins, SplittingAPinnedEdgeKeepsBothHalvesPinned) {
  TestTree tree(kOneToken);
  PrefixTree::Pin whole = tree.insert({1, 2, 3, 4});
  PrefixTree::Pin half = tree.pin({1, 2});
  EXPECT_EQ(tree->run_count(), 2U);
  EXPECT_EQ(tree->pinned_pages(), 4U);
  half.reset();
  EXPECT_EQ(tree->pinned_pages(), 4U);
  EXPECT_EQ(tree.evict(10), Pages{});
  whole.reset();
  EXPECT_EQ(tree->pinned_pages(), 0U);
}

TEST(PrefixTreePins, ThePrefixOfAPinnedEdgeIsPinnedOnceForTheSuffix) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin first = tree.insert({1, 2, 3, 4});
  const PrefixTree::Pin second = tree.pin({1, 2, 3, 4});
  tree.add({1, 2, 9});
  const RunId prefix = tree.match({1, 2}).run;
  EXPECT_EQ(tree->view(first.run()).pin_count, 2U);
  EXPECT_EQ(tree->view(prefix).pin_count, 1U);
}

TEST(PrefixTreePins, APinTakenBeforeASplitStillEndsWhereItEnded) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin pin = tree.insert({1, 2, 3, 4});
  tree.add({1, 2, 9});
  EXPECT_EQ(tree->end_page(pin.run()), 4U);
  tree.evict(10);
  EXPECT_EQ(tree.pages_of({1, 2, 3, 4}), (Pages{0, 1, 2, 3}));
}

TEST(PrefixTreePins, SplittingAnIdleEdgeToPinItsPrefixLeavesTheSuffixIdle) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  const PrefixTree::Pin half = tree.pin({1, 2});
  EXPECT_EQ(tree->pinned_pages(), 2U);
  EXPECT_EQ(tree->evictable_pages(), 2U);
  EXPECT_FALSE(tree->is_pinned(tree.match({1, 2, 3, 4}).run));
}

TEST(PrefixTreePins, PinningAPartialPageKeepsThatPageAndNothingBehindIt) {
  TestTree tree({.page_tokens = 4, .page_count_max = 10});
  tree.add({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  for (const bool is_first : {false, true}) {
    const PrefixTree::Match match = is_first ? tree.match({1, 2, 9}) : tree.match({1, 2, 3, 4, 5, 6, 9});
    ASSERT_EQ(match.partial_tokens, 2U);
    PrefixTree::PinnedMatch pinned = tree->pin_with_partial(match);
    EXPECT_EQ(tree->pinned_pages(), is_first ? 1U : 2U);
    EXPECT_EQ(tree->evictable_pages(), is_first ? 2U : 1U);
    pinned.path.reset();
    EXPECT_EQ(tree->pinned_pages(), is_first ? 1U : 2U);  // the page hangs on those before it
    pinned.partial.reset();
    EXPECT_EQ(tree->evictable_pages(), 3U);
  }
}

TEST(PrefixTreePinsDeathTest, CloningAnEmptyPinStopsTheProgram) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin pin;
  EXPECT_DEATH(static_cast<void>(tree->clone(pin)), "cloning an empty pin");
}

TEST(PrefixTreePinsDeathTest, CloningAPinOfAnotherTreeStopsTheProgram) {
  TestTree tree(kOneToken);
  TestTree other(kOneToken);
  const PrefixTree::Pin pin = other.insert({1});
  EXPECT_DEATH(static_cast<void>(tree->clone(pin)), "cloning an empty pin");
}

// Pins on parts of a pinned path.

TEST(PrefixTreePins, APinOnAPrefixKeepsItWhenTheLongerOneIsGone) {
  TestTree tree(kOneToken);
  PrefixTree::Pin whole = tree.insert({1, 2, 3, 4});
  const PrefixTree::Pin prefix = tree->pin_prefix(whole, 3);
  EXPECT_EQ(tree->end_page(prefix.run()), 3U);
  EXPECT_EQ(tree->end_page(whole.run()), 4U);
  EXPECT_EQ(tree->pinned_pages(), 4U);
  whole.reset();
  EXPECT_EQ(tree->pinned_pages(), 3U);
  EXPECT_EQ(tree.evict(10), (Pages{3}));
  EXPECT_EQ(tree.broken_rule(), "");
}

TEST(PrefixTreePins, APinOnAllOfAPathSplitsNothing) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin whole = tree.insert({1, 2, 3, 4});
  const PrefixTree::Pin again = tree->pin_prefix(whole, 4);
  EXPECT_EQ(again.run(), whole.run());
  EXPECT_EQ(tree->run_count(), 1U);
  EXPECT_EQ(tree->view(whole.run()).pin_count, 2U);
}

TEST(PrefixTreePins, APinOnNothingOfAPathIsOnItsRoot) {
  TestTree tree(kOneToken);
  PrefixTree::Pin whole = tree.insert({1, 2});
  const PrefixTree::Pin nothing = tree->pin_prefix(whole, 0);
  EXPECT_EQ(nothing.run(), tree.root());
  whole.reset();
  EXPECT_EQ(tree->pinned_pages(), 0U);
  const PrefixTree::Pin again = tree->pin_prefix(nothing, 0);
  EXPECT_EQ(again.run(), tree.root());
  EXPECT_EQ(tree.broken_rule(), "");
}

TEST(PrefixTreePins, APinOnAPrefixFindsItsRunAboveThePin) {
  TestTree tree(kWholeRuns);
  tree.add({1, 2});
  tree.add({1, 2, 3, 4});
  const PrefixTree::Pin whole = tree.insert({1, 2, 3, 4, 5});
  const std::uint32_t run_count = tree->run_count();
  const PrefixTree::Pin first = tree->pin_prefix(whole, 2);
  EXPECT_EQ(tree->run_count(), run_count);
  EXPECT_EQ(tree->end_page(first.run()), 2U);
  const PrefixTree::Pin inside = tree->pin_prefix(whole, 1);
  EXPECT_EQ(tree->run_count(), run_count + 1);
  EXPECT_EQ(tree->end_page(inside.run()), 1U);
  EXPECT_EQ(tree.broken_rule(), "");
}

TEST(PrefixTreePins, APinOnAPrefixIsNoUse) {
  TestTree tree(kOneToken);
  PrefixTree::Pin old = tree.insert({1, 2});
  tree.add({3, 4});
  (void)tree->pin_prefix(old, 1);
  (void)tree->pin_page(old, 0);
  std::vector<TokenId> first_tokens;  // of children, most recently used first
  tree->for_each_run(tree.root(), [&](const RunView& run) {
    if (run.depth == 1) first_tokens.push_back(run.tokens[0]);
  });
  EXPECT_EQ(first_tokens, (std::vector<TokenId>{3, 1}));
}

TEST(PrefixTreePins, APinOnAPageKeepsTheWholeRunThatHoldsIt) {
  TestTree tree(kWholeRuns);
  tree.add({1, 2});
  PrefixTree::Pin whole = tree.insert({1, 2, 3, 4, 5});
  const std::uint32_t run_count = tree->run_count();
  PrefixTree::Pin page = tree->pin_page(whole, 1);
  EXPECT_EQ(tree->end_page(page.run()), 2U);
  PrefixTree::Pin last = tree->pin_page(whole, 2);
  EXPECT_EQ(last.run(), whole.run());
  EXPECT_EQ(tree->run_count(), run_count);
  whole.reset();
  EXPECT_EQ(tree->pinned_pages(), 5U);
  last.reset();
  EXPECT_EQ(tree->pinned_pages(), 2U);
  EXPECT_EQ(tree.evict(10), (Pages{2, 3, 4}));
}

TEST(PrefixTreePinsDeathTest, APageBeyondThePinnedPathStopsTheProgram) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin pin = tree.insert({1, 2});
  EXPECT_DEATH((void)tree->pin_page(pin, 2), "a page beyond the pinned path");
  EXPECT_DEATH((void)tree->pin_prefix(pin, 3), "a page beyond the pinned path");
}

}  // namespace
}  // namespace quire
