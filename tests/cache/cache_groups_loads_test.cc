// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores of layouts of several groups, which the test moves itself: when they begin, how they end, and who
// waits for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "groups_tiers_fixture.h"

namespace quire {
namespace {

using CacheGroupsLoadsTest = CacheGroupsTiersTest;

// Pages that a window has passed go through the host, and make no room there in the place of what is kept.
TEST_F(CacheGroupsLoadsTest, ALongAnswerNeverEvictsFromTheHostWhatRequestsComeBackTo) {
  CacheConfig config = host_config({full_group(), window_group(10)}, 600);
  config.context_tokens_max = 2'000;
  config.device.group_page_counts = {600, 14};
  config.host.group_page_counts = {1'200, 24};
  open_tiers(std::move(config));
  run_request(prompt_);
  settle();
  GroupsRequest longer = start(with_tail({}, 1, 10));
  run_all(longer);
  for (std::uint32_t i = 0; i < 300; ++i) {
    append(longer, token_range(static_cast<TokenId>(10'000 + (4 * i)), 4));
    run_all(longer);
    settle();
  }
  EXPECT_EQ(lookup(with_tail(prompt_, 1, 4)).matched_tokens + lookup(with_tail(prompt_, 1, 4)).host_tokens, 40U);
}

TEST_F(CacheGroupsLoadsTest, ALoadThatNobodyWaitsForIsNotBegun) {
  open_tiers(two_groups(window_group(10)));
  put_on_host({prompt_});
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  ASSERT_TRUE(cache_->stop_loading(request.sequence));
  EXPECT_FALSE(view(request).is_loading);
  EXPECT_TRUE(take().empty());
  GroupsRequest second = start(with_tail(prompt_, 2, 4));
  EXPECT_TRUE(view(second).is_loading);
  end(second);
  EXPECT_TRUE(take().empty());
  expect_invariants();
}

// Of a window of 7 in pages of 4, with 3 of them: one is idle and copied, and another, which is held, is being copied.
TEST_F(CacheGroupsLoadsTest, PagesThatAreHeldAndCopiedAreNotCountedTwice) {
  CacheConfig config = host_config({full_group(), window_group(7)});
  config.device.group_page_counts = {64, 3};
  open_tiers(std::move(config));
  GroupsRequest request = start(token_range(0, 12));
  run_all(request, {}, 4);
  settle();
  append(request, token_range(100, 3));
  run_all(request);
  append(request, {200});
  step(request);  // the page is full, and a store of it is on its way
  std::vector<Taken> taken = take();
  EXPECT_FALSE(taken.empty());
  append(request, {201});
  step(request);
  move(taken);
  settle();
}

// Committed trees

class CacheGroupsMovesTest : public CacheGroupsLoadsTest {
 protected:
  /// Two tokens behind six: the tree's second branch is taken, so that its row has to move.
  void commit_second_branch(GroupsRequest& request) {
    const std::array<std::int32_t, 3> parents = {-1, -1, 1};
    const StepEntry entry{.sequence = &request.sequence, .tree_parents = parents};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    ASSERT_TRUE(outcome.step.has_value());
    ASSERT_TRUE(cache_->apply_copies(*outcome.step));
    const std::array<TokenId, 3> values = {71, 72, 73};
    const StepResult result{.tokens = values};
    ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
    ASSERT_TRUE(cache_->commit_tree(request.sequence, 2));
    request.tokens.push_back(72);
    request.tokens.push_back(73);
  }
};

TEST_F(CacheGroupsMovesTest, APageIsCopiedWhenItsMovesAreMade) {
  CacheConfig config = host_config({full_group(), window_group(10)});
  config.tree_tokens_max = 8;
  open_tiers(std::move(config));
  GroupsRequest request = start(token_range(0, 6));
  run_all(request, {});
  settle();
  append(request, {6});
  step(request);
  settle();
  const auto stores_the_window = [&](const std::vector<Taken>& taken) {
    return std::ranges::any_of(taken, [](const Taken& each) { return each.plan.pool_index == kAnchored; });
  };
  commit_second_branch(request);
  ASSERT_EQ(view(request).computed_tokens, 9U);
  EXPECT_FALSE(stores_the_window(take())) << "the moves come with the next plan";
  append(request, {80});
  const StepEntry entry{.sequence = &request.sequence};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  ASSERT_TRUE(outcome.step.has_value());
  EXPECT_FALSE(outcome.step->plan.groups[1].moves.empty());
  EXPECT_FALSE(stores_the_window(take())) << "the step may not have run yet";
  ASSERT_TRUE(cache_->apply_copies(*outcome.step));
  const StepResult result;
  ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
  EXPECT_TRUE(stores_the_window(take()));
}

// Forks

// B waits in the middle of a page; C computes the same page, and its window passes; then A completes it.
TEST_F(CacheGroupsLoadsTest, AForkHoldsNoPageOfAGroupWhoseHistoryItDoesNotHold) {
  open(groups_config({full_group(), window_group(6, kLast)}, 4, 64, 128));
  GroupsRequest a = start(token_range(0, 10));
  run_all(a);
  GroupsRequest b = fork(a, 10);
  GroupsRequest c = start(token_range(0, 32));
  run_all(c, {}, 4);
  append(a, {10, 11, 12, 13});
  run_all(a);
  end(a);
  end(c);
  EXPECT_TRUE(cache_->reclaim(64).has_value());
  expect_invariants();
  append(b, {50});
  run_all(b);
}

}  // namespace
}  // namespace quire
