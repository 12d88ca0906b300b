// SPDX-License-Identifier: Apache-2.0
//
// What a decode step's plan costs: plan_step for 256 sequences, one token each, pages of 16 tokens. Everything that
// plan_step does is in the figure: checking the entries, taking pages, writing the arrays. A quarter of each prompt is
// shared by all sequences, a quarter by every eighth, the rest is its own; lengths differ by a token each, so that
// every step needs a few new pages, as in a running engine.
//
// Beside it, the naive way: every step writes the page lists of all sequences anew, from vectors.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "benchmarks.h"
#include "quire/cache.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kSequences = 256;
constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kGrowthTokens = 4'096;  // room for the steps of a benchmark

class DecodeBatch {
 public:
  DecodeBatch(std::uint32_t context_tokens, const PlanConfig& plan) {
    const std::uint32_t pages_each = (context_tokens + kGrowthTokens) / kPageTokens;
    cache_ = std::move(Cache::open({.layout = ModelLayout::opaque(4).value(),
                                    .page = {.page_tokens = kPageTokens},
                                    .device = {.page_count = kSequences * pages_each, .memory = DeviceMemory::None},
                                    .sequence_count_max = kSequences,
                                    .context_tokens_max = context_tokens + kGrowthTokens,
                                    .step_tokens_max = context_tokens,
                                    .plan = plan}))
                 .value();
    space_ = cache_->key_space({.model = "bench"}).value();
    prompt_.resize(context_tokens);
    for (std::uint32_t s = 0; s < kSequences; ++s) {
      sequences_.push_back(admitted(s, context_tokens - (s % kPageTokens)));
      const StepEntry entry{&sequences_.back()};
      const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      const auto sampled = static_cast<TokenId>(s);
      const StepResult result{.tokens = {&sampled, 1}};
      QUIRE_CHECK(outcome.step && cache_->finish_step(*outcome.step, {&result, 1}).has_value(),
                  "a prefill was refused");
    }
    for (const Sequence& sequence : sequences_) entries_.push_back({&sequence, 1});
    sampled_.resize(kSequences);
    for (std::uint32_t s = 0; s < kSequences; ++s) {
      sampled_[s] = static_cast<TokenId>(s);
      results_.push_back({.tokens = {&sampled_[s], 1}});
    }
  }

  /// Plans a step, which is timed, and finishes it. Without `all`, one sequence sits out, in turn.
  void step(Samples& samples, bool all = true) {
    if (!all) std::rotate(entries_.begin(), entries_.begin() + 1, entries_.end());
    const std::size_t count = kSequences - (all ? 0 : 1);
    std::optional<Step> planned;
    samples.time([&] { planned = cache_->plan_step(std::span(entries_).first(count))->step; });
    QUIRE_CHECK(planned && cache_->finish_step(*planned, std::span(results_).first(count)).has_value(),
                "a step was refused");
  }

  /// Ends a sequence, each in turn, and admits another with its prompt, of which all but the last token is cached.
  void replace_one() {
    const std::uint32_t s = replaced_count_++ % kSequences;
    sequences_[s] = {};
    sequences_[s] = admitted(s, static_cast<std::uint32_t>(prompt_.size()) - kPageTokens + 1);
  }

  /// The pages of every sequence, as vectors.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> page_lists() const {
    std::vector<std::vector<std::int32_t>> lists;
    for (const Sequence& sequence : sequences_) {
      std::vector<std::int32_t>& list = lists.emplace_back();
      const SequenceView view = cache_->view(sequence).value();
      for (const PageId page : view.pages()) list.push_back(static_cast<std::int32_t>(page.value));
    }
    return lists;
  }

 private:
  [[nodiscard]] Sequence admitted(std::uint32_t s, std::uint32_t token_count) {
    const auto context_tokens = static_cast<std::uint32_t>(prompt_.size());
    for (std::uint32_t i = 0; i < token_count; ++i) {
      const std::uint32_t family = i < context_tokens / 4 ? 0 : i < context_tokens / 2 ? 1 + (s % 8) : 9 + s;
      prompt_[i] = static_cast<TokenId>((family << 20U) + i);
    }
    Sequence sequence = cache_->begin(space_, {.tokens = std::span(prompt_).first(token_count)}).value();
    QUIRE_CHECK(cache_->admit(sequence).has_value(), "a prompt was refused");
    return sequence;
  }

  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<TokenId> prompt_;
  std::uint32_t replaced_count_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<StepEntry> entries_;
  std::vector<TokenId> sampled_;
  std::vector<StepResult> results_;
};

/// Page lists of all sequences, one behind the other, with what else a decode kernel reads.
class NaiveRebuild {
 public:
  explicit NaiveRebuild(std::vector<std::vector<std::int32_t>> lists) : lists_(std::move(lists)) {
    std::size_t page_count = 0;
    for (const auto& list : lists_) page_count += list.size();
    indices_.reserve(page_count);
  }
  void run() {
    indptr_.assign(1, 0);
    indices_.clear();
    last_page_tokens_.clear();
    positions_.clear();
    slots_.clear();
    for (const auto& list : lists_) {
      indices_.insert(indices_.end(), list.begin(), list.end());
      indptr_.push_back(static_cast<std::int32_t>(indices_.size()));
      last_page_tokens_.push_back(1);
      positions_.push_back(static_cast<std::int32_t>((list.size() - 1) * kPageTokens));
      slots_.push_back(std::int64_t{list.back()} * kPageTokens);
    }
    keep(indices_);
  }

 private:
  std::vector<std::vector<std::int32_t>> lists_;
  std::vector<std::int32_t> indptr_, indices_, last_page_tokens_, positions_;
  std::vector<std::int64_t> slots_;
};

constexpr std::size_t kTurns = 40;
constexpr std::size_t kStepsPerTurn = 12;

void plan_beside_rebuild(benchmark::State& state, std::uint32_t context_tokens, PageTables page_tables) {
  for (auto _ : state) {
    DecodeBatch batch(context_tokens, {.page_tables = page_tables});
    NaiveRebuild naive(batch.page_lists());
    Samples plans;
    Samples rebuilds;
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      Samples first;  // finds the caches as the other contender left them
      batch.step(first);
      for (std::size_t i = 0; i < kStepsPerTurn; ++i) batch.step(plans);
      rebuilds.time_warm(kStepsPerTurn, [&] { naive.run(); });
    }
    state.counters["quire_us"] = plans.median();
    state.counters["rebuild_us"] = rebuilds.median();
  }
}

void plan_with_cascade(benchmark::State& state, std::uint32_t context_tokens) {
  for (auto _ : state) {
    DecodeBatch plain(context_tokens, {});
    DecodeBatch cascade(context_tokens, {.cascade_levels_max = 3});
    Samples plain_plans;
    Samples plain_changed_plans;
    Samples cascade_plans;
    Samples changed_plans;
    Samples plain_admitted_plans;
    Samples admitted_plans;
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      Samples first;
      plain.step(first);
      for (std::size_t i = 0; i < kStepsPerTurn; ++i) plain.step(plain_plans);
      for (std::size_t i = 0; i < kStepsPerTurn; ++i) plain.step(plain_changed_plans, false);
      for (std::size_t i = 0; i < kStepsPerTurn; ++i) {
        plain.replace_one();
        plain.step(plain_admitted_plans);
      }
      cascade.step(first);
      for (std::size_t i = 0; i < kStepsPerTurn; ++i) cascade.step(cascade_plans);
      for (std::size_t i = 0; i < kStepsPerTurn; ++i) cascade.step(changed_plans, false);
      for (std::size_t i = 0; i < kStepsPerTurn; ++i) {
        cascade.replace_one();
        cascade.step(admitted_plans);
      }
    }
    state.counters["plain_us"] = plain_plans.median();
    state.counters["plain_changed_us"] = plain_changed_plans.median();
    state.counters["cascade_us"] = cascade_plans.median();
    state.counters["changed_us"] = changed_plans.median();
    state.counters["plain_admitted_us"] = plain_admitted_plans.median();
    state.counters["admitted_us"] = admitted_plans.median();
  }
}

}  // namespace

void register_plan_benchmarks() {
  const auto add = [](const std::string& name, auto&&... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), arguments...)->Iterations(1)->Unit(benchmark::kMillisecond);
  };
  for (const std::uint32_t tokens : {4'096U, 32'768U, 131'072U}) {
    add("plan/rows/tokens:" + std::to_string(tokens), plan_beside_rebuild, tokens, PageTables::Rows);
  }
  add("plan/csr/tokens:4096", plan_beside_rebuild, 4'096U, PageTables::Csr);
  add("plan/cascade/tokens:4096", plan_with_cascade, 4'096U);
}

}  // namespace quire::bench
