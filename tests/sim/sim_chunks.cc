// SPDX-License-Identifier: Apache-2.0
//
// Simulation: pages found by their own tokens, and pinned. With draws of its own, so that everything else of a seed
// stays as it is without.
#include "simulation.h"

namespace quire::testing {

namespace {

constexpr std::size_t kHoldsMax = 3;

}  // namespace

// After every operation: pages that are pinned hold what they held, and now and then texts are added, looked for and
// let go.
void Simulation::chunk_operation() {
  if (!has_chunks_) return;
  for (const ChunkHold& hold : chunk_holds_) {
    for (const auto& [handle, values] : hold.pages) {
      for (std::uint32_t i = 0; i < setup_.page_tokens; ++i) {
        compare_value(slot_of(handle, i), values[i], "a pinned chunk", i);
      }
    }
  }
  if (is_asleep_ || falls_asleep_) return;
  const std::uint32_t draw = chunk_random_.below(100);
  if (draw < 15 && !chunk_holds_.empty()) {
    chunk_holds_.erase(chunk_holds_.begin() + chunk_random_.below(static_cast<std::uint32_t>(chunk_holds_.size())));
  }
  if (lives_.empty() || draw >= 50) return;
  const Live& live = *lives_[chunk_random_.below(static_cast<std::uint32_t>(lives_.size()))];
  if (live.is_retired || live.tokens.size() < setup_.page_tokens) return;
  if (draw % 2 == 0) {
    (void)cache_->add_chunks(live.space, {.tokens = live.tokens, .extra_keys = live.extra_keys});
    ++counts_.api_calls;
  } else {
    pin_chunks(live);
  }
}

void Simulation::pin_chunks(const Live& live) {
  const auto page_count = static_cast<std::uint32_t>(live.tokens.size() / setup_.page_tokens);
  const std::uint32_t first = chunk_random_.below(2) == 0 ? 0 : chunk_random_.below(page_count) * setup_.page_tokens;
  std::vector<ExtraKey> keys;
  for (const ExtraKey& key : live.extra_keys) {
    if (key.end <= first) continue;
    if (key.begin < first) return;  // part of an item
    keys.push_back({.begin = key.begin - first, .end = key.end - first, .item = key.item});
  }
  const Chunk chunk{.tokens = std::span(live.tokens).subspan(first), .extra_keys = keys};
  std::vector<ChunkPage> pages(page_count);
  Result<PinnedChunks> pinned = cache_->pin_chunks(live.space, {&chunk, 1}, pages);
  ++counts_.api_calls;
  if (!pinned && pinned.error().code == ErrorCode::Unavailable) chunk_holds_.clear();
  if (!pinned || !pinned->pin) return;
  ChunkHold hold{.pin = std::move(pinned->pin), .pages = {}};
  for (std::uint32_t page = 0; page < pinned->match.pages.size(); ++page) {
    const ChunkPage& found = pinned->match.pages[page];
    if (found.handle.is_none()) continue;
    std::vector<std::uint64_t> values(setup_.page_tokens);
    for (std::uint32_t i = 0; i < setup_.page_tokens; ++i) {
      std::memcpy(&values[i], byte_of(slot_of(found.handle, i), 0), sizeof(values[i]));
      const std::uint32_t position = (page * setup_.page_tokens) + i;
      const bool is_known = first == 0 && found.status == ChunkStatus::Exact && position < live.full_tokens &&
                            position < live.values.size();
      if (is_known) compare_value(slot_of(found.handle, i), live.values[position], "an exact chunk", position);
      // What nobody has computed is nobody's.
      if (!computed_.contains(values[i])) throw SimFailure("a chunk has tokens that nobody has computed");
    }
    ++counts_.chunk_pages;
    hold.pages.emplace_back(found.handle, std::move(values));
  }
  if (chunk_holds_.size() == kHoldsMax) chunk_holds_.erase(chunk_holds_.begin());
  chunk_holds_.push_back(std::move(hold));
}

}  // namespace quire::testing
