// SPDX-License-Identifier: Apache-2.0
//
// Soft pins: what they ask for goes last, and they end by themselves when it goes all the same.
#include <utility>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::kOneToken;
using testing::Pages;
using testing::TestTree;
using testing::Tokens;

TEST(PrefixTreeSoftPins, WhatIsSoftlyPinnedGoesLast) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  tree.add({3});
  tree.add({4});
  const PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
  EXPECT_EQ(tree.evict(10), (Pages{2, 3, 0, 1}));
}

TEST(PrefixTreeSoftPins, TheyKeepPagesEvictable) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  const PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
  EXPECT_EQ(tree->evictable_pages(), 2U);
  EXPECT_EQ(tree->soft_pinned_pages(), 2U);
  EXPECT_EQ(tree->pinned_pages(), 0U);
}

TEST(PrefixTreeSoftPins, TheyEndWhereTheMatchEnds) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  const PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
  EXPECT_EQ(tree->run_count(), 2U);
  EXPECT_EQ(tree->soft_pinned_pages(), 2U);
}

TEST(PrefixTreeSoftPins, WhatLiesBehindTheMatchDoesNotBecomeRecent) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  tree.add({5});
  PrefixTree::SoftPin soft = tree.soft_pin({1, 2});
  PrefixTree::Pin pin = tree.pin({1, 2});
  soft.reset();
  pin.reset();
  EXPECT_EQ(tree.evict(3), (Pages{2, 3, 4}));
}

TEST(PrefixTreeSoftPins, TheyCoverThePathUpToTheRoot) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10, .whole_runs = true});
  tree.add({1});
  tree.add({1, 2});
  tree.add({1, 3});
  const PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
  EXPECT_EQ(tree->soft_pinned_pages(), 2U);
  EXPECT_EQ(tree.evict(1), (Pages{2}));
}

TEST(PrefixTreeSoftPins, ADroppedSoftPinLeavesThePathTheMostRecentlyIdle) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  tree.add({3});
  PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
  tree.add({4});
  pin.reset();
  EXPECT_FALSE(pin);
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
  EXPECT_EQ(tree.evict(10), (Pages{2, 3, 0, 1}));
}

TEST(PrefixTreeSoftPins, ASoftPinEndsWithItsScope) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  {
    const PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
    EXPECT_EQ(tree->soft_pinned_pages(), 2U);
  }
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
}

TEST(PrefixTreeSoftPins, AMovedSoftPinIsGivenBackOnce) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
  PrefixTree::SoftPin moved = std::move(pin);
  pin.reset();  // NOLINT(bugprone-use-after-move): what it is about
  EXPECT_EQ(tree->soft_pinned_pages(), 2U);
  moved.reset();
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
}

TEST(PrefixTreeSoftPins, APathStaysSoftlyPinnedUntilItsLastSoftPinIsGone) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  PrefixTree::SoftPin first = tree.soft_pin({1, 2});
  PrefixTree::SoftPin second = tree.soft_pin({1, 2});
  first.reset();
  EXPECT_EQ(tree->soft_pinned_pages(), 2U);
  second.reset();
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
}

TEST(PrefixTreeSoftPins, AmongThemselvesTheOldestGoesFirst) {
  TestTree tree(kOneToken);
  tree.add({1});
  tree.add({2});
  tree.add({3});
  const PrefixTree::SoftPin second = tree.soft_pin({2});
  const PrefixTree::SoftPin third = tree.soft_pin({3});
  const PrefixTree::SoftPin first = tree.soft_pin({1});
  EXPECT_EQ(tree.evict(10), (Pages{1, 2, 0}));
}

// The first soft pin brings the shared prefix into the order; later ones must not leave it standing there
// before their own runs, or an eviction would go down from it to whatever child was used last.
TEST(PrefixTreeSoftPins, BehindASharedPrefixTheOldestGoesFirstToo) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10, .whole_runs = true});
  for (const Tokens& prefix : {Tokens{7}, Tokens{7, 8}, Tokens{7, 8, 9}}) tree.add(prefix);
  for (const TokenId branch : {1, 2, 3, 4}) tree.add({7, 8, 9, branch});
  const PrefixTree::SoftPin a = tree.soft_pin({7, 8, 9, 1});
  const PrefixTree::SoftPin b = tree.soft_pin({7, 8, 9, 2});
  const PrefixTree::SoftPin c = tree.soft_pin({7, 8, 9, 3});
  const PrefixTree::SoftPin d = tree.soft_pin({7, 8, 9, 4});
  EXPECT_EQ(tree.evict(10), (Pages{3, 4, 5, 6, 2, 1, 0}));
}

TEST(PrefixTreeSoftPins, AskingForALongerPathKeepsItsPrefixBehindIt) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10, .whole_runs = true});
  tree.add({1});
  tree.add({1, 2});
  tree.add({3});
  const PrefixTree::SoftPin prefix = tree.soft_pin({1});
  const PrefixTree::SoftPin other = tree.soft_pin({3});
  const PrefixTree::SoftPin longer = tree.soft_pin({1, 2});
  EXPECT_EQ(tree.evict(10), (Pages{2, 1, 0}));
}

TEST(PrefixTreeSoftPins, AnEvictedRunEndsTheSoftPinsThatEndThere) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10, .whole_runs = true});
  tree.add({1});
  tree.add({1, 2});
  PrefixTree::SoftPin pin = tree.soft_pin({1, 2});
  EXPECT_EQ(tree.evict(1), (Pages{1}));
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
  EXPECT_EQ(tree->view(tree.match({1}).run).soft_pin_count, 0U);
  pin.reset();
  EXPECT_EQ(tree.broken_rule(), "");
}

TEST(PrefixTreeSoftPins, ARevokedSoftPinDoesNotTouchTheRunThatGotItsId) {
  TestTree tree(kOneToken);
  tree.add({1});
  PrefixTree::SoftPin revoked = tree.soft_pin({1});
  const RunId old_run = tree.match({1}).run;
  tree.evict(1);
  tree.add({2});
  ASSERT_EQ(tree.match({2}).run, old_run);
  const PrefixTree::SoftPin pin = tree.soft_pin({2});
  revoked.reset();
  EXPECT_EQ(tree->view(old_run).soft_pin_count, 1U);
  EXPECT_EQ(tree->soft_pinned_pages(), 1U);
}

TEST(PrefixTreeSoftPins, ARunThatLosesOnlyItsTailKeepsItsSoftPins) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  const PrefixTree::SoftPin pin = tree.soft_pin({1, 2, 3});
  EXPECT_EQ(tree.evict(2), (Pages{1, 2}));
  EXPECT_EQ(tree->soft_pinned_pages(), 1U);
}

TEST(PrefixTreeSoftPins, SplittingASoftlyPinnedRunKeepsBothHalvesSo) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  PrefixTree::SoftPin soft = tree.soft_pin({1, 2, 3, 4});
  tree.pin({1, 2}).reset();
  EXPECT_EQ(tree->run_count(), 2U);
  EXPECT_EQ(tree->soft_pinned_pages(), 4U);
  soft.reset();
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
}

TEST(PrefixTreeSoftPins, TheSuffixOfASplitKeepsItsPlaceInTheOrder) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  tree.add({5});
  const PrefixTree::SoftPin first = tree.soft_pin({1, 2, 3, 4});
  const PrefixTree::SoftPin second = tree.soft_pin({5});
  const PrefixTree::Pin pin = tree.pin({1, 2});
  EXPECT_EQ(tree.evict(10), (Pages{2, 3, 4}));
}

TEST(PrefixTreeSoftPins, AHardPinTakesPrecedenceAndGivesTheSoftOneBack) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  const PrefixTree::SoftPin soft = tree.soft_pin({1, 2});
  PrefixTree::Pin hard = tree.pin({1, 2});
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
  EXPECT_EQ(tree->pinned_pages(), 2U);
  EXPECT_EQ(tree.evict(10), Pages{});
  hard.reset();
  EXPECT_EQ(tree->soft_pinned_pages(), 2U);
}

TEST(PrefixTreeSoftPins, AskingSoftlyForAPinnedPathTakesEffectWhenThePinIsGone) {
  TestTree tree(kOneToken);
  PrefixTree::Pin hard = tree.insert({1, 2});
  tree.add({3});
  const PrefixTree::SoftPin soft = tree.soft_pin({1, 2});
  EXPECT_EQ(tree->soft_pinned_pages(), 0U);
  hard.reset();
  EXPECT_EQ(tree->soft_pinned_pages(), 2U);
  EXPECT_EQ(tree.evict(10), (Pages{2, 0, 1}));
}

TEST(PrefixTreeSoftPins, ASoftPinOnNothingDoesNotKeepTheKeySpace) {
  TestTree tree(kOneToken);
  PrefixTree::SoftPin pin = tree.soft_pin({1});
  EXPECT_TRUE(tree->is_empty(tree.root()));
  tree->remove_root(tree.root());
  const RunId root = tree->add_root();
  pin.reset();
  EXPECT_EQ(tree->view(root).soft_pin_count, 0U);
}

}  // namespace
}  // namespace quire
