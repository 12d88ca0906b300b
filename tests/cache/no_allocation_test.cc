// SPDX-License-Identifier: Apache-2.0
//
// Nothing on the step path allocates: a million request cycles on a full pool leave the counter where it was, whatever
// the policy.
#include <gtest/gtest.h>

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

TEST(NoAllocation, NoPolicyAllocates) {
  for (const std::string_view policy : policy_names()) expect_no_allocations(policy, 100'000);
}

}  // namespace
}  // namespace quire
