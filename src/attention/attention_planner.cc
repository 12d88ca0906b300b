// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_planner.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "attention/entry_keys.h"
#include "base/check.h"
#include "base/checked.h"

namespace quire {
namespace {

constexpr std::uint64_t kIndexMax = std::numeric_limits<std::int32_t>::max();

Status check_groups(const AttentionPlannerConfig& config) {
  for (const PlannerGroup& group : config.groups) {
    switch (group.kind) {
      case PlannerGroup::Kind::Compressed:
        if (group.tokens_per_entry == 0 || config.page_tokens % group.tokens_per_entry != 0) {
          return fail(ErrorCode::InvalidArgument, "pages of " + std::to_string(config.page_tokens) +
                                                      " tokens hold no whole number of entries of " +
                                                      std::to_string(group.tokens_per_entry));
        }
        break;
      case PlannerGroup::Kind::Window:
        if (group.window_tokens == 0) return fail(ErrorCode::InvalidArgument, "a group's window must be above 0");
        break;
      case PlannerGroup::Kind::Ring:
        if (group.slot_entries <= group.sink_tokens) {
          return fail(ErrorCode::InvalidArgument, "a ring of " + std::to_string(group.slot_entries) +
                                                      " entries has no room behind its sink of " +
                                                      std::to_string(group.sink_tokens));
        }
        break;
      case PlannerGroup::Kind::Full:
      case PlannerGroup::Kind::State:
        break;
    }
  }
  return {};
}

Status check_config(const AttentionPlannerConfig& config) {
  if (config.page_tokens == 0 || config.sequence_count_max == 0 || config.row_pages == 0 ||
      config.step_tokens_max == 0 || config.cascade_levels_max == 0) {
    return fail(ErrorCode::InvalidArgument,
                "page_tokens, sequences, pages of a sequence, step_tokens_max and cascade_levels_max must be above 0");
  }
  if (config.page_tables == PageTables::Block && config.cascade_levels_max > 1) {
    return fail(ErrorCode::Unsupported,
                "block tables have one level: set cascade_levels_max to 1, or page_tables to Rows or Csr");
  }
  if (std::ranges::count(config.layer_windows, 0U) > 0) {
    return fail(ErrorCode::InvalidArgument, "a layer's window must be above 0");
  }
  if (config.page_tables == PageTables::Block && !config.layer_windows.empty()) {
    return fail(ErrorCode::Unsupported, "block tables have no trimmed lists for layers with windows of their own");
  }
  const std::uint64_t pages = std::uint64_t{config.sequence_count_max} * config.row_pages;
  // As if every group had lists of its own.
  const std::size_t list_count = config.layer_windows.size() + std::max<std::size_t>(config.groups.size(), 1);
  const std::optional<std::uint64_t> listed_pages = checked_multiply(pages, list_count);
  const std::uint64_t row_tokens = std::uint64_t{config.row_pages} * config.page_tokens;
  const std::uint64_t tree_tokens =
      (std::uint64_t{config.sequence_count_max} * config.tree_tokens_max) + config.step_tokens_max;
  if (!listed_pages || *listed_pages > kIndexMax || row_tokens > kIndexMax || tree_tokens > kIndexMax) {
    return fail(ErrorCode::InvalidArgument,
                "plans index with 32 bits, which " + std::to_string(config.sequence_count_max) + " sequences of " +
                    std::to_string(config.row_pages) + " pages of " + std::to_string(config.page_tokens) +
                    " tokens, with " + std::to_string(config.tree_tokens_max) + " tree tokens each and " +
                    std::to_string(config.step_tokens_max) + " tokens in a step and " +
                    std::to_string(config.layer_windows.size()) +
                    " windows of layers, exceed: set context_tokens_max to what the model can use");
  }
  return {};
}

}  // namespace

Result<AttentionPlanner> AttentionPlanner::create(const AttentionPlannerConfig& config) {
  QUIRE_TRY(check_config(config));
  QUIRE_TRY(check_groups(config));
  const std::optional<std::uint64_t> staging_bytes = staging_bytes_max(config);
  if (!staging_bytes) {
    return fail(ErrorCode::InvalidArgument,
                "the largest plan does not fit in memory: set context_tokens_max to what the model can use");
  }
  AttentionPlanner planner;
  planner.config_ = config;
  planner.describe_groups();
  for (std::uint64_t i = 0; i <= config.steps_in_flight_max; ++i) {
    Buffer& buffer = planner.buffers_.emplace_back();
    QUIRE_TRY_ASSIGN(buffer.staging, LazyMemory::reserve(*staging_bytes));
    QUIRE_TRY_ASSIGN(buffer.levels, LazyArray<CascadeLevel>::create(config.cascade_levels_max));
    QUIRE_TRY_ASSIGN(buffer.slice_counts, LazyArray<std::uint32_t>::create(config.cascade_levels_max));
    buffer.layer_windows.resize(config.layer_windows.size());
    buffer.groups.resize(planner.config_.groups.size());
    buffer.window_levels.resize(planner.config_.groups.size());
    QUIRE_TRY_ASSIGN(buffer.entries, LazyArray<AttentionPlanEntry>::create(config.sequence_count_max));
  }
  QUIRE_TRY_ASSIGN(planner.levels_, LazyArray<LevelArrays>::create(config.cascade_levels_max));
  planner.layer_windows_.resize(config.layer_windows.size());
  if (config.cascade_levels_max > 1) {
    QUIRE_TRY_ASSIGN(planner.cascade_, Cascade::create(config.sequence_count_max, config.cascade_levels_max - 1));
    QUIRE_TRY_ASSIGN(planner.cascade_entries_, LazyArray<CascadeEntry>::create(config.sequence_count_max));
  }
  return planner;
}

void AttentionPlanner::describe_groups() {
  if (config_.groups.empty()) config_.groups.emplace_back();
  main_index_ = full_index_ = kNoGroup;
  group_arrays_.resize(config_.groups.size());
  for (std::size_t i = 0; i < config_.groups.size(); ++i) {
    const PlannerGroup& group = config_.groups[i];
    GroupArrays& arrays = group_arrays_[i];
    const bool keeps_all = group.kind == PlannerGroup::Kind::Full || group.kind == PlannerGroup::Kind::Compressed;
    const bool is_main = keeps_all && !has_main();
    if (is_main) main_index_ = i;
    switch (group.kind) {
      case PlannerGroup::Kind::Full:
        arrays.has_slots = full_index_ == kNoGroup && !is_main;
        if (full_index_ == kNoGroup) full_index_ = i;
        break;
      case PlannerGroup::Kind::Compressed:
        arrays.has_slots = !is_main;
        if (is_main) main_entry_tokens_ = group.tokens_per_entry;
        break;
      case PlannerGroup::Kind::Window:
        arrays.has_slots = arrays.has_level = true;
        arrays.window_index = window_count_++;
        break;
      case PlannerGroup::Kind::Ring:
        arrays.has_slots = true;
        ++state_group_count_;
        break;
      case PlannerGroup::Kind::State:
        ++state_group_count_;
        break;
    }
  }
}

AttentionPlan AttentionPlanner::build(const PlannerStep& step) {
  QUIRE_CHECK(step.buffer_index < buffers_.size(), "a plan in a buffer that is not there");
  Buffer& buffer = buffers_[step.buffer_index];
  const PlanShape shape = read_entries(step);
  if (config_.cascade_levels_max > 1) cascade_.update({cascade_entries_.data(), step.entries.size()});

  StagingWriter staging(buffer.staging);
  const FixedArrays arrays = FixedArrays::place(shape, config_.page_tables,
                                                {.levels = {levels_.data(), levels_.size()},
                                                 .layer_windows = layer_windows_,
                                                 .groups = group_arrays_,
                                                 .has_main = has_main(),
                                                 .has_context = has_groups()},
                                                staging);
  const bool is_csr = config_.page_tables == PageTables::Csr;
  const std::span<std::int32_t> page_ids = is_csr ? staging.rest<std::int32_t>() : std::span<std::int32_t>{};
  const std::span<std::int32_t> main_page_ids = has_main() ? page_ids : std::span<std::int32_t>{};
  write_shared_levels(step, arrays, main_page_ids);
  write_entries(step, arrays, main_page_ids, buffer);
  write_layer_windows(step, arrays, main_page_ids);
  write_shared_queries(step, arrays, shape, buffer);
  auto page_count = has_main() ? static_cast<std::size_t>(arrays.last_page_indptr()[step.entries.size()]) : 0;
  if (has_groups()) page_count = write_groups(step, arrays, page_ids, page_count);

  GroupPlan& group = main_plan(buffer);
  group = {};
  switch (config_.page_tables) {
    case PageTables::Rows:
      if (has_main()) group.deltas = staging.take<PageDelta>(write_deltas(step, staging.rest<PageDelta>()));
      break;
    case PageTables::Csr:
      group.page_indices = staging.take<std::int32_t>(page_count);
      break;
    case PageTables::Block: {
      if (!has_main()) break;
      const auto table = staging.take<std::int32_t>(std::size_t{shape.entries} * shape.columns);
      write_block_table(step, shape.columns, table);
      group.block_table = table;
      break;
    }
  }
  if (window_count_ > 0) write_window_tables(step, shape, staging, buffer);
  const std::span<const TreeNode> tree_nodes = write_trees(step, arrays, staging);
  const auto token_count = static_cast<std::size_t>(arrays.query_indptr[step.entries.size()]);
  arrays.pad_from(step.entries.size(), token_count);
  if (has_main()) {
    group.moves = copy_array(step.moves, staging);
    group.move_indptr = copy_array(step.move_indptr, staging);
    group.copies = copy_array(step.copies, staging);
  }
  if (has_sends_) write_sent_tokens(step, arrays, staging, group);
  group.append_slots = arrays.append_slots;
  group.tokens_per_entry = main_entry_tokens_;
  for (std::size_t i = 0; i < arrays.levels.size(); ++i) buffer.levels[i] = arrays.levels[i].view();
  group.levels = {buffer.levels.data(), buffer.levels.size()};
  for (std::size_t i = 0; i < arrays.layer_windows.size(); ++i) {
    buffer.layer_windows[i] = arrays.layer_windows[i].view(config_.layer_windows[i]);
  }
  if (main_index_ == full_index_) group.layer_windows = buffer.layer_windows;
  if (has_groups()) {
    fill_groups(step, staging, buffer);
    if (has_sends_) write_sent_groups(step, arrays, staging, buffer);
  }
  // Plans without state end with their copies.
  std::span<const StateCopy> state_copies;
  std::span<const StateCopy> state_saves;
  if (!step.state_copies.empty()) state_copies = copy_array(step.state_copies, staging);
  if (!step.state_saves.empty()) state_saves = copy_array(step.state_saves, staging);
  std::span<const StateSend> state_sends;
  if (!step.state_sends.empty()) state_sends = copy_array(step.state_sends, staging);

  return {
      .shape = shape,
      .page_tables = config_.page_tables,
      .entry_count = static_cast<std::uint32_t>(step.entries.size()),
      .token_count = static_cast<std::uint32_t>(token_count),
      .query_positions = arrays.query_positions,
      .query_indptr = arrays.query_indptr,
      .seq_lens = arrays.seq_lens,
      .stored_lens = arrays.stored_lens,
      .visible_tokens = arrays.visible_tokens,
      .context_lens = arrays.context_lens,
      .state_slots = arrays.state_slots,
      .tree_indptr = arrays.tree_indptr,
      .tree_nodes = tree_nodes,
      .groups = buffer.groups,
      .state_copies = state_copies,
      .state_saves = state_saves,
      .state_sends = state_sends,
      .staging = staging.written(),
      .entries = {buffer.entries.data(), step.entries.size()},
      .copies = group.copies,
      .append_slots = arrays.append_slots.first(has_main() ? token_count : 0),
  };
}

/// All that is to be known before entries are written, in one pass: a large batch does not fit in the first cache.
PlanShape AttentionPlanner::read_entries(const PlannerStep& step) {
  QUIRE_CHECK(step.entries.size() <= config_.sequence_count_max, "more entries than sequences");
  check_step(step);
  std::uint64_t token_count = 0;
  std::uint32_t columns = 0;
  has_sends_ = false;
  const bool is_sharing = config_.cascade_levels_max > 1;
  for (std::size_t i = 0; i < step.entries.size(); ++i) {
    const PlannerEntry& entry = step.entries[i];
    check_entry(entry);
    if (window_count_ > 0) check_windows(entry, step.entry_groups[i]);
    if (is_sharing) {
      // Field by field: a whole one would be put together elsewhere, and read back before it is all there.
      CascadeEntry& target = cascade_entries_[i];
      target.sequence = entry.sequence;
      target.pages = entry.pages.data();
      target.shareable_pages = shareable_pages(entry);
    }
    token_count += entry.token_count;
    has_sends_ |= !entry.send_slots.empty();
    if (config_.page_tables == PageTables::Block) {
      // Lines of window groups have all columns, whatever the entry's own window leaves out.
      const EntryKeys keys = keys_of(entry, config_, 0);
      columns = std::max(columns, window_count_ > 0 ? keys.page_end : keys.page_count());
    }
  }
  QUIRE_CHECK(token_count <= config_.step_tokens_max, "more tokens than a step may have");
  PlanShape shape = step.shape;
  if (shape.entries == 0) shape.entries = static_cast<std::uint32_t>(step.entries.size());
  if (shape.tokens == 0) shape.tokens = static_cast<std::uint32_t>(token_count);
  if (shape.columns == 0) shape.columns = columns;
  QUIRE_CHECK(shape.entries >= step.entries.size() && shape.tokens >= token_count && shape.columns >= columns,
              "the step is larger than its shape");
  QUIRE_CHECK(shape.entries <= config_.sequence_count_max && shape.tokens <= config_.step_tokens_max &&
                  (config_.page_tables != PageTables::Block || shape.columns <= config_.row_pages),
              "the shape is larger than any plan");
  return shape;
}

void AttentionPlanner::check_step(const PlannerStep& step) const {
  const auto check_copies = [this](const auto& of) {
    QUIRE_CHECK(of.copies.size() <= std::uint64_t{config_.sequence_count_max} * config_.row_pages &&
                    of.moves.size() <= std::uint64_t{config_.sequence_count_max} * config_.tree_tokens_max &&
                    of.move_indptr.size() <= std::size_t{config_.sequence_count_max} + 1,
                "more copies or moves than sequences can have");
  };
  check_copies(step);
  QUIRE_CHECK(step.entry_groups.size() == step.entries.size() || (step.entry_groups.empty() && window_count_ == 0),
              "not one entry_groups for each entry");
  QUIRE_CHECK(step.windows.empty() || step.windows.size() == window_count_, "copies of other groups than the windows");
  for (const PlannerWindowStep& window : step.windows) check_copies(window);
  QUIRE_CHECK(step.moves.empty() || main_entry_tokens_ == 1, "an entry of several tokens moves");
  const std::uint64_t state_copies_max =
      std::uint64_t{kStateCopiesMax} * state_group_count_ * config_.sequence_count_max;
  QUIRE_CHECK(step.state_copies.size() <= state_copies_max && step.state_saves.size() <= state_copies_max,
              "more copies of states than sequences can have");
  QUIRE_CHECK(step.state_sends.size() <= step.entries.size(), "more states to send than entries");
}

void AttentionPlanner::check_windows(const PlannerEntry& entry, const PlannerEntryGroups& groups) const {
  QUIRE_CHECK(groups.windows.size() == window_count_, "an entry has not one row for each window group");
  for (const PlannerWindow& window : groups.windows) {
    QUIRE_CHECK(window.pages.size() <= config_.row_pages &&
                    entry.context_tokens <= window.pages.size() * std::uint64_t{config_.page_tokens},
                "an entry's row of a window group does not hold its tokens");
  }
}

void AttentionPlanner::check_entry(const PlannerEntry& entry) const {
  QUIRE_CHECK(entry.token_count > 0 && entry.draft_count <= entry.token_count &&
                  std::uint64_t{entry.position} + entry.token_count == entry.context_tokens,
              "an entry's queries are not its last tokens");
  QUIRE_CHECK(entry.sequence.index < config_.sequence_count_max && entry.pages.size() <= config_.row_pages &&
                  entry.context_tokens <= entry.pages.size() * std::uint64_t{config_.page_tokens},
              "an entry's row does not hold its tokens");
  QUIRE_CHECK(entry.window_tokens == 0 ? entry.sink_tokens == 0 : entry.sink_tokens < entry.window_tokens,
              "a window has no room behind its sink");
  if (entry.tree_parents.empty()) return;
  QUIRE_CHECK(entry.tree_parents.size() <= config_.tree_tokens_max && entry.draft_count <= entry.tree_parents.size() &&
                  (entry.draft_count == entry.tree_parents.size() || entry.draft_count == entry.token_count) &&
                  tree_tokens_of(entry) <= entry.context_tokens,
              "known tokens come before the tree's first round only");
}

/// The page of the first query, which the step may write, and everything behind it stay out of shared slices, and so
/// does an undecided tree.
std::uint32_t AttentionPlanner::shareable_pages(const PlannerEntry& entry) const {
  if (entry.window_tokens > 0) return 0;
  const std::uint32_t stored = stored_tokens_of(entry);
  // Mostly all of them, and a division costs more than the rest.
  const bool stores_all = std::uint64_t{entry.shareable_pages} * config_.page_tokens <= stored;
  return stores_all ? entry.shareable_pages : stored / config_.page_tokens;
}

}  // namespace quire
