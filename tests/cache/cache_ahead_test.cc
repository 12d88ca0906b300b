// SPDX-License-Identifier: Apache-2.0
//
// Steps of sequences whose pages are still on their way from the host (SequenceOptions::plan_while_loading).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "tiers_fixture.h"

namespace quire {
namespace {

constexpr SequenceOptions kAhead{.plan_while_loading = true};

class CacheAhead : public TiersTest {
 protected:
  /// Pages of 4 tokens, written as soon as they are full.
  void SetUp() override {
    CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
    config.steps_in_flight_max = 3;
    open_tiers(std::move(config));
  }
  /// Admitted, with its loads taken and not moved.
  [[nodiscard]] Live ahead(std::vector<TokenId> tokens) {
    Live live = admitted(std::move(tokens), kAhead);
    mover_->take();
    expect_invariants();
    return live;
  }
  [[nodiscard]] Step plan(const std::vector<const Live*>& lives) {
    std::vector<StepEntry> entries;
    for (const Live* live : lives) entries.push_back({&live->sequence});
    const Result<PlanOutcome> outcome = cache_->plan_step(entries);
    EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
    EXPECT_TRUE(outcome->step.has_value()) << "short of pages";
    EXPECT_TRUE(cache_->apply_copies(*outcome->step));
    expect_invariants();
    return *outcome->step;
  }
  /// Reads every key of an entry and writes its tokens: everything it waits for has arrived.
  void compute(const Step& step, std::size_t entry, const Live& live) {
    engine_->run(step.plan.entries[entry], 0, live.tokens);
  }
  /// The device work of an entry that reads bytes which are not right.
  void compute_in_vain(const Step& step, std::size_t entry) {
    for (const std::int64_t slot : step.plan.entries[entry].append_slots) {
      if (slot != kNoSlot) std::memset(cache_->device_memory() + (slot * kTestTokenBytes), 0x5A, kTestTokenBytes);
    }
  }
  void finish_step(const Step& step, std::vector<StepResult> results = {}) {
    results.resize(step.plan.entries.size());
    const Status status = cache_->finish_step(step, results);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    expect_invariants();
  }
  [[nodiscard]] std::vector<std::uint32_t> lost(const Step& step) {
    const std::span<const std::uint32_t> entries = cache_->lost_entries(step).value();
    return {entries.begin(), entries.end()};
  }
  void move_all() {
    while (!mover_->waiting.empty()) apply({mover_->move(0)});
  }
};

TEST_F(CacheAhead, AStepIsPlannedWhileItsPagesArrive) {
  put_on_host(token_range(0, 32));
  Live live = begun(token_range(0, 37), kAhead);
  const Admission admission = cache_->admit(live.sequence).value();
  EXPECT_EQ(admission.loading_tokens, 32U);
  EXPECT_FALSE(admission.is_ready) << "nobody has taken the load";
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 1U);
  EXPECT_TRUE(view(live).is_ready);
  EXPECT_TRUE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 32U);
  EXPECT_EQ(view(live).pending_tokens, 5U);
  const Step step = plan({&live});
  ASSERT_EQ(step.loads.size(), 1U);
  EXPECT_EQ(step.loads[0].id, mover_->waiting[0].plan.id);
  const StepResult result;
  expect_error(cache_->finish_step(step, {&result, 1}), ErrorCode::Unavailable, "still arriving");
  move_all();
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_TRUE(lost(step).empty());
  compute(step, 0, live);
  finish_step(step);
  EXPECT_EQ(view(live).computed_tokens, 37U);
  EXPECT_EQ(view(live).host_tokens, 32U);
  EXPECT_EQ(stats().host_hit_tokens, 32U);
  EXPECT_EQ(lookup(token_range(0, 37)).matched_tokens, 36U) << "what was computed is cached";
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, WithoutTheOptionASequenceThatLoadsIsNotPlanned) {
  put_on_host(token_range(0, 32));
  Live live = admitted(token_range(0, 37));
  mover_->take();
  EXPECT_FALSE(view(live).is_ready);
  const StepEntry entry{&live.sequence};
  expect_error(cache_->plan_step({&entry, 1}), ErrorCode::InvalidArgument, "is loading");
  move_all();
  EXPECT_TRUE(view(live).is_ready);
  finish(live);
}

TEST_F(CacheAhead, ASequenceWithNothingOnItsWayDoesNotRunAhead) {
  put_on_host(token_range(0, 32));
  Live writer = admitted(token_range(0, 32), {.tier_max = Tier::Device});
  Live live = admitted(token_range(0, 37), kAhead);  // nobody has taken its load
  finish(writer);                                    // all that the load would bring is on the device now
  mover_->take();
  EXPECT_FALSE(view(live).is_ready) << "a step without loads could not finish before the next apply()";
  apply({});
  EXPECT_TRUE(view(live).is_ready);
  EXPECT_FALSE(view(live).is_loading);
  finish(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, ALoadThatFailsTakesTheEntryBack) {
  for (const TransferFault fault : {TransferFault::Io, TransferFault::Checksum, TransferFault::Generation}) {
    put_on_host(token_range(0, 32));
    Live live = ahead(token_range(0, 39));
    const Step step = plan({&live});
    Completion completion = mover_->fail_it(0, TransferOutcome::Failed);
    completion.fault = fault;
    apply({completion});
    EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
    EXPECT_FALSE(view(live).is_ready);
    const StepEntry entry{&live.sequence};
    expect_error(cache_->plan_step({&entry, 1}), ErrorCode::Unavailable, "did not arrive");
    compute_in_vain(step, 0);
    const std::vector<TokenId> sampled = {7};
    finish_step(step, {{.tokens = sampled}});
    EXPECT_EQ(view(live).token_count, 39U) << "the token that was sampled is not taken";
    EXPECT_EQ(view(live).computed_tokens, 0U);
    EXPECT_EQ(view(live).miss.reason, MissReason::LoadFailed);
    EXPECT_EQ(lookup(token_range(0, 39)).matched_tokens, 0U) << "nothing was published";
    finish(live);  // computes everything, and reads what it computes
    settle();
    expect_all_free();
  }
}

TEST_F(CacheAhead, WhatArrivedBeforeABadPageIsKept) {
  put_on_host(token_range(0, 32));
  Live live = ahead(token_range(0, 36));
  const Step step = plan({&live});
  mover_->host_pages[{0U, mover_->waiting[0].pages[3].host_page.value}].is_bad = true;
  apply({mover_->move(0)});
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  compute_in_vain(step, 0);
  finish_step(step);
  EXPECT_EQ(view(live).computed_tokens, 12U);
  finish(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, OtherEntriesOfTheStepAreNotTakenBack) {
  put_on_host(token_range(0, 16));
  put_on_host(token_range(100, 16));
  Live first = ahead(token_range(0, 18));
  Live second = ahead(token_range(100, 18));
  Live third = admitted(token_range(200, 6));
  const Step step = plan({&first, &second, &third});
  EXPECT_EQ(step.loads.size(), 2U);
  apply({mover_->fail_it(0, TransferOutcome::Cancelled)});
  move_all();
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  compute_in_vain(step, 0);
  compute(step, 1, second);
  compute(step, 2, third);
  finish_step(step);
  EXPECT_EQ(view(first).computed_tokens, 0U);
  EXPECT_EQ(view(second).computed_tokens, 18U);
  EXPECT_EQ(view(third).computed_tokens, 6U);
  for (Live* live : {&first, &second, &third}) finish(*live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, SeveralSequencesRunAheadOnOneLoad) {
  put_on_host(token_range(0, 32));
  Live first = ahead(token_range(0, 34));
  Live second = ahead(token_range(0, 35));
  ASSERT_EQ(mover_->waiting.size(), 1U);
  const Step step = plan({&first, &second});
  EXPECT_EQ(step.loads.size(), 1U);
  end(first);  // the load is still needed
  std::array<TransferId, 4> cancelled;
  EXPECT_TRUE(cache_->take_cancellations(cancelled)->empty());
  move_all();
  compute(step, 1, second);
  compute(step, 0, first);
  finish_step(step);
  EXPECT_EQ(view(second).computed_tokens, 35U);
  end(second);
  settle();
  expect_all_free();
}

// The tree has the page of whoever computed it first. The step reads the load's, which stays until the step has ended.
TEST_F(CacheAhead, APageThatAnotherSequenceComputedMeanwhileTakesThePlaceOfTheLoads) {
  put_on_host(token_range(0, 16));
  Live live = ahead(token_range(0, 18));
  Live other = admitted(token_range(0, 17), {.tier_max = Tier::Device});
  const Step before = plan({&other});
  const Step step = plan({&live});
  compute(before, 0, other);
  finish_step(before);
  apply({mover_->move(0)});
  EXPECT_TRUE(lost(step).empty());
  EXPECT_EQ(stats().fenced_pages, 4U) << "the load's pages wait for the step";
  compute(step, 0, live);
  finish_step(step);
  EXPECT_EQ(stats().fenced_pages, 0U);
  EXPECT_TRUE(std::ranges::equal(view(live).pages().first(4), view(other).pages().first(4)));
  end(other);
  ASSERT_TRUE(cache_->append(live.sequence, {.tokens = token_range(500, 3)}));
  for (TokenId i = 500; i < 503; ++i) live.tokens.push_back(i);
  finish(live);  // reads all keys once more, from the tree's pages
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, AStepIsLostWithItsLoadEvenIfAnotherSequenceHasComputedThePages) {
  put_on_host(token_range(0, 16));
  Live live = ahead(token_range(0, 18));
  Live other = admitted(token_range(0, 17), {.tier_max = Tier::Device});
  const Step before = plan({&other});
  const Step step = plan({&live});
  compute(before, 0, other);
  finish_step(before);
  apply({mover_->fail_it(0, TransferOutcome::Failed)});
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  compute_in_vain(step, 0);
  finish_step(step);
  EXPECT_EQ(view(live).computed_tokens, 16U) << "what the other has computed";
  finish(live);
  end(other);
  settle();
  expect_all_free();
}

// A load brings pages [0, 8) of one path; the second sequence has the first four of them, and others behind.
TEST_F(CacheAhead, OfALoadThatGoesOnAlongAnotherPathOnlyThePagesOfTheOwnPathAreRead) {
  std::vector<TokenId> other = token_range(0, 32);
  for (std::size_t i = 16; i < other.size(); ++i) other[i] += 1'000;
  put_on_host(token_range(0, 32));
  put_on_host(other);
  Live first = ahead(token_range(0, 34));
  other.push_back(5);
  Live second = ahead(other);
  ASSERT_EQ(mover_->waiting.size(), 2U);
  const Step step = plan({&first, &second});
  EXPECT_EQ(step.loads.size(), 2U);
  move_all();
  compute(step, 0, first);
  compute(step, 1, second);
  finish_step(step);
  end(first);
  end(second);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, SeveralStepsOfASequenceWaitForTheSameLoads) {
  put_on_host(token_range(0, 32));
  Live live = ahead(token_range(0, 40));
  const StepEntry chunk{&live.sequence, 5};
  const Step first = *cache_->plan_step({&chunk, 1})->step;
  const StepEntry rest{&live.sequence, 3};
  const Step second = *cache_->plan_step({&rest, 1})->step;
  EXPECT_EQ(second.loads.size(), 1U);
  move_all();
  const StepEntry next{&live.sequence, 1};
  const Step third = *cache_->plan_step({&next, 1})->step;
  EXPECT_TRUE(third.loads.empty()) << "everything has arrived";
  compute(first, 0, live);
  finish_step(first);
  compute(second, 0, live);
  const std::vector<TokenId> sampled = {900};
  finish_step(second, {{.tokens = sampled}});
  live.tokens.push_back(900);
  compute(third, 0, live);
  finish_step(third);
  EXPECT_EQ(view(live).computed_tokens, 41U);
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, LaterStepsOfALostSequenceAreTakenBackToo) {
  put_on_host(token_range(0, 32));
  Live live = ahead(token_range(0, 40));
  const StepEntry chunk{&live.sequence, 5};
  const Step first = *cache_->plan_step({&chunk, 1})->step;
  const Step second = plan({&live});
  apply({mover_->fail_it(0, TransferOutcome::Failed)});
  EXPECT_EQ(lost(first).size(), 1U);
  EXPECT_EQ(lost(second).size(), 1U);
  compute_in_vain(first, 0);
  finish_step(first);
  EXPECT_EQ(view(live).pending_tokens, 40U);
  const Step third = plan({&live});
  compute_in_vain(second, 0);  // its device work comes before that of the third
  finish_step(second);
  compute(third, 0, live);
  finish_step(third);
  EXPECT_EQ(view(live).computed_tokens, 40U);
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, AStepThatIsAbortedIsPlannedAgain) {
  put_on_host(token_range(0, 32));
  Live live = ahead(token_range(0, 37));
  const Step aborted = plan({&live});
  ASSERT_TRUE(cache_->abort_step(aborted));
  expect_invariants();
  EXPECT_TRUE(view(live).is_ready);
  const Step discarded = plan({&live});
  finish_step(discarded, {{.discard = true}});
  const Step step = plan({&live});
  EXPECT_EQ(step.loads.size(), 1U);
  move_all();
  compute(step, 0, live);
  finish_step(step);
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, AFailureBetweenStepsIsNoLoss) {
  put_on_host(token_range(0, 32));
  Live live = ahead(token_range(0, 37));
  ASSERT_TRUE(cache_->abort_step(plan({&live})));
  apply({mover_->fail_it(0, TransferOutcome::Failed)});
  EXPECT_TRUE(view(live).is_ready);
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).pending_tokens, 37U);
  finish(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, SequencesThatEndMeanwhileLeaveNothingBehind) {
  put_on_host(token_range(0, 16));
  put_on_host(token_range(100, 16));
  put_on_host(token_range(200, 16));
  Live ended = ahead(token_range(0, 18));
  Live dropped = ahead(token_range(100, 18));
  Live unplanned = ahead(token_range(200, 18));
  const Step step = plan({&ended, &dropped});
  end(ended);
  dropped.sequence = Sequence();
  end(unplanned);
  expect_invariants();
  compute_in_vain(step, 0);
  compute_in_vain(step, 1);
  finish_step(step);  // nobody has to wait for the pages of ended sequences
  EXPECT_EQ(lookup(token_range(0, 18)).matched_tokens, 0U) << "what was computed in vain is not published";
  move_all();
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, NobodyHearsThatASequenceIsReadyWhichHasEndedSince) {
  std::vector<SequenceId> ready;
  ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId id) { ready.push_back(id); }));
  put_on_host(token_range(0, 16));
  put_on_host(token_range(100, 16));
  Live ended = ahead(token_range(0, 18));
  Live planned = ahead(token_range(100, 18));
  const Step step = plan({&planned});
  end(ended);
  end(planned);
  apply({});
  EXPECT_TRUE(ready.empty()) << "take_transfers() made them ready, and they have ended before apply()";
  compute_in_vain(step, 0);
  finish_step(step);
  move_all();
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, WhatCameFromTheHostCountsThoughTheKeySpaceWasDroppedMeanwhile) {
  put_on_host(token_range(0, 16));
  Live live = ahead(token_range(0, 18));
  const Step step = plan({&live});
  ASSERT_TRUE(cache_->drop(space_));
  move_all();
  EXPECT_EQ(view(live).host_tokens, 16U);
  EXPECT_EQ(stats().host_hit_tokens, 16U);
  compute(step, 0, live);
  finish_step(step);
  EXPECT_EQ(view(live).computed_tokens, 18U);
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, StopLoadingTakesTheStepBack) {
  put_on_host(token_range(0, 16));
  Live live = ahead(token_range(0, 18));
  const Step step = plan({&live});
  ASSERT_TRUE(cache_->stop_loading(live.sequence));
  EXPECT_EQ(lost(step).size(), 1U);
  expect_invariants();
  compute_in_vain(step, 0);
  finish_step(step);
  EXPECT_EQ(view(live).computed_tokens, 0U);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadCancelled);
  finish(live);
  move_all();
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, ALoadThatTakesTooLongTakesTheStepBack) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.load_timeout_ns = 1'000;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 16));
  Live live = ahead(token_range(0, 18));
  const Step step = plan({&live});
  now_ += 1'001;
  apply({});
  EXPECT_EQ(lost(step).size(), 1U);
  compute_in_vain(step, 0);
  finish_step(step);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadTimedOut);
  Live next = admitted(token_range(500, 40));  // may not get the pages that the mover is still writing
  this->step(next.sequence, next.tokens);
  move_all();
  finish(live);
  end(next);
  settle();
  expect_all_free();
}

TEST_F(CacheAhead, AMissNamesNoLoadWhereEverythingWasFoundThatTheRequestAskedFor) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.load_timeout_ns = 1'000;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 24), {.match_tokens_max = 16, .plan_while_loading = true});
  mover_->take();
  Live other = admitted(token_range(0, 17), {.use_cache = false});
  const Step before = plan({&other});
  const Step step = plan({&live});
  compute(before, 0, other);
  finish_step(before);  // the pages are on the device, whatever becomes of the load
  now_ += 1'001;
  apply({});
  ASSERT_EQ(lost(step).size(), 1U);
  compute_in_vain(step, 0);
  finish_step(step);
  EXPECT_EQ(view(live).computed_tokens, 16U);
  EXPECT_EQ(view(live).miss.reason, MissReason::NotAsked);
  move_all();
  finish(live);
  end(other);
  settle();
  expect_all_free();
}

/// Loads of 4 pages: a path of 32 tokens comes with two of them.
class CacheAheadByTwoLoads : public CacheAhead {
 protected:
  void open_for(std::uint16_t rank_count) {
    CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
    config.host.rank_count = rank_count;
    config.host.transfer_pages_max = 4;
    open_tiers(std::move(config));
    put_on_host(token_range(0, 32));
  }
};

// Its pages are attached, or given up, when those before them have come. Until then they count for what they are.
TEST_F(CacheAheadByTwoLoads, NobodyIsPlannedOnALoadThatHasFailedAndWaitsForTheOneBeforeIt) {
  open_for(1);
  Live first = ahead(token_range(0, 34));
  ASSERT_EQ(mover_->waiting.size(), 2U);
  EXPECT_TRUE(view(first).is_ready);
  apply({mover_->fail_it(1, TransferOutcome::Failed)});
  Live second = ahead(token_range(0, 35));
  EXPECT_FALSE(view(second).is_ready);
  EXPECT_TRUE(view(second).is_loading);
  move_all();
  EXPECT_FALSE(view(second).is_loading);
  EXPECT_EQ(view(second).computed_tokens, 16U) << "what the first load has brought";
  EXPECT_EQ(view(second).miss.reason, MissReason::LoadFailed);
  finish(first);
  finish(second);
  settle();
  expect_all_free();
}

TEST_F(CacheAheadByTwoLoads, NobodyIsPlannedOnALoadThatHasFailedThoughThePagesBeforeItAreThere) {
  open_for(1);
  Live first = ahead(token_range(0, 34));
  ASSERT_EQ(mover_->waiting.size(), 2U);
  apply({mover_->fail_it(1, TransferOutcome::Failed)});
  Live writer = computed(token_range(0, 16), {.tier_max = Tier::Device});
  Live second = ahead(token_range(0, 35));  // before any apply() that could give up the load
  EXPECT_FALSE(view(second).is_ready);
  apply({});
  EXPECT_FALSE(view(second).is_loading);
  EXPECT_EQ(view(second).computed_tokens, 16U);
  EXPECT_EQ(view(second).miss.reason, MissReason::LoadFailed);
  move_all();
  for (Live* live : {&first, &second, &writer}) finish(*live);
  settle();
  expect_all_free();
}

TEST_F(CacheAheadByTwoLoads, NobodyIsPlannedOnALoadThatHasFailedOnOneRank) {
  open_for(2);
  Live first = ahead(token_range(0, 34));
  ASSERT_EQ(mover_->waiting.size(), 2U);
  Completion failed = mover_->fail_it(1, TransferOutcome::Failed);
  failed.rank = 1;
  apply({failed});
  Live second = ahead(token_range(0, 35));
  EXPECT_FALSE(view(second).is_ready) << "the other rank still moves its share";
  failed.rank = 0;
  apply({failed});
  settle();
  EXPECT_FALSE(view(second).is_loading);
  EXPECT_EQ(view(second).computed_tokens, 16U);
  finish(first);
  finish(second);
  settle();
  expect_all_free();
}

TEST_F(CacheAheadByTwoLoads, ALoadThatHasBroughtGoodPagesAndWaitsForTheOneBeforeItIsOnItsWay) {
  open_for(1);
  Live first = ahead(token_range(0, 34));
  ASSERT_EQ(mover_->waiting.size(), 2U);
  apply({mover_->move(1)});
  Live second = ahead(token_range(0, 35));
  EXPECT_TRUE(view(second).is_ready);
  Live writer = computed(token_range(0, 16), {.tier_max = Tier::Device});
  Live third = ahead(token_range(0, 36));
  EXPECT_TRUE(view(third).is_ready);
  const Step step = plan({&first, &second, &third});
  EXPECT_EQ(step.loads.size(), 2U);
  move_all();
  EXPECT_TRUE(lost(step).empty());
  compute(step, 0, first);
  compute(step, 1, second);
  compute(step, 2, third);
  finish_step(step);
  for (Live* live : {&first, &second, &third, &writer}) finish(*live);
  settle();
  expect_all_free();
}

}  // namespace
}  // namespace quire
