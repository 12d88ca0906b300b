// SPDX-License-Identifier: Apache-2.0
//
// The host tier of a cache of several groups: which pages go there, which transfers name them, and what comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"
#include "tests/cache/group_pools.h"

namespace quire {
namespace {

class CacheGroupsTiersTest : public CacheGroupsTest {
 protected:
  void open_tiers(CacheConfig config, bool is_external) {
    config.host.external_mover = is_external;
    open(std::move(config));
    pools_ = testing::transfer_pools(cache_->config().layout);
  }
  static std::vector<TokenId> text(TokenId first, std::uint32_t count) {
    std::vector<TokenId> tokens(count);
    for (std::uint32_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
    return tokens;
  }
  [[nodiscard]] std::vector<TransferPlan> take() {
    std::array<TransferPlan, 64> room;
    const std::span<TransferPlan> taken = cache_->take_transfers(room).value();
    return {taken.begin(), taken.end()};
  }
  void move(const std::vector<TransferPlan>& plans) {
    std::vector<Completion> done;
    for (const TransferPlan& plan : plans) {
      for (const PageTransfer& page : plan.pages) {
        std::vector<std::byte>& host = host_pages_[{plan.pool_index, page.host_page.value}];
        host.resize(testing::pool_page_bytes(*cache_, pools_.at(plan.pool_index)));
        const auto copy = [&](std::byte* device, std::uint64_t at, std::uint64_t count) {
          const bool is_store = plan.kind == TransferKind::Store;
          std::memcpy(is_store ? host.data() + at : device, is_store ? device : host.data() + at, count);
        };
        testing::visit_page_bytes(*cache_, pools_.at(plan.pool_index), page.device_page, 0, host.size(), copy);
      }
      done.push_back({.id = plan.id, .good_pages = static_cast<std::uint32_t>(plan.pages.size())});
    }
    ASSERT_TRUE(cache_->apply(done, 0).has_value());
  }
  /// Until nothing is on its way.
  void settle() {
    while (cache_->stats().value().transfers_in_flight > 0 && !HasFailure()) {
      if (cache_->config().host.external_mover) {
        move(take());
        continue;
      }
      ASSERT_TRUE(cache_->apply(cache_->poll().value(), 0).has_value());
      std::this_thread::yield();
    }
  }
  /// As start(), waiting for room.
  [[nodiscard]] GroupsRequest come_back(std::vector<TokenId> tokens) {
    GroupsRequest request{.tokens = std::move(tokens)};
    request.sequence = cache_->begin(space_, {.tokens = request.tokens}).value();
    Result<Admission> admission = cache_->admit(request.sequence);
    for (int i = 0; i < 9 && !admission; ++i) {
      settle();
      admission = cache_->admit(request.sequence);
    }
    EXPECT_TRUE(admission.has_value()) << admission.error().message;
    if (admission) request.admission = *admission;
    return request;
  }
  /// In chunks, with nothing on its way when one is planned.
  void compute_all(GroupsRequest& request) {
    while (view(request).pending_tokens > 0 && !HasFailure()) {
      step({{.request = &request, .token_count = std::min(view(request).pending_tokens, 8U)}});
      settle();
    }
  }
  void serve(const std::vector<TokenId>& tokens) {
    GroupsRequest request = come_back(tokens);
    settle();
    compute_all(request);
    end(request);
  }

  /// A history that stays on the device, and two snapshots there.
  void open_snapshots(HostConfig host = {}) {
    CacheConfig config = groups_config({full_group(), state_group(0, every(8))}, 4, 32, 64);
    config.device.group_page_counts = {32, 2};
    config.host = std::move(host);
    config.host.page_count = 64;
    config.host.group_page_counts = {64, 16};
    config.host.write_policy = WritePolicy::WriteThrough;
    open_tiers(std::move(config), true);
  }

  std::vector<std::vector<std::uint32_t>> pools_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::byte>> host_pages_;  // by pool and page
};

CacheConfig tiers_config(std::vector<CacheGroup> groups) {
  CacheConfig config = groups_config(std::move(groups), 4, 16, 64);
  config.host.page_count = 64;
  return config;
}

// A compressor's rows that start anew at every boundary have a slot and no pages: no transfer ever names them, and no
// pool is theirs.
TEST_F(CacheGroupsTiersTest, GroupsWithoutPagesHaveNoPool) {
  for (const bool is_external : {false, true}) {
    CacheConfig config = tiers_config({named(tail_group(2, 0, 6, kNone), "rows"), full_group(), window_group(6),
                                       compressed_group(2), state_group(0, every(8))});
    config.device.group_page_counts = {0, 16, 8, 16, 6};
    open_tiers(std::move(config), is_external);
    serve(text(0, 33));
    for (TokenId i = 1; i < 6; ++i) serve(text(i * 1'000, 40));
    GroupsRequest again = come_back(text(0, 33));
    EXPECT_FALSE(again.admission.is_ready);
    settle();
    EXPECT_EQ(view(again).computed_tokens, 32U);
    compute_all(again);
    for (const std::uint32_t group : {2U, 4U}) EXPECT_GT(group_stats(group).loaded_page_total, 0U);
    end(again);
  }
}

TEST_F(CacheGroupsTiersTest, StatsOfAGroupTellOfItsHostPages) {
  CacheConfig config = tiers_config({full_group(), window_group(6)});
  config.device.group_page_counts = {16, 8};
  config.host.write_policy = WritePolicy::WriteThrough;
  open_tiers(std::move(config), true);
  serve(text(0, 32));
  for (const std::uint32_t group : {0U, 1U}) {
    const GroupStats stats = group_stats(group);
    EXPECT_GT(stats.host_sealed_pages, 0U);
    EXPECT_EQ(stats.host_free_pages + stats.host_sealed_pages, stats.host_page_count);
    EXPECT_EQ(stats.loaded_page_total, 0U);
  }
  EXPECT_EQ(group_stats(0).host_page_count, 64U);
  for (TokenId i = 1; i < 6; ++i) serve(text(i * 1'000, 40));
  serve(text(0, 33));
  for (const std::uint32_t group : {0U, 1U}) EXPECT_GT(group_stats(group).loaded_page_total, 0U);
}

// What somebody waits for comes first, whichever group's it is.
TEST_F(CacheGroupsTiersTest, TransfersThatSomebodyWaitsForAreTakenFirst) {
  open_snapshots();
  serve(text(0, 32));
  GroupsRequest other = start(text(1'000, 40));
  compute_all(other);  // its snapshots take the pages of the first
  append(other, text(2'000, 8));
  step(other);  // these copies are not taken yet
  const GroupsRequest again = start(text(0, 33));
  ASSERT_FALSE(again.admission.is_ready);
  EXPECT_EQ(cache_->stats().value().transfers_moving, cache_->stats().value().transfers_in_flight);
  const std::vector<TransferPlan> plans = take();
  ASSERT_GT(plans.size(), 2U);
  EXPECT_EQ(plans.front().kind, TransferKind::Load);
  EXPECT_GT(plans.front().pool_index, 0U);
  EXPECT_TRUE(std::ranges::is_sorted(plans, {}, &TransferPlan::priority));
  move(plans);
  EXPECT_FALSE(view(again).is_loading);
}

TEST_F(CacheGroupsTiersTest, LookupSaysWhatAdmitLoads) {
  CacheConfig config = tiers_config({full_group(), window_group(6), state_group(0, every(8))});
  config.device.group_page_counts = {16, 8, 4};
  open_tiers(std::move(config), true);
  serve(text(0, 33));
  EXPECT_EQ(lookup(text(0, 33)).host_tokens, 0U);
  for (TokenId i = 1; i < 6; ++i) serve(text(i * 1'000, 40));
  const Lookup told = lookup(text(0, 33));
  EXPECT_EQ(told.host_tokens, 32U);
  EXPECT_EQ(lookup(text(0, 33), {.tier_max = Tier::Device}).host_tokens, 0U);
  const GroupsRequest request = come_back(text(0, 33));
  EXPECT_EQ(request.admission.matched_tokens, told.matched_tokens);
  EXPECT_EQ(request.admission.loading_tokens, told.host_tokens);
}

// A window's pages that are being copied cannot be written yet. Whoever is short of them has something to wait for.
TEST_F(CacheGroupsTiersTest, AShortageOfAWindowTellsWhatIsOnItsWayToTheHost) {
  CacheConfig config = tiers_config({full_group(), window_group(4)});
  config.device.group_page_counts = {16, 4};
  config.step_tokens_max = 8;
  open_tiers(std::move(config), true);
  GroupsRequest request = start(text(0, 32));
  step({{.request = &request, .token_count = 8}});
  step({{.request = &request, .token_count = 4}});
  const std::vector<TransferPlan> taken = take();
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
TEST_F(CacheGroupsTiersTest, ACacheMayBeClosedWithAnyTransferInFlight) {
  open_snapshots();
  serve(text(0, 32));
  serve(text(1'000, 40));
  const GroupsRequest again = start(text(0, 33));
  ASSERT_FALSE(again.admission.is_ready);
  ASSERT_FALSE(take().empty());
  cache_.reset();
}

// What a load that is on its way would fill is nobody's when it ends, and what it holds of the tree is forgotten at
// once.
TEST_F(CacheGroupsTiersTest, AResetForgetsWhatLoadsInFlightHold) {
  open_snapshots();
  serve(text(0, 32));
  serve(text(1'000, 40));
  GroupsRequest again = start(text(0, 33));
  ASSERT_FALSE(again.admission.is_ready);
  const std::vector<TransferPlan> plans = take();
  ASSERT_FALSE(plans.empty());
  end(again);
  ASSERT_TRUE(cache_->reset().has_value());
  expect_invariants();
  EXPECT_EQ(lookup(text(0, 33)).matched_tokens, 0U);
  EXPECT_EQ(group_stats(0).free_pages, group_stats(0).page_count);
  move(plans);
  settle();
  for (const std::uint32_t group : {0U, 1U}) {
    EXPECT_EQ(group_stats(group).free_pages, group_stats(group).page_count);
    EXPECT_EQ(group_stats(group).host_free_pages, group_stats(group).host_page_count);
  }
}

// Why what is on the host has to be computed, where nobody has tried to load it.
TEST_F(CacheGroupsTiersTest, WhatIsNotLoadedHasItsReason) {
  const auto open_with = [&](std::uint32_t host_snapshots) {
    CacheConfig config = tiers_config({full_group(), state_group(0, every(8))});
    config.device.group_page_counts = {16, 4};
    config.host.group_page_counts = {64, host_snapshots};
    open_tiers(std::move(config), true);
    serve(text(0, 33));
    for (TokenId i = 1; i < 6; ++i) serve(text(i * 1'000, 40));
  };
  const auto miss_of = [&](const SequenceOptions& options) {
    const GroupsRequest request = start(text(0, 33), options);
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
  ASSERT_GT(lookup(text(5'000, 40)).matched_tokens, 0U);
  const Miss miss = miss_of({});
  EXPECT_EQ(miss.reason, MissReason::NotHeld);
  EXPECT_EQ(miss.group, 1U);
}

// Preemption and resizing, with every byte of the context checked in each step that follows.

struct NamedLayout {
  const char* name;
  std::vector<CacheGroup> groups;
};

std::vector<NamedLayout> layouts() {
  return {{"window", {full_group(), window_group(10)}},
          {"state", {full_group(), state_group(2, every(8))}},
          {"two windows", {full_group(), window_group(6), named(window_group(18), "second")}},
          {"windows alone", {window_group(10)}},
          {"compressed", {full_group(), compressed_group(4)}},
          {"all", {full_group(), compressed_group(4), window_group(10), ring_group(5, 8, every(8))}}};
}

TEST_F(CacheGroupsTiersTest, SavedSequencesComeBackInEveryGroup) {
  for (NamedLayout& layout : layouts()) {
    for (const bool is_external : {true, false}) {
      SCOPED_TRACE(std::string(layout.name) + (is_external ? ", moved by the engine" : ""));
      open_tiers(tiers_config(layout.groups), is_external);
      GroupsRequest request = come_back(text(0, 21));
      compute_all(request);
      decode(request, 5);  // it ends inside a page
      const std::uint32_t computed_tokens = view(request).computed_tokens;
      ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save).has_value());
      settle();
      expect_invariants();
      for (TokenId i = 1; i < 4; ++i) serve(text(i * 1'000, 40));  // its pages are others' now
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
      host_pages_.clear();
    }
  }
}

TEST_F(CacheGroupsTiersTest, ASequenceWhosePagesAreNotAllSavedGoesOn) {
  open_tiers(tiers_config({full_group(), window_group(10)}), true);
  GroupsRequest request = come_back(text(0, 21));
  compute_all(request);
  settle();
  ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save).has_value());
  std::vector<Completion> done;
  for (const TransferPlan& plan : take()) {
    const bool is_lost = plan.pool_index == 1;  // the window's
    done.push_back({.id = plan.id,
                    .outcome = is_lost ? TransferOutcome::Failed : TransferOutcome::Ok,
                    .fault = is_lost ? TransferFault::Io : TransferFault::None,
                    .good_pages = is_lost ? 0 : static_cast<std::uint32_t>(plan.pages.size())});
  }
  ASSERT_TRUE(cache_->apply(done, 0).has_value());
  EXPECT_FALSE(view(request).is_waiting);
  EXPECT_EQ(cache_->stats()->saved_pages, 0U);
  expect_invariants();
  decode(request, 20);
  end(request);
}

TEST_F(CacheGroupsTiersTest, ASavedWindowThatIsLostIsComputedAgain) {
  CacheConfig config = tiers_config({full_group(), window_group(10)});
  config.host.write_policy = WritePolicy::WriteThrough;
  open_tiers(std::move(config), true);
  GroupsRequest request = come_back(text(0, 21));
  compute_all(request);
  ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Save).has_value());
  settle();
  for (TokenId i = 1; i < 4; ++i) serve(text(i * 1'000, 40));
  ASSERT_TRUE(cache_->resume(request.sequence).has_value());
  std::vector<Completion> done;
  for (const TransferPlan& plan : take()) {
    done.push_back({.id = plan.id, .outcome = TransferOutcome::Failed, .fault = TransferFault::Checksum});
  }
  ASSERT_TRUE(cache_->apply(done, 0).has_value());
  settle();
  expect_invariants();
  EXPECT_LT(view(request).computed_tokens, 21U);
  compute_all(request);
  decode(request, 2);
  end(request);
}

TEST_F(CacheGroupsTiersTest, AStateThatIsStillToBeRestoredIsNotSaved) {
  open_tiers(tiers_config({full_group(), state_group(2, every(8))}), true);
  serve(text(0, 33));
  GroupsRequest request = come_back(text(0, 33));
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

TEST_F(CacheGroupsTiersTest, TheHistoryCanHaveMorePagesOrFewer) {
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    for (NamedLayout& layout : layouts()) {
      SCOPED_TRACE(std::string(layout.name) + (byte_layout == ByteLayout::LayerFirst ? ", layer by layer" : ""));
      CacheConfig config = tiers_config(layout.groups);
      config.device.byte_layout = byte_layout;
      open_tiers(std::move(config), false);
      GroupsRequest request = come_back(text(0, 21));
      compute_all(request);
      settle();
      ASSERT_TRUE(cache_->resize(40).has_value());
      EXPECT_EQ(cache_->stats()->page_count, 40U);
      expect_invariants();
      decode(request, 9);  // what it has is where it was
      settle();
      for (TokenId i = 1; i < 4; ++i) serve(text(i * 1'000, 40));
      serve(text(0, 33));
      end(request);
      settle();
      ASSERT_TRUE(cache_->reclaim(UINT32_MAX).has_value());
      settle();
      ASSERT_TRUE(cache_->resize(16).has_value());
      expect_invariants();
      serve(text(0, 33));
      for (TokenId i = 1; i < 4; ++i) serve(text(i * 1'000, 40));
      settle();
      expect_invariants();
    }
  }
}

}  // namespace
}  // namespace quire
