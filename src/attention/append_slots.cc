// SPDX-License-Identifier: Apache-2.0
#include "attention/append_slots.h"

#include <algorithm>

namespace quire {

void write_entry_slots(const PlannerEntry& entry, const SlotRow& row, std::uint32_t entry_tokens, std::int64_t* slots) {
  std::fill_n(slots, entry.token_count, kNoSlot);
  const std::uint32_t page_entries = row.page_tokens / entry_tokens;
  const std::uint32_t first = entry.position + skipped_queries(entry, row.write_from);
  // Of the entries with tokens at or behind the first one, number `index` is complete behind token `last`.
  std::uint64_t index = first / entry_tokens;
  std::uint64_t last = ((index + 1) * entry_tokens) - 1;
  for (; last < entry.context_tokens; ++index, last += entry_tokens) {
    const PageId page = row.pages[last / row.page_tokens];
    if (page == kNullPage) continue;
    slots[last - entry.position] =
        (std::int64_t{page.value} * page_entries) + static_cast<std::int64_t>(index % page_entries);
  }
}

void write_ring_slots(const PlannerEntry& entry, const RingRow& ring, std::int64_t* slots) {
  std::fill_n(slots, entry.token_count, kNoSlot);
  const std::uint32_t sink = ring.sink_tokens;
  const std::uint32_t room = ring.slot_entries - sink;
  const std::int64_t base = std::int64_t{ring.state_slot} * ring.slot_entries;
  std::uint32_t position = entry.position + skipped_queries(entry, ring.write_from);
  for (; position < std::min(sink, entry.context_tokens); ++position) {
    slots[position - entry.position] = base + position;
  }
  if (entry.context_tokens > room) position = std::max(position, entry.context_tokens - room);
  if (position >= entry.context_tokens) return;
  std::uint32_t offset = (position - sink) % room;
  for (; position < entry.context_tokens; ++position) {
    slots[position - entry.position] = base + sink + offset;
    if (++offset == room) offset = 0;
  }
}

}  // namespace quire
