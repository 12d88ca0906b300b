// SPDX-License-Identifier: Apache-2.0
//
// What a step asks of the engine, as plain data. The engine first applies `copies`, then computes each entry's tokens,
// writing K and V at `append_slots` and reading the entry's pages.
#pragma once

#include <cstdint>
#include <span>

#include "quire/types.h"

namespace quire {

/// The page that padding reads: reserved, never written, all zeros.
inline constexpr PageId kNullPage{0};

/// No place to write to: the token's K and V are in the cache already.
inline constexpr std::int64_t kNoSlot = -1;

/// The first `token_count` tokens of `source` become those of `target`, in all layers.
struct PageCopy {
  PageId source;
  PageId target;
  std::uint32_t token_count = 0;
};

/// One sequence's part of a step.
struct AttentionPlanEntry {
  SequenceId sequence;
  std::uint32_t position = 0;                  ///< of the first token to compute
  std::uint32_t token_count = 0;               ///< tokens to compute
  std::uint32_t context_tokens = 0;            ///< tokens whose K and V are there once the step has run
  std::uint32_t last_page_tokens = 0;          ///< how many of them lie in the last page
  std::span<const TokenId> tokens;             ///< the tokens to compute
  std::span<const PageId> pages;               ///< all of the sequence's pages, in order
  std::span<const std::int64_t> append_slots;  ///< one per token: page * page_tokens + place in the page, or kNoSlot
};

/// Spans point into the cache and stay valid until the step is finished or aborted.
struct AttentionPlan {
  std::span<const PageCopy> copies;  ///< to apply, in order, before the step
  std::span<const AttentionPlanEntry> entries;
  std::span<const std::int64_t> append_slots;  ///< of all entries, one after the other
};

}  // namespace quire
