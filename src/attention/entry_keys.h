// SPDX-License-Identifier: Apache-2.0
//
// EntryKeys: the keys of one entry as quire/plan.h numbers them, and the pages of its own that it lists. A window skips
// tokens behind the sink that none of the entry's queries sees; a table row keeps their columns, a list of page ids
// leaves the whole pages among them out:
//
//     page_tokens 4, sink 3, tokens skipped [3, 13)     row:  s s s -  - - - -  - - - -  - k k k     window_offset 13
//                                                       list: s s s -  - k k k                       window_offset 5
#pragma once

#include <cstdint>

#include "attention/attention_planner.h"

namespace quire {

struct EntryKeys {
  std::uint32_t seq_len = 0;
  std::uint32_t stored_len = 0;
  std::uint32_t tree_tokens = 0;  ///< of the undecided tree's region, known tokens of its first round included
  std::uint32_t window_offset = 0;
  // Listed are the columns [0, sink_pages) and [page_begin, page_end) of the row.
  std::uint32_t sink_pages = 0;
  std::uint32_t page_begin = 0;
  std::uint32_t page_end = 0;

  [[nodiscard]] std::uint32_t page_count() const { return sink_pages + page_end - page_begin; }
};

/// Tokens of the undecided tree with those of this step that stand in front of it: the last keys of the entry.
[[nodiscard]] inline std::uint32_t tree_tokens_of(const PlannerEntry& entry) {
  if (entry.tree_parents.empty()) return 0;
  return static_cast<std::uint32_t>(entry.tree_parents.size()) + entry.token_count - entry.draft_count;
}

/// Keys that were there before the step and belong to no undecided tree, as tokens of the sequence.
[[nodiscard]] inline std::uint32_t stored_tokens_of(const PlannerEntry& entry) {
  return entry.tree_parents.empty() ? entry.position : entry.context_tokens - tree_tokens_of(entry);
}

/// `shared_pages` leading pages are in slices of other levels.
[[nodiscard]] EntryKeys keys_of(const PlannerEntry& entry, const AttentionPlannerConfig& config,
                                std::uint32_t shared_pages);

/// What an entry lists for layers that attend to their last `window_tokens` tokens: see LayerWindowPlan.
struct TrimmedKeys {
  EntryKeys keys;
  std::uint32_t first_key = 0;
  std::uint32_t key_offset = 0;
};
[[nodiscard]] TrimmedKeys trimmed_keys_of(const PlannerEntry& entry, const AttentionPlannerConfig& config,
                                          std::uint32_t window_tokens);

/// What an entry lists of a window group's row: as EntryKeys, the columns [0, sink_pages) and [page_begin, page_end).
/// Keys are numbered by token. Listed are those of the sink and those from first_key on; see GroupPlan.
struct WindowKeys {
  std::uint32_t sink_tokens = 0;
  std::uint32_t first_key = 0;
  std::uint32_t window_offset = 0;
  std::uint32_t sink_pages = 0;
  std::uint32_t page_begin = 0;
  std::uint32_t page_end = 0;

  [[nodiscard]] std::uint32_t page_count() const { return sink_pages + page_end - page_begin; }
};
[[nodiscard]] WindowKeys window_keys_of(const PlannerEntry& entry, const AttentionPlannerConfig& config,
                                        const PlannerGroup& group, std::uint32_t written_from);

}  // namespace quire
