// SPDX-License-Identifier: Apache-2.0
//
// Replays with a remote tier, on a server of their own. Without one, they are skipped.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "disk_tier.h"
#include "local_server.h"
#include "quire/redis_inspect.h"
#include "remote_tier.h"
#include "replay.h"
#include "test_traces.h"
#include "trace_facts.h"

namespace quire {
namespace {

using testing::counting;
using testing::random_trace;
using testing::TraceBuilder;

constexpr std::uint64_t kPageBytes = 16'384;

class ReplayRemote : public ::testing::Test {
 protected:
  ReplayRemote() {
    settings_.engine_count = 2;
    settings_.bytes = BytesMode::Verify;
    settings_.host = {.capacity_bytes = 24 * kPageBytes, .write_policy = WritePolicy::WriteThrough};
    settings_.remote.extent_bytes = (2 * kPageBytes) + 1'000;  // two pages with their headers
    config_.remote_prefix = own_key_prefix();
  }
  void SetUp() override {
    const std::string program = LocalServer::find();
    if (program.empty()) GTEST_SKIP() << "neither valkey-server nor redis-server is installed";
    Result<LocalServer> server = LocalServer::start({.program = program, .maxmemory_bytes = 256U << 20U});
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::make_unique<LocalServer>(*std::move(server));
    settings_.remote.servers.urls = {server_->url()};
  }
  /// The same four prompts for both engines, again and again.
  static Trace turns() {
    TraceBuilder builder;
    for (TokenId round = 0; round < 3; ++round) {
      for (TokenId chat = 0; chat < 5; ++chat) builder.add({.prompt = counting(1'000 * chat, 129)});
    }
    return builder.trace();
  }
  ReplayOutcome replayed(const Trace& trace) {
    ReplayControl control;
    Result<ReplayOutcome> outcome = replay(trace, TraceFacts::of(trace), config_, settings_, control);
    EXPECT_TRUE(outcome) << outcome.error().message;
    if (!outcome) return {};
    EXPECT_FALSE(outcome->corruption);
    std::uint64_t tokens = outcome->hit_tokens;
    for (const MissOutcome& miss : outcome->host->misses) tokens += miss.token_count;
    EXPECT_EQ(tokens, outcome->prompt_tokens);
    return *std::move(outcome);
  }
  RedisInspectReport inspected() {
    Result<RedisInspectReport> report =
        inspect_redis_store(settings_.remote.servers, {.key_prefix = config_.remote_prefix, .verify = true});
    EXPECT_TRUE(report) << report.error().message;
    return report ? *std::move(report) : RedisInspectReport{};
  }

  std::unique_ptr<LocalServer> server_;
  ReplayConfig config_{.page_tokens = 16, .capacity_tokens = 160};
  ReplaySettings settings_;
};

TEST_F(ReplayRemote, OneEngineFindsWhatTheOtherComputed) {
  const ReplayOutcome outcome = replayed(turns());
  ASSERT_EQ(outcome.engines.size(), 2U);
  EXPECT_GT(outcome.remote->hit_tokens, 0U);
  EXPECT_EQ(outcome.remote->extent_pages, 2U);
  EXPECT_GT(outcome.remote->put_bytes, 0U);
  EXPECT_EQ(outcome.remote->bad_values + outcome.remote->failed_objects + outcome.remote->late_objects, 0U);
  EngineOutcome sum;
  for (const EngineOutcome& engine : outcome.engines) {
    EXPECT_GT(engine.hit_tokens, engine.private_hit_tokens);
    sum += engine;
  }
  EXPECT_EQ(sum.remote_hit_tokens, outcome.remote->hit_tokens);
  EXPECT_EQ(sum.hit_tokens, outcome.hit_tokens);
  // Who comes first with a prompt computes it, and nobody else.
  EXPECT_EQ(outcome.hit_tokens, 10U * 128);
  const RedisInspectReport report = inspected();
  EXPECT_EQ(report.page_count, 5U * 8);
  EXPECT_EQ(report.checked_count, report.value_count);
  EXPECT_TRUE(report.is_clean());
}

TEST_F(ReplayRemote, WithoutItTheSameReplayIsThatOfPrivateTiers) {
  const ReplayOutcome shared = replayed(turns());
  settings_.remote = {};
  const ReplayOutcome apart = replayed(turns());
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(shared.engines[i].private_hit_tokens, apart.engines[i].hit_tokens);
}

TEST_F(ReplayRemote, WhatAReplayWroteIsDroppedWithItsPrefix) {
  replayed(turns());
  EXPECT_GT(inspected().value_count, 0U);
  const Status status = drop_own_keys(settings_.remote.servers, config_.remote_prefix);
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(inspected().value_count, 0U);
}

TEST_F(ReplayRemote, TheNextReplayFindsWhatStayedThere) {
  const ReplayOutcome first = replayed(turns());
  settings_.remote.key_prefix = config_.remote_prefix;
  const ReplayOutcome second = replayed(turns());
  EXPECT_GT(second.hit_tokens, first.hit_tokens);
  EXPECT_EQ(second.shared_hit_tokens, 0U) << "what an earlier process had is nobody's fault";
}

TEST_F(ReplayRemote, RandomTracesFindNothingOfOtherTenants) {
  config_.capacity_tokens = 400;
  settings_.running_max = 4;
  const ReplayOutcome outcome = replayed(random_trace({.seed = 5, .key_space_count = 3}));
  EXPECT_EQ(outcome.shared_hit_tokens, 0U);
  EXPECT_GT(outcome.verified_bytes, 0U);
}

TEST_F(ReplayRemote, AServerThatIsNotThereIsSaid) {
  const Trace trace = turns();
  settings_.remote.servers.urls = {"unix:///no/such/socket"};
  ReplayControl control;
  const Result<ReplayOutcome> outcome = replay(trace, TraceFacts::of(trace), config_, settings_, control);
  ASSERT_FALSE(outcome) << "a replay asks for the tier, so it is to be there at the start";
  EXPECT_NE(outcome.error().message.find("/no/such/socket"), std::string::npos) << outcome.error().message;
}

}  // namespace
}  // namespace quire
