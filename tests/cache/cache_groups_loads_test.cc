// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores of layouts of several groups, which the test moves itself: when they begin, how they end, and who
// waits for them.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"

namespace quire {
namespace {

class CacheGroupsLoadsTest : public CacheGroupsTest {
 protected:
  struct Taken {
    TransferPlan plan;
    std::vector<PageTransfer> pages;
  };

  [[nodiscard]] static CacheConfig host_config(std::vector<CacheGroup> groups, std::uint32_t page_count = 64) {
    CacheConfig config = groups_config(std::move(groups), 4, page_count, 128);
    config.host.page_count = 2 * page_count;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.host.external_mover = true;
    return config;
  }
  [[nodiscard]] std::vector<Taken> take() {
    std::array<TransferPlan, 64> plans;
    std::vector<Taken> taken;
    const std::span<const TransferPlan> given = cache_->take_transfers(plans).value();
    for (const TransferPlan& plan : given) {
      taken.push_back({.plan = plan, .pages = {plan.pages.begin(), plan.pages.end()}});
    }
    return taken;
  }
  /// Of groups that keep everything, the first has all bytes.
  void move(const Taken& taken) {
    std::uint32_t side = 0;
    const std::span<const CacheGroup> groups = cache_->config().layout.groups();
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      const bool is_history = groups[g].kind == GroupKind::Full || groups[g].kind == GroupKind::Compressed;
      if (!has_pages(groups[g])) continue;
      if (taken.plan.pool_index != (is_history ? 0 : ++side)) continue;
      const std::uint64_t bytes = cache_->geometry(g).page().page_bytes();
      for (const PageTransfer& page : taken.pages) {
        std::byte* const device = cache_->device_memory(g) + (page.device_page.value * bytes);
        std::vector<std::byte>& host = host_[{g, page.host_page.value}];
        host.resize(bytes);
        if (taken.plan.kind == TransferKind::Store) {
          std::memcpy(host.data(), device, bytes);
        } else {
          std::memcpy(device, host.data(), bytes);
        }
      }
    }
  }
  void report(const Taken& taken, const Completion& how = {}) {
    Completion completion = how;
    completion.id = taken.plan.id;
    completion.kind = taken.plan.kind;
    ASSERT_TRUE(cache_->apply({&completion, 1}, now_));
  }
  void finish(const Taken& taken) {
    move(taken);
    report(taken);
  }
  using CacheGroupsTest::finish;
  void settle() {
    for (std::vector<Taken> taken = take(); !taken.empty(); taken = take()) {
      for (const Taken& each : taken) finish(each);
    }
  }
  /// Everything that the device has of a group goes, but for what the host has of it.
  void fill_side_pool(std::uint32_t group) {
    const std::uint64_t before = group_stats(group).evicted_page_total;
    for (TokenId other = 1; group_stats(group).evicted_page_total < before + group_stats(group).page_count; ++other) {
      ASSERT_LT(other, 200);
      run_request(with_tail({}, other, 40));
      settle();
    }
  }
  [[nodiscard]] static const Taken* load_of(const std::vector<Taken>& taken, std::uint16_t pool_index) {
    for (const Taken& each : taken) {
      if (each.plan.kind == TransferKind::Load && each.plan.pool_index == pool_index) return &each;
    }
    return nullptr;
  }
  /// A cache whose window of 24 tokens is on the host, and only there; the history is on the device as well.
  void open_with_window_on_host(TimeNs load_timeout_ns = 0, std::uint32_t rank_count = 1) {
    CacheConfig config = host_config({full_group(), window_group(10)}, 256);
    config.device.group_page_counts = {256, 14};
    config.host.group_page_counts = {512, 512};
    config.host.load_timeout_ns = load_timeout_ns;
    config.host.rank_count = rank_count;
    open(std::move(config));
  }
  void cache_prompt() {
    run_request(prompt_);
    settle();
    fill_side_pool(1);
  }

  const std::vector<TokenId> prompt_ = token_range(0, 40);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::byte>> host_;
  TimeNs now_ = 0;
};

TEST_F(CacheGroupsLoadsTest, AWindowComesBackFromTheHost) {
  open_with_window_on_host();
  cache_prompt();
  EXPECT_EQ(lookup(with_tail(prompt_, 1, 4)).matched_tokens, 0U);
  EXPECT_EQ(lookup(with_tail(prompt_, 1, 4)).host_tokens, 40U);
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  EXPECT_FALSE(request.admission.is_ready);
  settle();
  EXPECT_EQ(view(request).computed_tokens, 40U);
  EXPECT_GT(group_stats(1).loaded_page_total, 0U);
  run_all(request);
}

// Pages that a window has passed go through the host, and make no room there in the place of what is kept.
TEST_F(CacheGroupsLoadsTest, ALongAnswerNeverEvictsFromTheHostWhatRequestsComeBackTo) {
  CacheConfig config = host_config({full_group(), window_group(10)}, 600);
  config.context_tokens_max = 2'000;
  config.device.group_page_counts = {600, 14};
  config.host.group_page_counts = {1'200, 24};
  open(std::move(config));
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

TEST_F(CacheGroupsLoadsTest, OneLoadServesAllWhoWaitForIt) {
  open_with_window_on_host();
  cache_prompt();
  GroupsRequest first = start(with_tail(prompt_, 1, 4));
  GroupsRequest second = start(with_tail(prompt_, 2, 4));
  const std::vector<Taken> taken = take();
  EXPECT_EQ(taken.size(), 1U);
  EXPECT_TRUE(view(second).is_loading);
  finish(taken[0]);
  for (GroupsRequest* each : {&first, &second}) {
    EXPECT_FALSE(view(*each).is_loading);
    EXPECT_EQ(view(*each).computed_tokens, 40U);
    run_all(*each);
  }
  EXPECT_GT(group_stats(1).loaded_page_total, 0U);
}

TEST_F(CacheGroupsLoadsTest, ALoadThatTakesTooLongHasFailed) {
  open_with_window_on_host(/*load_timeout_ns=*/1'000);
  cache_prompt();
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  const std::vector<Taken> taken = take();
  ASSERT_EQ(taken.size(), 1U);
  now_ = 999;
  ASSERT_TRUE(cache_->apply({}, now_));
  EXPECT_TRUE(view(request).is_loading);
  now_ = 1'000;
  ASSERT_TRUE(cache_->apply({}, now_));
  EXPECT_FALSE(view(request).is_loading);
  EXPECT_EQ(view(request).computed_tokens, 0U);
  EXPECT_EQ(cache_->stats()->load_outcomes[static_cast<std::size_t>(TransferOutcome::TimedOut)], 1U);
  run_all(request);  // while the mover still writes: into pages that nobody has
  finish(taken[0]);
  expect_invariants();
  end(request);
  EXPECT_EQ(run_request(with_tail(prompt_, 2, 4)), 40U);
}

TEST_F(CacheGroupsLoadsTest, ALoadThatNobodyWaitsForIsNotBegun) {
  open_with_window_on_host();
  cache_prompt();
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

TEST_F(CacheGroupsLoadsTest, APageThatIsNotWhatItShouldBeIsForgottenAndCounted) {
  open_with_window_on_host();
  cache_prompt();
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  const std::vector<Taken> taken = take();
  move(taken[0]);
  report(taken[0], {.outcome = TransferOutcome::Failed, .fault = TransferFault::Checksum, .good_pages = 1});
  EXPECT_EQ(view(request).computed_tokens, 0U);
  EXPECT_EQ(cache_->stats()->load_faults[static_cast<std::size_t>(TransferFault::Checksum)], 1U);
  EXPECT_EQ(cache_->stats()->load_outcomes[static_cast<std::size_t>(TransferOutcome::Failed)], 1U);
  expect_invariants();
  run_all(request);
}

// The first stops for another reason, and says nothing against the page.
TEST_F(CacheGroupsLoadsTest, OfSeveralRanksTheOneThatStoppedFirstSaysWhy) {
  CacheConfig config = host_config({full_group(), window_group(10)}, 256);
  config.device.group_page_counts = {256, 14};
  config.host.group_page_counts = {512, 512};
  config.host.rank_count = 2;
  open(std::move(config));
  const auto settle_ranks = [&] {
    for (std::vector<Taken> taken = take(); !taken.empty(); taken = take()) {
      for (const Taken& each : taken) {
        move(each);
        report(each);
        report(each, {.rank = 1});
      }
    }
  };
  run_request(prompt_);
  settle_ranks();
  for (TokenId other = 1; group_stats(1).evicted_page_total < 20; ++other) {
    run_request(with_tail({}, other, 40));
    settle_ranks();
  }
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  const std::vector<Taken> taken = take();
  ASSERT_EQ(taken.size(), 1U);
  move(taken[0]);
  report(taken[0], {.outcome = TransferOutcome::Failed, .fault = TransferFault::Io, .good_pages = 0});
  report(taken[0], {.outcome = TransferOutcome::Failed, .fault = TransferFault::Checksum, .rank = 1, .good_pages = 2});
  end(request);
  EXPECT_EQ(lookup(with_tail(prompt_, 1, 4)).host_tokens, 40U) << "all of it is still there";
}

// Of a window of 7 in pages of 4, with 3 of them: one is idle and copied, and another, which is held, is being copied.
TEST_F(CacheGroupsLoadsTest, PagesThatAreHeldAndCopiedAreNotCountedTwice) {
  CacheConfig config = host_config({full_group(), window_group(7)});
  config.device.group_page_counts = {64, 3};
  open(std::move(config));
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
  for (const Taken& each : taken) finish(each);
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
  open(std::move(config));
  GroupsRequest request = start(token_range(0, 6));
  run_all(request, {});
  settle();
  append(request, {6});
  step(request);
  settle();
  const auto has_side_store = [&](const std::vector<Taken>& taken) {
    return std::ranges::any_of(taken, [](const Taken& each) { return each.plan.pool_index == 1; });
  };
  commit_second_branch(request);
  ASSERT_EQ(view(request).computed_tokens, 9U);
  EXPECT_FALSE(has_side_store(take())) << "the moves come with the next plan";
  append(request, {80});
  const StepEntry entry{.sequence = &request.sequence};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  ASSERT_TRUE(outcome.step.has_value());
  EXPECT_FALSE(outcome.step->plan.groups[1].moves.empty());
  EXPECT_FALSE(has_side_store(take())) << "the step may not have run yet";
  ASSERT_TRUE(cache_->apply_copies(*outcome.step));
  const StepResult result;
  ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
  EXPECT_TRUE(has_side_store(take()));
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
