// SPDX-License-Identifier: Apache-2.0
//
// Each array by examples small enough to check by hand: pages of 4 tokens, a page's id in tens for the sequence it
// belongs to.
#include "attention/attention_planner.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/plan.h"

namespace quire {
namespace {

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

constexpr AttentionPlannerConfig kConfig{.page_tokens = 4,
                                         .sequence_count_max = 8,
                                         .row_pages = 16,
                                         .step_tokens_max = 64,
                                         .steps_in_flight_max = 2,
                                         .tree_tokens_max = 8};

AttentionPlannerConfig config_with(PageTables page_tables, std::uint32_t levels = 1) {
  AttentionPlannerConfig config = kConfig;
  config.page_tables = page_tables;
  config.cascade_levels_max = levels;
  return config;
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

std::string to_text(std::span<const TreeNode> nodes) {
  std::string text;
  for (const TreeNode& node : nodes) {
    text += (text.empty() ? "(" : " (") + std::to_string(node.begin) + "," + std::to_string(node.end) + ")" +
            std::to_string(node.depth);
  }
  return text;
}

/// A decoding sequence with 10 tokens and one that computes the last 4 of 6.
struct TwoSequences {
  Row a = row_of({31, 32, 33});
  Row b = row_of({51, 52});
  std::vector<PlannerEntry> entries{entry_of(3, a, 10), entry_of(5, b, 6, 4)};
};

TEST(AttentionPlanner, QueriesKeysAndSlotsOfTwoSequences) {
  AttentionPlanner planner = make_planner(kConfig);
  const TwoSequences two;
  const AttentionPlan plan = planner.build({.entries = two.entries});
  EXPECT_EQ(plan.shape, (PlanShape{.entries = 2, .tokens = 5}));
  EXPECT_EQ(plan.entry_count, 2U);
  EXPECT_EQ(plan.token_count, 5U);
  EXPECT_EQ(list(plan.query_positions), (Ints{9, 2, 3, 4, 5}));
  EXPECT_EQ(list(plan.query_indptr), (Ints{0, 1, 5}));
  EXPECT_EQ(list(plan.seq_lens), (Ints{10, 6}));
  EXPECT_EQ(list(plan.stored_lens), (Ints{9, 2}));
  EXPECT_EQ(list(plan.visible_tokens), (Ints{0, 0}));
  EXPECT_EQ(list(plan.state_slots), (Ints{3, 5}));
  EXPECT_EQ(list(plan.tree_indptr), (Ints{0, 0, 0}));
  // The second of page 33; then the last two of page 51 and the first two of page 52.
  EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{133, 206, 207, 208, 209}));
  EXPECT_TRUE(plan.groups[0].remote_slots.empty());

  ASSERT_EQ(plan.entries.size(), 2U);
  EXPECT_EQ(plan.entries[1].position, 2U);
  EXPECT_EQ(plan.entries[1].context_tokens, 6U);
  EXPECT_EQ(plan.entries[1].last_page_tokens, 2U);
  EXPECT_EQ(plan.entries[1].state_slot, 5U);
  EXPECT_EQ(plan.entries[1].pages.data(), two.b.data());
  EXPECT_EQ(list(plan.entries[1].append_slots), (Ints{206, 207, 208, 209}));
}

TEST(AttentionPlanner, RowsNameTheTableAndShipWhatChangedInIt) {
  AttentionPlanner planner = make_planner(kConfig);
  TwoSequences two;
  two.entries[0].changed_column = 1;
  const AttentionPlan plan = planner.build({.entries = two.entries});
  const CascadeLevel& level = plan.groups[0].levels[0];
  EXPECT_EQ(list(level.query_indptr), (Ints{0, 1, 5}));
  EXPECT_EQ(list(level.page_indptr), (Ints{0, 3, 5}));
  EXPECT_EQ(list(level.rows), (Ints{3, 5}));
  EXPECT_EQ(list(level.first_columns), (Ints{0, 0}));
  EXPECT_EQ(list(level.last_page_tokens), (Ints{2, 2}));
  EXPECT_EQ(list(level.first_keys), (Ints{0, 0}));
  const std::span<const PageDelta> deltas = plan.groups[0].deltas;
  ASSERT_EQ(deltas.size(), 2U);
  EXPECT_EQ((Ints{deltas[0].row, deltas[0].column, deltas[0].page}), (Ints{3, 1, 32}));
  EXPECT_EQ((Ints{deltas[1].row, deltas[1].column, deltas[1].page}), (Ints{3, 2, 33}));
  EXPECT_TRUE(plan.groups[0].page_indices.empty());
}

TEST(AttentionPlanner, CsrListsEveryPage) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Csr));
  const TwoSequences two;
  const AttentionPlan plan = planner.build({.entries = two.entries});
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{31, 32, 33, 51, 52}));
  EXPECT_TRUE(plan.groups[0].levels[0].rows.empty());

  const Result<FlashInferView> view = flashinfer_view(plan);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(list(view->qo_indptr), (Ints{0, 1, 5}));
  EXPECT_EQ(list(view->kv_indptr), (Ints{0, 3, 5}));
  EXPECT_EQ(list(view->kv_indices), (Ints{31, 32, 33, 51, 52}));
  EXPECT_EQ(list(view->kv_last_page_len), (Ints{2, 2}));
}

TEST(AttentionPlanner, BlockTablesHaveALinePerEntry) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Block));
  const TwoSequences two;
  const AttentionPlan plan = planner.build({.entries = two.entries});
  EXPECT_EQ(plan.shape.columns, 3U);
  const Result<BlockTableView> view = block_table_view(plan);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->columns, 3U);
  EXPECT_EQ(list(view->block_table), (Ints{31, 32, 33, 51, 52, 0}));
  EXPECT_EQ(list(view->slot_mapping), (Ints{133, 206, 207, 208, 209}));
  EXPECT_EQ(list(view->seq_lens), (Ints{10, 6}));
  EXPECT_EQ(list(view->query_start_loc), (Ints{0, 1, 5}));
}

TEST(AttentionPlanner, AShapePadsWithEntriesThatComputeNothing) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner = make_planner(config_with(tables));
    const TwoSequences two;
    for (int i = 0; i < 4; ++i) {  // buffers that were used before, too
      const AttentionPlan plan =
          planner.build({.entries = two.entries, .shape = {.entries = 4, .tokens = 7, .columns = 4}});
      EXPECT_EQ(plan.entry_count, 2U);
      EXPECT_EQ(plan.token_count, 5U);
      EXPECT_EQ(list(plan.query_positions), (Ints{9, 2, 3, 4, 5, 0, 0}));
      EXPECT_EQ(list(plan.query_indptr), (Ints{0, 1, 5, 5, 5}));
      EXPECT_EQ(list(plan.seq_lens), (Ints{10, 6, 0, 0}));
      EXPECT_EQ(list(plan.stored_lens), (Ints{9, 2, 0, 0}));
      EXPECT_EQ(list(plan.visible_tokens), (Ints{0, 0, 0, 0}));
      EXPECT_EQ(list(plan.state_slots), (Ints{3, 5, -1, -1}));
      EXPECT_EQ(list(plan.tree_indptr), (Ints{0, 0, 0, 0, 0}));
      const GroupPlan& group = plan.groups[0];
      EXPECT_EQ(list(group.append_slots), (Ints{133, 206, 207, 208, 209, -1, -1}));
      EXPECT_EQ(list(group.levels[0].page_indptr), (Ints{0, 3, 5, 5, 5}));
      EXPECT_EQ(list(group.levels[0].last_page_tokens), (Ints{2, 2, 0, 0}));
      EXPECT_EQ(list(group.levels[0].rows), tables == PageTables::Rows ? (Ints{3, 5, -1, -1}) : Ints{});
      if (tables == PageTables::Block) {
        EXPECT_EQ(list(group.block_table), (Ints{31, 32, 33, 0, 51, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
      }
      EXPECT_EQ(plan.append_slots.size(), 5U);
      EXPECT_EQ(plan.entries.size(), 2U);
    }
  }
}

/// Where the arrays lie that a captured graph reads: all but those that may move.
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
  add(plan.stored_lens);
  add(plan.visible_tokens);
  add(plan.state_slots);
  add(plan.tree_indptr);
  const GroupPlan& group = plan.groups[0];
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
  for (const LayerWindowPlan& window : group.layer_windows) {
    add(window.page_indptr);
    add(window.rows);
    add(window.first_columns);
    add(window.first_keys);
    add(window.key_offsets);
  }
  add(group.deltas);
  add(group.page_indices);
  add(group.block_table);
  return offsets;
}

TEST(AttentionPlanner, PlansOfOneShapeHaveTheirArraysAtTheSameOffsets) {
  const std::vector<std::int32_t> parents{-1, 0};
  const std::vector<PageCopy> copies{{.source = PageId{7}, .target = PageId{8}, .token_count = 3}};
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    for (const std::uint32_t levels : {1U, 3U}) {
      if (tables == PageTables::Block && levels > 1) continue;
      AttentionPlannerConfig config = config_with(tables, levels);
      if (tables != PageTables::Block) config.layer_windows = {3, 5};
      AttentionPlanner planner = make_planner(config);
      const PlanShape shape{.entries = 5, .tokens = 9, .columns = 6};
      TwoSequences two;
      for (PlannerEntry& entry : two.entries) entry.changed_column = 0;
      const std::vector<std::size_t> first = offsets_of(planner.build({.entries = two.entries, .shape = shape}));
      two.entries[0].tree_parents = parents;
      two.entries[0].token_count = two.entries[0].draft_count = 2;
      two.entries[0].position = 8;
      const AttentionPlan plan = planner.build({.entries = two.entries, .shape = shape, .copies = copies});
      EXPECT_EQ(offsets_of(plan), first);
      EXPECT_EQ(first[0], 0U);
      for (const std::size_t offset : first) EXPECT_EQ(offset % 16, 0U);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plan.staging.data()) % 16, 0U);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plan.tree_nodes.data()) % 16, 0U);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(plan.copies.data()) % 16, 0U);
    }
  }
}

TEST(AttentionPlanner, APlanLivesUntilAnotherIsBuiltInItsBuffer) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Csr, 2));
  const TwoSequences two;
  const Row other_row = row_of({61, 62, 63, 64});
  const std::vector<PlannerEntry> others{entry_of(6, other_row, 16, 9)};
  const AttentionPlan plan = planner.build({.entries = two.entries});
  const std::vector<std::byte> bytes(plan.staging.begin(), plan.staging.end());
  for (std::uint32_t i = 1; i <= kConfig.steps_in_flight_max; ++i) {
    const AttentionPlan other = planner.build({.entries = others, .buffer_index = i});
    EXPECT_NE(other.staging.data(), plan.staging.data());
  }
  EXPECT_EQ(std::memcmp(bytes.data(), plan.staging.data(), bytes.size()), 0);
  EXPECT_EQ(list(plan.groups[0].levels[1].page_indptr), (Ints{0, 3, 5}));
  EXPECT_EQ(plan.entries[0].sequence.index, 3U);
  EXPECT_EQ(planner.build({.entries = others}).staging.data(), plan.staging.data());
}

TEST(AttentionPlanner, CopiesAndMovesTravelWithThePlan) {
  AttentionPlanner planner = make_planner(kConfig);
  const TwoSequences two;
  const std::vector<PageCopy> copies{{.source = PageId{7}, .target = PageId{8}, .token_count = 3}};
  const std::vector<TokenMove> moves{{.source_slot = 41, .target_slot = 40}, {.source_slot = 90, .target_slot = 89}};
  const std::vector<std::int32_t> move_indptr{0, 1, 2};
  const AttentionPlan plan =
      planner.build({.entries = two.entries, .copies = copies, .moves = moves, .move_indptr = move_indptr});
  ASSERT_EQ(plan.copies.size(), 1U);
  EXPECT_EQ(plan.copies.data(), plan.groups[0].copies.data());
  EXPECT_EQ(plan.copies[0].target, PageId{8});
  EXPECT_EQ(plan.copies[0].token_count, 3U);
  ASSERT_EQ(plan.groups[0].moves.size(), 2U);
  EXPECT_EQ(plan.groups[0].moves[1].source_slot, 90);
  EXPECT_EQ(list(plan.groups[0].move_indptr), (Ints{0, 1, 2}));
  const auto* const end = reinterpret_cast<const std::byte*>(plan.copies.data() + plan.copies.size());
  EXPECT_EQ(end, plan.staging.data() + plan.staging.size());
}

TEST(AttentionPlanner, AStepWithoutEntriesHasAPlan) {
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner = make_planner(config_with(tables, tables == PageTables::Block ? 1 : 2));
    EXPECT_EQ(list(planner.build({}).query_indptr), (Ints{0}));
    const AttentionPlan padded = planner.build({.shape = {.entries = 2, .tokens = 1, .columns = 1}});
    EXPECT_EQ(list(padded.query_indptr), (Ints{0, 0, 0}));
    EXPECT_EQ(list(padded.groups[0].append_slots), (Ints{-1}));
  }
}

// Shared pages.

/// A and C share two pages, and a third with D; B is alone. All decode.
struct Sharing {
  Row a = row_of({11, 12, 13, 14});
  Row b = row_of({21, 22});
  Row c = row_of({11, 12, 33});
  Row d = row_of({11, 12, 13, 44, 45});
  std::vector<PlannerEntry> entries{entry_of(0, a, 14), entry_of(1, b, 8), entry_of(2, c, 9), entry_of(3, d, 20, 2)};

  Sharing() {
    for (PlannerEntry& entry : entries) entry.shareable_pages = static_cast<std::uint32_t>(entry.pages.size());
  }
};

TEST(AttentionPlanner, SharedPagesAreListedOnceInTheOrderOfTheCascade) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Csr, 3));
  const Sharing sharing;
  const AttentionPlan plan = planner.build({.entries = sharing.entries});
  EXPECT_EQ(list(plan.state_slots), (Ints{0, 3, 2, 1}));
  EXPECT_EQ(plan.entries[1].entry_index, 3U);
  EXPECT_EQ(list(plan.query_positions), (Ints{13, 18, 19, 8, 7}));
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{11, 12, 13, 14, 44, 45, 33, 21, 22}));

  const std::span<const CascadeLevel> levels = plan.groups[0].levels;
  ASSERT_EQ(levels.size(), 3U);
  EXPECT_EQ(list(levels[0].query_indptr), (Ints{0, 4, 5, 5, 5}));  // A D C, B, padding
  EXPECT_EQ(list(levels[0].page_indptr), (Ints{0, 2, 2, 2, 2}));
  EXPECT_EQ(list(levels[0].last_page_tokens), (Ints{4, 0, 0, 0}));
  EXPECT_EQ(list(levels[1].query_indptr), (Ints{0, 3, 5, 5, 5}));  // A D, C B, padding
  EXPECT_EQ(list(levels[1].page_indptr), (Ints{2, 3, 3, 3, 3}));
  EXPECT_EQ(list(levels[1].first_keys), (Ints{8, 0, 0, 0}));
  EXPECT_EQ(list(levels[2].query_indptr), (Ints{0, 1, 3, 4, 5}));
  EXPECT_EQ(list(levels[2].page_indptr), (Ints{3, 4, 6, 7, 9}));
  EXPECT_EQ(list(levels[2].first_keys), (Ints{12, 12, 8, 0}));
  EXPECT_EQ(list(levels[2].last_page_tokens), (Ints{2, 4, 1, 4}));

  const Result<FlashInferView> view = flashinfer_view(plan, 0, 1);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(list(view->kv_indptr), (Ints{2, 3, 3, 3, 3}));
}

TEST(AttentionPlanner, ASharedSliceOfRowsIsPartOfOneOfThem) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Rows, 2));
  const Sharing sharing;
  const AttentionPlan plan = planner.build({.entries = sharing.entries});
  const std::span<const CascadeLevel> levels = plan.groups[0].levels;
  EXPECT_EQ(list(levels[0].rows), (Ints{0, -1, -1, -1}));
  EXPECT_EQ(list(levels[0].first_columns), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(list(levels[1].rows), (Ints{0, 2, 3, 1}));
  EXPECT_EQ(list(levels[1].first_columns), (Ints{2, 2, 2, 0}));
  EXPECT_EQ(list(levels[1].page_indptr), (Ints{2, 4, 5, 8, 10}));
}

TEST(AttentionPlanner, PagesThatTheStepWritesOrQueriesStayOutOfSharedSlices) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Csr, 2));
  const Row a = row_of({11, 12});
  std::vector<PlannerEntry> entries{entry_of(0, a, 8), entry_of(1, a, 8)};
  for (PlannerEntry& entry : entries) {
    entry.shareable_pages = 2;
    entry.runs_again = true;
  }
  const AttentionPlan again = planner.build({.entries = entries});
  EXPECT_EQ(list(again.groups[0].page_indices), (Ints{11, 12, 12}));
  EXPECT_EQ(list(again.groups[0].append_slots), (Ints{-1, -1}));
  EXPECT_EQ(list(again.stored_lens), (Ints{7, 7}));

  // The next tokens of both lie behind what they share, all of it.
  const Row longer_a = row_of({11, 12, 13});
  const Row longer_b = row_of({11, 12, 23});
  entries = {entry_of(0, longer_a, 9), entry_of(1, longer_b, 9)};
  for (PlannerEntry& entry : entries) entry.shareable_pages = 3;
  for (const PlannerEntry& entry : entries) planner.forget_row(entry.sequence.index);
  const AttentionPlan next = planner.build({.entries = entries});
  EXPECT_EQ(list(next.groups[0].page_indices), (Ints{11, 12, 13, 23}));
}

TEST(AttentionPlanner, EntriesWithAWindowShareNothing) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Csr, 2));
  Sharing sharing;
  for (PlannerEntry& entry : sharing.entries) entry.window_tokens = 100;
  const AttentionPlan plan = planner.build({.entries = sharing.entries});
  EXPECT_EQ(list(plan.groups[0].levels[0].page_indptr), (Ints{0, 0, 0, 0, 0}));
  EXPECT_EQ(list(plan.state_slots), (Ints{0, 1, 2, 3}));
}

TEST(AttentionPlanner, WhatWasSharedHoldsWhileSequencesGrow) {
  AttentionPlanner planner = make_planner(config_with(PageTables::Csr, 3));
  Sharing sharing;
  (void)planner.build({.entries = sharing.entries});
  sharing.b.push_back(PageId{23});
  sharing.entries[1] = entry_of(1, sharing.b, 9);
  sharing.entries[1].shareable_pages = 3;
  const AttentionPlan plan = planner.build({.entries = sharing.entries});
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{11, 12, 13, 14, 44, 45, 33, 21, 22, 23}));
}

// Windows: 3 sink tokens and the 7 most recent ones.

PlannerEntry windowed(const Row& row, std::uint32_t context_tokens, std::uint32_t token_count = 1) {
  PlannerEntry entry = entry_of(1, row, context_tokens, token_count);
  entry.window_tokens = 10;
  entry.sink_tokens = 3;
  return entry;
}

TEST(AttentionPlanner, AWindowThatIsNotFullSkipsNothing) {
  const Row row = row_of({11, 12, 13});
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner = make_planner(config_with(tables));
    const std::vector<PlannerEntry> entries{windowed(row, 10)};
    const AttentionPlan plan = planner.build({.entries = entries});
    EXPECT_EQ(list(plan.seq_lens), (Ints{10}));
    EXPECT_EQ(list(plan.stored_lens), (Ints{9}));
    EXPECT_EQ(list(plan.visible_tokens), (Ints{10}));
    EXPECT_EQ(list(plan.query_positions), (Ints{9}));
    EXPECT_EQ(list(plan.groups[0].levels[0].window_offsets), (Ints{3}));
    EXPECT_EQ(list(plan.groups[0].levels[0].sink_tokens), (Ints{3}));
  }
}

TEST(AttentionPlanner, ARowKeepsTheColumnsThatAWindowSkips) {
  // Token 20 sees the sink, 0 to 2, and 14 to 20: tokens 3 to 13 are no keys. Column 3 is still there.
  const Row row = row_of({11, 0, 0, 14, 15, 16});
  AttentionPlanner planner = make_planner(kConfig);
  const std::vector<PlannerEntry> entries{windowed(row, 21)};
  const AttentionPlan plan = planner.build({.entries = entries});
  EXPECT_EQ(list(plan.seq_lens), (Ints{10}));
  EXPECT_EQ(list(plan.stored_lens), (Ints{9}));
  EXPECT_EQ(list(plan.query_positions), (Ints{9}));  // its place in the window
  EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{64}));
  const CascadeLevel& level = plan.groups[0].levels[0];
  EXPECT_EQ(list(level.page_indptr), (Ints{0, 6}));
  EXPECT_EQ(list(level.window_offsets), (Ints{14}));
  EXPECT_EQ(list(level.sink_tokens), (Ints{3}));
  EXPECT_EQ(list(level.last_page_tokens), (Ints{1}));
  EXPECT_EQ(list(level.first_keys), (Ints{0}));
}

TEST(AttentionPlanner, AListOfPagesLeavesThoseOutThatAWindowSkips) {
  const Row row = row_of({11, 0, 0, 14, 15, 16});
  AttentionPlanner csr = make_planner(config_with(PageTables::Csr));
  const std::vector<PlannerEntry> entries{windowed(row, 21)};
  const AttentionPlan plan = csr.build({.entries = entries});
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{11, 14, 15, 16}));
  EXPECT_EQ(list(plan.groups[0].levels[0].window_offsets), (Ints{6}));  // token 14 is the third of the second page
  EXPECT_EQ(list(plan.seq_lens), (Ints{10}));

  AttentionPlanner block = make_planner(config_with(PageTables::Block));
  const AttentionPlan table = block.build({.entries = entries, .shape = {.columns = 5}});
  EXPECT_EQ(list(table.groups[0].block_table), (Ints{11, 14, 15, 16, 0}));
  EXPECT_EQ(list(table.groups[0].levels[0].window_offsets), (Ints{6}));
}

TEST(AttentionPlanner, TokensThatNoLaterStepNeedsHaveNoSlot) {
  // A chunk of 17 tokens from 4 on. Behind it, 21 and later see from 15 on: columns 1 and 2 are never stored.
  const Row row = row_of({11, 0, 0, 14, 15, 16});
  AttentionPlanner planner = make_planner(config_with(PageTables::Csr));
  const std::vector<PlannerEntry> entries{windowed(row, 21, 17)};
  const AttentionPlan plan = planner.build({.entries = entries});
  EXPECT_EQ(list(plan.groups[0].append_slots),
            (Ints{-1, -1, -1, -1, -1, -1, -1, -1, 56, 57, 58, 59, 60, 61, 62, 63, 64}));
  EXPECT_EQ(list(plan.query_positions), (Ints{4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}));
  EXPECT_EQ(list(plan.seq_lens), (Ints{21}));  // token 4 sees all before it
  EXPECT_EQ(list(plan.stored_lens), (Ints{4}));
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{11, 0, 0, 14, 15, 16}));
  EXPECT_EQ(list(plan.groups[0].levels[0].window_offsets), (Ints{3}));
}

// Windows of layers: page lists without what none of an entry's queries sees there.

AttentionPlannerConfig layers_with(PageTables page_tables, std::vector<std::uint32_t> windows,
                                   std::uint32_t levels = 1) {
  AttentionPlannerConfig config = config_with(page_tables, levels);
  config.layer_windows = std::move(windows);
  return config;
}

TEST(AttentionPlanner, LayersWithAWindowReadRowsFromTheFirstKeyTheySee) {
  AttentionPlanner planner = make_planner(layers_with(PageTables::Rows, {6, 100}));
  const TwoSequences two;
  const AttentionPlan plan = planner.build({.entries = two.entries, .shape = {.entries = 3, .tokens = 5}});
  ASSERT_EQ(plan.groups[0].layer_windows.size(), 2U);
  // Token 9 sees from token 4 on, the first of page 32. Of the chunk of tokens 2 to 5, token 2 sees all before it.
  const LayerWindowPlan& six = plan.groups[0].layer_windows[0];
  EXPECT_EQ(six.window_tokens, 6U);
  EXPECT_EQ(list(plan.groups[0].levels[0].page_indptr), (Ints{0, 3, 5, 5}));
  EXPECT_EQ(list(six.page_indptr), (Ints{5, 7, 9, 9}));
  EXPECT_EQ(list(six.rows), (Ints{3, 5, -1}));
  EXPECT_EQ(list(six.first_columns), (Ints{1, 0, 0}));
  EXPECT_EQ(list(six.first_keys), (Ints{4, 0, 0}));
  EXPECT_EQ(list(six.key_offsets), (Ints{0, 0, 0}));
  const LayerWindowPlan& hundred = plan.groups[0].layer_windows[1];
  EXPECT_EQ(hundred.window_tokens, 100U);
  EXPECT_EQ(list(hundred.page_indptr), (Ints{9, 12, 14, 14}));
  EXPECT_EQ(list(hundred.first_columns), (Ints{0, 0, 0}));
  EXPECT_EQ(list(hundred.first_keys), (Ints{0, 0, 0}));
}

TEST(AttentionPlanner, TrimmedListsStandBehindThoseOfAllLevels) {
  // A chunk of tokens 7 to 10: in layers with a window of 3, token 7 sees 5, 6 and itself.
  const Row row = row_of({11, 12, 13});
  const Row other = row_of({21, 22});
  const std::vector<PlannerEntry> entries{entry_of(1, row, 11, 4), entry_of(2, other, 8)};
  AttentionPlanner planner = make_planner(layers_with(PageTables::Csr, {3, 1}));
  const AttentionPlan plan = planner.build({.entries = entries, .shape = {.entries = 4, .tokens = 8}});
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{11, 12, 13, 21, 22, 12, 13, 22, 12, 13, 22}));
  const LayerWindowPlan& three = plan.groups[0].layer_windows[0];
  EXPECT_TRUE(three.rows.empty());
  EXPECT_EQ(list(three.page_indptr), (Ints{5, 7, 8, 8, 8}));
  EXPECT_EQ(list(three.first_keys), (Ints{5, 5, 0, 0}));
  EXPECT_EQ(list(three.key_offsets), (Ints{1, 1, 0, 0}));
  const LayerWindowPlan& one = plan.groups[0].layer_windows[1];
  EXPECT_EQ(list(one.page_indptr), (Ints{8, 10, 11, 11, 11}));
  EXPECT_EQ(list(one.first_keys), (Ints{7, 7, 0, 0}));
  EXPECT_EQ(list(one.key_offsets), (Ints{3, 3, 0, 0}));
  // What the views give is as it was: offsets say where a list ends.
  EXPECT_EQ(list((*flashinfer_view(plan)).kv_indptr), (Ints{0, 3, 5, 5, 5}));
}

TEST(AttentionPlanner, TrimmedListsAreOfTheSequencesOwnRowsWhateverIsShared) {
  AttentionPlanner planner = make_planner(layers_with(PageTables::Rows, {7}, 2));
  const Sharing sharing;
  const AttentionPlan plan = planner.build({.entries = sharing.entries});
  const LayerWindowPlan& window = plan.groups[0].layer_windows[0];
  EXPECT_EQ(list(window.rows), list(plan.groups[0].levels[1].rows));
  for (std::size_t i = 0; i < plan.entry_count; ++i) {
    const std::int32_t first = std::max(plan.query_positions[static_cast<std::size_t>(plan.query_indptr[i])] - 6, 0);
    EXPECT_EQ(window.first_keys[i], first);
    EXPECT_EQ(window.first_columns[i], first / 4);
    EXPECT_EQ(window.page_indptr[i + 1] - window.page_indptr[i], ((plan.seq_lens[i] - 1) / 4) + 1 - (first / 4));
  }
}

TEST(AttentionPlanner, ATreesTrimmedListBeginsWithWhatItsFirstTokenSees) {
  // 9 stored tokens, then a tree of four in two rounds. Its first token, at place 9, sees 6 to 8 in such a layer; the
  // second round's see less, but the tree's region stays whole.
  const Row row = row_of({11, 12, 13, 14});
  const std::vector<std::int32_t> parents{-1, 0, 1, 1};
  PlannerEntry entry = entry_of(1, row, 13, 2);
  entry.draft_count = 2;
  entry.tree_parents = parents;
  AttentionPlanner planner = make_planner(layers_with(PageTables::Csr, {4}));
  const AttentionPlan plan = planner.build({.entries = {&entry, 1}});
  EXPECT_EQ(list(plan.stored_lens), (Ints{9}));
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{11, 12, 13, 14, 12, 13, 14}));
  EXPECT_EQ(list(plan.groups[0].layer_windows[0].first_keys), (Ints{6}));
  EXPECT_EQ(list(plan.groups[0].layer_windows[0].key_offsets), (Ints{2}));
}

TEST(AttentionPlanner, AnEntryWithAWindowOfItsOwnListsItAgain) {
  const Row row = row_of({11, 0, 0, 14, 15, 16});
  const std::vector<PlannerEntry> entries{windowed(row, 21)};
  AttentionPlanner csr = make_planner(layers_with(PageTables::Csr, {2}));
  const AttentionPlan plan = csr.build({.entries = entries});
  EXPECT_EQ(list(plan.groups[0].page_indices), (Ints{11, 14, 15, 16, 11, 14, 15, 16}));
  EXPECT_EQ(list(plan.groups[0].layer_windows[0].first_keys), (Ints{0}));
  EXPECT_EQ(list(plan.groups[0].layer_windows[0].key_offsets), (Ints{0}));

  AttentionPlanner rows = make_planner(layers_with(PageTables::Rows, {2}));
  const AttentionPlan table = rows.build({.entries = entries});
  EXPECT_EQ(list(table.groups[0].layer_windows[0].page_indptr), (Ints{6, 12}));
  EXPECT_EQ(list(table.groups[0].layer_windows[0].first_columns), (Ints{0}));
}

TEST(AttentionPlanner, WindowsOfLayersAreAboveZeroAndNotForBlockTables) {
  const auto zero = AttentionPlanner::create(layers_with(PageTables::Rows, {0}));
  ASSERT_FALSE(zero.has_value());
  EXPECT_EQ(zero.error().code, ErrorCode::InvalidArgument);
  const auto block = AttentionPlanner::create(layers_with(PageTables::Block, {4}));
  ASSERT_FALSE(block.has_value());
  EXPECT_EQ(block.error().code, ErrorCode::Unsupported);
}

// Token trees.

TEST(AttentionPlanner, ATreeStandsBehindTheKnownTokensOfItsFirstRound) {
  // 6 stored tokens, 2 known ones, and a root with two children.
  const Row row = row_of({11, 12, 13});
  const std::vector<std::int32_t> parents{-1, 0, 0};
  PlannerEntry entry = entry_of(1, row, 11, 5);
  entry.draft_count = 3;
  entry.tree_parents = parents;
  const Row other = row_of({21});
  const std::vector<PlannerEntry> entries{entry_of(2, other, 3), entry};
  AttentionPlanner planner = make_planner(kConfig);
  const AttentionPlan plan = planner.build({.entries = entries});
  EXPECT_EQ(list(plan.tree_indptr), (Ints{0, 0, 5}));
  EXPECT_EQ(to_text(plan.tree_nodes), "(0,5)0 (1,5)1 (2,5)2 (3,4)3 (4,5)3");
  EXPECT_EQ(list(plan.query_positions), (Ints{2, 6, 7, 8, 9, 9}));
  EXPECT_EQ(list(plan.seq_lens), (Ints{3, 11}));
  EXPECT_EQ(list(plan.stored_lens), (Ints{2, 6}));
  EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{86, 50, 51, 52, 53, 54}));
}

TEST(AttentionPlanner, ALaterRoundListsTheWholeTreeAndQueriesItsEnd) {
  // 8 stored tokens and a root with two children; the second child, token 2, gets children 3 and 4.
  const Row row = row_of({11, 12, 13, 14});
  const std::vector<std::int32_t> parents{-1, 0, 0, 2, 2};
  PlannerEntry entry = entry_of(1, row, 13, 2);
  entry.draft_count = 2;
  entry.tree_parents = parents;
  entry.shareable_pages = 4;
  const std::vector<PlannerEntry> entries{entry};
  AttentionPlanner planner = make_planner(config_with(PageTables::Rows, 2));
  const AttentionPlan plan = planner.build({.entries = entries});
  EXPECT_EQ(list(plan.tree_indptr), (Ints{0, 5}));
  EXPECT_EQ(to_text(plan.tree_nodes), "(0,5)0 (1,2)1 (2,5)1 (3,4)2 (4,5)2");
  EXPECT_EQ(list(plan.query_positions), (Ints{10, 10}));
  EXPECT_EQ(list(plan.seq_lens), (Ints{13}));
  EXPECT_EQ(list(plan.stored_lens), (Ints{8}));
  EXPECT_EQ(list(plan.groups[0].append_slots), (Ints{55, 56}));
}

// Prefill for another cache.

TEST(AttentionPlanner, TokensToBeSentHaveRemoteSlots) {
  // Tokens from 3 on go to slots 100, 101, 102, 103, 200, 201, …; 3 to 7 are in the cache, 8 and 9 are computed.
  const Row row = row_of({11, 12, 20});
  const std::vector<SlotRun> slots{{.first_slot = 100, .token_count = 4}, {.first_slot = 200, .token_count = 3}};
  PlannerEntry entry = entry_of(1, row, 11, 3);
  entry.send_slots = slots;
  entry.send_begin = 3;
  entry.receiver = 6;
  entry.send_cached_begin = 3;
  entry.send_cached_end = 8;
  const Row other = row_of({21});
  const std::vector<PlannerEntry> entries{entry_of(2, other, 3), entry};
  AttentionPlanner planner = make_planner(kConfig);
  const AttentionPlan plan = planner.build({.entries = entries, .shape = {.tokens = 5}});
  const GroupPlan& group = plan.groups[0];
  EXPECT_EQ(list(group.remote_slots), (Ints{-1, 201, 202, -1, -1}));  // token 10 is beyond the slots
  EXPECT_EQ(list(group.receivers), (Ints{-1, 6, 6, -1, -1}));
  ASSERT_EQ(group.sends.size(), 2U);
  // Pages 11 and 12 follow each other here too, so token 3 and tokens 4 to 6 are one run.
  EXPECT_EQ((Ints{group.sends[0].local_slot, group.sends[0].remote_slot, group.sends[0].token_count}),
            (Ints{47, 100, 4}));
  EXPECT_EQ((Ints{group.sends[1].local_slot, group.sends[1].remote_slot, group.sends[1].token_count}),
            (Ints{51, 200, 1}));
  EXPECT_EQ(group.sends[1].receiver, 6);
}

TEST(AttentionPlanner, WhatIsNotStoredOrNotDecidedIsNotSent) {
  const Row row = row_of({11, 0, 13});
  const std::vector<SlotRun> slots{{.first_slot = 100, .token_count = 50}};
  const std::vector<std::int32_t> parents{-1};
  PlannerEntry entry = entry_of(1, row, 11, 2);
  entry.draft_count = 1;
  entry.tree_parents = parents;
  entry.send_slots = slots;
  entry.receiver = 0;
  entry.send_cached_end = 9;
  PlannerEntry again = entry_of(2, row, 11);
  again.runs_again = true;
  again.send_slots = slots;
  again.receiver = 1;
  const std::vector<PlannerEntry> entries{entry, again};
  AttentionPlanner planner = make_planner(kConfig);
  const GroupPlan& group = planner.build({.entries = entries}).groups[0];
  EXPECT_EQ(list(group.remote_slots), (Ints{109, -1, -1}));
  ASSERT_EQ(group.sends.size(), 2U);
  EXPECT_EQ(group.sends[0].token_count, 4);
  EXPECT_EQ(group.sends[1].local_slot, 52);
  EXPECT_EQ(group.sends[1].remote_slot, 108);
}

// Bounds.

TEST(AttentionPlanner, TheLargestPlanFits) {
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
        .layer_windows = tables == PageTables::Block ? std::vector<std::uint32_t>{} : std::vector{9U, 8U}};
    AttentionPlanner planner = make_planner(config);
    const Row row = row_of({2, 4, 6, 8, 10});
    const std::vector<std::int32_t> parents{-1, -1, -1, -1};
    const std::vector<SlotRun> slots{{9, 1}, {7, 1}, {5, 1}, {3, 1}, {1, 1}};
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
    const AttentionPlan plan = planner.build({.entries = entries,
                                              .shape = {.entries = 3, .tokens = 7, .columns = 5},
                                              .copies = copies,
                                              .moves = moves,
                                              .move_indptr = move_indptr});
    EXPECT_EQ(plan.tree_nodes.size(), 12U);
    EXPECT_EQ(plan.groups[0].sends.size(), 15U);
    EXPECT_EQ(plan.groups[0].deltas.size(), tables == PageTables::Rows ? 15U : 0U);
  }
}

TEST(AttentionPlanner, SizesThatDoNotFitAreRefused) {
  const auto error_of = [](const AttentionPlannerConfig& config) {
    const Result<AttentionPlanner> planner = AttentionPlanner::create(config);
    return planner ? "none" : std::string(to_string(planner.error().code));
  };
  AttentionPlannerConfig config = kConfig;
  config.page_tokens = 0;
  EXPECT_EQ(error_of(config), "InvalidArgument");
  config = kConfig;
  config.row_pages = UINT32_MAX;
  EXPECT_EQ(error_of(config), "InvalidArgument");
  config = kConfig;
  config.step_tokens_max = UINT32_MAX;
  EXPECT_EQ(error_of(config), "InvalidArgument");
  config = kConfig;
  config.sequence_count_max = config.tree_tokens_max = UINT32_MAX;
  EXPECT_EQ(error_of(config), "InvalidArgument");
  EXPECT_EQ(error_of(config_with(PageTables::Block, 2)), "Unsupported");
  EXPECT_EQ(error_of(kConfig), "none");
}

TEST(AttentionPlannerDeathTest, AStepBeyondItsBoundsStopsTheProgram) {
  AttentionPlanner planner = make_planner(kConfig);
  TwoSequences two;
  EXPECT_DEATH((void)planner.build({.entries = two.entries, .shape = {.tokens = 4}}), "larger than its shape");
  EXPECT_DEATH((void)planner.build({.entries = two.entries, .shape = {.tokens = 65}}), "larger than any plan");
  two.entries[0].pages = two.entries[0].pages.first(2);
  EXPECT_DEATH((void)planner.build({.entries = two.entries}), "does not hold its tokens");
}

// Views.

TEST(PlanViews, OtherPageTablesAndUnknownPartsAreRefused) {
  const TwoSequences two;
  AttentionPlanner rows = make_planner(kConfig);
  const AttentionPlan row_plan = rows.build({.entries = two.entries});
  EXPECT_EQ(flashinfer_view(row_plan).error().code, ErrorCode::Unsupported);
  EXPECT_EQ(block_table_view(row_plan).error().code, ErrorCode::Unsupported);
  EXPECT_EQ(block_table_view(row_plan).error().message,
            "the plan's page tables are Rows; open the cache with PlanConfig::page_tables = Block");
  AttentionPlanner csr = make_planner(config_with(PageTables::Csr, 2));
  const AttentionPlan csr_plan = csr.build({.entries = two.entries});
  EXPECT_TRUE(flashinfer_view(csr_plan, 0, 1).has_value());
  EXPECT_EQ(flashinfer_view(csr_plan, 0, 2).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(flashinfer_view(csr_plan, 1, 0).error().code, ErrorCode::InvalidArgument);
}

TEST(PlanViews, AWindowThatHasBeenOutgrownIsRefused) {
  const Row row = row_of({11, 0, 0, 14, 15, 16});
  const Row short_row = row_of({11, 12, 13});
  for (const auto& [entry, is_plain] :
       {std::pair{windowed(short_row, 10), true}, {windowed(row, 21), false}, {windowed(row, 21, 17), false}}) {
    const std::vector<PlannerEntry> entries{entry};
    AttentionPlanner csr = make_planner(config_with(PageTables::Csr));
    EXPECT_EQ(flashinfer_view(csr.build({.entries = entries})).has_value(), is_plain);
    AttentionPlanner block = make_planner(config_with(PageTables::Block));
    EXPECT_EQ(block_table_view(block.build({.entries = entries})).has_value(), is_plain);
  }
}

}  // namespace
}  // namespace quire
