// SPDX-License-Identifier: Apache-2.0
//
// What sequences hold of each group. Full and compressed groups make up the history: they have a page for every page of
// a path, under the same id, and so share one pool. Windows and states are anchored groups. A sequence has a row of
// pages for each window group, in which column i stands for the same tokens as column i of its history row. A state
// lives in the sequence's state slot and leaves snapshots behind. Pages of windows and snapshots hang on pages of the
// history (tiers/anchored_group.h).
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/types.h"
#include "tiers/anchored_group.h"

namespace quire {

/// Bytes of a group's device pages.
struct GroupMemory {
  std::uint32_t group_index = 0;  // in the layout
  std::optional<PoolGeometry> geometry;
  LazyMemory own;
  std::byte* data = nullptr;
};

/// What a sequence has of a window group. Its row has pages in the columns [0, sink pages) and [hole_end, page_count),
/// and null pages between.
struct WindowRow {
  std::uint32_t page_count = 0;
  std::uint32_t hole_end = 0;
  std::uint32_t changed_column = 0;  // plans have not told the device of the columns from this one on
  std::uint32_t valid_from = 0;      // the row's bytes of tokens before this one are not valid
  std::uint32_t written_from = 0;    // nobody wrote rows of tokens before this one: a replay began here
  std::uint32_t received_from = 0;   // while the sequence receives: columns before it get nothing and go; 0: all stay
  bool is_rebuilt = false;           // the group lacks the replayed tokens: the replay writes them
  bool tail_is_pinned = false;       // tail_source is pinned in the tree; false: the sequence owns a share
  PageId tail_source;                // the group's page from which the tail is copied; none: nothing to copy
};

/// What is known of one group's part of a sequence's state slot.
struct GroupState {
  PageId restore_page;                     // the snapshot to fill the slot from, pinned until then; none: initial bytes
  std::uint32_t restore_position = 0;      // the snapshot was taken behind so many tokens
  std::uint64_t restore_step = 0;          // the step that fills the slot; 0: not planned yet
  std::uint32_t valid_from = 0;            // the slot lacks rows for tokens before this one
  bool lacks_first_rows = false;           // the slot lacks the initial rows that stand before token 0
  PageId last_snapshot;                    // with RetentionRule::Last: the last one that the sequence has left, or none
  std::uint32_t last_snapshot_column = 0;  // the column of the history's page that last_snapshot hangs on
};

/// What all sequences have of an anchored group.
struct GroupRows {
  AnchoredGroup* tier = nullptr;
  const CacheGroup* group = nullptr;
  GroupMemory memory;
  std::uint32_t kept_pages = 0;    // device pages that keep() holds
  std::uint32_t hold_pages = 0;    // host pages that hold_on_host() holds or asks for
  std::vector<GroupState> states;  // by sequence; of state groups
  std::vector<WindowRow> slots;    // by sequence; of window groups
  LazyArray<PageId> rows;          // of window groups: a row for each sequence
  std::size_t row_stride = 0;
  std::vector<PageCopy> copies;  // of tails, in the plan that is being made
  LazyArray<TokenMove> moves;    // of committed token trees; Impl::move_indptr counts them, as it does the history's

  [[nodiscard]] bool is_window() const { return tier->is_window; }
  [[nodiscard]] bool has_pages() const { return tier->has_pages; }
  [[nodiscard]] PagePool& pool() const { return tier->pages.device; }
  [[nodiscard]] AnchoredPages& pages() const { return tier->on_device; }
  [[nodiscard]] std::span<PageId> row(std::uint32_t sequence) {
    return {rows.data() + (sequence * row_stride), row_stride};
  }
  [[nodiscard]] std::span<const PageId> row(std::uint32_t sequence) const {
    return {rows.data() + (sequence * row_stride), row_stride};
  }
};

/// What one StepPart takes from one window group.
struct WindowPart {
  std::uint32_t new_pages = 0;
  std::uint32_t first_column = 0;  // the row's page count before the step
  bool copies_tail = false;
  bool adopts_tail = false;
};

/// A snapshot that a step takes.
struct PlannedSnapshot {
  std::uint32_t part = 0;   // index in StepInFlight::parts
  std::uint32_t group = 0;  // index in Impl::groups
  PageId page;
  std::uint32_t position = 0;
};

}  // namespace quire
