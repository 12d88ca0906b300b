// SPDX-License-Identifier: Apache-2.0
//
// What holds for pages of one group on their way between tiers holds for those of every other: history, windows and
// snapshots wait, fail, take turns and are called off by the same rules. The test moves everything itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "groups_disk_fixture.h"
#include "groups_tiers_fixture.h"
#include "testing/failing_calls.h"

namespace quire {
namespace {

/// Bytes of a token, or of a state.
[[nodiscard]] CacheGroup with_bytes(CacheGroup group, std::uint32_t bytes) {
  group.components.front().dim = bytes;
  return group;
}
[[nodiscard]] CacheGroup with_layers(CacheGroup group, std::uint32_t count) {
  group.layers.clear();
  for (std::uint32_t layer = 0; layer < count; ++layer) group.layers.push_back(layer);
  return group;
}

class CacheGroupsOnePath : public CacheGroupsTiersTest {
 protected:
  [[nodiscard]] std::vector<TransferId> cancellations() {
    std::array<TransferId, 64> room;
    const std::span<const TransferId> given = cache_->take_cancellations(room).value();
    return {given.begin(), given.end()};
  }
};

/// The same with a window and with snapshots, each of which needs something at token 40.
struct AnchoredCase {
  std::string name;
  CacheGroup group;
  friend void PrintTo(const AnchoredCase& anchored, std::ostream* out) { *out << anchored.name; }
};
[[nodiscard]] auto anchored_cases() {
  return ::testing::Values(AnchoredCase{"Window", window_group(10)},
                           AnchoredCase{"Snapshots", state_group(0, every(8))});
}

class CacheGroupsOnePathOf : public CacheGroupsOnePath, public ::testing::WithParamInterface<AnchoredCase> {
 protected:
  [[nodiscard]] static CacheGroup anchored() { return GetParam().group; }
};

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsOnePathOf, anchored_cases(),
                         [](const auto& param) { return param.param.name; });

// Loads that do not end well

class CacheGroupsLoading : public CacheGroupsOnePathOf {
 protected:
  /// A request waits for a load that has been taken.
  void start_loading() {
    CacheConfig config = two_groups(anchored());
    config.host.load_timeout_ns = 1'000;
    open_tiers(std::move(config));
    put_on_host({prompt_});
    request_ = start(with_tail(prompt_, 1, 4));
    ASSERT_FALSE(request_.admission.is_ready);
    loads_ = take_loads();
    EXPECT_TRUE(cancellations().empty());
  }
  /// The mover is told once.
  void expect_called_off() {
    std::vector<TransferId> told = cancellations();
    std::ranges::sort(told);
    std::vector<TransferId> expected;
    for (const Taken& load : loads_) expected.push_back(load.plan.id);
    std::ranges::sort(expected);
    EXPECT_EQ(told.size(), expected.size()) << "loads that are called off are not named";
    EXPECT_TRUE(told == expected);
    EXPECT_TRUE(cancellations().empty());
  }
  /// What it says then is still waited for.
  void expect_answers_are_heard() {
    for (const Taken& load : loads_) report(load, {.outcome = TransferOutcome::Cancelled});
    EXPECT_EQ(cache_->stats()->transfers_in_flight, 0U);
    EXPECT_EQ(cache_->stats()->unknown_completion_count, 0U);
  }
  void expect_miss(MissReason reason) {
    EXPECT_FALSE(view(request_).is_loading);
    EXPECT_EQ(view(request_).computed_tokens, 0U);
    EXPECT_EQ(to_string(view(request_).miss.reason), to_string(reason));
    EXPECT_EQ(cache_->stats()->miss_requests[static_cast<std::size_t>(reason)], 1U);
  }
  [[nodiscard]] std::uint64_t loads_that(TransferOutcome outcome) const {
    return cache_->stats()->load_outcomes[static_cast<std::size_t>(outcome)];
  }

  GroupsRequest request_;
  std::vector<Taken> loads_;
};

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsLoading, anchored_cases(),
                         [](const auto& param) { return param.param.name; });

TEST_P(CacheGroupsLoading, OneThatTakesTooLongIsCalledOff) {
  start_loading();
  now_ = 999;
  ASSERT_TRUE(cache_->apply({}, now_));
  EXPECT_TRUE(view(request_).is_loading);
  now_ = 1'000;
  ASSERT_TRUE(cache_->apply({}, now_));
  expect_miss(MissReason::LoadTimedOut);
  EXPECT_EQ(loads_that(TransferOutcome::TimedOut), loads_.size());
  expect_called_off();
  run_all(request_);  // while the mover still writes: into pages that nobody has
  move(loads_);
  EXPECT_EQ(cache_->stats()->unknown_completion_count, 0U);
  expect_invariants();
  end(request_);
  EXPECT_EQ(run_request(with_tail(prompt_, 2, 4)), 40U);
}

TEST_P(CacheGroupsLoading, OneThatIsStoppedIsCalledOff) {
  start_loading();
  ASSERT_TRUE(cache_->stop_loading(request_.sequence));
  expect_miss(MissReason::LoadCancelled);
  expect_called_off();
  expect_answers_are_heard();
}

TEST_P(CacheGroupsLoading, OneWhoseOnlyWaiterEndsIsCalledOff) {
  start_loading();
  end(request_);
  expect_called_off();
  expect_answers_are_heard();
}

TEST_P(CacheGroupsLoading, OneThatOthersWaitForServesThemAll) {
  start_loading();
  std::vector<GroupsRequest> others;
  for (const TokenId tail : {2, 3}) others.push_back(start(with_tail(prompt_, tail, 4)));
  EXPECT_TRUE(take().empty()) << "it is loaded once";
  ASSERT_TRUE(cache_->stop_loading(request_.sequence));
  EXPECT_TRUE(cancellations().empty());
  for (const GroupsRequest& other : others) EXPECT_TRUE(view(other).is_loading);
  move(loads_);
  for (GroupsRequest& other : others) {
    EXPECT_EQ(view(other).computed_tokens, 40U);
    run_all(other);
  }
}

TEST_P(CacheGroupsLoading, WhatCouldNotBeCopiedHasFailedAndIsStillThere) {
  start_loading();
  report_failed(loads_, TransferFault::Io);
  expect_miss(MissReason::LoadFailed);
  EXPECT_EQ(lookup(with_tail(prompt_, 2, 4)).host_tokens, 40U) << "another request may try";
}

TEST_P(CacheGroupsLoading, APageThatIsNotWhatItShouldBeIsForgottenAndCounted) {
  start_loading();
  report_failed(loads_, TransferFault::Checksum);
  expect_miss(MissReason::LoadFailed);
  EXPECT_EQ(loads_that(TransferOutcome::Failed), loads_.size());
  EXPECT_EQ(cache_->stats()->load_faults[static_cast<std::size_t>(TransferFault::Checksum)], loads_.size());
  EXPECT_LT(lookup(with_tail(prompt_, 2, 4)).host_tokens, 40U);
  expect_invariants();
  run_all(request_);
}

// What is copied is about to be forgotten.
TEST_P(CacheGroupsOnePathOf, TheMoverHearsOfStoresOfEveryGroupThatAResetCallsOff) {
  open_tiers(two_groups(anchored()));
  run_request(prompt_);
  const std::vector<Taken> stores = take();
  std::set<TransferId> expected;
  std::set<std::uint16_t> pools;
  for (const Taken& store : stores) {
    expected.insert(store.plan.id);
    pools.insert(store.plan.pool_index);
  }
  ASSERT_EQ(pools.size(), 2U);
  ASSERT_TRUE(cache_->reset());
  const std::vector<TransferId> told = cancellations();
  EXPECT_EQ(told.size(), expected.size()) << "stores that are called off are not named";
  EXPECT_TRUE(std::set(told.begin(), told.end()) == expected);
  for (const Taken& store : stores) report(store, {.outcome = TransferOutcome::Cancelled});
  EXPECT_EQ(cache_->stats()->transfers_in_flight, 0U);
}

// Load or compute

class CacheGroupsLoadOrCompute : public CacheGroupsOnePath {
 protected:
  /// Loads of a window of three pages take 6,144 ns, and of the history 320; the first one measures the rate.
  void open_measured(TimeNs compute_ns_per_token) {
    CacheConfig config = two_groups(with_bytes(window_group(10), 512));
    config.host.compute_ns_per_token = compute_ns_per_token;
    open_tiers(std::move(config));
    put_on_host({prompt_, token_range(1'000, 40), token_range(2'000, 40)});
    GroupsRequest first = start(with_tail(prompt_, 1, 4));
    settle();
    ASSERT_EQ(view(first).computed_tokens, 40U);
    ASSERT_DOUBLE_EQ(cache_->stats()->load_bytes_per_ns, 1.0);
    run_all(first);
    end(first);
    settle();
  }
  void expect_computed(const GroupsRequest& request) {
    EXPECT_TRUE(request.admission.is_ready) << "it waits for a load though computing is faster";
    EXPECT_EQ(to_string(view(request).miss.reason), to_string(MissReason::RecomputeCheaper));
    EXPECT_EQ(cache_->stats()->miss_requests[static_cast<std::size_t>(MissReason::RecomputeCheaper)], 1U);
  }
};

TEST_F(CacheGroupsLoadOrCompute, AWindowIsLeftThatTakesLongerToLoadThanItsTokensToCompute) {
  open_measured(/*compute_ns_per_token=*/100);  // 4,000 ns for 40 tokens
  expect_computed(start(with_tail(token_range(1'000, 40), 1, 4)));
  EXPECT_TRUE(take().empty());
}

TEST_F(CacheGroupsLoadOrCompute, AHistoryIsLeftWhoseWindowTakesLongerToLoadThanItsTokensToCompute) {
  open_measured(/*compute_ns_per_token=*/100);
  put_history_on_host();
  expect_computed(start(with_tail(token_range(1'000, 40), 1, 4)));
  EXPECT_TRUE(take().empty());
}

TEST_F(CacheGroupsLoadOrCompute, WhatIsFasterToLoadIsLoadedInAllGroups) {
  open_measured(/*compute_ns_per_token=*/200);  // 8,000 ns
  put_history_on_host();
  const GroupsRequest request = start(with_tail(token_range(1'000, 40), 1, 4));
  EXPECT_FALSE(request.admission.is_ready);
  settle();
  EXPECT_EQ(view(request).computed_tokens, 40U);
}

TEST_F(CacheGroupsLoadOrCompute, WhatIsOnItsWayCountsAgainstALoadWhicheverGroupItIsOf) {
  open_measured(/*compute_ns_per_token=*/200);  // one load is worth it, two at once are not
  const GroupsRequest first = start(with_tail(token_range(1'000, 40), 1, 4));
  ASSERT_FALSE(first.admission.is_ready);
  expect_computed(start(with_tail(token_range(2'000, 40), 1, 4)));
}

// The prompt leaves the history inside a page. No window is loaded for the tokens in that page, so they save nothing.
TEST_F(CacheGroupsLoadOrCompute, TokensInAPartOfAPageDoNotCount) {
  open_measured(/*compute_ns_per_token=*/160);  // 5,760 ns for 36 tokens, 6,240 for 39
  expect_computed(start(with_tail(token_range(1'000, 39), 1, 4)));
  EXPECT_TRUE(take().empty());
}

// Turns

class CacheGroupsTurns : public CacheGroupsOnePath, public ::testing::WithParamInterface<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(TransfersAtOnce, CacheGroupsTurns, ::testing::Values(1, 2, 3));

TEST_P(CacheGroupsTurns, StoresOfAllGroupsTakeTurns) {
  CacheConfig config = host_config({full_group(), named(window_group(96), "first"), named(window_group(96), "second"),
                                    named(state_group(0, every(4)), "third")});
  config.device.group_page_counts = {64, 64, 64, 64};
  config.host.transfer_count_max = GetParam();
  config.host.transfer_pages_max = 1;
  open_tiers(std::move(config));
  GroupsRequest request = start(token_range(0, 96));
  run_all(request);  // 24 pages of each group
  std::map<std::uint16_t, std::uint32_t> stores;
  for (std::uint32_t moved = 0; moved < 16;) {
    const std::vector<Taken> taken = take(GetParam());
    ASSERT_FALSE(taken.empty());
    for (const Taken& each : taken) {
      ++stores[each.plan.pool_index];
      ++moved;
      move(each);
    }
  }
  for (std::uint16_t pool = 0; pool < 4; ++pool) {
    EXPECT_GT(stores[pool], 0U) << "none of the first 16 pages that were copied is of pool " << pool;
  }
}

// Bands

TEST_F(CacheGroupsOnePath, LoadsOfEveryGroupHaveBandsAndStoresHaveNone) {
  CacheConfig config = host_config({with_layers(full_group(), 5), with_layers(window_group(10), 4),
                                    with_layers(named(window_group(6), "short"), 2), state_group(0, every(8))});
  config.device.group_page_counts = {64, 32, 32, 32};
  config.host.layer_bands = 3;
  open_tiers(std::move(config));
  std::map<std::uint16_t, std::uint32_t> bands;  // by pool
  const auto settle_and_note = [&](TransferKind kind) {
    bands.clear();
    for (std::vector<Taken> taken = take(); !taken.empty(); taken = take()) {
      for (const Taken& each : taken) {
        if (each.plan.kind == kind) bands[each.plan.pool_index] = each.plan.band_count;
        move(each);
      }
    }
  };
  run_request(prompt_);
  settle_and_note(TransferKind::Store);
  EXPECT_EQ(bands, (std::map<std::uint16_t, std::uint32_t>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
  put_history_on_host();
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  settle_and_note(TransferKind::Load);
  EXPECT_EQ(bands, (std::map<std::uint16_t, std::uint32_t>{{0, 3}, {1, 3}, {2, 2}, {3, 1}}));
  EXPECT_EQ(view(request).computed_tokens, 40U);
  run_all(request);
}

// Full and compressed groups are one pool, whose layers are those of all of them.
TEST_F(CacheGroupsOnePath, TheHistorysGroupsHaveTheirBandsTogether) {
  CacheConfig config = host_config({full_group(), with_layers(compressed_group(2), 3)});
  config.host.layer_bands = 3;
  open_tiers(std::move(config));
  run_request(prompt_);
  settle();
  put_history_on_host();
  const GroupsRequest request = start(with_tail(prompt_, 1, 4));
  for (const Taken& load : take_loads()) EXPECT_EQ(load.plan.band_count, 3U);
}

// Transfers and room

// They come one after the other.
TEST_F(CacheGroupsOnePath, AWindowComesBackThatNeedsMoreTransfersThanThereAre) {
  CacheConfig config = two_groups(window_group(30));
  config.host.transfer_count_max = 2;
  config.host.transfer_pages_max = 1;
  open_tiers(std::move(config));
  put_on_host({prompt_});
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  settle();
  EXPECT_EQ(view(request).computed_tokens, 40U) << "miss: " << to_string(view(request).miss.reason);
  run_all(request);
}

TEST_F(CacheGroupsOnePath, MoreGroupsComeBackThanThereAreTransfers) {
  CacheConfig config = host_config({full_group(), window_group(10), state_group(0, every(8))});
  config.device.group_page_counts = {64, 32, 32};
  config.host.transfer_count_max = 1;
  open_tiers(std::move(config));
  run_request(prompt_);
  settle();
  put_history_on_host();
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  settle();
  EXPECT_EQ(view(request).computed_tokens, 40U) << "miss: " << to_string(view(request).miss.reason);
  run_all(request);
}

// Copies in the background never end: as one is over, the next begins.
TEST_F(CacheGroupsOnePath, WhoWaitsForALoadComesBeforeCopiesThatGoOn) {
  CacheConfig config = two_groups(window_group(10));
  config.device.group_page_counts = {256, 40};
  config.host.transfer_count_max = 3;
  config.host.transfer_pages_max = 1;
  open_tiers(std::move(config));
  run_request(prompt_);
  settle();
  for (TokenId i = 0; lookup(with_tail(prompt_, 1, 4)).matched_tokens > 0; ++i) {
    ASSERT_LT(i, 100);
    run_request(with_tail({}, other_++, 40));
    settle();
  }
  ASSERT_EQ(lookup(with_tail(prompt_, 1, 4)).host_tokens, 40U);
  GroupsRequest busy = start(with_tail({}, other_++, 100));
  run_all(busy, {}, 8);
  std::vector<Taken> copies = take();
  ASSERT_FALSE(copies.empty());
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  ASSERT_FALSE(request.admission.is_ready);
  std::uint32_t copied_pages = 0;
  while (view(request).is_loading && copied_pages < 20) {
    if (copies.empty()) copies = take();
    ASSERT_FALSE(copies.empty());
    copied_pages += copies.front().plan.kind == TransferKind::Store ? 1 : 0;
    move(copies.front());
    copies.erase(copies.begin());
    for (const Taken& each : take()) copies.push_back(each);
  }
  EXPECT_FALSE(view(request).is_loading) << "after " << copied_pages << " copies that nobody waits for";
  EXPECT_LT(copied_pages, 8U);
  EXPECT_EQ(view(request).computed_tokens, 40U);
}

// As with the history's pages: admit() says so, or the request waits.
TEST_F(CacheGroupsOnePath, ALoadWhoseRoomIsStillBeingCopiedIsNotGivenUp) {
  open_tiers(two_groups(window_group(10)));
  put_on_host({prompt_});
  // All that the device has of the window is on its way to the host.
  std::vector<Taken> copies;
  for (std::uint32_t pages = 0; pages < kAnchoredPages; pages += 2) {
    GroupsRequest other = start(with_tail({}, other_++, 8));
    run_all(other);
    end(other);
    for (const Taken& each : take()) copies.push_back(each);
  }
  GroupsRequest request{.tokens = with_tail(prompt_, 1, 4)};
  request.sequence = cache_->begin(space_, {.tokens = request.tokens}).value();
  Result<Admission> admission = cache_->admit(request.sequence);
  if (admission) {
    EXPECT_FALSE(admission->is_ready) << "given up, miss: " << to_string(admission->miss.reason);
  } else {
    EXPECT_EQ(admission.error().code, ErrorCode::Unavailable) << admission.error().message;
  }
  move(copies);
  if (!admission) admission = cache_->admit(request.sequence);
  ASSERT_TRUE(admission.has_value()) << admission.error().message;
  settle();
  EXPECT_EQ(view(request).computed_tokens, 40U) << "miss: " << to_string(view(request).miss.reason);
}

// Waiting

class CacheGroupsWaits : public CacheGroupsOnePath {
 protected:
  /// The mover hangs with the only transfer, and somebody else waits for one.
  void start_waiting(bool has_history_on_host) {
    CacheConfig config = two_groups(window_group(10));
    config.host.transfer_count_max = 1;
    config.host.load_timeout_ns = 1'000;
    open_tiers(std::move(config));
    put_on_host({prompt_, token_range(1'000, 40)});
    if (has_history_on_host) put_history_on_host();
    first_ = start(with_tail(prompt_, 1, 4));
    const std::vector<Taken> loads = take_loads();
    ASSERT_EQ(loads.size(), 1U);
    first_load_ = loads.front();
    second_ = start(with_tail(token_range(1'000, 40), 1, 4));
    ASSERT_FALSE(second_.admission.is_ready);
    ASSERT_TRUE(take().empty());
  }
  /// They have waited long enough, one for its load and the other for the transfer.
  void expect_no_wait_for_ever() {
    for (now_ = 500; now_ <= 2'500; now_ += 500) ASSERT_TRUE(cache_->apply({}, now_));
    EXPECT_FALSE(view(first_).is_loading);
    EXPECT_FALSE(view(second_).is_loading) << "it waits for ever";
    EXPECT_EQ(view(second_).computed_tokens, 0U);
  }

  GroupsRequest first_;
  GroupsRequest second_;
  Taken first_load_;
};

TEST_F(CacheGroupsWaits, AWindowWaitsForATransferNoLongerThanForALoad) {
  start_waiting(/*has_history_on_host=*/false);
  expect_no_wait_for_ever();
}

TEST_F(CacheGroupsWaits, AHistoryWaitsForATransferNoLongerThanForALoad) {
  start_waiting(/*has_history_on_host=*/true);
  expect_no_wait_for_ever();
}

// The wait for a transfer is over when the load begins. From then on the load has its own time.
class CacheGroupsLateLoads : public CacheGroupsWaits, public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(HistoryOnHost, CacheGroupsLateLoads, ::testing::Bool());

TEST_P(CacheGroupsLateLoads, ALoadThatBeganLateHasAllOfItsTime) {
  start_waiting(/*has_history_on_host=*/GetParam());
  now_ = 900;
  report(first_load_, {.outcome = TransferOutcome::Failed, .fault = TransferFault::Io});
  const std::vector<Taken> loads = take_loads();
  now_ = 1'800;  // longer than anybody waits for a transfer, and not so long as for a load
  ASSERT_TRUE(cache_->apply({}, now_));
  EXPECT_TRUE(view(second_).is_loading) << "miss: " << to_string(view(second_).miss.reason);
  for (const Taken& load : loads) move(load);
  settle();
  EXPECT_EQ(view(second_).computed_tokens, 40U) << "miss: " << to_string(view(second_).miss.reason);
}

// Prefetch

TEST_P(CacheGroupsOnePathOf, EveryGroupIsPrefetched) {
  open_tiers(two_groups(anchored()));
  put_on_host({prompt_});
  put_history_on_host();
  GroupsRequest request{.tokens = with_tail(prompt_, 1, 4)};
  request.sequence = cache_->begin(space_, {.tokens = request.tokens}, {.prefetch = Prefetch::BestEffort}).value();
  settle();
  const Admission admission = cache_->admit(request.sequence).value();
  EXPECT_TRUE(admission.is_ready);
  EXPECT_EQ(admission.matched_tokens, 40U) << "miss: " << to_string(admission.miss.reason);
  run_all(request);
}

// The history is there already.
TEST_P(CacheGroupsOnePathOf, AGroupIsPrefetchedThatAloneIsOnTheHost) {
  open_tiers(two_groups(anchored()));
  put_on_host({prompt_});
  GroupsRequest request{.tokens = with_tail(prompt_, 1, 4)};
  request.sequence = cache_->begin(space_, {.tokens = request.tokens}, {.prefetch = Prefetch::Wait}).value();
  const std::vector<Taken> loads = take();
  ASSERT_FALSE(loads.empty()) << "nothing is on its way before admit()";
  for (const Taken& load : loads) {
    EXPECT_EQ(load.plan.priority, TransferPriority::Background);
    move(load);
  }
  settle();
  EXPECT_EQ(lookup(request.tokens).matched_tokens, 40U);
}

// What is told

// Where the history's load is under way when transfers are paused, and the other group's has not begun.
TEST_P(CacheGroupsOnePathOf, WhatAPauseKeepsOnTheHostIsNotSaidToBeGone) {
  open_tiers(two_groups(anchored()));
  put_on_host({prompt_});
  put_history_on_host();
  const GroupsRequest request = start(with_tail(prompt_, 1, 4));
  const std::vector<Taken> loads = take_loads();
  ASSERT_TRUE(cache_->pause_transfers());
  move(loads);
  EXPECT_FALSE(view(request).is_loading);
  if (view(request).computed_tokens == 40) return;  // all of it was under way
  const MissReason reason = view(request).miss.reason;
  EXPECT_TRUE(reason == MissReason::LoadCancelled || reason == MissReason::LoadFailed) << to_string(reason);
}

TEST_P(CacheGroupsOnePathOf, AnAdmissionThatWaitsSaysWhyTheRestIsComputed) {
  open_tiers(two_groups(anchored()));
  put_on_host({prompt_});
  put_history_on_host();
  const GroupsRequest request = start(with_tail(prompt_, 1, 12));
  ASSERT_FALSE(request.admission.is_ready);
  EXPECT_EQ(request.admission.loading_tokens, 40U);
  settle();
  ASSERT_EQ(view(request).computed_tokens, 40U);
  EXPECT_EQ(to_string(request.admission.miss.reason), to_string(view(request).miss.reason));
  EXPECT_NE(view(request).miss.reason, MissReason::None);
}

TEST_P(CacheGroupsOnePathOf, TokensThatAreFoundBecauseAGroupCameFromTheHostAreFoundThere) {
  open_tiers(two_groups(anchored()));
  put_on_host({prompt_});
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  ASSERT_EQ(request.admission.loading_tokens, 40U);
  settle();
  ASSERT_EQ(view(request).computed_tokens, 40U);
  EXPECT_EQ(view(request).host_tokens, 40U);
  EXPECT_EQ(cache_->stats()->host_hit_tokens, 40U);
  EXPECT_GT(group_stats(kAnchored).loaded_page_total, 0U);
  run_all(request);
}

// Copies that failed

// The device gives everything up: what the host has room for is copied there first, once more if need be.
TEST_P(CacheGroupsOnePathOf, WhatCouldNotBeCopiedIsCopiedBeforeTheCacheSleeps) {
  open_tiers(two_groups(anchored()));
  run_request(prompt_);
  for (std::vector<Taken> stores = take(); !stores.empty(); stores = take()) report_failed(stores, TransferFault::Io);
  while (!cache_->sleep(Sleep::KeepHost).value()) settle();
  ASSERT_TRUE(cache_->wake());
  EXPECT_EQ(lookup(with_tail(prompt_, 1, 4)).host_tokens, 40U);
}

// The copies that the host has no room for are given up: nobody waits for them.
TEST_P(CacheGroupsOnePathOf, TheCacheSleepsThoughTheHostHasNoRoomForAllPagesOfAGroup) {
  CacheConfig config = two_groups(anchored());
  config.host.group_page_counts = {512, 3};
  open_tiers(std::move(config));
  for (TokenId i = 0; i < 3; ++i) run_request(token_range(1'000 * i, 40));
  settle();
  bool is_asleep = false;
  for (std::uint32_t calls = 0; calls < 20 && !is_asleep; ++calls) {
    is_asleep = cache_->sleep(Sleep::KeepHost).value();
    settle();
  }
  EXPECT_TRUE(is_asleep) << "it makes copies for ever, each in the place of another";
}

TEST_P(CacheGroupsOnePathOf, TheCacheSleepsThoughNoCopyArrives) {
  open_tiers(two_groups(anchored()));
  run_request(prompt_);
  bool is_asleep = false;
  for (std::uint32_t calls = 0; calls < 20 && !is_asleep; ++calls) {
    is_asleep = cache_->sleep(Sleep::KeepHost).value();
    for (const Taken& store : take()) report(store, {.outcome = TransferOutcome::Failed, .fault = TransferFault::Io});
  }
  EXPECT_TRUE(is_asleep) << "it tries for ever";
}

// On disk

class CacheGroupsOnePathOnDisk : public CacheGroupsFailingDiskTest {
 protected:
  const std::vector<TokenId> prompt_ = token_range(0, 200);
};

// A search that finds no more leaves the question whether what the host has is worth its load.
TEST_F(CacheGroupsOnePathOnDisk, WhoHasLookedOnDiskLoadsNothingThatIsFasterToCompute) {
  CacheConfig config = disk_config({with_bytes(full_group(), 4'096), with_bytes(window_group(20), 4'096)});
  config.host.compute_ns_per_token = 1;
  open_failing(std::move(config));
  serve(prompt_);
  serve(token_range(1'000, 200));
  ASSERT_TRUE(cache_->reclaim(UINT32_MAX));
  EXPECT_EQ(serve(with_tail(prompt_, 1, 30)), 192U) << "nothing was measured before";
  ASSERT_GT(cache_->stats()->load_bytes_per_ns, 0);
  ASSERT_EQ(lookup(with_tail(token_range(1'000, 200), 1, 30)).host_tokens, 192U);
  EXPECT_EQ(serve(with_tail(token_range(1'000, 200), 1, 30)), 0U);
  EXPECT_EQ(to_string(view_.miss.reason), to_string(MissReason::RecomputeCheaper));
}

// They come one after the other.
TEST_F(CacheGroupsOnePathOnDisk, AWindowIsReadThatNeedsMoreTransfersThanThereAre) {
  const auto config = [&] {
    CacheConfig made = disk_config({full_group(), window_group(60)});
    made.host.transfer_count_max = 2;
    made.host.transfer_pages_max = 1;
    return made;
  };
  open_failing(config());
  serve(prompt_);
  flush();
  open_failing(config());
  EXPECT_EQ(serve(with_tail(prompt_, 1, 30)), 192U) << "miss: " << to_string(view_.miss.reason);
}

// The history is still on the device.
TEST_F(CacheGroupsOnePathOnDisk, TokensThatAreFoundBecauseAGroupCameFromDiskAreFoundThere) {
  CacheConfig config = disk_config({full_group(), window_group(20)}, 256);
  config.device.group_page_counts = {256, 24};
  config.host.group_page_counts = {512, 24};
  open_failing(std::move(config));
  serve(prompt_);
  flush();
  for (TokenId i = 1; i < 10; ++i) serve(with_tail({}, i, 300));
  ASSERT_EQ(lookup(with_tail(prompt_, 1, 30)).host_tokens, 0U);
  ASSERT_EQ(serve(with_tail(prompt_, 1, 30)), 192U);
  ASSERT_GT(group_stats(1).disk_loaded_page_total, 0U);
  EXPECT_EQ(view_.disk_tokens, 192U);
}

// The disk was full for a while.
TEST_F(CacheGroupsOnePathOnDisk, WhatCouldNotBeWrittenIsWrittenWhenItIsUsedAgain) {
  open_failing(disk_config({full_group(), window_group(20)}));
  testing::call_failures.reserve = ENOSPC;
  serve(prompt_);
  testing::call_failures.clear();
  for (TokenId i = 1; i < 4; ++i) EXPECT_EQ(serve(with_tail(prompt_, i, 4)), 192U) << "from memory";
  EXPECT_EQ(cache_->disk_status(0)->page_count, 12U);
  open_failing(disk_config({full_group(), window_group(20)}));
  EXPECT_EQ(serve(with_tail(prompt_, 5, 4)), 192U) << "miss: " << to_string(view_.miss.reason);
}

// What nobody has asked for again may take half of what is to be written at once: 40 records of 80.
TEST_F(CacheGroupsOnePathOnDisk, PagesOfEveryGroupThatWereUsedAgainAreWrittenBeforeOthers) {
  const auto config = [&](std::uint64_t records) {
    CacheConfig made = disk_config({full_group(), window_group(20)}, 128);
    made.disk.write_bytes_per_day = 24 * records * 4'096;
    return made;
  };
  open_failing(config(80));
  for (TokenId i = 1; i < 4; ++i) serve(with_tail({}, i, 200));
  serve(prompt_);
  for (TokenId i = 1; i < 4; ++i) EXPECT_EQ(serve(with_tail(prompt_, i, 4)), 192U) << "from memory";
  EXPECT_GT(cache_->stats()->disk_waiting_pages, 0U);
  open_failing(config(0));
  EXPECT_EQ(serve(with_tail(prompt_, 5, 4)), 192U) << "miss: " << to_string(view_.miss.reason);
}

}  // namespace
}  // namespace quire
