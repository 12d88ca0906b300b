// SPDX-License-Identifier: Apache-2.0
//
// Where the tokens of an entry are written, one slot for each query. kNoSlot for what is not: tokens that run again,
// those before the first position to write, and those whose page is not stored.
//
//     pages of 4 tokens, entries of 2    full         page * 4 + place      40 41 42 43  80 81
//     pages 10 and 20, 6 tokens          compressed   page * 2 + entry       - 20  - 21   - 40
//     a ring of 5, 2 of them the sink    state slot 3                       15 16  - 18  19 17
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/attention_planner.h"
#include "quire/plan.h"

namespace quire {

/// What entry `index` of the step has for groups.
[[nodiscard]] inline const PlannerEntryGroups& groups_of(const PlannerStep& step, std::size_t index) {
  static constexpr PlannerEntryGroups kNone;
  return step.entry_groups.empty() ? kNone : step.entry_groups[index];
}

[[nodiscard]] inline std::uint32_t state_slot_of(const PlannerEntry& entry, const PlannerEntryGroups& groups) {
  return groups.state_slot == PlannerEntryGroups::kSequenceIndex ? entry.sequence.index : groups.state_slot;
}

/// A row of pages, and from which position on it is written.
struct SlotRow {
  std::span<const PageId> pages;
  std::uint32_t page_tokens = 0;
  std::uint32_t write_from = 0;
};

/// How many of an entry's first queries have no slot because of it.
[[nodiscard]] inline std::uint32_t skipped_queries(const PlannerEntry& entry, std::uint32_t write_from) {
  if (entry.runs_again) return entry.token_count;
  if (write_from <= entry.position) return 0;
  return write_from < entry.context_tokens ? write_from - entry.position : entry.token_count;
}

/// Of a group with an entry for every token.
inline void write_token_slots(const PlannerEntry& entry, const SlotRow& row, std::int64_t* slots) {
  std::uint32_t i = 0;
  for (const std::uint32_t skipped = skipped_queries(entry, row.write_from); i < skipped; ++i) slots[i] = kNoSlot;
  if (i == entry.token_count) return;
  std::uint32_t column = (entry.position + i) / row.page_tokens;
  std::uint32_t offset = entry.position + i - (column * row.page_tokens);
  for (; i < entry.token_count; ++i) {
    const PageId page = row.pages[column];
    slots[i] = page == kNullPage ? kNoSlot : (std::int64_t{page.value} * row.page_tokens) + offset;
    if (++offset == row.page_tokens) {
      offset = 0;
      ++column;
    }
  }
}

/// Of a group with an entry for every `entry_tokens` tokens, which the last of them completes.
void write_entry_slots(const PlannerEntry& entry, const SlotRow& row, std::uint32_t entry_tokens, std::int64_t* slots);

/// A sequence's part of a ring, and from which position on it is written.
struct RingRow {
  std::uint32_t slot_entries = 0;
  std::uint32_t sink_tokens = 0;
  std::uint32_t state_slot = 0;
  std::uint32_t write_from = 0;
};
/// ring_entry() of each position. Those that a later one of the step would overwrite have none.
void write_ring_slots(const PlannerEntry& entry, const RingRow& ring, std::int64_t* slots);

}  // namespace quire
