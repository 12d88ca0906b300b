// SPDX-License-Identifier: Apache-2.0
#include "attention/plan_arrays.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "attention/attention_planner.h"
#include "base/checked.h"

namespace quire {
namespace {

/// Sixteen at a time: one element after the other takes longer than all else that a shared level costs.
template <typename T>
void fill_from(std::span<T> array, std::size_t begin, T value) {
  if (begin >= array.size()) return;
  std::array<T, 16> piece;
  piece.fill(value);
  T* target = array.data() + begin;
  T* const end = array.data() + array.size();
  for (; end - target >= static_cast<std::ptrdiff_t>(piece.size()); target += piece.size()) {
    std::memcpy(target, piece.data(), sizeof(piece));
  }
  std::fill(target, end, value);
}

/// Offsets of `count` things; what follows has none.
void pad_offsets(std::span<std::int32_t> indptr, std::size_t count) {
  fill_from(indptr, count + 1, indptr[count]);
}

/// Adds up arrays; nothing once the sum does not fit.
class ByteSum {
 public:
  void add(std::optional<std::uint64_t> count, std::uint64_t element_bytes) {
    const std::optional<std::uint64_t> bytes = count ? checked_multiply(*count, element_bytes) : std::nullopt;
    const std::optional<std::uint64_t> aligned =
        bytes ? checked_add(*bytes, StagingWriter::kAlignBytes - 1) : std::nullopt;
    sum_ = sum_ && aligned ? checked_add(*sum_, *aligned) : std::nullopt;
  }
  [[nodiscard]] std::optional<std::uint64_t> sum() const { return sum_; }

 private:
  std::optional<std::uint64_t> sum_ = 0;
};

}  // namespace

void LevelArrays::pad_from(std::size_t slice_count, std::size_t padded_from) const {
  pad_offsets(query_indptr, slice_count);
  pad_offsets(page_indptr, slice_count);
  const auto fill = [&](std::span<std::int32_t> array, std::int32_t value) {
    fill_from(array.first(std::min(padded_from, array.size())), slice_count, value);
  };
  fill(rows, -1);
  fill(first_columns, 0);
  fill(last_page_tokens, 0);
  fill(window_offsets, 0);
  fill(sink_tokens, 0);
  fill(first_keys, 0);
}

void LevelArrays::place_slices(std::size_t slice_count, std::size_t row_slice_count, StagingWriter& staging) {
  page_indptr = staging.take<std::int32_t>(slice_count + 1);
  rows = staging.take<std::int32_t>(row_slice_count);
  first_columns = staging.take<std::int32_t>(row_slice_count);
  last_page_tokens = staging.take<std::int32_t>(slice_count);
  window_offsets = staging.take<std::int32_t>(slice_count);
  sink_tokens = staging.take<std::int32_t>(slice_count);
  first_keys = staging.take<std::int32_t>(slice_count);
}

CascadeLevel LevelArrays::view() const {
  return {
      .query_indptr = query_indptr,
      .page_indptr = page_indptr,
      .rows = rows,
      .first_columns = first_columns,
      .last_page_tokens = last_page_tokens,
      .window_offsets = window_offsets,
      .sink_tokens = sink_tokens,
      .first_keys = first_keys,
  };
}

void LayerWindowArrays::pad_from(std::size_t entry_count) const {
  pad_offsets(page_indptr, entry_count);
  fill_from(rows, entry_count, -1);
  fill_from(first_columns, entry_count, 0);
  fill_from(first_keys, entry_count, 0);
  fill_from(key_offsets, entry_count, 0);
}

LayerWindowPlan LayerWindowArrays::view(std::uint32_t window_tokens) const {
  return {
      .window_tokens = window_tokens,
      .page_indptr = page_indptr,
      .rows = rows,
      .first_columns = first_columns,
      .first_keys = first_keys,
      .key_offsets = key_offsets,
  };
}

FixedArrays FixedArrays::place(const PlanShape& shape, PageTables page_tables, const ArraySets& sets,
                               StagingWriter& staging) {
  const std::size_t entries = shape.entries;
  const std::size_t row_slices = page_tables == PageTables::Rows ? entries : 0;
  FixedArrays arrays;
  arrays.query_positions = staging.take<std::int32_t>(shape.tokens);
  arrays.query_indptr = staging.take<std::int32_t>(entries + 1);
  arrays.seq_lens = staging.take<std::int32_t>(entries);
  arrays.stored_lens = staging.take<std::int32_t>(entries);
  arrays.visible_tokens = staging.take<std::int32_t>(entries);
  arrays.context_lens = staging.take<std::int32_t>(sets.has_context ? entries : 0);
  arrays.state_slots = staging.take<std::int32_t>(entries);
  arrays.tree_indptr = staging.take<std::int32_t>(entries + 1);
  arrays.append_slots = staging.take<std::int64_t>(sets.has_main ? shape.tokens : 0);
  arrays.levels = sets.levels;
  arrays.layer_windows = sets.layer_windows;
  for (LevelArrays& level : sets.levels) {
    // The last level's slices are the entries.
    const bool is_own = &level == &sets.levels.back();
    level.query_indptr = is_own ? arrays.query_indptr : staging.take<std::int32_t>(entries + 1);
    level.place_slices(entries, row_slices, staging);
  }
  for (LayerWindowArrays& window : sets.layer_windows) {
    window.page_indptr = staging.take<std::int32_t>(entries + 1);
    window.rows = staging.take<std::int32_t>(row_slices);
    window.first_columns = staging.take<std::int32_t>(row_slices);
    window.first_keys = staging.take<std::int32_t>(entries);
    window.key_offsets = staging.take<std::int32_t>(entries);
  }
  for (GroupArrays& group : sets.groups) {
    if (group.has_slots) group.append_slots = staging.take<std::int64_t>(shape.tokens);
    if (!group.has_level) continue;
    group.level.query_indptr = arrays.query_indptr;
    group.level.place_slices(entries, row_slices, staging);
  }
  return arrays;
}

void FixedArrays::pad_from(std::size_t entry_count, std::size_t token_count) const {
  fill_from(query_positions, token_count, 0);
  pad_offsets(query_indptr, entry_count);
  fill_from(seq_lens, entry_count, 0);
  fill_from(stored_lens, entry_count, 0);
  fill_from(visible_tokens, entry_count, 0);
  fill_from(context_lens, entry_count, 0);
  fill_from(state_slots, entry_count, -1);
  pad_offsets(tree_indptr, entry_count);
  fill_from(append_slots, token_count, kNoSlot);
}

void pad_slots(std::span<std::int64_t> slots, std::size_t token_count) {
  fill_from(slots, token_count, kNoSlot);
}

std::optional<std::uint64_t> staging_bytes_max(const AttentionPlannerConfig& config) {
  const std::uint64_t entries = config.sequence_count_max;
  const std::uint64_t tokens = config.step_tokens_max;
  const std::optional<std::uint64_t> pages = checked_multiply(entries, config.row_pages);
  const std::optional<std::uint64_t> tree_tokens = checked_multiply(entries, config.tree_tokens_max);
  const std::optional<std::uint64_t> stored_tokens = pages ? checked_multiply(*pages, config.page_tokens) : pages;

  std::uint64_t window_count = 0;
  std::uint64_t state_group_count = 0;
  for (const PlannerGroup& group : config.groups) {
    window_count += group.kind == PlannerGroup::Kind::Window ? 1 : 0;
    state_group_count += group.kind == PlannerGroup::Kind::Ring || group.kind == PlannerGroup::Kind::State ? 1 : 0;
  }
  // Window groups have tables, copies and moves like the main one, and none of layer_windows.
  const auto in_all_tables = [&](std::optional<std::uint64_t> count) {
    return count ? checked_multiply(*count, window_count + 1) : count;
  };

  ByteSum bytes;
  bytes.add(tokens, sizeof(std::int32_t));  // query_positions
  bytes.add(tokens, sizeof(std::int64_t));  // append_slots
  // Arrays with one element per entry, aligned each: at most an offset and the alignment more.
  const std::uint64_t array_bytes_max = ((entries + 1) * sizeof(std::int32_t)) + StagingWriter::kAlignBytes;
  bytes.add(7, array_bytes_max);
  bytes.add(checked_multiply(config.cascade_levels_max, 8), array_bytes_max);
  bytes.add(checked_multiply(config.layer_windows.size(), 5), array_bytes_max);
  bytes.add(checked_multiply(window_count, 7), array_bytes_max);
  if (config.page_tables == PageTables::Rows) {
    bytes.add(in_all_tables(pages), sizeof(PageDelta));
  } else {
    bytes.add(pages ? checked_multiply(*pages, config.layer_windows.size() + window_count + 1) : pages,
              sizeof(std::int32_t));
  }
  bytes.add(tree_tokens ? checked_add(*tree_tokens, tokens) : std::nullopt, sizeof(TreeNode));
  bytes.add(in_all_tables(tree_tokens), sizeof(TokenMove));
  bytes.add(in_all_tables(entries + 1), sizeof(std::int32_t));  // move_indptr
  bytes.add(in_all_tables(pages), sizeof(PageCopy));
  bytes.add(tokens, sizeof(std::int64_t));    // remote_slots
  bytes.add(tokens, sizeof(std::int32_t));    // receivers
  bytes.add(stored_tokens, sizeof(SendRun));  // a receiver may put every token somewhere else
  // What each group adds, with the alignment of the arrays that it has once.
  for (std::size_t i = 0; i < config.groups.size(); ++i) {
    bytes.add(tokens, sizeof(std::int64_t));  // append_slots
    bytes.add(8, StagingWriter::kAlignBytes);
    if (config.groups.size() == 1) continue;
    bytes.add(tokens, sizeof(std::int64_t));    // remote_slots
    bytes.add(stored_tokens, sizeof(SendRun));  // sends
  }
  const std::optional<std::uint64_t> state_copies = checked_multiply(state_group_count * kStateCopiesMax, entries);
  bytes.add(state_copies, sizeof(StateCopy));  // state_copies
  bytes.add(state_copies, sizeof(StateCopy));  // state_saves
  bytes.add(state_group_count > 0 ? entries : 0, sizeof(StateSend));
  return bytes.sum();
}

}  // namespace quire
