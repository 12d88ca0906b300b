// SPDX-License-Identifier: Apache-2.0
//
// Pages of groups that do not keep everything: how many a sequence holds, when they are freed, who goes first, and what
// a step that is short in one of several groups leaves behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cache_groups_fixture.h"
#include "quire/budget.h"

namespace quire {
namespace {

// How many pages a sequence holds

// What the last of n tokens saw, and what may be taken back.
std::uint32_t window_pages(std::uint32_t n, std::uint32_t held_tokens, std::uint32_t page_tokens,
                           std::uint32_t sink_tokens = 0) {
  const std::uint32_t end = (n + page_tokens - 1) / page_tokens;
  const std::uint32_t first = (n - std::min(n, held_tokens)) / page_tokens;
  const std::uint32_t sink_pages = std::min((sink_tokens + page_tokens - 1) / page_tokens, end);
  return end - std::max(first, sink_pages) + sink_pages;
}

TEST_F(CacheGroupsTest, AWindowHoldsThePagesOfItsLastTokensAfterEveryStep) {
  CacheConfig config = groups_config({full_group(), window_group(20), named(window_group(50), "wide")}, 8, 64, 256);
  config.window_rewind_tokens = 5;
  open(std::move(config));
  GroupsRequest request = start(token_range(0, 30), {.publish = Publish::None});
  run_all(request, {30}, 7);
  BudgetRequest budget{.page = {.page_tokens = 8}, .in_flight_tokens = 1, .rewind_tokens = 5};
  for (std::uint32_t n = 31; n < 200; ++n) {
    step(request, {static_cast<TokenId>(n)});
    ASSERT_EQ(held_pages(0), (n + 7) / 8);
    ASSERT_EQ(held_pages(1), window_pages(n, 25, 8)) << n;
    ASSERT_EQ(held_pages(2), window_pages(n, 55, 8)) << n;
    for (const std::uint32_t g : {1U, 2U}) {
      ASSERT_LE(held_pages(g), pages_of_request(cache_->config().layout.groups()[g], budget, n));
    }
  }
  end(request);
}

TEST_F(CacheGroupsTest, PagesOfTheSinkStay) {
  const CacheGroup window = with_sink(window_group(20), 11);
  open(groups_config({full_group(), window}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30), {.publish = Publish::None});
  run_all(request, {30});
  for (std::uint32_t n = 31; n < 120; ++n) {
    step(request, {static_cast<TokenId>(n)});
    ASSERT_EQ(held_pages(1), window_pages(n, 20, 8, 11)) << n;
  }
  end(request);
  EXPECT_EQ(run_request(token_range(0, 80)), 0U);
  // What is found has its sink, too.
  EXPECT_EQ(run_request(with_tail(token_range(0, 80), 1, 50)), 80U);
}

TEST_F(CacheGroupsTest, AChunkLongerThanAWindowIsComputedInOneStep) {
  open(groups_config({full_group(), window_group(20)}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 200));
  const GroupsFlight flight = compute({{&request}});
  EXPECT_EQ(held_pages(1), 25U);
  finish(flight);
  EXPECT_EQ(held_pages(1), window_pages(200, 20, 8));
  decode(request, 30);
}

// The second step was planned while the first ran, and reads the window before it.
TEST_F(CacheGroupsTest, WindowPagesStayUntilTheStepThatReadsThemIsFinished) {
  open(groups_config({full_group(), window_group(16)}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 120), {.publish = Publish::None});
  step({{&request, 48}});
  EXPECT_EQ(held_pages(1), 2U);
  const GroupsFlight first = compute({{&request, 24}});
  const GroupsFlight second = compute({{&request, 24}});
  EXPECT_EQ(held_pages(1), 8U);
  finish(first);
  // Pages of tokens before 56 are of no use to the second step, and yet fenced: it was planned before they were.
  EXPECT_EQ(group_stats(1).fenced_pages, 3U);
  EXPECT_EQ(held_pages(1), 8U);
  finish(second);
  EXPECT_EQ(group_stats(1).fenced_pages, 0U);
  EXPECT_EQ(held_pages(1), 2U);
  run_all(request);
}

// A layout of windows only has a path all the same.
TEST_F(CacheGroupsTest, AModelOfWindowsAloneFindsAndForgetsLikeAnyOther) {
  open(groups_config({window_group(20), named(window_group(40), "wide")}, 8, 64, 256));
  EXPECT_EQ(run_request(token_range(0, 150)), 0U);
  EXPECT_EQ(run_request(with_tail(token_range(0, 120), 1, 30)), 120U);
  EXPECT_EQ(run_request(with_tail(token_range(0, 120), 2, 30)), 120U);
  expect_empty_after_reset();
}

// Short of pages

class CacheGroupsShortageTest : public CacheGroupsTest {
 protected:
  // The second window group is the one that is short: 20 pages for windows of 4.
  void open_short() {
    CacheConfig config =
        groups_config({full_group(), window_group(32), named(window_group(32), "second")}, 8, 128, 256);
    config.device.group_page_counts = {0, 100, 20};
    open(std::move(config));
  }
};

TEST_F(CacheGroupsShortageTest, AStepThatIsShortInTheSecondWindowGroupChangesNothing) {
  open_short();
  GroupsRequest a = start(token_range(0, 60));
  GroupsRequest b = start(token_range(1'000, 60));
  GroupsRequest c = start(token_range(2'000, 60));
  step({{&a, 30}, {&b, 30}});
  const std::string before = dump({&a, &b, &c});
  const std::uint64_t short_plans = cache_->stats()->short_plan_count;
  const std::vector<StepEntry> entries = {{&a.sequence}, {&b.sequence}, {&c.sequence}};
  const PlanOutcome outcome = cache_->plan_step(entries).value();
  EXPECT_FALSE(outcome.step.has_value());
  EXPECT_EQ(outcome.shortage.group_index, 2U);
  EXPECT_FALSE(outcome.shortage.is_of_history);
  EXPECT_EQ(outcome.shortage.pages_needed, 4U + 4U + 8U);
  EXPECT_EQ(outcome.shortage.pages_available, 12U);
  EXPECT_EQ(outcome.shortage.entries_that_fit, 2U);
  EXPECT_EQ(dump({&a, &b, &c}), before);
  EXPECT_EQ(cache_->stats()->short_plan_count, short_plans + 1);
  expect_invariants();

  step({{&a}, {&b}});
  run_all(c, {}, 24);
  decode(a, 40);
  decode(b, 40);
  decode(c, 40);
}

TEST_F(CacheGroupsShortageTest, TheTokensOfTheNextEntryThatFitAreTold) {
  open_short();
  GroupsRequest a = start(token_range(0, 60));
  GroupsRequest b = start(token_range(1'000, 120));
  std::vector<StepEntry> entries = {{&a.sequence}, {&b.sequence, 119}};
  const Shortage shortage = cache_->plan_step(entries)->shortage;
  EXPECT_EQ(shortage.pages_needed, 8U + 15U);
  EXPECT_EQ(shortage.entries_that_fit, 1U);
  EXPECT_EQ(shortage.fitting_tokens, 12U * 8);
  entries[1].token_count = shortage.fitting_tokens + 1;
  EXPECT_FALSE(cache_->plan_step(entries)->step.has_value());
  step({{&a}, {&b, shortage.fitting_tokens}});
  // Drafts stand behind all tokens: without them, fewer of these fit.
  GroupsRequest c = start(token_range(2'000, 120));
  const StepEntry with_drafts{.sequence = &c.sequence, .draft_count = 3};
  const Shortage of_drafts = cache_->plan_step({&with_drafts, 1})->shortage;
  EXPECT_EQ(of_drafts.fitting_tokens, of_drafts.pages_available * 8);
  step({{&c, of_drafts.fitting_tokens}});
  run_all(b, {}, 16);
}

TEST_F(CacheGroupsShortageTest, NoTokensFitWhereNoPageIsLeft) {
  open_short();
  GroupsRequest a = start(token_range(0, 160));
  GroupsRequest b = start(token_range(1'000, 60));
  GroupsRequest c = start(token_range(2'000, 60));
  const GroupsFlight first = compute({{&a, 152}});
  const std::vector<StepEntry> entries = {{&b.sequence, 8}, {&c.sequence}};
  const Shortage shortage = cache_->plan_step(entries)->shortage;
  EXPECT_EQ(shortage.pages_available, 1U);
  EXPECT_EQ(shortage.entries_that_fit, 1U);
  EXPECT_EQ(shortage.fitting_tokens, 0U);
  finish(first);
  step({{&b, 8}, {&c}});
}

TEST_F(CacheGroupsShortageTest, PagesThatReturnWithStepsInFlightAreCounted) {
  open_short();
  GroupsRequest a = start(token_range(0, 160), {.publish = Publish::None});
  GroupsRequest b = start(token_range(1'000, 96), {.publish = Publish::None});
  step({{&a, 64}});
  const GroupsFlight first = compute({{&a, 64}});
  const GroupsFlight second = compute({{&b, 64}});
  finish(first);
  const StepEntry entry{&a.sequence};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  EXPECT_FALSE(outcome.step.has_value());
  EXPECT_EQ(outcome.shortage.group_index, 2U);
  EXPECT_EQ(outcome.shortage.pages_returning, 8U);
  EXPECT_EQ(outcome.shortage.entries_that_fit, 0U);
  finish(second);
  step({{&a}});
  run_all(b);
}

TEST_F(CacheGroupsShortageTest, TheFirstGroupThatIsShortIsNamed) {
  CacheConfig config = groups_config({window_group(32), full_group(), named(window_group(32), "second")}, 8, 32, 256);
  config.device.group_page_counts = {8, 0, 8};
  open(std::move(config));
  GroupsRequest request = start(token_range(0, 200));
  const StepEntry entry{&request.sequence};
  PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  EXPECT_EQ(outcome.shortage.group_index, 0U);
  GroupsRequest other = start(token_range(1'000, 200));
  run_all(other, {}, 24);
  outcome = cache_->plan_step({&entry, 1}).value();
  EXPECT_EQ(outcome.shortage.group_index, 1U);
  EXPECT_TRUE(outcome.shortage.is_of_history);
}

// Who goes first

TEST_F(CacheGroupsTest, ALongAnswerNeverEvictsWhatRequestsComeBackTo) {
  CacheConfig config = groups_config({full_group(), window_group(32)}, 8, 200, 1'024);
  config.device.group_page_counts = {0, 16};
  open(std::move(config));
  run_request(token_range(0, 64));
  GroupsRequest request = start(token_range(5'000, 10));
  run_all(request, {6'000}, 32);
  decode(request, 600, 6'000);
  EXPECT_GT(group_stats(1).evicted_page_total, 50U);
  EXPECT_EQ(run_request(with_tail(token_range(0, 64), 1, 30)), 64U);
}

TEST_F(CacheGroupsTest, ALongAnswerNeverEvictsTheMiddleOfAPromptThatRequestsCameBackTo) {
  CacheConfig config = groups_config({full_group(), window_group(32)}, 8, 200, 1'024);
  config.device.group_page_counts = {0, 24};
  open(std::move(config));
  const std::vector<TokenId> shared = token_range(0, 64);
  run_request(with_tail(shared, 1, 40));
  EXPECT_EQ(run_request(with_tail(shared, 2, 40)), 64U);
  GroupsRequest request = start(token_range(5'000, 10));
  run_all(request, {6'000}, 32);
  decode(request, 600, 6'000);
  EXPECT_EQ(run_request(with_tail(shared, 3, 40)), 64U);
}

TEST_F(CacheGroupsTest, PassedPagesGoBeforeThoseOfPromptEnds) {
  CacheConfig config = groups_config({full_group(), window_group(16)}, 8, 200, 1'024);
  config.device.group_page_counts = {0, 20};
  open(std::move(config));
  run_request(token_range(0, 40));       // 2 pages of its end, 3 passed
  run_request(token_range(1'000, 80));   // 2 pages of its end, 8 passed
  run_request(token_range(2'000, 104));  // takes 5 that are free, and 8 of those passed
  EXPECT_EQ(group_stats(1).evicted_page_total, 8U);
  for (const TokenId first : {0, 1'000, 2'000}) {
    const std::uint32_t length = first == 0 ? 40 : first == 1'000 ? 80 : 104;
    EXPECT_EQ(lookup(with_tail(token_range(first, length), 1, 3)).matched_tokens, length);
  }
  EXPECT_EQ(lookup(with_tail(token_range(0, 24), 1, 3)).matched_tokens, 0U) << "what was passed first is gone first";
}

// Two sessions: the one that is used again keeps its snapshot, and a longer path does not keep the ones before it.
TEST_F(CacheGroupsTest, OnlyTheSnapshotThatWasUsedIsRefreshed) {
  CacheConfig config = groups_config({full_group(), state_group(0, every(32))}, 8, 200, 256);
  config.device.group_page_counts = {0, 5};
  open(std::move(config));
  run_request(token_range(0, 70));                                   // snapshots behind 32 and 64
  run_request(token_range(1'000, 70));                               // and here
  EXPECT_EQ(run_request(with_tail(token_range(0, 66), 1, 4)), 64U);  // uses that behind 64
  // Needs two more; one is free, so the oldest goes: that behind 32 of the first session.
  run_request(token_range(2'000, 70));
  EXPECT_EQ(group_stats(1).evicted_page_total, 1U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 40), 2, 5)).matched_tokens, 0U);
  EXPECT_EQ(lookup(with_tail(token_range(1'000, 40), 2, 5)).matched_tokens, 32U);
  run_request(token_range(3'000, 70));  // both of the second session
  EXPECT_EQ(lookup(with_tail(token_range(1'000, 70), 2, 5)).matched_tokens, 0U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 66), 2, 5)).matched_tokens, 64U);
}

// What the history's pages take with them

TEST_F(CacheGroupsTest, HistoryThatIsEvictedTakesItsAnchoredPagesWithIt) {
  open(groups_config({full_group(), window_group(32), state_group(0, every(32))}, 8, 40, 256));
  run_request(token_range(0, 100));
  run_request(token_range(1'000, 100));
  EXPECT_GT(group_stats(1).sealed_pages, 0U);
  EXPECT_EQ(cache_->reclaim(100).value(), 24U);
  for (std::uint32_t g = 0; g < 3; ++g) EXPECT_EQ(group_stats(g).free_pages, group_stats(g).page_count) << g;
  EXPECT_GT(group_stats(1).dropped_page_total, 0U);
  EXPECT_GT(group_stats(2).dropped_page_total, 0U);
  expect_invariants();
}

TEST_F(CacheGroupsTest, HistoryThatStepsNeedTakesItsAnchoredPagesWithIt) {
  open(groups_config({full_group(), window_group(32), state_group(0, every(32))}, 8, 32, 256));
  for (TokenId i = 0; i < 10; ++i) {
    run_request(token_range(i * 1'000, 150), {}, 40);
    expect_invariants();
  }
  EXPECT_GT(group_stats(0).evicted_page_total, 0U);
  EXPECT_GT(group_stats(2).dropped_page_total, 0U);
  expect_empty_after_reset();
}

TEST_F(CacheGroupsTest, ADroppedKeySpaceLeavesNoPageInAnyGroup) {
  open(groups_config({full_group(), window_group(32), state_group(0, every(32))}, 8, 40, 256));
  run_request(token_range(0, 100));
  GroupsRequest live = start(with_tail(token_range(0, 64), 1, 50));
  EXPECT_EQ(live.admission.matched_tokens, 64U);
  ASSERT_TRUE(cache_->drop(space_).has_value());
  expect_invariants();
  run_all(live);
  decode(live, 20);
  end(live);
  for (std::uint32_t g = 0; g < 3; ++g) EXPECT_EQ(group_stats(g).free_pages, group_stats(g).page_count) << g;
}

// What sequences hold of anchored groups, shared or not, stays theirs when the tree has given it up: windows, sources
// of tails, snapshots that are still to be restored.
TEST_F(CacheGroupsTest, ADroppedKeySpaceTakesNothingFromLiveSequences) {
  const CacheGroup sink = with_sink(named(window_group(12), "sink"), 3);
  CacheConfig config = groups_config(
      {full_group(), window_group(20), sink, ring_group(10, 12, every(16)), state_group(2, every(16))}, 8, 100, 256);
  config.steps_in_flight_max = 2;
  open(std::move(config));
  run_request(token_range(0, 100));
  GroupsRequest running = start(with_tail(token_range(0, 64), 1, 30));
  EXPECT_EQ(running.admission.matched_tokens, 64U);
  run_all(running, {70}, 20);
  GroupsRequest to_restore = start(with_tail(token_range(0, 80), 2, 30));
  EXPECT_EQ(to_restore.admission.matched_tokens, 80U);
  GroupsRequest child = fork(running, 93);
  append(child, {71});
  const GroupsFlight flight = plan({{&running}});
  ASSERT_TRUE(cache_->drop(space_).has_value());
  expect_invariants();
  space_ = cache_->key_space({.model = "other"}).value();
  EXPECT_EQ(lookup(token_range(0, 100)).matched_tokens, 0U);
  GroupsRequest stranger = start(token_range(0, 50));
  EXPECT_EQ(stranger.admission.matched_tokens, 0U);
  run(flight);
  finish(flight);
  for (GroupsRequest* each : {&running, &to_restore, &child, &stranger}) {
    run_all(*each, {80}, 9);
    decode(*each, 25);
    expect_invariants();
  }
  GroupsRequest grandchild = fork(child, view(child).computed_tokens);
  append(grandchild, {90});
  decode(grandchild, 25);
  for (GroupsRequest* each : {&running, &to_restore, &child, &stranger, &grandchild}) end(*each);
  expect_empty_after_reset();
}

TEST_F(CacheGroupsTest, WhatLiveSequencesUseOfAnyGroupIsNotReclaimed) {
  open(groups_config({full_group(), window_group(20), ring_group(10, 12, every(16)), state_group(2, every(16))}, 8, 100,
                     256));
  run_request(token_range(0, 100));
  run_request(token_range(5'000, 100));
  GroupsRequest to_restore = start(with_tail(token_range(0, 80), 1, 30));
  GroupsRequest running = start(with_tail(token_range(0, 64), 2, 30));
  run_all(running, {70});
  EXPECT_GT(cache_->reclaim(UINT32_MAX).value(), 0U);
  expect_invariants();
  expect_error(cache_->reset(), ErrorCode::Unavailable, "");
  EXPECT_EQ(lookup(token_range(5'000, 100)).matched_tokens, 0U);
  for (GroupsRequest* each : {&to_restore, &running}) {
    run_all(*each, {80}, 9);
    decode(*each, 25);
    end(*each);
  }
  EXPECT_GT(lookup(with_tail(token_range(0, 80), 1, 30)).matched_tokens, 80U);
  expect_empty_after_reset();
}

TEST_F(CacheGroupsTest, AnchoredPagesThatAreEvictedOnlyShortenHits) {
  CacheConfig config = groups_config({full_group(), window_group(16)}, 8, 200, 512);
  config.device.group_page_counts = {0, 12};
  open(std::move(config));
  const std::vector<TokenId> tokens = token_range(0, 96);
  run_request(tokens, {}, 40);
  std::uint32_t last = 96;
  for (TokenId i = 1; i < 8; ++i) {
    run_request(token_range(i * 1'000, 30), {}, 16);
    const std::uint32_t found = lookup(with_tail(tokens, 1, 5)).matched_tokens;
    EXPECT_LE(found, last);
    last = found;
  }
  EXPECT_EQ(last, 0U);
  EXPECT_EQ(group_stats(0).evicted_page_total, 0U);
  // The history is there: whoever computes it again computes nothing new of it.
  const std::uint64_t sealed = group_stats(0).sealed_page_total;
  run_request(tokens, {}, 40);
  EXPECT_EQ(group_stats(0).sealed_page_total, sealed);
  EXPECT_EQ(lookup(with_tail(tokens, 1, 5)).matched_tokens, 96U);
}

// Compressed entries

TEST_F(CacheGroupsTest, TheTokenThatCompletesAnEntryHasItsSlot) {
  for (const std::uint32_t chunk : {1U, 3U, 5U, 7U, 13U}) {
    open(groups_config({full_group(), compressed_group(4), named(compressed_group(16), "rare")}, 16, 32, 256));
    GroupsRequest request = start(token_range(0, 91));
    while (view(request).pending_tokens > 0) {
      const GroupsFlight flight = compute({{&request, std::min(chunk, view(request).pending_tokens)}});
      const AttentionPlanEntry& entry = flight.step.plan.entries[0];
      for (const std::uint32_t g : {1U, 2U}) {
        const GroupPlan& lists = flight.step.plan.groups[g];
        const std::uint32_t r = g == 1 ? 4 : 16;
        EXPECT_EQ(lists.tokens_per_entry, r);
        std::uint32_t written = 0;
        for (std::uint32_t i = 0; i < entry.token_count; ++i) {
          const std::uint32_t n = entry.position + i + 1;
          const std::int64_t page = entry.pages[(n - 1) / 16].value;
          const std::int64_t expected = n % r == 0 ? (page * (16 / r)) + ((n - 1) % 16 / r) : kNoSlot;
          ASSERT_EQ(lists.append_slots[i], expected) << "token " << n - 1;
          written += expected == kNoSlot ? 0 : 1;
        }
        EXPECT_EQ(written, ((entry.position + entry.token_count) / r) - (entry.position / r));
      }
      finish(flight);
    }
    EXPECT_EQ(held_pages(1), 6U);
    end(request);
  }
}

// Token trees

class CacheGroupsTreeTest : public CacheGroupsTest {
 protected:
  // Plans the tree {-1, 0, 0, 1} behind the last known token, and writes what its tokens store in every group.
  void grow_tree(GroupsRequest& request, const std::vector<std::int32_t>& parents, const std::vector<TokenId>& values) {
    const StepEntry entry{.sequence = &request.sequence, .tree_parents = parents};
    const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message;
    const Step& step = outcome->step.value();
    ASSERT_EQ(engine_->start(step), "");
    PrefixNumbers numbers;
    for (const TokenId token : request.tokens) numbers.add(token);
    std::vector<std::uint64_t> of_queries;
    const AttentionPlanEntry& planned = step.plan.entries[0];
    for (std::uint32_t i = planned.position; i < request.tokens.size(); ++i) of_queries.push_back(numbers.at(i + 1));
    const std::size_t known = of_queries.size();
    for (std::size_t i = 0; i < parents.size(); ++i) {
      const std::uint64_t before =
          parents[i] < 0 ? numbers.at(numbers.length()) : of_queries[known + static_cast<std::size_t>(parents[i])];
      of_queries.push_back(PrefixNumbers::next(before, values[i]));
    }
    engine_->write(step.plan, 0, of_queries);
    const StepResult result{.tokens = values};
    const Status status = cache_->finish_step(step, {&result, 1});
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
};

TEST_F(CacheGroupsTreeTest, TheAcceptedPathMovesInThePagesOfWindowsToo) {
  for (std::uint32_t length = 38; length < 46; ++length) {
    open(groups_config({full_group(), window_group(20), named(window_group(9), "narrow")}, 8, 64, 256));
    GroupsRequest request = start(token_range(0, length));
    run_all(request, {500});
    const std::vector<TokenId> values = {501, 502, 503, 504, 505, 506};
    grow_tree(request, {-1, 0, 0, -1, 2, 4}, values);
    ASSERT_TRUE(cache_->commit_tree(request.sequence, 5).has_value());
    request.tokens.insert(request.tokens.end(), {501, 503, 505, 506});
    expect_invariants();
    append(request, {510});
    decode(request, 30);
    end(request);
  }
}

TEST_F(CacheGroupsTreeTest, ATreeOfWhichNothingIsAcceptedLeavesNothing) {
  open(groups_config({full_group(), window_group(20)}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 39));
  run_all(request, {500});
  const std::uint32_t held = held_pages(1);
  grow_tree(request, {-1, -1, -1, 0, 1, 2, 3, 4, 5, 5, 5}, std::vector<TokenId>(11, 501));
  ASSERT_TRUE(cache_->commit_tree(request.sequence, -1).has_value());
  EXPECT_EQ(held_pages(1), held);
  append(request, {510});
  decode(request, 30);
}

TEST_F(CacheGroupsTreeTest, AModelOfWindowsAloneHasTrees) {
  for (std::uint32_t length = 38; length < 46; ++length) {
    open(groups_config({window_group(20), named(window_group(9), "narrow")}, 8, 64, 256));
    GroupsRequest request = start(token_range(0, length));
    run_all(request, {500});
    grow_tree(request, {-1, 0, 0, -1}, {501, 502, 503, 504});
    EXPECT_EQ(view(request).tree_tokens, 4U);
    GroupsRequest child = fork(request, length + 1);
    ASSERT_TRUE(cache_->commit_tree(request.sequence, 2).has_value());
    request.tokens.insert(request.tokens.end(), {501, 503});
    append(child, {600});
    expect_invariants();
    append(request, {510});
    for (GroupsRequest* each : {&child, &request}) decode(*each, 30);
    end(request);
    end(child);
    EXPECT_GE(run_request(with_tail(token_range(0, length), 1, 9)), length / 8 * 8);
    expect_empty_after_reset();
  }
}

TEST_F(CacheGroupsTreeTest, TreesOfWindowsAloneAreLongerThanTheWindowOrTakenBack) {
  open(groups_config({window_group(6), named(window_group(3), "narrow")}, 4, 64, 128));
  GroupsRequest request = start(token_range(0, 22));
  run_all(request, {500});
  // A chain of ten, each with a leaf that is not taken.
  std::vector<std::int32_t> parents;
  std::vector<TokenId> values;
  for (std::int32_t i = 0; i < 10; ++i) {
    parents.insert(parents.end(), {i == 0 ? -1 : 2 * (i - 1), i == 0 ? -1 : 2 * (i - 1)});
    values.insert(values.end(), {600 + i, 700 + i});
  }
  grow_tree(request, parents, values);
  ASSERT_TRUE(cache_->commit_tree(request.sequence, 18).has_value());
  for (TokenId i = 0; i < 10; ++i) request.tokens.push_back(600 + i);
  expect_invariants();
  append(request, {510});
  decode(request, 5);
  const std::uint32_t held = held_pages(0);
  grow_tree(request, {-1, -1, 0, 1, 2, 3}, {1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(cache_->commit_tree(request.sequence, -1).has_value());
  EXPECT_LE(held_pages(0), held);
  append(request, {511});
  decode(request, 10);
  end(request);
  expect_empty_after_reset();
}

}  // namespace
}  // namespace quire
