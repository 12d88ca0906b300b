// SPDX-License-Identifier: Apache-2.0
//
// The plans of layouts with several groups, by examples small enough to check by hand: pages of 4 tokens, a page's id
// in tens for the sequence it belongs to, and in hundreds for the window group.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_planner.h"
#include "quire/plan.h"

namespace quire {
namespace {

using Kind = PlannerGroup::Kind;
using Ints = std::vector<std::int64_t>;

template <typename T>
Ints list(std::span<const T> array) {
  return {array.begin(), array.end()};
}

using Row = std::vector<PageId>;
Row row_of(const std::vector<std::uint32_t>& pages) {
  Row row;
  for (const std::uint32_t page : pages) row.push_back(PageId{page});
  return row;
}

constexpr PlannerGroup kFull{};
constexpr PlannerGroup kCompressed{.kind = Kind::Compressed, .tokens_per_entry = 2};
constexpr PlannerGroup kState{.kind = Kind::State};

constexpr PlannerGroup window(std::uint32_t window_tokens, std::uint32_t sink_tokens = 0) {
  return {.kind = Kind::Window, .window_tokens = window_tokens, .sink_tokens = sink_tokens};
}
constexpr PlannerGroup ring(std::uint32_t slot_entries, std::uint32_t sink_tokens = 0) {
  return {.kind = Kind::Ring, .sink_tokens = sink_tokens, .slot_entries = slot_entries};
}

AttentionPlannerConfig config_of(std::vector<PlannerGroup> groups, PageTables page_tables = PageTables::Rows,
                                 std::uint32_t levels = 1) {
  return {.page_tokens = 4,
          .sequence_count_max = 8,
          .row_pages = 16,
          .step_tokens_max = 64,
          .steps_in_flight_max = 0,
          .tree_tokens_max = 8,
          .page_tables = page_tables,
          .cascade_levels_max = levels,
          .groups = std::move(groups)};
}

AttentionPlanner make_planner(const AttentionPlannerConfig& config) {
  Result<AttentionPlanner> planner = AttentionPlanner::create(config);
  EXPECT_TRUE(planner.has_value()) << (planner ? "" : planner.error().message);
  return *std::move(planner);
}

/// The last `token_count` of `context_tokens` tokens are computed, and nothing of the row has changed.
PlannerEntry entry_of(std::uint32_t sequence, const Row& row, std::uint32_t context_tokens,
                      std::uint32_t token_count = 1) {
  return {.sequence = {sequence, 1},
          .entry_index = sequence,
          .position = context_tokens - token_count,
          .token_count = token_count,
          .context_tokens = context_tokens,
          .pages = row,
          .changed_column = static_cast<std::uint32_t>(row.size())};
}

/// A sequence that decodes token 21 and has a window's pages from column 3 on, and one that computes the last 4 of 6.
struct TwoSequences {
  Row a = row_of({31, 32, 33, 34, 35, 36});
  Row b = row_of({51, 52});
  Row window_a = row_of({0, 0, 0, 304, 305, 306});
  Row window_b = row_of({501, 502});
  std::vector<PlannerWindow> windows_a{{.pages = window_a, .changed_column = 5}};
  std::vector<PlannerWindow> windows_b{{.pages = window_b, .changed_column = 2}};
  std::vector<PlannerEntry> entries{entry_of(3, a, 22), entry_of(5, b, 6, 4)};
  std::vector<PlannerEntryGroups> groups{{.windows = windows_a}, {.windows = windows_b}};
};

/// The same for two window groups.
struct TwoSequencesTwice : TwoSequences {
  TwoSequencesTwice() {
    windows_a.push_back(windows_a[0]);
    windows_b.push_back(windows_b[0]);
    groups[0].windows = windows_a;
    groups[1].windows = windows_b;
  }
};

TEST(PlannerGroups, APlanHasOneGroupForEachOfTheLayout) {
  AttentionPlanner planner = make_planner(config_of({kState, window(9), kFull, kCompressed, kFull, ring(8)}));
  const TwoSequences two;
  const AttentionPlan plan = planner.build({.entries = two.entries, .entry_groups = two.groups});
  ASSERT_EQ(plan.groups.size(), 6U);
  const GroupPlan& state = plan.groups[0];
  EXPECT_TRUE(state.append_slots.empty() && state.levels.empty() && state.deltas.empty());
  const GroupPlan& main = plan.groups[2];
  EXPECT_EQ(list(main.append_slots), (Ints{145, 206, 207, 208, 209}));
  EXPECT_EQ(plan.append_slots.data(), main.append_slots.data());
  // Full groups have the same page ids, and so the same arrays.
  EXPECT_EQ(plan.groups[4].append_slots.data(), main.append_slots.data());
  EXPECT_EQ(plan.groups[4].levels.data(), main.levels.data());
  EXPECT_EQ(plan.groups[3].levels.data(), main.levels.data());
  EXPECT_EQ(plan.groups[3].tokens_per_entry, 2U);
  EXPECT_EQ(plan.groups[1].window_tokens, 9U);
  EXPECT_EQ(plan.groups[5].levels.size(), 0U);
}

TEST(PlannerGroups, AStateSlotIsTheSequencesIndexUnlessSaidOtherwise) {
  AttentionPlanner planner = make_planner(config_of({kFull, ring(8)}));
  TwoSequences two;
  two.groups[1].state_slot = 2;
  two.groups[1].checkpoint = 6;
  const AttentionPlan plan =
      planner.build({.entries = two.entries, .entry_groups = two.groups, .shape = {.entries = 3}});
  EXPECT_EQ(list(plan.state_slots), (Ints{3, 2, -1}));
  EXPECT_EQ(plan.entries[0].state_slot, 3U);
  EXPECT_EQ(plan.entries[1].state_slot, 2U);
  EXPECT_EQ(plan.entries[0].checkpoint, 0U);
  EXPECT_EQ(plan.entries[1].checkpoint, 6U);
}

// Compressed groups.

TEST(PlannerGroups, TheTokenThatCompletesAnEntryHasItsSlot) {
  // Entries of 2 tokens, 2 in a page: tokens 3 and 5 complete the second of page 51 and the first of page 52.
  AttentionPlanner planner = make_planner(config_of({kFull, kCompressed}));
  const TwoSequences two;
  const std::vector<PageCopy> copies{{.source = PageId{7}, .target = PageId{8}, .token_count = 2}};
  const AttentionPlan plan =
      planner.build({.entries = two.entries, .entry_groups = two.groups, .shape = {.tokens = 6}, .copies = copies});
  EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{145, 206, 207, 208, 209, -1}));
  EXPECT_EQ(list(plan.groups[1].append_slots), (Ints{72, -1, 103, -1, 104, -1}));
  EXPECT_EQ(plan.groups[1].copies.data(), plan.groups[0].copies.data());
  EXPECT_EQ(plan.groups[1].deltas.data(), plan.groups[0].deltas.data());
}

TEST(PlannerGroups, ACompressedGroupThatIsTheFirstIsWhatThePlanShows) {
  AttentionPlanner planner = make_planner(config_of({kCompressed, kFull, kFull}));
  const TwoSequences two;
  const AttentionPlan plan = planner.build({.entries = two.entries, .entry_groups = two.groups});
  EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{72, -1, 103, -1, 104}));
  EXPECT_EQ(plan.append_slots.data(), plan.groups[0].append_slots.data());
  EXPECT_EQ(list(plan.entries[1].append_slots), (Ints{-1, 103, -1, 104}));
  EXPECT_EQ(list(plan.groups[1].append_slots), (Ints{145, 206, 207, 208, 209}));
  EXPECT_EQ(plan.groups[2].append_slots.data(), plan.groups[1].append_slots.data());
  EXPECT_EQ(plan.groups[1].tokens_per_entry, 1U);
  EXPECT_EQ(plan.groups[1].levels.data(), plan.groups[0].levels.data());
}

TEST(PlannerGroups, WhatTheHistoryHoldsIsNotWrittenAgain) {
  // Tokens 2 to 5 are computed; the history holds those before 4, the window's pages those before 3.
  AttentionPlanner planner = make_planner(config_of({kFull, kCompressed, window(9), ring(8)}));
  TwoSequences two;
  two.windows_b[0].write_from = 3;
  two.groups[1].write_from = 4;
  const AttentionPlan plan =
      planner.build({.entries = std::span(two.entries).last(1), .entry_groups = std::span(two.groups).last(1)});
  EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{-1, -1, 208, 209}));
  EXPECT_EQ(list(plan.groups[1].append_slots), (Ints{-1, -1, -1, 104}));
  EXPECT_EQ(list(plan.groups[2].append_slots), (Ints{-1, 2007, 2008, 2009}));
  // A ring has no history: everything is written there.
  EXPECT_EQ(list(plan.groups[3].append_slots), (Ints{42, 43, 44, 45}));
  two.groups[1].write_from = 100;
  two.groups[1].ring_write_from = 5;
  const AttentionPlan none =
      planner.build({.entries = std::span(two.entries).last(1), .entry_groups = std::span(two.groups).last(1)});
  EXPECT_EQ(list(none.groups[0].append_slots), (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(list(none.groups[3].append_slots), (Ints{-1, -1, -1, 45}));
}

// Windows.

TEST(PlannerGroups, AWindowListsThePagesThatTheFirstQuerySees) {
  // A window of 7: token 21 sees 15 to 21, which is from column 3 on. Token 2 of the other sees all before it.
  const TwoSequences two;
  AttentionPlanner rows = make_planner(config_of({kFull, window(7)}));
  const AttentionPlan plan =
      rows.build({.entries = two.entries, .entry_groups = two.groups, .shape = {.entries = 3, .tokens = 6}});
  const GroupPlan& group = plan.groups[1];
  EXPECT_EQ(list(group.append_slots), (Ints{1225, 2006, 2007, 2008, 2009, -1}));
  ASSERT_EQ(group.levels.size(), 1U);
  const CascadeLevel& level = group.levels[0];
  EXPECT_EQ(level.query_indptr.data(), plan.query_indptr.data());
  EXPECT_EQ(list(level.page_indptr), (Ints{8, 11, 13, 13}));
  EXPECT_EQ(list(level.rows), (Ints{3, 5, -1}));
  EXPECT_EQ(list(level.first_columns), (Ints{3, 0, 0}));
  EXPECT_EQ(list(level.last_page_tokens), (Ints{2, 2, 0}));
  EXPECT_EQ(list(level.first_keys), (Ints{12, 0, 0}));
  EXPECT_EQ(list(level.window_offsets), (Ints{0, 0, 0}));
  EXPECT_EQ(list(level.sink_tokens), (Ints{0, 0, 0}));
  ASSERT_EQ(group.deltas.size(), 1U);
  EXPECT_EQ((Ints{group.deltas[0].row, group.deltas[0].column, group.deltas[0].page}), (Ints{3, 5, 306}));
  EXPECT_TRUE(group.layer_windows.empty());

  AttentionPlanner csr = make_planner(config_of({kFull, window(7)}, PageTables::Csr));
  const AttentionPlan lists = csr.build({.entries = two.entries, .entry_groups = two.groups});
  EXPECT_EQ(list(lists.groups[1].page_indices), (Ints{31, 32, 33, 34, 35, 36, 51, 52, 304, 305, 306, 501, 502}));
  EXPECT_EQ(list(lists.groups[1].levels[0].page_indptr), (Ints{8, 11, 13}));
  EXPECT_EQ(list(lists.groups[1].levels[0].first_keys), (Ints{12, 0}));

  AttentionPlanner block = make_planner(config_of({kFull, window(7)}, PageTables::Block));
  const AttentionPlan lines = block.build({.entries = two.entries, .entry_groups = two.groups});
  EXPECT_EQ(list(lines.groups[1].block_table), (Ints{0, 0, 0, 304, 305, 306, 501, 502, 0, 0, 0, 0}));
  EXPECT_EQ(list(lines.groups[1].levels[0].first_keys), (Ints{12, 0}));
  EXPECT_EQ(list(lines.groups[1].levels[0].window_offsets), (Ints{12, 0}));
}

TEST(PlannerGroups, KeysBeforeTheBeginningOfAReplayAreNotListed) {
  // Pages of 4. Token 21 sees 15 to 21, and nobody wrote those before 18: column 4, whose first two rows hold nothing.
  TwoSequences two;
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner = make_planner(config_of({kFull, window(7)}, tables));
    const auto level_of = [&](std::uint32_t written_from) {
      two.windows_a[0].written_from = written_from;
      return planner.build({.entries = two.entries, .entry_groups = two.groups}).groups[1].levels[0];
    };
    const bool is_block = tables == PageTables::Block;
    const CascadeLevel level = level_of(18);
    EXPECT_EQ(list(level.first_keys), (Ints{18, 0}));
    EXPECT_EQ(list(level.window_offsets), (Ints{is_block ? 18 : 2, 0}));
    EXPECT_EQ(level.page_indptr[1] - level.page_indptr[0], is_block ? 6 : 2);
    if (tables == PageTables::Rows) {
      EXPECT_EQ(level.first_columns[0], 4);
    }
    EXPECT_EQ(level_of(16).first_keys[0], 16);
    EXPECT_EQ(level_of(12).first_keys[0], 12);  // as without: the window begins behind it
    EXPECT_EQ(level_of(3).first_keys[0], 12);
  }
  // In the first column.
  const Row row = row_of({11, 12});
  const Row window_row = row_of({101, 102});
  const std::vector<PlannerWindow> begun{{.pages = window_row, .written_from = 3}};
  const PlannerEntry entry = entry_of(1, row, 7);
  const PlannerEntryGroups groups{.windows = begun};
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner = make_planner(config_of({kFull, window(7)}, tables));
    const AttentionPlan plan = planner.build({.entries = {&entry, 1}, .entry_groups = {&groups, 1}});
    EXPECT_EQ(list(plan.groups[1].levels[0].first_keys), (Ints{3}));
    EXPECT_EQ(list(plan.groups[1].levels[0].window_offsets), (Ints{3}));
  }
}

TEST(PlannerGroups, ASinkIsListedBeforeTheWindow) {
  // A sink of 2 and a window of 5: token 21 sees 0, 1 and 17 to 21, which is from column 4 on.
  TwoSequences two;
  two.window_a[0] = PageId{301};
  AttentionPlanner csr = make_planner(config_of({kFull, window(5, 2)}, PageTables::Csr));
  const AttentionPlan lists = csr.build({.entries = two.entries, .entry_groups = two.groups});
  const CascadeLevel& level = lists.groups[1].levels[0];
  EXPECT_EQ(list(lists.groups[1].page_indices.subspan(8)), (Ints{301, 305, 306, 501, 502}));
  EXPECT_EQ(list(level.page_indptr), (Ints{8, 11, 13}));
  EXPECT_EQ(list(level.sink_tokens), (Ints{2, 2}));
  EXPECT_EQ(list(level.first_keys), (Ints{16, 2}));
  EXPECT_EQ(list(level.window_offsets), (Ints{4, 2}));

  // A row keeps the columns between.
  AttentionPlanner rows = make_planner(config_of({kFull, window(5, 2)}));
  const CascadeLevel& row_level = rows.build({.entries = two.entries, .entry_groups = two.groups}).groups[1].levels[0];
  EXPECT_EQ(list(row_level.page_indptr), (Ints{8, 14, 16}));
  EXPECT_EQ(list(row_level.first_columns), (Ints{0, 0}));
  EXPECT_EQ(list(row_level.first_keys), (Ints{16, 2}));
  EXPECT_EQ(list(row_level.window_offsets), (Ints{16, 2}));
}

TEST(PlannerGroups, ASinkLongerThanTheContextIsAsLongAsThat) {
  const Row row = row_of({11});
  const Row window_row = row_of({101});
  const std::vector<PlannerWindow> windows{{.pages = window_row}};
  const PlannerEntry entry = entry_of(1, row, 3);
  const PlannerEntryGroups groups{.windows = windows};
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner = make_planner(config_of({kFull, window(9, 6)}, tables));
    const AttentionPlan plan = planner.build({.entries = {&entry, 1}, .entry_groups = {&groups, 1}});
    const CascadeLevel& level = plan.groups[1].levels[0];
    EXPECT_EQ(list(level.sink_tokens), (Ints{3}));
    EXPECT_EQ(list(level.first_keys), (Ints{3}));
    EXPECT_EQ(list(level.window_offsets), (Ints{3}));
    EXPECT_EQ(level.page_indptr[1] - level.page_indptr[0], 1);
  }
}

TEST(PlannerGroups, ATreesWindowBeginsWithWhatItsFirstTokenSees) {
  // 9 stored tokens, then a tree of four in two rounds; the first token, at place 9, sees 6 to 9.
  const Row row = row_of({11, 12, 13, 14});
  const Row window_row = row_of({0, 102, 103, 104});
  const std::vector<PlannerWindow> windows{{.pages = window_row}};
  const std::vector<std::int32_t> parents{-1, 0, 1, 1};
  PlannerEntry entry = entry_of(1, row, 13, 2);
  entry.draft_count = 2;
  entry.tree_parents = parents;
  const PlannerEntryGroups groups{.windows = windows};
  const std::vector<TokenMove> moves{{.source_slot = 411, .target_slot = 410}};
  const std::vector<std::int32_t> move_indptr{0, 1};
  const std::vector<PageCopy> copies{{.source = PageId{107}, .target = PageId{108}, .token_count = 3}};
  const std::vector<PlannerWindowStep> window_steps{{.copies = copies, .moves = moves, .move_indptr = move_indptr}};
  AttentionPlanner planner = make_planner(config_of({kFull, window(4)}, PageTables::Csr));
  const AttentionPlan plan =
      planner.build({.entries = {&entry, 1}, .entry_groups = {&groups, 1}, .windows = window_steps});
  const GroupPlan& group = plan.groups[1];
  EXPECT_EQ(list(group.levels[0].first_keys), (Ints{4}));
  EXPECT_EQ(list(group.page_indices.subspan(4)), (Ints{102, 103, 104}));
  EXPECT_EQ(list(group.append_slots), (Ints{415, 416}));
  ASSERT_EQ(group.moves.size(), 1U);
  EXPECT_EQ(group.moves[0].target_slot, 410);
  EXPECT_EQ(list(group.move_indptr), (Ints{0, 1}));
  ASSERT_EQ(group.copies.size(), 1U);
  EXPECT_EQ(group.copies[0].target, PageId{108});
  EXPECT_TRUE(plan.copies.empty());
  EXPECT_TRUE(plan.groups[0].moves.empty());
}

// Rings.

TEST(PlannerGroups, ARingTakesTheLastOfAChunk) {
  // 2 of 6 entries are the sink: tokens 0 and 1, then 4 entries for the others in turn. 3 to 6 would be overwritten.
  AttentionPlanner planner = make_planner(config_of({kFull, ring(6, 2)}));
  const Row row = row_of({11, 12, 13});
  const PlannerEntry entry = entry_of(1, row, 11, 11);
  const PlannerEntryGroups groups{.state_slot = 4};
  const AttentionPlan plan =
      planner.build({.entries = {&entry, 1}, .entry_groups = {&groups, 1}, .shape = {.tokens = 12}});
  EXPECT_EQ(list(plan.groups[1].append_slots), (Ints{24, 25, -1, -1, -1, -1, -1, 27, 28, 29, 26, -1}));
  PlannerEntry again = entry_of(1, row, 11);
  again.runs_again = true;
  EXPECT_EQ(list(planner.build({.entries = {&again, 1}}).groups[1].append_slots), (Ints{-1}));
}

// Layouts that keep everything nowhere.

TEST(PlannerGroups, WithoutAHistoryOnlyTheOtherGroupsHaveLists) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner = make_planner(config_of({window(7), kState}, tables));
    TwoSequences two;
    for (PlannerEntry& entry : two.entries) entry.changed_column = 0;
    const std::vector<PageCopy> copies{{.source = PageId{7}, .target = PageId{8}, .token_count = 3}};
    const AttentionPlan plan = planner.build({.entries = two.entries, .entry_groups = two.groups, .copies = copies});
    ASSERT_EQ(plan.groups.size(), 2U);
    EXPECT_TRUE(plan.copies.empty());
    EXPECT_TRUE(plan.append_slots.empty());
    EXPECT_TRUE(plan.entries[1].append_slots.empty());
    EXPECT_EQ(plan.entries[1].pages.data(), two.b.data());
    EXPECT_EQ(list(plan.query_positions), (Ints{21, 2, 3, 4, 5}));
    EXPECT_EQ(list(plan.seq_lens), (Ints{22, 6}));
    EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{1225, 2006, 2007, 2008, 2009}));
    EXPECT_EQ(plan.groups[0].levels[0].page_indptr[0], 0);
    EXPECT_EQ(list(plan.groups[0].page_indices), tables == PageTables::Csr ? (Ints{304, 305, 306, 501, 502}) : Ints{});
    EXPECT_EQ(plan.groups[0].deltas.size(), tables == PageTables::Rows ? 1U : 0U);
    EXPECT_TRUE(plan.groups[1].append_slots.empty());
  }
}

// Copies of states.

TEST(PlannerGroups, CopiesOfStatesStandLast) {
  AttentionPlanner planner = make_planner(config_of({kFull, kState}));
  const TwoSequences two;
  const std::vector<StateCopy> copies{{.kind = StateCopyKind::Restore, .group = 1, .source = 9, .target = 3}};
  const std::vector<StateCopy> saves{{.kind = StateCopyKind::Save, .group = 1, .source = 3, .target = 8},
                                     {.kind = StateCopyKind::Save, .group = 1, .source = 5, .target = 7}};
  const AttentionPlan plan =
      planner.build({.entries = two.entries, .entry_groups = two.groups, .state_copies = copies, .state_saves = saves});
  ASSERT_EQ(plan.state_copies.size(), 1U);
  EXPECT_EQ(plan.state_copies[0], copies[0]);
  ASSERT_EQ(plan.state_saves.size(), 2U);
  EXPECT_EQ(plan.state_saves[1], saves[1]);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(plan.state_saves.data() + 2), plan.staging.data() + plan.staging.size());
}

// Where arrays lie.

/// Offsets of what a captured graph reads, in all groups.
std::vector<std::size_t> offsets_of(const AttentionPlan& plan) {
  std::vector<std::size_t> offsets;
  const auto add = [&](const auto& array) {
    const auto* const data = reinterpret_cast<const std::byte*>(array.data());
    if (array.data() == nullptr) return;
    EXPECT_GE(data, plan.staging.data());
    EXPECT_LE(data + array.size_bytes(), plan.staging.data() + plan.staging.size());
    offsets.push_back(static_cast<std::size_t>(data - plan.staging.data()));
  };
  add(plan.query_positions);
  add(plan.query_indptr);
  add(plan.seq_lens);
  add(plan.state_slots);
  for (const GroupPlan& group : plan.groups) {
    add(group.append_slots);
    for (const CascadeLevel& level : group.levels) {
      add(level.query_indptr);
      add(level.page_indptr);
      add(level.rows);
      add(level.first_columns);
      add(level.last_page_tokens);
      add(level.window_offsets);
      add(level.sink_tokens);
      add(level.first_keys);
    }
    add(group.page_indices);
    add(group.block_table);
  }
  add(plan.groups[1].deltas);  // the main group's; those of windows follow
  return offsets;
}

TEST(PlannerGroups, PlansOfOneShapeHaveTheArraysOfAllGroupsAtTheSameOffsets) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    for (const std::uint32_t levels : {1U, 3U}) {
      if (tables == PageTables::Block && levels > 1) continue;
      AttentionPlanner planner =
          make_planner(config_of({window(7), kFull, kCompressed, window(5, 3), ring(6), kState}, tables, levels));
      const PlanShape shape{.entries = 5, .tokens = 9, .columns = 7};
      TwoSequencesTwice two;
      for (PlannerEntry& entry : two.entries) entry.changed_column = 0;
      const std::vector<std::size_t> first =
          offsets_of(planner.build({.entries = two.entries, .entry_groups = two.groups, .shape = shape}));
      two.entries[1].changed_column = 2;
      two.entries[0].context_tokens = 15;
      two.entries[0].position = 10;
      two.entries[0].token_count = 5;
      two.windows_b[0].changed_column = 0;
      const std::vector<StateCopy> copies{{.kind = StateCopyKind::Reset, .group = 5, .target = 3}};
      const AttentionPlan plan =
          planner.build({.entries = two.entries, .entry_groups = two.groups, .shape = shape, .state_copies = copies});
      EXPECT_EQ(offsets_of(plan), first);
      for (const std::size_t offset : first) EXPECT_EQ(offset % 16, 0U);
    }
  }
}

// It is for full and compressed groups, and counts their keys anew; the others go by the text.
TEST(PlannerGroups, AWindowOfTheEntrysOwnLeavesWindowGroupsAsTheyAre) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    const AttentionPlannerConfig config = config_of({kFull, window(7), kCompressed, ring(8), kState}, tables);
    AttentionPlanner without = make_planner(config);
    AttentionPlanner with = make_planner(config);
    TwoSequences two;
    const AttentionPlan plain = without.build({.entries = two.entries, .entry_groups = two.groups});
    two.entries[0].window_tokens = 6;
    two.entries[0].sink_tokens = 2;
    const PlanShape shape{.entries = 3, .tokens = 6, .columns = 6};
    const AttentionPlan plan = with.build({.entries = two.entries, .entry_groups = two.groups, .shape = shape});
    EXPECT_EQ(list(plan.seq_lens), (Ints{6, 6, 0}));
    EXPECT_EQ(list(plan.stored_lens), (Ints{5, 2, 0}));
    EXPECT_EQ(list(plan.query_positions), (Ints{5, 2, 3, 4, 5, 0}));
    EXPECT_EQ(list(plan.context_lens), (Ints{22, 6, 0}));
    EXPECT_EQ(list(plain.context_lens), list(plain.seq_lens));
    const GroupPlan& group = plan.groups[1];
    EXPECT_EQ(list(group.append_slots.first(5)), list(plain.groups[1].append_slots));
    EXPECT_EQ(list(plan.groups[3].append_slots.first(5)), list(plain.groups[3].append_slots));
    const CascadeLevel& level = group.levels[0];
    const CascadeLevel& wanted = plain.groups[1].levels[0];
    EXPECT_EQ(list(level.first_keys.first(2)), list(wanted.first_keys));
    EXPECT_EQ(list(level.window_offsets.first(2)), list(wanted.window_offsets));
    EXPECT_EQ(level.page_indptr[2] - level.page_indptr[1], wanted.page_indptr[2] - wanted.page_indptr[1]);
    EXPECT_EQ(level.page_indptr[1] - level.page_indptr[0], wanted.page_indptr[1] - wanted.page_indptr[0]);
    if (tables != PageTables::Block) continue;
    EXPECT_EQ(list(group.block_table.first(12)), list(plain.groups[1].block_table));
    EXPECT_EQ(list(plan.groups[0].block_table.first(6)), (Ints{31, 35, 36, 0, 0, 0}));
    // Without a shape there is room for all columns, too.
    EXPECT_EQ(with.build({.entries = two.entries, .entry_groups = two.groups}).shape.columns, 6U);
  }
}

// They are lists of the pages that all full groups share, whichever group comes first.
TEST(PlannerGroups, WindowsOfLayersAreThoseOfFullGroups) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr}) {
    AttentionPlannerConfig config = config_of({kCompressed, window(7), kFull, kState, kFull}, tables);
    config.layer_windows = {5};
    AttentionPlanner planner = make_planner(config);
    const TwoSequences two;
    const AttentionPlan plan = planner.build({.entries = two.entries, .entry_groups = two.groups});
    for (const std::size_t other : {0U, 1U, 3U}) EXPECT_TRUE(plan.groups[other].layer_windows.empty()) << other;
    for (const std::size_t full : {2U, 4U}) {
      ASSERT_EQ(plan.groups[full].layer_windows.size(), 1U) << full;
      const LayerWindowPlan& lists = plan.groups[full].layer_windows[0];
      EXPECT_EQ(list(lists.first_keys), (Ints{17, 0}));
      EXPECT_EQ(list(lists.key_offsets), (Ints{1, 0}));
      EXPECT_EQ(list(lists.page_indptr), (Ints{8, 10, 12}));
      if (tables == PageTables::Csr) {
        EXPECT_EQ(list(plan.groups[full].page_indices),
                  (Ints{31, 32, 33, 34, 35, 36, 51, 52, 35, 36, 51, 52, 304, 305, 306, 501, 502}));
      }
    }
    EXPECT_EQ(list(plan.groups[1].levels[0].page_indptr), (Ints{12, 15, 17}));
  }
}

TEST(PlannerGroups, TheLargestPlanFits) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    const AttentionPlannerConfig config{
        .page_tokens = 1,
        .sequence_count_max = 3,
        .row_pages = 5,
        .step_tokens_max = 7,
        .steps_in_flight_max = 0,
        .tree_tokens_max = 4,
        .page_tables = tables,
        .cascade_levels_max = tables == PageTables::Block ? 1U : 3U,
        .layer_windows = tables == PageTables::Block ? std::vector<std::uint32_t>{} : std::vector{9U, 8U},
        .groups = {kFull, window(9, 8), kFull, ring(4), window(9), kState}};
    AttentionPlanner planner = make_planner(config);
    const Row row = row_of({2, 4, 6, 8, 10});
    const std::vector<std::int32_t> parents{-1, -1, -1, -1};
    const std::vector<SlotRun> slots{{9, 1}, {7, 1}, {5, 1}, {3, 1}, {1, 1}};
    const std::vector<PlannerWindow> windows(2, {.pages = row});
    const std::vector<PlannerEntryGroups> groups(3, {.windows = windows});
    std::vector<PlannerEntry> entries;
    for (std::uint32_t i = 0; i < 3; ++i) {
      PlannerEntry& entry = entries.emplace_back(entry_of(i, row, 5, 2));
      entry.changed_column = 0;
      entry.tree_parents = parents;
      entry.draft_count = 2;
      entry.send_slots = slots;
      entry.send_cached_end = 5;
    }
    const std::vector<PageCopy> copies(15);
    const std::vector<TokenMove> moves(12);
    const std::vector<std::int32_t> move_indptr{0, 4, 8, 12};
    const std::vector<PlannerWindowStep> window_steps(2,
                                                      {.copies = copies, .moves = moves, .move_indptr = move_indptr});
    const std::vector<StateCopy> state_copies(std::size_t{2} * 3 * kStateCopiesMax);
    const AttentionPlan plan = planner.build({.entries = entries,
                                              .entry_groups = groups,
                                              .shape = {.entries = 3, .tokens = 7, .columns = 5},
                                              .copies = copies,
                                              .moves = moves,
                                              .move_indptr = move_indptr,
                                              .windows = window_steps,
                                              .state_copies = state_copies,
                                              .state_saves = state_copies});
    EXPECT_EQ(plan.groups[2].sends.size(), 15U);
    EXPECT_EQ(plan.groups[4].copies.size(), 15U);
    EXPECT_EQ(plan.groups[1].deltas.size(), tables == PageTables::Rows ? 15U : 0U);
  }
}

// Views.

TEST(PlannerGroups, FlashInferReadsTheTrimmedListsOfAWindow) {
  AttentionPlanner planner =
      make_planner(config_of({kFull, window(7), kCompressed, ring(8), kState, window(7, 2)}, PageTables::Csr));
  const TwoSequencesTwice two;
  const AttentionPlan plan = planner.build({.entries = two.entries, .entry_groups = two.groups});
  const Result<FlashInferView> view = flashinfer_view(plan, 1);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(list(view->qo_indptr), (Ints{0, 1, 5}));
  EXPECT_EQ(list(view->kv_indptr), (Ints{8, 11, 13}));
  EXPECT_EQ(list(view->kv_indices.subspan(8, 5)), (Ints{304, 305, 306, 501, 502}));
  EXPECT_EQ(list(view->kv_last_page_len), (Ints{2, 2}));
  EXPECT_TRUE(flashinfer_view(plan, 0).has_value());
  EXPECT_EQ(flashinfer_view(plan, 1, 1).error().code, ErrorCode::InvalidArgument);
  for (const std::uint32_t group : {2U, 3U, 4U, 5U}) {
    EXPECT_EQ(flashinfer_view(plan, group).error().code, ErrorCode::Unsupported) << group;
  }
}

TEST(PlannerGroups, BlockTablesOfAWindowHaveAllColumns) {
  AttentionPlanner planner =
      make_planner(config_of({kFull, window(7), kCompressed, ring(8), window(7, 2)}, PageTables::Block));
  const TwoSequencesTwice two;
  const AttentionPlan plan = planner.build({.entries = two.entries, .entry_groups = two.groups});
  const Result<BlockTableView> view = block_table_view(plan, 1);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(list(view->block_table), (Ints{0, 0, 0, 304, 305, 306, 501, 502, 0, 0, 0, 0}));
  EXPECT_EQ(list(view->seq_lens), (Ints{22, 6}));
  EXPECT_EQ(list(view->slot_mapping), (Ints{1225, 2006, 2007, 2008, 2009}));
  for (const std::uint32_t group : {2U, 3U, 4U}) {
    EXPECT_EQ(block_table_view(plan, group).error().code, ErrorCode::Unsupported) << group;
  }
}

// Bounds.

TEST(PlannerGroups, GroupsThatCannotBeAreRefused) {
  const auto error_of = [](std::vector<PlannerGroup> groups) {
    const Result<AttentionPlanner> planner = AttentionPlanner::create(config_of(std::move(groups)));
    return planner ? "none" : std::string(to_string(planner.error().code));
  };
  EXPECT_EQ(error_of({kFull, kCompressed, window(1), ring(1), kState}), "none");
  EXPECT_EQ(error_of({{.kind = Kind::Compressed, .tokens_per_entry = 3}}), "InvalidArgument");
  EXPECT_EQ(error_of({{.kind = Kind::Compressed, .tokens_per_entry = 0}}), "InvalidArgument");
  EXPECT_EQ(error_of({window(0)}), "InvalidArgument");
  EXPECT_EQ(error_of({ring(2, 2)}), "InvalidArgument");
}

TEST(PlannerGroupsDeathTest, AStepThatTheGroupsDoNotAllowStopsTheProgram) {
  TwoSequences two;
  AttentionPlanner windows = make_planner(config_of({kFull, window(7), window(9)}));
  EXPECT_DEATH((void)windows.build({.entries = two.entries, .entry_groups = two.groups}),
               "not one row for each window group");
  AttentionPlanner one = make_planner(config_of({kFull, window(7)}));
  const std::vector<StateCopy> copies(1);
  EXPECT_DEATH((void)one.build({.state_copies = copies}), "more copies of states");
  EXPECT_DEATH((void)one.build({.entries = two.entries}), "not one entry_groups for each entry");
  two.windows_a[0].pages = two.windows_a[0].pages.first(5);
  EXPECT_DEATH((void)one.build({.entries = two.entries, .entry_groups = two.groups}), "does not hold its tokens");
  AttentionPlanner compressed = make_planner(config_of({kCompressed}));
  const std::vector<TokenMove> moves(1);
  EXPECT_DEATH((void)compressed.build({.moves = moves}), "entry of several tokens moves");
}

// Sends.

/// Token i of sequence b goes to slot 40 + i; of a window the first to slot 72, and those from token 3 on to 80 and up.
/// Two were computed before.
struct OneSends : TwoSequences {
  OneSends() {
    entries[1].send_slots = {&slots, 1};
    entries[1].receiver = 7;
    entries[1].send_cached_end = 2;
    groups[1].send_windows = windows;
  }
  SlotRun slots{.first_slot = 40, .token_count = 6};
  std::vector<WindowRun> windows{{.group = 1, .position = 0, .first_slot = 72, .token_count = 1},
                                 {.group = 1, .position = 3, .first_slot = 80, .token_count = 3}};
};

std::vector<Ints> list(std::span<const SendRun> sends) {
  std::vector<Ints> runs;
  for (const SendRun& run : sends) runs.push_back({run.local_slot, run.remote_slot, run.token_count, run.receiver});
  return runs;
}

TEST(PlannerGroups, EveryGroupWithPagesSaysWhereItsTokensGo) {
  AttentionPlanner planner = make_planner(config_of({kFull, window(9), kCompressed, kFull, ring(8), kState}));
  const OneSends one;
  const std::vector<StateSend> states{{.source = 5, .target = 1, .position = 6, .receiver = 7}};
  const AttentionPlan plan = planner.build({.entries = one.entries, .entry_groups = one.groups, .state_sends = states});
  EXPECT_EQ(list(plan.groups[0].remote_slots), (Ints{-1, 42, 43, 44, 45}));
  EXPECT_EQ(list(plan.groups[0].receivers), (Ints{-1, 7, 7, 7, 7}));
  EXPECT_EQ(list(plan.groups[0].sends), (std::vector<Ints>{{204, 40, 2, 7}}));
  EXPECT_EQ(list(plan.groups[1].remote_slots), (Ints{-1, -1, 80, 81, 82}));
  EXPECT_EQ(plan.groups[1].receivers.data(), plan.groups[0].receivers.data());
  EXPECT_EQ(list(plan.groups[1].sends), (std::vector<Ints>{{2004, 72, 1, 7}}));
  // Entries of 2 tokens: tokens 3 and 5 complete those that tokens in slots 43 and 45 would.
  EXPECT_EQ(list(plan.groups[2].remote_slots), (Ints{-1, -1, 21, -1, 22}));
  EXPECT_EQ(list(plan.groups[2].sends), (std::vector<Ints>{{102, 20, 1, 7}}));
  EXPECT_EQ(plan.groups[3].remote_slots.data(), plan.groups[0].remote_slots.data());
  EXPECT_EQ(plan.groups[3].sends.data(), plan.groups[0].sends.data());
  EXPECT_TRUE(plan.groups[4].remote_slots.empty() && plan.groups[5].remote_slots.empty());
  ASSERT_EQ(plan.state_sends.size(), 1U);
  EXPECT_EQ(plan.state_sends[0], states[0]);
  EXPECT_NE(plan.state_sends.data(), states.data());
}

TEST(PlannerGroups, WhereTheFirstGroupHasEntriesTheOthersHaveSlotsOfTheirOwn) {
  AttentionPlanner planner = make_planner(config_of({kCompressed, window(9), kFull, kFull}));
  const OneSends one;
  const AttentionPlan plan = planner.build({.entries = one.entries, .entry_groups = one.groups});
  EXPECT_EQ(list(plan.groups[0].remote_slots), (Ints{-1, -1, 21, -1, 22}));
  EXPECT_EQ(list(plan.groups[0].receivers), (Ints{-1, 7, 7, 7, 7}));
  EXPECT_EQ(list(plan.groups[0].sends), (std::vector<Ints>{{102, 20, 1, 7}}));
  EXPECT_EQ(list(plan.groups[2].remote_slots), (Ints{-1, 42, 43, 44, 45}));
  EXPECT_EQ(list(plan.groups[2].sends), (std::vector<Ints>{{204, 40, 2, 7}}));
  EXPECT_EQ(plan.groups[3].remote_slots.data(), plan.groups[2].remote_slots.data());
}

TEST(PlannerGroups, WindowsAloneSaySoToo) {
  AttentionPlanner planner = make_planner(config_of({kState, window(9)}));
  const OneSends one;
  const AttentionPlan plan = planner.build({.entries = one.entries, .entry_groups = one.groups});
  EXPECT_EQ(list(plan.groups[1].remote_slots), (Ints{-1, -1, 80, 81, 82}));
  EXPECT_EQ(list(plan.groups[1].receivers), (Ints{-1, 7, 7, 7, 7}));
  EXPECT_EQ(list(plan.groups[1].sends), (std::vector<Ints>{{2004, 72, 1, 7}}));
  EXPECT_TRUE(plan.groups[0].receivers.empty());
}

}  // namespace
}  // namespace quire
