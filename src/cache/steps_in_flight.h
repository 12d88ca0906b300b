// SPDX-License-Identifier: Apache-2.0
//
// StepInFlight: a planned step as the cache keeps it. PlanScratch: the buffers in which plans are made.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention_planner.h"
#include "cache/group_rows.h"
#include "prefix/prefix_tree.h"
#include "quire/cache.h"
#include "quire/plan.h"
#include "sequence/sequence_table.h"
#include "tiers/saves.h"

namespace quire {

/// One sequence's part of a step. Parts stand in the order of the entries of plan_step().
struct StepPart {
  std::uint32_t index = 0;  // of the sequence
  std::uint32_t generation = 0;
  std::uint32_t position = 0;      // of its first query
  std::uint32_t token_count = 0;   // known now, or by an earlier step's result; 0: only drafts, or the last token again
  std::uint32_t draft_count = 0;   // drafts or tree tokens behind those
  std::uint32_t new_pages = 0;     // taken from the pool
  std::uint32_t first_column = 0;  // the row's page count before the step
  std::uint32_t tree_before = 0;   // undecided tree tokens before the step
  bool is_tree = false;
  bool copies_tail = false;
  bool adopts_tail = false;
  bool is_discarded = false;
  std::uint32_t checkpoint = 0;  // a snapshot is taken behind so many tokens; 0: none

  [[nodiscard]] bool runs_again() const { return token_count + draft_count == 0; }
  [[nodiscard]] std::uint32_t query_count() const { return runs_again() ? 1 : token_count + draft_count; }
  /// Tokens computed once the part is done, drafts and tree tokens not counted.
  [[nodiscard]] std::uint32_t computed_end(std::uint32_t computed_tokens) const {
    return token_count == 0 ? computed_tokens : position + token_count;
  }
};

struct StepInFlight {
  bool is_planned = false;
  bool is_moved = false;    // page moves and copies are made, by apply_moves()
  bool is_applied = false;  // state copies are made too, by apply_moves_and_copies()
  bool is_saved = false;    // snapshots are taken, by apply_saves()
  std::uint64_t number = 0;
  std::vector<StepPart> parts;
  std::vector<WindowPart> windows;     // for each part, one for each window group
  std::vector<PlannedSnapshot> saves;  // snapshots
  std::vector<StepLoad> loads;         // that fill pages which the step reads
  AttentionPlan plan;

  /// Its plan moves tokens of committed trees.
  [[nodiscard]] bool has_moves() const {
    return std::ranges::any_of(plan.groups, [](const GroupPlan& group) { return !group.moves.empty(); });
  }
  [[nodiscard]] std::span<const WindowPart> windows_of(std::size_t part) const {
    const std::size_t count = parts.empty() ? 0 : windows.size() / parts.size();
    return std::span(windows).subspan(part * count, count);
  }
};

/// Buffers for what a call gathers before it acts: plan_step() for the planner, preempt() and resume() for transfers.
/// Reserved once, so that no call allocates.
struct PlanScratch {
  std::vector<PlannerEntry> entries;
  std::vector<PlannerEntryGroups> entry_groups;
  std::vector<PlannerWindowStep> window_steps;
  std::vector<PlannerWindow> windows;  // for each entry, one for each window group
  std::vector<PageCopy> copies;
  std::vector<StateCopy> state_copies;
  std::vector<StateCopy> state_saves;
  std::vector<StateSend> state_sends;
  // Tails that try_without_tails() gives up, or restores if the step does not fit without them.
  struct RevokedTail {
    std::uint32_t index = 0;
    SequenceSlot::Tail tail;
  };
  std::vector<RevokedTail> revoked;
  std::vector<RunId> revoked_runs;
  std::vector<std::uint32_t> lost_entries;
  std::vector<HeldPages> held;  // what a sequence to be saved or restored holds, one for each pool with rows
};

}  // namespace quire
