// SPDX-License-Identifier: Apache-2.0
//
// Two documents come in one order, then in the other. The cache finds their pages by their own tokens; the engine
// copies those that were computed behind other text, and computes a fifth of their tokens again.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

constexpr std::uint32_t kTokenBytes = 64;
constexpr std::uint32_t kPageTokens = 16;

std::vector<quire::TokenId> text(quire::TokenId first, std::size_t page_count) {
  std::vector<quire::TokenId> tokens(page_count * kPageTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<quire::TokenId> join(std::initializer_list<std::vector<quire::TokenId>> parts) {
  std::vector<quire::TokenId> tokens;
  for (const auto& part : parts) tokens.insert(tokens.end(), part.begin(), part.end());
  return tokens;
}

/// Stands for a model: what a token's K and V are.
void compute(quire::Cache& cache, std::int64_t slot, quire::TokenId token) {
  std::memset(cache.device_memory() + (slot * kTokenBytes), token % 251, kTokenBytes);
}

template <typename Compute>
void run(quire::Cache& cache, quire::Sequence& sequence, Compute&& computed) {
  if (!cache.admit(sequence)) std::abort();
  const quire::StepEntry entry{&sequence};
  const quire::PlanOutcome outcome = *cache.plan_step({&entry, 1});
  if (!outcome.step || !cache.apply_copies(*outcome.step)) std::abort();
  computed(outcome.step->plan.entries[0]);
  const quire::StepResult result;
  if (!cache.finish_step(*outcome.step, {&result, 1}) || !cache.end(sequence)) std::abort();
}

}  // namespace

int main() {
  // [open]
  quire::CacheConfig config{.layout = *quire::ModelLayout::opaque(kTokenBytes), .device = {.page_count = 256}};
  config.chunks.page_count_max = 256;
  auto cache = *quire::Cache::open(std::move(config));
  // [open]
  const quire::KeySpaceId space = *cache->key_space({.model = "example"});
  const auto system = text(0, 2);
  const auto first = text(1'000, 8);
  const auto second = text(5'000, 4);
  const auto question = text(9'000, 1);

  const auto prompt = join({system, first, second});
  quire::Sequence before = *cache->begin(space, {.tokens = prompt});
  run(*cache, before, [&](const quire::AttentionPlanEntry& entry) {
    for (std::uint32_t i = 0; i < entry.token_count; ++i) compute(*cache, entry.append_slots[i], prompt[i]);
  });
  // [add]
  // What a request has computed can be found from now on, page by page.
  const quire::ChunkInsertion added = *cache->add_chunks(space, {.tokens = prompt});
  // [add]
  std::printf("%u pages can be found\n", added.inserted_pages);

  // [pin]
  const std::array chunks{quire::Chunk{.tokens = system}, quire::Chunk{.tokens = second},
                          quire::Chunk{.tokens = first}};
  std::array<quire::ChunkPage, 64> room;
  // While `found.pin` lives, its pages hold what was found.
  const quire::PinnedChunks found = *cache->pin_chunks(space, chunks, room);
  // [pin]
  std::printf("%zu exact and %zu partial pages, %llu tokens to compute again\n", found.match.exact_pages,
              found.match.partial_pages, static_cast<unsigned long long>(found.match.recompute_tokens));

  const auto other = join({system, second, first, question});
  quire::Sequence behind = *cache->begin(space, {.tokens = other}, {.publish = quire::Publish::None});
  std::size_t copied = 0;
  // [copy]
  run(*cache, behind, [&](const quire::AttentionPlanEntry& entry) {
    std::uint64_t again = found.match.recompute_tokens;
    for (std::uint32_t i = 0; i < entry.token_count; ++i) {
      const std::uint32_t position = entry.position + i;
      const std::uint32_t page = position / kPageTokens;
      const bool is_partial = found.match.status(page) == quire::ChunkStatus::Partial;
      if (!is_partial || again > 0) {
        again -= is_partial ? 1 : 0;  // a real engine chooses the tokens whose K and V deviate most
        compute(*cache, entry.append_slots[i], other[position]);
        continue;
      }
      const std::uint64_t source = (found.match.pages[page].handle.value * kPageTokens) + (position % kPageTokens);
      std::memcpy(cache->device_memory() + (entry.append_slots[i] * kTokenBytes),
                  cache->device_memory() + (source * kTokenBytes), kTokenBytes);
      ++copied;
    }
  });
  // [copy]
  std::printf("%zu of %zu tokens were copied, %llu pages of the path were cached\n", copied, other.size(),
              static_cast<unsigned long long>(cache->stats()->hit_tokens / kPageTokens));
  return 0;
}
