// SPDX-License-Identifier: Apache-2.0
//
// The host tier, one behaviour at a time: what is written, when, what comes back, and what happens when it does not.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

using CacheTiers = TiersTest;

TEST_F(CacheTiers, WhatTheDeviceHasNoRoomForComesBackFromTheHost) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough}) {
    open_tiers(tiers_config(8, 32, policy));
    for (TokenId i = 0; i < 6; ++i) EXPECT_EQ(serve(token_range(100 * i, 17)), 0U);
    EXPECT_GT(stats().host_only_pages, 10U);
    EXPECT_EQ(serve(token_range(0, 17)), 16U);
    EXPECT_EQ(serve(token_range(100, 17)), 16U);
    EXPECT_EQ(stats().host_hit_tokens, 32U);
    EXPECT_EQ(stats().lost_page_total, 0U);
  }
}

TEST_F(CacheTiers, RandomRequestsFindRightBytes) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    open_tiers(tiers_config(12, 24, policy));
    std::uint64_t state = 7;
    for (int i = 0; i < 600; ++i) {
      state = mix64(state);
      std::vector<TokenId> tokens;
      for (std::uint32_t k = 0; k < 1 + (state % 5); ++k) {
        const auto part = token_range(static_cast<TokenId>(10 * ((state >> (8 * (k + 1))) % 3)), 4 + (state >> 50) % 5);
        tokens.insert(tokens.end(), part.begin(), part.end());
      }
      serve(tokens);
    }
    EXPECT_GT(stats().host_hit_tokens, 100U);
    EXPECT_TRUE(cache_->reset());
    EXPECT_EQ(stats().free_pages, 12U);
    EXPECT_EQ(stats().host_free_pages, 24U);
  }
}

// What the simulation found

TEST_F(CacheTiers, LookupTellsWhatTheHostHas) {
  open_tiers(tiers_config(8, 32));
  for (TokenId i = 0; i < 4; ++i) serve(token_range(100 * i, 17));
  const std::vector<TokenId> tokens = token_range(0, 17);
  const Lookup found = cache_->lookup(space_, {.tokens = tokens}).value();
  EXPECT_GT(found.host_tokens, 0U);
  EXPECT_EQ(found.matched_tokens + found.host_tokens, 16U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens}, {.tier_max = Tier::Device})->host_tokens, 0U);
}

TEST_F(CacheTiers, ARunThatStaysAfterAllLeavesAgainAndNotItsNeighbour) {
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

TEST_F(CacheTiers, EntriesThatFitStillFitInTheNextCall) {
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

TEST_F(CacheTiers, ACopyIsNotGivenUpForAPageThatAStoreStillReads) {
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

TEST_F(CacheTiers, PagesWithCopiesAreReclaimedWhileTheirRunWaitsForOthers) {
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

TEST_F(CacheTiers, RunsThatLeaveBelowEachOtherLeaveOnce) {
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

}  // namespace
}  // namespace quire
