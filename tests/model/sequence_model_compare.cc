// SPDX-License-Identifier: Apache-2.0
//
// How the model compares cache and twin.
#include "sequence_model.h"

#include <algorithm>
#include <map>
#include <utility>

namespace quire::testing {

std::string SequenceModel::compare() {
  const Status status = cache_->check_invariants();
  if (!status) return status.error().message;
  const Stats stats = cache_->stats().value();
  std::string difference = compare_tree(stats);
  if (difference.empty()) difference = compare_sequences();
  if (difference.empty()) difference = compare_counts(stats);
  if (difference.empty() && !twin_.has_moves) difference = compare_bytes();
  return difference;
}

std::string SequenceModel::compare_tree(const Stats& stats) {
  std::map<RunId, std::vector<TokenId>> paths;
  std::map<std::vector<TokenId>, PageId> held;
  (void)cache_->visit_runs([&](const RunView& run) {
    std::vector<TokenId> path = run.depth > 1 ? paths[run.parent] : std::vector<TokenId>{};
    for (std::size_t page = 0; page < run.pages.size(); ++page) {
      const auto tokens = run.tokens.subspan(page * config_.page_tokens, config_.page_tokens);
      path.insert(path.end(), tokens.begin(), tokens.end());
      held[path] = run.pages[page];
    }
    paths[run.run] = std::move(path);
  });
  const std::set<std::vector<TokenId>> pinned = pinned_names();
  std::uint64_t gone = 0;
  for (auto each = twin_.tree.begin(); each != twin_.tree.end();) {
    const auto found = held.find(each->first);
    if (found != held.end()) {
      if (found->second != each->second->id) return "the tree holds another page for a prefix";
      ++each;
      continue;
    }
    if (pinned.contains(each->first)) return "a page in use was evicted";
    each = twin_.tree.erase(each);
    ++gone;
  }
  if (held.size() != twin_.tree.size()) return "the tree holds a page that nobody gave it";
  if (stats.evicted_page_total + stats.dropped_page_total - gone_ != gone) return "evictions do not add up";
  gone_ += gone;
  if (stats.sealed_page_total != twin_.sealed_total || stats.duplicate_page_total != twin_.duplicate_total) {
    return "other pages were sealed, or others were duplicates";
  }
  // A tail in the tree pins its whole run, so then there may be more.
  const bool is_exact = std::ranges::none_of(twin_.sequences, [](const auto& each) { return each->has_cached_tail(); });
  if (is_exact ? stats.pinned_pages != pinned.size() : stats.pinned_pages < pinned.size()) {
    return "other pages are pinned: " + std::to_string(stats.pinned_pages) + ", not " + std::to_string(pinned.size());
  }
  return "";
}

std::set<std::vector<TokenId>> SequenceModel::pinned_names() const {
  std::set<std::vector<TokenId>> pinned;
  for (const auto& each : twin_.sequences) {
    for (std::uint32_t page = 0; each->is_running() && page < each->pinned(); ++page) {
      pinned.insert(twin_.name_of(*each, page));
    }
    if (each->tail_tokens == 0 || !each->tail || !each->tail->is_in_tree) continue;
    for (const auto& [name, page] : twin_.tree) {
      if (page == each->tail) pinned.insert(name);
    }
  }
  for (const Keep& keep : keeps_) {
    for (std::size_t end = config_.page_tokens; end <= keep.tokens.size(); end += config_.page_tokens) {
      pinned.insert({keep.tokens.begin(), keep.tokens.begin() + static_cast<std::ptrdiff_t>(end)});
    }
  }
  return pinned;
}

std::string SequenceModel::compare_sequences() const {
  for (const auto& each : twin_.sequences) {
    if (each->is_ended) continue;
    const SequenceView view = cache_->view(each->handle).value();
    const std::string name = "sequence " + std::to_string(each->handle.id().index) + ": ";
    if (view.token_count != each->count()) return name + "token_count";
    if (view.computed_tokens != each->computed) {
      return name + "computed_tokens " + std::to_string(view.computed_tokens) + ", not " +
             std::to_string(each->computed);
    }
    if (view.pending_tokens != each->pending()) return name + "pending_tokens";
    if (view.tree_tokens != each->tree_count()) return name + "tree_tokens";
    if (view.steps_in_flight != each->in_flight || view.is_planned != (each->in_flight > 0)) return name + "steps";
    if (view.is_waiting == each->is_running()) return name + "is_waiting";
    if (view.is_receiving != (each->receiving > 0)) return name + "is_receiving";
    if (view.window.visible_tokens != each->window.visible_tokens) return name + "window";
    if (view.pages().size() != each->row.size()) {
      return name + std::to_string(view.pages().size()) + " pages, not " + std::to_string(each->row.size());
    }
    for (std::size_t page = 0; page < view.pages().size(); ++page) {
      const PageId wanted = each->row[page] ? each->row[page]->id : kNullPage;
      if (view.pages()[page] != wanted) return name + "another page in column " + std::to_string(page);
    }
  }
  return "";
}

std::string SequenceModel::compare_counts(const Stats& stats) const {
  std::set<PageRef> open;
  std::set<PageRef> owned;
  for (const auto& each : twin_.sequences) {
    for (std::uint32_t page = each->shared; page < each->row_count(); ++page) {
      if (!each->row[page]) continue;
      owned.insert(each->row[page]);
      if (page >= each->settled) open.insert(each->row[page]);
    }
    if (each->tail_tokens > 0 && !each->has_cached_tail()) owned.insert(each->tail);
  }
  std::set<PageId> ids;
  const std::size_t pages = owned.size() + twin_.fenced.size() + twin_.tree.size();
  for (const PageRef& page : owned) ids.insert(page->id);
  for (const auto& each : twin_.fenced) ids.insert(each.second->id);
  const auto unseen =
      std::ranges::count_if(twin_.fenced, [](const auto& each) { return each.second->id == kNullPage; });
  for (const auto& [name, page] : twin_.tree) ids.insert(page->id);
  ids.erase(kNullPage);
  if (ids.size() + static_cast<std::size_t>(unseen) != pages) return "a page is two things at once";
  const auto differ = [](const char* what, std::size_t real, std::size_t twin) {
    return real == twin ? "" : std::string(what) + " pages: " + std::to_string(real) + ", not " + std::to_string(twin);
  };
  std::string difference = differ("open", stats.open_pages, open.size());
  if (difference.empty()) difference = differ("private", stats.private_pages, owned.size() - open.size());
  if (difference.empty()) difference = differ("sealed", stats.sealed_pages, twin_.tree.size());
  if (difference.empty()) difference = differ("fenced", stats.fenced_pages, twin_.fenced.size());
  if (difference.empty()) difference = differ("free", stats.free_pages, config_.page_count - pages);
  if (difference.empty()) difference = differ("saved", stats.saved_pages, saved_pages());
  if (difference.empty() && stats.sequence_count != twin_.sequences.size()) difference = "the count of sequences";
  return difference;
}

std::string SequenceModel::compare_bytes() const {
  for (const auto& each : twin_.sequences) {
    if (!each->is_running()) continue;
    const std::uint32_t tail_begin = each->computed - each->tail_tokens;
    std::uint64_t expected = mix64(0);
    for (std::uint32_t i = 0; i < each->computed; ++i) {
      expected = mix64(expected + static_cast<std::uint64_t>(each->tokens[i]));
      const PageRef page = i < tail_begin ? each->row[i / config_.page_tokens] : each->tail;
      if (page && read(page->id, i % config_.page_tokens) != expected) {
        return "wrong bytes of token " + std::to_string(i) + " of sequence " + std::to_string(each->handle.id().index);
      }
    }
  }
  for (const auto& [name, page] : twin_.tree) {
    const auto end = static_cast<std::uint32_t>(name.size());
    for (std::uint32_t i = end - config_.page_tokens; i < end; ++i) {
      if (read(page->id, i % config_.page_tokens) != value(name, i)) return "wrong bytes in the tree";
    }
  }
  return "";
}

bool SequenceModel::has_page_with_tail(const TwinSequence& sequence, PageId source) const {
  const std::uint32_t begin = sequence.computed - sequence.tail_tokens;
  return std::ranges::any_of(twin_.tree, [&](const auto& each) {
    return each.first.size() == begin + config_.page_tokens && (source == kNullPage || each.second->id == source) &&
           std::equal(sequence.tokens.begin(), sequence.tokens.begin() + sequence.computed, each.first.begin());
  });
}

std::uint32_t SequenceModel::available_pages(const Stats& stats) const {
  return stats.free_pages + stats.evictable_pages + (twin_.steps.empty() ? stats.fenced_pages : 0);
}

std::uint32_t SequenceModel::saved_pages() const {
  std::uint32_t count = 0;
  for (const auto& each : twin_.sequences) {
    count += static_cast<std::uint32_t>(std::ranges::count(each->saved, true));
  }
  return count;
}

}  // namespace quire::testing
