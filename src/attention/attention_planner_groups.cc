// SPDX-License-Identifier: Apache-2.0
//
// The parts of AttentionPlanner::build() for groups besides the main one.
#include <algorithm>

#include "attention/append_slots.h"
#include "attention/attention_planner.h"
#include "attention/entry_keys.h"
#include "attention/sends.h"
#include "base/check.h"

namespace quire {
namespace {

/// Visits where an entry's tokens go in a group: all of them in one piece or, of a window, those that are wanted.
template <typename Visitor>
void for_each_target(const PlannerStep& step, const PlannerGroup& group, std::size_t group_index,
                     std::uint32_t window_index, std::size_t entry_index, Visitor&& visit) {
  const PlannerEntry& entry = step.entries[entry_index];
  if (group.kind != PlannerGroup::Kind::Window) {
    visit(SendTarget{.slots = entry.send_slots,
                     .begin = entry.send_begin,
                     .pages = entry.pages,
                     .tokens_per_entry = group.tokens_per_entry});
    return;
  }
  const PlannerEntryGroups& groups = step.entry_groups[entry_index];
  for (const WindowRun& run : groups.send_windows) {
    if (run.group != group_index) continue;
    const SlotRun slots{.first_slot = run.first_slot, .token_count = run.token_count};
    visit(SendTarget{.slots = {&slots, 1}, .begin = run.position, .pages = groups.windows[window_index].pages});
  }
}

}  // namespace

std::size_t AttentionPlanner::write_groups(const PlannerStep& step, const FixedArrays& arrays,
                                           std::span<std::int32_t> page_ids, std::size_t page_count) const {
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    arrays.context_lens[i] = to_index(entry_at(step, i).context_tokens);
  }
  for (std::size_t i = 0; i < group_arrays_.size(); ++i) {
    if (group_arrays_[i].has_slots) write_group_slots(step, arrays, i);
    if (group_arrays_[i].has_level) page_count = write_window_level(step, i, page_ids, page_count);
  }
  return page_count;
}

void AttentionPlanner::write_group_slots(const PlannerStep& step, const FixedArrays& arrays,
                                         std::size_t group_index) const {
  const PlannerGroup& group = config_.groups[group_index];
  const GroupArrays& target = group_arrays_[group_index];
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const std::size_t index = index_at(i);
    const PlannerEntry& entry = step.entries[index];
    const PlannerEntryGroups& groups = groups_of(step, index);
    std::int64_t* const slots = target.append_slots.data() + arrays.query_indptr[i];
    const SlotRow row{.pages = entry.pages, .page_tokens = config_.page_tokens, .write_from = groups.write_from};
    switch (group.kind) {
      case PlannerGroup::Kind::Full:
        write_token_slots(entry, row, slots);
        break;
      case PlannerGroup::Kind::Compressed:
        write_entry_slots(entry, row, group.tokens_per_entry, slots);
        break;
      case PlannerGroup::Kind::Window: {
        const PlannerWindow& window = groups.windows[target.window_index];
        write_token_slots(
            entry, {.pages = window.pages, .page_tokens = config_.page_tokens, .write_from = window.write_from}, slots);
        break;
      }
      case PlannerGroup::Kind::Ring:
        write_ring_slots(entry,
                         {.slot_entries = group.slot_entries,
                          .sink_tokens = group.sink_tokens,
                          .state_slot = state_slot_of(entry, groups),
                          .write_from = groups.ring_write_from},
                         slots);
        break;
      case PlannerGroup::Kind::State:
        break;
    }
  }
  pad_slots(target.append_slots, static_cast<std::size_t>(arrays.query_indptr[step.entries.size()]));
}

std::size_t AttentionPlanner::write_window_level(const PlannerStep& step, std::size_t group_index,
                                                 std::span<std::int32_t> page_ids, std::size_t page_count) const {
  const GroupArrays& arrays = group_arrays_[group_index];
  const LevelArrays& level = arrays.level;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const std::size_t index = index_at(i);
    const PlannerEntry& entry = step.entries[index];
    const PlannerWindow& window = step.entry_groups[index].windows[arrays.window_index];
    const WindowKeys keys = window_keys_of(entry, config_, config_.groups[group_index], window.written_from);
    level.page_indptr[i] = to_index(page_count);
    if (!level.rows.empty()) {
      level.rows[i] = to_index(entry.sequence.index);
      level.first_columns[i] = to_index(keys.page_begin);
    }
    level.last_page_tokens[i] = to_index(entry.context_tokens - ((keys.page_end - 1) * config_.page_tokens));
    level.window_offsets[i] = to_index(keys.window_offset);
    level.sink_tokens[i] = to_index(keys.sink_tokens);
    level.first_keys[i] = to_index(keys.first_key);
    if (!page_ids.empty()) {
      const std::span<const PageId> pages = window.pages;
      std::int32_t* const target = copy_pages(pages.first(keys.sink_pages), &page_ids[page_count]);
      copy_pages(pages.subspan(keys.page_begin, keys.page_end - keys.page_begin), target);
    }
    page_count += keys.page_count();
  }
  level.page_indptr[step.entries.size()] = to_index(page_count);
  level.pad_from(step.entries.size(), level.last_page_tokens.size());
  return page_count;
}

std::size_t AttentionPlanner::write_window_deltas(const PlannerStep& step, std::uint32_t window_index,
                                                  std::span<PageDelta> deltas) const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const PlannerWindow& window = step.entry_groups[i].windows[window_index];
    for (std::size_t column = window.changed_column; column < window.pages.size(); ++column) {
      QUIRE_CHECK(count < deltas.size(), "a plan is larger than its staging buffer");
      deltas[count++] = {.row = to_index(step.entries[i].sequence.index),
                         .column = to_index(column),
                         .page = to_index(window.pages[column].value)};
    }
  }
  return count;
}

void AttentionPlanner::write_window_table(const PlannerStep& step, std::uint32_t window_index, std::uint32_t columns,
                                          std::span<std::int32_t> table) const {
  std::int32_t* target = table.data();
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const std::size_t index = index_at(i);
    const std::uint32_t page_end = ((step.entries[index].context_tokens - 1) / config_.page_tokens) + 1;
    std::int32_t* const end = copy_pages(step.entry_groups[index].windows[window_index].pages.first(page_end), target);
    target += columns;
    std::fill(end, target, to_index(kNullPage.value));
  }
  std::fill(target, table.data() + table.size(), to_index(kNullPage.value));
}

void AttentionPlanner::write_window_tables(const PlannerStep& step, const PlanShape& shape, StagingWriter& staging,
                                           Buffer& buffer) const {
  for (std::size_t i = 0; i < group_arrays_.size(); ++i) {
    if (!group_arrays_[i].has_level) continue;
    GroupPlan& plan = buffer.groups[i];
    plan = {};
    const std::uint32_t window_index = group_arrays_[i].window_index;
    if (config_.page_tables == PageTables::Rows) {
      plan.deltas = staging.take<PageDelta>(write_window_deltas(step, window_index, staging.rest<PageDelta>()));
    } else if (config_.page_tables == PageTables::Block) {
      const auto table = staging.take<std::int32_t>(std::size_t{shape.entries} * shape.columns);
      write_window_table(step, window_index, shape.columns, table);
      plan.block_table = table;
    }
  }
}

void AttentionPlanner::fill_groups(const PlannerStep& step, StagingWriter& staging, Buffer& buffer) const {
  const GroupPlan& main = main_plan(buffer);
  for (std::size_t i = 0; i < config_.groups.size(); ++i) {
    const PlannerGroup& group = config_.groups[i];
    const GroupArrays& arrays = group_arrays_[i];
    GroupPlan& plan = buffer.groups[i];
    switch (group.kind) {
      case PlannerGroup::Kind::Full:
        if (i == main_index_) break;
        plan = main;
        plan.layer_windows = buffer.layer_windows;
        plan.append_slots = i == full_index_ ? arrays.append_slots : buffer.groups[full_index_].append_slots;
        plan.tokens_per_entry = 1;
        break;
      case PlannerGroup::Kind::Compressed:
        if (i == main_index_) break;
        plan = {.append_slots = arrays.append_slots,
                .levels = main.levels,
                .deltas = main.deltas,
                .page_indices = main.page_indices,
                .block_table = main.block_table,
                .copies = main.copies,
                .tokens_per_entry = group.tokens_per_entry};
        break;
      case PlannerGroup::Kind::Window:
        buffer.window_levels[i] = arrays.level.view();
        plan.append_slots = arrays.append_slots;
        plan.levels = {&buffer.window_levels[i], 1};
        plan.page_indices = main.page_indices;  // all groups' lists are in it
        plan.window_tokens = group.window_tokens;
        if (step.windows.empty()) break;
        plan.moves = copy_array(step.windows[arrays.window_index].moves, staging);
        plan.move_indptr = copy_array(step.windows[arrays.window_index].move_indptr, staging);
        plan.copies = copy_array(step.windows[arrays.window_index].copies, staging);
        break;
      case PlannerGroup::Kind::Ring:
        plan = {.append_slots = arrays.append_slots};
        break;
      case PlannerGroup::Kind::State:
        plan = {};
        break;
    }
  }
}

void AttentionPlanner::write_sent_groups(const PlannerStep& step, const FixedArrays& arrays, StagingWriter& staging,
                                         Buffer& buffer) const {
  const std::size_t token_count = arrays.query_positions.size();
  const std::span<const std::int32_t> receivers = main_plan(buffer).receivers;
  for (std::size_t i = 0; i < config_.groups.size(); ++i) {
    const PlannerGroup& group = config_.groups[i];
    const bool is_window = group.kind == PlannerGroup::Kind::Window;
    const bool is_full = group.kind == PlannerGroup::Kind::Full;
    if (i == main_index_ || (!is_window && !is_full && group.kind != PlannerGroup::Kind::Compressed)) continue;
    GroupPlan& plan = buffer.groups[i];
    plan.receivers = receivers;
    if (is_full && i != full_index_) {
      plan.remote_slots = buffer.groups[full_index_].remote_slots;
      plan.sends = buffer.groups[full_index_].sends;
      continue;
    }
    const auto slots = staging.take<std::int64_t>(token_count);
    std::fill(slots.begin(), slots.end(), kNoSlot);
    for (std::size_t place = 0; place < step.entries.size(); ++place) {
      const std::size_t index = index_at(place);
      const PlannerEntry& entry = step.entries[index];
      if (entry.send_slots.empty()) continue;
      const std::span<std::int64_t> of_entry =
          slots.subspan(static_cast<std::size_t>(arrays.query_indptr[place]), entry.token_count);
      for_each_target(step, group, i, group_arrays_[i].window_index, index,
                      [&](const SendTarget& target) { write_remote_slots(entry, target, of_entry); });
      if (group.tokens_per_entry > 1) make_entry_slots(entry, group.tokens_per_entry, of_entry);
    }
    plan.remote_slots = slots;
    plan.sends = write_sends_of(step, group, i, staging);
  }
}

std::span<const SendRun> AttentionPlanner::write_sends_of(const PlannerStep& step, const PlannerGroup& group,
                                                          std::size_t group_index, StagingWriter& staging) const {
  const std::span<SendRun> runs = staging.rest<SendRun>();
  std::size_t count = 0;
  for (std::size_t place = 0; place < step.entries.size(); ++place) {
    const std::size_t index = index_at(place);
    const PlannerEntry& entry = step.entries[index];
    if (entry.send_slots.empty()) continue;
    for_each_target(step, group, group_index, group_arrays_[group_index].window_index, index,
                    [&](const SendTarget& target) {
                      count += write_sends(entry, target, config_.page_tokens, runs.subspan(count));
                    });
  }
  return staging.take<SendRun>(count);
}

}  // namespace quire
