// SPDX-License-Identifier: Apache-2.0
//
// W3: eviction of 256 tokens at a time from a tree of many leaves. Warm, call follows call; cold, an engine's worth of
// other memory traffic lies between two calls, as it does when a step of the engine needs a few pages. Used is cold,
// and every fourth leaf was requested twice more: policies that give such a leaf another chance move it first. What one
// call evicts is allocated before the next, as by the request that it was evicted for. Every size runs beside a tree of
// 1,000 leaves: the ratio of the two says how flat the cost is.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
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
constexpr std::uint32_t kNaiveLeavesMax = 200'000;
constexpr std::uint32_t kLeavesPerUsed = 4;
constexpr std::size_t kUncountedCallsMax = 2'000;
constexpr std::size_t kColdCalls = 25;
constexpr std::size_t kCallsPerBatch = 25;
constexpr std::size_t kBatchesMax = 1'000;

enum class Kind : std::uint8_t { Warm, Cold, Used };

struct EvictionCase {
  Kind kind = Kind::Warm;
  std::string policy;
  std::uint32_t page_tokens = 1;
  std::uint32_t leaf_count = 0;
  Effort effort;
};

testing::EvictionWorkload workload_of(std::uint32_t leaf_count) {
  return testing::EvictionWorkload({.group_count = leaf_count / kLeavesPerGroup, .leaves_per_group = kLeavesPerGroup});
}

std::uint32_t page_count_of(const testing::EvictionWorkload& workload, std::uint32_t page_tokens) {
  return static_cast<std::uint32_t>(workload.distinct_token_count() / page_tokens);
}

// Calls request(tokens) for every leaf, or for every one of so many.
template <typename Request>
void request_leaves(const testing::EvictionWorkload& workload, std::uint32_t leaves_per_request,
                    const Request& request) {
  std::vector<TokenId> tokens(workload.tokens_per_leaf());
  for (std::size_t i = 0; i < workload.leaf_order().size(); i += leaves_per_request) {
    workload.write_tokens(workload.leaf_order()[i], tokens);
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
  const auto request = [&](std::span<const TokenId> tokens) { driver.run_request(tokens); };
  request_leaves(workload, 1, request);
  for (int i = 0; which.kind == Kind::Used && i < 2; ++i) request_leaves(workload, kLeavesPerUsed, request);

  const std::uint32_t page_count = testing::EvictionWorkload::kEvictTokens / which.page_tokens;
  // The last pages stay: the end of a tree is not like the rest of it.
  const std::size_t calls_max = driver.tree().page_count() / page_count / 2;
  const std::size_t calls_per_sample = other != nullptr ? 1 : kCallsPerBatch;
  const std::size_t wanted = which.effort.samples(other != nullptr ? kColdCalls : kBatchesMax);
  const std::size_t sample_count = std::min(calls_max / calls_per_sample, wanted);
  std::vector<PageId> taken(page_count);
  const auto evict_once = [&] {
    const double us = time_us([&] { driver.evict(page_count); });
    QUIRE_CHECK(driver.pool().try_allocate(taken), "evicted pages are free");
    return us;
  };
  // A cache in use has evicted before: the first touches of the pool's free list and of a policy's ghosts are over.
  for (std::size_t i = 0; i < std::min(calls_max / 4, kUncountedCallsMax); ++i) evict_once();
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
  request_leaves(workload, 1, [&](std::span<const TokenId> tokens) { testing::run_request_on_naive(tree, tokens); });
  Samples samples;
  for (std::size_t i = 0; i < 5; ++i) {
    samples.time([&] { tree.free_pages(tree.evict(testing::EvictionWorkload::kEvictTokens / which.page_tokens)); });
  }
  return samples;
}

void evict(benchmark::State& state, const EvictionCase& which) {
  EvictionCase small = which;
  small.leaf_count = kFewLeaves;
  static OtherTraffic other;  // one for all: its memory takes longer to get than to pass over
  OtherTraffic* const traffic = which.kind == Kind::Warm ? nullptr : &other;

  for (auto _ : state) {
    const Samples samples = time_evictions(which, traffic);
    const Samples reference = which.leaf_count == kFewLeaves ? samples : time_evictions(small, traffic);
    state.SetIterationTime(samples.median() * 1e-6);
    state.counters["quire_us"] = samples.median();
    state.counters["p90_us"] = samples.quantile(0.9);
    state.counters["quire_us_at_1000_leaves"] = reference.median();
    state.counters["to_1000_leaves"] = samples.median() / reference.median();
    if (which.policy == "lru" && which.leaf_count <= kNaiveLeavesMax && which.kind == Kind::Warm) {
      const Samples naive = time_naive_evictions(which);
      state.counters["naive_us"] = naive.median();
      state.counters["naive_to_quire"] = naive.median() / samples.median();
    }
  }
}

void add(const EvictionCase& which) {
  constexpr std::array kKinds = {"warm", "cold", "used"};
  const std::string name = std::string("evict/") + kKinds.at(static_cast<std::size_t>(which.kind)) + "/" +
                           which.policy + "/P:" + std::to_string(which.page_tokens) +
                           "/leaves:" + std::to_string(which.leaf_count);
  benchmark::RegisterBenchmark(name.c_str(), evict, which)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(1);
}

}  // namespace

void register_eviction_benchmarks(const Effort& effort) {
  for (const std::string_view policy : policy_names()) {
    const auto add_sizes = [&](Kind kind, std::uint32_t page_tokens, std::initializer_list<std::uint32_t> leaf_counts) {
      for (const std::uint32_t leaf_count : leaf_counts) {
        if (leaf_count > effort.leaf_count_max()) continue;
        add({.kind = kind,
             .policy = std::string(policy),
             .page_tokens = page_tokens,
             .leaf_count = leaf_count,
             .effort = effort});
      }
    };
    const auto add_all_sizes = [&](Kind kind, std::uint32_t page_tokens) {
      add_sizes(kind, page_tokens, {kFewLeaves, 10'000, kNaiveLeavesMax, 1'000'000});
    };
    add_all_sizes(Kind::Warm, 1);
    if (policy == "lru") add_all_sizes(Kind::Warm, 16);
    add_all_sizes(Kind::Cold, 1);
    if (policy == "lru") {
      add_all_sizes(Kind::Cold, 16);
    } else {
      add_sizes(Kind::Cold, 16, {effort.leaf_count_max()});
    }
    add_sizes(Kind::Used, 16, {effort.leaf_count_max()});
  }
}

}  // namespace quire::bench
