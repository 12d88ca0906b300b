// SPDX-License-Identifier: Apache-2.0
#include "attention/entry_keys.h"

#include <algorithm>

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

WindowKeys window_keys_of(const PlannerEntry& entry, const AttentionPlannerConfig& config, const PlannerGroup& group,
                          std::uint32_t written_from) {
  const std::uint32_t page_tokens = config.page_tokens;
  const std::uint32_t sink = group.sink_tokens;
  WindowKeys keys{
      .sink_tokens = std::min(sink, entry.context_tokens),
      .page_end = ((entry.context_tokens - 1) / page_tokens) + 1,
  };
  // The first token that the first query sees as one of its last, as in trimmed_keys_of().
  const std::uint32_t first_place = stored_tokens_of(entry);
  const std::uint32_t window_begin = first_place >= group.window_tokens ? first_place - group.window_tokens + 1 : 0;
  const std::uint32_t seen_begin = std::max(window_begin, written_from);
  const std::uint32_t seen_column = seen_begin / page_tokens;
  const auto sink_pages = static_cast<std::uint32_t>((std::uint64_t{sink} + page_tokens - 1) / page_tokens);
  if (seen_column <= sink_pages) {  // no column between the sink and what is seen
    keys.first_key = keys.window_offset = std::max(keys.sink_tokens, written_from);
    return keys;
  }
  keys.first_key = seen_column * page_tokens;
  const bool is_row = config.page_tables == PageTables::Rows;
  if (config.page_tables == PageTables::Csr || (is_row && sink == 0)) {
    keys.sink_pages = sink_pages;
    keys.page_begin = seen_column;
    keys.window_offset = sink_pages * page_tokens;
  } else {
    keys.window_offset = keys.first_key;
  }
  if (written_from > keys.first_key) {  // the first listed page has rows of nobody in front
    keys.window_offset += written_from - keys.first_key;
    keys.first_key = written_from;
  }
  return keys;
}

}  // namespace quire
