// SPDX-License-Identifier: Apache-2.0
//
// What the tree tells its policy: children, fingerprints, wishes.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::TestTree;
using Lines = std::vector<std::string>;

/// What it was told, as lines; runs by the order they appeared in.
struct Told {
  Lines lines;
  std::vector<std::vector<PageFingerprint>> sealed;
  std::vector<std::vector<PageFingerprint>> lost;
};

class Listens final : public Policy {
 public:
  Listens(Told& told, bool wants_fingerprints) : told_(told), wants_fingerprints_(wants_fingerprints) {}
  Status reserve(const PolicyLimits& /*limits*/) override { return {}; }
  [[nodiscard]] bool wants_fingerprints() const override { return wants_fingerprints_; }
  void on_seal(RunId run, const PageChange& added) override {
    say("seal", run,
        std::to_string(added.page_count) + " of " + std::to_string(added.pages_left) + " priority " +
            std::to_string(added.retention.priority));
    told_.sealed.emplace_back(added.fingerprints.begin(), added.fingerprints.end());
  }
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override {
    say("split", suffix, std::to_string(prefix.value) + " takes " + std::to_string(prefix_pages));
    if (is_idle(suffix)) idle_.push_back(prefix);
  }
  void on_use(RunId run, const Retention& retention) override {
    say("use", run, "priority " + std::to_string(retention.priority));
  }
  void on_pin(RunId run) override { std::erase(idle_, run); }
  void on_idle(RunId run) override { idle_.push_back(run); }
  void on_branch(RunId run) override { say("branch", run); }
  void on_leaf(RunId run) override { say("leaf", run); }
  void on_trim(RunId run, const PageChange& lost) override { lose("trim", run, lost); }
  void on_remove(RunId run, const PageChange& lost) override {
    lose("remove", run, lost);
    std::erase(idle_, run);
  }
  std::optional<RunId> next_victim() override { return idle_.empty() ? std::nullopt : std::optional(idle_.front()); }
  [[nodiscard]] std::uint32_t idle_run_count() const override { return static_cast<std::uint32_t>(idle_.size()); }

 private:
  [[nodiscard]] bool is_idle(RunId run) const { return std::ranges::find(idle_, run) != idle_.end(); }
  void say(const std::string& what, RunId run, const std::string& more = "") {
    told_.lines.push_back(what + " " + std::to_string(run.value) + (more.empty() ? "" : ": " + more));
  }
  void lose(const std::string& what, RunId run, const PageChange& lost) {
    say(what, run, std::to_string(lost.page_count) + ", " + std::to_string(lost.pages_left) + " left");
    told_.lost.emplace_back(lost.fingerprints.begin(), lost.fingerprints.end());
  }

  Told& told_;
  bool wants_fingerprints_;
  std::vector<RunId> idle_;
};

class PrefixTreePolicy : public ::testing::Test {
 protected:
  void make(std::uint32_t page_tokens, bool wants_fingerprints = true) {
    tree_ = std::make_unique<TestTree>(
        PrefixTreeConfig{.page_tokens = page_tokens, .page_count_max = 50, .root_count_max = 3},
        std::make_unique<Listens>(told_, wants_fingerprints));
  }

  Told told_;
  std::unique_ptr<TestTree> tree_;
};

TEST_F(PrefixTreePolicy, HearsOfFirstAndLastChildrenOnly) {
  make(1);
  tree_->add({1, 2});     // run 1
  tree_->add({1, 2, 3});  // grows
  tree_->add({1, 9});     // splits it: run 2 before, run 3 beside
  tree_->add({1, 8});     // run 4 beside
  tree_->evict(10);
  EXPECT_EQ(told_.lines, (Lines{"seal 1: 2 of 2 priority 0", "use 1: priority 0", "seal 1: 1 of 3 priority 0",
                                "split 1: 2 takes 1", "use 2: priority 0", "seal 3: 1 of 1 priority 0",
                                "use 2: priority 0", "seal 4: 1 of 1 priority 0", "remove 1: 2, 0 left",
                                "remove 3: 1, 0 left", "remove 4: 1, 0 left", "leaf 2", "remove 2: 1, 0 left"}));
}

TEST_F(PrefixTreePolicy, HearsOfABranchWhenARunGetsItsFirstChild) {
  make(1);
  PrefixTree::Pin pin = tree_->insert({1});
  PrefixTree::Pin other = tree_->pin({1});  // so that it cannot grow in place
  tree_->extend(other, {.tokens = {1, 2}, .extra_keys = {}}, 10);
  EXPECT_EQ(told_.lines.at(2), "branch 1");
  EXPECT_EQ(told_.lines.at(3), "seal 2: 1 of 1 priority 0");
}

TEST_F(PrefixTreePolicy, HearsWhatSequencesWish) {
  make(1);
  tree_->add({1});
  const PrefixTree::Pin pin = (*tree_)->pin(tree_->match({1}), {.priority = 7});
  EXPECT_EQ(told_.lines.back(), "use 1: priority 7");
}

TEST_F(PrefixTreePolicy, AFingerprintDependsOnThePageAndOnEverythingBeforeIt) {
  make(2);
  tree_->add({1, 2, 3, 4, 5, 6});
  tree_->add({1, 2, 3, 4, 7, 8});
  tree_->add({9, 9, 3, 4, 5, 6});
  ASSERT_EQ(told_.sealed.size(), 3U);
  EXPECT_EQ(told_.sealed[0].size(), 3U);
  EXPECT_EQ(told_.sealed[1].size(), 1U);
  std::vector<PageFingerprint> all;
  for (const auto& each : told_.sealed) all.insert(all.end(), each.begin(), each.end());
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end()) << "two different pages look alike";
}

TEST_F(PrefixTreePolicy, WhatComesBackHasTheFingerprintsItWasLostWith) {
  make(2);
  tree_->add({1, 2, 3, 4, 5, 6});
  tree_->evict(1);
  tree_->evict(2);
  tree_->add({1, 2, 3, 4});
  tree_->add({1, 2, 3, 4, 5, 6});
  ASSERT_EQ(told_.sealed.size(), 3U);
  ASSERT_EQ(told_.lost.size(), 2U);
  EXPECT_EQ(told_.lost[0], std::vector{told_.sealed[0][2]});
  EXPECT_EQ(told_.lost[1], (std::vector{told_.sealed[0][0], told_.sealed[0][1]}));
  EXPECT_EQ(told_.sealed[1], told_.lost[1]);
  EXPECT_EQ(told_.sealed[2], told_.lost[0]);  // behind a match, as before
}

TEST_F(PrefixTreePolicy, KeySpacesAndExtraKeysHaveFingerprintsOfTheirOwn) {
  make(2);
  tree_->add({1, 2});
  tree_->add((*tree_)->add_root(), {.tokens = {1, 2}, .extra_keys = {}});
  tree_->add(tree_->root(), {.tokens = {1, 2}, .extra_keys = {testing::extra_key(0, 1, 5)}});
  ASSERT_EQ(told_.sealed.size(), 3U);
  EXPECT_NE(told_.sealed[0], told_.sealed[1]);
  EXPECT_NE(told_.sealed[0], told_.sealed[2]);
  EXPECT_NE(told_.sealed[1], told_.sealed[2]);
}

TEST_F(PrefixTreePolicy, OfWhatWasDroppedNoFingerprintsAreGiven) {
  make(1);
  tree_->add({1, 2});
  (*tree_)->evict_all(tree_->root(), ResidencyCause::Dropped, [](auto) {});
  ASSERT_EQ(told_.lost.size(), 1U);
  EXPECT_TRUE(told_.lost[0].empty());
}

TEST_F(PrefixTreePolicy, WhoDoesNotWantFingerprintsGetsNone) {
  make(1, false);
  tree_->add({1, 2});
  tree_->evict(2);
  EXPECT_TRUE(told_.sealed.at(0).empty());
  EXPECT_TRUE(told_.lost.at(0).empty());
}

TEST_F(PrefixTreePolicy, OfARunWithChildrenTheLeastRecentlyUsedLeafGoes) {
  make(1);
  tree_->add({1, 2});
  tree_->add({1, 3});
  tree_->add({1, 4});
  tree_->add({1, 3});
  // The policy names runs in the order they became idle; the leaf {1, 2} was the first.
  EXPECT_EQ(tree_->evict(1), (testing::Pages{1}));
}

}  // namespace
}  // namespace quire
