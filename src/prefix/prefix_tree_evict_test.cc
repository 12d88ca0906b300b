// SPDX-License-Identifier: Apache-2.0
//
// Eviction: whose pages go, in which order, and how many, under lru and under policies that know less.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::kOneToken;
using testing::kWholeRuns;
using testing::Pages;
using testing::TestTree;
using testing::token_range;

TEST(PrefixTreeEvict, EvictingNothingChangesNothing) {
  TestTree tree(kOneToken);
  tree.add({1, 2});
  const std::string before = tree.dump();
  EXPECT_EQ(tree.evict(0), Pages{});
  EXPECT_EQ(tree.dump(), before);
}

TEST(PrefixTreeEvict, AnEmptyTreeHasNothingToGiveUp) {
  TestTree tree(kOneToken);
  EXPECT_EQ(tree.evict(5), Pages{});
}

TEST(PrefixTreeEvict, GivesUpExactlyAsManyPagesAsAsked) {
  for (std::uint32_t count = 0; count <= 7; ++count) {
    TestTree tree(kOneToken);
    tree.add({1, 2, 3, 4});
    tree.add({1, 2, 5});
    tree.add({6, 7});
    EXPECT_EQ(tree.evict(count).size(), count);
    EXPECT_EQ(tree->page_count(), 7 - count);
  }
}

TEST(PrefixTreeEvict, GivesUpAllThereIsWhenMoreIsAskedFor) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({1, 4});
  EXPECT_EQ(tree.evict(100).size(), 4U);
  EXPECT_EQ(tree->run_count(), 0U);
  EXPECT_TRUE(tree->is_empty(tree.root()));
}

TEST(PrefixTreeEvict, ARunLosesItsTailFirst) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  EXPECT_EQ(tree.evict(1), (Pages{3}));
  EXPECT_EQ(tree.evict(2), (Pages{1, 2}));
  EXPECT_EQ(tree.shape(), "1: 0\n");
  EXPECT_EQ(tree.pages_of({1, 2, 3, 4}), (Pages{0}));
}

TEST(PrefixTreeEvict, ATrimmedRunStaysTheNextVictim) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({4, 5});
  EXPECT_EQ(tree.evict(1), (Pages{2}));
  EXPECT_EQ(tree.evict(3), (Pages{0, 1, 4}));
}

TEST(PrefixTreeEvict, ATrimmedRunCanGrowAgain) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3, 4});
  tree.evict(2);
  tree.add({1, 2, 7, 8});
  EXPECT_EQ(tree.shape(), "1 2 7 8: 0 1 4 5\n");
}

TEST(PrefixTreeEvict, WithWholeRunsAWholeRunGoesEvenForOnePage) {
  TestTree tree(kWholeRuns);
  tree.add({1, 2, 3, 4});
  tree.add({5});
  EXPECT_EQ(tree.evict(1), (Pages{0, 1, 2, 3}));
  EXPECT_EQ(tree.evict(1), (Pages{4}));
}

TEST(PrefixTreeEvict, TheSinkSeesOneRunAtATime) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({4, 5});
  tree.add({6, 7});
  EXPECT_EQ(tree.evict_in_runs(6), (std::vector<Pages>{{0, 1, 2}, {3, 4}, {6}}));
}

TEST(PrefixTreeEvict, TheLeastRecentlyIdleGoesFirst) {
  TestTree tree(kOneToken);
  tree.add({1});
  tree.add({2});
  tree.add({3});
  tree.pin({1}).reset();
  EXPECT_EQ(tree.evict(3), (Pages{1, 2, 0}));
}

TEST(PrefixTreeEvict, AMatchAloneIsNoUse) {
  TestTree tree(kOneToken);
  tree.add({1});
  tree.add({2});
  static_cast<void>(tree.match({1}));
  EXPECT_EQ(tree.evict(1), (Pages{0}));
}

TEST(PrefixTreeEvict, TheEndOfAUseCountsNotItsBeginning) {
  TestTree tree(kOneToken);
  PrefixTree::Pin first = tree.insert({1});
  PrefixTree::Pin second = tree.insert({2});
  second.reset();
  first.reset();
  EXPECT_EQ(tree.evict(2), (Pages{1, 0}));
}

TEST(PrefixTreeEvict, LeavesGoBeforeTheirParents) {
  TestTree tree(kWholeRuns);
  tree.add({1});
  tree.add({1, 2});
  tree.add({1, 2, 3});
  EXPECT_EQ(tree.evict_in_runs(3), (std::vector<Pages>{{2}, {1}, {0}}));
}

TEST(PrefixTreeEvict, AParentIsAsRecentAsItsMostRecentChild) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({9});
  tree.add({1, 2, 4});
  EXPECT_EQ(tree.evict(10), (Pages{2, 3, 4, 0, 1}));
}

TEST(PrefixTreeEvict, AParentGoesInTheSameCallAsItsLastChild) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({1, 4});
  EXPECT_EQ(tree.evict_in_runs(4), (std::vector<Pages>{{1, 2}, {3}, {0}}));
}

TEST(PrefixTreeEvict, PinnedRunsArePassedOver) {
  TestTree tree(kOneToken);
  const PrefixTree::Pin pin = tree.insert({1, 2});
  tree.add({3, 4});
  tree.add({1, 2, 5});
  EXPECT_EQ(tree.evict(10), (Pages{2, 3, 4}));
  EXPECT_EQ(tree.evict(10), Pages{});
}

TEST(PrefixTreeEvict, EvictedTokensMatchNoMore) {
  TestTree tree({.page_tokens = 4, .page_count_max = 10});
  tree.add(token_range(0, 12));
  tree.evict(1);
  const PrefixTree::Match match = tree.match(token_range(0, 12));
  EXPECT_EQ(match.page_count, 2U);
  EXPECT_EQ(match.partial_tokens, 0U);
}

// evict_all

TEST(PrefixTreeEvict, EvictingAllOfAKeySpaceLeavesNothing) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  tree.add({1, 2, 4, 5});
  tree.add({6});
  EXPECT_EQ(tree.evict_all(tree.root()).size(), 6U);
  EXPECT_TRUE(tree->is_empty(tree.root()));
}

TEST(PrefixTreeEvict, EvictingAllOfAnEmptyKeySpaceGivesUpNothing) {
  TestTree tree(kOneToken);
  EXPECT_EQ(tree.evict_all(tree.root()), Pages{});
}

TEST(PrefixTreeEvict, EvictingAllLeavesWhatIsPinned) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  const PrefixTree::Pin pin = tree.pin({1, 2});
  tree.add({1, 2, 4, 5});
  tree.add({6});
  EXPECT_EQ(tree.evict_all(tree.root()).size(), 4U);
  EXPECT_EQ(tree.shape(), "1 2: 0 1\n");
}

TEST(PrefixTreeEvict, EvictingAllGivesUpWhatIsSoftlyPinned) {
  TestTree tree(kOneToken);
  tree.add({1, 2, 3});
  PrefixTree::SoftPin pin = tree.soft_pin({1, 2, 3});
  EXPECT_EQ(tree.evict_all(tree.root()), (Pages{0, 1, 2}));
  EXPECT_EQ(tree->view(tree.root()).soft_pin_count, 0U);
  pin.reset();
  EXPECT_EQ(tree.broken_rule(), "");
}

// Policies that know no leaves

/// Names the run that was sealed first, whether it has children or not.
class SealedFirst : public Policy {
 public:
  Status reserve(const PolicyLimits& /*limits*/) override { return {}; }
  void on_seal(RunId run, const PageChange& /*added*/) override {
    if (!contains(run)) runs_.push_back({.run = run, .is_idle = false});
  }
  void on_split(RunId suffix, RunId prefix, std::uint32_t /*prefix_pages*/) override {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i].run != suffix) continue;
      runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(i), {.run = prefix, .is_idle = runs_[i].is_idle});
      return;
    }
  }
  void on_pin(RunId run) override { set_idle(run, false); }
  void on_idle(RunId run) override { set_idle(run, true); }
  void on_remove(RunId run, const PageChange& /*lost*/) override {
    std::erase_if(runs_, [&](const Entry& entry) { return entry.run == run; });
  }
  std::optional<RunId> next_victim() override {
    for (const Entry& entry : runs_) {
      if (entry.is_idle) return entry.run;
    }
    return std::nullopt;
  }
  [[nodiscard]] std::uint32_t idle_run_count() const override {
    return static_cast<std::uint32_t>(std::ranges::count(runs_, true, &Entry::is_idle));
  }

 private:
  struct Entry {
    RunId run;
    bool is_idle;
  };
  [[nodiscard]] bool contains(RunId run) const { return std::ranges::find(runs_, run, &Entry::run) != runs_.end(); }
  void set_idle(RunId run, bool is_idle) {
    for (Entry& entry : runs_) entry.is_idle = entry.run == run ? is_idle : entry.is_idle;
  }

  std::vector<Entry> runs_;
};

TEST(PrefixTreeEvict, APolicyThatNamesARunWithChildrenStillTakesLeavesFirst) {
  TestTree tree(kWholeRuns, std::make_unique<SealedFirst>());
  tree.add({1});
  tree.add({1, 2});
  tree.add({1, 2, 3});
  tree.add({9});
  EXPECT_EQ(tree.evict_in_runs(4), (std::vector<Pages>{{2}, {1}, {0}, {3}}));
}

TEST(PrefixTreeEvict, APolicyThatNamesARunWithChildrenTrimsByThePageToo) {
  TestTree tree(kOneToken, std::make_unique<SealedFirst>());
  tree.add({1, 2});
  tree.add({1, 2, 3, 4});
  tree.add({1, 2, 5});
  tree.add({9});
  EXPECT_EQ(tree->run_count(), 4U);
  EXPECT_EQ(tree.evict(3).size(), 3U);
  EXPECT_EQ(tree.shape(),
            "1 2: 0 1\n"
            "9: 5\n");
}

TEST(PrefixTreeEvict, OfARunWithChildrenTheLeastRecentlyUsedBranchGoes) {
  TestTree tree(kOneToken, std::make_unique<SealedFirst>());
  tree.add({1});
  tree.add({1, 2, 3, 4});  // pages 1 to 3
  tree.add({1, 5, 6, 7});  // pages 4 to 6
  tree.add({1, 2, 3, 4});
  EXPECT_EQ(tree.evict(1), (Pages{6}));
  // Between two evictions the other branch becomes the less recent one.
  tree.add({1, 5, 6});
  EXPECT_EQ(tree.evict(1), (Pages{3}));
  tree.add({1, 2, 3});
  EXPECT_EQ(tree.evict(2), (Pages{4, 5}));
}

TEST(PrefixTreeEvict, APolicyThatKnowsNoLeavesNeverReachesBelowAPin) {
  TestTree tree(kWholeRuns, std::make_unique<SealedFirst>());
  tree.add({1});
  tree.add({1, 2});
  const PrefixTree::Pin pin = tree.pin({1, 2});
  tree.add({1, 3});
  EXPECT_EQ(tree.evict(10), (Pages{2}));
}

TEST(PrefixTreeEvictDeathTest, APolicyThatNamesAPinnedRunStopsTheProgram) {
  /// Says that run 1 is idle, whatever the tree told it.
  class NamesRunOne final : public SealedFirst {
   public:
    std::optional<RunId> next_victim() override { return RunId{1}; }
  };
  TestTree tree(kOneToken, std::make_unique<NamesRunOne>());
  const PrefixTree::Pin pin = tree.insert({1});
  EXPECT_DEATH(tree.evict(1), "the policy named a run that is not idle");
}

}  // namespace
}  // namespace quire
