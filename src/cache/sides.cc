// SPDX-License-Identifier: Apache-2.0
//
// Cache: pages of groups that do not keep everything. A sequence holds a window group's pages in a row of its own, with
// the columns of its row of the history: shared ones hang on the tree's pages and are pinned, the others are its own.
// What the window has left is given back, or stays with the tree for whoever comes to that place again.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

// Pages of a side group

std::uint32_t Cache::Impl::available_pages(const SideGroup& side) const {
  return side.pool.free_count() + side.pages.idle_count() - idle_read_pages(side) +
         (step_order.empty() ? side.fenced.count() : 0);
}

// As for the history: pages that wait for moves of this very plan can be written by it.
void Cache::Impl::make_room(SideGroup& side, std::uint32_t page_count) {
  while (step_order.empty() && side.pool.free_count() < page_count && side.fenced.count() > 0) {
    const PageId page = side.fenced.pop();
    side.pool.release({&page, 1});
  }
  while (side.pool.free_count() < page_count && evict_side(side)) {
  }
}

// One page that nobody uses. What the host has of it is the only copy then.
bool Cache::Impl::evict_side(SideGroup& side) {
  const PageId page = side.pages.first_idle();
  if (page.is_none()) return false;
  const PageId tree_page = side.pages.tree_page_of(page);
  const bool is_kept = side.pages.is_kept(page);
  side.pages.detach(page);
  if (is_kept && side.host != nullptr) keep_host_copy(side, tree_page);
  release_device(side, page);
  ++side.totals.evicted_page_total;
  return true;
}

// A page of a sequence's own.
void Cache::Impl::give_back(SideGroup& side, PageId page) {
  const bool has_moves = move_count() > 0;
  if (side.pool.is_shared(page) || (step_order.empty() && !has_moves)) {
    side.pool.release({&page, 1});
  } else {
    side.pool.fence({&page, 1});
    side.fenced.push(page, has_moves ? step_number + 1 : step_at(step_order.size() - 1).number);
  }
}

// A page in a row, or the source of a tail: no longer used by the sequence.
void Cache::Impl::release_side(SideGroup& side, PageId page, SidePages::Worth worth) {
  if (side.pool.state(page) == PageState::Sealed) {
    side.pages.unpin(page, worth);
    if (worth == SidePages::Worth::Kept && side.host != nullptr) keep_host_copy(side, side.pages.tree_page_of(page));
  } else {
    give_back(side, page);
  }
}

// The tree gives up pages: what hangs on them goes too.
void Cache::Impl::drop_sides(std::span<const PageId> tree_pages) {
  for (SideGroup& side : sides) {
    if (!side.has_pages) continue;
    for (const PageId tree_page : tree_pages) {
      if (side.host != nullptr) {
        const PageId host_page = side.host->of_device.drop(tree_page);
        if (!host_page.is_none()) release_host(side, host_page);
      }
      const PageId page = side.pages.drop(tree_page);
      if (page.is_none()) continue;
      release_device(side, page);
      ++side.totals.dropped_page_total;
    }
  }
}

// Hits

// Where the sequence can go on, of what the tree has.
Hit Cache::Impl::find_hit(const PrefixTree::Match& match, std::uint32_t token_count, bool allows_inexact,
                          bool counts_host, bool allows_partial) {
  const std::span<PageId> pages = std::span(path_scratch).first(match.page_count);
  tree->copy_pages(match, 0, pages);
  const std::uint32_t host_page_count_of_path = counts_host ? match.host_page_count : 0;
  const std::span<PageId> host_pages = std::span(path_scratch).subspan(match.page_count, host_page_count_of_path);
  if (!host_pages.empty()) tree->copy_host_pages(match, host_pages);
  const bool has_partial = allows_partial && match.partial_tokens > 0 && host_pages.empty();
  HitLimits limits = hit_limits;
  limits.allows_inexact = allows_inexact;
  if (!allows_partial) limits.partial_tokens_min = page_tokens;
  return quire::find_hit(counts_host && has_host() ? all_hit_groups : hit_groups,
                         {.pages = pages,
                          .host_pages = host_pages,
                          .partial_page = has_partial ? tree->partial_page(match) : kNullPage,
                          .partial_tokens = has_partial ? match.partial_tokens : 0,
                          .prompt_tokens = token_count},
                         limits);
}

// What a sequence needs of side groups to go on behind a hit. `row` has the pages of the history, and `tail_page` the
// one behind them that begins with the sequence's tokens, if it ends inside one.
void Cache::Impl::take_sides(std::uint32_t index, const Hit& hit, PageId tail_page) {
  const SequenceSlot& slot = sequences[index];
  const std::span<const PageId> row = sequences.page_row(index);
  const std::uint32_t whole_pages = hit.tokens / page_tokens;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    SideSlot& taken = side.slots[index];
    taken = {};
    if (!side.is_window) continue;
    taken.is_rebuilt = hit.is_rebuilt(i);
    if (taken.is_rebuilt) {
      // Of a prompt that was found whole one token more is replayed: the last one may run again, and sees it.
      const std::uint32_t seen = side.group->window_tokens - (hit.tokens == slot.token_count ? 0 : 1);
      taken.valid_from = hit.tokens - std::min(hit.tokens, seen);
      taken.page_count = hit.start() / page_tokens;
      taken.hole_end = taken.page_count;
      std::ranges::fill(side.row(index).first(taken.page_count), kNullPage);
      continue;
    }
    const WindowColumns columns = window_columns(
        hit_groups[i], hit_limits,
        {.start = hit.start(), .end = hit.tokens, .runs_again = hit.tokens > 0 && hit.start() == slot.token_count});
    taken.page_count = whole_pages;
    taken.hole_end = std::min(columns.first, whole_pages);
    for (std::uint32_t column = 0; column < whole_pages; ++column) {
      const bool is_needed = column < columns.sink_pages || column >= columns.first;
      side.row(index)[column] = is_needed ? side.pages.at(row[column]) : kNullPage;
      if (is_needed) side.pages.pin_found(side.row(index)[column]);
    }
    const bool needs_tail =
        columns.last > whole_pages && (columns.first < columns.last || columns.sink_pages > whole_pages);
    if (!needs_tail) {
      // The page that it goes on in has nothing of the tokens before.
      if (hit.tokens % page_tokens > 0) taken.valid_from = hit.tokens;
      continue;
    }
    taken.tail_source = side.pages.at(tail_page);
    taken.tail_is_pinned = true;
    side.pages.pin_found(taken.tail_source);
  }
}

// What a kept path holds of other groups must leave the rest of their pages to those who run.
Status Cache::Impl::check_keep(const Hit& hit) const {
  for (std::size_t i = 0; hit.tokens > 0 && i < sides.size(); ++i) {
    const SideGroup& side = sides[i];
    if (!side.has_pages || hit.is_rebuilt(i)) continue;
    const WindowColumns columns = needed_columns(i, hit, UINT32_MAX);
    const std::uint32_t needed = columns.sink_pages + columns.last - columns.first;
    if (std::uint64_t{side.kept_pages} + needed <= side.pool.page_count() / 2) continue;
    return fail(ErrorCode::Unavailable, "keeping " + count_of(needed, "page") + " of group '" + side.group->name +
                                            "' more than the " + with_separators(side.kept_pages) +
                                            " kept now exceeds half of its " + with_separators(side.pool.page_count()));
  }
  return {};
}

// The same for a path that is kept: the pages that a sequence would need are pinned, or no longer.
void Cache::Impl::hold_sides(const KeepSlot& keep, bool is_held) {
  if (keep.hit.tokens == 0) return;
  const std::span<PageId> pages = std::span(path_scratch).first(tree->end_page(keep.pin.run()));
  tree->copy_path(keep.pin, 0, pages);
  const auto hold = [&](SideGroup& side, std::uint32_t column) {
    const PageId page = side.pages.at(pages[column]);
    if (is_held) {
      side.pages.pin(page);
      ++side.kept_pages;
    } else {
      side.pages.unpin(page, SidePages::Worth::Kept);
      --side.kept_pages;
    }
  };
  for (std::size_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (!side.has_pages || keep.hit.is_rebuilt(i)) continue;
    if (!side.is_window) {
      hold(side, (keep.hit.start() / page_tokens) - 1);
      continue;
    }
    const WindowColumns columns =
        window_columns(hit_groups[i], hit_limits, {.start = keep.hit.start(), .end = keep.hit.tokens});
    for (std::uint32_t column = 0; column < columns.last; ++column) {
      if (column < columns.sink_pages || column >= columns.first) hold(side, column);
    }
  }
}

// The sequence holds nothing of side groups any more.
void Cache::Impl::release_sides(std::uint32_t index) {
  drop_side_tails(index);
  for (const std::uint32_t i : window_sides) {
    SideGroup& side = sides[i];
    SideSlot& slot = side.slots[index];
    for (std::uint32_t column = 0; column < slot.page_count; ++column) {
      const PageId page = side.row(index)[column];
      // Where a sequence ends, another may go on.
      if (page != kNullPage) release_side(side, page, SidePages::Worth::Kept);
    }
    slot = {};
  }
  release_state(index);
}

// Pages that have become part of the tree's path, in columns [first, end), the first `known` of which it had before.
void Cache::Impl::settle_sides(std::uint32_t index, TokenRange columns, std::uint32_t known) {
  const auto [first, end] = columns;
  const std::span<const PageId> row = sequences.page_row(index);
  for (const std::uint32_t i : window_sides) {
    SideGroup& side = sides[i];
    SideSlot& slot = side.slots[index];
    const bool is_shared_later = side.group->retention.rule != RetentionRule::None && !sequences[index].is_inexact;
    for (std::uint32_t column = first; column < std::min(end, slot.page_count); ++column) {
      PageId& page = side.row(index)[column];
      if (page == kNullPage || side.pool.state(page) == PageState::Sealed) continue;
      if (side.pages.has(row[column]) && is_shared_later) {
        // The tree has it: the sequence's own was computed in vain.
        give_back(side, page);
        page = side.pages.at(row[column]);
        side.pages.pin(page);
        slot.changed_column = std::min(slot.changed_column, column);
        ++side.totals.duplicate_page_total;
        continue;
      }
      const bool is_right = std::uint64_t{column} * page_tokens >= slot.valid_from;
      if (side.pool.state(page) == PageState::Private && !side.pool.is_shared(page)) side.pool.reopen(page);
      if (side.pool.state(page) != PageState::Open) continue;
      // Where the history had it before, forks' tails stay on the page that was computed in vain. Theirs here would
      // hang on a page of the tree that they do not hold.
      const bool has_other_tails = column < first + known && side.pool.is_shared(page);
      if (!is_shared_later || !is_right || has_other_tails || side.pages.has(row[column])) {
        side.pool.make_private({&page, 1});
        continue;
      }
      const std::uint32_t tails = adopt_side_tails(side, page);
      side.pool.seal({&page, 1});
      side.pages.attach(row[column], page);
      for (std::uint32_t tail = 0; tail < tails; ++tail) side.pages.pin(page);
      want_side_copy(side, page, column);
      ++side.totals.sealed_page_total;
    }
  }
}

// Full pages that stay the sequence's own.
void Cache::Impl::make_sides_private(std::uint32_t index, std::uint32_t first, std::uint32_t end) {
  for (const std::uint32_t i : window_sides) {
    SideGroup& side = sides[i];
    for (std::uint32_t column = first; column < std::min(end, side.slots[index].page_count); ++column) {
      const PageId page = side.row(index)[column];
      if (page != kNullPage && side.pool.state(page) == PageState::Open) side.pool.make_private({&page, 1});
    }
  }
}

// A page that the tree is about to have may be the source of other sequences' tails: so many pin it from here on.
std::uint32_t Cache::Impl::adopt_side_tails(SideGroup& side, PageId page) {
  std::uint32_t tails = 0;
  for (std::uint32_t i = 0; side.pool.is_shared(page) && i < sequences.capacity(); ++i) {
    SideSlot& slot = side.slots[i];
    if (slot.tail_source != page || slot.tail_is_pinned) continue;
    side.pool.unshare(page);
    slot.tail_is_pinned = true;
    ++tails;
  }
  return tails;
}

// Whether what a window's page holds is of use at one of the places where the group keeps what it needs.
bool Cache::Impl::is_kept_column(const SideGroup& side, const SequenceSlot& slot, std::uint32_t column) const {
  const std::uint64_t begin = std::uint64_t{column} * page_tokens;
  const std::uint64_t end = begin + page_tokens;
  // A page is needed at b when it overlaps [b - W + 1, b): then b lies in (begin, end + W - 1).
  const std::uint64_t last = end + side.group->window_tokens - 2;
  const auto is_needed_at = [&](std::uint64_t position) { return position > begin && position <= last; };
  // Where prompts end or part others may come, at the end of the page before if not there.
  for (const std::uint32_t place : {slot.prompt_tokens, slot.junction}) {
    if (is_needed_at(place) || is_needed_at(place - (place % page_tokens))) return true;
  }
  // A snapshot is of no use where the window has gone, and the last one is taken before the last token of the prompt.
  const std::uint32_t before_end = slot.prompt_tokens - std::min(slot.prompt_tokens, 1U);
  if (is_needed_at(before_end / checkpoint_grid * checkpoint_grid)) return true;
  const GroupRetention& retention = side.group->retention;
  if (retention.rule != RetentionRule::Every) return false;
  const std::uint64_t multiple = last / retention.interval_tokens * retention.interval_tokens;
  return is_needed_at(multiple);
}

// Gives up the pages that windows have left. The last token that is computed may run again, so what it saw stays.
void Cache::Impl::slide_sides(std::uint32_t index) {
  const SequenceSlot& sequence = sequences[index];
  for (const std::uint32_t i : window_sides) {
    SideGroup& side = sides[i];
    SideSlot& slot = side.slots[index];
    const std::uint64_t held = std::uint64_t{side.group->window_tokens} + config.window_rewind_tokens;
    if (sequence.computed_tokens <= held || sequence.replay_end > 0) continue;
    const auto hole_end =
        std::min(static_cast<std::uint32_t>((sequence.computed_tokens - held) / page_tokens), slot.page_count);
    for (std::uint32_t column = std::max(slot.hole_end, side.sink_pages); column < hole_end; ++column) {
      PageId& page = side.row(index)[column];
      if (page == kNullPage) continue;
      const bool is_kept = is_kept_column(side, sequence, column);
      const bool is_sealed = side.pool.state(page) == PageState::Sealed;
      release_side(side, page, is_kept ? SidePages::Worth::Kept : SidePages::Worth::Passed);
      const bool stays = is_kept || side.group->retention.rule == RetentionRule::Dense;
      if (is_sealed && !stays && !side.pages.is_pinned(page) && !side.pages.is_kept(page)) {
        drop_host_copy(side, page);
        side.pages.detach(page);
        release_device(side, page);
        ++side.totals.dropped_page_total;
      }
      page = kNullPage;
    }
    slot.hole_end = std::max(slot.hole_end, hole_end);
  }
}

// Fork and rewind

// Tokens that a window must hold and does not when a sequence has `end` of them: what the next one sees or, if that may
// run again, the last one. Those of the sink are always there.
TokenRange Cache::Impl::missing_of_window(const SideGroup& side, std::uint32_t index, std::uint32_t end,
                                          bool may_run_again) const {
  const SideSlot& slot = side.slots[index];
  const std::uint32_t seen = side.group->window_tokens - (may_run_again ? 0 : 1);
  const std::uint32_t needed = std::max(end - std::min(end, seen), side.sink_pages * page_tokens);
  const std::uint32_t held = std::min(std::max(slot.hole_end * page_tokens, slot.valid_from), end);
  return {needed, std::max(needed, held)};
}

Status Cache::Impl::check_sides_held(std::uint32_t index, std::uint32_t end, bool may_run_again) const {
  for (const SideGroup& side : sides) {
    if (!side.is_window) {
      QUIRE_TRY(check_state_held(side, index, end));
      continue;
    }
    const TokenRange missing = missing_of_window(side, index, end, may_run_again);
    if (missing.begin == missing.end) continue;
    const std::string which = "[" + with_separators(missing.begin) + ", " + with_separators(missing.end) + ")";
    if (side.slots[index].valid_from > side.slots[index].hole_end * page_tokens) {
      return fail(ErrorCode::InvalidArgument, "group '" + side.group->name + "' never had its tokens " + which +
                                                  ": the sequence began behind them, where its window of " +
                                                  count_of(side.group->window_tokens, "token") + " needed no more");
    }
    return fail(ErrorCode::InvalidArgument,
                "group '" + side.group->name + "' no longer holds its tokens " + which + ", which its window of " +
                    count_of(side.group->window_tokens, "token") + " has left; window_rewind_tokens keeps more");
  }
  return {};
}

void Cache::Impl::copy_sides(std::uint32_t source_index, std::uint32_t index) {
  const SequenceSlot& sequence = sequences[index];
  const std::uint32_t whole_pages = sequence.computed_tokens / page_tokens;
  const bool shares_tail = sequences[source_index].tail_tokens > 0 && sequences[source_index].tail_page == whole_pages;
  for (const std::uint32_t i : window_sides) {
    SideGroup& side = sides[i];
    const SideSlot& source = side.slots[source_index];
    SideSlot& slot = side.slots[index];
    slot = {};
    slot.page_count = std::min(whole_pages, source.page_count);
    slot.hole_end = std::min(source.hole_end, slot.page_count);
    slot.valid_from = source.valid_from;
    for (std::uint32_t column = 0; column < slot.page_count; ++column) {
      const PageId page = side.row(source_index)[column];
      side.row(index)[column] = page;
      if (page == kNullPage) continue;
      if (side.pool.state(page) == PageState::Sealed) {
        side.pages.pin(page);
      } else {
        side.pool.share(page);
      }
    }
    if (sequence.tail_tokens == 0) continue;
    // As the history does: what a step in flight copies is taken from where it comes, not from the copy.
    const bool is_in_row = !shares_tail && whole_pages < source.page_count;
    const PageId page = is_in_row ? side.row(source_index)[whole_pages] : source.tail_source;
    if (page.is_none() || page == kNullPage) {  // the window needs nothing of it
      slot.valid_from = sequence.computed_tokens;
      continue;
    }
    slot.tail_source = page;
    slot.tail_is_pinned = side.pool.state(page) == PageState::Sealed;
    if (slot.tail_is_pinned) {
      side.pages.pin(page);
    } else {
      side.pool.share(page);
    }
  }
}

// Keeps the columns of the first `end` tokens. A page cut in two that others have too becomes the source of the tail.
void Cache::Impl::truncate_sides(std::uint32_t index, std::uint32_t end) {
  const SequenceSlot& sequence = sequences[index];
  const std::uint32_t whole_pages = end / page_tokens;
  const std::uint32_t rest = end % page_tokens;
  const bool has_tail = sequence.tail_tokens > 0;  // as it is now: the history has been cut
  for (const std::uint32_t i : window_sides) {
    SideGroup& side = sides[i];
    SideSlot& slot = side.slots[index];
    const std::span<PageId> row = side.row(index);
    const bool keeps_tail = !slot.tail_source.is_none() && slot.page_count == whole_pages && rest > 0;
    if (!keeps_tail) drop_side_tail(side, index);
    std::uint32_t row_end = whole_pages;
    bool starts_inside = false;
    if (rest > 0 && whole_pages < slot.page_count) {
      const PageId page = row[whole_pages];
      const bool is_own = page != kNullPage && side.pool.state(page) != PageState::Sealed && !side.pool.is_shared(page);
      if (!has_tail && page == kNullPage) {
        starts_inside = true;  // a window of one token has left it, and the next one sees nothing of it
      } else if (!has_tail) {
        // The history goes on in its own page, and so does the group, if need be in one that starts with others' rows.
        QUIRE_CHECK(is_own, "a page of the history is the sequence's own, and one of a window is not");
        ++row_end;
        if (side.pool.state(page) == PageState::Private) side.pool.reopen(page);
      } else if (page != kNullPage) {
        slot.tail_source = page;
        slot.tail_is_pinned = side.pool.state(page) == PageState::Sealed;
        row[whole_pages] = kNullPage;  // its hold goes to the tail
      }
    }
    for (std::uint32_t column = row_end; column < slot.page_count; ++column) {
      if (row[column] != kNullPage) release_side(side, row[column], SidePages::Worth::Kept);
    }
    slot.page_count = std::min(slot.page_count, row_end);
    slot.hole_end = std::min(slot.hole_end, slot.page_count);
    slot.changed_column = std::min(slot.changed_column, slot.page_count);
    slot.valid_from = std::min(slot.valid_from, end);
    if (starts_inside || (has_tail && slot.tail_source.is_none())) slot.valid_from = end;
  }
}

void Cache::Impl::drop_side_tail(SideGroup& side, std::uint32_t index) {
  SideSlot& slot = side.slots[index];
  if (slot.tail_source.is_none()) return;
  if (slot.tail_is_pinned) {
    side.pages.unpin(slot.tail_source, SidePages::Worth::Kept);
  } else if (side.pool.is_shared(slot.tail_source)) {
    side.pool.unshare(slot.tail_source);
  } else {
    give_back(side, slot.tail_source);
  }
  slot.tail_source = PageId::none();
  slot.tail_is_pinned = false;
}

void Cache::Impl::drop_side_tails(std::uint32_t index) {
  for (const std::uint32_t i : window_sides) drop_side_tail(sides[i], index);
}

// Gives back a sequence's pages from a column on, those it has taken and those the tree has.
void Cache::Impl::give_back_side_row(SideGroup& side, std::uint32_t index, std::uint32_t first_column) {
  SideSlot& slot = side.slots[index];
  for (std::uint32_t column = first_column; column < slot.page_count; ++column) {
    const PageId page = side.row(index)[column];
    if (page != kNullPage) release_side(side, page, SidePages::Worth::Passed);
  }
  slot.page_count = std::min(slot.page_count, first_column);
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
}

// What lies behind the sequence's last page.
void Cache::Impl::give_back_side_rows(std::uint32_t index, std::uint32_t first_page) {
  for (const std::uint32_t i : window_sides) give_back_side_row(sides[i], index, first_page);
}

// What a step took that did not happen.
void Cache::Impl::give_back_side_rows(std::uint32_t index, std::span<const SidePart> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i)
    give_back_side_row(sides[window_sides[i]], index, parts[i].first_column);
}

// Steps

// What a part asks of each window group.
void Cache::Impl::make_side_parts(const StepPart& part) {
  const SequenceSlot& sequence = sequences[part.index];
  const std::uint32_t end_page = pages_for(end_of(sequence, part));
  for (const std::uint32_t i : window_sides) {
    const SideGroup& side = sides[i];
    const SideSlot& slot = side.slots[part.index];
    SidePart& asked = planning_sides.emplace_back();
    asked.first_column = slot.page_count;
    asked.new_pages = end_page - std::min(end_page, slot.page_count);
    const bool takes_tail = part.copies_tail || part.adopts_tail;
    if (!takes_tail || slot.tail_source.is_none()) continue;
    // The last owner of a page needs no copy of it. Where the history has one, the group has one too, so that a fork
    // finds both sources until the step is finished.
    asked.adopts_tail = part.adopts_tail && !slot.tail_is_pinned && !side.pool.is_shared(slot.tail_source);
    asked.copies_tail = !asked.adopts_tail;
    if (asked.adopts_tail) --asked.new_pages;
  }
}

void Cache::Impl::plan_side_parts(const StepPart& part, std::span<SidePart> parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    SideGroup& side = sides[window_sides[i]];
    SideSlot& slot = side.slots[part.index];
    SidePart& asked = parts[i];
    const std::span<PageId> row = side.row(part.index);
    slot.changed_column = std::min(slot.changed_column, slot.page_count);
    if (asked.adopts_tail) {
      if (side.pool.state(slot.tail_source) == PageState::Private) side.pool.reopen(slot.tail_source);
      row[slot.page_count++] = slot.tail_source;
      asked.first_column =
          slot.page_count;  // the page is the sequence's own from here on, whatever becomes of the step
      slot.tail_source = PageId::none();
    }
    QUIRE_CHECK(side.pool.try_allocate(row.subspan(slot.page_count, asked.new_pages)),
                "pages that were counted are not there");
    if (asked.copies_tail) {
      // Where the history goes on in a page that is its own already, there is no way back to the tail.
      if (part.adopts_tail) ++asked.first_column;
      side.copies.push_back({.source = slot.tail_source,
                             .target = row[slot.page_count],
                             .token_count = sequences[part.index].tail_tokens});
    }
    slot.page_count += asked.new_pages;
  }
}

void Cache::Impl::free_fenced_sides(std::uint64_t oldest) {
  for (SideGroup& side : sides) {
    if (move_count() == 0 && !step_order.empty()) side.fenced.wait_at_most_for(step_at(step_order.size() - 1).number);
    side.fenced.release_before(oldest, [&](PageId page) { side.pool.release({&page, 1}); });
  }
}

// Whether windows have what the sequence would need to compute the token behind `end` of them.
bool Cache::Impl::windows_hold(std::uint32_t index, std::uint32_t end) const {
  return std::ranges::all_of(window_sides, [&](std::uint32_t i) {
    const TokenRange missing = missing_of_window(sides[i], index, end, /*may_run_again=*/false);
    return missing.begin == missing.end;
  });
}

}  // namespace quire
