// SPDX-License-Identifier: Apache-2.0
//
// AttentionPlanner: writes a step's AttentionPlan. Arrays lie in one staging buffer each plan, one of
// steps_in_flight_max + 1, at 16-byte aligned offsets that depend on the plan's shape alone; arrays that vary in length
// stand last. Buffers are reserved for the largest plan there can be (shared pages listed once per entry), and cost
// memory only where they are written. Nothing allocates after create().
//
// The first full or compressed group is the main one: its lists and table are of PlannerEntry::pages, and the others
// of these kinds have the same. Window groups have pages of their own, PlannerEntry::windows. Where nothing keeps
// everything, the pages are the history's bookkeeping: they order the entries, and no list of them is in the plan.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cascade.h"
#include "attention/plan_arrays.h"
#include "attention/staging_writer.h"
#include "base/lazy_array.h"
#include "quire/plan.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

/// One group of the layout, as far as plans differ by it.
struct PlannerGroup {
  enum class Kind : std::uint8_t {
    Full,
    Compressed,
    Window,  ///< paged
    Ring,    ///< a window in state slots
    State,   ///< a snapshot group: nothing in a plan but its copies
  };
  Kind kind = Kind::Full;
  std::uint32_t tokens_per_entry = 1;  ///< Compressed: divides page_tokens
  std::uint32_t window_tokens = 0;     ///< Window: how many a query sees, itself included, besides the sink
  std::uint32_t sink_tokens = 0;       ///< Window and Ring
  std::uint32_t slot_entries = 0;      ///< Ring: above sink_tokens
};

struct AttentionPlannerConfig {
  std::uint32_t page_tokens = 0;
  std::uint32_t sequence_count_max = 0;  ///< entries of a plan, rows of the table
  std::uint32_t row_pages = 0;           ///< pages of one sequence
  std::uint32_t step_tokens_max = 0;
  std::uint32_t steps_in_flight_max = 0;
  std::uint32_t tree_tokens_max = 0;  ///< undecided tree tokens of one entry, known tokens in front not counted
  PageTables page_tables = PageTables::Rows;
  std::uint32_t cascade_levels_max = 1;
  std::vector<std::uint32_t> layer_windows;  ///< of full groups, in tokens, each above 0; none with block tables
  std::vector<PlannerGroup> groups;          ///< in the layout's order; empty: a full one
};

/// An entry's part of one window group.
struct PlannerWindow {
  /// The columns of PlannerEntry::pages, with this group's page ids; kNullPage where nothing is stored.
  std::span<const PageId> pages;
  std::uint32_t changed_column = 0;  ///< as PlannerEntry::changed_column, of this group's table
  std::uint32_t write_from = 0;      ///< as PlannerEntryGroups::write_from
  std::uint32_t written_from = 0;    ///< pages have no rows of earlier tokens: these are not listed. 0 with a sink.
};

/// One sequence's part of a step, as the cache knows it. Two lines of the processor's cache: where an array of them
/// began in the middle of one, a plan took a twentieth longer.
struct alignas(64) PlannerEntry {
  SequenceId sequence;  ///< its index is the row of the page tables
  std::uint32_t entry_index = 0;
  std::uint32_t position = 0;        ///< of the first query, in the sequence
  std::uint32_t token_count = 0;     ///< queries, drafts and tree tokens included
  std::uint32_t draft_count = 0;     ///< of them, drafts or tree tokens of this step
  std::uint32_t context_tokens = 0;  ///< tokens that have K and V once the step has run: position + token_count
  bool runs_again = false;           ///< the one query's K and V are in the cache already: no append slot
  std::span<const PageId> pages;     ///< the sequence's row; kNullPage where nothing is stored
  std::span<const TokenId> tokens;   ///< known ones among the queries

  /// Leading pages that other entries may have too. Equal pages in the same column mean equal pages before it.
  std::uint32_t shareable_pages = 0;
  std::uint32_t changed_column = 0;  ///< columns of the row that the device's table lacks: from this one on

  std::uint32_t window_tokens = 0;  ///< of the groups that keep everything, the sink included; 0: none
  std::uint32_t sink_tokens = 0;

  /// All undecided tree tokens, those of earlier rounds first, as parents (-1: the last known token). Empty: no tree.
  /// Only in the tree's first round are there queries in front of it, token_count - draft_count known tokens.
  std::span<const std::int32_t> tree_parents;

  // Sends: token send_begin + i goes to slot i of send_slots.
  std::span<const SlotRun> send_slots;
  std::uint32_t send_begin = 0;
  std::int32_t receiver = -1;
  /// Tokens [send_cached_begin, send_cached_end) are in the cache and to be sent with this plan.
  std::uint32_t send_cached_begin = 0;
  std::uint32_t send_cached_end = 0;
};

/// What an entry has besides, where the layout has several groups. Apart from PlannerEntry, of which a step may have
/// many: 256 of them just fit in the first cache.
struct PlannerEntryGroups {
  static constexpr std::uint32_t kSequenceIndex = UINT32_MAX;

  std::uint32_t state_slot = kSequenceIndex;  ///< unless given, the index of the sequence
  std::uint32_t checkpoint = 0;               ///< for AttentionPlanEntry
  /// Full and compressed groups hold what is before this position: it is computed for others, and written there only.
  std::uint32_t write_from = 0;
  std::uint32_t ring_write_from = 0;       ///< rings are written from this position on
  std::span<const PlannerWindow> windows;  ///< one for each window group, in order
  /// Where tokens of window groups go, of an entry with send_slots; its tokens [run, send_cached_end) are in the cache.
  std::span<const WindowRun> send_windows;
};

/// What a step does to the pages of one window group.
struct PlannerWindowStep {
  std::span<const PageCopy> copies;
  std::span<const TokenMove> moves;
  std::span<const std::int32_t> move_indptr;
};

/// Of state_copies, and of state_saves, a step has at most so many for each sequence and group with state slots.
inline constexpr std::uint32_t kStateCopiesMax = 4;

struct PlannerStep {
  std::span<const PlannerEntry> entries;
  std::span<const PlannerEntryGroups> entry_groups;  ///< one for each entry; or none, and no group is a window
  /// Each number is 0, or at least what the step has and at most what the configuration allows (columns: row_pages).
  PlanShape shape;
  // Copied into the plan. At most one copy for every column of every row, and tree_tokens_max moves of every sequence.
  // These are the main group's; compressed groups have no moves, and without a main group they are dropped.
  std::span<const PageCopy> copies;
  std::span<const TokenMove> moves;
  std::span<const std::int32_t> move_indptr;
  std::span<const PlannerWindowStep> windows;  ///< one for each window group, in order, or none
  std::span<const StateCopy> state_copies;
  std::span<const StateCopy> state_saves;
  std::span<const StateSend> state_sends;  ///< at most one for each entry
  /// Where the plan is written, in [0, steps_in_flight_max]; the plan that was there is gone.
  std::uint32_t buffer_index = 0;
};

class AttentionPlanner {
 public:
  [[nodiscard]] static Result<AttentionPlanner> create(const AttentionPlannerConfig& config);

  /// The plan lives until another one is built in its buffer.
  [[nodiscard]] AttentionPlan build(const PlannerStep& step);

  /// Shareable pages of this sequence's row are others than in the last plan with it, or the sequence has ended.
  /// Without this call they stay where they are and what they are, also while the sequence is in no plan.
  void forget_row(std::uint32_t sequence_index) {
    if (config_.cascade_levels_max > 1) cascade_.forget(sequence_index);
  }

 private:
  /// What one plan's spans point into.
  struct Buffer {
    LazyMemory staging;
    PlanShape shape;  // of the plan
    LazyArray<CascadeLevel> levels;
    LazyArray<std::uint32_t> slice_counts;  // of the shared levels
    std::vector<LayerWindowPlan> layer_windows;
    LazyArray<AttentionPlanEntry> entries;
    std::vector<GroupPlan> groups;
    GroupPlan history;                        // in place of a main group, where there is none
    std::vector<CascadeLevel> window_levels;  // by group
  };

  void describe_groups();
  [[nodiscard]] PlanShape read_entries(const PlannerStep& step);
  void check_step(const PlannerStep& step) const;
  void check_entry(const PlannerEntry& entry) const;
  void check_windows(const PlannerEntry& entry, const PlannerEntryGroups& groups) const;
  [[nodiscard]] std::uint32_t shareable_pages(const PlannerEntry& entry) const;
  /// Which entry stands at a place of the arrays.
  [[nodiscard]] std::size_t index_at(std::size_t place) const;
  [[nodiscard]] const PlannerEntry& entry_at(const PlannerStep& step, std::size_t place) const {
    return step.entries[index_at(place)];
  }

  // The parts of build(), in this order. `page_ids` is where page_indices grows, empty unless page tables are Csr, and
  // that of the main group also where there is none.
  void write_entries(const PlannerStep& step, const FixedArrays& arrays, std::span<std::int32_t> page_ids,
                     Buffer& buffer) const;
  template <bool kHasGroups>
  void write_entries_of(const PlannerStep& step, const FixedArrays& arrays, std::span<std::int32_t> page_ids,
                        Buffer& buffer) const;
  void write_shared_levels(const PlannerStep& step, const FixedArrays& arrays, std::span<std::int32_t> page_ids) const;
  void write_layer_windows(const PlannerStep& step, const FixedArrays& arrays, std::span<std::int32_t> page_ids) const;
  void write_shared_queries(const PlannerStep& step, const FixedArrays& arrays, const PlanShape& shape,
                            Buffer& buffer) const;
  /// Slots and levels of the groups besides the main one, whose lists end at `page_count`; where all lists end.
  [[nodiscard]] std::size_t write_groups(const PlannerStep& step, const FixedArrays& arrays,
                                         std::span<std::int32_t> page_ids, std::size_t page_count) const;
  void write_group_slots(const PlannerStep& step, const FixedArrays& arrays, std::size_t group_index) const;
  [[nodiscard]] std::size_t write_window_level(const PlannerStep& step, std::size_t group_index,
                                               std::span<std::int32_t> page_ids, std::size_t page_count) const;
  [[nodiscard]] std::size_t write_deltas(const PlannerStep& step, std::span<PageDelta> deltas) const;
  [[nodiscard]] std::size_t write_window_deltas(const PlannerStep& step, std::uint32_t window_index,
                                                std::span<PageDelta> deltas) const;
  void write_block_table(const PlannerStep& step, std::uint32_t columns, std::span<std::int32_t> table) const;
  void write_window_table(const PlannerStep& step, std::uint32_t window_index, std::uint32_t columns,
                          std::span<std::int32_t> table) const;
  /// The tables of window groups, as deltas or block tables.
  void write_window_tables(const PlannerStep& step, const PlanShape& shape, StagingWriter& staging,
                           Buffer& buffer) const;
  [[nodiscard]] std::span<const TreeNode> write_trees(const PlannerStep& step, const FixedArrays& arrays,
                                                      StagingWriter& staging) const;
  /// What goes to other caches of the main group, whose receivers are those of all groups, and of the others.
  void write_sent_tokens(const PlannerStep& step, const FixedArrays& arrays, StagingWriter& staging,
                         GroupPlan& group) const;
  void write_sent_groups(const PlannerStep& step, const FixedArrays& arrays, StagingWriter& staging,
                         Buffer& buffer) const;
  [[nodiscard]] std::span<const SendRun> write_sends_of(const PlannerStep& step, const PlannerGroup& group,
                                                        std::size_t group_index, StagingWriter& staging) const;
  /// What the groups besides the main one get, once that is complete: views of arrays, and copies of their own.
  void fill_groups(const PlannerStep& step, StagingWriter& staging, Buffer& buffer) const;

  static constexpr std::size_t kNoGroup = SIZE_MAX;
  [[nodiscard]] bool has_main() const { return main_index_ != kNoGroup; }
  [[nodiscard]] bool has_groups() const { return config_.groups.size() > 1 || !has_main(); }  // beside the main one
  [[nodiscard]] GroupPlan& main_plan(Buffer& buffer) const {
    return has_main() ? buffer.groups[main_index_] : buffer.history;
  }

  AttentionPlannerConfig config_;  // with at least one group
  // Of the groups.
  std::size_t main_index_ = 0;
  std::size_t full_index_ = 0;  // the first full one, whose append_slots the others of its kind have
  std::uint32_t main_entry_tokens_ = 1;
  std::uint32_t window_count_ = 0;
  std::uint32_t state_group_count_ = 0;
  std::vector<Buffer> buffers_;

  // Of the plan being built.
  bool has_sends_ = false;
  Cascade cascade_;
  LazyArray<CascadeEntry> cascade_entries_;
  LazyArray<LevelArrays> levels_;
  std::vector<LayerWindowArrays> layer_windows_;
  std::vector<GroupArrays> group_arrays_;
};

}  // namespace quire
