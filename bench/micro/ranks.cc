// SPDX-License-Identifier: Apache-2.0
//
// What a cache for each rank costs the engine's thread of one of them: eight ranks have ended 256 transfers each since
// the last round, as many as their caches have at once. A sample is report_to_ranks() and apply_ranks() on one rank,
// and beside it apply() of the same completions on a cache that is alone. Reports are carried by nobody.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "benchmarks.h"
#include "quire/cache.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kRanks = 8;
constexpr std::uint32_t kTransfers = 256;
constexpr std::uint32_t kPageTokens = 16;

/// A cache that stores every page by a transfer of its own.
class StoringCache {
 public:
  StoringCache() {
    CacheConfig config{.layout = ModelLayout::opaque(4).value(),
                       .page = {.page_tokens = kPageTokens},
                       .device = {.page_count = 2 * kTransfers, .memory = DeviceMemory::None},
                       .host = {.page_count = 4 * kTransfers,
                                .write_policy = WritePolicy::WriteThrough,
                                .external_mover = true,
                                .transfer_count_max = kTransfers,
                                .transfer_pages_max = 1},
                       .sequence_count_max = 4};
    cache_ = Cache::open(std::move(config)).value();
    space_ = cache_->key_space({.model = "bench"}).value();
  }
  [[nodiscard]] Cache& cache() { return *cache_; }
  /// A prompt of new tokens, computed. Gives what a mover has ended of it by the next step.
  std::span<const Completion> store(std::uint32_t number) {
    std::array<TokenId, std::size_t{kTransfers} * kPageTokens> prompt;
    TokenId next_token = static_cast<TokenId>((number * prompt.size()) & 0x3FFFFFFF);
    for (TokenId& token : prompt) token = next_token++;
    Sequence sequence = cache_->begin(space_, {.tokens = prompt}).value();
    QUIRE_CHECK(cache_->admit(sequence).has_value(), "a sequence is not admitted");
    const StepEntry entry{&sequence};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    const StepResult result;
    QUIRE_CHECK(outcome.step && cache_->finish_step(*outcome.step, {&result, 1}), "a step was refused");
    QUIRE_CHECK(cache_->end(sequence).has_value(), "a sequence does not end");
    const std::span<TransferPlan> plans = cache_->take_transfers(plans_).value();
    QUIRE_CHECK(plans.size() == kTransfers, "other transfers than one for each page");
    std::ranges::transform(plans, completions_.begin(), [](const TransferPlan& plan) {
      return Completion{.id = plan.id, .good_pages = 1, .moved_bytes = 64, .busy_ns = 10};
    });
    return completions_;
  }

 private:
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::array<TransferPlan, kTransfers> plans_;
  std::array<Completion, kTransfers> completions_;
};

void ranks(benchmark::State& state, const Effort& effort) {
  for (auto _ : state) {
    StoringCache alone;
    std::vector<StoringCache> caches(kRanks);
    std::array<std::span<const std::byte>, kRanks> reports;
    Samples report_us;
    Samples apply_us;
    Samples alone_us;
    for (std::uint32_t number = 0; number < effort.samples(400); ++number) {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        const RankReport report{.rank_index = rank, .rank_count = kRanks, .moved = caches[rank].store(number)};
        const double us = time_us([&] { reports[rank] = caches[rank].cache().report_to_ranks(report).value(); });
        if (rank == 0) report_us.add(us);
      }
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        std::size_t agreed = 0;
        const double us = time_us([&] { agreed = caches[rank].cache().apply_ranks(reports)->completions.size(); });
        QUIRE_CHECK(agreed == kTransfers, "not all transfers were agreed on");
        if (rank == 0) apply_us.add(us);
      }
      const std::span<const Completion> completions = alone.store(number);
      alone_us.add(
          time_us([&] { QUIRE_CHECK(alone.cache().apply(completions, 0).has_value(), "completions were refused"); }));
    }
    state.counters["report_us"] = report_us.median();
    state.counters["apply_us"] = apply_us.median();
    state.counters["exchange_us"] = report_us.median() + apply_us.median();
    state.counters["alone_us"] = alone_us.median();
    state.counters["report_bytes"] = static_cast<double>(reports[0].size());
  }
}

}  // namespace

void register_rank_benchmarks(const Effort& effort) {
  benchmark::RegisterBenchmark("tiers/ranks:8/transfers:256",
                               [effort](benchmark::State& state) { ranks(state, effort); })
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace quire::bench
