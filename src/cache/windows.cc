// SPDX-License-Identifier: Apache-2.0
//
// Cache: pages of window groups. A sequence has a row of pages for each window group, in which column i stands for the
// same tokens as column i of its history row. Shared pages hang on pages of the tree and are pinned; the others are the
// sequence's own. A page that the window has left is given back or, if it hangs on the tree, stays there for whoever
// comes to that place again.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

// Fills a sequence's window rows with what it needs to go on behind a hit. Its history row is filled already;
// `tail_page` is the tree's page in which the hit ends, or null if the hit ends with a page.
void Cache::Impl::take_windows(std::uint32_t index, const Hit& hit, PageId tail_page) {
  const SequenceSlot& slot = sequences[index];
  const std::span<const PageId> row = sequences.page_row(index);
  const std::uint32_t whole_pages = hit.tokens / page_tokens;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    GroupRows& group = groups[i];
    WindowRow& taken = group.slots[index];
    taken = {};
    if (!group.is_window()) continue;
    taken.is_rebuilt = hit.is_rebuilt(i);
    if (taken.is_rebuilt) {
      // If the prompt was found whole, its last token may run again and sees one token more, which is replayed too.
      const std::uint32_t seen = group.group->window_tokens - (hit.tokens == slot.token_count ? 0 : 1);
      taken.valid_from = hit.tokens - std::min(hit.tokens, seen);
      taken.written_from = hit.start();
      taken.page_count = hit.start() / page_tokens;
      taken.hole_end = taken.page_count;
      std::ranges::fill(group.row(index).first(taken.page_count), kNullPage);
      continue;
    }
    const WindowColumns columns = tiers->paths.needed_columns(i, hit, slot.token_count);
    taken.page_count = whole_pages;
    taken.hole_end = std::min(columns.first, whole_pages);
    for (std::uint32_t column = 0; column < whole_pages; ++column) {
      const bool is_needed = column < columns.sink_pages || column >= columns.first;
      const PageId page = is_needed ? group.pages().at(row[column]) : PageId::none();
      QUIRE_CHECK(!is_needed || !page.is_none() || slot.state == SequenceSlot::State::RunningAhead,
                  "a hit needs a page of a window that is not there");
      group.row(index)[column] = page.is_none() ? kNullPage : page;
      if (!page.is_none()) group.pages().pin_found(page);
    }
    const bool needs_tail =
        columns.last > whole_pages && (columns.first < columns.last || columns.sink_pages > whole_pages);
    if (!needs_tail) {
      // The hit ends inside a page, of which the group needs nothing: rows of the tokens before are not there.
      if (hit.tokens % page_tokens > 0) taken.valid_from = hit.tokens;
      continue;
    }
    QUIRE_CHECK(tail_page != kNullPage, "a hit ends inside a page that the history lacks");
    taken.tail_source = group.pages().at(tail_page);
    taken.tail_is_pinned = true;
    group.pages().pin_found(taken.tail_source);
  }
}

// Kept paths may hold at most half of an anchored group's pages: the others are for running sequences.
Status Cache::Impl::check_keep(const Hit& hit) const {
  for (std::size_t i = 0; hit.tokens > 0 && i < groups.size(); ++i) {
    const GroupRows& group = groups[i];
    if (!group.has_pages() || hit.is_rebuilt(i)) continue;
    const WindowColumns columns = tiers->paths.needed_columns(i, hit, UINT32_MAX);
    const std::uint32_t needed = columns.sink_pages + columns.last - columns.first;
    if (std::uint64_t{group.kept_pages} + needed <= group.tier->pages.device_page_count() / 2) continue;
    return unavailable("keeping ", count_of(needed, "page"), " of group '", group.group->name, "' more than the ",
                       group.kept_pages, " kept now exceeds half of its ", group.tier->pages.device_page_count());
  }
  return {};
}

// Pins the pages of anchored groups that a sequence needs to go on behind a kept path, or unpins them.
void Cache::Impl::hold_anchored(const KeepSlot& keep, bool is_held) {
  if (keep.hit.tokens == 0) return;
  const TierPath path = tiers->paths.path_of(keep.pin);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    GroupRows& group = groups[i];
    if (!group.has_pages() || keep.hit.is_rebuilt(i)) continue;
    for_each_column(tiers->paths.needed_columns(i, keep.hit, UINT32_MAX), [&](std::uint32_t column) {
      const PageId page = group.pages().at(path.at(column).page);
      if (is_held) {
        group.pages().pin(page);
        ++group.kept_pages;
      } else {
        QUIRE_CHECK(group.kept_pages > 0, "a page is kept no longer that was not kept");
        group.pages().unpin(page, AnchoredPages::Worth::Kept);
        --group.kept_pages;
      }
    });
  }
}

// Gives back everything that a sequence holds of window groups, but for their tails.
void Cache::Impl::release_windows(std::uint32_t index, KeepState keeps_state) {
  for (const std::uint32_t i : windows) {
    GroupRows& group = groups[i];
    WindowRow& slot = group.slots[index];
    give_back_window_row(group, index, 0, AnchoredPages::Worth::Kept);  // others may go on where this one ends
    // resume() needs these.
    const WindowRow saved{.hole_end = slot.hole_end, .valid_from = slot.valid_from, .written_from = slot.written_from};
    slot = keeps_state == KeepState::Yes ? saved : WindowRow{};
  }
}

// The history's pages in `columns` have come into the tree, which had the first `known` of them before. The sequence's
// window pages in these columns hang on them from now on, or become private.
void Cache::Impl::settle_windows(std::uint32_t index, TokenRange columns, std::uint32_t known) {
  const auto [first, end] = columns;
  QUIRE_CHECK(first <= end && known <= end - first, "the tree had more pages than there are");
  const std::span<const PageId> row = sequences.page_row(index);
  for (const std::uint32_t i : windows) {
    GroupRows& group = groups[i];
    WindowRow& slot = group.slots[index];
    const bool is_shared_later = group.group->retention.rule != RetentionRule::None && !sequences[index].is_inexact;
    for (std::uint32_t column = first; column < std::min(end, slot.page_count); ++column) {
      PageId& page = group.row(index)[column];
      if (page == kNullPage || group.pool().state(page) == PageState::Sealed) continue;
      if (group.pages().has(row[column]) && is_shared_later) {
        // The tree has a page of the group here: the sequence uses that one, and gives back its own.
        group.tier->pages.give_back(page);
        page = group.pages().at(row[column]);
        group.pages().pin(page);
        slot.changed_column = std::min(slot.changed_column, column);
        ++group.tier->pages.totals.duplicate_page_total;
        continue;
      }
      const bool is_right = std::uint64_t{column} * page_tokens >= slot.valid_from;
      if (group.pool().state(page) == PageState::Private && !group.pool().is_shared(page)) group.pool().reopen(page);
      if (group.pool().state(page) != PageState::Open) continue;
      // Where the tree had the history's page before, the tails of forks stay on the duplicate of that page. If the
      // group's page came into the tree, their tails in the group would hang on a page of the tree that they do not
      // pin.
      const bool has_other_tails = column < first + known && group.pool().is_shared(page);
      if (!is_shared_later || !is_right || has_other_tails || group.pages().has(row[column])) {
        group.pool().make_private({&page, 1});
        continue;
      }
      const std::uint32_t tails = pin_window_tails(group, page);
      group.pool().seal({&page, 1});
      group.pages().attach(row[column], page);
      for (std::uint32_t tail = 0; tail < tails; ++tail) group.pages().pin(page);
      group.tier->want_copy(page, column);
      ++group.tier->pages.totals.sealed_page_total;
    }
  }
}

// Full window pages that are not in the tree become private.
void Cache::Impl::make_windows_private(std::uint32_t index, std::uint32_t first, std::uint32_t end) {
  for (const std::uint32_t i : windows) {
    GroupRows& group = groups[i];
    for (std::uint32_t column = first; column < std::min(end, group.slots[index].page_count); ++column) {
      const PageId page = group.row(index)[column];
      if (page != kNullPage && group.pool().state(page) == PageState::Open) group.pool().make_private({&page, 1});
    }
  }
}

// A page that is about to enter the tree may be the source of other sequences' tails: takes back their shares, and
// returns how many pins the caller must add instead.
std::uint32_t Cache::Impl::pin_window_tails(GroupRows& group, PageId page) {
  std::uint32_t tails = 0;
  for (std::uint32_t i = 0; group.pool().is_shared(page) && i < sequences.capacity(); ++i) {
    WindowRow& slot = group.slots[i];
    if (slot.tail_source != page || slot.tail_is_pinned) continue;
    group.pool().unshare(page);
    slot.tail_is_pinned = true;
    ++tails;
  }
  return tails;
}

// Whether a page that the window has left is still of use: a sequence may go on at a place that the group keeps, and
// needs the page there.
bool Cache::Impl::is_kept_column(const GroupRows& group, const SequenceSlot& slot, std::uint32_t column) const {
  const std::uint64_t begin = std::uint64_t{column} * page_tokens;
  const std::uint64_t end = begin + page_tokens;
  // A page is needed at b when it overlaps [b - W + 1, b): then b lies in (begin, end + W - 1).
  const std::uint64_t last = end + group.group->window_tokens - 2;
  const auto is_needed_at = [&](std::uint64_t position) { return position > begin && position <= last; };
  // Other requests may go on where a prompt ends, or where prompts part; if not there, at the end of the page before.
  for (const std::uint32_t place : {slot.prompt_tokens, slot.junction.value_or(0)}) {
    if (is_needed_at(place) || is_needed_at(place - (place % page_tokens))) return true;
  }
  // The last snapshot of a prompt is taken before its last token, and is of no use without the window's pages there.
  if (is_needed_at(prompt_checkpoint(slot))) return true;
  const GroupRetention& retention = group.group->retention;
  if (retention.rule != RetentionRule::Every) return false;
  const std::uint64_t multiple = last / retention.interval_tokens * retention.interval_tokens;
  return is_needed_at(multiple);
}

// Gives up the pages that windows have left, or that lie before what they have received. The last token that is
// computed may run again, so what it saw stays.
void Cache::Impl::slide_windows(std::uint32_t index) {
  const SequenceSlot& sequence = sequences[index];
  for (const std::uint32_t i : windows) {
    GroupRows& group = groups[i];
    WindowRow& slot = group.slots[index];
    const std::uint64_t held = std::uint64_t{group.group->window_tokens} + config.window_rewind_tokens;
    const bool has_passed = sequence.computed_tokens > held && sequence.replay_end == 0;
    const auto passed = has_passed ? static_cast<std::uint32_t>((sequence.computed_tokens - held) / page_tokens) : 0;
    const std::uint32_t hole_end = std::min(std::max(passed, slot.received_from), slot.page_count);
    for (std::uint32_t column = std::max(slot.hole_end, group.tier->sink_pages); column < hole_end; ++column) {
      PageId& page = group.row(index)[column];
      if (page == kNullPage) continue;
      const bool is_kept = is_kept_column(group, sequence, column);
      const bool is_sealed = group.pool().state(page) == PageState::Sealed;
      group.tier->release(page, is_kept ? AnchoredPages::Worth::Kept : AnchoredPages::Worth::Passed);
      const bool stays = is_kept || group.group->retention.rule == RetentionRule::Dense;
      if (is_sealed && !stays && !group.pages().is_pinned(page) && !group.pages().is_kept(page)) {
        group.tier->drop(page);
      }
      page = kNullPage;
    }
    slot.hole_end = std::max(slot.hole_end, hole_end);
  }
}

// Fork and rewind

// The tokens that a window group should hold but does not, for a sequence to go on behind `end` tokens: of those that
// the next token sees or, with `may_run_again`, that the last one sees. Sink tokens are always held.
TokenRange Cache::Impl::missing_of_window(const GroupRows& group, std::uint32_t index, std::uint32_t end,
                                          bool may_run_again) const {
  const WindowRow& slot = group.slots[index];
  const std::uint32_t seen = group.group->window_tokens - (may_run_again ? 0 : 1);
  const std::uint32_t needed = std::max(end - std::min(end, seen), group.tier->sink_pages * page_tokens);
  const std::uint32_t held = std::min(std::max(slot.hole_end * page_tokens, slot.valid_from), end);
  return {needed, std::max(needed, held)};
}

Status Cache::Impl::check_anchored_held(std::uint32_t index, std::uint32_t end, bool may_run_again) const {
  for (const GroupRows& group : groups) {
    if (!group.is_window()) {
      QUIRE_TRY(check_state_held(group, index, end));
      continue;
    }
    const TokenRange missing = missing_of_window(group, index, end, may_run_again);
    if (missing.begin == missing.end) continue;
    const std::string which = "[" + with_separators(missing.begin) + ", " + with_separators(missing.end) + ")";
    if (group.slots[index].valid_from > group.slots[index].hole_end * page_tokens) {
      return invalid("group '", group.group->name, "' never had its tokens ", which,
                     ": the sequence began behind them, where its window of ",
                     count_of(group.group->window_tokens, "token"), " needed no more; begin() a sequence with these ",
                     count_of(end, "token"), ", which finds what is cached of them");
    }
    return invalid("group '", group.group->name, "' no longer holds its tokens ", which, ", which its window of ",
                   count_of(group.group->window_tokens, "token"),
                   " has left; a larger window_rewind_tokens keeps more");
  }
  return {};
}

void Cache::Impl::copy_windows(std::uint32_t source_index, std::uint32_t index) {
  const SequenceSlot& sequence = sequences[index];
  const std::uint32_t whole_pages = sequence.computed_tokens / page_tokens;
  const std::optional<SequenceSlot::Tail>& source_tail = sequences[source_index].tail;
  const bool shares_tail = source_tail && source_tail->column == whole_pages;
  for (const std::uint32_t i : windows) {
    GroupRows& group = groups[i];
    const WindowRow& source = group.slots[source_index];
    WindowRow& slot = group.slots[index];
    slot = {};
    slot.page_count = std::min(whole_pages, source.page_count);
    slot.hole_end = std::min(source.hole_end, slot.page_count);
    slot.valid_from = source.valid_from;
    slot.written_from = source.written_from;
    for (std::uint32_t column = 0; column < slot.page_count; ++column) {
      const PageId page = group.row(source_index)[column];
      group.row(index)[column] = page;
      if (page != kNullPage) group.tier->take(page);
    }
    if (!sequence.tail) continue;
    // As for the history: while a step in flight copies the source's tail, the fork copies from the same page, not from
    // the copy.
    const bool is_in_row = !shares_tail && whole_pages < source.page_count;
    const PageId page = is_in_row ? group.row(source_index)[whole_pages] : source.tail_source;
    if (page.is_none() || page == kNullPage) {  // the window needs nothing of that page
      slot.valid_from = sequence.computed_tokens;
      continue;
    }
    slot.tail_source = page;
    slot.tail_is_pinned = group.pool().state(page) == PageState::Sealed;
    group.tier->take(page);
  }
}

// Whether nobody else has what windows hold in a column. Of a page of the history that a fork's window has left, the
// fork may still have those.
bool Cache::Impl::windows_own(std::uint32_t index, std::uint32_t column) const {
  return std::ranges::all_of(windows, [&](std::uint32_t i) {
    const GroupRows& group = groups[i];
    const PageId page = column < group.slots[index].page_count ? group.row(index)[column] : kNullPage;
    return page == kNullPage || (group.pool().state(page) != PageState::Sealed && !group.pool().is_shared(page));
  });
}

// Keeps the columns of the first `end` tokens. If they end inside a page that others have too, that page becomes the
// tail's source.
void Cache::Impl::truncate_windows(std::uint32_t index, std::uint32_t end) {
  const SequenceSlot& sequence = sequences[index];
  const std::uint32_t whole_pages = end / page_tokens;
  const std::uint32_t rest = end % page_tokens;
  const bool has_tail = sequence.tail.has_value();  // truncate() has cut the history before
  for (const std::uint32_t i : windows) {
    GroupRows& group = groups[i];
    WindowRow& slot = group.slots[index];
    const std::span<PageId> row = group.row(index);
    const bool keeps_tail = !slot.tail_source.is_none() && slot.page_count == whole_pages && rest > 0;
    if (!keeps_tail) drop_window_tail(group, index);
    std::uint32_t row_end = whole_pages;
    bool starts_inside = false;
    if (rest > 0 && whole_pages < slot.page_count) {
      const PageId page = row[whole_pages];
      const bool is_own =
          page != kNullPage && group.pool().state(page) != PageState::Sealed && !group.pool().is_shared(page);
      if (!has_tail && page == kNullPage) {
        starts_inside = true;  // a window of one token has left the page: the next token sees nothing of it
      } else if (!has_tail) {
        // The history goes on in a page of the sequence's own, and so does the group.
        QUIRE_CHECK(is_own, "a page of the history is the sequence's own, and one of a window is not");
        ++row_end;
        if (group.pool().state(page) == PageState::Private) group.pool().reopen(page);
      } else if (page != kNullPage) {
        slot.tail_source = page;
        slot.tail_is_pinned = group.pool().state(page) == PageState::Sealed;
        row[whole_pages] = kNullPage;  // the row's pin or share is the tail's now
      }
    }
    give_back_window_row(group, index, row_end, AnchoredPages::Worth::Kept);
    slot.hole_end = std::min(slot.hole_end, slot.page_count);
    slot.valid_from = std::min(slot.valid_from, end);
    slot.written_from = std::min(slot.written_from, end);
    if (starts_inside || (has_tail && slot.tail_source.is_none())) slot.valid_from = end;
  }
}

void Cache::Impl::drop_window_tail(GroupRows& group, std::uint32_t index) {
  WindowRow& slot = group.slots[index];
  if (slot.tail_source.is_none()) return;
  if (slot.tail_is_pinned) {
    group.pages().unpin(slot.tail_source, AnchoredPages::Worth::Kept);
  } else if (group.pool().is_shared(slot.tail_source)) {
    group.pool().unshare(slot.tail_source);
  } else {
    group.tier->pages.give_back(slot.tail_source);
  }
  slot.tail_source = PageId::none();
  slot.tail_is_pinned = false;
}

void Cache::Impl::drop_window_tails(std::uint32_t index) {
  for (const std::uint32_t i : windows) drop_window_tail(groups[i], index);
}

// Gives back a sequence's pages of a window group from a column on: its own go to the pool, the tree's are unpinned.
void Cache::Impl::give_back_window_row(GroupRows& group, std::uint32_t index, std::uint32_t first_column,
                                       AnchoredPages::Worth worth) {
  WindowRow& slot = group.slots[index];
  for (std::uint32_t column = first_column; column < slot.page_count; ++column) {
    const PageId page = group.row(index)[column];
    if (page != kNullPage) group.tier->release(page, worth);
  }
  slot.page_count = std::min(slot.page_count, first_column);
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
}

// Steps

// How many pages a part takes from each window group, and what it does with the tail there.
void Cache::Impl::make_window_parts(const StepPart& part) {
  for (const std::uint32_t i : windows) planning_windows.push_back(make_window_part(groups[i], part));
}

WindowPart Cache::Impl::make_window_part(const GroupRows& group, const StepPart& part) const {
  const std::uint32_t end_page = pages_for(end_of(sequences[part.index], part));
  const WindowRow& slot = group.slots[part.index];
  WindowPart asked{.new_pages = end_page - std::min(end_page, slot.page_count), .first_column = slot.page_count};
  const bool takes_tail = part.copies_tail || part.adopts_tail;
  if (!takes_tail || slot.tail_source.is_none()) return asked;
  // If nobody else owns the tail's source, the sequence takes that page itself, without a copy. But where the history
  // makes a copy, the group does too, so that a fork finds both sources until the step is finished.
  asked.adopts_tail = part.adopts_tail && !slot.tail_is_pinned && !group.pool().is_shared(slot.tail_source);
  asked.copies_tail = !asked.adopts_tail;
  QUIRE_DCHECK(!asked.adopts_tail || asked.new_pages > 0, "the row has no place for the tail");
  if (asked.adopts_tail) --asked.new_pages;
  return asked;
}

void Cache::Impl::plan_window_parts(const StepPart& part, std::span<WindowPart> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    GroupRows& group = groups[windows[i]];
    WindowRow& slot = group.slots[part.index];
    WindowPart& asked = parts[i];
    const std::span<PageId> row = group.row(part.index);
    slot.changed_column = std::min(slot.changed_column, slot.page_count);
    if (asked.adopts_tail) {
      if (group.pool().state(slot.tail_source) == PageState::Private) group.pool().reopen(slot.tail_source);
      row[slot.page_count++] = slot.tail_source;
      asked.first_column = slot.page_count;  // the page stays in the row, whatever becomes of the step
      slot.tail_source = PageId::none();
    }
    QUIRE_CHECK(group.pool().try_allocate(row.subspan(slot.page_count, asked.new_pages)),
                "pages that were counted are not there");
    QUIRE_CHECK(!asked.copies_tail || (asked.new_pages > 0 && sequences[part.index].tail),
                "a tail is missing, or its page");
    if (asked.copies_tail) {
      // The history has taken its tail for good. So an aborted step must leave the copy of the tail in this row, too.
      if (part.adopts_tail) ++asked.first_column;
      group.copies.push_back({.source = slot.tail_source,
                              .target = row[slot.page_count],
                              .token_count = sequences[part.index].tail->tokens});
    }
    slot.page_count += asked.new_pages;
  }
}

// Whether all window groups hold what the token behind `end` tokens sees.
bool Cache::Impl::windows_hold(std::uint32_t index, std::uint32_t end) const {
  return std::ranges::all_of(windows, [&](std::uint32_t i) {
    const TokenRange missing = missing_of_window(groups[i], index, end, /*may_run_again=*/false);
    return missing.begin == missing.end;
  });
}

}  // namespace quire
