// SPDX-License-Identifier: Apache-2.0
//
// W3: eviction of 256 tokens at a time from a tree of many leaves. Warm, call follows call; cold, an engine's
// worth of other memory traffic lies between two calls, as it does when a step of the engine needs a few
// pages. What one call evicts is allocated before the next, as by the request that it was evicted for. Every
// size runs beside a tree of 1,000 leaves: the ratio of the two says how flat the cost is.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "benchmarks.h"
#include "quire/policy.h"
#include "testing/chat_driver.h"
#include "testing/naive_radix.h"
#include "testing/workloads.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kLeavesPerGroup = 100;
constexpr std::uint32_t kFewLeaves = 1'000;
constexpr std::uint32_t kManyLeaves = 1'000'000;
constexpr std::uint32_t kNaiveLeavesMax = 200'000;
constexpr std::size_t kUncountedCalls = 10;
constexpr std::size_t kColdCalls = 25;
constexpr std::size_t kCallsPerBatch = 25;
constexpr std::size_t kBatchesMax = 1'000;

struct EvictionCase {
  std::string policy;
  std::uint32_t page_tokens = 1;
  std::uint32_t leaf_count = 0;
  bool is_cold = false;
};

testing::EvictionWorkload workload_of(std::uint32_t leaf_count) {
  return testing::EvictionWorkload({.group_count = leaf_count / kLeavesPerGroup, .leaves_per_group = kLeavesPerGroup});
}

std::uint32_t page_count_of(const testing::EvictionWorkload& workload, std::uint32_t page_tokens) {
  return static_cast<std::uint32_t>(workload.distinct_token_count() / page_tokens);
}

// Calls request(tokens) for every leaf.
template <typename Request>
void insert_leaves(const testing::EvictionWorkload& workload, const Request& request) {
  std::vector<TokenId> tokens(workload.tokens_per_leaf());
  for (const std::uint32_t leaf : workload.leaf_order()) {
    workload.write_tokens(leaf, tokens);
    request(tokens);
  }
}

// Cold, each call is a sample. Warm, a sample is the mean over kCallsPerBatch calls, so that each carries its
// share of rarer work, such as a slab that becomes empty.
Samples time_evictions(const EvictionCase& which, OtherTraffic* other) {
  const testing::EvictionWorkload workload = workload_of(which.leaf_count);
  testing::TreeDriver driver({.page_tokens = which.page_tokens,
                              .page_count = page_count_of(workload, which.page_tokens),
                              .request_tokens_max = workload.tokens_per_leaf(),
                              .policy = which.policy});
  insert_leaves(workload, [&](std::span<const TokenId> tokens) { driver.run_request(tokens); });

  const std::uint32_t page_count = testing::EvictionWorkload::kEvictTokens / which.page_tokens;
  // The last pages stay: the end of a tree is not like the rest of it.
  const std::size_t calls_max = driver.tree().page_count() / page_count / 2;
  const std::size_t calls_per_sample = other != nullptr ? 1 : kCallsPerBatch;
  const std::size_t sample_count = std::min(calls_max / calls_per_sample, other != nullptr ? kColdCalls : kBatchesMax);
  std::vector<PageId> taken(page_count);
  const auto evict_once = [&] {
    const double us = time_us([&] { driver.evict(page_count); });
    QUIRE_CHECK(driver.pool().try_allocate(taken), "evicted pages are free");
    return us;
  };
  // A pool in use has had pages back before: the first touches of its free list are over.
  for (std::size_t i = 0; i < kUncountedCalls; ++i) evict_once();
  Samples samples;
  for (std::size_t i = 0; i < sample_count; ++i) {
    if (other != nullptr) other->pass();
    double sum_us = 0;
    for (std::size_t call = 0; call < calls_per_sample; ++call) sum_us += evict_once();
    samples.add(sum_us / static_cast<double>(calls_per_sample));
  }
  return samples;
}

Samples time_naive_evictions(const EvictionCase& which) {
  const testing::EvictionWorkload workload = workload_of(which.leaf_count);
  testing::NaiveRadix tree(
      {.page_tokens = which.page_tokens, .page_count = page_count_of(workload, which.page_tokens)});
  insert_leaves(workload, [&](std::span<const TokenId> tokens) { testing::run_request_on_naive(tree, tokens); });
  Samples samples;
  for (std::size_t i = 0; i < 5; ++i) {
    samples.time([&] { tree.free_pages(tree.evict(testing::EvictionWorkload::kEvictTokens / which.page_tokens)); });
  }
  return samples;
}

void evict(benchmark::State& state, const EvictionCase& which) {
  EvictionCase small = which;
  small.leaf_count = kFewLeaves;
  std::optional<OtherTraffic> other;
  if (which.is_cold) other.emplace();
  OtherTraffic* const traffic = other ? &*other : nullptr;

  for (auto _ : state) {
    const Samples samples = time_evictions(which, traffic);
    const Samples reference = which.leaf_count == kFewLeaves ? samples : time_evictions(small, traffic);
    state.SetIterationTime(samples.median() * 1e-6);
    state.counters["quire_us"] = samples.median();
    state.counters["p90_us"] = samples.quantile(0.9);
    state.counters["to_1000_leaves"] = samples.median() / reference.median();
    if (which.policy == "lru" && which.leaf_count <= kNaiveLeavesMax && !which.is_cold) {
      const Samples naive = time_naive_evictions(which);
      state.counters["naive_us"] = naive.median();
      state.counters["naive_to_quire"] = naive.median() / samples.median();
    }
  }
}

void add(const EvictionCase& which) {
  const std::string name = std::string("evict/") + (which.is_cold ? "cold/" : "warm/") + which.policy +
                           "/P:" + std::to_string(which.page_tokens) + "/leaves:" + std::to_string(which.leaf_count);
  benchmark::RegisterBenchmark(name.c_str(), evict, which)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(1);
}

}  // namespace

void register_eviction_benchmarks() {
  for (const bool is_cold : {false, true}) {
    for (const std::uint32_t page_tokens : {1U, 16U}) {
      for (const std::uint32_t leaf_count : {kFewLeaves, 10'000U, kNaiveLeavesMax, kManyLeaves}) {
        add({.policy = "lru", .page_tokens = page_tokens, .leaf_count = leaf_count, .is_cold = is_cold});
      }
    }
    for (const std::string_view policy : policy_names()) {
      if (policy == "lru") continue;
      add({.policy = std::string(policy), .page_tokens = 1, .leaf_count = kNaiveLeavesMax, .is_cold = is_cold});
    }
  }
}

}  // namespace quire::bench
