// SPDX-License-Identifier: Apache-2.0
//
// W2: eight sequences of 131,072 tokens, inserted in chunks and then matched whole, one after the other. A
// tree that makes a node of every chunk pays for each at every match.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "benchmarks.h"
#include "testing/chat_driver.h"
#include "testing/naive_radix.h"
#include "testing/workloads.h"
#include "timing.h"

namespace quire::bench {
namespace {

struct LongContextCase {
  std::uint32_t page_tokens = 1;
  std::uint32_t chunk_tokens = 0;
  bool is_cold = false;
};

const testing::LongContextWorkload& workload() {
  static const testing::LongContextWorkload instance;
  return instance;
}

void long_context(benchmark::State& state, const LongContextCase& which) {
  const std::size_t sequence_count = workload().sequence_count();
  const std::size_t sequence_tokens = workload().sequence(0).size();
  const auto page_count = static_cast<std::uint32_t>(sequence_count * sequence_tokens / which.page_tokens);
  testing::TreeDriver driver({.page_tokens = which.page_tokens,
                              .page_count = page_count,
                              .request_tokens_max = static_cast<std::uint32_t>(sequence_tokens)});
  testing::NaiveRadix naive_tree({.page_tokens = which.page_tokens, .page_count = page_count});
  std::vector<std::vector<TokenId>> copies;
  for (std::size_t i = 0; i < sequence_count; ++i) {
    const std::span<const TokenId> tokens = workload().sequence(i);
    copies.emplace_back(tokens.begin(), tokens.end());
    for (std::size_t end = which.chunk_tokens; end <= sequence_tokens; end += which.chunk_tokens) {
      driver.run_request(tokens.first(end));
      testing::run_request_on_naive(naive_tree, tokens.first(end));
    }
  }

  const auto match_quire = [&](std::size_t i) {
    const PrefixTree::Match match =
        driver.tree().match(driver.root(), {.tokens = workload().sequence(i), .extra_keys = {}});
    QUIRE_CHECK(match.page_count == sequence_tokens / which.page_tokens, "the whole sequence is cached");
  };
  const auto compare = [&](std::size_t i) {
    keep(std::memcmp(workload().sequence(i).data(), copies[i].data(), sequence_tokens * sizeof(TokenId)));
  };
  const auto match_naive = [&](std::size_t i) { keep(naive_tree.match(workload().sequence(i))); };

  std::optional<OtherTraffic> other;
  if (which.is_cold) other.emplace();
  const auto time_turn = [&](Samples& samples, const auto& call) {
    if (!which.is_cold) {
      for (std::size_t i = 0; i < sequence_count; ++i) call(i);
    }
    for (std::size_t i = 0; i < sequence_count; ++i) {
      if (other) other->pass();
      samples.time([&] { call(i); });
    }
  };
  Samples quire;
  Samples limit;
  Samples naive;
  for (auto _ : state) {
    time_turn(quire, match_quire);
    time_turn(limit, compare);
    time_turn(naive, match_naive);
    state.SetIterationTime(quire.median() * 1e-6);
  }
  state.counters["quire_ms"] = quire.median() / 1e3;
  state.counters["memcmp_ms"] = limit.median() / 1e3;
  state.counters["naive_ms"] = naive.median() / 1e3;
  state.counters["to_memcmp"] = quire.median() / limit.median();
  state.counters["naive_to_quire"] = naive.median() / quire.median();
}

}  // namespace

void register_long_context_benchmarks(const Effort& effort) {
  for (const bool is_cold : {false, true}) {
    for (const std::uint32_t page_tokens : {1U, 16U}) {
      for (const std::uint32_t chunk_tokens : testing::LongContextWorkload::kChunkTokens) {
        const LongContextCase which{.page_tokens = page_tokens, .chunk_tokens = chunk_tokens, .is_cold = is_cold};
        const std::string name = std::string("long_context/") + (is_cold ? "cold" : "warm") +
                                 "/P:" + std::to_string(page_tokens) + "/chunk:" + std::to_string(chunk_tokens);
        benchmark::RegisterBenchmark(name.c_str(), long_context, which)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(is_cold ? 1 : static_cast<benchmark::IterationCount>(effort.samples(20)));
      }
    }
  }
}

}  // namespace quire::bench
