// SPDX-License-Identifier: Apache-2.0
//
// The parts of AttentionPlanner::build(): what is written into the arrays.
#include <algorithm>

#include "attention/append_slots.h"
#include "attention/attention_planner.h"
#include "attention/entry_keys.h"
#include "attention/sends.h"
#include "attention/token_tree.h"
#include "base/check.h"

namespace quire {
namespace {

/// The pages that an entry lists.
std::int32_t* copy_listed_pages(const PlannerEntry& entry, const EntryKeys& keys, std::int32_t* target) {
  target = copy_pages(entry.pages.first(keys.sink_pages), target);
  return copy_pages(entry.pages.subspan(keys.page_begin, keys.page_end - keys.page_begin), target);
}

/// Positions of queries that follow each other; kernels with a window rotate by places in it.
void write_positions(const PlannerEntry& entry, std::int32_t* positions) {
  const std::uint32_t last = entry.window_tokens > 0 ? entry.window_tokens - 1 : UINT32_MAX;
  for (std::uint32_t i = 0; i < entry.token_count; ++i) positions[i] = to_index(std::min(entry.position + i, last));
}

}  // namespace

std::size_t AttentionPlanner::index_at(std::size_t place) const {
  return config_.cascade_levels_max == 1 ? place : cascade_.order()[place];
}

void AttentionPlanner::write_shared_levels(const PlannerStep& step, const FixedArrays& arrays,
                                           std::span<std::int32_t> page_ids) const {
  std::uint32_t page_count = 0;
  for (std::size_t level_index = 0; level_index + 1 < arrays.levels.size(); ++level_index) {
    const LevelArrays& level = arrays.levels[level_index];
    const std::span<const CascadeSlice> slices = cascade_.slices(static_cast<std::uint32_t>(level_index));
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const CascadeSlice& slice = slices[i];
      const PlannerEntry& entry = entry_at(step, slice.entry_begin);
      level.page_indptr[i] = to_index(page_count);
      if (!level.rows.empty()) {
        level.rows[i] = slice.is_empty() ? -1 : to_index(entry.sequence.index);
        level.first_columns[i] = to_index(slice.page_begin);
      }
      level.last_page_tokens[i] = slice.is_empty() ? 0 : to_index(config_.page_tokens);
      level.window_offsets[i] = 0;
      level.sink_tokens[i] = 0;
      level.first_keys[i] = to_index(std::uint64_t{slice.page_begin} * config_.page_tokens);
      const std::uint32_t slice_pages = slice.page_end - slice.page_begin;
      if (!page_ids.empty()) copy_pages(entry.pages.subspan(slice.page_begin, slice_pages), &page_ids[page_count]);
      page_count += slice_pages;
    }
    level.page_indptr[slices.size()] = to_index(page_count);
  }
  arrays.levels.back().page_indptr[0] = to_index(page_count);
}

// Which queries the shared slices serve, once the entries have theirs.
void AttentionPlanner::write_shared_queries(const PlannerStep& step, const FixedArrays& arrays, const PlanShape& shape,
                                            Buffer& buffer) const {
  // Plans of the same shape lie in the same places of the buffer.
  const bool is_padded = buffer.shape == shape;
  buffer.shape = shape;
  for (std::size_t level_index = 0; level_index + 1 < arrays.levels.size(); ++level_index) {
    const LevelArrays& level = arrays.levels[level_index];
    const std::span<const CascadeSlice> slices = cascade_.slices(static_cast<std::uint32_t>(level_index));
    for (std::size_t i = 0; i < slices.size(); ++i) {
      level.query_indptr[i] = arrays.query_indptr[slices[i].entry_begin];
    }
    level.query_indptr[slices.size()] = arrays.query_indptr[step.entries.size()];
    level.pad_from(slices.size(), is_padded ? buffer.slice_counts[level_index] : shape.entries);
    buffer.slice_counts[level_index] = static_cast<std::uint32_t>(slices.size());
  }
}

void AttentionPlanner::write_entries(const PlannerStep& step, const FixedArrays& arrays,
                                     std::span<std::int32_t> page_ids, Buffer& buffer) const {
  const bool is_plain = has_main() && main_entry_tokens_ == 1 && step.entry_groups.empty();
  if (is_plain) {
    write_entries_of<false>(step, arrays, page_ids, buffer);
  } else {
    write_entries_of<true>(step, arrays, page_ids, buffer);
  }
}

// Everything of an entry at once: a large batch does not fit in the first cache. What only layouts of several groups
// have is asked for before the loop: in it, it would cost the others a tenth of a plan.
template <bool kHasGroups>
void AttentionPlanner::write_entries_of(const PlannerStep& step, const FixedArrays& arrays,
                                        std::span<std::int32_t> page_ids, Buffer& buffer) const {
  const LevelArrays& level = arrays.levels.back();
  const bool is_sharing = config_.cascade_levels_max > 1;
  auto page_count = static_cast<std::uint32_t>(level.page_indptr[0]);
  std::uint32_t query = 0;
  std::uint32_t tree_tokens = 0;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const std::uint32_t index = is_sharing ? cascade_.order()[i] : static_cast<std::uint32_t>(i);
    const PlannerEntry& entry = step.entries[index];
    arrays.query_indptr[i] = to_index(query);
    arrays.visible_tokens[i] = to_index(entry.window_tokens);
    std::uint32_t state_slot = entry.sequence.index;
    std::uint32_t checkpoint = 0;
    std::uint32_t slot_count = entry.token_count;
    SlotRow row{.pages = entry.pages, .page_tokens = config_.page_tokens};
    if constexpr (kHasGroups) {
      const PlannerEntryGroups& groups = groups_of(step, index);
      state_slot = state_slot_of(entry, groups);
      checkpoint = groups.checkpoint;
      row.write_from = groups.write_from;
      if (!has_main()) slot_count = 0;
    }
    arrays.state_slots[i] = to_index(state_slot);
    write_positions(entry, &arrays.query_positions[query]);
    if (!kHasGroups || (has_main() && main_entry_tokens_ == 1)) {
      write_token_slots(entry, row, &arrays.append_slots[query]);
    } else if (has_main()) {
      write_entry_slots(entry, row, main_entry_tokens_, &arrays.append_slots[query]);
    }

    const EntryKeys keys = keys_of(entry, config_, is_sharing ? cascade_.shared_pages(index) : 0);
    arrays.seq_lens[i] = to_index(keys.seq_len);
    arrays.stored_lens[i] = to_index(keys.stored_len);
    arrays.tree_indptr[i] = to_index(tree_tokens);
    level.page_indptr[i] = to_index(page_count);
    if (!level.rows.empty()) {
      level.rows[i] = to_index(entry.sequence.index);
      level.first_columns[i] = to_index(keys.page_begin);
    }
    const std::uint32_t last_page_tokens = entry.context_tokens - ((keys.page_end - 1) * config_.page_tokens);
    level.last_page_tokens[i] = to_index(last_page_tokens);
    level.window_offsets[i] = to_index(keys.window_offset);
    level.sink_tokens[i] = to_index(entry.sink_tokens);
    // Of an entry with a window all pages are its own, so its keys begin with the first.
    level.first_keys[i] = entry.window_tokens > 0 ? 0 : to_index(std::uint64_t{keys.page_begin} * config_.page_tokens);
    if (!page_ids.empty()) copy_listed_pages(entry, keys, &page_ids[page_count]);

    buffer.entries[i] = {
        .sequence = entry.sequence,
        .entry_index = entry.entry_index,
        .position = entry.position,
        .token_count = entry.token_count,
        .draft_count = entry.draft_count,
        .context_tokens = entry.context_tokens,
        .last_page_tokens = last_page_tokens,
        .state_slot = state_slot,
        .checkpoint = checkpoint,
        .tokens = entry.tokens,
        .pages = entry.pages,
        .append_slots = {arrays.append_slots.data() + query, slot_count},
    };
    query += entry.token_count;
    tree_tokens += keys.tree_tokens;
    page_count += keys.page_count();
  }
  arrays.query_indptr[step.entries.size()] = to_index(query);
  arrays.tree_indptr[step.entries.size()] = to_index(tree_tokens);
  level.page_indptr[step.entries.size()] = to_index(page_count);
  level.pad_from(step.entries.size(), level.last_page_tokens.size());
}

void AttentionPlanner::write_layer_windows(const PlannerStep& step, const FixedArrays& arrays,
                                           std::span<std::int32_t> page_ids) const {
  const std::size_t entry_count = step.entries.size();
  auto page_count = static_cast<std::uint32_t>(arrays.levels.back().page_indptr[entry_count]);
  for (std::size_t window_index = 0; window_index < arrays.layer_windows.size(); ++window_index) {
    const LayerWindowArrays& window = arrays.layer_windows[window_index];
    for (std::size_t i = 0; i < entry_count; ++i) {
      const PlannerEntry& entry = entry_at(step, i);
      const TrimmedKeys trimmed = trimmed_keys_of(entry, config_, config_.layer_windows[window_index]);
      window.page_indptr[i] = to_index(page_count);
      if (!window.rows.empty()) {
        window.rows[i] = to_index(entry.sequence.index);
        window.first_columns[i] = to_index(trimmed.keys.page_begin);
      }
      window.first_keys[i] = to_index(trimmed.first_key);
      window.key_offsets[i] = to_index(trimmed.key_offset);
      if (!page_ids.empty()) copy_listed_pages(entry, trimmed.keys, &page_ids[page_count]);
      page_count += trimmed.keys.page_count();
    }
    window.page_indptr[entry_count] = to_index(page_count);
    window.pad_from(entry_count);
  }
}

std::size_t AttentionPlanner::write_deltas(const PlannerStep& step, std::span<PageDelta> deltas) const {
  std::size_t count = 0;
  for (const PlannerEntry& entry : step.entries) {
    if (entry.changed_column >= entry.pages.size()) continue;
    QUIRE_CHECK(entry.pages.size() - entry.changed_column <= deltas.size() - count,
                "a plan is larger than its staging buffer");
    for (std::size_t column = entry.changed_column; column < entry.pages.size(); ++column) {
      deltas[count++] = {.row = to_index(entry.sequence.index),
                         .column = to_index(column),
                         .page = to_index(entry.pages[column].value)};
    }
  }
  return count;
}

void AttentionPlanner::write_block_table(const PlannerStep& step, std::uint32_t columns,
                                         std::span<std::int32_t> table) const {
  std::int32_t* target = table.data();
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const PlannerEntry& entry = entry_at(step, i);
    const EntryKeys keys = keys_of(entry, config_, 0);
    std::int32_t* const end = copy_listed_pages(entry, keys, target);
    target += columns;
    std::fill(end, target, to_index(kNullPage.value));
  }
  std::fill(target, table.data() + table.size(), to_index(kNullPage.value));
}

/// Tree tokens stand at their depths, not one behind the other: their queries' positions are corrected here.
std::span<const TreeNode> AttentionPlanner::write_trees(const PlannerStep& step, const FixedArrays& arrays,
                                                        StagingWriter& staging) const {
  const auto nodes = staging.take<TreeNode>(static_cast<std::size_t>(arrays.tree_indptr[step.entries.size()]));
  if (nodes.empty()) return nodes;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const PlannerEntry& entry = entry_at(step, i);
    const std::uint32_t tree_tokens = tree_tokens_of(entry);
    if (tree_tokens == 0) continue;
    const std::span<TreeNode> region = nodes.subspan(static_cast<std::size_t>(arrays.tree_indptr[i]), tree_tokens);
    lay_out_token_tree(entry.tree_parents, region);
    const std::span<const TreeNode> queries = region.last(entry.token_count);
    const std::uint32_t first = entry.context_tokens - tree_tokens;
    const std::uint32_t last = entry.window_tokens > 0 ? entry.window_tokens - 1 : UINT32_MAX;
    for (std::size_t j = 0; j < queries.size(); ++j) {
      arrays.query_positions[static_cast<std::size_t>(arrays.query_indptr[i]) + j] =
          to_index(std::min(first + static_cast<std::uint32_t>(queries[j].depth), last));
    }
  }
  return nodes;
}

// The slots of tokens also say whose a token is, so the main group's are written where there is none, too.
void AttentionPlanner::write_sent_tokens(const PlannerStep& step, const FixedArrays& arrays, StagingWriter& staging,
                                         GroupPlan& group) const {
  const std::size_t token_count = arrays.query_positions.size();
  const auto slots = staging.take<std::int64_t>(token_count);
  const auto receivers = staging.take<std::int32_t>(token_count);
  std::fill(slots.begin(), slots.end(), kNoSlot);
  std::fill(receivers.begin(), receivers.end(), -1);
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const PlannerEntry& entry = entry_at(step, i);
    if (entry.send_slots.empty()) continue;
    const auto query = static_cast<std::size_t>(arrays.query_indptr[i]);
    const std::span<std::int64_t> of_entry = slots.subspan(query, entry.token_count);
    write_remote_slots(entry, {.slots = entry.send_slots, .begin = entry.send_begin}, of_entry);
    for (std::size_t j = query; j < query + entry.token_count; ++j) {
      if (slots[j] != kNoSlot) receivers[j] = entry.receiver;
    }
    if (main_entry_tokens_ > 1) make_entry_slots(entry, main_entry_tokens_, of_entry);
  }
  group.remote_slots = slots;
  group.receivers = receivers;
  if (has_main()) group.sends = write_sends_of(step, config_.groups[main_index_], main_index_, staging);
}

}  // namespace quire
