// SPDX-License-Identifier: Apache-2.0
//
// The host tier of a cache of several groups: which pages go there, which transfers name them, and what comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "groups_tiers_fixture.h"

namespace quire {
namespace {

class CacheGroupsHostTest : public CacheGroupsTiersTest {
 protected:
  [[nodiscard]] static CacheConfig tiers_config(std::vector<CacheGroup> groups, bool is_external = true) {
    CacheConfig config = groups_config(std::move(groups), 4, 16, 64);
    config.host.page_count = 64;
    config.host.external_mover = is_external;
    return config;
  }
  /// A history that stays on the device, and two snapshots there.
  void open_snapshots() {
    CacheConfig config = tiers_config({full_group(), state_group(0, every(8))});
    config.device.page_count = 32;
    config.device.group_page_counts = {32, 2};
    config.host.group_page_counts = {64, 16};
    config.host.write_policy = WritePolicy::WriteThrough;
    open_tiers(std::move(config));
  }
  /// In chunks, with nothing on its way when one is planned.
  void compute_all(GroupsRequest& request) {
    while (view(request).pending_tokens > 0 && !HasFailure()) {
      step({{.request = &request, .token_count = std::min(view(request).pending_tokens, 8U)}});
      settle();
    }
  }
  void serve(const std::vector<TokenId>& tokens) {
    GroupsRequest request = start(tokens);
    settle();
    compute_all(request);
    end(request);
  }
};

// A compressor's rows that start anew at every boundary have a slot and no pages: no transfer ever names them, and no
// pool is theirs.
TEST_F(CacheGroupsHostTest, GroupsWithoutPagesHaveNoPool) {
  for (const bool is_external : {false, true}) {
    CacheConfig config = tiers_config({named(tail_group(2, 0, 6, kNone), "rows"), full_group(), window_group(6),
                                       compressed_group(2), state_group(0, every(8))},
                                      is_external);
    config.device.group_page_counts = {0, 16, 8, 16, 6};
    open_tiers(std::move(config));
    serve(token_range(0, 33));
    for (TokenId i = 1; i < 6; ++i) serve(token_range(i * 1'000, 40));
    GroupsRequest again = start(token_range(0, 33));
    EXPECT_FALSE(again.admission.is_ready);
    settle();
    EXPECT_EQ(view(again).computed_tokens, 32U);
    compute_all(again);
    for (const std::uint32_t group : {2U, 4U}) EXPECT_GT(group_stats(group).loaded_page_total, 0U);
    end(again);
  }
}

TEST_F(CacheGroupsHostTest, StatsOfAGroupTellOfItsHostPages) {
  CacheConfig config = tiers_config({full_group(), window_group(6)});
  config.device.group_page_counts = {16, 8};
  config.host.write_policy = WritePolicy::WriteThrough;
  open_tiers(std::move(config));
  serve(token_range(0, 32));
  for (const std::uint32_t group : {0U, 1U}) {
    const GroupStats stats = group_stats(group);
    EXPECT_GT(stats.host_sealed_pages, 0U);
    EXPECT_EQ(stats.host_free_pages + stats.host_sealed_pages, stats.host_page_count);
    EXPECT_EQ(stats.loaded_page_total, 0U);
  }
  EXPECT_EQ(group_stats(0).host_page_count, 64U);
  for (TokenId i = 1; i < 6; ++i) serve(token_range(i * 1'000, 40));
  serve(token_range(0, 33));
  for (const std::uint32_t group : {0U, 1U}) EXPECT_GT(group_stats(group).loaded_page_total, 0U);
}

// What somebody waits for comes first, whichever group's it is.
TEST_F(CacheGroupsHostTest, TransfersThatSomebodyWaitsForAreTakenFirst) {
  open_snapshots();
  serve(token_range(0, 32));
  GroupsRequest other = start(token_range(1'000, 40));
  compute_all(other);  // its snapshots take the pages of the first
  append(other, token_range(2'000, 8));
  step(other);  // these copies are not taken yet
  const GroupsRequest again = start(token_range(0, 33));
  ASSERT_FALSE(again.admission.is_ready);
  EXPECT_EQ(cache_->stats().value().transfers_moving, cache_->stats().value().transfers_in_flight);
  const std::vector<Taken> plans = take();
  ASSERT_GT(plans.size(), 2U);
  EXPECT_EQ(plans.front().plan.kind, TransferKind::Load);
  EXPECT_GT(plans.front().plan.pool_index, 0U);
  EXPECT_TRUE(std::ranges::is_sorted(plans, {}, [](const Taken& each) { return each.plan.priority; }));
  move(plans);
  EXPECT_FALSE(view(again).is_loading);
}

// A window's pages that are being copied cannot be written yet. Whoever is short of them has something to wait for.
TEST_F(CacheGroupsHostTest, AShortageOfAWindowTellsWhatIsOnItsWayToTheHost) {
  CacheConfig config = tiers_config({full_group(), window_group(4)});
  config.device.group_page_counts = {16, 4};
  config.step_tokens_max = 8;
  open_tiers(std::move(config));
  GroupsRequest request = start(token_range(0, 32));
  step({{.request = &request, .token_count = 8}});
  step({{.request = &request, .token_count = 4}});
  const std::vector<Taken> taken = take();
  const StepEntry entry{.sequence = &request.sequence, .token_count = 8};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  ASSERT_FALSE(outcome.step.has_value());
  EXPECT_EQ(outcome.shortage.group_index, 1U);
  EXPECT_GT(outcome.shortage.pages_leaving, 0U);
  EXPECT_GE(outcome.shortage.pages_available + outcome.shortage.pages_leaving, outcome.shortage.pages_needed);
  move(taken);
  step({{.request = &request, .token_count = 8}});
}

// Whoever waits for it, nobody does any longer.
TEST_F(CacheGroupsHostTest, ACacheMayBeClosedWithAnyTransferInFlight) {
  open_snapshots();
  serve(token_range(0, 32));
  serve(token_range(1'000, 40));
  const GroupsRequest again = start(token_range(0, 33));
  ASSERT_FALSE(again.admission.is_ready);
  ASSERT_FALSE(take().empty());
  cache_.reset();
}

// What a load that is on its way would fill is nobody's when it ends, and what it holds of the tree is forgotten at
// once.
TEST_F(CacheGroupsHostTest, AResetForgetsWhatLoadsInFlightHold) {
  open_snapshots();
  serve(token_range(0, 32));
  serve(token_range(1'000, 40));
  GroupsRequest again = start(token_range(0, 33));
  ASSERT_FALSE(again.admission.is_ready);
  const std::vector<Taken> plans = take();
  ASSERT_FALSE(plans.empty());
  end(again);
  ASSERT_TRUE(cache_->reset().has_value());
  expect_invariants();
  EXPECT_EQ(lookup(token_range(0, 33)).matched_tokens, 0U);
  EXPECT_EQ(group_stats(0).free_pages, group_stats(0).page_count);
  move(plans);
  settle();
  for (const std::uint32_t group : {0U, 1U}) {
    EXPECT_EQ(group_stats(group).free_pages, group_stats(group).page_count);
    EXPECT_EQ(group_stats(group).host_free_pages, group_stats(group).host_page_count);
  }
}

// Why what is on the host has to be computed, where nobody has tried to load it.
TEST_F(CacheGroupsHostTest, WhatIsNotLoadedHasItsReason) {
  const auto open_with = [&](std::uint32_t host_snapshots) {
    CacheConfig config = tiers_config({full_group(), state_group(0, every(8))});
    config.device.group_page_counts = {16, 4};
    config.host.group_page_counts = {64, host_snapshots};
    open_tiers(std::move(config));
    serve(token_range(0, 33));
    for (TokenId i = 1; i < 6; ++i) serve(token_range(i * 1'000, 40));
  };
  const auto miss_of = [&](const SequenceOptions& options) {
    const GroupsRequest request = start(token_range(0, 33), options);
    EXPECT_TRUE(request.admission.is_ready);
    EXPECT_EQ(request.admission.matched_tokens, 0U);
    return request.admission.miss;
  };
  open_with(32);
  EXPECT_EQ(miss_of({.tier_max = Tier::Device}).reason, MissReason::NotAsked);
  EXPECT_EQ(miss_of({.prefetch = Prefetch::BestEffort}).reason, MissReason::LoadTimedOut);
  ASSERT_TRUE(cache_->pause_transfers().has_value());
  EXPECT_EQ(miss_of({}).reason, MissReason::LoadCancelled);
  // Snapshots of the first request are gone, and without them its history is of no use.
  open_with(1);
  ASSERT_GT(lookup(token_range(5'000, 40)).matched_tokens, 0U);
  const Miss miss = miss_of({});
  EXPECT_EQ(miss.reason, MissReason::NotHeld);
  EXPECT_EQ(miss.group, 1U);
}

// Preemption and resizing, with every byte of the context checked in each step that follows.

std::vector<GroupMix> tiers_mixes() {
  return {{"window", {full_group(), window_group(10)}},
          {"state", {full_group(), state_group(2, every(8))}},
          {"two windows", {full_group(), window_group(6), named(window_group(18), "second")}},
          {"windows alone", {window_group(10)}},
          {"compressed", {full_group(), compressed_group(4)}},
          {"all", {full_group(), compressed_group(4), window_group(10), ring_group(5, 8, every(8))}}};
}

TEST_F(CacheGroupsHostTest, SavedSequencesComeBackInEveryGroup) {
  for (const GroupMix& mix : tiers_mixes()) {
    for (const bool is_external : {true, false}) {
      SCOPED_TRACE(mix.name + (is_external ? ", moved by the engine" : ""));
      open_tiers(tiers_config(mix.groups, is_external));
      GroupsRequest request = start(token_range(0, 21));
      compute_all(request);
      decode(request, 5);  // it ends inside a page
      const std::uint32_t computed_tokens = view(request).computed_tokens;
      ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save).has_value());
      settle();
      expect_invariants();
      for (TokenId i = 1; i < 4; ++i) serve(token_range(i * 1'000, 40));  // its pages are others' now
      Result<Admission> admission = cache_->resume(request.sequence);
      for (int i = 0; i < 9 && !admission; ++i) {
        settle();
        admission = cache_->resume(request.sequence);
      }
      ASSERT_TRUE(admission.has_value()) << admission.error().message;
      settle();
      EXPECT_EQ(view(request).computed_tokens, computed_tokens);  // none is computed again
      expect_invariants();
      decode(request, 20);
      end(request);
      settle();
      expect_invariants();
    }
  }
}

TEST_F(CacheGroupsHostTest, ASequenceWhosePagesAreNotAllSavedGoesOn) {
  open_tiers(tiers_config({full_group(), window_group(10)}));
  GroupsRequest request = start(token_range(0, 21));
  compute_all(request);
  settle();
  ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save).has_value());
  for (const Taken& taken : take()) {
    const bool is_lost = taken.plan.pool_index == kAnchored;
    is_lost ? report_failed({taken}, TransferFault::Io) : move(taken);
  }
  EXPECT_FALSE(view(request).is_waiting);
  EXPECT_EQ(cache_->stats()->saved_pages, 0U);
  expect_invariants();
  decode(request, 20);
  end(request);
}

TEST_F(CacheGroupsHostTest, ASavedWindowThatIsLostIsComputedAgain) {
  CacheConfig config = tiers_config({full_group(), window_group(10)});
  config.host.write_policy = WritePolicy::WriteThrough;
  open_tiers(std::move(config));
  GroupsRequest request = start(token_range(0, 21));
  compute_all(request);
  ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save).has_value());
  settle();
  for (TokenId i = 1; i < 4; ++i) serve(token_range(i * 1'000, 40));
  ASSERT_TRUE(cache_->resume(request.sequence).has_value());
  report_failed(take(), TransferFault::Checksum);
  settle();
  expect_invariants();
  EXPECT_LT(view(request).computed_tokens, 21U);
  compute_all(request);
  decode(request, 2);
  end(request);
}

TEST_F(CacheGroupsHostTest, AStateThatIsStillToBeRestoredIsNotSaved) {
  open_tiers(tiers_config({full_group(), state_group(2, every(8))}));
  serve(token_range(0, 33));
  GroupsRequest request = start(token_range(0, 33));
  settle();
  ASSERT_GT(view(request).computed_tokens, 0U);
  expect_error(cache_->preempt(request.sequence, Preempt::Save), ErrorCode::Unavailable, "use Preempt::Drop");
  compute_all(request);
  ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save).has_value());
  settle();
  // The state stays on the device.
  expect_error(cache_->sleep(Sleep::KeepHost), ErrorCode::Unavailable, "a state on the device");
  end(request);
}

TEST_F(CacheGroupsHostTest, TheHistoryCanHaveMorePagesOrFewer) {
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    for (const GroupMix& mix : tiers_mixes()) {
      SCOPED_TRACE(mix.name + (byte_layout == ByteLayout::LayerFirst ? ", layer by layer" : ""));
      CacheConfig config = tiers_config(mix.groups, /*is_external=*/false);
      config.device.byte_layout = byte_layout;
      open_tiers(std::move(config));
      GroupsRequest request = start(token_range(0, 21));
      compute_all(request);
      settle();
      ASSERT_TRUE(cache_->resize(40).has_value());
      EXPECT_EQ(cache_->stats()->page_count, 40U);
      expect_invariants();
      decode(request, 9);  // what it has is where it was
      settle();
      for (TokenId i = 1; i < 4; ++i) serve(token_range(i * 1'000, 40));
      serve(token_range(0, 33));
      end(request);
      settle();
      ASSERT_TRUE(cache_->reclaim(UINT32_MAX).has_value());
      settle();
      ASSERT_TRUE(cache_->resize(16).has_value());
      expect_invariants();
      serve(token_range(0, 33));
      for (TokenId i = 1; i < 4; ++i) serve(token_range(i * 1'000, 40));
      settle();
      expect_invariants();
      // Idle pages above the new size move, and what hangs on them with them.
      ASSERT_TRUE(cache_->resize(40).has_value());
      for (TokenId i = 4; i < 9; ++i) serve(token_range(i * 1'000, 40));
      settle();
      ASSERT_GT(cache_->stats()->sealed_pages, 16U);
      ASSERT_TRUE(cache_->reclaim(cache_->stats()->sealed_pages - 16).has_value());
      settle();
      ASSERT_TRUE(cache_->resize(16).has_value());
      EXPECT_EQ(cache_->stats()->sealed_pages, 16U);
      expect_invariants();
      for (TokenId i = 8; i > 0; --i) serve(token_range(i * 1'000, 40));  // compares the bytes
      settle();
      expect_invariants();
    }
  }
}

}  // namespace
}  // namespace quire
