// SPDX-License-Identifier: Apache-2.0
//
// The arrays of a plan whose lengths its shape fixes, to be written: they come first in the staging buffer, so their
// offsets depend on the shape alone, and so does the offset of the array behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "attention/staging_writer.h"
#include "quire/plan.h"
#include "quire/types.h"

namespace quire {

struct AttentionPlannerConfig;

[[nodiscard]] inline std::int32_t to_index(std::uint64_t value) {
  return static_cast<std::int32_t>(value);
}

/// Page ids are written as they are. Where the next ones go.
static_assert(sizeof(PageId) == sizeof(std::int32_t));
inline std::int32_t* copy_pages(std::span<const PageId> pages, std::int32_t* target) {
  if (!pages.empty()) std::memcpy(target, pages.data(), pages.size_bytes());
  return target + pages.size();
}

/// CascadeLevel, to be written.
struct LevelArrays {
  std::span<std::int32_t> query_indptr;
  std::span<std::int32_t> page_indptr;
  std::span<std::int32_t> rows;           // empty unless page tables are Rows
  std::span<std::int32_t> first_columns;  // likewise
  std::span<std::int32_t> last_page_tokens;
  std::span<std::int32_t> window_offsets;
  std::span<std::int32_t> sink_tokens;
  std::span<std::int32_t> first_keys;

  /// Takes all arrays but query_indptr.
  void place_slices(std::size_t slice_count, std::size_t row_slice_count, StagingWriter& staging);
  /// The level has slices up to `slice_count`; the rest is padding. From `padded_from` on, an earlier plan of the same
  /// shape has left in place what is the same in every plan.
  void pad_from(std::size_t slice_count, std::size_t padded_from) const;
  [[nodiscard]] CascadeLevel view() const;
};

/// LayerWindowPlan, to be written.
struct LayerWindowArrays {
  std::span<std::int32_t> page_indptr;
  std::span<std::int32_t> rows;           // empty unless page tables are Rows
  std::span<std::int32_t> first_columns;  // likewise
  std::span<std::int32_t> first_keys;
  std::span<std::int32_t> key_offsets;

  void pad_from(std::size_t entry_count) const;
  [[nodiscard]] LayerWindowPlan view(std::uint32_t window_tokens) const;
};

/// What a group has of its own, besides what it may have in common with the main one.
struct GroupArrays {
  bool has_slots = false;
  bool has_level = false;          // its query_indptr is the plan's
  std::uint32_t window_index = 0;  // of a window group: its number among those
  std::span<std::int64_t> append_slots;
  LevelArrays level;
};

/// As many as there are of each: the arrays of a plan that come in sets.
struct ArraySets {
  std::span<LevelArrays> levels;
  std::span<LayerWindowArrays> layer_windows;
  std::span<GroupArrays> groups;
  bool has_main = true;      // else append_slots are nobody's
  bool has_context = false;  // context_lens
};

struct FixedArrays {
  std::span<std::int32_t> query_positions;  // first of all: at offset 0
  std::span<std::int32_t> query_indptr;
  std::span<std::int32_t> seq_lens;
  std::span<std::int32_t> stored_lens;
  std::span<std::int32_t> visible_tokens;
  std::span<std::int32_t> context_lens;
  std::span<std::int32_t> state_slots;
  std::span<std::int32_t> tree_indptr;
  std::span<std::int64_t> append_slots;
  std::span<LevelArrays> levels;
  std::span<LayerWindowArrays> layer_windows;

  /// Takes the arrays of a plan of this shape, those of `sets` among them.
  [[nodiscard]] static FixedArrays place(const PlanShape& shape, PageTables page_tables, const ArraySets& sets,
                                         StagingWriter& staging);
  /// The offsets that end where all listed pages end.
  [[nodiscard]] std::span<const std::int32_t> last_page_indptr() const {
    return layer_windows.empty() ? levels.back().page_indptr : layer_windows.back().page_indptr;
  }
  /// The plan has so many entries and tokens; the rest is padding. Levels, windows and groups are padded on their own.
  void pad_from(std::size_t entry_count, std::size_t token_count) const;
};

/// Writes kNoSlot from `token_count` on.
void pad_slots(std::span<std::int64_t> slots, std::size_t token_count);

/// Bytes of the largest plan there can be, or nothing if they do not fit in 64 bits.
[[nodiscard]] std::optional<std::uint64_t> staging_bytes_max(const AttentionPlannerConfig& config);

}  // namespace quire
