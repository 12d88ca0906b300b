// SPDX-License-Identifier: Apache-2.0
//
// Prefill for another cache: where the receiver puts the tokens of an entry. Tokens that the step computes are sent as
// they are computed, so each query has a remote slot; tokens computed earlier lie in the entry's pages and are sent in
// runs that are consecutive on both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/attention_planner.h"
#include "quire/plan.h"

namespace quire {

/// One per query. kNoSlot for tokens outside the marked range, for what is in the cache already, and for tree tokens,
/// which have no place before they are decided.
void write_remote_slots(const PlannerEntry& entry, std::span<std::int64_t> slots);

/// Writes the runs of tokens [send_cached_begin, send_cached_end) that the row holds and that have a slot; how many.
[[nodiscard]] std::size_t write_sends(const PlannerEntry& entry, std::uint32_t page_tokens, std::span<SendRun> runs);

}  // namespace quire
