// SPDX-License-Identifier: Apache-2.0
//
// W1: 16,000 requests of multi-turn chats through a pool that holds 30 % of their tokens. Each request
// matches and pins, evicts what the pool is short of, allocates, inserts and unpins. Tokens are made
// beforehand; tree and pool start empty in every run, so the first touches of their memory are part of the
// time.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "benchmarks.h"
#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/chat_driver.h"
#include "testing/naive_radix.h"
#include "testing/workloads.h"
#include "timing.h"

namespace quire::bench {
namespace {

using Requests = std::span<const testing::ChatWorkload::Request>;

constexpr std::size_t kRunsPerTurn = 7;

struct ChatRun {
  double all_us = 0;
  double match_us = 0;  // with time_phases() only
  double evict_us = 0;
  testing::ChatOutcome outcome;
};

ChatRun time_requests(Requests requests, const testing::TreeDriverConfig& config) {
  testing::TreeDriver driver(config);
  ChatRun run;
  run.all_us = time_us([&] {
    for (const testing::ChatWorkload::Request& request : requests) driver.run_request(request.tokens);
  });
  run.outcome = driver.outcome();
  return run;
}

// The same requests with a clock around each match and each eviction. The eviction is drawn forward: done
// while the match is pinned, it leaves the request nothing to evict, and tree and pool are as they would have
// been.
ChatRun time_phases(Requests requests, const testing::TreeDriverConfig& config) {
  testing::TreeDriver driver(config);
  ChatRun run;
  for (const testing::ChatWorkload::Request& request : requests) {
    PrefixTree::Match match;
    run.match_us +=
        time_us([&] { match = driver.tree().match(driver.root(), {.tokens = request.tokens, .extra_keys = {}}); });
    PrefixTree::Pin pin = driver.tree().pin(match);
    const std::size_t page_count = (request.tokens.size() + config.page_tokens - 1) / config.page_tokens;
    const auto missing = static_cast<std::uint32_t>(page_count) - match.page_count;
    if (missing > driver.pool().free_count()) {
      run.evict_us += time_us([&] { driver.evict(missing - driver.pool().free_count()); });
    }
    pin.reset();
    driver.run_request(request.tokens);
  }
  run.outcome = driver.outcome();
  return run;
}

ChatRun time_naive_requests(Requests requests, const testing::TreeDriverConfig& config) {
  testing::NaiveRadix tree({.page_tokens = config.page_tokens, .page_count = config.page_count});
  ChatRun run;
  run.all_us = time_us([&] {
    for (const testing::ChatWorkload::Request& request : requests) {
      run.outcome.hit_token_count += testing::run_request_on_naive(tree, request.tokens);
    }
  });
  return run;
}

struct ChatCase {
  std::string policy;
  std::uint32_t page_tokens = 16;
  Effort effort;
};

void chat(benchmark::State& state, const ChatCase& which) {
  const testing::ChatWorkload workload;
  testing::TreeDriverConfig config = testing::chat_driver_config(workload, which.page_tokens);
  config.policy = which.policy;
  const bool has_twin = which.policy == "lru";

  Samples all;
  Samples match;
  Samples evict;
  Samples naive;
  testing::ChatOutcome outcome;
  testing::ChatOutcome naive_outcome;
  for (auto _ : state) {
    for (std::size_t i = 0; i < which.effort.samples(kRunsPerTurn); ++i) {
      const ChatRun run = time_requests(workload.requests(), config);
      all.add(run.all_us);
      outcome = run.outcome;
      const ChatRun phases = time_phases(workload.requests(), config);
      match.add(phases.match_us);
      evict.add(phases.evict_us);
      QUIRE_CHECK(phases.outcome.hit_token_count == outcome.hit_token_count || !has_twin,
                  "an eviction drawn forward changes nothing under LRU");
    }
    if (has_twin) {
      const ChatRun run = time_naive_requests(workload.requests(), config);
      naive.add(run.all_us);
      naive_outcome = run.outcome;
    }
    state.SetIterationTime(all.median() * 1e-6);
  }

  const auto requests = static_cast<double>(workload.requests().size());
  const auto requested = static_cast<double>(workload.requested_token_count());
  const auto hits = static_cast<double>(outcome.hit_token_count);
  state.counters["requests_per_s"] = requests / all.median() * 1e6;
  state.counters["best_requests_per_s"] = requests / all.quantile(0) * 1e6;
  state.counters["hit_rate"] = hits / requested;
  state.counters["match_mtokens_per_s"] = hits / match.median();  // of the tokens that were found
  state.counters["evict_us_per_call"] = evict.median() / static_cast<double>(outcome.evict_call_count);
  state.counters["evict_us_per_256_tokens"] = evict.median() / static_cast<double>(outcome.evicted_token_count) * 256;
  if (has_twin) {
    state.counters["naive_requests_per_s"] = requests / naive.median() * 1e6;
    state.counters["naive_hit_rate"] = static_cast<double>(naive_outcome.hit_token_count) / requested;
    state.counters["to_naive"] = naive.median() / all.median();
  }
}

void add(const ChatCase& which) {
  const std::string name = "chat/" + which.policy + "/P:" + std::to_string(which.page_tokens);
  benchmark::RegisterBenchmark(name.c_str(), chat, which)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(static_cast<benchmark::IterationCount>(which.effort.samples(3)));
}

}  // namespace

void register_chat_benchmarks(const Effort& effort) {
  for (const std::uint32_t page_tokens : {16U, 1U, 64U}) {
    add({.policy = "lru", .page_tokens = page_tokens, .effort = effort});
  }
  for (const std::string_view policy : policy_names()) {
    if (policy != "lru") add({.policy = std::string(policy), .page_tokens = 16, .effort = effort});
  }
}

}  // namespace quire::bench
