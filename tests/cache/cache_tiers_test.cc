// SPDX-License-Identifier: Apache-2.0
//
// The host tier, one behaviour at a time: what is written, when, and what gives way to what.
#include <gtest/gtest.h>

#include <set>

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

// Tiers of a path

TEST_F(CacheTiers, APathIsDeviceThenHostWhateverIsEvicted) {
  for (const WritePolicy write_policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    for (const auto& [policy, host_policy] : {std::pair("lru", "lru"), std::pair("lfu", "s3fifo")}) {
      CacheConfig config = tiers_config(12, 14, write_policy);
      config.policy = policy;
      config.host.policy = host_policy;
      open_tiers(std::move(config));
      std::uint64_t state = 3;
      for (int i = 0; i < 150; ++i) {
        state = mix64(state);
        std::vector<TokenId> tokens;
        for (std::uint32_t k = 0; k < 1 + (state % 4); ++k) {
          const auto part = token_range(static_cast<TokenId>(10 * ((state >> (8 * (k + 1))) % 3)), 8);
          tokens.insert(tokens.end(), part.begin(), part.end());
        }
        serve(tokens);
        ASSERT_TRUE(cache_->reclaim(i % 7 == 0 ? 3 : 0));
        std::set<std::uint32_t> on_device;
        std::set<std::uint32_t> on_host;
        ASSERT_TRUE(cache_->visit_runs([&](const RunView& run) {
          if (run.tier == Tier::Host) {
            ASSERT_TRUE(on_device.contains(run.parent.value) || on_host.contains(run.parent.value));
            on_host.insert(run.run.value);
          } else {
            ASSERT_FALSE(on_host.contains(run.parent.value)) << "a device run below a host run";
            ASSERT_TRUE(run.parent.is_none() || on_device.contains(run.parent.value));
            on_device.insert(run.run.value);
          }
        }));
      }
      EXPECT_GT(stats().host_evicted_page_total, 0U);
      expect_all_free();
    }
  }
}

TEST_F(CacheTiers, EqualIdsOfTwoTiersAreDifferentPages) {
  open_tiers(tiers_config(5, 16, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 17));
  serve(token_range(100, 17));
  std::set<std::uint32_t> device_pages;
  std::set<std::uint32_t> host_pages;
  ASSERT_TRUE(cache_->visit_runs([&](const RunView& run) {
    for (const PageId page : run.pages) (run.tier == Tier::Host ? host_pages : device_pages).insert(page.value);
  }));
  std::vector<std::uint32_t> equal;
  std::ranges::set_intersection(device_pages, host_pages, std::back_inserter(equal));
  EXPECT_FALSE(equal.empty());
  EXPECT_EQ(serve(token_range(0, 17)), 16U);
  EXPECT_EQ(serve(token_range(100, 17)), 16U);
  EXPECT_EQ(stats().host_free_pages, 8U);
  expect_all_free();
}

TEST_F(CacheTiers, TwoThatComputeTheSameStoreOneCopy) {
  open_tiers(tiers_config(16, 16, WritePolicy::WriteThrough));
  Live first = admitted(token_range(0, 17));
  Live second = admitted(token_range(0, 17));
  step(first.sequence, first.tokens);
  mover_->take();  // the copy is on its way when the other one arrives
  step(second.sequence, second.tokens);
  settle();
  EXPECT_EQ(stats().stored_page_total, 4U);
  EXPECT_EQ(stats().host_copy_pages, 4U);
  EXPECT_EQ(stats().duplicate_page_total, 4U);
  end(first);
  end(second);
  EXPECT_EQ(cache_->reclaim(99).value(), 4U);
  EXPECT_EQ(serve(token_range(0, 17)), 16U);
  expect_all_free();
}

// When pages are written

TEST_F(CacheTiers, WriteBackWritesOnlyWhatLeaves) {
  open_tiers(tiers_config(12, 32, WritePolicy::WriteBack));
  serve(token_range(0, 16));
  serve(token_range(100, 16));
  serve(token_range(200, 8));
  EXPECT_EQ(stats().free_pages, 2U);
  EXPECT_EQ(stats().stored_page_total, 0U);  // as many are free as are kept clean
  serve(token_range(300, 8));
  EXPECT_EQ(stats().free_pages, 0U);
  EXPECT_EQ(stats().stored_page_total, stats().clean_reserve_pages);
  EXPECT_GE(stats().stored_page_total, 2U);
  EXPECT_EQ(stats().evicted_page_total, 0U);  // they can still be found
  EXPECT_EQ(lookup(token_range(0, 17)).matched_tokens, 16U);
}

TEST_F(CacheTiers, WriteBackWritesNoMoreThanIsNeeded) {
  CacheConfig config = tiers_config(24, 24);
  config.host.clean_reserve_pages = 0;
  open_tiers(std::move(config));
  serve(token_range(0, 96));                  // 24 pages of one text: the device is full
  Live live = admitted(token_range(500, 4));  // wants one
  const StepEntry entry{&live.sequence};
  EXPECT_EQ(cache_->plan_step({&entry, 1})->shortage.pages_leaving, 1U);
  settle();
  EXPECT_EQ(stats().stored_page_total, 1U);
  finish(live);
  EXPECT_EQ(stats().evicted_page_total, 1U);
}

TEST_F(CacheTiers, WriteThroughWritesWhatIsFullAtOnce) {
  open_tiers(tiers_config(12, 32, WritePolicy::WriteThrough));
  Live live = admitted(token_range(0, 11));
  const StepEntry entry{&live.sequence, 6};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  engine_->run(outcome.step->plan.entries[0], 0, live.tokens);
  const StepResult result;
  ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
  EXPECT_EQ(stats().host_filling_pages, 1U);  // page 1 is not full yet
  settle();
  EXPECT_EQ(stats().host_copy_pages, 1U);
  step(live.sequence, live.tokens);
  settle();
  EXPECT_EQ(stats().host_copy_pages, 2U);
  EXPECT_EQ(stats().evicted_page_total, 0U);
  end(live);
}

TEST_F(CacheTiers, SelectiveWritesWhatWasUsedOften) {
  CacheConfig config = tiers_config(16, 32, WritePolicy::Selective);
  config.host.write_hits_min = 3;
  open_tiers(std::move(config));
  serve(token_range(100, 9));
  for (std::uint64_t use = 1; use <= 4; ++use) {
    serve(token_range(0, 17));
    SCOPED_TRACE(use);
    EXPECT_EQ(stats().stored_page_total, stats().host_copy_pages);
    if (use < 3) {
      EXPECT_EQ(stats().stored_page_total, 0U);
    }
  }
  EXPECT_EQ(stats().stored_page_total, 4U);
  ASSERT_TRUE(cache_->reclaim(99));
  EXPECT_EQ(lookup(token_range(0, 17)).host_tokens, 16U);
  EXPECT_EQ(lookup(token_range(100, 9)).host_tokens, 0U);
  EXPECT_EQ(stats().lost_page_total, 2U);
}

TEST_F(CacheTiers, ASourceIsNotReusedBeforeItsStoreIsOver) {
  open_tiers(tiers_config(5, 16, WritePolicy::WriteThrough));
  Live live = computed(token_range(0, 16));
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 1U);
  end(live);
  EXPECT_EQ(stats().host_copy_pages, 0U);  // not before it is written
  EXPECT_EQ(stats().host_filling_pages, 4U);
  EXPECT_EQ(cache_->reclaim(4).value(), 4U);
  EXPECT_EQ(stats().free_pages, 1U);
  EXPECT_EQ(stats().fenced_pages, 4U);
  Live next = admitted(token_range(100, 8));
  const StepEntry entry{&next.sequence};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  ASSERT_FALSE(outcome.step.has_value());
  EXPECT_EQ(outcome.shortage.pages_available, 1U);
  apply({mover_->move(0)});
  EXPECT_EQ(stats().free_pages, 5U);
  EXPECT_EQ(stats().fenced_pages, 0U);
  EXPECT_EQ(stats().host_free_pages, 16U);  // a copy of what is gone is of no use
  finish(next);
  expect_all_free();
}

TEST_F(CacheTiers, CopiesGiveWayWhenTheHostIsFull) {
  open_tiers(tiers_config(16, 4, WritePolicy::WriteThrough));
  serve(token_range(0, 16));
  EXPECT_EQ(stats().host_copy_pages, 4U);
  serve(token_range(100, 16));
  EXPECT_EQ(stats().host_copy_pages, 4U);
  EXPECT_EQ(stats().host_evicted_page_total, 4U);
  EXPECT_EQ(stats().lost_page_total, 0U);
  ASSERT_TRUE(cache_->reclaim(99));
  EXPECT_EQ(lookup(token_range(0, 16)).host_tokens, 0U);
  EXPECT_EQ(serve(token_range(100, 16)), 16U);
}

TEST_F(CacheTiers, AStoreThatFailsLeavesTheDevicePageAlone) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough}) {
    open_tiers(tiers_config(4, 16, policy));
    Live live = computed(token_range(0, 16));
    end(live);
    mover_->take();
    ASSERT_FALSE(mover_->waiting.empty());
    const std::uint64_t transfer_pages = mover_->waiting[0].pages.size();
    ASSERT_GE(transfer_pages, 2U);
    Completion completion = mover_->move(0);
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
    completion.good_pages = 1;
    apply({completion});
    EXPECT_EQ(stats().store_outcomes[static_cast<std::size_t>(TransferOutcome::Failed)], 1U);
    EXPECT_EQ(stats().stored_page_total, 1U);
    EXPECT_EQ(lookup(token_range(0, 16)).matched_tokens, 16U);
    EXPECT_EQ(serve(token_range(0, 16)), 16U);
    expect_all_free();
  }
}

TEST_F(CacheTiers, WhatPlanStepCountsAsAvailableCanBeHad) {
  open_tiers(tiers_config(8, 4));
  Live saved = computed(token_range(500, 16), {.publish = Publish::None});
  ASSERT_TRUE(cache_->preempt(saved.sequence, Preempt::Save));
  settle();
  EXPECT_EQ(stats().host_free_pages, 0U);
  EXPECT_EQ(stats().saved_pages, 4U);
  for (TokenId i = 0; i < 6; ++i) {  // the host takes nothing
    Live live = admitted(token_range(100 * i, 24));
    const StepEntry entry{&live.sequence};
    bool is_planned = false;
    for (int tries = 0; tries < 3 && !is_planned; ++tries) {
      const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      if (!outcome.step) {
        ASSERT_GT(outcome.shortage.pages_leaving, 0U) << "short, and nothing is on its way";
        settle();
        continue;
      }
      is_planned = true;
      engine_->run(outcome.step->plan.entries[0], 0, live.tokens);
      const StepResult result;
      ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
    }
    EXPECT_TRUE(is_planned);
    end(live);
    settle();
  }
  EXPECT_EQ(stats().host_only_pages, 0U);
  EXPECT_GT(stats().lost_page_total, 0U);
  ASSERT_TRUE(cache_->resume(saved.sequence));
  settle();
  finish(saved);
  expect_all_free();
}

TEST_F(CacheTiers, AResetEndsWhatIsOnItsWay) {
  CacheConfig config = tiers_config(24, 32, WritePolicy::WriteThrough);
  config.host.transfer_pages_max = 2;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 17));
  Live loading = begun(token_range(0, 17), {.prefetch = Prefetch::BestEffort});
  mover_->take();
  EXPECT_EQ(mover_->waiting.size(), 2U);  // loads that are moving
  Live storing = computed(token_range(100, 9));
  mover_->take();
  EXPECT_EQ(mover_->waiting.size(), 3U);  // and a store
  Live queued = computed(token_range(200, 9));
  EXPECT_EQ(stats().transfers_in_flight, 4U);  // and one that nobody has taken
  end(loading);
  end(storing);
  end(queued);
  ASSERT_TRUE(cache_->reset());
  expect_invariants();
  EXPECT_EQ(stats().transfers_in_flight, 3U);
  std::array<TransferId, 8> cancelled;
  EXPECT_EQ(cache_->take_cancellations(cancelled)->size(), 3U);
  std::array<TransferPlan, 8> plans;
  EXPECT_EQ(cache_->take_transfers(plans)->size(), 0U);
  const std::uint64_t loaded = stats().loaded_page_total;
  const std::uint64_t stored = stats().stored_page_total;
  while (!mover_->waiting.empty()) apply({mover_->move(mover_->waiting.size() - 1)});
  EXPECT_EQ(stats().loaded_page_total, loaded);
  EXPECT_EQ(stats().stored_page_total, stored);
  EXPECT_EQ(stats().free_pages, 24U);
  EXPECT_EQ(stats().host_free_pages, 32U);
  EXPECT_EQ(stats().sealed_pages, 0U);
  EXPECT_EQ(serve(token_range(0, 17)), 0U);
}

TEST_F(CacheTiers, AResetEndsWhatTheOwnMoverHas) {
  CacheConfig config = tiers_config(24, 32, WritePolicy::WriteThrough);
  config.host.external_mover = false;
  open(std::move(config));
  for (TokenId round = 0; round < 50; ++round) {
    run_request(token_range(100 * round, 17));
    if (round % 3 == 0) drain(*cache_);
    ASSERT_TRUE(cache_->reset());
    expect_invariants();
    if (round % 2 == 0) drain(*cache_);
    expect_invariants();
  }
  drain(*cache_);
  EXPECT_EQ(stats().free_pages, 24U);
  EXPECT_EQ(stats().host_free_pages, 32U);
}

}  // namespace
}  // namespace quire
