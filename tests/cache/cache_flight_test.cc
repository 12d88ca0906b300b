// SPDX-License-Identifier: Apache-2.0
//
// Several steps in flight.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

using CacheFlight = SequenceChangesTest;

TEST_F(CacheFlight, ATokenIsPlannedBeforeItIsKnown) {
  Live live = computed(token_range(0, 6));
  append(live, {50});
  const Step first = plan({{&live.sequence}});
  const Step second = plan({{&live.sequence}});
  const Step third = plan({{&live.sequence}});
  EXPECT_EQ(view(live).steps_in_flight, 3U);
  EXPECT_EQ(view(live).pending_tokens, 0U);
  EXPECT_EQ(second.plan.entries[0].position, 7U);
  EXPECT_TRUE(second.plan.entries[0].tokens.empty());
  live.tokens.insert(live.tokens.end(), {51, 52});
  compute(first, 0, live.tokens);
  compute(second, 0, live.tokens);
  finish(first, {{.tokens = {{51}}}});
  compute(third, 0, live.tokens);
  finish(second, {{.tokens = {{52}}}});
  EXPECT_EQ(view(live).computed_tokens, 8U);
  finish(third, {{}});
  EXPECT_EQ(view(live).computed_tokens, 9U);
  EXPECT_EQ(view(live).pending_tokens, 0U);
  expect_good(live);
}

TEST_F(CacheFlight, OneMoreTokenForEachStepInFlightCanBePlanned) {
  Live live = computed(token_range(0, 6));
  append(live, {50});
  (void)plan({{&live.sequence}});
  const StepEntry two{&live.sequence, 2};
  expect_error(cache_->plan_step({&two, 1}), ErrorCode::InvalidArgument, "sequence 0");
  (void)plan({{&live.sequence, 1}});
  EXPECT_EQ(plan({{&live.sequence}}).plan.entries[0].token_count, 1U);
}

TEST_F(CacheFlight, NothingIsPlannedBehindATokenThatNoStepBrings) {
  Live live = computed(token_range(0, 6));
  append(live, {50});
  const Step first = plan({{&live.sequence}});
  const Step second = plan({{&live.sequence}});
  finish(first, {{}});  // no token: the second has nothing to compute, nor has what would come after it
  for (const StepEntry& entry :
       {StepEntry{&live.sequence}, StepEntry{&live.sequence, 1}, StepEntry{&live.sequence, 0, 2}}) {
    expect_error(cache_->plan_step({&entry, 1}), ErrorCode::InvalidArgument,
                 "sequence 0 has 0 pending tokens, and its 1");
  }
  finish(second, {{.discard = true}});
}

TEST_F(CacheFlight, PagesWaitForNoStepThatIsNotComing) {
  Live a = admitted(token_range(0, 8));
  Live tree = computed(token_range(20, 4));
  Live saved = computed(token_range(40, 6), {.publish = Publish::None});
  const std::vector<std::int32_t> parents(8, -1);
  const std::vector<TokenId> values = token_range(70, 8);
  Step step = plan({{.sequence = &tree.sequence, .tree_parents = parents}});
  compute_tree(step, 0, tree, parents, values);
  finish(step, {{.tokens = values}});
  step = plan({{&a.sequence, 4}});
  ASSERT_TRUE(cache_->commit_tree(tree.sequence, 7));  // its moves are for the next plan
  ASSERT_TRUE(save(saved.sequence));                   // and are made now
  EXPECT_EQ(stats().fenced_pages, 3U);
  const Step later = plan({{&a.sequence, 4}});
  compute(step, 0, a.tokens);
  finish(step, {{}});
  EXPECT_EQ(stats().fenced_pages, 0U);
  compute(later, 0, a.tokens);
  finish(later, {{}});
}

TEST_F(CacheFlight, AStepWithoutItsTokenIsDiscarded) {
  Live live = computed(token_range(0, 7));
  append(live, {50});
  const Step first = plan({{&live.sequence}});
  const Step second = plan({{&live.sequence}});
  EXPECT_EQ(view(live).pages().size(), 3U);
  finish(first, {{}});  // the end: no further token
  const StepResult none{};
  expect_error(cache_->finish_step(second, {&none, 1}), ErrorCode::InvalidArgument, "the token at position 8");
  finish(second, {{.discard = true}});
  EXPECT_EQ(view(live).pages().size(), 2U);
  EXPECT_EQ(view(live).token_count, 8U);
}

TEST_F(CacheFlight, AnAbortTakesLaterStepsOfTheSameSequenceAlong) {
  Live a = admitted(token_range(0, 20));
  Live b = admitted(token_range(40, 20));
  const Step first = plan({{&a.sequence, 6}, {&b.sequence, 6}});
  const Step second = plan({{&a.sequence, 6}});
  const Step third = plan({{&b.sequence, 6}, {&a.sequence, 4}});
  ASSERT_TRUE(cache_->abort_step(second));
  expect_invariants();
  EXPECT_EQ(view(a).steps_in_flight, 1U);
  EXPECT_EQ(view(a).pending_tokens, 14U);
  EXPECT_EQ(view(b).steps_in_flight, 2U);
  compute(first, 0, a.tokens);
  compute(first, 1, b.tokens);
  compute(third, 0, b.tokens);
  finish(first, {{}, {}});
  finish(third, {{}, {}});
  EXPECT_EQ(view(a).computed_tokens, 6U);
  EXPECT_EQ(view(b).computed_tokens, 12U);
  run(a);
  run(b);
}

TEST_F(CacheFlight, PagesOfDiscardedStepsComeBackWhenTheLastOfThemIsOver) {
  Live a = admitted(token_range(0, 20));
  Live b = admitted(token_range(40, 8));
  const Step first = plan({{&a.sequence, 4}});
  const Step second = plan({{&a.sequence, 8}, {&b.sequence}});
  ASSERT_TRUE(cache_->abort_step(first));
  EXPECT_EQ(stats().fenced_pages, 3U);  // the second may still write them
  EXPECT_EQ(stats().open_pages, 2U);
  finish(second, {{}, {}});
  EXPECT_EQ(stats().fenced_pages, 0U);
  EXPECT_EQ(stats().free_pages, 62U);
  EXPECT_EQ(view(a).pending_tokens, 20U);
}

TEST_F(CacheFlight, ASequenceThatEndsInFlightKeepsItsPagesUntilItsStepsAreOver) {
  Live live = admitted(token_range(0, 10));
  const Step first = plan({{&live.sequence, 8}});
  const Step second = plan({{&live.sequence}});
  end(live);
  EXPECT_FALSE(live.sequence);
  EXPECT_EQ(stats().sequence_count, 1U);
  EXPECT_EQ(in_use(), 3U);
  finish(first, {{}});
  EXPECT_EQ(stats().sequence_count, 1U);
  EXPECT_EQ(stats().sealed_pages, 2U);  // it was computed, so it is cached
  finish(second, {{}});
  EXPECT_EQ(stats().sequence_count, 0U);
  EXPECT_EQ(in_use(), 2U);
  expect_all_free();
}

TEST_F(CacheFlight, WhatAnEndedSequenceDidNotComputeIsNotCached) {
  Live live = admitted(token_range(0, 12));
  const Step first = plan({{&live.sequence, 4}});
  const Step second = plan({{&live.sequence, 4}});
  const Step third = plan({{&live.sequence, 4}});
  end(live);
  ASSERT_TRUE(cache_->abort_step(first));  // and with it all that builds on it
  finish(second, {{}});
  finish(third, {{}});
  EXPECT_EQ(stats().sealed_pages, 0U);
  EXPECT_EQ(stats().sequence_count, 0U);
  EXPECT_EQ(stats().free_pages, 64U);
}

TEST_F(CacheFlight, AnEndedSequenceThatOnlyDiscardedStepsHoldIsGone) {
  Live live = admitted(token_range(0, 12));
  const Step first = plan({{&live.sequence, 4}});
  const Step second = plan({{&live.sequence, 4}});
  ASSERT_TRUE(cache_->abort_step(first));
  end(live);
  EXPECT_EQ(stats().sequence_count, 0U);
  EXPECT_EQ(stats().fenced_pages, 2U);
  Live other = admitted(token_range(40, 8));  // perhaps in the same place
  const Step third = plan({{&other.sequence}});
  finish(second, {{}});
  EXPECT_EQ(view(other).steps_in_flight, 1U);
  compute(third, 0, other.tokens);
  finish(third, {{}});
}

TEST_F(CacheFlight, WhatAnEndedSequencesResultDiscardsIsNotCached) {
  Live live = admitted(token_range(0, 12));
  const Step first = plan({{&live.sequence, 4}});
  const Step second = plan({{&live.sequence}});
  live.sequence = {};  // dropped elsewhere, say, while the engine found that the entry had failed
  finish(first, {{.discard = true}});
  finish(second, {{}});
  EXPECT_EQ(stats().sealed_pages, 0U);
  EXPECT_EQ(stats().sequence_count, 0U);
  EXPECT_EQ(stats().free_pages, 64U);
}

TEST_F(CacheFlight, RejectedDraftsOfAnEndedSequenceAreNotCached) {
  Live live = computed(token_range(0, 6));
  append(live, {50});
  const Step step = plan({{.sequence = &live.sequence, .draft_count = 8}});
  end(live);
  finish(step, {{.tokens = token_range(60, 9), .accepted_count = 8}});
  EXPECT_EQ(stats().sealed_pages, 1U);
  EXPECT_EQ(in_use(), 1U);
}

TEST_F(CacheFlight, AcceptedDraftsAreComputedAndTheRestGoes) {
  Live live = computed(token_range(0, 6));
  append(live, {50});
  const Step step = plan({{.sequence = &live.sequence, .draft_count = 8}});
  EXPECT_EQ(view(live).pages().size(), 4U);
  live.tokens.insert(live.tokens.end(), {60, 61, 62, 63, 64, 65, 66, 67});
  compute(step, 0, live.tokens);
  live.tokens.resize(9);
  live.tokens.push_back(70);
  finish(step, {{.tokens = {{60, 61, 70}}, .accepted_count = 2}});
  EXPECT_EQ(view(live).computed_tokens, 9U);
  EXPECT_EQ(view(live).pending_tokens, 1U);
  EXPECT_EQ(view(live).pages().size(), 3U);
  expect_good(live);
}

TEST_F(CacheFlight, DraftsBehindATokenThatIsNotKnownYet) {
  Live live = computed(token_range(0, 6));
  append(live, {50});
  const Step first = plan({{&live.sequence}});
  const Step second = plan({{.sequence = &live.sequence, .draft_count = 3}});
  EXPECT_EQ(second.plan.entries[0].token_count, 4U);
  live.tokens.insert(live.tokens.end(), {51, 60, 61, 62});
  compute(first, 0, live.tokens);
  compute(second, 0, live.tokens);
  finish(first, {{.tokens = {{51}}}});
  finish(second, {{.tokens = {{60, 61}}, .accepted_count = 2}});
  live.tokens.resize(10);
  EXPECT_EQ(view(live).computed_tokens, 10U);
  expect_good(live);
}

TEST_F(CacheFlight, ATreeBehindATokenIsRefusedWhenMoreTokensHaveCome) {
  Live live = computed(token_range(0, 6));
  append(live, {50});
  const Step first = plan({{&live.sequence}});
  const std::vector<std::int32_t> parents = {-1, -1};
  const std::vector<TokenId> values = {70, 71};
  const Step second = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  finish(first, {{.tokens = {{51, 52}}}});  // 52 stands where the tree does
  const StepResult result{.tokens = values};
  expect_error(cache_->finish_step(second, {&result, 1}), ErrorCode::InvalidArgument, "result 0: sequence 0");
  finish(second, {{.discard = true}});
  EXPECT_EQ(view(live).token_count, 9U);
  EXPECT_EQ(view(live).pending_tokens, 2U);
  EXPECT_EQ(view(live).tree_tokens, 0U);
}

TEST_F(CacheFlight, APageComputedInVainComesBackWhenLaterStepsAreOver) {
  Live a = admitted(token_range(0, 8));
  Live b = admitted(token_range(0, 8));
  const Step first = plan({{&a.sequence, 4}});
  const Step second = plan({{&b.sequence, 4}});
  const Step third = plan({{&b.sequence}});  // reads b's own first page
  compute(first, 0, a.tokens);
  compute(second, 0, b.tokens);
  finish(first, {{}});
  finish(second, {{}});
  EXPECT_EQ(stats().duplicate_page_total, 1U);
  EXPECT_EQ(stats().fenced_pages, 1U);
  EXPECT_EQ(view(a).pages()[0], view(b).pages()[0]);
  compute(third, 0, b.tokens);
  finish(third, {{}});
  EXPECT_EQ(stats().fenced_pages, 0U);
  expect_good(b);
}

TEST_F(CacheFlight, AShortageSaysWhatIsOnItsWayBack) {
  open(changes_config(6));
  Live a = computed(token_range(0, 8), {.publish = Publish::None});
  Live b = admitted(token_range(40, 20));
  const Step step = plan({{&b.sequence, 8}});
  end(a);
  const StepEntry rest{&b.sequence};
  const PlanOutcome outcome = cache_->plan_step({&rest, 1}).value();
  EXPECT_FALSE(outcome.step.has_value());
  EXPECT_EQ(outcome.shortage.pages_needed, 3U);
  EXPECT_EQ(outcome.shortage.pages_available, 2U);
  EXPECT_EQ(outcome.shortage.pages_returning, 2U);
  EXPECT_EQ(outcome.shortage.entries_that_fit, 0U);
  EXPECT_EQ(stats().short_plan_count, 1U);
  compute(step, 0, b.tokens);
  finish(step, {{}});
  run(b);
}

TEST_F(CacheFlight, AShortageSaysHowManyEntriesFit) {
  open(changes_config(5));
  Live a = admitted(token_range(0, 8));
  Live b = admitted(token_range(40, 8));
  Live c = admitted(token_range(60, 4));
  const std::vector<StepEntry> entries = {{&a.sequence}, {&b.sequence}, {&c.sequence, 3}};
  EXPECT_TRUE(cache_->plan_step(entries)->step.has_value());
  Live d = admitted(token_range(80, 4));
  const std::vector<StepEntry> more = {{&c.sequence}, {&d.sequence}};
  const PlanOutcome outcome = cache_->plan_step(more).value();
  EXPECT_EQ(outcome.shortage.pages_needed, 1U);
  EXPECT_EQ(outcome.shortage.pages_available, 0U);
  EXPECT_EQ(outcome.shortage.entries_that_fit, 1U);
  EXPECT_EQ(outcome.shortage.fitting_tokens, 0U);
}

TEST_F(CacheFlight, AShortageSaysHowManyTokensOfTheNextEntryFit) {
  open(changes_config(5));
  Live a = admitted(token_range(0, 8));
  Live b = admitted(token_range(40, 15));
  const std::vector<StepEntry> entries = {{&a.sequence}, {&b.sequence}};
  const Shortage shortage = cache_->plan_step(entries)->shortage;
  EXPECT_EQ(shortage.entries_that_fit, 1U);
  EXPECT_EQ(shortage.fitting_tokens, 12U);
  const std::vector<StepEntry> more = {{&a.sequence}, {&b.sequence, 13}};
  EXPECT_FALSE(cache_->plan_step(more)->step.has_value());
  const std::vector<StepEntry> fitting = {{&a.sequence}, {&b.sequence, 12}};
  EXPECT_TRUE(cache_->plan_step(fitting)->step.has_value());
}

TEST_F(CacheFlight, AShapeHoldsWhenAPendingCopyIsGivenUp) {
  open(changes_config(4));
  Live source = computed(token_range(0, 12));
  Live fork = forked(source, 11);
  end(source);
  append(fork, token_range(70, 5));
  const StepEntry entry{&fork.sequence};
  // Five tokens fit the shape, but there are only pages for the step if the three of the copy are computed again.
  const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1}, {.entries = 1, .tokens = 5});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_FALSE(outcome->step.has_value());
  EXPECT_EQ(outcome->shortage.pages_needed, 2U);
  EXPECT_EQ(outcome->shortage.pages_available, 1U);
  EXPECT_TRUE(cache_->plan_step({&entry, 1}, {.entries = 1, .tokens = 8})->step.has_value());
}

TEST_F(CacheFlight, AnAbortedStepsCopyIsMadeAgain) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  append(fork, {70});
  const Step aborted = plan({{&fork.sequence}});
  ASSERT_TRUE(cache_->abort_step(aborted));
  expect_invariants();
  const Step step = plan({{&fork.sequence}});
  EXPECT_EQ(step.plan.copies.size(), 1U);
  compute(step, 0, fork.tokens);
  finish(step, {{}});
}

TEST_F(CacheFlight, AbortsInAnyOrderGiveEveryPageBack) {
  for (std::uint32_t order = 0; order < 6; ++order) {
    Live a = admitted(token_range(0, 30));
    std::vector<Step> steps(3);
    for (Step& step : steps) step = plan({{&a.sequence, 7}});
    end(a);
    std::vector<std::size_t> places = {0, 1, 2};
    for (std::uint32_t i = 0; i < order; ++i) std::next_permutation(places.begin(), places.end());
    for (const std::size_t place : places) {
      ASSERT_TRUE(cache_->abort_step(steps[place]));
      expect_invariants();
    }
    EXPECT_EQ(stats().free_pages, 64U);
    EXPECT_EQ(stats().sequence_count, 0U);
  }
}

TEST_F(CacheFlight, WithoutDedupTheLaterTwinKeepsItsOwnPages) {
  CacheConfig config = changes_config();
  config.dedup = false;
  open(std::move(config));
  Live first = admitted(token_range(0, 8));
  Live second = admitted(token_range(0, 8));
  const Step step = plan({{&first.sequence}, {&second.sequence}});
  compute(step, 0, first.tokens);
  compute(step, 1, second.tokens);
  finish(step, {{}, {}});
  EXPECT_EQ(stats().sealed_pages, 2U);
  EXPECT_EQ(stats().private_pages, 2U);
  EXPECT_EQ(stats().duplicate_page_total, 0U);
  EXPECT_NE(view(first).pages()[0], view(second).pages()[0]);
  append(second, token_range(40, 4));
  run(second);
  EXPECT_EQ(stats().private_pages, 3U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = second.tokens})->matched_tokens, 8U);
}

}  // namespace
}  // namespace quire
