// SPDX-License-Identifier: Apache-2.0
//
// What a host tier costs the engine's thread when it brings nothing: 64 sequences decode, no prompt is ever seen again,
// and every eighth step one sequence ends and another of 2,048 tokens begins. Everything the cache is asked to do in a
// step is in the figure: begin, admit, plan_step, finish_step, end, and with a host tier take_transfers and apply. The
// bytes are moved by nobody: who waits for them is not the engine's thread. The same with a disk tier, in which every
// prompt is looked for and every page is named and written.
//
// And what one completion costs: of stores, apply() of as many as a step brings, shared among them; of loads, one by
// one, and apart from them the last one of each sequence, which lets it go on. For loads, prompts come back in turn
// when the device has given them up: all of each is on the host.
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
#include "cache/cache_for_tests.h"
#include "quire/cache.h"
#include "testing/sim_disk.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kSequences = 64;
constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kPromptTokens = 2'048;
constexpr std::uint32_t kStepsPerRequest = 8;

/// A batch that decodes on a full pool, and the requests that follow each other in it: new ones, or so many prompts in
/// turn.
class Batch {
 public:
  explicit Batch(const HostConfig& host, std::uint32_t prompt_count = UINT32_MAX, bool has_disk = false)
      : has_host_(host.is_on()), has_disk_(has_disk), prompt_count_(prompt_count) {
    CacheConfig config{
        .layout = ModelLayout::opaque(4).value(),
        .page = {.page_tokens = kPageTokens},
        .device = {.page_count = 3 * kSequences * kPromptTokens / kPageTokens, .memory = DeviceMemory::None},
        .host = host,
        .sequence_count_max = kSequences + 1,
        .context_tokens_max = 2 * kPromptTokens,
        .step_tokens_max = kPromptTokens + kSequences};
    if (has_disk) {
      config.disk = {.directories = {"pages"}, .capacity_bytes = std::uint64_t{64} << 20U};
      cache_ = CacheForTests::open(std::move(config), disk_, host_pages_).value();
    } else {
      cache_ = Cache::open(std::move(config)).value();
    }
    space_ = cache_->key_space({.model = "bench"}).value();
    prompt_.resize(kPromptTokens);
    sequences_.resize(kSequences);
    results_.resize(kSequences, StepResult{.tokens = {&kSampled, 1}});
    Samples unused;
    const std::uint32_t request_count = prompt_count == UINT32_MAX ? 6 * kSequences : 2 * prompt_count;
    for (std::uint32_t i = 0; i < request_count * kStepsPerRequest; ++i) step(unused);
    stores_ = {};
    loads_ = {};
    wakes_ = {};
    QUIRE_CHECK(cache_->stats()->evicted_page_total > 0, "the pool is not full");
  }

  void step(Samples& steps) {
    std::optional<Step> planned;
    engine_us_ = 0;
    if (step_count_++ % kStepsPerRequest == 0) replace_one();
    entries_.clear();
    for (const Sequence& sequence : sequences_) {
      if (sequence) entries_.push_back({&sequence});
    }
    timed([&] { planned = cache_->plan_step(entries_)->step; });
    while (!planned) {  // its pages are on their way out
      move();
      timed([&] { planned = cache_->plan_step(entries_)->step; });
    }
    timed([&] {
      QUIRE_CHECK(cache_->finish_step(*planned, std::span(results_).first(entries_.size())).has_value(),
                  "a step was refused");
    });
    if (has_host_) move();
    steps.add(engine_us_);
  }
  /// A sample is what one completion took; of stores, of those applied together.
  [[nodiscard]] const Samples& stores() const { return stores_; }
  [[nodiscard]] const Samples& loads() const { return loads_; }
  /// Those that let a sequence go on.
  [[nodiscard]] const Samples& wakes() const { return wakes_; }
  [[nodiscard]] Stats stats() const { return cache_->stats().value(); }

 private:
  // Records of nothing: what is measured is who says what goes where.
  class NoPages : public HostPages {
   public:
    [[nodiscard]] TransferFault begin_read(const PageTransfer& /*page*/, Record& record) override {
      record.bytes = bytes_;
      return TransferFault::None;
    }
    void end_read(const PageTransfer& /*page*/) override {}
    [[nodiscard]] TransferFault begin_write(const PageTransfer& /*page*/, std::span<std::byte>& bytes) override {
      bytes = bytes_;
      return TransferFault::None;
    }
    void end_write(const PageTransfer& /*page*/, std::optional<std::uint64_t> /*checksum*/) override {}

   private:
    std::array<std::byte, std::size_t{kPageTokens} * 4> bytes_{};
  };

  /// What the engine's thread does.
  template <typename Call>
  double timed(Call&& call) {
    const double us = time_us(std::forward<Call>(call));
    engine_us_ += us;
    return us;
  }

  void replace_one() {
    const std::uint32_t number = replaced_count_++;
    Sequence& sequence = sequences_[number % kSequences];
    if (sequence) timed([&] { QUIRE_CHECK(cache_->end(sequence).has_value(), "a sequence does not end"); });
    TokenId next_token = static_cast<TokenId>(number % prompt_count_) * static_cast<TokenId>(kPromptTokens);
    for (TokenId& token : prompt_) token = next_token++ & 0x7FFFFFFF;
    timed([&] { sequence = cache_->begin(space_, {.tokens = prompt_}).value(); });
    const auto is_admitted = [&] {
      bool is = false;
      timed([&] { is = cache_->admit(sequence).has_value(); });
      return is;
    };
    while (!is_admitted()) move();  // what it loads has no room yet
    while (cache_->view(sequence)->is_loading) move();
  }

  // What a mover would have done by the next step.
  void move() {
    std::span<TransferPlan> plans;
    timed([&] { plans = cache_->take_transfers(plans_).value(); });
    for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
      std::size_t count = 0;
      for (const TransferPlan& plan : plans) {
        if (plan.kind == kind) completions_[count++] = {.id = plan.id};
      }
      if (count == 0) continue;
      if (kind == TransferKind::Load) {
        apply_loads(count);
        continue;
      }
      const double us = timed([&] {
        QUIRE_CHECK(cache_->apply(std::span(completions_).first(count), 0).has_value(), "apply was refused");
      });
      stores_.add(us / static_cast<double>(count));
    }
    if (!has_disk_) return;
    DiskMover& mover = CacheForTests::disk(*cache_);
    for (const auto lane : {DiskMover::Lane::Names, DiskMover::Lane::Read, DiskMover::Lane::Write}) {
      while (mover.run(lane)) {
      }
      const std::span<Completion> heard = mover.poll(completions_);
      if (heard.empty()) continue;
      timed([&] { QUIRE_CHECK(cache_->apply(heard, 0).has_value(), "apply was refused"); });
    }
  }

  // One by one: the last one lets the sequence go on, which matches all of its tokens once more.
  void apply_loads(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const double us = timed([&] {
        QUIRE_CHECK(cache_->apply(std::span(completions_).subspan(i, 1), 0).has_value(), "apply was refused");
      });
      (i + 1 < count ? loads_ : wakes_).add(us);
    }
  }

  static constexpr TokenId kSampled = 7;
  bool has_host_;
  bool has_disk_;
  std::uint32_t prompt_count_;
  double engine_us_ = 0;  // of this step
  testing::SimDisk disk_{1};
  NoPages host_pages_;
  Samples stores_;
  Samples loads_;
  Samples wakes_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<TokenId> prompt_;
  std::uint64_t step_count_ = 0;
  std::uint32_t replaced_count_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<StepEntry> entries_;
  std::vector<StepResult> results_;
  std::array<TransferPlan, 64> plans_;
  std::array<Completion, 64> completions_;
};

void cold_steps(benchmark::State& state, WritePolicy policy, bool has_disk) {
  const std::uint32_t host_pages = 8 * kSequences * kPromptTokens / kPageTokens;
  for (auto _ : state) {
    Batch plain({});
    Batch tiered({.page_count = host_pages, .write_policy = policy, .external_mover = true}, UINT32_MAX, has_disk);
    Samples plain_steps;
    Samples tiered_steps;
    for (int turn = 0; turn < 40; ++turn) {
      for (int i = 0; i < 32; ++i) plain.step(plain_steps);
      for (int i = 0; i < 32; ++i) tiered.step(tiered_steps);
    }
    state.counters["plain_us"] = plain_steps.mean();
    state.counters["tiered_us"] = tiered_steps.mean();
    state.counters["added_us"] = tiered_steps.mean() - plain_steps.mean();
    state.counters["completion_us"] = tiered.stores().median();
  }
}

void loads(benchmark::State& state, WritePolicy policy) {
  // More than the device holds, and less than the host does.
  const std::uint32_t prompt_count = 6 * kSequences;
  const std::uint32_t host_pages = 10 * kSequences * kPromptTokens / kPageTokens;
  for (auto _ : state) {
    Batch batch({.page_count = host_pages, .write_policy = policy, .external_mover = true}, prompt_count);
    const Stats before = batch.stats();
    Samples unused;
    for (std::uint32_t i = 0; i < prompt_count * kStepsPerRequest; ++i) batch.step(unused);
    const Stats after = batch.stats();
    const auto loaded = static_cast<double>(after.loaded_page_total - before.loaded_page_total);
    QUIRE_CHECK(loaded >= 0.9 * prompt_count * kPromptTokens / kPageTokens, "prompts do not come from the host");
    state.counters["completion_us"] = batch.loads().median();
    state.counters["last_of_a_sequence_us"] = batch.wakes().median();
    state.counters["loads"] = static_cast<double>(batch.loads().count());
    state.counters["loaded_pages"] = loaded;
  }
}

}  // namespace

void register_tier_benchmarks() {
  struct Cold {
    const char* name;
    WritePolicy policy;
    bool has_disk;
  };
  for (const Cold& cold : {Cold{"tiers/cold/write_back", WritePolicy::WriteBack, false},
                           Cold{"tiers/cold/write_through", WritePolicy::WriteThrough, false},
                           Cold{"tiers/cold/disk", WritePolicy::WriteThrough, true}}) {
    benchmark::RegisterBenchmark(cold.name,
                                 [cold](benchmark::State& state) { cold_steps(state, cold.policy, cold.has_disk); })
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
  for (const auto& [name, policy] : {std::pair{"tiers/loads/write_back", WritePolicy::WriteBack},
                                     std::pair{"tiers/loads/write_through", WritePolicy::WriteThrough}}) {
    benchmark::RegisterBenchmark(name, [chosen = policy](benchmark::State& state) { loads(state, chosen); })
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace quire::bench
