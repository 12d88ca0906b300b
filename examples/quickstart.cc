// SPDX-License-Identifier: Apache-2.0
//
// Two requests with the same system prompt: the second one computes only what is its own.
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

// Stands for the engine: it applies plan.copies to its KV tensors, then computes each entry's tokens, writing
// K and V at append_slots and reading the entry's pages.
quire::TokenId run_model(const quire::AttentionPlan& plan) {
  return plan.entries.front().tokens.back() + 1;
}

std::vector<std::vector<quire::TokenId>> make_prompts() {
  std::vector<quire::TokenId> first(1024);
  std::iota(first.begin(), first.end(), 0);
  std::vector<quire::TokenId> second = first;
  std::fill(second.begin() + 960, second.end(), 7);
  return {first, second};
}

}  // namespace

int main() {
  const std::vector<std::vector<quire::TokenId>> prompts = make_prompts();
  // [readme]
  quire::CacheConfig config{.layout = *quire::preset("llama-3-8b"), .device = {.capacity_bytes = 4ULL << 30}};
  config.device.memory = quire::DeviceMemory::None;  // the bytes are in the engine's own tensors
  const auto cache = *quire::Cache::open(std::move(config));
  const quire::KeySpaceId space = *cache->key_space({.model = "llama-3-8b", .salt = "tenant 7"});

  for (const auto& prompt : prompts) {
    quire::Sequence sequence = *cache->begin(space, {prompt});
    const quire::Admission hit = *cache->admit(sequence);
    for (int i = 0; i < 8; ++i) {
      const quire::StepEntry entry{&sequence};
      const quire::PlanOutcome outcome = *cache->plan_step({&entry, 1});
      if (!outcome.step) return 1;  // the pool is full: outcome.shortage says of what
      const quire::TokenId sampled = run_model(outcome.step->plan);
      const quire::StepResult result{{&sampled, 1}};
      if (!cache->finish_step(*outcome.step, {&result, 1})) return 1;  // full pages are cached from here on
    }
    if (!cache->end(sequence)) return 1;
    std::printf("%u of %zu tokens came from the cache\n", hit.matched_tokens, prompt.size());
  }
  // [readme]
  return 0;
}
