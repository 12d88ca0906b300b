// SPDX-License-Identifier: Apache-2.0
#include "sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "quire/policy.h"
#include "test_traces.h"
#include "trace_facts.h"

namespace quire {
namespace {

using testing::counting;
using testing::expect_equal;
using testing::random_trace;
using testing::TraceBuilder;

bool go_on(const SweepProgress& /*progress*/) {
  return true;
}

/// All policies at three capacities.
SweepRequest sweep_of_all(BytesMode bytes = BytesMode::None) {
  SweepRequest request{.bound_capacities = {200, 600, 2'000},
                       .settings = {.bytes = bytes, .running_max = 4},
                       .jobs = 1,
                       .available_bytes = 1ULL << 30U};
  for (const std::string_view policy : policy_names()) {
    for (const std::uint64_t capacity : request.bound_capacities) {
      request.configs.push_back({.policy = std::string(policy), .page_tokens = 4, .capacity_tokens = capacity});
    }
  }
  return request;
}

void expect_equal_sweeps(const SweepOutcome& one, const SweepOutcome& other) {
  ASSERT_EQ(one.replays.size(), other.replays.size());
  for (std::size_t i = 0; i < one.replays.size(); ++i) expect_equal(one.replays[i], other.replays[i]);
  ASSERT_EQ(one.bounds.size(), other.bounds.size());
  for (std::size_t i = 0; i < one.bounds.size(); ++i) {
    EXPECT_EQ(one.bounds[i].capacity_tokens, other.bounds[i].capacity_tokens);
    EXPECT_EQ(one.bounds[i].hit_tokens, other.bounds[i].hit_tokens);
  }
}

TEST(Sweep, TheBoundOfTwoTiersIsThatOfAPoolAsLargeAsBoth) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Trace trace = random_trace({.seed = seed, .key_space_count = 2});
    const TraceFacts facts = TraceFacts::of(trace);
    SweepRequest request = sweep_of_all();
    request.settings.running_max = 1;
    request.settings.host.capacity_bytes = 100U * 4 * 1'024;  // 100 pages
    const auto outcome = run_sweep(trace, facts, request, go_on);
    ASSERT_TRUE(outcome) << outcome.error().message;
    for (const BoundOutcome& bound : outcome->bounds) {
      EXPECT_EQ(bound.host_tokens, 400U);
      EXPECT_EQ(bound.hit_tokens, facts.belady((bound.capacity_tokens + 400) / trace.unit_tokens).hit_tokens);
      for (const ReplayOutcome& replay : outcome->replays) {
        if (replay.config.capacity_tokens != bound.capacity_tokens) continue;
        EXPECT_LE(replay.hit_tokens, bound.hit_tokens) << replay.config.policy << ", seed " << seed;
      }
    }
  }
}

TEST(Sweep, AHostTierThatDoesNotFitInMemoryIsRefusedWithTheArithmetic) {
  const Trace trace = random_trace({.seed = 1});
  SweepRequest request = sweep_of_all(BytesMode::Verify);
  request.settings.host.capacity_bytes = 2ULL << 30U;
  const Status status = check_sweep(trace, request);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message,
            "50 pages and 524,288 on the host, of 4 KiB each, are 2 GiB; 1 GiB are available: use a smaller "
            "--capacity-tokens or --host-bytes, or --bytes none");
}

TEST(Sweep, OutcomesAreInTheOrderAskedForWithAnyNumberOfJobs) {
  const Trace trace = random_trace({.seed = 1, .key_space_count = 2});
  const TraceFacts facts = TraceFacts::of(trace);
  SweepRequest request = sweep_of_all(BytesMode::Verify);
  const auto alone = run_sweep(trace, facts, request, go_on);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_TRUE(alone->is_complete);
  ASSERT_EQ(alone->replays.size(), request.configs.size());
  for (std::size_t i = 0; i < request.configs.size(); ++i) {
    EXPECT_EQ(alone->replays[i].config.policy, request.configs[i].policy);
    EXPECT_EQ(alone->replays[i].config.capacity_tokens, request.configs[i].capacity_tokens);
  }
  for (const std::uint32_t jobs : {2U, 7U, 100U, 0U}) {
    request.jobs = jobs;
    const auto together = run_sweep(trace, facts, request, go_on);
    ASSERT_TRUE(together) << together.error().message;
    expect_equal_sweeps(*alone, *together);
  }
}

TEST(Sweep, BoundsAreThoseOfTheFacts) {
  const Trace trace = random_trace({.seed = 2, .unit_tokens = 64});
  const TraceFacts facts = TraceFacts::of(trace);
  const SweepRequest request{.bound_capacities = {1'280, 5'761}};
  const auto outcome = run_sweep(trace, facts, request, go_on);
  ASSERT_TRUE(outcome);
  ASSERT_EQ(outcome->bounds.size(), 2U);
  EXPECT_EQ(outcome->bounds[0].hit_tokens, facts.belady(20).hit_tokens);
  EXPECT_EQ(outcome->bounds[1].hit_tokens, facts.belady(90).hit_tokens);
  for (const BoundOutcome& bound : outcome->bounds) {
    EXPECT_EQ(bound.prompt_tokens, facts.prompt_tokens());
    std::uint64_t hit_tokens = 0;
    for (const TimeBin& bin : bound.timeline) hit_tokens += bin.hit_tokens;
    EXPECT_EQ(hit_tokens, bound.hit_tokens);
  }
}

TEST(Sweep, ProgressReachesTheWholeAndNeverGoesBack) {
  const Trace trace = random_trace({.seed = 3});
  const TraceFacts facts = TraceFacts::of(trace);
  SweepRequest request = sweep_of_all();
  request.jobs = 3;
  SweepProgress last;
  const auto outcome = run_sweep(trace, facts, request, [&](const SweepProgress& progress) {
    EXPECT_GE(progress.done_tokens, last.done_tokens);
    EXPECT_GE(progress.done_count, last.done_count);
    last = progress;
    return true;
  });
  ASSERT_TRUE(outcome);
  EXPECT_EQ(last.count, request.configs.size());
  EXPECT_EQ(last.done_count, last.count);
  EXPECT_EQ(last.all_tokens, facts.prompt_tokens() * request.configs.size());
  EXPECT_EQ(last.done_tokens, last.all_tokens);
}

TEST(Sweep, WhenStoppedItGivesWhatIsFinished) {
  const Trace trace = random_trace({.seed = 4});
  const TraceFacts facts = TraceFacts::of(trace);
  SweepRequest request = sweep_of_all();
  request.jobs = 2;
  const auto complete = run_sweep(trace, facts, request, go_on);
  ASSERT_TRUE(complete);
  // Once at the very beginning, and once when something is there.
  for (const std::uint32_t wanted : {0U, 2U}) {
    std::uint32_t calls_after = 0;
    bool is_stopped = false;
    const auto outcome = run_sweep(trace, facts, request, [&](const SweepProgress& progress) {
      calls_after += is_stopped ? 1 : 0;
      is_stopped = is_stopped || progress.done_count >= wanted;
      return !is_stopped;
    });
    ASSERT_TRUE(outcome);
    EXPECT_EQ(calls_after, 0U);
    EXPECT_GE(outcome->replays.size(), wanted);
    EXPECT_EQ(outcome->is_complete, outcome->replays.size() == request.configs.size());
    // Each is one of those that a whole sweep finds, and they are in its order.
    auto from = complete->replays.begin();
    for (const ReplayOutcome& replay : outcome->replays) {
      from = std::find_if(from, complete->replays.end(), [&](const ReplayOutcome& each) {
        return each.config.policy == replay.config.policy &&
               each.config.capacity_tokens == replay.config.capacity_tokens;
      });
      ASSERT_NE(from, complete->replays.end());
      expect_equal(*from, replay);
    }
  }
}

TEST(Sweep, AConfigurationThatCannotWorkIsRefusedBeforeTheWork) {
  const Trace trace = random_trace({.seed = 5});
  SweepRequest request = sweep_of_all();
  request.configs.push_back({.policy = "mru", .page_tokens = 4, .capacity_tokens = 100});
  std::uint32_t calls = 0;
  const auto outcome = run_sweep(trace, TraceFacts::of(trace), request, [&](const SweepProgress&) {
    ++calls;
    return true;
  });
  ASSERT_FALSE(outcome);
  EXPECT_TRUE(outcome.error().message.starts_with("unknown policy 'mru'"));
  EXPECT_EQ(calls, 0U);
}

TEST(Sweep, AReplayThatFailsEndsTheSweepWithItsError) {
  const Trace trace = random_trace({.seed = 6});
  const Trace other = random_trace({.seed = 6, .request_count = 10});
  SweepRequest request = sweep_of_all();
  request.jobs = 4;
  request.bound_capacities.clear();
  const auto outcome = run_sweep(trace, TraceFacts::of(other), request, go_on);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message, "these facts are of another trace");
}

// Memory

TEST(Sweep, APoolThatDoesNotFitInMemoryIsRefusedWithTheArithmetic) {
  TraceBuilder builder(512);
  builder.add({.prompt = {1, 2}});
  SweepRequest request{.configs = {{.page_tokens = 512, .capacity_tokens = 100'000'000}},
                       .settings = {.bytes = BytesMode::Verify},
                       .available_bytes = 21'582'210'662};
  const Status status = check_sweep(builder.trace(), request);
  ASSERT_FALSE(status);
  EXPECT_EQ(
      status.error().message,
      "195,312 pages of 512 KiB are 95.4 GiB; 20.1 GiB are available: use a smaller --capacity-tokens, or --bytes "
      "none");
  request.settings.bytes = BytesMode::None;
  EXPECT_TRUE(check_sweep(builder.trace(), request));
}

TEST(Sweep, PoolsThatDoNotFitTogetherRunOneAfterTheOther) {
  const Trace trace = random_trace({.seed = 7});
  const TraceFacts facts = TraceFacts::of(trace);
  SweepRequest request = sweep_of_all(BytesMode::Verify);
  request.jobs = 8;
  const auto roomy = run_sweep(trace, facts, request, go_on);
  ASSERT_TRUE(roomy);
  // As much as the largest needs, and nothing more: 500 pages of 4 KiB, and the null page.
  request.available_bytes = std::uint64_t{501} * 4'096;
  const auto narrow = run_sweep(trace, facts, request, go_on);
  ASSERT_TRUE(narrow) << narrow.error().message;
  expect_equal_sweeps(*roomy, *narrow);
  request.available_bytes -= 1;
  EXPECT_FALSE(run_sweep(trace, facts, request, go_on));
}

TEST(Sweep, TheSystemSaysHowMuchMemoryThereIs) {
  EXPECT_GT(usable_memory_bytes(), 1U << 20U);
}

}  // namespace
}  // namespace quire
