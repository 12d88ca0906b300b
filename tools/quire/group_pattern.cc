// SPDX-License-Identifier: Apache-2.0
#include "group_pattern.h"

#include <algorithm>

namespace quire {

bool keeps_everything(const CacheGroup& group) {
  return group.kind == GroupKind::Full || group.kind == GroupKind::Compressed;
}

namespace {

// Entries of a slot stand by position; else it is a state, in versions.
bool has_rows(const CacheGroup& group) {
  return group.kind == GroupKind::Window || (group.slot_entries > 1 && group.slot_history == 0);
}

// The entries of a state differ from each other.
std::uint64_t history_of_state(std::span<const std::uint64_t> histories, std::uint32_t token_count,
                               std::uint32_t entry) {
  return PagePattern::next(histories[token_count - 1], static_cast<TokenId>(entry));
}

std::uint32_t first_entry_of_version(const CacheGroup& group, std::uint32_t token_count) {
  return token_count % (group.slot_history + 1) * group.slot_entries;
}

}  // namespace

GroupPattern::GroupPattern(const Cache& cache) : page_tokens_(cache.config().page.page_tokens) {
  const std::span<const CacheGroup> groups = cache.config().layout.groups();
  const StateSlots& slots = cache.state_slots();
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    const CacheGroup& group = groups[i];
    if (has_slot(group)) {
      const auto part = std::ranges::find(slots.parts(), i, &StatePart::group_index);
      groups_.push_back(
          {.index = i,
           .group = group,
           .page_entries = group.slot_entries,
           .pattern = PagePattern(part->geometry, slots.slot_bytes(), cache.state_memory() + part->offset)});
    } else {
      const PoolGeometry& pool = cache.geometry(i);
      groups_.push_back({.index = i,
                         .group = group,
                         .page_entries = pool.page().entry_count(),
                         .pattern = PagePattern(pool, cache.device_memory(i))});
    }
  }
}

void GroupPattern::write(const PatternEntry& entry) {
  const AttentionPlanEntry& planned = entry.plan->entries[entry.index];
  const auto first_query = static_cast<std::size_t>(entry.plan->query_indptr[entry.index]);
  for (Group& group : groups_) {
    if (group.group.kind == GroupKind::Snapshot) {
      write_state(group, entry);
      continue;
    }
    const std::span<const std::int64_t> slots =
        entry.plan->groups[group.index].append_slots.subspan(first_query, planned.token_count);
    for (std::uint32_t i = 0; i < planned.token_count; ++i) {
      if (slots[i] == kNoSlot) continue;
      const auto slot = static_cast<std::uint64_t>(slots[i]);
      group.pattern.write({PageId{static_cast<std::uint32_t>(slot / group.page_entries)},
                           static_cast<std::uint32_t>(slot % group.page_entries)},
                          entry.histories[planned.position + i]);
    }
  }
}

void GroupPattern::write_state(Group& group, const PatternEntry& entry) {
  const AttentionPlanEntry& planned = entry.plan->entries[entry.index];
  const PageId slot{planned.state_slot};
  const std::uint32_t end = planned.position + planned.token_count;
  const std::uint32_t room = has_rows(group.group) ? group.group.slot_entries : group.group.slot_history + 1;
  for (std::uint32_t position = end - std::min(room, planned.token_count); position < end; ++position) {
    if (has_rows(group.group)) {
      group.pattern.write({slot, ring_entry(group.group, position)}, entry.histories[position]);
      continue;
    }
    const std::uint32_t first = first_entry_of_version(group.group, position + 1);
    for (std::uint32_t i = 0; i < group.group.slot_entries; ++i) {
      group.pattern.write({slot, first + i}, history_of_state(entry.histories, position + 1, i));
    }
  }
}

std::vector<GroupPattern::Place> GroupPattern::places_to_read(const Group& group, const PatternEntry& entry,
                                                              std::uint32_t found_tokens) const {
  const AttentionPlanEntry& planned = entry.plan->entries[entry.index];
  const CacheGroup& kept = group.group;
  std::vector<Place> places;
  if (keeps_everything(kept)) {
    for (std::uint32_t i = 0; i < found_tokens / kept.tokens_per_entry; ++i) {
      const std::uint32_t last = ((i + 1) * kept.tokens_per_entry) - 1;
      places.push_back({{planned.pages[last / page_tokens_], i % group.page_entries}, entry.histories[last], last});
    }
    return places;
  }
  const std::uint32_t start = planned.position;
  const PageId slot{planned.state_slot};
  if (kept.kind == GroupKind::Snapshot && !has_rows(kept)) {
    for (std::uint32_t i = 0; start > 0 && i < kept.slot_entries; ++i) {
      places.push_back(
          {{slot, first_entry_of_version(kept, start) + i}, history_of_state(entry.histories, start, i), start - 1});
    }
    return places;
  }
  const std::uint32_t seen =
      kept.kind == GroupKind::Window ? kept.window_tokens - 1 : kept.snapshot_entries + (start % kept.boundary_tokens);
  const std::uint32_t first = start - std::min(start, seen);
  const GroupPlan& plan = entry.plan->groups[group.index];
  for (std::uint32_t position = 0; position < found_tokens; ++position) {
    if (position < first && position >= kept.sink_tokens) {
      position = first - 1;
      continue;
    }
    if (has_slot(kept)) {
      if (position < start) places.push_back({{slot, ring_entry(kept, position)}, entry.histories[position], position});
      continue;
    }
    const std::size_t column = (entry.index * entry.plan->shape.columns) + (position / page_tokens_);
    places.push_back({{PageId{static_cast<std::uint32_t>(plan.block_table[column])}, position % page_tokens_},
                      entry.histories[position],
                      position});
  }
  return places;
}

std::optional<WrongByte> GroupPattern::first_wrong_byte(const PatternEntry& entry, std::uint32_t found_tokens) {
  for (const Group& group : groups_) {
    const std::vector<Place> places = places_to_read(group, entry, found_tokens);
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!group.pattern.first_wrong_byte(places[i].at, places[i].history)) {
        verified_bytes_ += group.pattern.token_bytes();
        continue;
      }
      // The first of the page: its rows lie by layer, so another token's may come before.
      std::optional<std::uint64_t> first;
      for (std::size_t j = i; j < places.size() && places[j].at.page == places[i].at.page; ++j) {
        const auto wrong = group.pattern.first_wrong_byte(places[j].at, places[j].history);
        if (wrong && (!first || *wrong < *first)) first = wrong;
      }
      return WrongByte{.group_index = group.index,
                       .is_slot = has_slot(group.group),
                       .page = places[i].at.page.value,
                       .offset = *first,
                       .position = places[i].position};
    }
  }
  return std::nullopt;
}

std::byte& GroupPattern::byte_of(const PatternEntry& entry, std::uint32_t position) {
  Group& group = *std::ranges::find_if(groups_, [](const Group& each) { return keeps_everything(each.group); });
  const AttentionPlanEntry& planned = entry.plan->entries[entry.index];
  const std::uint32_t place = position / group.group.tokens_per_entry % group.page_entries;
  return group.pattern.byte_of({planned.pages[position / page_tokens_], place});
}

}  // namespace quire
