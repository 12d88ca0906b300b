// SPDX-License-Identifier: Apache-2.0
//
// Replays with several engines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "disk_tier.h"
#include "replay.h"
#include "sweep.h"
#include "test_traces.h"
#include "trace_facts.h"

namespace quire {
namespace {

using testing::counting;
using testing::random_trace;
using testing::TraceBuilder;

Result<ReplayOutcome> try_replay(const Trace& trace, const ReplaySettings& settings, const ReplayConfig& config) {
  ReplayControl control;
  return replay(trace, TraceFacts::of(trace), config, settings, control);
}

ReplayOutcome replayed(const Trace& trace, const ReplaySettings& settings, const ReplayConfig& config) {
  Result<ReplayOutcome> outcome = try_replay(trace, settings, config);
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? *std::move(outcome) : ReplayOutcome{};
}

/// What one of so many engines gets.
Trace turns_of(const Trace& trace, std::size_t engine_index, std::size_t engine_count) {
  Trace turns = trace;
  turns.requests.clear();
  for (std::size_t i = engine_index; i < trace.requests.size(); i += engine_count) {
    turns.requests.push_back(trace.requests[i]);
  }
  return turns;
}

TEST(ReplayEngines, EachFindsWhatItFindsAloneWithItsRequests) {
  for (const std::uint32_t running_max : {1U, 4U}) {
    const Trace trace = random_trace({.seed = 3, .key_space_count = 3});
    const ReplayConfig config{.page_tokens = 16, .capacity_tokens = 800};
    ReplaySettings settings{.engine_count = 3, .running_max = running_max};
    settings.host.capacity_bytes = std::uint64_t{40} * 16'384;
    const ReplayOutcome all = replayed(trace, settings, config);
    ASSERT_EQ(all.engines.size(), 3U);
    settings.engine_count = 1;
    EngineOutcome sum;
    for (std::size_t i = 0; i < 3; ++i) {
      const ReplayOutcome alone = replayed(turns_of(trace, i, 3), settings, config);
      EXPECT_TRUE(alone.engines.empty());
      EXPECT_EQ(all.engines[i].request_count, alone.request_count);
      EXPECT_EQ(all.engines[i].prompt_tokens, alone.prompt_tokens);
      EXPECT_EQ(all.engines[i].hit_tokens, alone.hit_tokens);
      EXPECT_EQ(all.engines[i].host_hit_tokens, alone.host->hit_tokens);
      sum += all.engines[i];
    }
    EXPECT_EQ(all.request_count, trace.requests.size());
    EXPECT_EQ(all.hit_tokens, sum.hit_tokens);
    EXPECT_EQ(all.prompt_tokens, sum.prompt_tokens);
    EXPECT_EQ(all.host->hit_tokens, sum.host_hit_tokens);
    EXPECT_EQ(all.page_count, 3U * 50);
    std::uint64_t binned = 0;
    for (const TimeBin& bin : all.timeline) binned += bin.hit_tokens;
    EXPECT_EQ(binned, all.hit_tokens);
    std::uint64_t tokens = all.hit_tokens;
    for (const MissOutcome& miss : all.host->misses) tokens += miss.token_count;
    EXPECT_EQ(tokens, all.prompt_tokens);
  }
}

TEST(ReplayEngines, WithoutASharedTierNoneFindsWhatAnotherComputed) {
  TraceBuilder builder;
  for (int i = 0; i < 6; ++i) builder.add({.prompt = counting(0, 64)});
  const ReplayOutcome all = replayed(builder.trace(), {.engine_count = 2}, {.page_tokens = 16, .capacity_tokens = 640});
  EXPECT_EQ(all.hit_tokens, 4U * 64);
  EXPECT_EQ(all.engines[0].hit_tokens, all.engines[1].hit_tokens);
}

TEST(ReplayEngines, EachHasADiskOfItsOwn) {
  const Result<TemporaryDirectory> directory = TemporaryDirectory::make();
  ASSERT_TRUE(directory) << directory.error().message;
  ReplaySettings settings{.engine_count = 2, .bytes = BytesMode::Verify};
  settings.host.capacity_bytes = std::uint64_t{24} * 16'384;
  settings.disk = {.directories = {directory->path() + "/kv"}, .capacity_bytes = 64U << 20U};
  TraceBuilder builder;
  for (TokenId i = 0; i < 8; ++i) builder.add({.prompt = counting(1'000 * (i % 4), 80)});
  const ReplayOutcome all = replayed(builder.trace(), settings, {.page_tokens = 16, .capacity_tokens = 160});
  EXPECT_FALSE(all.corruption);
  EXPECT_EQ(all.disk->capacity_bytes, 128U << 20U);
  for (const char* const engine : {"/kv/engine-0", "/kv/engine-1"}) {
    EXPECT_TRUE(std::filesystem::exists(directory->path() + engine + "/quire-manifest")) << engine;
  }
}

TEST(ReplayEngines, DamageInOneOfThemEndsTheReplay) {
  TraceBuilder builder;
  for (TokenId i = 0; i < 8; ++i) builder.add({.prompt = counting(1'000 * (i % 2), 64)});
  const ReplaySettings settings{.engine_count = 2, .bytes = BytesMode::Verify, .flip_a_byte = true};
  const ReplayOutcome all = replayed(builder.trace(), settings, {.page_tokens = 16, .capacity_tokens = 640});
  ASSERT_TRUE(all.corruption);
  EXPECT_EQ(all.corruption->line, 3U) << "the first request that an engine finds anything for";
}

TEST(ReplayEngines, TheBoundIsThatOfOnePoolAsLargeAsAll) {
  const Trace trace = random_trace({.seed = 11});
  const TraceFacts facts = TraceFacts::of(trace);
  SweepRequest request{.configs = {{.page_tokens = 16, .capacity_tokens = 160}},
                       .bound_capacities = {160},
                       .settings = {.engine_count = 4},
                       .available_bytes = UINT64_MAX};
  const Result<SweepOutcome> outcome = run_sweep(trace, facts, request, [](const SweepProgress&) { return true; });
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(outcome->bounds[0].hit_tokens, facts.belady(640).hit_tokens);
  EXPECT_LE(outcome->replays[0].hit_tokens, outcome->bounds[0].hit_tokens);
}

TEST(ReplayEngines, AllTheirMemoryHasToBeThere) {
  const Trace trace = random_trace({.seed = 11});
  SweepRequest request{.configs = {{.page_tokens = 16, .capacity_tokens = 1'600}},
                       .settings = {.engine_count = 4, .bytes = BytesMode::Verify},
                       .available_bytes = std::uint64_t{4} * 101 * 16'384};
  EXPECT_TRUE(check_sweep(trace, request));
  --request.available_bytes;
  const Status status = check_sweep(trace, request);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message,
            "the pages of 4 engines are 6.31 MiB, 1.58 MiB for each; 6.31 MiB are available: use fewer --engines, a "
            "smaller --capacity-tokens, or --bytes none");
}

TEST(ReplayEngines, ThereIsAtLeastOne) {
  const Trace trace = random_trace({.seed = 11});
  const Result<ReplayOutcome> outcome =
      try_replay(trace, {.engine_count = 0}, {.page_tokens = 16, .capacity_tokens = 160});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message, "--engines is 0: use 1 to 256");
}

}  // namespace
}  // namespace quire
