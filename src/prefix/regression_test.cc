// SPDX-License-Identifier: Apache-2.0
//
// Mistakes that other radix caches are known to have made, each as a test that this tree does not make it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "pool/page_pool.h"
#include "prefix/prefix_tree.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::kOneToken;
using testing::Pages;
using testing::Prompt;
using testing::TestTree;
using testing::Tokens;

// A split gave the new prefix the old node's time although it had just been used.
TEST(Regression, APrefixThatASplitMadeIsAsRecentAsItsUse) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  tree.add({9});
  tree.pin({1, 2}).reset();
  EXPECT_EQ(tree.evict(10), (Pages{2, 3, 4, 0, 1}));
}

// The suffix that nobody used must not become recent along with it.
TEST(Regression, ASuffixThatASplitMadeIsAsOldAsBefore) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  tree.add({9});
  tree.pin({1, 2}).reset();
  EXPECT_EQ(tree.evict(2), (Pages{2, 3}));
}

// A request went on reading its own copies of pages that another had cached first, after they had been freed.
TEST(Regression, ARunningRequestReadsTheTreesPagesInPlaceOfItsDuplicates) {
  PagePool pool = *PagePool::create({.page_count = 8});
  TestTree tree(kOneToken);
  const Tokens tokens = {1, 2, 3};
  PrefixTree::Pin first = tree.pin(Tokens{});
  PrefixTree::Pin second = tree.pin(Tokens{});
  std::vector<PageId> first_pages(3);
  std::vector<PageId> second_pages(3);
  ASSERT_TRUE(pool.try_allocate(first_pages));
  ASSERT_TRUE(pool.try_allocate(second_pages));
  pool.seal(first_pages);
  pool.seal(second_pages);
  std::vector<PageId> duplicates(3);
  ASSERT_EQ(tree->insert(first, {.tokens = tokens, .extra_keys = {}}, first_pages, duplicates), 0U);
  ASSERT_EQ(tree->insert(second, {.tokens = tokens, .extra_keys = {}}, second_pages, duplicates), 3U);
  pool.release(duplicates);

  EXPECT_EQ(second_pages, first_pages);
  for (const PageId page : second_pages) EXPECT_EQ(pool.state(page), PageState::Sealed);
  first.reset();
  EXPECT_EQ(tree.evict(10), Pages{});  // still pinned by the second
}

// The pages a request had from its match were freed as if it had computed them again.
TEST(Regression, PagesOfTheMatchAreNeverDuplicates) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  PrefixTree::Pin pin = tree.pin({1, 2, 3});
  const TestTree::Extension extension = tree.extend(pin, {.tokens = {1, 2, 3}, .extra_keys = {}}, 50);
  EXPECT_EQ(extension.duplicate_count, 0U);
  EXPECT_EQ(tree.pages_of({1, 2, 3}), (Pages{0, 1, 50}));
}

// Adapters and salts were glued to the tokens' name, so that two key spaces could meet.
TEST(Regression, EqualTokensInTwoKeySpacesNeverMeet) {
  TestTree tree({.page_tokens = 1, .page_count_max = 100, .root_count_max = 2});
  const RunId other = tree->add_root();
  const Prompt prompt{.tokens = {1, 2, 3}, .extra_keys = {}};
  tree.add(prompt.tokens);
  EXPECT_EQ(tree.match(other, prompt).page_count, 0U);
  tree.add(other, prompt);
  EXPECT_EQ(tree.evict_all(tree.root()), (Pages{0, 1, 2}));
  EXPECT_EQ(tree.pages_of(other, prompt), (Pages{3, 4, 5}));
}

// A leaf of thousands of tokens was freed for a request of one.
TEST(Regression, EvictionGivesUpExactlyWhatWasAskedFor) {
  TestTree tree({.page_tokens = 16, .page_count_max = 200});
  tree.add(testing::token_range(0, 16 * 100));
  for (std::uint32_t evicted = 1; evicted <= 100; ++evicted) {
    EXPECT_EQ(tree.evict(1).size(), 1U);
    EXPECT_EQ(tree->page_count(), 100 - evicted);
  }
}

// An eviction that was asked for a number gave up everything.
TEST(Regression, TheCountGivenToAnEvictionIsNotIgnored) {
  TestTree tree(kOneToken);
  for (TokenId token = 0; token < 50; ++token) tree.add({token});
  EXPECT_EQ(tree.evict(3), (Pages{0, 1, 2}));
}

// Nodes kept views into the buffers of requests, which kept those alive, or read them after they were gone.
TEST(Regression, TheTreeKeepsCopiesOfTokensPagesAndExtraKeys) {
  TestTree tree({.page_tokens = 2, .page_count_max = 10});
  auto tokens = std::make_unique<Tokens>(Tokens{1, 2, 3, 4});
  auto pages = std::make_unique<std::vector<PageId>>(std::vector{PageId{7}, PageId{8}});
  auto keys = std::make_unique<std::vector<ExtraKey>>(std::vector{testing::extra_key(1, 3, 9)});
  std::vector<PageId> duplicates(2);
  PrefixTree::Pin pin = tree.pin(Tokens{});
  ASSERT_EQ(tree->insert(pin, {.tokens = *tokens, .extra_keys = *keys}, *pages, duplicates), 0U);
  std::ranges::fill(*tokens, 99);
  std::ranges::fill(*pages, PageId{99});
  std::ranges::fill(*keys, ExtraKey{});
  tokens.reset();
  pages.reset();
  keys.reset();
  EXPECT_EQ(tree.pages_of(tree.root(), {.tokens = {1, 2, 3, 4}, .extra_keys = {testing::extra_key(1, 3, 9)}}),
            (Pages{7, 8}));
}

// A table that was taken for a queue evicted the newest of ten sequences first.
TEST(Regression, TenSequencesAreEvictedOldestFirst) {
  TestTree tree(kOneToken);
  for (TokenId token = 0; token < 10; ++token) tree.add({token});
  EXPECT_EQ(tree.evict(10), (Pages{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Regression, TenSequencesAreEvictedInTheOrderTheyWereReleased) {
  TestTree tree(kOneToken);
  std::vector<PrefixTree::Pin> pins;
  pins.reserve(10);
  for (TokenId token = 0; token < 10; ++token) pins.push_back(tree.insert({token}));
  const Pages order = {3, 1, 4, 0, 5, 9, 2, 6, 8, 7};
  for (const std::uint32_t index : order) pins[index].reset();
  EXPECT_EQ(tree.evict(10), order);
}

// Evictable sizes counted pages twice that two requests shared, until the sum no longer fitted the pool.
TEST(Regression, SharedPagesAreCountedOnce) {
  TestTree tree(kOneToken);
  PrefixTree::Pin a = tree.insert({1, 2, 3});
  PrefixTree::Pin b = tree.insert({1, 2, 4});
  PrefixTree::Pin c = tree.pin({1, 2});
  EXPECT_EQ(tree->pinned_pages() + tree->evictable_pages(), 4U);
  a.reset();
  EXPECT_EQ(tree->evictable_pages(), 1U);
  b.reset();
  EXPECT_EQ(tree->evictable_pages(), 2U);
  c.reset();
  EXPECT_EQ(tree->evictable_pages(), 4U);
}

// Another request extended the node that a request stood on, before it came to extend it itself.
TEST(Regression, APathThatAnotherExtendedMeanwhileIsContinuedFromItsOwnEnd) {
  TestTree tree(kOneToken);
  PrefixTree::Pin slow = tree.insert({1, 2});
  PrefixTree::Pin fast = tree.pin({1, 2});
  tree.extend(fast, {.tokens = {1, 2, 3, 4}, .extra_keys = {}}, 10);
  EXPECT_EQ(tree->end_page(slow.run()), 2U);
  tree.extend(slow, {.tokens = {1, 2, 5}, .extra_keys = {}}, 20);
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "  3 4: 10 11\n"
            "  5: 20\n");
}

// A reset wrote past the end of a list that was reserved but not filled.
TEST(Regression, APoolThatIsEmptiedHandsOutAllItsPagesAgain) {
  PagePool pool = *PagePool::create({.page_count = 10});
  for (std::uint32_t round = 0; round < 3; ++round) {
    std::vector<PageId> pages(10);
    ASSERT_TRUE(pool.try_allocate(pages));
    std::vector<PageId> sorted = pages;
    std::ranges::sort(sorted);
    EXPECT_EQ(std::ranges::adjacent_find(sorted), sorted.end());
    pool.seal(std::span(pages).first(5));
    pool.release(pages);
    ASSERT_TRUE(pool.check_invariants().has_value());
  }
  ASSERT_TRUE(pool.resize(0).has_value());
  ASSERT_TRUE(pool.resize(10).has_value());
  std::vector<PageId> pages(10);
  EXPECT_TRUE(pool.try_allocate(pages));
  EXPECT_TRUE(pool.check_invariants().has_value());
}

// Allocation started before it was known whether there were enough pages.
TEST(Regression, AnAllocationThatDoesNotFitTakesNothing) {
  PagePool pool = *PagePool::create({.page_count = 4});
  std::vector<PageId> pages(5, PageId{77});
  EXPECT_FALSE(pool.try_allocate(pages));
  EXPECT_EQ(pool.free_count(), 4U);
  EXPECT_EQ(pages, std::vector<PageId>(5, PageId{77}));
}

}  // namespace
}  // namespace quire
