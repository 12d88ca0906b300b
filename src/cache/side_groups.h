// SPDX-License-Identifier: Apache-2.0
//
// The groups of a layout as the cache keeps them. Full and compressed groups make up the history: they have a page for
// every page of a path, under the same id, and so one pool. The others are side groups: windows, whose pages a sequence
// holds for its last tokens only, and states, which live in the sequence's state slot and leave snapshots behind. What
// a side group has of a path hangs on the history's pages (prefix/side_pages.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "pool/fenced_pages.h"
#include "pool/page_pool.h"
#include "prefix/hit_rule.h"
#include "prefix/prefix_tree.h"
#include "prefix/side_pages.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/stats.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

/// Bytes of a group's device pages.
struct GroupMemory {
  std::uint32_t group_index = 0;  // in the layout
  std::optional<PoolGeometry> geometry;
  LazyMemory own;
  std::byte* data = nullptr;
};

/// What a sequence has of a side group.
struct SideSlot {
  // A window. Its row has the columns [0, sink pages) and [hole_end, page_count); the others are null.
  std::uint32_t page_count = 0;
  std::uint32_t hole_end = 0;
  std::uint32_t changed_column = 0;  // the row differs from what plans have told from this column on
  std::uint32_t valid_from = 0;      // what it has of tokens before this one is of no use to anybody
  bool is_rebuilt = false;           // it has nothing of the tokens that are replayed, and writes them
  // The source of the sequence's tail here; none when there is nothing to copy.
  PageId tail_source;
  bool tail_is_pinned = false;  // as a page of the tree; else by a share of it
  // A state: the snapshot that fills the slot, pinned until that is done. None: the slot starts anew.
  PageId restore_page;
  PageId last_snapshot;                    // of RetentionRule::Last: the last one it left, if any
  std::uint32_t last_snapshot_column = 0;  // and where
  std::uint32_t restore_position = 0;      // where it was taken
  bool lacks_first_rows = false;           // a snapshot does not bring what stands for tokens before the first
  std::uint64_t restore_step = 0;          // that does it; 0: not planned yet
};

/// What becomes of a cached host page on disk.
enum class DiskState : std::uint8_t {
  None,  // nothing
  Cold,  // to be written
  Hot,   // to be written before those
  Writing,
  OnDisk,  // as far as is known: the store makes room as it likes
  Lost,    // it could not be written, or may be gone again: flush() tries once more
};

/// What a side group has on the host. A page hangs on the history's, as it does on the device: by the history's device
/// page as long as there is one, and by its host page afterwards.
struct SideHost {
  std::uint16_t pool_index = 0;  // in TransferPlans
  PagePool pool;
  SidePages of_device;
  SidePages of_host;
  LazyArray<std::uint32_t> generations;
  LazyArray<std::uint32_t> readers;         // loads that read a host page
  LazyArray<std::uint32_t> device_readers;  // stores that read a device page
  std::uint32_t read_page_count = 0;        // device pages that stores read
  LazyArray<std::uint32_t> loads;           // by the tree's device page: the load that brings what hangs on it, + 1
  // By device page: it may be written by moves until this step is over, and is not copied, nor loaded into, before.
  LazyArray<std::uint64_t> settled_by_step;
  LazyArray<std::uint64_t> settled_in_call;  // empty where no group looks ahead
  IndexLists wanted;                         // device pages to be copied, oldest first
  // Which page of its path one hangs on, by device and by host page.
  LazyArray<std::uint32_t> device_columns;
  LazyArray<std::uint32_t> columns;
  // The disk tier, when there is one and the group has something there.
  bool has_disk = false;
  LazyArray<DiskState> disk_states;  // by host page
  IndexLists to_disk;                // host pages to be written, oldest first
};

/// Pages of a side group on their way between tiers.
struct SideTransfer {
  enum class State : std::uint8_t { Free, Queued, Moving };
  State state = State::Free;
  TransferKind kind = TransferKind::Load;
  TransferOutcome outcome = TransferOutcome::Ok;
  std::uint32_t side = 0;
  std::uint32_t generation = 0;
  std::uint32_t page_count = 0;
  std::uint32_t good_pages = 0;
  std::uint64_t reported_ranks = 0;
  bool is_unwanted = false;  // what it brings is not to be used
  TransferFault fault = TransferFault::None;
  TimeNs deadline = INT64_MAX;      // of a load from the host
  std::vector<SequenceId> waiters;  // of a load from the host
  PrefixTree::Pin pin;              // of a load: its path, so that pages stay what they are
  std::uint32_t key_space = 0;
  Tier named_in = Tier::Device;  // of a store to disk: where the history's pages lie that its own hang on
  std::uint32_t found_by = 0;    // of a load from disk
};

/// Whether loads of side groups fit: all of a sequence's, or none of them are started.
enum class SideLoadRoom : std::uint8_t { Now, Later, Never };

/// The pages of a path, in the tiers where they are.
struct FindPath {
  std::span<const PageId> pages;
  std::span<const PageId> host_pages;
  [[nodiscard]] Tier tier(std::uint32_t column) const { return column < pages.size() ? Tier::Device : Tier::Host; }
  [[nodiscard]] PageId at(std::uint32_t column) const {
    return column < pages.size() ? pages[column] : host_pages[column - pages.size()];
  }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(pages.size() + host_pages.size()); }
};

struct SideGroup {
  const CacheGroup* group = nullptr;
  bool is_window = false;  // in pages; else its place is the state slot
  bool has_pages = false;
  GroupMemory memory;
  PagePool pool;
  FencedPages fenced;
  SidePages pages;
  std::unique_ptr<SideHost> host;  // null: no host tier
  LazyArray<PageId> rows;          // of a window
  std::size_t row_stride = 0;
  std::vector<SideSlot> slots;  // by sequence
  std::uint32_t sink_pages = 0;
  std::uint32_t kept_pages = 0;  // by keep()
  GroupStats totals;             // the counting half
  std::vector<PageCopy> copies;  // of the plan being made
  LazyArray<TokenMove> moves;    // of trees committed since the last plan, as many as the history has

  [[nodiscard]] std::span<PageId> row(std::uint32_t sequence) {
    return {rows.data() + (sequence * row_stride), row_stride};
  }
  [[nodiscard]] std::span<const PageId> row(std::uint32_t sequence) const {
    return {rows.data() + (sequence * row_stride), row_stride};
  }
};

/// One window group's share of a StepPart.
struct SidePart {
  std::uint32_t new_pages = 0;
  std::uint32_t first_column = 0;  // the row's page count before
  bool copies_tail = false;
  bool adopts_tail = false;
};

/// A snapshot that a step takes.
struct PlannedSave {
  std::uint32_t part = 0;  // in the step
  std::uint32_t side = 0;
  PageId page;
  std::uint32_t position = 0;
};

}  // namespace quire
