// SPDX-License-Identifier: Apache-2.0
//
// Several steps in flight, sequences that give up their pages for a while, and sequences that two caches share.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "algebra_fixture.h"

namespace quire {
namespace {

// Steps in flight

using CacheFlight = AlgebraTest;

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
  ASSERT_TRUE(cache_->commit_tree(tree.sequence, 7));           // its moves are for the next plan
  ASSERT_TRUE(cache_->preempt(saved.sequence, Preempt::Save));  // and are made now
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
  EXPECT_EQ(view(live).pages.size(), 3U);
  finish(first, {{}});  // the end: no further token
  const StepResult none{};
  expect_error(cache_->finish_step(second, {&none, 1}), ErrorCode::InvalidArgument, "the token at position 8");
  finish(second, {{.discard = true}});
  EXPECT_EQ(view(live).pages.size(), 2U);
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
  EXPECT_EQ(view(live).pages.size(), 4U);
  live.tokens.insert(live.tokens.end(), {60, 61, 62, 63, 64, 65, 66, 67});
  compute(step, 0, live.tokens);
  live.tokens.resize(9);
  live.tokens.push_back(70);
  finish(step, {{.tokens = {{60, 61, 70}}, .accepted_count = 2}});
  EXPECT_EQ(view(live).computed_tokens, 9U);
  EXPECT_EQ(view(live).pending_tokens, 1U);
  EXPECT_EQ(view(live).pages.size(), 3U);
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
  EXPECT_EQ(view(a).pages[0], view(b).pages[0]);
  compute(third, 0, b.tokens);
  finish(third, {{}});
  EXPECT_EQ(stats().fenced_pages, 0U);
  expect_good(b);
}

TEST_F(CacheFlight, AShortageSaysWhatIsOnItsWayBack) {
  open(algebra_config(6));
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
  open(algebra_config(5));
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
}

TEST_F(CacheFlight, AShapeHoldsWhenAPendingCopyIsGivenUp) {
  open(algebra_config(4));
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

// Preemption

using CachePreempt = AlgebraTest;

TEST_F(CachePreempt, SavedPagesComeBackAsTheyWere) {
  Live live = computed(token_range(0, 11), {.publish = Publish::None});
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  expect_invariants();
  EXPECT_EQ(stats().saved_pages, 3U);
  EXPECT_EQ(in_use(), 0U);
  EXPECT_TRUE(view(live).is_waiting);
  Live other = computed(token_range(40, 240));  // overwrites what it had
  end(other);
  EXPECT_EQ(cache_->resume(live.sequence)->matched_tokens, 11U);
  expect_invariants();
  EXPECT_EQ(stats().saved_pages, 0U);
  EXPECT_EQ(stats().private_pages, 2U);
  expect_good(live);
}

TEST_F(CachePreempt, WhatIsCachedIsSavedTooAndMayBeEvicted) {
  for (const std::uint32_t reclaimed : {0U, 1U, 2U}) {
    Live live = computed(token_range(0, 11));
    ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
    EXPECT_EQ(stats().saved_pages, 3U);
    EXPECT_EQ(stats().pinned_pages, 0U);
    EXPECT_EQ(cache_->reclaim(reclaimed).value(), reclaimed);
    const std::uint32_t free_pages = stats().free_pages;
    EXPECT_EQ(cache_->resume(live.sequence)->matched_tokens, 11U);
    EXPECT_EQ(stats().free_pages, free_pages - 1 - reclaimed);
    EXPECT_EQ(stats().sealed_pages, 2U);  // cached again
    EXPECT_EQ(stats().pinned_pages, 2U);
    expect_good(live);
    end(live);
    expect_all_free();
  }
}

TEST_F(CachePreempt, AMoveThatIsPendingComesBeforeThePageIsSaved) {
  Live live = computed(token_range(0, 4));
  const std::vector<std::int32_t> parents = {-1, -1, 1};
  const std::vector<TokenId> values = {100, 101, 102};
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  compute_tree(step, 0, live, parents, values);
  finish(step, {{.tokens = values}});
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 2));
  live.tokens.insert(live.tokens.end(), {101, 102});
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  ASSERT_TRUE(cache_->resume(live.sequence));
  expect_good(live);
}

TEST_F(CachePreempt, AForksPendingCopyOutlivesItsPreemption) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  ASSERT_TRUE(cache_->preempt(fork.sequence, Preempt::Save));
  append(source, {60, 61});
  run(source);
  end(source);
  ASSERT_TRUE(cache_->resume(fork.sequence));
  expect_good(fork);
}

TEST_F(CachePreempt, PagesSharedWithAForkStayWithTheFork) {
  Live live = computed(token_range(0, 10), {.publish = Publish::None});
  Live fork = forked(live, 10);
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  EXPECT_EQ(stats().saved_pages, 3U);
  EXPECT_EQ(stats().private_pages, 3U);
  expect_good(fork);
  ASSERT_TRUE(cache_->resume(live.sequence));
  expect_good(live);
  end(live);
  end(fork);
  expect_all_free();
}

TEST_F(CachePreempt, ASlidSequenceIsSavedWithItsHole) {
  Live live{.sequence = cache_->begin(space_, {.tokens = token_range(0, 40)}).value(), .tokens = token_range(0, 40)};
  ASSERT_TRUE(cache_->set_window(live.sequence, {.window_tokens = 12, .sink_tokens = 5}));
  ASSERT_TRUE(cache_->admit(live.sequence));
  while (view(live).pending_tokens > 0) run(live, {}, 8);
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  EXPECT_EQ(stats().saved_pages, 4U);  // tokens [0, 8) and [32, 40)
  ASSERT_TRUE(cache_->resume(live.sequence));
  for (int i = 0; i < 6; ++i) expect_good(live);
}

TEST_F(CachePreempt, WhatWasDroppedIsFoundAgainWhereItIsCached) {
  Live live = computed(token_range(0, 11));
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  expect_invariants();
  EXPECT_EQ(in_use(), 2U);
  EXPECT_EQ(stats().soft_pinned_pages, 2U);
  EXPECT_EQ(stats().pinned_pages, 0U);
  EXPECT_EQ(view(live).computed_tokens, 0U);
  const Admission again = cache_->resume(live.sequence).value();
  EXPECT_EQ(again.matched_tokens, 8U);
  EXPECT_EQ(view(live).pending_tokens, 3U);
  run(live);
  expect_good(live);
}

TEST_F(CachePreempt, EndedWhileSavedASequenceLeavesNothing) {
  Live live = computed(token_range(0, 11));
  Live fork = forked(live, 10);
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  ASSERT_TRUE(cache_->preempt(fork.sequence, Preempt::Save));
  end(live);
  expect_invariants();
  end(fork);
  EXPECT_EQ(stats().saved_pages, 0U);
  expect_all_free();
}

TEST_F(CachePreempt, ResumingWaitsForPages) {
  open(algebra_config(6));
  Live live = computed(token_range(0, 12), {.publish = Publish::None});
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  Live other = computed(token_range(40, 16), {.publish = Publish::None});
  expect_error(cache_->resume(live.sequence), ErrorCode::Unavailable,
               "has 3 saved pages to bring back; 2 device pages are free");
  end(other);
  ASSERT_TRUE(cache_->resume(live.sequence));
  expect_good(live);
}

// Two caches

class CachePeers : public AlgebraTest {
 protected:
  void SetUp() override {
    AlgebraTest::SetUp();
    receiver_ = open_cache(test_config(4, 32));
    receiver_space_ = receiver_->key_space({.model = "test"}).value();
  }
  /// What a plan sends goes over: tokens computed by the step, and those it lists.
  void send(const Step& step) {
    const GroupPlan& group = step.plan.groups[0];
    for (const SendRun& run : group.sends) {
      for (std::int32_t i = 0; i < run.token_count; ++i) put(run.remote_slot + i, read(run.local_slot + i));
    }
    for (std::uint32_t i = 0; i < step.plan.token_count && !group.remote_slots.empty(); ++i) {
      if (group.remote_slots[i] == kNoSlot) continue;
      EXPECT_EQ(group.receivers[i], 5);
      put(group.remote_slots[i], read(step.plan.append_slots[i]));
    }
  }
  void put(std::int64_t slot, std::uint64_t bytes) {
    std::memcpy(receiver_->device_memory() + (slot * kTestTokenBytes), &bytes, sizeof(bytes));
    ++sent_;
  }
  [[nodiscard]] Sequence receiving(std::span<const TokenId> tokens) {
    Sequence sequence = receiver_->begin(receiver_space_, {.tokens = tokens}).value();
    EXPECT_TRUE(receiver_->admit(sequence));
    return sequence;
  }

  std::unique_ptr<Cache> receiver_;
  KeySpaceId receiver_space_;
  std::uint32_t sent_ = 0;
};

TEST_F(CachePeers, WhatOneComputesTheOtherDecodes) {
  std::vector<TokenId> tokens = token_range(0, 22);
  Sequence decoding = receiving(tokens);
  const std::span<const SlotRun> slots = receiver_->prepare_receive(decoding, 22).value();
  EXPECT_TRUE(receiver_->view(decoding)->is_receiving);
  EXPECT_EQ(receiver_->view(decoding)->pending_tokens, 0U);

  Live prefill = admitted(tokens);
  run(prefill, {}, 7);
  ASSERT_TRUE(cache_->mark_send(prefill.sequence, 0, slots, 5));
  while (view(prefill).pending_tokens > 0) {
    const Step step = plan({{&prefill.sequence, std::min(view(prefill).pending_tokens, 6U)}});
    compute(step, 0, prefill.tokens);
    send(step);
    finish(step, {{}});
  }
  EXPECT_EQ(sent_, 22U);

  ASSERT_TRUE(receiver_->finish_receive(decoding));
  ASSERT_TRUE(receiver_->check_invariants());
  EXPECT_EQ(receiver_->stats()->received_tokens, 22U);
  EXPECT_EQ(receiver_->stats()->sealed_pages, 5U);
  EXPECT_EQ(receiver_->view(decoding)->pending_tokens, 1U);
  const StepEntry entry{&decoding};
  const Step again = *receiver_->plan_step({&entry, 1})->step;
  ByteEngine(*receiver_).run(again.plan.entries[0], 0, tokens);
  ASSERT_TRUE(receiver_->finish_step(again, std::vector<StepResult>(1)));
}

TEST_F(CachePeers, WhatIsCachedIsSentByTheNextStepAlone) {
  Live live = admitted(token_range(0, 20));
  run(live, {}, 6);
  const SlotRun slots{.first_slot = 40, .token_count = 20};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  Step first = plan({{&live.sequence, 6}});
  ASSERT_TRUE(cache_->abort_step(first));
  first = plan({{&live.sequence, 6}});
  const Step second = plan({{&live.sequence}});
  compute(first, 0, live.tokens);
  compute(second, 0, live.tokens);
  send(first);
  EXPECT_EQ(sent_, 12U);
  send(second);
  EXPECT_EQ(sent_, 20U);
  finish(first, {{}});
  finish(second, {{}});
}

TEST_F(CachePeers, AnAbortedReceiveLeavesNothing) {
  const std::vector<TokenId> tokens = token_range(0, 22);
  Sequence decoding = receiving(tokens);
  ASSERT_TRUE(receiver_->prepare_receive(decoding, 22));
  EXPECT_EQ(receiver_->stats()->open_pages, 6U);
  ASSERT_TRUE(receiver_->abort_receive(decoding));
  EXPECT_EQ(receiver_->stats()->free_pages, 32U);
  EXPECT_EQ(receiver_->view(decoding)->pending_tokens, 22U);
  ASSERT_TRUE(receiver_->check_invariants());
  EXPECT_TRUE(receiver_->prepare_receive(decoding, 4));
}

TEST_F(CachePeers, AReceiverComputesAndReceivesInTurn) {
  Live live = admitted(token_range(0, 16));
  run(live, {}, 5);
  const std::span<const SlotRun> slots = cache_->prepare_receive(live.sequence, 6).value();
  std::uint32_t position = 5;
  for (const SlotRun& run : slots) {
    for (std::int64_t i = 0; i < run.token_count; ++i) write(run.first_slot + i, value(live.tokens, position++));
  }
  EXPECT_EQ(position, 11U);
  ASSERT_TRUE(cache_->finish_receive(live.sequence));
  run(live);
  EXPECT_EQ(stats().sealed_pages, 4U);
}

TEST_F(CachePeers, WhatAMarkedSequenceReceivesIsSentOn) {
  Live live = admitted(token_range(0, 16));
  run(live, {}, 5);
  Sequence last = receiving(live.tokens);
  const std::span<const SlotRun> remote_slots = receiver_->prepare_receive(last, 16).value();
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, remote_slots, 5));
  const std::span<const SlotRun> slots = cache_->prepare_receive(live.sequence, 6).value();
  std::uint32_t position = 5;
  for (const SlotRun& run : slots) {
    for (std::int64_t i = 0; i < run.token_count; ++i) write(run.first_slot + i, value(live.tokens, position++));
  }
  ASSERT_TRUE(cache_->finish_receive(live.sequence));
  const Step step = plan({{&live.sequence}});
  compute(step, 0, live.tokens);
  send(step);
  EXPECT_EQ(sent_, 16U);  // five computed before the mark, six received, five of this step
  finish(step, {{}});
  ASSERT_TRUE(receiver_->finish_receive(last));
  const StepEntry entry{&last};
  const Step again = *receiver_->plan_step({&entry, 1})->step;
  ByteEngine(*receiver_).run(again.plan.entries[0], 0, live.tokens);
  ASSERT_TRUE(receiver_->finish_step(again, std::vector<StepResult>(1)));
}

TEST_F(CachePeers, OneThatLostItsPagesSendsWhatItHasAgain) {
  Live live = computed(token_range(0, 8));
  append(live, token_range(50, 4));
  const SlotRun slots{.first_slot = 40, .token_count = 12};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  EXPECT_EQ(cache_->reclaim(1).value(), 1U);
  EXPECT_EQ(cache_->resume(live.sequence)->matched_tokens, 4U);
  const Step step = plan({{&live.sequence, 1}});
  compute(step, 0, live.tokens);
  send(step);
  EXPECT_EQ(sent_, 5U);  // four that were found, one that was computed
  finish(step, {{}});
}

TEST_F(CachePeers, WhatOneFindsWhenItComesBackIsSentToo) {
  Live live = admitted(token_range(0, 10));
  const SlotRun slots{.first_slot = 40, .token_count = 10};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  EXPECT_EQ(run_request(token_range(0, 8)), 0U);
  EXPECT_EQ(cache_->resume(live.sequence)->matched_tokens, 8U);
  const Step step = plan({{&live.sequence}});
  compute(step, 0, live.tokens);
  send(step);
  EXPECT_EQ(sent_, 10U);
  finish(step, {{}});
}

TEST_F(CachePeers, ATailThatIsGivenUpIsSentWhenItIsComputed) {
  open(algebra_config(4));
  EXPECT_EQ(run_request(token_range(0, 12)), 0U);
  std::vector<TokenId> tokens = token_range(0, 11);
  tokens.insert(tokens.end(), {70, 71, 72, 73, 74});
  Live live = admitted(tokens);
  EXPECT_EQ(view(live).computed_tokens, 11U);
  const SlotRun slots{.first_slot = 40, .token_count = 16};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  const Step step = plan({{&live.sequence}});  // too few pages for the copy beside its source
  compute(step, 0, live.tokens);
  ASSERT_EQ(step.plan.groups[0].sends.size(), 1U);
  EXPECT_EQ(step.plan.groups[0].sends[0].token_count, 8);
  send(step);
  EXPECT_EQ(sent_, 16U);
  finish(step, {{}});
}

TEST_F(CachePeers, OneThatHasNothingLeftToComputeSendsWhenItsLastTokenRunsAgain) {
  Live live = computed(token_range(0, 8));
  EXPECT_EQ(view(live).pending_tokens, 0U);
  const SlotRun slots{.first_slot = 40, .token_count = 8};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  EXPECT_EQ(view(live).pending_tokens, 1U);
  const Step step = plan({{&live.sequence}});
  send(step);
  EXPECT_EQ(sent_, 8U);
  finish(step, {{}});
}

TEST_F(CachePeers, NothingIsReceivedWhereADiscardedStepMayStillWrite) {
  Live live = admitted(token_range(0, 10));
  const Step first = plan({{&live.sequence, 2}});
  const Step second = plan({{&live.sequence, 3}});
  ASSERT_TRUE(cache_->abort_step(first));
  expect_error(cache_->prepare_receive(live.sequence, 4), ErrorCode::Unavailable,
               "sequence 0: step 2 is in flight and has discarded entries");
  finish(second, {{}});
  EXPECT_TRUE(cache_->prepare_receive(live.sequence, 4).has_value());
}

TEST_F(CachePreempt, OneThatWasSavedHasNothingMoreToAsk) {
  Live live = computed(token_range(0, 6));
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  ASSERT_TRUE(cache_->resume(live.sequence));
  EXPECT_EQ(view(live).pending_tokens, 0U);
}

TEST_F(CachePreempt, OneThatPublishesNothingFindsItsPrefixInTheTreeAgain) {
  EXPECT_EQ(run_request(token_range(0, 8)), 0U);
  Live live = computed(token_range(0, 12), {.publish = Publish::None});
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  ASSERT_TRUE(cache_->resume(live.sequence));
  EXPECT_EQ(stats().sealed_pages, 2U);
  EXPECT_EQ(stats().private_pages, 1U);
  append(live, {90});
  run(live);
}

TEST_F(CacheFlight, WithoutDedupTheLaterTwinKeepsItsOwnPages) {
  CacheConfig config = algebra_config();
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
  EXPECT_NE(view(first).pages[0], view(second).pages[0]);
  append(second, token_range(40, 4));
  run(second);
  EXPECT_EQ(stats().private_pages, 3U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = second.tokens})->matched_tokens, 8U);
}

TEST_F(CachePeers, NothingIsReceivedWhereAStepInFlightMovesTokens) {
  std::vector<std::byte> memory(std::size_t{1} << 16U);
  CacheConfig config = algebra_config(8);
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_memory = memory.data();
  config.saved_page_count = 0;
  open(std::move(config));
  const auto step_of = [&](const Sequence& sequence, std::span<const std::int32_t> parents = {}) {
    const StepEntry entry{.sequence = &sequence, .tree_parents = parents};
    return *cache_->plan_step({&entry, 1})->step;
  };
  const std::vector<std::int32_t> parents = {-1, -1, 1};
  const std::vector<TokenId> values = {10, 11, 12};
  Sequence tree = begin_admitted(token_range(0, 6));
  ASSERT_TRUE(cache_->finish_step(step_of(tree), std::vector<StepResult>(1)));
  ASSERT_TRUE(cache_->finish_step(step_of(tree, parents), std::vector<StepResult>{{.tokens = values}}));
  ASSERT_TRUE(cache_->commit_tree(tree, 2));
  const Sequence other = begin_admitted(token_range(100, 5));
  const Step carries_moves = step_of(other);
  ASSERT_TRUE(cache_->end(tree));  // what it moves may be evicted, and given to the receiver
  const Sequence receiver = begin_admitted(token_range(200, 20));
  expect_error(cache_->prepare_receive(receiver, 20), ErrorCode::Unavailable, "is in flight and moves tokens");
  ASSERT_TRUE(cache_->finish_step(carries_moves, std::vector<StepResult>(1)));
  EXPECT_TRUE(cache_->prepare_receive(receiver, 20).has_value());
}

TEST_F(CachePeers, AMarkEndsWhenAllOfItWasSent) {
  Live live = computed(token_range(0, 8));
  const SlotRun slots{.first_slot = 40, .token_count = 9};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  append(live, {30});
  finish(plan({{&live.sequence}}), {{}});
  append(live, {31});
  const Step step = plan({{.sequence = &live.sequence, .draft_count = 2}});
  EXPECT_TRUE(step.plan.groups[0].remote_slots.empty());
  finish(step, {{}});
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {}, 5));
  append(live, {32});
  EXPECT_TRUE(plan({{&live.sequence}}).plan.groups[0].remote_slots.empty());
}

}  // namespace
}  // namespace quire
