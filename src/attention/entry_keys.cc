// SPDX-License-Identifier: Apache-2.0
#include "attention/entry_keys.h"

namespace quire {

EntryKeys keys_of(const PlannerEntry& entry, const AttentionPlannerConfig& config, std::uint32_t shared_pages) {
  const std::uint32_t page_tokens = config.page_tokens;
  EntryKeys keys{
      .seq_len = entry.context_tokens,
      .stored_len = stored_tokens_of(entry),
      .tree_tokens = tree_tokens_of(entry),
      .page_begin = shared_pages,
      .page_end = ((entry.context_tokens - 1) / page_tokens) + 1,
  };
  if (entry.window_tokens == 0) return keys;

  const std::uint32_t sink = entry.sink_tokens;
  const std::uint32_t recent = entry.window_tokens - sink;
  // The first token behind the sink that the first query sees; later queries see none before it. An undecided tree is
  // listed whole, so that its tokens are the last keys.
  const std::uint32_t first = stored_tokens_of(entry);
  const std::uint32_t window_begin = first + 1 > sink + recent ? first + 1 - recent : sink;
  keys.window_offset = window_begin;
  if (window_begin == sink) return keys;

  const std::uint32_t skipped = window_begin - sink;
  keys.seq_len -= skipped;
  keys.stored_len -= skipped;
  const std::uint32_t sink_pages = ((sink + page_tokens) - 1) / page_tokens;
  if (config.page_tables != PageTables::Rows && window_begin / page_tokens > sink_pages) {
    keys.sink_pages = sink_pages;
    keys.page_begin = window_begin / page_tokens;
    keys.window_offset = (sink_pages * page_tokens) + (window_begin % page_tokens);
  }
  return keys;
}

TrimmedKeys trimmed_keys_of(const PlannerEntry& entry, const AttentionPlannerConfig& config,
                            std::uint32_t window_tokens) {
  TrimmedKeys trimmed{.keys = keys_of(entry, config, 0)};
  // A window of the entry's own has cut its keys short already.
  if (entry.window_tokens > 0) return trimmed;
  // No query stands before the first token that is neither stored nor decided.
  const std::uint32_t first_place = stored_tokens_of(entry);
  trimmed.first_key = first_place >= window_tokens ? first_place - window_tokens + 1 : 0;
  trimmed.keys.page_begin = trimmed.first_key / config.page_tokens;
  trimmed.key_offset = trimmed.first_key % config.page_tokens;
  return trimmed;
}

}  // namespace quire
