// SPDX-License-Identifier: Apache-2.0
#include "remote_sizing.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr TimeNs kMsNs = 1'000'000;

/// A tenth of what quire servers shows, with as many loads for each shard.
RemoteSizing ten_engines() {
  return {.engine_count = 10, .shard_count = 8, .duration_ns = 60'000 * kMsNs};
}

TEST(RemoteSizing, ByHandShardsAreBusySixTenthsOfTheTime) {
  RemoteSizing sizing = ten_engines();
  EXPECT_NEAR(sizing.shards_by_hand(), 10 * 4 * 88 * 2.097152e6 * .35e-9 / .6, 1e-9);
  sizing.shard_count = 4;
  EXPECT_NEAR(simulate_remote(sizing).busy_share, kShardBusyMax * sizing.shards_by_hand() / 4, .05);
}

TEST(RemoteSizing, ALoneLoadTakesWhatItsEngineTakes) {
  RemoteSizing sizing{.engine_count = 1, .loads_per_s = .1, .shard_count = 200, .duration_ns = 200'000 * kMsNs};
  const RemoteSizingOutcome outcome = simulate_remote(sizing);
  EXPECT_GT(outcome.load_count, 5U);
  EXPECT_EQ(outcome.computed_share, 0);
  EXPECT_NEAR(static_cast<double>(outcome.p50_ns), sizing.load_bytes() * kEngineNsPerByte, 3.0 * kMsNs);
}

TEST(RemoteSizing, WithoutADeadlineAHungShardHoldsLoadsUntilItGoesOn) {
  RemoteSizing sizing = ten_engines();
  const RemoteSizingOutcome good = simulate_remote(sizing);
  sizing.hang_ns = 3'600 * kMsNs;
  const RemoteSizingOutcome hung = simulate_remote(sizing);
  EXPECT_LT(good.p99_ns, 200 * kMsNs);
  EXPECT_GT(hung.p99_ns, 3'000 * kMsNs);
  EXPECT_EQ(hung.computed_share, 0);
}

TEST(RemoteSizing, NoLoadTakesLongerThanItsDeadlineAndComputingAllOfIt) {
  RemoteSizing sizing = ten_engines();
  sizing.hang_ns = 3'600 * kMsNs;
  for (const bool has_breaker : {false, true}) {
    sizing.has_breaker = has_breaker;
    sizing.deadline_ns = 300 * kMsNs;
    const RemoteSizingOutcome outcome = simulate_remote(sizing);
    EXPECT_LE(outcome.p99_ns, sizing.deadline_ns + sizing.compute_ns() + 1'000);
    EXPECT_GT(outcome.computed_share, 0);
    EXPECT_LT(outcome.computed_share, .2);
  }
}

TEST(RemoteSizing, ABreakerKeepsLoadsFromWaitingForAShardThatHangs) {
  RemoteSizing sizing = ten_engines();
  sizing.duration_ns = 120'000 * kMsNs;
  sizing.hang_ns = 40'000 * kMsNs;  // a third of all loads begin while it lasts, and all of them need the shard
  sizing.deadline_ns = 400 * kMsNs;
  EXPECT_GE(simulate_remote(sizing).p99_ns, sizing.deadline_ns);
  sizing.has_breaker = true;
  EXPECT_LT(simulate_remote(sizing).p99_ns, sizing.deadline_ns);
}

TEST(RemoteSizing, TheSameSeedHasTheSameOutcome) {
  RemoteSizing sizing = ten_engines();
  sizing.hang_ns = 1'000 * kMsNs;
  sizing.deadline_ns = 300 * kMsNs;
  sizing.has_breaker = true;
  const RemoteSizingOutcome one = simulate_remote(sizing);
  const RemoteSizingOutcome two = simulate_remote(sizing);
  EXPECT_EQ(one.load_count, two.load_count);
  EXPECT_EQ(one.p50_ns, two.p50_ns);
  EXPECT_EQ(one.p99_ns, two.p99_ns);
  EXPECT_EQ(one.computed_share, two.computed_share);
  sizing.seed = 2;
  EXPECT_NE(simulate_remote(sizing).load_count, one.load_count);
}

}  // namespace
}  // namespace quire
