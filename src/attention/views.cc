// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/plan.h"

namespace quire {
namespace {

std::string_view to_string(PageTables page_tables) {
  switch (page_tables) {
    case PageTables::Rows:
      return "Rows";
    case PageTables::Csr:
      return "Csr";
    case PageTables::Block:
      return "Block";
  }
  return "unknown";
}

Status check_plan(const AttentionPlan& plan, PageTables wanted, std::uint32_t group_index) {
  if (plan.page_tables != wanted) {
    return fail(ErrorCode::Unsupported, std::string("the plan's page tables are ")
                                            .append(to_string(plan.page_tables))
                                            .append("; open the cache with PlanConfig::page_tables = ")
                                            .append(to_string(wanted)));
  }
  if (group_index >= plan.groups.size()) {
    return fail(ErrorCode::InvalidArgument, "group " + std::to_string(group_index) + " of a plan with " +
                                                std::to_string(plan.groups.size()) + " groups");
  }
  const GroupPlan& group = plan.groups[group_index];
  if (group.levels.empty()) {
    return fail(ErrorCode::Unsupported,
                "group " + std::to_string(group_index) + " has no pages in a plan: what it stores is in state slots");
  }
  if (group.tokens_per_entry > 1) {
    return fail(ErrorCode::Unsupported, "group " + std::to_string(group_index) + " has an entry for " +
                                            std::to_string(group.tokens_per_entry) +
                                            " tokens, and this view counts tokens; read the plan itself");
  }
  return {};
}

/// Kernels behind the views let a query see every key up to its own, also those of other branches.
Status check_trees(const AttentionPlan& plan) {
  if (plan.tree_nodes.empty()) return {};
  return fail(ErrorCode::Unsupported,
              "the plan has undecided token trees, which this view cannot say; read tree_indptr and tree_nodes of the "
              "plan itself");
}

/// Kernels behind the views take the first seq_len tokens of the listed pages for the keys, and let a query see all up
/// to its own. Both are wrong once a window has skipped tokens, or when some query of the step does not see all keys.
Status check_windows(const AttentionPlan& plan, const GroupPlan& group) {
  const CascadeLevel& own = group.levels.back();
  for (std::size_t i = 0; i < plan.entry_count; ++i) {
    // A group's window is the kernel's to know, but none has a sink besides.
    if (group.window_tokens > 0 && own.sink_tokens[i] > 0) {
      return fail(ErrorCode::Unsupported,
                  "the group's window has a sink, which this view cannot say; read window_offsets and sink_tokens of "
                  "the plan itself");
    }
    if (plan.visible_tokens[i] == 0 || group.window_tokens > 0) continue;  // the entry's own is not the group's
    if (own.window_offsets[i] == own.sink_tokens[i] && plan.seq_lens[i] <= plan.visible_tokens[i]) continue;
    return fail(ErrorCode::Unsupported,
                "entry " + std::to_string(i) + " has outgrown its window of " + std::to_string(plan.visible_tokens[i]) +
                    " tokens, which this view cannot say; read window_offsets and sink_tokens of the plan itself");
  }
  return {};
}

}  // namespace

Result<FlashInferView> flashinfer_view(const AttentionPlan& plan, std::uint32_t group_index,
                                       std::uint32_t level_index) {
  QUIRE_TRY(check_plan(plan, PageTables::Csr, group_index));
  const GroupPlan& group = plan.groups[group_index];
  if (level_index >= group.levels.size()) {
    return fail(ErrorCode::InvalidArgument, "level " + std::to_string(level_index) + " of a plan with " +
                                                std::to_string(group.levels.size()) +
                                                " (PlanConfig::cascade_levels_max)");
  }
  QUIRE_TRY(check_trees(plan));
  QUIRE_TRY(check_windows(plan, group));
  const CascadeLevel& level = group.levels[level_index];
  return FlashInferView{
      .qo_indptr = level.query_indptr,
      .kv_indptr = level.page_indptr,
      .kv_indices = group.page_indices,
      .kv_last_page_len = level.last_page_tokens,
  };
}

Result<BlockTableView> block_table_view(const AttentionPlan& plan, std::uint32_t group_index) {
  QUIRE_TRY(check_plan(plan, PageTables::Block, group_index));
  const GroupPlan& group = plan.groups[group_index];
  QUIRE_TRY(check_trees(plan));
  QUIRE_TRY(check_windows(plan, group));
  return BlockTableView{
      .block_table = group.block_table,
      .columns = plan.shape.columns,
      .slot_mapping = group.append_slots,
      .seq_lens = group.window_tokens > 0 ? plan.context_lens : plan.seq_lens,
      .query_start_loc = plan.query_indptr,
  };
}

}  // namespace quire
