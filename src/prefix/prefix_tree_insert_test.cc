// SPDX-License-Identifier: Apache-2.0
//
// Insertion: where pages go, when a run grows in place, and what becomes of pages the tree already has.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::kOneToken;
using testing::Pages;
using testing::Prompt;
using testing::TestTree;
using testing::token_range;
using testing::Tokens;

// Growth

TEST(PrefixTreeInsert, AChildlessRunWithOnePinGrowsInPlace) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.insert({1, 2});
  const RunId run = pin.run();
  tree.extend(pin, {.tokens = {1, 2, 3, 4}, .extra_keys = {}}, 2);
  EXPECT_EQ(pin.run(), run);
  EXPECT_EQ(tree.shape(), "1 2 3 4: 0 1 2 3\n");
}

TEST(PrefixTreeInsert, ARunThatWasIdleGrowsInPlaceTooOncePinned) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  tree.add({1, 2, 3});
  EXPECT_EQ(tree.shape(), "1 2 3: 0 1 2\n");
}

TEST(PrefixTreeInsert, ARunThatSomeoneElsePinsGetsAChild) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.insert({1, 2});
  const PrefixTree::Pin other = tree->clone(pin);
  tree.extend(pin, {.tokens = {1, 2, 3}, .extra_keys = {}}, 2);
  EXPECT_NE(pin.run(), other.run());
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3: 2\n");
}

TEST(PrefixTreeInsert, ARunWithAChildGetsAnother) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  PrefixTree::Pin pin = tree.pin({1, 2});
  tree.extend(pin, {.tokens = {1, 2, 4}, .extra_keys = {}}, 3);
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3: 2\n"
            "  4: 3\n");
}

TEST(PrefixTreeInsert, ARunGrowsAgainAfterItsChildrenAreGone) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  PrefixTree::Pin pin = tree.pin({1, 2});
  tree.evict(1);
  tree.extend(pin, {.tokens = {1, 2, 4}, .extra_keys = {}}, 3);
  EXPECT_EQ(tree.shape(), "1 2 4: 0 1 3\n");
}

TEST(PrefixTreeInsert, TheRootNeverGrowsItself) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.pin(Tokens{});
  EXPECT_EQ(pin.run(), tree.root());
  tree.extend(pin, {.tokens = {1, 2}, .extra_keys = {}}, 0);
  EXPECT_NE(pin.run(), tree.root());
  EXPECT_EQ(tree->view(tree.root()).pages.size(), 0U);
  EXPECT_EQ(tree.shape(), "1 2: 0 1\n");
}

TEST(PrefixTreeInsert, WithWholeRunsEveryInsertionIsARunOfItsOwn) {
  TestTree tree({.page_tokens = 1, .page_count_max = 100, .whole_runs = true});
  PrefixTree::Pin pin = tree.insert({1, 2});
  tree.extend(pin, {.tokens = {1, 2, 3}, .extra_keys = {}}, 2);
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3: 2\n");
}

TEST(PrefixTreeInsert, ManySmallInsertionsMakeOneRun) {
  TestTree tree({.page_tokens = 4, .page_count_max = 200});
  const Tokens tokens = token_range(0, 800);
  PrefixTree::Pin pin = tree.pin(Tokens{});
  for (std::uint32_t page = 0; page < 200; ++page) {
    tree.extend(pin, {.tokens = token_range(0, static_cast<TokenId>(4 * (page + 1))), .extra_keys = {}}, page);
  }
  EXPECT_EQ(tree->run_count(), 1U);
  const Pages pages = tree.pages_of(tokens);
  ASSERT_EQ(pages.size(), 200U);
  for (std::uint32_t page = 0; page < 200; ++page) EXPECT_EQ(pages[page], page);
}

TEST(PrefixTreeInsert, InsertingNoPagesChangesNothing) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.insert({1, 2});
  const std::string before = tree.dump();
  EXPECT_EQ(tree->insert(pin, {.tokens = Tokens{1, 2, 3}, .extra_keys = {}}, {}, {}), 0U);
  EXPECT_EQ(tree.dump(), before);
}

TEST(PrefixTreeInsert, OnlyAsManyPagesAreInsertedAsAreGiven) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.pin(Tokens{});
  std::vector<PageId> pages = {PageId{7}, PageId{8}};
  std::vector<PageId> duplicates(2);
  const Tokens tokens = {1, 2, 3, 4};
  EXPECT_EQ(tree->insert(pin, {.tokens = tokens, .extra_keys = {}}, pages, duplicates), 0U);
  EXPECT_EQ(tree.shape(), "1 2: 7 8\n");
}

// Long runs

TEST(PrefixTreeInsert, ARunLongerThanTheLongestIsAChainOfRuns) {
  TestTree tree({.page_tokens = 16, .page_count_max = 1000});
  ASSERT_EQ(tree->storage().run_pages_max(), 128U);
  const Tokens tokens = token_range(0, 16 * 300);
  const PrefixTree::Pin pin = tree.insert(tokens);
  EXPECT_EQ(tree->run_count(), 3U);
  EXPECT_EQ(tree->view(pin.run()).pages.size(), 300U - 256);
  EXPECT_EQ(tree->view(pin.run()).first_page, 256U);
  const Pages pages = tree.pages_of(tokens);
  ASSERT_EQ(pages.size(), 300U);
  for (std::uint32_t page = 0; page < 300; ++page) EXPECT_EQ(pages[page], page);
}

TEST(PrefixTreeInsert, ARunGrowsInPlaceUpToTheLongestAndThenChains) {
  TestTree tree({.page_tokens = 1024, .page_count_max = 10});
  ASSERT_EQ(tree->storage().run_pages_max(), 2U);
  PrefixTree::Pin pin = tree.insert(token_range(0, 1024));
  tree.extend(pin, {.tokens = token_range(0, 4096), .extra_keys = {}}, 1);
  std::vector<std::size_t> page_counts;
  tree->for_each_run(tree.root(), [&](const RunView& run) { page_counts.push_back(run.pages.size()); });
  EXPECT_EQ(page_counts, (std::vector<std::size_t>{0, 2, 2}));
}

TEST(PrefixTreeInsert, APageLongerThanTheLongestRunIsARun) {
  TestTree tree({.page_tokens = 5000, .page_count_max = 4});
  ASSERT_EQ(tree->storage().run_pages_max(), 1U);
  const Tokens tokens = token_range(0, 10'000);
  tree.add(tokens);
  EXPECT_EQ(tree->run_count(), 2U);
  EXPECT_EQ(tree.pages_of(tokens), (Pages{0, 1}));
}

// Duplicates

TEST(PrefixTreeInsert, PagesTheTreeHasAreHandedBackAsDuplicates) {
  TestTree tree(kOneToken);
  PrefixTree::Pin first = tree.pin(Tokens{});
  PrefixTree::Pin second = tree.pin(Tokens{});
  const Prompt prompt{.tokens = {1, 2, 3}, .extra_keys = {}};
  tree.extend(first, prompt, 10);
  const TestTree::Extension extension = tree.extend(second, prompt, 20);
  EXPECT_EQ(extension.duplicate_count, 3U);
  EXPECT_EQ(extension.duplicates, (Pages{20, 21, 22}));
  EXPECT_EQ(extension.pages, (Pages{10, 11, 12}));
  EXPECT_EQ(second.run(), first.run());
  EXPECT_EQ(tree->page_count(), 3U);
}

TEST(PrefixTreeInsert, WhatFollowsTheDuplicatesIsAdopted) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  PrefixTree::Pin pin = tree->pin(tree.match({}));
  const TestTree::Extension extension = tree.extend(pin, {.tokens = {1, 2, 3, 4}, .extra_keys = {}}, 20);
  EXPECT_EQ(extension.duplicate_count, 2U);
  EXPECT_EQ(extension.duplicates, (Pages{20, 21}));
  EXPECT_EQ(extension.pages, (Pages{0, 1, 22, 23}));
  EXPECT_EQ(tree.shape(), "1 2 3 4: 0 1 22 23\n");
}

TEST(PrefixTreeInsert, DuplicatesAcrossSeveralRunsAreAllReported) {
  TestTree tree({.page_tokens = 1, .page_count_max = 100, .whole_runs = true});
  tree.add({1, 2});
  tree.add({1, 2, 3});
  tree.add({1, 2, 3, 4, 5});
  PrefixTree::Pin pin = tree->pin(tree.match({}));
  const TestTree::Extension extension = tree.extend(pin, {.tokens = {1, 2, 3, 4, 9}, .extra_keys = {}}, 20);
  EXPECT_EQ(extension.duplicates, (Pages{20, 21, 22, 23}));
  EXPECT_EQ(extension.pages, (Pages{0, 1, 2, 3, 24}));
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3: 2\n"
            "    4: 3\n"
            "      5: 4\n"
            "      9: 24\n");
}

TEST(PrefixTreeInsert, AnInsertionThatEndsInsideARunSplitsItAndAdoptsNothing) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  PrefixTree::Pin pin = tree->pin(tree.match({}));
  const TestTree::Extension extension = tree.extend(pin, {.tokens = {1, 2}, .extra_keys = {}}, 20);
  EXPECT_EQ(extension.duplicates, (Pages{20, 21}));
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3 4: 2 3\n");
  EXPECT_EQ(tree->pinned_pages(), 2U);
  EXPECT_EQ(tree->evictable_pages(), 2U);
}

TEST(PrefixTreeInsert, ContinuingAPathThatAnotherContinuedFirstFindsItsPages) {
  TestTree tree(kOneToken);
  PrefixTree::Pin first = tree.insert({1, 2});
  PrefixTree::Pin second = tree->clone(first);
  tree.extend(first, {.tokens = {1, 2, 3, 4}, .extra_keys = {}}, 10);
  const TestTree::Extension extension = tree.extend(second, {.tokens = {1, 2, 3, 5}, .extra_keys = {}}, 20);
  EXPECT_EQ(extension.duplicates, (Pages{20}));
  EXPECT_EQ(extension.pages, (Pages{10, 21}));
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3: 10\n"
            "    4: 11\n"
            "    5: 21\n");
}

TEST(PrefixTreeInsert, KnownPagesArePinnedByTheInsertion) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  PrefixTree::Pin pin = tree->pin(tree.match({}));
  EXPECT_EQ(tree->pinned_pages(), 0U);
  tree.extend(pin, {.tokens = {1, 2, 3}, .extra_keys = {}}, 20);
  EXPECT_EQ(tree->pinned_pages(), 3U);
  pin.reset();
  EXPECT_EQ(tree->evictable_pages(), 3U);
  EXPECT_FALSE(tree->is_pinned(tree.root()));  // the pin left the place it came from
}

TEST(PrefixTreeInsert, AtNoMomentDoesTheInsertedPathBecomeIdle) {
  // A policy that would notice: it counts how often anything becomes idle.
  class CountsIdle final : public Policy {
   public:
    explicit CountsIdle(std::uint32_t& count) : count_(count) {}
    Status reserve(const PolicyLimits& /*limits*/) override { return {}; }
    void on_split(RunId /*suffix*/, RunId /*prefix*/, std::uint32_t /*prefix_pages*/) override {}
    void on_pin(RunId /*run*/) override {}
    void on_idle(RunId /*run*/) override { ++count_; }
    void on_remove(RunId /*run*/, const PageChange& /*lost*/) override {}
    std::optional<RunId> next_victim() override { return std::nullopt; }
    [[nodiscard]] std::uint32_t idle_run_count() const override { return 0; }

   private:
    std::uint32_t& count_;
  };
  std::uint32_t idle_count = 0;
  TestTree tree(kOneToken, std::make_unique<CountsIdle>(idle_count));
  PrefixTree::Pin first = tree.insert({1, 2, 3});
  PrefixTree::Pin second = tree->pin(tree.match({1}));
  tree.extend(second, {.tokens = {1, 2, 3, 4}, .extra_keys = {}}, 20);
  EXPECT_EQ(idle_count, 0U);
}

// Bugs of a caller

TEST(PrefixTreeInsertDeathTest, InsertingBehindAnEmptyPinStopsTheProgram) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin;
  EXPECT_DEATH(static_cast<void>(tree->insert(pin, {}, {}, {})), "inserting behind an empty pin");
}

TEST(PrefixTreeInsertDeathTest, InsertingWithoutRoomForDuplicatesStopsTheProgram) {
  TestTree tree(kOneToken);
  PrefixTree::Pin pin = tree.insert({1});
  std::vector<PageId> pages(2);
  std::vector<PageId> duplicates(1);
  const Tokens tokens = {1, 2, 3};
  EXPECT_DEATH(static_cast<void>(tree->insert(pin, {.tokens = tokens, .extra_keys = {}}, pages, duplicates)),
               "no room for duplicates");
}

TEST(PrefixTreeInsertDeathTest, InsertingMorePagesThanTokensStopsTheProgram) {
  TestTree tree({.page_tokens = 2, .page_count_max = 10});
  PrefixTree::Pin pin = tree.insert({1, 2});
  std::vector<PageId> pages(2);
  std::vector<PageId> duplicates(2);
  const Tokens tokens = {1, 2, 3, 4, 5};
  EXPECT_DEATH(static_cast<void>(tree->insert(pin, {.tokens = tokens, .extra_keys = {}}, pages, duplicates)),
               "more pages than tokens");
}

}  // namespace
}  // namespace quire
