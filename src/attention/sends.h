// SPDX-License-Identifier: Apache-2.0
//
// Prefill for another cache: where the receiver puts the tokens of an entry. Tokens that the step computes are sent as
// they are computed, so each query has a remote slot; tokens computed earlier lie in the entry's pages and are sent in
// runs that are consecutive on both sides. Groups that share page ids with others, and have entries of several tokens,
// have the same pages on the other side too: token slot s there is that of entry s / r.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/attention_planner.h"
#include "quire/plan.h"

namespace quire {

/// Where tokens of a sequence go, those from `begin` on to slot after slot, and where they lie here.
struct SendTarget {
  std::span<const SlotRun> slots;
  std::uint32_t begin = 0;
  std::span<const PageId> pages;       // the sequence's row of the group
  std::uint32_t tokens_per_entry = 1;  // r of a group that stores entries of several tokens, each with its last one
};

/// One for each query that has a place there; the others stay as they are. Not for what is in the cache already, nor
/// for tree tokens, which have no place before they are decided. Slots are of tokens.
void write_remote_slots(const PlannerEntry& entry, const SendTarget& target, std::span<std::int64_t> slots);

/// Makes slots of tokens those of the entries that they complete. Pages hold whole entries on both sides.
void make_entry_slots(const PlannerEntry& entry, std::uint32_t tokens_per_entry, std::span<std::int64_t> slots);

/// Writes the runs of tokens [send_cached_begin, send_cached_end) that the row holds and that have a slot, or those of
/// the entries that they complete; how many.
[[nodiscard]] std::size_t write_sends(const PlannerEntry& entry, const SendTarget& target, std::uint32_t page_tokens,
                                      std::span<SendRun> runs);

}  // namespace quire
