// SPDX-License-Identifier: Apache-2.0
//
// Replays with a disk tier, on files in a temporary directory.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "disk_tier.h"
#include "quire/disk_store.h"
#include "replay.h"
#include "test_traces.h"
#include "trace_facts.h"

namespace quire {
namespace {

using testing::counting;
using testing::random_trace;
using testing::TraceBuilder;

class ReplayDisk : public ::testing::Test {
 protected:
  ReplayDisk() {
    settings_.bytes = BytesMode::Verify;
    settings_.host.capacity_bytes = std::uint64_t{24} * 16'384;
    settings_.disk = {.directories = {directory_->path() + "/kv"}, .capacity_bytes = 64U << 20U};
  }
  /// Eight conversations that take turns, too long for pool and host all together.
  static Trace turns() {
    TraceBuilder builder;
    for (TokenId round = 0; round < 4; ++round) {
      for (TokenId chat = 0; chat < 8; ++chat) {
        builder.add({.prompt = counting(1'000 * chat, static_cast<std::size_t>(64 + (16 * round)))});
      }
    }
    return builder.trace();
  }
  Result<ReplayOutcome> try_replay(const Trace& trace) {
    ReplayControl control;
    return replay(trace, TraceFacts::of(trace), config_, settings_, control);
  }
  ReplayOutcome replayed(const Trace& trace) {
    Result<ReplayOutcome> outcome = try_replay(trace);
    EXPECT_TRUE(outcome) << outcome.error().message;
    if (!outcome) return {};
    EXPECT_FALSE(outcome->corruption);
    EXPECT_LE(outcome->host->hit_tokens + (outcome->disk ? outcome->disk->hit_tokens : 0), outcome->hit_tokens);
    std::uint64_t tokens = outcome->hit_tokens;
    for (const MissOutcome& miss : outcome->host->misses) tokens += miss.token_count;
    EXPECT_EQ(tokens, outcome->prompt_tokens);
    return *std::move(outcome);
  }

  Result<TemporaryDirectory> directory_ = TemporaryDirectory::make();
  ReplayConfig config_{.page_tokens = 16, .capacity_tokens = 160};
  ReplaySettings settings_;
};

TEST_F(ReplayDisk, WhatTheHostHasNoRoomForIsFoundOnDisk) {
  const ReplayOutcome outcome = replayed(turns());
  EXPECT_EQ(outcome.hit_tokens, 8U * (64 + 80 + 96));
  EXPECT_GT(outcome.disk->hit_tokens, 0U);
  EXPECT_EQ(outcome.disk->read_bytes, outcome.disk->hit_tokens * 1'024);
  EXPECT_GT(outcome.disk->written_bytes, outcome.disk->page_count * outcome.page_bytes);
  EXPECT_EQ(outcome.disk->found_pages, 0U);
  EXPECT_EQ(outcome.disk->last_error, "");
}

TEST_F(ReplayDisk, TheNextReplayFindsTheFiles) {
  const ReplayOutcome first = replayed(turns());
  const ReplayOutcome second = replayed(turns());
  EXPECT_EQ(second.disk->found_pages, first.disk->page_count);
  EXPECT_GT(second.hit_tokens, first.hit_tokens);
  EXPECT_EQ(second.shared_hit_tokens, 0U) << "what an earlier process had is nobody's fault";
  const auto report = verify_disk_store(settings_.disk.directories);
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_TRUE(report->is_clean());
}

TEST_F(ReplayDisk, ARestartLosesNothingThatIsOnDisk) {
  const Trace trace = turns();
  settings_.restart = {.request_index = 16, .window_count = 8, .has_new_cache = false};
  const ReplayOutcome through = replayed(trace);
  EXPECT_EQ(through.window.prompt_tokens, 8U * 96);
  EXPECT_EQ(through.window.hit_tokens, 8U * 80);
  settings_.restart.has_new_cache = true;
  config_.disk_folder = "restarted";
  const ReplayOutcome restarted = replayed(trace);
  EXPECT_EQ(restarted.window.hit_tokens, through.window.hit_tokens);
  EXPECT_EQ(restarted.hit_tokens, through.hit_tokens);
  EXPECT_EQ(restarted.disk->found_pages, 0U);
  EXPECT_TRUE(std::filesystem::exists(settings_.disk.directories[0] + "/restarted/quire-manifest"));
  settings_.disk = {};
  const ReplayOutcome forgetful = replayed(trace);
  EXPECT_EQ(forgetful.window.hit_tokens, 0U);
}

TEST_F(ReplayDisk, EveryWritePolicyServesRandomTraces) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    SCOPED_TRACE(write_policy_name(policy));
    settings_.disk.write_policy = policy;
    settings_.running_max = 4;
    config_.capacity_tokens = 400;
    config_.disk_folder = write_policy_name(policy);
    const ReplayOutcome outcome = replayed(random_trace({.seed = 5, .key_space_count = 3}));
    EXPECT_EQ(outcome.shared_hit_tokens, 0U);
  }
}

TEST_F(ReplayDisk, EnduranceLimitsWhatIsWritten) {
  settings_.disk.write_bytes_per_day = 24 * 10 * 20'480;  // ten pages at once
  const ReplayOutcome outcome = replayed(turns());
  EXPECT_LE(outcome.disk->page_count, 10U);
}

TEST_F(ReplayDisk, SmallPagesAreRefused) {
  config_.page_tokens = 8;
  const Result<ReplayOutcome> outcome = try_replay(turns());
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message,
            "--page-tokens 8 with --disk: a disk tier needs pages of 16 tokens or more: use --page-tokens 16");
}

}  // namespace
}  // namespace quire
