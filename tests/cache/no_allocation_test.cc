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
#include <utility>
#include <vector>

#include "allocation_counter.h"
#include "base/hash.h"
#include "groups_fixture.h"
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

// Twins that compute the same prompt (one of them in vain), forks inside pages, drafts, trees over two rounds, windows,
// two steps in flight, aborts, rewinds and preemption, on a pool that is always full.
class ChangeCycles {
 public:
  explicit ChangeCycles(PageTables page_tables, std::uint32_t cascade_levels_max)
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
    if (draw % 3 == 0 && !cache_->set_window(*twin, {.visible_tokens = 24, .sink_tokens = 3})) return false;
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

void expect_changes_without_allocations(PageTables page_tables, std::uint32_t cascade_levels_max,
                                        std::uint32_t cycle_count) {
  ChangeCycles cycles(page_tables, cascade_levels_max);
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
  expect_changes_without_allocations(PageTables::Rows, 1, 1'000'000);
}

TEST(NoAllocation, NoFormOfPlanAllocates) {
  expect_changes_without_allocations(PageTables::Rows, 4, 50'000);
  expect_changes_without_allocations(PageTables::Csr, 4, 50'000);
  expect_changes_without_allocations(PageTables::Block, 1, 50'000);
}

// Layouts of several groups: hits with snapshots to restore and windows to rebuild, checkpoints, drafts that are
// rejected, forks of forks, rewinds, two steps in flight, aborts after which a state is found again, preemption,
// kept prefixes and what one sequence computes for another, on pools all of which are always full.
class HybridCycles {
 public:
  HybridCycles(ModelLayout layout, std::vector<std::uint32_t> group_page_counts, std::uint32_t host_page_count)
      : cache_(std::move(Cache::open({.layout = std::move(layout),
                                      .page = {.page_tokens = 8},
                                      .device = {.page_count = 150, .group_page_counts = std::move(group_page_counts)},
                                      .host = {.page_count = host_page_count,
                                               .write_policy = WritePolicy::WriteThrough,
                                               .external_mover = host_page_count > 0},
                                      .sequence_count_max = 8,
                                      .context_tokens_max = 512}))
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
  bool cycle(std::uint64_t draw) {
    const std::span<const TokenId> prompt = prompts_.next();
    if (draw % 4 == 1 && !transfer(prompt, draw)) return false;
    Result<Sequence> first = cache_->begin(space_, {.tokens = prompt});
    Result<Sequence> twin = cache_->begin(space_, {.tokens = prompt});
    if (!first || !twin || !cache_->admit(*first) || !cache_->admit(*twin) || !move()) return false;
    if (!run_all(*first, *twin, draw)) return false;
    Result<Sequence> child = cache_->fork(*first, cache_->view(*first)->computed_tokens);
    if (!child) return false;
    Result<Sequence> grandchild = cache_->fork(*child, cache_->view(*child)->computed_tokens);
    if (!grandchild || !cache_->append(*child, {.tokens = {&kSampled, 1}})) return false;
    if (!cache_->append(*grandchild, {.tokens = {&kSampled, 1}})) return false;
    if (draw % 3 == 0) *child = Sequence();
    if (!run_all(*grandchild, *twin, draw)) return false;
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (!drafts(*first, static_cast<std::uint32_t>((draw >> (8 + i)) % 3))) return false;
    }
    if (!two_in_flight(*grandchild)) return false;
    const std::uint32_t back = static_cast<std::uint32_t>((draw >> 16U) % 2);
    if (!cache_->rewind(*grandchild, back) || !cache_->append(*grandchild, {.tokens = {&kSampled, 1}})) return false;
    if (!run_all(*grandchild, *twin, draw)) return false;
    if (draw % 5 == 0) {
      if (!cache_->preempt(*first, Preempt::Drop) || !cache_->resume(*first) || !move()) return false;
      if (!run_all(*first, *twin, draw)) return false;
    }
    if (draw % 7 == 0) {
      const Result<Kept> kept = cache_->keep(space_, {.tokens = prompt});
      if (!kept || !cache_->unkeep(kept->id)) return false;
    }
    return cache_->end(*first) && (draw % 2 == 0 || cache_->end(*twin));
  }

  // One sequence receives what another one computes.
  bool transfer(std::span<const TokenId> prompt, std::uint64_t draw) {
    const auto token_count = static_cast<std::uint32_t>(prompt.size());
    const Result<Sequence> receiver = cache_->begin(space_, {.tokens = prompt}, {.use_cache = false});
    const Result<Sequence> sender = cache_->begin(space_, {.tokens = prompt}, {.use_cache = false});
    if (!receiver || !sender || !cache_->admit(*receiver) || !cache_->admit(*sender) || !move()) return false;
    const Result<std::span<const SlotRun>> slots = cache_->prepare_receive(*receiver, token_count);
    const Result<ReceiveTargets> targets = cache_->receive_targets(*receiver);
    if (!slots || !targets || !cache_->mark_send(*sender, 0, *slots, 1, *targets)) return false;
    while (cache_->view(*sender)->pending_tokens > 0) {
      const StepEntry entry{.sequence = &*sender, .token_count = std::min(cache_->view(*sender)->pending_tokens, 40U)};
      const StepResult result;
      if (!move()) return false;
      const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
      if (!outcome || !outcome->step || !finish(*outcome->step, {&result, 1})) return false;
    }
    return (draw % 8 == 1 ? cache_->abort_receive(*receiver) : cache_->finish_receive(*receiver)).has_value();
  }

  // What is on its way between the tiers arrives.
  bool move() {
    while (cache_->config().host.is_on()) {
      const Result<std::span<TransferPlan>> taken = cache_->take_transfers(plans_);
      if (!taken) return false;
      for (std::size_t i = 0; i < taken->size(); ++i) completions_[i] = {.id = plans_[i].id, .kind = plans_[i].kind};
      if (!cache_->apply(std::span(completions_).first(taken->size()), 0)) return false;
      if (taken->empty()) break;
    }
    return true;
  }

  // Both sequences, chunk by chunk, until nothing of either is pending; then one more token of each is known.
  bool run_all(const Sequence& one, const Sequence& other, std::uint64_t draw) {
    for (std::uint32_t round = 0; round < 200; ++round) {
      std::array<StepEntry, 2> entries{};
      std::size_t count = 0;
      for (const Sequence* sequence : {&one, &other}) {
        const std::uint32_t pending = cache_->view(*sequence)->pending_tokens;
        if (pending > 0) entries[count++] = {.sequence = sequence, .token_count = std::min(pending, 40U)};
      }
      if (count == 0) break;
      if (!move()) return false;
      const Result<PlanOutcome> outcome = cache_->plan_step(std::span(entries).first(count));
      if (!outcome || !outcome->step) return false;
      if (mix64(draw + round) % 16 == 0) {
        if (!cache_->abort_step(*outcome->step)) return false;
        continue;
      }
      const std::array<StepResult, 2> results{};
      if (!finish(*outcome->step, std::span(results).first(count))) return false;
    }
    const auto add = [&](const Sequence& sequence) {
      return cache_->append(sequence, {.tokens = {&kSampled, 1}}).has_value();
    };
    return add(one) && add(other);
  }
  bool finish(const Step& step, std::span<const StepResult> results) {
    return cache_->apply_copies(step) && cache_->apply_saves(step) && cache_->finish_step(step, results);
  }
  bool drafts(const Sequence& sequence, std::uint32_t accepted) {
    const StepEntry entry{.sequence = &sequence, .draft_count = 2};
    const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
    if (!outcome || !outcome->step) return false;
    const AttentionPlanEntry& planned = outcome->step->plan.entries[0];
    static constexpr std::array<TokenId, 3> kTokens = {5, 6, kSampled};
    StepResult result;
    // A checkpoint may have cut it short.
    if (planned.draft_count > 0) {
      result.accepted_count = accepted;
      result.tokens = std::span(kTokens).first(accepted + 1);
    } else if (planned.position + planned.token_count == cache_->view(sequence)->token_count) {
      result.tokens = std::span(kTokens).first(1);
    }
    return finish(*outcome->step, {&result, 1});
  }
  bool two_in_flight(const Sequence& sequence) {
    const StepEntry entry{.sequence = &sequence, .token_count = 1};
    const Result<PlanOutcome> now = cache_->plan_step({&entry, 1});
    const Result<PlanOutcome> ahead = cache_->plan_step({&entry, 1});
    if (!now || !now->step || !ahead || !ahead->step) return false;
    const StepResult result{.tokens = {&kSampled, 1}};
    return finish(*now->step, {&result, 1}) && finish(*ahead->step, {&result, 1});
  }

  static constexpr TokenId kSampled = 9;
  std::unique_ptr<Cache> cache_;
  std::array<TransferPlan, 64> plans_{};
  std::array<Completion, 64> completions_{};
  KeySpaceId space_;
  PromptSource prompts_;
  std::uint64_t cycle_total_ = 0;
};

void expect_hybrid_without_allocations(std::vector<CacheGroup> groups, std::vector<std::uint32_t> group_page_counts,
                                       std::uint32_t host_page_count = 0) {
  HybridCycles cycles(ModelLayout::create("hybrid", std::move(groups)).value(), std::move(group_page_counts),
                      host_page_count);
  ASSERT_TRUE(cycles.run(5'000));
  const std::span<const CacheGroup> layout = cycles.cache().config().layout.groups();
  for (std::uint32_t g = 0; g < layout.size(); ++g) {
    if (layout[g].retention.rule == RetentionRule::None) continue;
    ASSERT_GT(cycles.cache().group_stats(g)->evicted_page_total, 0U) << "the pool of group " << g << " is not full";
  }
  const std::uint64_t before = allocation_count;
  const bool ok = cycles.run(25'000);
  const std::uint64_t after = allocation_count;
  ASSERT_TRUE(ok);
  EXPECT_EQ(after - before, 0U);
  for (std::uint32_t g = 0; g < layout.size(); ++g) {
    if (!has_slot(layout[g])) continue;
    EXPECT_GT(cycles.cache().group_stats(g)->restored_snapshot_total, 0U) << "nothing of group " << g << " was found";
  }
  if (host_page_count > 0) {
    EXPECT_GT(cycles.cache().group_stats(1)->loaded_page_total, 0U) << "nothing came from the host";
  }
  EXPECT_GT(cycles.cache().stats()->received_tokens, 0U);
  const Status status = cycles.cache().check_invariants();
  EXPECT_TRUE(status.has_value()) << status.error().message;
}

// Four sequences in each cycle.
TEST(NoAllocation, CyclesWithGroupsOfEveryKindAllocateNothing) {
  expect_hybrid_without_allocations({full_group(), window_group(20), compressed_group(4),
                                     ring_group(10, 14, {.rule = RetentionRule::Every, .interval_tokens = 16}),
                                     state_group(3, {.rule = RetentionRule::Every, .interval_tokens = 16})},
                                    {0, 40, 0, 12, 12});
}

TEST(NoAllocation, CyclesWithGroupsOfEveryKindThroughTheHostAllocateNothing) {
  expect_hybrid_without_allocations({full_group(), window_group(20), compressed_group(4),
                                     ring_group(10, 14, {.rule = RetentionRule::Every, .interval_tokens = 16}),
                                     state_group(3, {.rule = RetentionRule::Every, .interval_tokens = 16})},
                                    {0, 40, 0, 12, 12}, /*host_page_count=*/300);
}

TEST(NoAllocation, CyclesWithWindowsToRebuildAllocateNothing) {
  CacheGroup window = window_group(20, {.rule = RetentionRule::None});
  window.replay = {.tokens = 24, .is_exact = true};
  expect_hybrid_without_allocations({full_group(), window}, {0, 80});
}

TEST(NoAllocation, FindingAndPinningChunksAllocatesNothing) {
  CacheConfig config{.layout = ModelLayout::opaque(4).value(),
                     .page = {.page_tokens = 8},
                     .device = {.page_count = 400, .memory = DeviceMemory::None},
                     .chunks = {.page_count_max = 60},
                     .sequence_count_max = 4};
  const std::unique_ptr<Cache> cache = std::move(Cache::open(std::move(config)).value());
  const KeySpaceId space = cache->key_space({.model = "m"}).value();
  PromptSource prompts;
  std::array<ChunkPage, 64> pages;
  std::array<ChunkPin, 3> pins;
  std::uint64_t found = 0;
  const auto run = [&](std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::span<const TokenId> tokens = prompts.next();
      Sequence sequence = std::move(*cache->begin(space, {.tokens = tokens}));
      if (!cache->admit(sequence)) return false;
      const StepEntry entry{&sequence};
      const Result<PlanOutcome> outcome = cache->plan_step({&entry, 1});
      const StepResult result;
      if (!outcome->step || !cache->finish_step(*outcome->step, {&result, 1}) || !cache->end(sequence)) return false;
      if (!cache->add_chunks(space, {.tokens = tokens})) return false;
      const Chunk chunk{.tokens = tokens.subspan(tokens.size() / 2)};
      if (chunk.tokens.size() < 8) continue;
      pins[i % pins.size()] = {};
      Result<PinnedChunks> pinned = cache->pin_chunks(space, {&chunk, 1}, pages);
      if (!pinned) return false;
      found += pinned->match.partial_pages;
      pins[i % pins.size()] = std::move(pinned->pin);
    }
    return true;
  };
  ASSERT_TRUE(run(1'000));
  const std::uint64_t before = allocation_count;
  const bool ok = run(10'000);
  const std::uint64_t after = allocation_count;
  ASSERT_TRUE(ok);
  EXPECT_EQ(after - before, 0U);
  EXPECT_GT(found, 0U);
  EXPECT_GT(cache->stats()->evicted_page_total, 0U);
  EXPECT_TRUE(cache->check_invariants().has_value());
}

// Two ranks with a cache each. Prompts come back, so that pages go to the host and return; the second rank's mover is
// behind that of the first one.
class RankCycles {
 public:
  RankCycles() {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      caches_[rank] = std::move(Cache::open({.layout = ModelLayout::opaque(4).value(),
                                             .page = {.page_tokens = 8},
                                             .device = {.page_count = 80, .memory = DeviceMemory::None},
                                             .host = {.page_count = 400,
                                                      .write_policy = WritePolicy::WriteThrough,
                                                      .load_timeout_ns = 50,
                                                      .external_mover = true,
                                                      .transfer_pages_max = 2},
                                             .sequence_count_max = 8}))
                          .value();
      space_ = caches_[rank]->key_space({.model = "m"}).value();
    }
  }
  bool run(std::uint32_t count) {
    for (std::uint32_t cycle = 0; cycle < count; ++cycle) {
      const std::span<const TokenId> tokens = prompts_.next();
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        Result<Sequence> begun = caches_[rank]->begin(space_, {.tokens = tokens});
        if (!begun) return false;
        sequences_[rank] = std::move(*begun);
      }
      while (!on_all([&](Cache& cache, Sequence& sequence) { return cache.admit(sequence).has_value(); })) {
        if (!exchange()) return false;
      }
      while (caches_[0]->view(sequences_[0])->is_loading) {
        if (!exchange()) return false;
      }
      while (!on_all([&](Cache& cache, Sequence& sequence) { return step(cache, sequence); })) {
        if (!exchange()) return false;
      }
      if (!on_all([&](Cache& cache, Sequence& sequence) { return cache.end(sequence).has_value(); })) return false;
      if (!exchange()) return false;
    }
    return true;
  }
  [[nodiscard]] Stats stats() const { return caches_[0]->stats().value(); }

 private:
  static constexpr std::uint32_t kRanks = 2;

  template <typename Call>
  bool on_all(Call&& call) {
    bool is_done = true;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) is_done = call(*caches_[rank], sequences_[rank]) && is_done;
    return is_done;
  }
  static bool step(Cache& cache, const Sequence& sequence) {
    const StepEntry entry{&sequence};
    const Result<PlanOutcome> outcome = cache.plan_step({&entry, 1});
    const StepResult result;
    return outcome && outcome->step && cache.finish_step(*outcome->step, {&result, 1});
  }
  bool exchange() {
    std::array<std::span<const std::byte>, kRanks> reports;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      std::array<TransferPlan, 16> room;
      const auto taken = caches_[rank]->take_transfers(room);
      if (!taken) return false;
      for (const TransferPlan& plan : *taken) moving_[rank][moving_counts_[rank]++] = {.id = plan.id, .moved_bytes = 1};
      const bool is_behind = rank == 1 && exchange_count_ % 3 != 0;
      const std::size_t moved_count = is_behind ? 0 : std::exchange(moving_counts_[rank], 0);
      const auto report = caches_[rank]->report_to_ranks({.rank_index = rank,
                                                          .rank_count = kRanks,
                                                          .now = exchange_count_,
                                                          .moved = std::span(moving_[rank]).first(moved_count)});
      if (!report) return false;
      reports[rank] = *report;
    }
    ++exchange_count_;
    return on_all([&](Cache& cache, Sequence&) { return cache.apply_ranks(reports).has_value(); });
  }

  std::array<std::unique_ptr<Cache>, kRanks> caches_;
  KeySpaceId space_;
  PromptSource prompts_;
  std::array<Sequence, kRanks> sequences_;
  std::array<std::array<Completion, 64>, kRanks> moving_;
  std::array<std::size_t, kRanks> moving_counts_{};
  TimeNs exchange_count_ = 0;
};

TEST(NoAllocation, RanksThatReportToEachOtherAllocateNothing) {
  RankCycles cycles;
  ASSERT_TRUE(cycles.run(1));  // and so the first report
  const std::uint64_t before = allocation_count;
  const bool ok = cycles.run(20'000);
  EXPECT_EQ(allocation_count - before, 0U);
  ASSERT_TRUE(ok);
  EXPECT_GT(cycles.stats().loaded_page_total, 1'000U);
  EXPECT_GT(cycles.stats().stored_page_total, 1'000U);
}

TEST(NoAllocation, NoPolicyAllocates) {
  for (const std::string_view policy : policy_names()) expect_no_allocations(policy, 100'000);
}

}  // namespace
}  // namespace quire
