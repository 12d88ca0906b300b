// SPDX-License-Identifier: Apache-2.0
//
// Faults of the host tier that the simulation has found, each as small as it gets.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

using CacheTiersFound = TiersTest;

TEST_F(CacheTiersFound, LookupTellsWhatTheHostHas) {
  open_tiers(tiers_config(8, 32));
  for (TokenId i = 0; i < 4; ++i) serve(token_range(100 * i, 17));
  const std::vector<TokenId> tokens = token_range(0, 17);
  const Lookup found = cache_->lookup(space_, {.tokens = tokens}).value();
  EXPECT_GT(found.host_tokens, 0U);
  EXPECT_EQ(found.matched_tokens + found.host_tokens, 16U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens}, {.tier_max = Tier::Device})->host_tokens, 0U);
}

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

TEST_F(CacheTiersFound, ALoadingSequenceKnowsWhatBecameOfTheRest) {
  open_tiers(tiers_config(8, 32));
  std::vector<TokenId> lost = token_range(0, 4);
  for (TokenId i = 0; i < 8; ++i) lost.push_back(900 + i);
  serve(lost);
  EXPECT_EQ(cache_->reclaim(8).value(), 3U);  // without copies
  for (TokenId i = 0; i < 4; ++i) serve(token_range(100 * i, 16));
  ASSERT_EQ(cache_->lookup(space_, {.tokens = lost})->host_tokens, 4U);  // the start of a longer run
  const Sequence sequence = cache_->begin(space_, {.tokens = lost}).value();
  const Admission admission = cache_->admit(sequence).value();
  EXPECT_EQ(admission.loading_tokens, 4U);
  EXPECT_EQ(admission.miss.reason, MissReason::Evicted);
  EXPECT_EQ(admission.miss.tier, Tier::Device);
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
  const PageId moved = cache_->view(tree_)->pages[0];
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
