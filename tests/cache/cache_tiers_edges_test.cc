// SPDX-License-Identifier: Apache-2.0
//
// Where the host tier meets everything else: promises about pages, steps in flight, time, and ranks that disagree.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

using CacheTiersEdges = TiersTest;

TEST_F(CacheTiersEdges, ExpectedPagesAreMadeFreeAndNotJustWaitedFor) {
  open_tiers(tiers_config(16, 64));
  for (TokenId i = 0; i < 4; ++i) run_request(token_range(100 * i, 16));  // nothing is moved yet
  const std::vector<TokenId> prompt = token_range(900, 4);
  const Sequence sequence = cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 48}).value();
  bool is_admitted = false;
  for (int i = 0; i < 20 && !is_admitted; ++i) {
    is_admitted = cache_->admit(sequence).has_value();
    settle();
  }
  EXPECT_TRUE(is_admitted);
}

TEST_F(CacheTiersEdges, PagesToReceiveIntoAreMadeFree) {
  open_tiers(tiers_config(16, 64));
  for (TokenId i = 0; i < 4; ++i) run_request(token_range(100 * i, 16));
  const Sequence sequence = begin_admitted(token_range(900, 40));
  bool is_prepared = false;
  for (int i = 0; i < 20 && !is_prepared; ++i) {
    is_prepared = cache_->prepare_receive(sequence, 40).has_value();
    settle();
  }
  EXPECT_TRUE(is_prepared);
}

TEST_F(CacheTiersEdges, NobodySleepsWhileAStepIsInFlight) {
  open_tiers(tiers_config(16, 64));
  Sequence sequence = begin_admitted(token_range(0, 9));
  const StepEntry entry{&sequence, 4};
  const Step first = *cache_->plan_step({&entry, 1})->step;
  const Step second = *cache_->plan_step({&entry, 1})->step;
  ASSERT_TRUE(cache_->abort_step(first));
  ASSERT_TRUE(cache_->end(sequence));
  expect_error(cache_->sleep(Sleep::DropAll), ErrorCode::Unavailable, "sleep: step 2 is in flight");
  const StepResult result;
  ASSERT_TRUE(cache_->finish_step(second, {&result, 1}));
  EXPECT_TRUE(cache_->sleep(Sleep::DropAll).value());
}

TEST_F(CacheTiersEdges, ALoadIsTooLateWhenApplyHearsTheTime) {
  CacheConfig config = tiers_config(8, 32, WritePolicy::WriteThrough);
  config.host.load_timeout_ns = 1'000;
  open_tiers(std::move(config));
  serve(token_range(0, 8));
  ASSERT_EQ(cache_->reclaim(8).value(), 2U);
  const std::vector<TokenId> tokens = token_range(0, 8);
  const Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
  ASSERT_EQ(cache_->admit(sequence)->loading_tokens, 8U);
  mover_->take();
  ASSERT_TRUE(cache_->advance(999));
  EXPECT_TRUE(cache_->view(sequence)->is_loading);
  ASSERT_TRUE(cache_->advance(1'000));
  EXPECT_TRUE(cache_->view(sequence)->is_loading);
  ASSERT_TRUE(cache_->apply({}, 1'000));
  EXPECT_FALSE(cache_->view(sequence)->is_loading);
  EXPECT_EQ(cache_->view(sequence)->miss.reason, MissReason::LoadTimedOut);
  now_ = 1'000;
  settle();
}

TEST_F(CacheTiersEdges, TheRankThatStoppedFirstSaysWhy) {
  for (const bool io_comes_first : {true, false}) {
    CacheConfig config = tiers_config(8, 32, WritePolicy::WriteThrough);
    config.host.rank_count = 2;
    open_tiers(std::move(config));
    run_request(token_range(0, 16));
    const auto report = [&](TransferId id, std::uint16_t rank, TransferFault fault, std::uint32_t good_pages) {
      return Completion{.id = id,
                        .outcome = fault == TransferFault::None ? TransferOutcome::Ok : TransferOutcome::Failed,
                        .fault = fault,
                        .rank = rank,
                        .good_pages = good_pages};
    };
    const auto take_id = [&] {
      mover_->take();
      const TransferId id = mover_->waiting.front().plan.id;
      mover_->waiting.clear();
      return id;
    };
    const TransferId store = take_id();
    apply({report(store, 0, TransferFault::None, 4), report(store, 1, TransferFault::None, 4)});
    ASSERT_EQ(cache_->reclaim(8).value(), 4U);
    const std::vector<TokenId> tokens = token_range(0, 16);
    const Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
    ASSERT_EQ(cache_->admit(sequence)->loading_tokens, 16U);
    const TransferId load = take_id();
    // Page 1 could not be copied on one rank, page 3 is damaged on the other: page 1 is as good as ever.
    std::vector<Completion> reports = {report(load, 0, TransferFault::Io, 1),
                                       report(load, 1, TransferFault::Checksum, 3)};
    if (!io_comes_first) std::swap(reports[0], reports[1]);
    apply(reports);
    EXPECT_EQ(cache_->view(sequence)->computed_tokens, 4U);
    EXPECT_EQ(stats().host_only_pages, 3U);  // nothing was dropped
  }
}

TEST_F(CacheTiersEdges, AsManyMaySaveOnePageAsThereAreSequences) {
  CacheConfig config = tiers_config(600, 900);
  config.sequence_count_max = 300;
  config.host.transfer_count_max = 400;
  open_tiers(std::move(config));
  std::vector<TokenId> tokens = token_range(0, 5);
  std::vector<Sequence> sequences;
  for (int i = 0; i < 270; ++i) {
    sequences.push_back(begin_admitted(tokens));
    step(sequences.back(), tokens);
    ASSERT_TRUE(cache_->preempt(sequences.back(), Preempt::Save));
  }
  expect_invariants();
  sequences.clear();
  ASSERT_TRUE(cache_->reclaim(600));
  expect_invariants();
  EXPECT_LT(stats().free_pages, 600U);  // the saves still read
  settle();
  EXPECT_EQ(stats().free_pages, 600U);
}

TEST_F(CacheTiersEdges, WhatASaveReadIsNotUsedBeforeTheStepsInFlightAreOver) {
  CacheConfig config = tiers_config(16, 32);
  config.host.clean_reserve_pages = 0;
  open_tiers(std::move(config));
  std::vector<TokenId> tokens = token_range(0, 6);
  Sequence first = begin_admitted(tokens, {.use_cache = false});
  step(first, tokens);
  Sequence fork = cache_->fork(first, 6).value();  // its tail is the page that `first` goes on writing
  run_request(token_range(0, 8));                  // the twin of that page
  ASSERT_TRUE(cache_->preempt(fork, Preempt::Save));
  mover_->take();
  const std::vector<TokenId> more = {6, 7, 8};
  ASSERT_TRUE(cache_->append(first, {.tokens = more}));
  const StepEntry entry{&first, 2};
  const Step filling = *cache_->plan_step({&entry, 1})->step;
  const StepEntry last{&first, 1};
  const Step next = *cache_->plan_step({&last, 1})->step;
  const StepResult result;
  ASSERT_TRUE(cache_->apply_copies(filling));
  ASSERT_TRUE(cache_->apply_copies(next));
  ASSERT_TRUE(cache_->finish_step(filling, {&result, 1}));  // the page is a duplicate; only the fork has it
  ASSERT_TRUE(cache_->end(fork));
  while (!mover_->waiting.empty()) apply({mover_->move(0)});
  EXPECT_GT(stats().fenced_pages, 0U);  // the second step lists it
  ASSERT_TRUE(cache_->finish_step(next, {&result, 1}));
  EXPECT_EQ(stats().fenced_pages, 0U);
  expect_invariants();
}

// Every load is counted once, by how it ended for those who waited for it.
TEST_F(CacheTiersEdges, LoadsThatAreCalledOffCountAsCancelled) {
  open_tiers(tiers_config(24, 48, WritePolicy::WriteThrough));
  const auto loads = [&](TransferOutcome outcome) { return stats().load_outcomes[static_cast<std::size_t>(outcome)]; };
  put_on_host(token_range(0, 16));
  Live queued = admitted(token_range(0, 16));
  end(queued);  // nobody has taken it
  EXPECT_EQ(loads(TransferOutcome::Cancelled), 1U);
  Live moving = admitted(token_range(0, 16));
  mover_->take();
  ASSERT_TRUE(cache_->stop_loading(moving.sequence));
  EXPECT_EQ(loads(TransferOutcome::Cancelled), 2U);
  apply({mover_->move(0)});  // too late to matter
  EXPECT_EQ(loads(TransferOutcome::Cancelled), 2U);
  EXPECT_EQ(loads(TransferOutcome::Ok), 0U);
  end(moving);
  Live live = computed(token_range(100, 16));
  settle();
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  settle();
  ASSERT_TRUE(cache_->reclaim(UINT32_MAX));
  ASSERT_TRUE(cache_->resume(live.sequence));
  end(live);  // while it is brought back
  EXPECT_EQ(loads(TransferOutcome::Cancelled), 3U);
  settle();
  EXPECT_EQ(loads(TransferOutcome::Cancelled), 3U);
  expect_all_free();
}

TEST_F(CacheTiersEdges, WhatASequenceExpectsIsPromisedWhileItLoads) {
  open_tiers(tiers_config(12, 48, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 16));
  Live first = admitted(token_range(0, 16), {.expected_tokens = 32});  // 4 pages on their way, 4 more to come
  ASSERT_TRUE(view(first).is_loading);
  Live second = begun(token_range(100, 16), {.expected_tokens = 20});
  expect_error(cache_->admit(second.sequence), ErrorCode::Unavailable, "admitted sequences expect 4 of them");
  end(first);
  settle();
  EXPECT_TRUE(cache_->admit(second.sequence));
  end(second);
}

// Unless a configuration says otherwise, it is a share of the pool.
TEST_F(CacheTiersEdges, TheCleanReserveGrowsWithThePool) {
  CacheConfig config = tiers_config(32, 96);
  config.context_tokens_max = 64;
  config.host.clean_reserve_pages.reset();
  open_tiers(std::move(config));
  ASSERT_TRUE(cache_->resize(64));
  for (int i = 0; i < 8; ++i) serve(token_range(1'000 * i, 60));
  EXPECT_EQ(stats().free_pages + stats().clean_reserve_pages, 4U);
}

// Faults that the simulation has found, each as small as it gets

using CacheTiersFound = TiersTest;

TEST_F(CacheTiersFound, ARunThatStaysAfterAllLeavesAgainAndNotItsNeighbour) {
  CacheConfig config = tiers_config(6, 32);
  config.host.clean_reserve_pages = 3;
  open_tiers(std::move(config));
  std::vector<TokenId> other = token_range(500, 8);
  const Sequence running = begin_admitted(other);
  step(running, other);
  std::vector<TokenId> tokens = token_range(0, 8);
  for (int i = 0; i < 3; ++i) {
    Sequence sequence = begin_admitted(tokens);  // after the first time, what was about to leave stays
    step(sequence, tokens);
    EXPECT_TRUE(cache_->end(sequence));
    expect_invariants();
  }
  EXPECT_EQ(stats().pinned_pages, 2U);
}

TEST_F(CacheTiersFound, EntriesThatFitStillFitInTheNextCall) {
  CacheConfig config = tiers_config(6, 32, WritePolicy::Selective);
  config.host.write_hits_min = 1;
  open_tiers(std::move(config));
  run_request(token_range(500, 8));
  run_request(token_range(0, 8));
  const Sequence first = begin_admitted(token_range(0, 17));  // its two cached pages are to be copied
  const Sequence second = begin_admitted(token_range(700, 9));
  const std::vector<StepEntry> entries = {{&first}, {&second}};
  const PlanOutcome both = cache_->plan_step(entries).value();
  ASSERT_FALSE(both.step.has_value());
  ASSERT_EQ(both.shortage.entries_that_fit, 1U);
  EXPECT_TRUE(cache_->plan_step({&entries[0], 1})->step.has_value());
}

TEST_F(CacheTiersFound, ACopyIsNotGivenUpForAPageThatAStoreStillReads) {
  open_tiers(tiers_config(3, 8, WritePolicy::WriteThrough));
  run_request(token_range(0, 8));
  std::vector<TokenId> tokens = token_range(0, 7);  // one page, and three tokens of the next
  for (TokenId i = 0; i < 5; ++i) tokens.push_back(900 + i);
  const Sequence sequence = begin_admitted(tokens);
  const StepEntry entry{&sequence};
  EXPECT_FALSE(cache_->plan_step({&entry, 1})->step.has_value());
  settle();
  EXPECT_TRUE(cache_->plan_step({&entry, 1})->step.has_value());
}

TEST_F(CacheTiersFound, PagesWithCopiesAreReclaimedWhileTheirRunWaitsForOthers) {
  CacheConfig config = tiers_config(5, 32);
  config.host.clean_reserve_pages = 4;
  config.host.transfer_pages_max = 1;
  open_tiers(std::move(config));
  std::vector<TokenId> tokens = token_range(0, 8);
  serve(tokens);
  serve(token_range(500, 4));
  // Both pages have copies by now, and stay for this request. When it ends, the second one is behind the other
  // request's page, which is still being copied.
  Sequence sequence = begin_admitted(tokens);
  step(sequence, tokens);
  EXPECT_TRUE(cache_->end(sequence));
  EXPECT_TRUE(cache_->reclaim(5));
  expect_invariants();
  EXPECT_EQ(stats().sealed_pages, 1U);  // the one that is being copied
}

TEST_F(CacheTiersFound, RunsThatLeaveBelowEachOtherLeaveOnce) {
  CacheConfig config = tiers_config(4, 32);
  config.host.clean_reserve_pages = 3;
  config.host.transfer_pages_max = 1;
  open_tiers(std::move(config));
  run_request(token_range(0, 12));
  EXPECT_EQ(stats().leaving_pages, 2U);
  EXPECT_EQ(cache_->reclaim(1).value(), 1U);  // the lower of the two, copied or not
  mover_->take();
  expect_invariants();
  settle();
}

TEST_F(CacheTiersFound, APartOfAPageOnTheDeviceIsNoReasonBehindALoad) {
  open_tiers(tiers_config(8, 32, WritePolicy::WriteThrough));
  const std::vector<TokenId> tokens = token_range(0, 8);
  serve(tokens);
  serve({0, 1, 2, 3, 4, 900, 901, 902});  // begins like the second page, too little to be worth a copy
  EXPECT_EQ(cache_->reclaim(1).value(), 1U);
  ASSERT_EQ(cache_->lookup(space_, {.tokens = tokens})->host_tokens, 4U);
  const Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
  EXPECT_EQ(cache_->admit(sequence)->miss.reason, MissReason::None);
}

TEST_F(CacheTiersFound, AReadyCallbackMayApplyAgainAndTellsEachSequenceOnce) {
  open_tiers(tiers_config(16, 32, WritePolicy::WriteThrough));
  for (TokenId i = 0; i < 3; ++i) serve(token_range(100 * i, 4));
  EXPECT_EQ(cache_->reclaim(3).value(), 3U);
  std::vector<Sequence> sequences;
  for (TokenId i = 0; i < 3; ++i) {
    sequences.push_back(cache_->begin(space_, {.tokens = token_range(100 * i, 4)}).value());
    EXPECT_EQ(cache_->admit(sequences.back())->loading_tokens, 4U);
  }
  std::vector<SequenceId> told;
  ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId id) {
    told.push_back(id);
    EXPECT_TRUE(cache_->apply({}, now_));
  }));
  mover_->take();
  std::vector<Completion> completions;
  while (!mover_->waiting.empty()) completions.push_back(mover_->move(0));
  apply(completions);
  EXPECT_EQ(told, (std::vector{sequences[0].id(), sequences[1].id(), sequences[2].id()}));
}

// A sequence whose token tree is committed: its first page is full, but for a move that comes with the next plan.
class CacheTiersWithTrees : public TiersTest {
 protected:
  void SetUp() override {
    open_tiers(tiers_config(3, 8, WritePolicy::WriteThrough));
    // One page that is on the host only.
    run_request(token_range(0, 4));
    settle();
    EXPECT_EQ(cache_->reclaim(1).value(), 1U);
    ASSERT_EQ(stats().host_only_pages, 1U);
    other_ = begin_admitted(token_range(300, 2));
    other_tokens_ = token_range(300, 2);
    step(other_, other_tokens_, {302});
    std::vector<TokenId> tokens = token_range(500, 3);
    tree_ = begin_admitted(tokens);
    step(tree_, tokens);
    const std::vector<std::int32_t> parents = {-1, -1};
    const StepEntry entry{.sequence = &tree_, .tree_parents = parents};
    const Step planned = *cache_->plan_step({&entry, 1})->step;
    const std::vector<TokenId> values = {7, 8};
    const StepResult result{.tokens = values};
    ASSERT_TRUE(cache_->finish_step(planned, {&result, 1}));
    ASSERT_TRUE(cache_->commit_tree(tree_, 1));
    ASSERT_EQ(stats().fenced_pages, 1U);
  }
  [[nodiscard]] Result<Admission> admit_what_is_on_the_host() {
    loading_ = cache_->begin(space_, {.tokens = loading_tokens_}).value();
    return cache_->admit(loading_);
  }

  Sequence other_;
  std::vector<TokenId> other_tokens_;
  Sequence tree_;
  Sequence loading_;
  std::vector<TokenId> loading_tokens_ = token_range(0, 4);
};

TEST_F(CacheTiersWithTrees, ALoadTakesNoPageThatWaitsForMovesToBePlanned) {
  const Result<Admission> admission = admit_what_is_on_the_host();
  ASSERT_TRUE(admission.has_value()) << admission.error().message;
  EXPECT_EQ(admission->loading_tokens, 4U);  // the moves were made for it
  expect_invariants();
}

TEST_F(CacheTiersWithTrees, ALoadTakesNoPageThatMovesOfAStepInFlightWillWrite) {
  const PageId moved = cache_->view(tree_)->pages()[0];
  ASSERT_TRUE(cache_->end(tree_));
  const StepEntry entry{&other_};
  const Step planned = *cache_->plan_step({&entry, 1})->step;
  ASSERT_EQ(planned.plan.groups[0].moves.size(), 1U);
  (void)admit_what_is_on_the_host();
  mover_->take();
  for (const HandMover::Taken& taken : mover_->waiting) {
    for (const PageTransfer& page : taken.pages) EXPECT_NE(page.device_page, moved);
  }
  ASSERT_TRUE(cache_->apply_copies(planned));
  const StepResult result;
  ASSERT_TRUE(cache_->finish_step(planned, {&result, 1}));
  expect_invariants();
}

}  // namespace
}  // namespace quire
