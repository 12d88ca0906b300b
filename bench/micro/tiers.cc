// SPDX-License-Identifier: Apache-2.0
//
// What a host tier costs the engine's thread when it brings nothing: 64 sequences decode, no prompt is ever seen again,
// and every eighth step one sequence ends and another of 2,048 tokens begins. Everything the cache is asked to do in a
// step is in the figure: begin, admit, plan_step, finish_step, end, and with a host tier take_transfers and apply. The
// bytes are moved by nobody: who waits for them is not the engine's thread.
//
// And what one completion costs: apply() of as many as a step brings, shared among them.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "benchmarks.h"
#include "quire/cache.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kSequences = 64;
constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kPromptTokens = 2'048;
constexpr std::uint32_t kStepsPerRequest = 8;

/// A batch that decodes on a full pool, and the requests that follow each other in it.
class ColdBatch {
 public:
  explicit ColdBatch(const HostConfig& host) : has_host_(host.is_on()) {
    cache_ = std::move(Cache::open({.layout = ModelLayout::opaque(4).value(),
                                    .page = {.page_tokens = kPageTokens},
                                    .device = {.page_count = 3 * kSequences * kPromptTokens / kPageTokens,
                                               .memory = DeviceMemory::None},
                                    .host = host,
                                    .sequence_count_max = kSequences + 1,
                                    .context_tokens_max = 2 * kPromptTokens,
                                    .step_tokens_max = kPromptTokens + kSequences}))
                 .value();
    space_ = cache_->key_space({.model = "bench"}).value();
    prompt_.resize(kPromptTokens);
    sequences_.resize(kSequences);
    results_.resize(kSequences, StepResult{.tokens = {&kSampled, 1}});
    Samples unused;
    for (std::uint32_t i = 0; i < 6 * kSequences * kStepsPerRequest; ++i) step(unused, unused);
    QUIRE_CHECK(cache_->stats()->evicted_page_total > 0, "the pool is not full");
  }

  void step(Samples& steps, Samples& completions) {
    std::size_t taken_count = 0;
    std::optional<Step> planned;
    double us = time_us([&] {
      if (step_count_++ % kStepsPerRequest == 0) replace_one();
      entries_.clear();
      for (const Sequence& sequence : sequences_) {
        if (sequence) entries_.push_back({&sequence});
      }
      planned = cache_->plan_step(entries_)->step;
    });
    while (!planned) {  // its pages are on their way out
      us += time_us([&] { taken_count += move(completions); });
      us += time_us([&] { planned = cache_->plan_step(entries_)->step; });
    }
    us += time_us([&] {
      QUIRE_CHECK(cache_->finish_step(*planned, std::span(results_).first(entries_.size())).has_value(),
                  "a step was refused");
    });
    if (has_host_) us += time_us([&] { taken_count += move(completions); });
    steps.add(us);
  }

 private:
  void replace_one() {
    Sequence& sequence = sequences_[replaced_count_++ % kSequences];
    if (sequence) QUIRE_CHECK(cache_->end(sequence).has_value(), "a sequence does not end");
    for (TokenId& token : prompt_) token = next_token_++ & 0x7FFFFFFF;
    sequence = cache_->begin(space_, {.tokens = prompt_}).value();
    QUIRE_CHECK(cache_->admit(sequence).has_value(), "a prompt was refused");
  }

  // What a mover would have done by the next step.
  std::size_t move(Samples& samples) {
    const std::span<TransferPlan> plans = cache_->take_transfers(plans_).value();
    for (std::size_t i = 0; i < plans.size(); ++i) completions_[i] = {.id = plans[i].id};
    if (plans.empty()) return 0;
    const double us = time_us([&] {
      QUIRE_CHECK(cache_->apply(std::span(completions_).first(plans.size()), 0).has_value(), "apply was refused");
    });
    samples.add(us / static_cast<double>(plans.size()));
    return plans.size();
  }

  static constexpr TokenId kSampled = 7;
  bool has_host_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<TokenId> prompt_;
  TokenId next_token_ = 0;
  std::uint64_t step_count_ = 0;
  std::uint32_t replaced_count_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<StepEntry> entries_;
  std::vector<StepResult> results_;
  std::array<TransferPlan, 64> plans_;
  std::array<Completion, 64> completions_;
};

void cold_steps(benchmark::State& state, WritePolicy policy) {
  const std::uint32_t host_pages = 8 * kSequences * kPromptTokens / kPageTokens;
  for (auto _ : state) {
    ColdBatch plain({});
    ColdBatch tiered({.page_count = host_pages, .write_policy = policy, .external_mover = true});
    Samples plain_steps;
    Samples tiered_steps;
    Samples completions;
    Samples unused;
    for (int turn = 0; turn < 40; ++turn) {
      for (int i = 0; i < 32; ++i) plain.step(plain_steps, unused);
      for (int i = 0; i < 32; ++i) tiered.step(tiered_steps, completions);
    }
    state.counters["plain_us"] = plain_steps.mean();
    state.counters["tiered_us"] = tiered_steps.mean();
    state.counters["added_us"] = tiered_steps.mean() - plain_steps.mean();
    state.counters["completion_us"] = completions.median();
  }
}

}  // namespace

void register_tier_benchmarks() {
  for (const auto& [name, policy] : {std::pair{"tiers/cold/write_back", WritePolicy::WriteBack},
                                     std::pair{"tiers/cold/write_through", WritePolicy::WriteThrough}}) {
    benchmark::RegisterBenchmark(name, [chosen = policy](benchmark::State& state) { cold_steps(state, chosen); })
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace quire::bench
