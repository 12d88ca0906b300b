// SPDX-License-Identifier: Apache-2.0
#include "key_finder.h"

#include <algorithm>
#include <cstddef>

namespace tiny_engine {
namespace {

/// The range of an offsets array that holds `at`, or -1.
std::int32_t range_of(std::span<const std::int32_t> indptr, std::int32_t at) {
  for (std::size_t i = 0; i + 1 < indptr.size(); ++i) {
    if (indptr[i] <= at && at < indptr[i + 1]) return static_cast<std::int32_t>(i);
  }
  return -1;
}

bool has(std::span<const std::int32_t> array, std::int32_t index) {
  return index >= 0 && static_cast<std::size_t>(index) < array.size();
}

}  // namespace

KeyFinder::KeyFinder(const DevicePlan& plan, const PageTable& table, const KeyFinderConfig& config)
    : plan_(plan), group_(plan.groups[config.group_index]), table_(table), config_(config) {}

std::string KeyFinder::find(std::int32_t query, std::vector<KeyReference>& keys) const {
  keys.clear();
  Entry entry;
  if (std::string problem = read_entry(query, entry); !problem.empty()) return problem;
  entry.layer_window = static_cast<std::int32_t>(config_.window_tokens);
  std::vector<Slice> slices(group_.levels.size());
  std::int32_t key_count = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (std::string problem = read_slice(group_.levels[i], query, slices[i]); !problem.empty()) return problem;
    key_count += slices[i].key_count;
  }
  if (config_.window_tokens > 0 && !slices.empty()) key_count += slices[0].first_key;
  if (key_count != entry.seq_len) return "the slices of a query have other keys than seq_lens says";
  entry.sink = slices.back().sink;
  for (const Slice& slice : slices) {
    if (std::string problem = add_slice(entry, slice, keys); !problem.empty()) return problem;
  }
  if (keys.empty()) return "a query sees no key";
  return "";
}

std::string KeyFinder::find(std::int32_t query, const StagedLayerWindow& layer_window,
                            std::vector<KeyReference>& keys) const {
  keys.clear();
  Entry entry;
  if (std::string problem = read_entry(query, entry); !problem.empty()) return problem;
  entry.layer_window = static_cast<std::int32_t>(layer_window.window_tokens);
  Slice slice;
  if (std::string problem = read_trimmed(layer_window, entry, slice); !problem.empty()) return problem;
  if (slice.first_key + slice.key_count != entry.seq_len) return "a trimmed list does not end with the last key";
  if (entry.window > 0) entry.sink = slice.sink;
  if (std::string problem = add_slice(entry, slice, keys); !problem.empty()) return problem;
  return keys.empty() ? "a query sees no key in a layer with a window" : "";
}

std::string KeyFinder::read_entry(std::int32_t query, Entry& entry) const {
  const auto query_indptr = plan_.read(plan_.query_indptr);
  const auto tree_indptr = plan_.read(plan_.tree_indptr);
  entry.index = range_of(query_indptr, query);
  if (entry.index < 0) return "a query is in no entry";
  const auto at = static_cast<std::size_t>(entry.index);
  entry.first_query = query_indptr[at];
  entry.query_count = query_indptr[at + 1] - query_indptr[at];
  entry.seq_len = plan_.read(plan_.seq_lens)[at];
  entry.stored_len = plan_.read(plan_.stored_lens)[at];
  entry.window = plan_.read(plan_.visible_tokens)[at];
  if (at + 1 < tree_indptr.size()) {
    entry.tree_begin = tree_indptr[at];
    entry.tree_count = tree_indptr[at + 1] - tree_indptr[at];
  }
  const bool has_nodes = entry.tree_count == 0 ||
                         (entry.tree_count > 0 && entry.tree_begin >= 0 &&
                          static_cast<std::uint64_t>(entry.tree_begin) + static_cast<std::uint64_t>(entry.tree_count) <=
                              plan_.tree_nodes.count);
  if (!has_nodes) return "an entry's tree nodes lie outside tree_nodes";
  // Known tokens never come after undecided ones: a step has either known tokens before a new tree, or tree tokens
  // only.
  if (entry.seq_len != entry.stored_len + std::max(entry.query_count, entry.tree_count)) {
    return "stored_lens, this step's tokens and the tree do not add up to seq_lens";
  }
  entry.key_index = entry.seq_len - entry.query_count + (query - entry.first_query);
  if (entry.key_index < 0) return "a query stands before the first key";
  entry.text_index = text_index_of(entry, entry.key_index);
  entry.position = plan_.read(plan_.query_positions)[static_cast<std::size_t>(query)];
  if (config_.window_tokens == 0) return "";
  // A window group counts the tokens of the text, whatever the entry's own window has skipped.
  const auto context_lens = plan_.read(plan_.context_lens);
  if (at >= context_lens.size()) return "an entry of a window group has no context_lens";
  const std::int32_t skipped = context_lens[at] - entry.seq_len;
  if (skipped < 0 || (skipped > 0 && entry.window == 0)) return "context_lens is not seq_lens and what was skipped";
  entry.window = 0;
  entry.seq_len += skipped;
  entry.stored_len += skipped;
  entry.key_index += skipped;
  entry.text_index += skipped;
  entry.position = entry.text_index;
  return "";
}

std::string KeyFinder::read_slice(const StagedLevel& level, std::int32_t query, Slice& slice) const {
  slice.rows = level.rows;
  slice.first_columns = level.first_columns;
  slice.index = range_of(plan_.read(level.query_indptr), query);
  if (slice.index < 0) return "a query is in no slice of a level";
  const auto at = static_cast<std::size_t>(slice.index);
  const auto page_indptr = plan_.read(level.page_indptr);
  slice.page_begin = page_indptr[at];
  slice.page_count = page_indptr[at + 1] - page_indptr[at];
  slice.first_key = plan_.read(level.first_keys)[at];
  slice.window_offset = plan_.read(level.window_offsets)[at];
  slice.sink = plan_.read(level.sink_tokens)[at];
  return count_keys(plan_.read(level.last_page_tokens)[at], slice);
}

std::string KeyFinder::read_trimmed(const StagedLayerWindow& layer_window, const Entry& entry, Slice& slice) const {
  const auto at = static_cast<std::size_t>(entry.index);
  const StagedLevel& own = group_.levels.back();
  slice.rows = layer_window.rows;
  slice.first_columns = layer_window.first_columns;
  slice.index = entry.index;
  const auto page_indptr = plan_.read(layer_window.page_indptr);
  slice.page_begin = page_indptr[at];
  slice.page_count = page_indptr[at + 1] - page_indptr[at];
  slice.first_key = plan_.read(layer_window.first_keys)[at];
  const std::int32_t key_offset = plan_.read(layer_window.key_offsets)[at];
  if (entry.window > 0) {  // the last level's list again
    if (slice.first_key != 0 || key_offset != 0) return "the list of an entry with a window is trimmed";
    slice.window_offset = plan_.read(own.window_offsets)[at];
    slice.sink = plan_.read(own.sink_tokens)[at];
  } else {
    if (key_offset < 0 || key_offset >= static_cast<std::int32_t>(config_.page_tokens)) {
      return "a trimmed list begins with a page that has none of its keys";
    }
    slice.window_offset = key_offset;
  }
  return count_keys(plan_.read(own.last_page_tokens)[at], slice);
}

std::string KeyFinder::count_keys(std::int32_t last_page_tokens, Slice& slice) const {
  if (slice.page_count < 0) return "a slice has less than no pages";
  if (slice.page_count == 0) return last_page_tokens == 0 ? "" : "a slice without pages has keys in its last page";
  const auto page_tokens = static_cast<std::int32_t>(config_.page_tokens);
  if (last_page_tokens < 1 || last_page_tokens > page_tokens) return "last_page_tokens is not in [1, page_tokens]";
  if (slice.sink < 0 || slice.window_offset < slice.sink) return "a window begins inside its sink";
  slice.key_count = ((slice.page_count - 1) * page_tokens) + last_page_tokens - slice.window_offset + slice.sink;
  return slice.key_count < 0 ? "a window begins behind its last key" : "";
}

std::string KeyFinder::add_slice(const Entry& entry, const Slice& slice, std::vector<KeyReference>& keys) const {
  const std::int32_t first_new = entry.seq_len - entry.query_count;
  const auto append_slots = plan_.read(group_.append_slots);
  for (std::int32_t i = 0; i < slice.key_count; ++i) {
    const std::int32_t key = slice.first_key + i;
    if (key < 0 || key >= entry.seq_len) return "a slice has a key beyond seq_lens";
    if (!sees(entry, key)) continue;
    const std::int32_t text_index = text_index_of(entry, key);
    KeyReference reference;
    // A window renumbers: what counts is how far back a recent key is. Everything else is where it is in the text. A
    // tree may begin inside the sink, so that is decided by the place in the text too.
    const bool is_renumbered = entry.window > 0 && text_index >= entry.sink;
    reference.position = is_renumbered ? entry.position - (entry.text_index - text_index) : text_index;
    if (entry.layer_window > 0 && entry.position - reference.position >= entry.layer_window) continue;
    const bool is_new = key >= first_new;
    const std::int32_t query = entry.first_query + key - first_new;
    bool is_in_pages = !is_new || config_.new_keys == NewKeys::InPages;
    if (!is_in_pages && config_.new_keys != NewKeys::FromStep) {
      const bool has_slot = append_slots[static_cast<std::size_t>(query)] != quire::kNoSlot;
      is_in_pages = has_slot == (config_.new_keys == NewKeys::Appended);
    }
    if (is_new) reference.query = query;
    if (is_in_pages) {
      if (std::string problem = slot_of(entry, slice, i, reference.slot); !problem.empty()) return problem;
    }
    // What no later step needs is stored nowhere: the step has it.
    if (is_new && reference.slot < static_cast<std::int64_t>(config_.page_tokens)) reference.slot = quire::kNoSlot;
    keys.push_back(reference);
  }
  return "";
}

std::string KeyFinder::slot_of(const Entry& entry, const Slice& slice, std::int32_t key_in_slice,
                               std::int64_t& slot) const {
  const std::int32_t token = key_in_slice < slice.sink ? key_in_slice : key_in_slice - slice.sink + slice.window_offset;
  const auto page_tokens = static_cast<std::int32_t>(config_.page_tokens);
  const std::int32_t listed = token / page_tokens;
  if (listed >= slice.page_count) return "a key lies behind its slice's pages";
  const auto at = static_cast<std::size_t>(slice.index);
  std::int32_t page = -1;
  switch (plan_.page_tables) {
    case quire::PageTables::Rows: {
      const std::int32_t row = plan_.read(slice.rows)[at];
      const std::int32_t column = plan_.read(slice.first_columns)[at] + listed;
      if (row < 0 || column < 0 || static_cast<std::uint32_t>(column) >= table_.columns) return "no such column";
      const std::int64_t index = (std::int64_t{row} * table_.columns) + column;
      if (static_cast<std::size_t>(index) >= table_.pages.size()) return "no such row of the page table";
      page = table_.pages[static_cast<std::size_t>(index)];
      break;
    }
    case quire::PageTables::Csr: {
      const auto page_indices = plan_.read(group_.page_indices);
      const std::int32_t index = slice.page_begin + listed;
      if (!has(page_indices, index)) return "a slice's pages lie outside page_indices";
      page = page_indices[static_cast<std::size_t>(index)];
      break;
    }
    case quire::PageTables::Block: {
      const auto block_table = plan_.read(group_.block_table);
      const auto columns = static_cast<std::int32_t>(plan_.shape.columns);
      const std::int32_t index = (entry.index * columns) + listed;
      if (listed >= columns || !has(block_table, index)) return "a page lies outside block_table";
      page = block_table[static_cast<std::size_t>(index)];
      break;
    }
  }
  if (page < 0 || static_cast<std::uint32_t>(page) >= config_.page_count) return "no such page";
  slot = (std::int64_t{page} * page_tokens) + (token % page_tokens);
  return "";
}

std::int32_t KeyFinder::text_index_of(const Entry& entry, std::int32_t key) const {
  const std::int32_t tree_first = entry.seq_len - entry.tree_count;
  if (key < tree_first) return key;
  return tree_first + plan_.read(plan_.tree_nodes)[static_cast<std::size_t>(entry.tree_begin + key - tree_first)].depth;
}

bool KeyFinder::sees(const Entry& entry, std::int32_t key) const {
  const std::int32_t tree_first = entry.seq_len - entry.tree_count;
  if (key >= tree_first && entry.key_index >= tree_first) {
    const auto nodes = plan_.read(plan_.tree_nodes);
    const quire::TreeNode& seen = nodes[static_cast<std::size_t>(entry.tree_begin + key - tree_first)];
    const quire::TreeNode& own = nodes[static_cast<std::size_t>(entry.tree_begin + entry.key_index - tree_first)];
    if (seen.begin > own.begin || own.begin >= seen.end) return false;
  } else if (key > entry.key_index) {
    return false;
  }
  const std::int32_t text_index = text_index_of(entry, key);
  if (entry.window == 0 || text_index < entry.sink) return true;
  return entry.text_index - text_index < entry.window - entry.sink;
}

}  // namespace tiny_engine
