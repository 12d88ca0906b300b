// SPDX-License-Identifier: Apache-2.0
//
// SequenceTwin: what the calls that change sequences mean for pages, written down as plainly as possible. Pages are
// objects that sequences point at; who owns a page is found by looking at all sequences; the tree is a map from a
// page's whole prefix to the page. It predicts what becomes of every page but which of the cached ones is evicted.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/cache.h"

namespace quire::testing {

struct TwinPage {
  PageId id;
  bool is_in_tree = false;
};
using PageRef = std::shared_ptr<TwinPage>;

struct TwinSequence {
  enum class State : std::uint8_t { Waiting, Dropped, Saved, Running };

  Sequence handle;
  bool is_ended = false;  // the handle is gone, steps are in flight
  State state = State::Waiting;
  std::vector<TokenId> tokens;
  std::uint32_t computed = 0;
  std::uint32_t planned = 0;  // computed, or in steps in flight
  std::uint32_t in_flight = 0;
  bool has_run = false;
  bool has_draft = false;
  bool is_marked = false;  // for sending
  std::uint32_t send_end = 0;
  std::uint32_t receiving = 0;
  bool use_cache = true;
  std::uint32_t publish_max = UINT32_MAX;
  std::uint32_t match_max = UINT32_MAX;

  Window window;
  std::uint32_t full = 0;  // tokens before this one have seen all before them
  std::uint32_t hole_begin = 0;
  std::uint32_t hole_end = 0;

  std::vector<PageRef> row;  // null: not held
  std::uint32_t shared = 0;  // leading pages that are the tree's
  std::uint32_t settled = 0;
  // A page begun by somebody else, whose first tokens are this sequence's too. Without a page: some page of the tree.
  std::uint32_t tail_tokens = 0;
  PageRef tail;
  bool is_tail_planned = false;
  std::vector<bool> saved;  // which columns of the row are saved

  std::vector<std::int32_t> parents;
  std::vector<TokenId> values;

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(tokens.size()); }
  [[nodiscard]] std::uint32_t row_count() const { return static_cast<std::uint32_t>(row.size()); }
  [[nodiscard]] std::uint32_t tree_count() const { return static_cast<std::uint32_t>(parents.size()); }
  [[nodiscard]] std::uint32_t missing() const { return count() - std::min(count(), planned); }
  [[nodiscard]] bool is_running() const { return state == State::Running; }
  [[nodiscard]] bool is_undecided() const { return has_draft || !parents.empty(); }
  [[nodiscard]] bool is_quiet() const {
    return is_running() && !is_ended && in_flight == 0 && !is_undecided() && receiving == 0;
  }
  [[nodiscard]] bool has_hole() const { return hole_end > hole_begin; }
  /// Pages of the tree that it keeps there.
  [[nodiscard]] std::uint32_t pinned() const {
    return has_hole() && hole_end >= shared ? std::min(shared, hole_begin) : shared;
  }
  [[nodiscard]] std::uint32_t pending() const {
    if (receiving > 0) return 0;
    if (missing() > 0) return missing();
    return !has_run && count() > 0 && in_flight == 0 && !is_undecided() ? 1 : 0;
  }
  [[nodiscard]] bool has_cached_tail() const { return tail_tokens > 0 && (!tail || tail->is_in_tree); }
};

struct TwinPart {
  TwinSequence* sequence = nullptr;
  std::uint32_t position = 0;
  std::uint32_t token_count = 0;
  std::uint32_t draft_count = 0;
  std::uint32_t tree_before = 0;
  std::uint32_t first_column = 0;
  std::uint32_t new_pages = 0;
  bool is_tree = false;
  bool copies = false;
  bool adopts = false;
  bool is_discarded = false;
  std::vector<std::int64_t> slots;

  [[nodiscard]] bool runs_again() const { return token_count + draft_count == 0; }
  [[nodiscard]] std::uint32_t computed_end() const {
    return token_count == 0 ? sequence->computed : position + token_count;
  }
};

struct TwinStep {
  Step step;
  std::vector<TwinPart> parts;
};

struct TwinConfig {
  std::uint32_t page_tokens = 4;
  std::uint32_t window_rewind_tokens = 0;
  bool dedup = true;
};

class SequenceTwin {
 public:
  explicit SequenceTwin(const TwinConfig& config) : config_(config) {}

  // What holds what. Plain data, for the test to compare.
  std::vector<std::unique_ptr<TwinSequence>> sequences;
  std::vector<TwinStep> steps;  // in flight, oldest first
  std::map<std::vector<TokenId>, PageRef> tree;
  std::deque<std::pair<std::uint64_t, PageRef>> fenced;  // with the step they wait for
  bool has_moves = false;
  std::uint64_t step_number = 0;
  std::uint64_t sealed_total = 0;
  std::uint64_t duplicate_total = 0;
  std::uint64_t kept_total = 0;  // duplicates that were kept, without dedup

  [[nodiscard]] std::uint32_t pages_for(std::uint32_t tokens) const {
    return (tokens + config_.page_tokens - 1) / config_.page_tokens;
  }
  [[nodiscard]] std::vector<TokenId> name_of(const TwinSequence& sequence, std::uint32_t page) const {
    return {sequence.tokens.begin(), sequence.tokens.begin() + (std::ptrdiff_t{page + 1} * config_.page_tokens)};
  }
  /// How many pages of the first `tokens_max` tokens are cached.
  [[nodiscard]] std::uint32_t matched(const TwinSequence& sequence, std::uint32_t tokens_max) const {
    const std::uint32_t pages = std::min(sequence.count(), tokens_max) / config_.page_tokens;
    std::uint32_t count = 0;
    while (count < pages && tree.contains(name_of(sequence, count))) ++count;
    return count;
  }
  [[nodiscard]] std::uint32_t owners(const PageRef& page) const {
    std::uint32_t count = 0;
    for (const auto& sequence : sequences) {
      count += static_cast<std::uint32_t>(std::ranges::count(sequence->row, page));
      if (sequence->tail_tokens > 0 && sequence->tail == page) ++count;
    }
    return count;
  }

  // Pages go back.

  /// Nobody points at it any more: free, or fenced while steps in flight or moves to come may use it.
  void give_back(PageRef page) {
    if (!page || page->is_in_tree || owners(page) > 0) return;
    if (steps.empty() && !has_moves) return;
    fenced.emplace_back(has_moves ? step_number + 1 : steps.back().step.number, std::move(page));
  }
  void cut_row(TwinSequence& sequence, std::uint32_t page_count) {
    while (sequence.row_count() > page_count) {
      cut_.push_back(std::move(sequence.row.back()));
      sequence.row.pop_back();
    }
    sequence.settled = std::min(sequence.settled, page_count);
    sequence.shared = std::min(sequence.shared, page_count);
    while (!cut_.empty()) {  // lowest column first, as the queue of fenced pages has them
      PageRef page = std::move(cut_.back());
      cut_.pop_back();
      give_back(std::move(page));
    }
  }
  void drop_tail(TwinSequence& sequence) {
    if (sequence.tail_tokens == 0) return;
    sequence.tail_tokens = 0;
    sequence.is_tail_planned = false;
    give_back(std::exchange(sequence.tail, nullptr));
  }
  void free_fenced() {
    if (!has_moves && !steps.empty()) {  // not for steps that are not coming
      for (auto& each : fenced) each.first = std::min(each.first, steps.back().step.number);
    }
    const std::uint64_t oldest = !steps.empty() ? steps.front().step.number : has_moves ? step_number + 1 : UINT64_MAX;
    std::erase_if(fenced, [&](const auto& each) { return each.first < oldest; });
  }
  void flush_moves() {
    has_moves = false;
    free_fenced();
  }
  void release(TwinSequence& sequence) {
    drop_tail(sequence);
    cut_row(sequence, 0);
    sequence.hole_begin = sequence.hole_end = 0;
  }
  void end(TwinSequence& sequence) {
    sequence.is_ended = true;
    if (sequence.in_flight > 0) return;
    release(sequence);
    std::erase_if(sequences, [&](const auto& each) { return each.get() == &sequence; });
  }

  // Steps.

  [[nodiscard]] bool stores(const TwinSequence& sequence, const TwinPart& part, std::uint32_t page) const {
    if (sequence.window.visible_tokens == 0 || page < pages_for(sequence.window.sink_tokens)) return true;
    if (page * config_.page_tokens < sequence.planned) return true;
    return (page + 1) * config_.page_tokens > keep_from(sequence, sequence.planned + part.token_count);
  }
  [[nodiscard]] TwinPart make_part(TwinSequence& sequence, const StepEntry& entry) const {
    TwinPart part{.sequence = &sequence, .draft_count = entry.draft_count, .tree_before = sequence.tree_count()};
    part.is_tree = !entry.tree_parents.empty();
    if (part.is_tree) part.draft_count = static_cast<std::uint32_t>(entry.tree_parents.size());
    const bool runs_again = sequence.missing() == 0 && sequence.in_flight == 0 && part.draft_count == 0;
    if (!runs_again && sequence.tree_count() == 0) {
      const std::uint32_t all = sequence.missing() > 0 ? sequence.missing() : std::min(sequence.in_flight, 1U);
      part.token_count = entry.token_count > 0 && part.draft_count == 0 ? entry.token_count : all;
    }
    part.position = runs_again ? sequence.computed - 1 : sequence.planned + sequence.tree_count();
    part.first_column = sequence.row_count();
    if (sequence.tail_tokens > 0 && !sequence.is_tail_planned) {
      part.adopts = !sequence.has_cached_tail() && owners(sequence.tail) == 1;
      part.copies = !part.adopts;
    }
    for (std::uint32_t page = sequence.row_count(); page < pages_for(end_of(part)); ++page) {
      if (stores(sequence, part, page)) ++part.new_pages;
    }
    if (part.adopts) --part.new_pages;
    return part;
  }
  [[nodiscard]] std::uint32_t end_of(const TwinPart& part) const {
    return part.sequence->planned + part.tree_before + part.token_count + part.draft_count;
  }
  /// `pages` is the sequence's row after the real plan: new pages get their ids from it.
  void plan_part(TwinPart& part, const StepEntry& entry, std::span<const PageId> pages) {
    TwinSequence& sequence = *part.sequence;
    const std::uint32_t end = std::max(sequence.row_count(), pages_for(end_of(part)));
    if (part.adopts) {
      sequence.row.push_back(std::exchange(sequence.tail, nullptr));
      sequence.tail_tokens = 0;
      part.first_column = sequence.row_count();
    }
    while (sequence.row_count() < end) {
      const bool is_stored = stores(sequence, part, sequence.row_count());
      const std::uint32_t column = sequence.row_count();
      const PageId id = column < pages.size() ? pages[column] : kNullPage;
      sequence.row.push_back(is_stored ? std::make_shared<TwinPage>(TwinPage{id}) : nullptr);
    }
    if (part.copies) sequence.is_tail_planned = true;
    sequence.planned += part.token_count;
    sequence.parents.insert(sequence.parents.end(), entry.tree_parents.begin(), entry.tree_parents.end());
    if (!part.is_tree) sequence.has_draft = part.draft_count > 0;
    ++sequence.in_flight;
  }
  void finish_part(const TwinPart& part, const StepResult& result) {
    TwinSequence& sequence = *part.sequence;
    sequence.computed = part.computed_end() + result.accepted_count;
    sequence.has_run = true;
    if (sequence.computed >= sequence.send_end) sequence.is_marked = false;
    --sequence.in_flight;
    if (part.copies) drop_tail(sequence);
    auto& text = part.is_tree ? sequence.values : sequence.tokens;
    text.insert(text.end(), result.tokens.begin(), result.tokens.end());
    if (part.draft_count > 0 && !part.is_tree) {
      sequence.has_draft = false;
      sequence.planned = sequence.computed;
      cut_row(sequence, pages_for(sequence.computed));
    }
    settle(sequence);
    slide(sequence);
  }
  /// The part did not happen, nor did those of the steps from `place` on.
  void discard(TwinPart& part, std::size_t place) {
    TwinSequence& sequence = *part.sequence;
    part.is_discarded = true;
    --sequence.in_flight;
    for (; place < steps.size(); ++place) {
      for (TwinPart& later : steps[place].parts) {
        if (later.sequence != &sequence || later.is_discarded) continue;
        later.is_discarded = true;
        --sequence.in_flight;
      }
    }
    if (part.tree_before == 0) sequence.planned = part.runs_again() ? sequence.computed : part.position;
    sequence.parents.resize(part.tree_before);
    sequence.has_draft = false;
    if (part.copies) sequence.is_tail_planned = false;
    cut_row(sequence, part.first_column);
  }
  /// A step has left `steps`.
  void end_step(const TwinStep& step) {
    free_fenced();
    for (const TwinPart& part : step.parts) {
      const bool is_known =
          std::ranges::any_of(sequences, [&](const auto& each) { return each.get() == part.sequence; });
      if (is_known && part.sequence->is_ended && part.sequence->in_flight == 0) end(*part.sequence);
    }
  }

  // Sequences.

  void admit(TwinSequence& sequence, std::uint32_t partial_tokens) {
    std::uint32_t tokens_max = sequence.use_cache ? sequence.match_max : 0;
    if (sequence.window.visible_tokens > 0) tokens_max = std::min(tokens_max, sequence.window.visible_tokens);
    take_cached(sequence, matched(sequence, tokens_max));
    sequence.tail_tokens = partial_tokens;
    sequence.computed = sequence.planned = (sequence.shared * config_.page_tokens) + partial_tokens;
    sequence.state = TwinSequence::State::Running;
  }
  void fork(const TwinSequence& source, TwinSequence& sequence, std::uint32_t at) const {
    sequence.state = TwinSequence::State::Running;
    sequence.use_cache = source.use_cache;
    sequence.publish_max = source.publish_max == UINT32_MAX ? UINT32_MAX : std::min(source.publish_max, at);
    sequence.match_max = source.match_max;
    sequence.window = source.window;
    sequence.tokens.assign(source.tokens.begin(), source.tokens.begin() + at);
    sequence.computed = sequence.planned = std::min(at, source.computed);
    sequence.full = std::max(sequence.window.visible_tokens, std::min(source.full, sequence.computed));
    const std::uint32_t whole = sequence.computed / config_.page_tokens;
    if (source.hole_begin < whole) {
      sequence.hole_begin = source.hole_begin;
      sequence.hole_end = source.hole_end;
    }
    sequence.row.assign(source.row.begin(), source.row.begin() + whole);
    sequence.shared = std::min(source.shared, whole);
    sequence.settled = whole;
    sequence.tail_tokens = sequence.computed % config_.page_tokens;
    if (sequence.tail_tokens == 0) return;
    const bool is_in_tail = source.tail_tokens > 0 && whole == tail_column(source);
    sequence.tail = is_in_tail ? source.tail : source.row[whole];
  }
  void rewind(TwinSequence& sequence, std::uint32_t token_count) {
    const std::uint32_t end = sequence.count() - token_count;
    sequence.tokens.resize(end);
    if (sequence.publish_max != UINT32_MAX) sequence.publish_max = std::min(sequence.publish_max, end);
    if (token_count > 0) sequence.has_run = false;
    if (end < sequence.computed) truncate(sequence, end);
  }
  void set_window(TwinSequence& sequence, const Window& window) {
    sequence.window = window;
    sequence.full = std::max(window.visible_tokens, sequence.computed);
    if (sequence.is_running()) slide(sequence);
  }
  void commit(TwinSequence& sequence, std::int32_t leaf) {
    std::vector<std::int32_t> path;
    for (std::int32_t node = leaf; node >= 0; node = sequence.parents[node]) path.insert(path.begin(), node);
    for (std::size_t depth = 0; depth < path.size(); ++depth) {
      if (path[depth] != static_cast<std::int32_t>(depth)) has_moves = true;
      sequence.tokens.push_back(sequence.values[path[depth]]);
    }
    sequence.computed = sequence.planned = sequence.count();
    sequence.parents.clear();
    sequence.values.clear();
    cut_row(sequence, pages_for(sequence.computed));
    settle(sequence);
    slide(sequence);
  }
  void drop_pages(TwinSequence& sequence) {
    release(sequence);
    sequence.state = TwinSequence::State::Dropped;
    sequence.computed = sequence.planned = 0;
    sequence.has_run = false;
  }
  [[nodiscard]] static std::uint32_t pages_to_save(const TwinSequence& sequence) {
    const auto held = std::ranges::count_if(sequence.row, [](const PageRef& page) { return page != nullptr; });
    return static_cast<std::uint32_t>(held) + (sequence.tail_tokens > 0 ? 1 : 0);
  }
  void save(TwinSequence& sequence) {
    flush_moves();
    sequence.saved.clear();
    for (const PageRef& page : sequence.row) sequence.saved.push_back(page != nullptr);
    if (sequence.tail_tokens > 0) sequence.saved.push_back(true);
    const std::uint32_t hole_begin = sequence.hole_begin;
    const std::uint32_t hole_end = sequence.hole_end;
    std::vector<PageRef> row = std::move(sequence.row);
    sequence.row.clear();
    for (PageRef& page : row) give_back(std::move(page));
    drop_tail(sequence);
    sequence.shared = sequence.settled = 0;
    sequence.hole_begin = hole_begin;
    sequence.hole_end = hole_end;
    sequence.state = TwinSequence::State::Saved;
  }
  /// Its cached pages, and for how many of the saved ones it needs new pages.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> restorable(const TwinSequence& sequence) const {
    const std::uint32_t cached = sequence.use_cache && !sequence.has_hole()
                                     ? matched(sequence, std::min(sequence.computed, seen_by_all(sequence)))
                                     : 0;
    return {cached,
            static_cast<std::uint32_t>(std::count(sequence.saved.begin() + cached, sequence.saved.end(), true))};
  }
  void restore(TwinSequence& sequence, std::span<const PageId> pages) {
    flush_moves();
    take_cached(sequence, restorable(sequence).first);
    for (std::uint32_t page = sequence.shared; page < sequence.saved.size(); ++page) {
      sequence.row.push_back(sequence.saved[page] ? std::make_shared<TwinPage>(TwinPage{kNullPage}) : nullptr);
    }
    sequence.saved.clear();
    sequence.state = TwinSequence::State::Running;
    settle(sequence);
    // Those that turn out to be cached already go at once, and their ids are never seen.
    for (std::uint32_t page = 0; page < sequence.row_count() && page < pages.size(); ++page) {
      if (sequence.row[page] && sequence.row[page]->id == kNullPage) sequence.row[page]->id = pages[page];
    }
  }
  void receive(TwinSequence& sequence, std::uint32_t token_count, std::span<const PageId> pages) {
    flush_moves();
    sequence.receiving = token_count;
    while (sequence.row_count() < pages_for(sequence.computed + token_count)) {
      const PageId id = sequence.row_count() < pages.size() ? pages[sequence.row_count()] : kNullPage;
      sequence.row.push_back(std::make_shared<TwinPage>(TwinPage{id}));
    }
  }
  void finish_receive(TwinSequence& sequence) {
    sequence.computed = sequence.planned = sequence.computed + std::exchange(sequence.receiving, 0);
    sequence.has_run = false;
    settle(sequence);
    slide(sequence);
  }
  void abort_receive(TwinSequence& sequence) {
    sequence.receiving = 0;
    cut_row(sequence, pages_for(sequence.computed));
  }
  /// A tail that pages were too short for.
  void give_up_tail(TwinSequence& sequence) {
    sequence.computed -= sequence.tail_tokens;
    sequence.planned = sequence.computed;
    drop_tail(sequence);
  }

  /// Whether it holds all that the last of `end` tokens saw.
  [[nodiscard]] bool holds(const TwinSequence& sequence, std::uint32_t end) const {
    for (std::uint32_t token = first_recent(sequence, end); token < end; ++token) {
      const std::uint32_t page = token / config_.page_tokens;
      if (sequence.has_hole() && page >= sequence.hole_begin && page < sequence.hole_end) return false;
    }
    return true;
  }
  [[nodiscard]] std::uint32_t tail_column(const TwinSequence& sequence) const {
    return sequence.computed / config_.page_tokens;
  }

 private:
  void take_cached(TwinSequence& sequence, std::uint32_t page_count) const {
    sequence.row.clear();
    for (std::uint32_t page = 0; page < page_count; ++page) sequence.row.push_back(tree.at(name_of(sequence, page)));
    sequence.shared = sequence.settled = page_count;
  }
  [[nodiscard]] static std::uint32_t first_recent(const TwinSequence& sequence, std::uint32_t end) {
    const Window& window = sequence.window;
    if (window.visible_tokens == 0 || end <= window.visible_tokens) return 0;
    return end - (window.visible_tokens - window.sink_tokens);
  }
  [[nodiscard]] std::uint32_t keep_from(const TwinSequence& sequence, std::uint32_t end) const {
    const std::uint32_t first = first_recent(sequence, end);
    return first - std::min(first, config_.window_rewind_tokens);
  }
  /// Tokens that anybody would have computed the same way.
  [[nodiscard]] static std::uint32_t seen_by_all(const TwinSequence& sequence) {
    return sequence.window.visible_tokens > 0 ? sequence.full : UINT32_MAX;
  }
  [[nodiscard]] static std::uint32_t publishable(const TwinSequence& sequence) {
    return sequence.window.visible_tokens > 0 ? std::min(sequence.publish_max, sequence.full) : sequence.publish_max;
  }
  /// Full pages: into the tree while the path has no gap, private beyond.
  void settle(TwinSequence& sequence) {
    const std::uint32_t full_pages = sequence.computed / config_.page_tokens;
    if (full_pages <= sequence.settled) return;
    const bool has_path = !sequence.has_hole() || sequence.hole_end < sequence.shared;
    std::vector<PageRef> in_vain;
    while (has_path && sequence.shared < full_pages && sequence.row[sequence.shared] &&
           (sequence.shared + 1) * config_.page_tokens <= publishable(sequence)) {
      PageRef& page = sequence.row[sequence.shared];
      PageRef& cached = tree[name_of(sequence, sequence.shared)];
      if (cached && !config_.dedup) {  // from here on nothing of it is published
        ++kept_total;
        sequence.publish_max = sequence.shared * config_.page_tokens;
        break;
      }
      if (cached) {
        ++duplicate_total;
        in_vain.push_back(std::exchange(page, cached));
      } else {
        ++sealed_total;
        page->is_in_tree = true;
        cached = page;
      }
      ++sequence.shared;
    }
    sequence.settled = full_pages;
    for (PageRef& page : in_vain) give_back(std::move(page));
  }
  /// Gives up the pages that the window has left.
  void slide(TwinSequence& sequence) {
    if (sequence.window.visible_tokens == 0) return;
    const std::uint32_t begin = pages_for(sequence.window.sink_tokens);
    const std::uint32_t end = keep_from(sequence, sequence.computed) / config_.page_tokens;
    if (end <= std::max(begin, sequence.hole_end)) return;
    for (std::uint32_t page = begin; page < end; ++page) give_back(std::exchange(sequence.row[page], nullptr));
    sequence.hole_begin = begin;
    sequence.hole_end = end;
  }
  void truncate(TwinSequence& sequence, std::uint32_t end) {
    const std::uint32_t whole = end / config_.page_tokens;
    const std::uint32_t rest = end % config_.page_tokens;
    const bool ends_in_tail = sequence.tail_tokens > 0 && whole == tail_column(sequence) && rest > 0;
    sequence.computed = sequence.planned = end;
    sequence.full = std::max(sequence.window.visible_tokens, std::min(sequence.full, end));
    if (ends_in_tail) {
      sequence.tail_tokens = rest;
      return;
    }
    drop_tail(sequence);
    std::uint32_t row_end = whole;
    if (rest > 0) {
      const PageRef page = sequence.row[whole];
      if (!page->is_in_tree && owners(page) == 1) {
        ++row_end;
      } else {
        sequence.tail = page;
        sequence.tail_tokens = rest;
      }
    }
    sequence.settled = std::min(sequence.settled, whole);
    sequence.shared = std::min(sequence.shared, whole);
    cut_row(sequence, row_end);
    if (sequence.hole_begin >= whole) sequence.hole_begin = sequence.hole_end = 0;
  }

  TwinConfig config_;
  std::vector<PageRef> cut_;
};

}  // namespace quire::testing
