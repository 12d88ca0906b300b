// SPDX-License-Identifier: Apache-2.0
//
// Everything a tutorial on radix caches prints, from its free list to its two requests, on the real pool and
// tree. The tutorial has pages of one token and gives up whole nodes; beside each of its evictions stands
// what happens by the page. Run ids are the tutorial's node numbers: the root is the first, and a split
// numbers the prefix.
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "pool/page_pool.h"
#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/tree_drawing.h"

namespace quire {
namespace {

using Tokens = std::vector<TokenId>;

const Tokens kRequest0 = {1, 3, 6, 7, 9, 77};
const Tokens kRequest1 = {1, 3, 6, 7, 87, 66};

std::vector<PageId> pages_of(std::initializer_list<std::uint32_t> values) {
  std::vector<PageId> pages;
  for (const std::uint32_t value : values) pages.push_back(PageId{value});
  return pages;
}

/// Runs of spaces as one: drawings are compared by what they say, not by how far they are indented.
std::string collapsed(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c != ' ' || result.empty() || result.back() != ' ') result += c;
  }
  return result;
}

/// The head every drawing of the tutorial starts with, and `lines` below the root's.
std::string drawing(const std::string& lines) {
  const std::string rule(80, '=');
  return "\n" + rule + "\nRADIX TREE STRUCTURE\n" + rule + "\nRoot Node:\n└── uuid=0, ref=1 [R]\n" + lines;
}

const std::string kTwoLeaves = drawing(
    " └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0\n"
    " ├── uuid=1, tokens=[9, 77], slots=[4, 7], ref=0 [L]\n"
    " └── uuid=3, tokens=[87, 66], slots=[5, 6], ref=0 [L]\n");

/// The tutorial's manager: a pool and a tree, in its steps.
class Manager {
 public:
  Manager(std::uint32_t page_count, bool whole_runs)
      : pool_(*PagePool::create({.page_count = page_count})),
        policy_(*make_policy("lru")),
        tree_(*PrefixTree::create({.page_tokens = 1, .page_count_max = page_count, .whole_runs = whole_runs}, *policy_,
                                  nullptr)),
        root_(tree_->add_root()) {}

  [[nodiscard]] std::string drawn() const { return collapsed(testing::draw_prefix_tree(*tree_, root_)); }
  [[nodiscard]] std::uint32_t available_size() const { return pool_.free_count() + tree_->evictable_pages(); }
  [[nodiscard]] PrefixTree& tree() { return *tree_; }

  [[nodiscard]] PrefixTree::Match match(std::span<const TokenId> tokens) const {
    return tree_->match(root_, {.tokens = tokens, .extra_keys = {}});
  }

  std::vector<PageId> allocate(std::size_t count) {
    std::vector<PageId> pages(count);
    EXPECT_TRUE(pool_.try_allocate(pages));
    return pages;
  }

  /// Continues the path of `pin` by `pages`, gives back what was there before, and unpins.
  void free_and_cache(PrefixTree::Pin pin, std::span<const TokenId> tokens, std::vector<PageId> pages) {
    pool_.seal(pages);
    std::vector<PageId> duplicates(pages.size());
    duplicates.resize(tree_->insert(pin, {.tokens = tokens, .extra_keys = {}}, pages, duplicates));
    pool_.release(duplicates);
  }

  std::vector<PageId> evict(std::uint32_t count) {
    std::vector<PageId> evicted;
    tree_->evict(count,
                 [&](std::span<const PageId> pages) { evicted.insert(evicted.end(), pages.begin(), pages.end()); });
    pool_.release(evicted);
    return evicted;
  }

 private:
  PagePool pool_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<PrefixTree> tree_;
  RunId root_;
};

// Section 1: 50 slots, two requests of 7, the first one freed.

TEST(TutorialFreeList, HandsOutSlotsFromTheFrontAndTakesThemBackAtTheEnd) {
  PagePool pool = *PagePool::create({.page_count = 50});
  std::vector<PageId> first(7);
  std::vector<PageId> second(7);
  ASSERT_TRUE(pool.try_allocate(first));
  ASSERT_TRUE(pool.try_allocate(second));
  EXPECT_EQ(first, pages_of({0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(second, pages_of({7, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(pool.free_count(), 36U);
  pool.release(first);
  EXPECT_EQ(pool.free_count(), 43U);
  std::vector<PageId> rest(43);
  ASSERT_TRUE(pool.try_allocate(rest));
  EXPECT_EQ(rest, pages_of({14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35,
                            36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 0,  1,  2,  3,  4,  5,  6}));
}

// Section 2: a tree whose slots are chosen by hand.

class TutorialTree : public ::testing::TestWithParam<bool> {
 protected:
  TutorialTree() : manager_(8, GetParam()) {
    const std::vector<PageId> slots = manager_.allocate(8);
    EXPECT_EQ(slots, pages_of({0, 1, 2, 3, 4, 5, 6, 7}));
  }

  void insert_first() {
    manager_.free_and_cache(manager_.tree().pin(manager_.match({})), kRequest0, pages_of({0, 1, 2, 3, 4, 7}));
  }

  void insert_both() {
    insert_first();
    const PrefixTree::Match match = manager_.match(kRequest1);
    EXPECT_EQ(match.page_count, 4U);
    manager_.free_and_cache(manager_.tree().pin(match), kRequest1, pages_of({5, 6}));
  }

  Manager manager_;
};

TEST_P(TutorialTree, TheFirstRequestIsOneNode) {
  insert_first();
  EXPECT_EQ(manager_.drawn(),
            drawing(" └── uuid=1, tokens=[1, 3, 6, 7, 9, 77], slots=[0, 1, 2, 3, 4, 7], ref=0 [L]\n"));
}

TEST_P(TutorialTree, TheSecondRequestSplitsItWhereTheyPart) {
  insert_both();
  EXPECT_EQ(manager_.drawn(), kTwoLeaves);
}

TEST_P(TutorialTree, AReferenceToTheSharedPartShowsOnItAndGoesAgain) {
  insert_both();
  PrefixTree::Pin handle = manager_.tree().pin(manager_.match(std::span(kRequest1).first(4)));
  EXPECT_EQ(manager_.drawn(), drawing(" └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=1\n"
                                      " ├── uuid=1, tokens=[9, 77], slots=[4, 7], ref=0 [L]\n"
                                      " └── uuid=3, tokens=[87, 66], slots=[5, 6], ref=0 [L]\n"));
  handle.reset();
  EXPECT_EQ(manager_.drawn(), kTwoLeaves);
}

std::string granularity(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "ByTheRun" : "ByThePage";
}

INSTANTIATE_TEST_SUITE_P(Evicting, TutorialTree, ::testing::Bool(), granularity);

using TutorialEviction = TutorialTree;

TEST_P(TutorialEviction, OfThreeTokens) {
  insert_both();
  manager_.tree().pin(manager_.match(std::span(kRequest1).first(4))).reset();  // the reference above, come and gone
  const bool whole_runs = GetParam();
  // The tutorial frees the nodes 1 and 3, four slots for the three it needs; by the page, the token 87 stays.
  EXPECT_EQ(manager_.evict(3), whole_runs ? pages_of({4, 7, 5, 6}) : pages_of({4, 7, 6}));
  EXPECT_EQ(manager_.drawn(), whole_runs ? drawing(" └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0 [L]\n")
                                         : drawing(" └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0\n"
                                                   " └── uuid=3, tokens=[87], slots=[5], ref=0 [L]\n"));
}

TEST_P(TutorialEviction, StepByStep) {
  insert_both();
  const bool whole_runs = GetParam();
  EXPECT_EQ(manager_.evict(whole_runs ? 1 : 2), pages_of({4, 7}));  // "Node: 1 is evicted"
  EXPECT_EQ(manager_.drawn(), drawing(" └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0\n"
                                      " └── uuid=3, tokens=[87, 66], slots=[5, 6], ref=0 [L]\n"));
  EXPECT_EQ(manager_.evict(whole_runs ? 1 : 2), pages_of({5, 6}));  // "Node: 3 is evicted"
  EXPECT_EQ(manager_.drawn(), drawing(" └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0 [L]\n"));
}

INSTANTIATE_TEST_SUITE_P(Of, TutorialEviction, ::testing::Bool(), granularity);

// Section 3: 250 slots, two requests from allocation to tree.

class TutorialManager : public ::testing::TestWithParam<bool> {};

TEST_P(TutorialManager, ServesTheTwoRequests) {
  Manager manager(250, GetParam());
  EXPECT_EQ(manager.available_size(), 250U);

  std::vector<PageId> slots = manager.allocate(kRequest0.size());
  EXPECT_EQ(manager.available_size(), 244U);
  manager.free_and_cache(manager.tree().pin(manager.match({})), kRequest0, slots);
  EXPECT_EQ(manager.available_size(), 250U);
  EXPECT_EQ(manager.drawn(), drawing(" └── uuid=1, tokens=[1, 3, 6, 7, 9, 77], slots=[0, 1, 2, 3, 4, 5], ref=0 [L]\n"));

  // The last token is always computed, so it is left out of the match.
  const PrefixTree::Match match = manager.match(std::span(kRequest1).first(kRequest1.size() - 1));
  EXPECT_EQ(match.page_count, 4U);
  std::vector<PageId> matched(match.page_count);
  manager.tree().copy_pages(match, 0, matched);
  EXPECT_EQ(matched, pages_of({0, 1, 2, 3}));
  PrefixTree::Pin handle = manager.tree().pin(match);
  slots = manager.allocate(kRequest1.size() - match.page_count);
  EXPECT_EQ(slots, pages_of({6, 7}));
  EXPECT_EQ(manager.drawn(), drawing(" └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=1\n"
                                     " └── uuid=1, tokens=[9, 77], slots=[4, 5], ref=0 [L]\n"));

  manager.free_and_cache(std::move(handle), kRequest1, slots);
  EXPECT_EQ(manager.drawn(), drawing(" └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0\n"
                                     " ├── uuid=1, tokens=[9, 77], slots=[4, 5], ref=0 [L]\n"
                                     " └── uuid=3, tokens=[87, 66], slots=[6, 7], ref=0 [L]\n"));
  EXPECT_EQ(manager.available_size(), 250U);
}

INSTANTIATE_TEST_SUITE_P(Evicting, TutorialManager, ::testing::Bool(), granularity);

}  // namespace
}  // namespace quire
