// SPDX-License-Identifier: Apache-2.0
//
// AttentionPlanner: writes a step's AttentionPlan. Arrays lie in one staging buffer each plan, one of
// steps_in_flight_max + 1, at 16-byte aligned offsets that depend on the plan's shape alone; arrays that vary in length
// stand last. Buffers are reserved for the largest plan there can be (shared pages listed once per entry), and cost
// memory only where they are written. Nothing allocates after create().
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

struct AttentionPlannerConfig {
  std::uint32_t page_tokens = 0;
  std::uint32_t sequence_count_max = 0;  ///< entries of a plan, rows of the table
  std::uint32_t row_pages = 0;           ///< pages of one sequence
  std::uint32_t step_tokens_max = 0;
  std::uint32_t steps_in_flight_max = 0;
  std::uint32_t tree_tokens_max = 0;  ///< undecided tree tokens of one entry, known tokens in front not counted
  PageTables page_tables = PageTables::Rows;
  std::uint32_t cascade_levels_max = 1;
  std::vector<std::uint32_t> layer_windows;  ///< in tokens, each above 0; none with block tables
};

/// One sequence's part of a step, as the cache knows it.
struct PlannerEntry {
  SequenceId sequence;  ///< its index is the row of the page table and the state slot
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

  std::uint32_t window_tokens = 0;  ///< 0: none
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

struct PlannerStep {
  std::span<const PlannerEntry> entries;
  /// Each number is 0, or at least what the step has and at most what the configuration allows (columns: row_pages).
  PlanShape shape;
  // Copied into the plan. At most one copy for every column of every row, and tree_tokens_max moves of every sequence.
  std::span<const PageCopy> copies;
  std::span<const TokenMove> moves;
  std::span<const std::int32_t> move_indptr;
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
    GroupPlan group;
  };

  [[nodiscard]] PlanShape read_entries(const PlannerStep& step);
  void check_entry(const PlannerEntry& entry) const;
  [[nodiscard]] std::uint32_t shareable_pages(const PlannerEntry& entry) const;
  [[nodiscard]] const PlannerEntry& entry_at(const PlannerStep& step, std::size_t place) const;

  // The parts of build(), in this order. `page_ids` is where page_indices grows, empty unless page tables are Csr.
  void write_entries(const PlannerStep& step, const FixedArrays& arrays, std::span<std::int32_t> page_ids,
                     Buffer& buffer) const;
  void write_shared_levels(const PlannerStep& step, const FixedArrays& arrays, std::span<std::int32_t> page_ids) const;
  void write_layer_windows(const PlannerStep& step, const FixedArrays& arrays, std::span<std::int32_t> page_ids) const;
  void write_shared_queries(const PlannerStep& step, const FixedArrays& arrays, const PlanShape& shape,
                            Buffer& buffer) const;
  [[nodiscard]] std::size_t write_deltas(const PlannerStep& step, std::span<PageDelta> deltas) const;
  void write_block_table(const PlannerStep& step, std::uint32_t columns, std::span<std::int32_t> table) const;
  [[nodiscard]] std::span<const TreeNode> write_trees(const PlannerStep& step, const FixedArrays& arrays,
                                                      StagingWriter& staging) const;
  void write_sent_tokens(const PlannerStep& step, const FixedArrays& arrays, StagingWriter& staging,
                         GroupPlan& group) const;

  AttentionPlannerConfig config_;
  std::vector<Buffer> buffers_;

  // Of the plan being built.
  bool has_sends_ = false;
  Cascade cascade_;
  LazyArray<CascadeEntry> cascade_entries_;
  LazyArray<LevelArrays> levels_;
  std::vector<LayerWindowArrays> layer_windows_;
};

}  // namespace quire
