// SPDX-License-Identifier: Apache-2.0
//
// Nothing on the step path allocates: a million request cycles on a full pool leave the counter where it was, whatever
// the policy.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocation_counter.h"
#include "base/hash.h"
#include "quire/cache.h"

namespace quire {
namespace {

TEST(AllocationCounter, SeesEveryWayToAllocate) {
  const auto counted = [](auto allocate) {
    const std::uint64_t before = allocation_count;
    allocate();
    return allocation_count > before;
  };
  void* volatile memory = nullptr;  // volatile: the compiler must not take the calls away
  void* volatile grown = nullptr;
  EXPECT_TRUE(counted([&] { memory = std::malloc(8); }));
  EXPECT_TRUE(counted([&] { grown = std::realloc(memory, 16); }));
  std::free(grown);
  EXPECT_TRUE(counted([&] { memory = std::calloc(1, 8); }));
  std::free(memory);
  EXPECT_TRUE(counted([&] { memory = std::aligned_alloc(64, 64); }));
  std::free(memory);
  EXPECT_TRUE(counted([&] { memory = ::operator new(8); }));
  ::operator delete(memory);
  EXPECT_TRUE(counted([&] { memory = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }));
  ::munmap(memory, 4096);
}

// Prompts that share prefixes with some earlier ones, of many lengths, drawn without allocating.
class PromptSource {
 public:
  std::span<const TokenId> next() {
    const std::uint64_t draw = mix64(++count_);
    const std::size_t shared = draw % 5 * 16;
    const std::size_t own = 1 + (draw >> 8U) % 120;
    const auto family = static_cast<TokenId>((draw >> 16U) % 7);
    const auto member = static_cast<TokenId>((draw >> 24U) % 200);
    for (std::size_t i = 0; i < shared; ++i) tokens_[i] = (family * 1000) + static_cast<TokenId>(i);
    for (std::size_t i = 0; i < own; ++i) tokens_[shared + i] = (member * 500) + static_cast<TokenId>(i) + 100'000;
    return std::span(tokens_).first(shared + own);
  }

 private:
  std::uint64_t count_ = 0;
  std::array<TokenId, 256> tokens_{};
};

void expect_no_allocations(std::string_view policy, std::uint32_t cycle_count) {
  SCOPED_TRACE(policy);
  const std::unique_ptr<Cache> cache = std::move(Cache::open({.layout = ModelLayout::opaque(4).value(),
                                                              .page = {.page_tokens = 8},
                                                              .device = {.page_count = 400},
                                                              .sequence_count_max = 8,
                                                              .policy = std::string(policy)}))
                                           .value();
  const KeySpaceId space = cache->key_space({.model = "m"}).value();
  PromptSource prompts;
  const std::vector<ExtraKey> image{{.begin = 2, .end = 9, .item = {1}}};
  std::vector<Sequence> waiting(3);
  std::uint64_t planned = 0;
  TimeNs cycle_total = 0;

  const auto run = [&](std::uint32_t count) {
    for (std::uint32_t cycle = 0; cycle < count; ++cycle) {
      const std::span<const TokenId> tokens = prompts.next();
      const bool has_image = cycle % 5 == 0 && tokens.size() >= 9;
      // A few sequences wait for a while, so that soft pins come and go as well; some handles are just dropped.
      Sequence& sequence = waiting[cycle % waiting.size()];
      sequence = Sequence();
      Prompt prompt{.tokens = tokens};
      if (has_image) prompt.extra_keys = image;
      if (!cache->advance(cycle_total++)) return false;
      SequenceOptions options{.priority = static_cast<std::int8_t>(cycle % 3)};
      if (cycle % 2 == 0) options.ttl_ns = 1 + (cycle % 100);
      Result<Sequence> begun = cache->begin(space, prompt, options);
      if (!begun) return false;
      sequence = std::move(*begun);
      Sequence& runs = waiting[(cycle + 1) % waiting.size()];
      if (!runs) continue;
      if (!cache->admit(runs)) return false;
      const TokenId sampled = 7;
      for (int step = 0; step < 3; ++step) {
        const StepEntry entry{&runs, cache->view(runs)->pending_tokens};
        const Result<PlanOutcome> outcome = cache->plan_step({&entry, 1});
        if (!outcome || !outcome->step) return false;
        if (!cache->apply_copies(*outcome->step)) return false;
        if (cycle % 11 == 0 && step == 1) {
          if (!cache->abort_step(*outcome->step)) return false;
          continue;
        }
        const StepResult result{.tokens = {&sampled, 1}};
        if (!cache->finish_step(*outcome->step, {&result, 1})) return false;
        ++planned;
      }
      if (cycle % 3 == 0) {
        runs = Sequence();
      } else if (!cache->end(runs)) {
        return false;
      }
    }
    return true;
  };

  ASSERT_TRUE(run(10'000));
  ASSERT_GT(cache->stats()->evicted_page_total, 0U) << "the pool is not full";
  const std::uint64_t before = allocation_count;
  const bool ok = run(cycle_count);
  const std::uint64_t after = allocation_count;
  ASSERT_TRUE(ok);
  EXPECT_EQ(after - before, 0U);
  EXPECT_GT(planned, 2 * cycle_count);
  const Status status = cache->check_invariants();
  EXPECT_TRUE(status.has_value()) << status.error().message;
}

TEST(NoAllocation, AMillionRequestCyclesOnAFullPoolAllocateNothing) {
  expect_no_allocations("lru", 1'000'000);
}

// A group of every kind on pools that are always full: prompts that share prefixes, drafts, forks, rewinds, steps that
// are aborted, snapshots taken, skipped and restored.
std::vector<CacheGroup> groups_of_every_kind() {
  const std::vector<Component> number = {{.name = "n", .element = ElementType::Int32, .dim = 1}};
  const GroupRetention every{.rule = RetentionRule::Every, .interval_tokens = 32};
  return {
      {.name = "full", .layers = {0}, .components = number},
      {.name = "entries", .kind = GroupKind::Compressed, .layers = {1}, .components = number, .tokens_per_entry = 4},
      {.name = "window", .kind = GroupKind::Window, .layers = {2}, .components = number, .window_tokens = 20},
      {.name = "ring",
       .kind = GroupKind::Window,
       .layers = {3},
       .components = number,
       .retention = every,
       .window_tokens = 8,
       .window_form = WindowForm::Ring,
       .slot_entries = 16},
      {.name = "state",
       .kind = GroupKind::Snapshot,
       .layers = {4},
       .components = number,
       .retention = every,
       .slot_entries = 1,
       .slot_history = 4}};
}

TEST(NoAllocation, CyclesWithGroupsOfEveryKindAllocateNothing) {
  CacheConfig config{.layout = ModelLayout::create("every", groups_of_every_kind()).value(),
                     .page = {.page_tokens = 8},
                     .device = {.page_count = 200, .group_page_counts = {200, 200, 60, 30, 20}},
                     .sequence_count_max = 4,
                     .context_tokens_max = 512};
  const std::unique_ptr<Cache> cache = std::move(Cache::open(std::move(config))).value();
  const KeySpaceId space = cache->key_space({.model = "m"}).value();
  PromptSource prompts;
  std::uint64_t forks = 0;
  const auto run = [&](std::uint32_t count) {
    for (std::uint32_t cycle = 0; cycle < count; ++cycle) {
      Result<Sequence> begun = cache->begin(space, {.tokens = prompts.next()});
      if (!begun || !cache->admit(*begun)) return false;
      Sequence sequence = std::move(*begun);
      Sequence fork;
      for (std::uint32_t step = 0; step < 8; ++step) {
        const std::uint32_t pending = cache->view(sequence)->pending_tokens;
        const bool has_all = cache->view(sequence)->computed_tokens + pending == cache->view(sequence)->token_count;
        const std::uint32_t next = cache->view(sequence)->next_checkpoint;
        const bool drafts = step > 3 && has_all && pending == 1 && cache->view(sequence)->computed_tokens + 4 < next;
        const std::array<StepEntry, 2> entries = {
            StepEntry{.sequence = &sequence, .token_count = drafts ? 0 : pending, .draft_count = drafts ? 2U : 0U},
            StepEntry{.sequence = &fork}};
        const bool with_fork = fork && cache->view(fork)->pending_tokens > 0;
        const Result<PlanOutcome> outcome = cache->plan_step(std::span(entries).first(with_fork ? 2 : 1));
        if (!outcome || !outcome->step) return false;
        if (!cache->apply_copies(*outcome->step)) return false;
        if (cycle % 7 == 0 && step == 2) {
          if (!cache->abort_step(*outcome->step)) return false;
          continue;
        }
        if (!cache->apply_saves(*outcome->step)) return false;
        const std::array<TokenId, 2> sampled = {static_cast<TokenId>(7 + step), 3};
        const bool is_complete = outcome->step->plan.entries[0].context_tokens >= cache->view(sequence)->token_count;
        std::array<StepResult, 2> results;
        if (is_complete) results[0] = {.tokens = std::span(sampled).first(drafts ? 2 : 1), .accepted_count = drafts};
        if (!cache->finish_step(*outcome->step, std::span(results).first(with_fork ? 2 : 1))) return false;
        if (cycle % 3 == 0 && step == 4) {
          Result<Sequence> forked = cache->fork(sequence, cache->view(sequence)->token_count);
          if (!forked) return false;
          fork = std::move(*forked);
          ++forks;
        }
      }
      if (!cache->end(sequence)) return false;
    }
    return true;
  };
  ASSERT_TRUE(run(2'000));
  for (std::uint32_t group = 0; group < 5; ++group)
    EXPECT_GT(cache->group_stats(group)->evicted_page_total, 0U) << group;
  const std::uint64_t before = allocation_count;
  const bool ok = run(20'000);
  const std::uint64_t after = allocation_count;
  ASSERT_TRUE(ok);
  EXPECT_EQ(after - before, 0U);
  EXPECT_GT(forks, 0U);
  EXPECT_GT(cache->group_stats(4)->restored_snapshot_total, 0U);
  const Status status = cache->check_invariants();
  EXPECT_TRUE(status.has_value()) << status.error().message;
}

// Twins that compute the same prompt (one of them in vain), forks inside pages, drafts, trees over two rounds, windows,
// two steps in flight, aborts, rewinds and preemption, on a pool that is always full.
class AlgebraCycles {
 public:
  explicit AlgebraCycles(PageTables page_tables, std::uint32_t cascade_levels_max)
      : cache_(std::move(Cache::open(
                             {.layout = ModelLayout::opaque(4).value(),
                              .page = {.page_tokens = 8},
                              .device = {.page_count = 300},
                              .host = {.page_count = 100, .write_policy = WritePolicy::Selective, .write_hits_min = 3},
                              .sequence_count_max = 8,
                              .context_tokens_max = 512,
                              .plan = {.page_tables = page_tables,
                                       .cascade_levels_max = cascade_levels_max,
                                       .layer_windows = layer_windows_with(page_tables)}}))
                   .value()),
        space_(cache_->key_space({.model = "m"}).value()) {}

  [[nodiscard]] bool run(std::uint32_t cycle_count) {
    for (std::uint32_t i = 0; i < cycle_count; ++i) {
      if (!cycle(mix64(++cycle_total_))) return false;
    }
    return true;
  }
  [[nodiscard]] const Cache& cache() const { return *cache_; }

 private:
  bool drain() {
    while (cache_->stats()->transfers_in_flight > 0) {
      if (!cache_->apply(*cache_->poll(), 0)) return false;
    }
    return true;
  }
  bool cycle(std::uint64_t draw) {
    const std::span<const TokenId> prompt = prompts_.next();
    Result<Sequence> first = cache_->begin(space_, {.tokens = prompt});
    Result<Sequence> twin = cache_->begin(space_, {.tokens = prompt});
    if (!first || !twin || !drain() || !cache_->admit(*first) || !cache_->admit(*twin) || !drain()) return false;
    if (draw % 3 == 0 && !cache_->set_window(*twin, {.window_tokens = 24, .sink_tokens = 3})) return false;
    if (!step(*first, *twin)) return false;

    const std::uint32_t at = 1 + static_cast<std::uint32_t>((draw >> 8U) % prompt.size());
    Result<Sequence> child = cache_->fork(*first, at);
    if (!child || !cache_->append(*child, {.tokens = {&kSampled, 1}}) || !step(*child, *first)) return false;
    if (!two_in_flight(*child) || !drafts(*first) || !tree(*child, draw)) return false;
    if (draw % 5 == 0) {
      const Preempt how = draw % 2 == 0 ? Preempt::Drop : Preempt::Save;
      if (!cache_->preempt(*first, how) || !drain() || !cache_->resume(*first) || !drain()) return false;
    }
    const std::uint32_t token_count = cache_->view(*child)->token_count;
    if (!cache_->rewind(*child, static_cast<std::uint32_t>((draw >> 16U) % std::min(token_count, 20U)))) return false;
    // One handle is dropped while its step is in flight.
    const StepEntry entry{&*child};
    const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
    if (!outcome || !outcome->step) return false;
    if (!cache_->end(*child) || !finish(*outcome->step, 1)) return false;
    return cache_->end(*first) && (draw % 2 == 0 || cache_->end(*twin));
  }

  bool finish(const Step& step, std::size_t entry_count) {
    std::array<StepResult, 2> results{};
    for (StepResult& result : results) result.tokens = {&kSampled, 1};
    return cache_->apply_copies(step) && cache_->finish_step(step, std::span(results).first(entry_count));
  }
  bool step(const Sequence& one, const Sequence& other) {
    const std::array<StepEntry, 2> entries = {StepEntry{&one}, StepEntry{&other}};
    Result<PlanOutcome> outcome = cache_->plan_step(entries);
    if (!outcome || !outcome->step) return false;
    if (cycle_total_ % 7 == 0) {
      if (!cache_->abort_step(*outcome->step)) return false;
      outcome = cache_->plan_step(entries);
      if (!outcome || !outcome->step) return false;
    }
    return finish(*outcome->step, 2);
  }
  bool two_in_flight(const Sequence& sequence) {
    const StepEntry entry{&sequence};
    const Result<PlanOutcome> now = cache_->plan_step({&entry, 1});
    const Result<PlanOutcome> ahead = cache_->plan_step({&entry, 1});
    if (!now || !now->step || !ahead || !ahead->step) return false;
    return finish(*now->step, 1) && finish(*ahead->step, 1);
  }
  bool drafts(const Sequence& sequence) {
    const StepEntry entry{.sequence = &sequence, .draft_count = 9};
    const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
    if (!outcome || !outcome->step || !cache_->apply_copies(*outcome->step)) return false;
    const std::array<TokenId, 4> tokens = {5, 6, 7, kSampled};
    const StepResult result{.tokens = tokens, .accepted_count = 3};
    return cache_->finish_step(*outcome->step, {&result, 1}).has_value();
  }
  bool tree(const Sequence& sequence, std::uint64_t draw) {
    static constexpr std::array<std::int32_t, 4> kFirst = {-1, 0, 0, -1};
    static constexpr std::array<std::int32_t, 5> kSecond = {1, 2, 2, 5, 3};
    static constexpr std::array<TokenId, 5> kValues = {11, 12, 13, 14, 15};
    for (const std::span<const std::int32_t> parents : {std::span<const std::int32_t>(kFirst), {kSecond}}) {
      const StepEntry entry{.sequence = &sequence, .tree_parents = parents};
      const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
      if (!outcome || !outcome->step || !cache_->apply_copies(*outcome->step)) return false;
      const StepResult result{.tokens = std::span(kValues).first(parents.size())};
      if (!cache_->finish_step(*outcome->step, {&result, 1})) return false;
    }
    return cache_->commit_tree(sequence, static_cast<std::int32_t>((draw >> 24U) % 10) - 1).has_value() &&
           cache_->append(sequence, {.tokens = {&kSampled, 1}}).has_value();
  }

  static std::vector<std::uint32_t> layer_windows_with(PageTables page_tables) {
    if (page_tables == PageTables::Block) return {};
    return {20, 64};
  }

  static constexpr TokenId kSampled = 9;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  PromptSource prompts_;
  std::uint64_t cycle_total_ = 0;
};

void expect_algebra_without_allocations(PageTables page_tables, std::uint32_t cascade_levels_max,
                                        std::uint32_t cycle_count) {
  AlgebraCycles cycles(page_tables, cascade_levels_max);
  ASSERT_TRUE(cycles.run(10'000));
  ASSERT_GT(cycles.cache().stats()->evicted_page_total, 0U) << "the pool is not full";
  ASSERT_GT(cycles.cache().stats()->duplicate_page_total, 0U) << "nothing was computed twice";
  const std::uint64_t before = allocation_count;
  const bool ok = cycles.run(cycle_count);
  const std::uint64_t after = allocation_count;
  ASSERT_TRUE(ok);
  EXPECT_EQ(after - before, 0U);
  const Status status = cycles.cache().check_invariants();
  EXPECT_TRUE(status.has_value()) << status.error().message;
}

TEST(NoAllocation, AMillionCyclesOfForksDraftsTreesAndWindowsAllocateNothing) {
  expect_algebra_without_allocations(PageTables::Rows, 1, 1'000'000);
}

TEST(NoAllocation, NoFormOfPlanAllocates) {
  expect_algebra_without_allocations(PageTables::Rows, 4, 50'000);
  expect_algebra_without_allocations(PageTables::Csr, 4, 50'000);
  expect_algebra_without_allocations(PageTables::Block, 1, 50'000);
}

TEST(NoAllocation, NoPolicyAllocates) {
  for (const std::string_view policy : policy_names()) expect_no_allocations(policy, 100'000);
}

}  // namespace
}  // namespace quire
