// SPDX-License-Identifier: Apache-2.0
//
// Cache: fork, rewind, set_window and commit_tree. None of them takes a page. Where a fork or a rewound sequence ends
// inside a page that others have too, that page is the source of its tail, and the step that first needs it makes the
// copy.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

// The sequence's window must still hold what token `end` - 1 saw, since that token may run again. Token `end` sees no
// more than that.
Status Cache::Impl::check_held(const SequenceSlot& slot, std::uint32_t end) const {
  if (!slot.has_hole()) return {};
  const std::uint64_t hole_begin = std::uint64_t{slot.window->hole_begin} * page_tokens;
  const std::uint64_t hole_end = std::uint64_t{slot.window->hole_end} * page_tokens;
  const std::uint64_t missing_begin = std::max<std::uint64_t>(first_recent(slot, end), hole_begin);
  const std::uint64_t missing_end = std::min<std::uint64_t>(end, hole_end);
  if (missing_begin >= missing_end) return {};
  return invalid("group '", history_geometry().page().group().name, "' no longer holds its tokens [", missing_begin,
                 ", ", missing_end, "), which the window of ", slot.window->tokens,
                 " tokens has left; a larger window_rewind_tokens keeps more");
}

Result<Sequence> Cache::fork(const Sequence& sequence, std::uint32_t at) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "fork"));
  QUIRE_TRY_ASSIGN(const std::uint32_t source_index, impl.find_sequence(sequence));
  const Refusal refused{"fork", source_index};
  {
    const SequenceSlot& source = impl.sequences[source_index];
    if (source.state != SequenceSlot::State::Running) return refused.invalid(Impl::not_running(source));
    const bool is_busy = source.steps_in_flight > 0 || source.is_undecided() || source.receive;
    const std::uint32_t limit = is_busy ? source.computed_tokens : source.token_count;
    if (at > limit) {
      return refused.invalid(" has ", limit, is_busy ? " computed tokens, and more in flight" : " tokens", "; at is ",
                             at);
    }
    if (source.replay_end > 0) return refused.invalid(" ", Impl::rebuilding(source));
    const std::uint32_t end = std::min(impl.sequences.keys().known_rows(at), source.computed_tokens);
    Status held = impl.check_held(source, end);
    // A fork whose tokens are all computed runs the last one again; but not with a state, which would count the token
    // twice.
    if (held) held = impl.check_anchored_held(source_index, end, end == at && !impl.has_state());
    if (!held) return refused.invalid(" cannot be forked at ", at, ": ", held.error().message);
    if (source.receive && source.state_slot && !source.state_slot->needs_fill && end > 0) {
      return refused.unavailable(
          " is receiving, and its state may be overwritten by now; finish_receive or abort_receive comes first");
    }
    if (impl.has_state() && impl.free_state_slots.empty()) {
      return unavailable("fork: all ", impl.state_slot_count, " state slots are taken: ", impl.how_to_get_a_slot());
    }
    const std::size_t waiting_max = impl.state_group_count() * Impl::kForksMax * impl.config.sequence_count_max;
    if (impl.pending_forks.size() + impl.state_group_count() > waiting_max) {
      return unavailable("fork: ", impl.pending_forks.size(),
                         " copies of states wait for the next step; plan one first");
    }
  }
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.add_sequence(impl.sequences[source_index].key_space));
  impl.copy_sequence(source_index, index, at);
  ++impl.counters.forked_sequence_count;
  return Sequence(impl.release_queue, {index, impl.sequences[index].generation});
}

void Cache::Impl::copy_sequence(std::uint32_t source_index, std::uint32_t index, std::uint32_t at) {
  const SequenceSlot& source = sequences[source_index];
  SequenceSlot& slot = sequences[index];
  sequences.set_state(index, SequenceSlot::State::Running);
  slot.options = source.options;
  slot.prompt_tokens = std::min(source.prompt_tokens, at);
  slot.publish_tokens_max = source.publish_tokens_max;
  slot.is_inexact = source.is_inexact;

  std::ranges::copy(sequences.token_row(source_index).first(at), sequences.token_row(index).begin());
  std::ranges::copy(sequences.extra_key_row(source_index).first(source.extra_key_count),
                    sequences.extra_key_row(index).begin());
  slot.extra_key_count = source.extra_key_count;
  slot.token_count = at;
  slot.seen_tokens = std::min(source.seen_tokens, at);
  cut_extra_keys(index);

  slot.computed_tokens = std::min(sequences.keys().known_rows(at), source.computed_tokens);
  slot.planned_end = slot.computed_tokens;
  const std::uint32_t whole_pages = slot.computed_tokens / page_tokens;
  slot.window = source.window;
  if (slot.window) slot.window->cut(slot.computed_tokens, whole_pages);
  slot.shared_pages = std::min(source.shared_pages, whole_pages);
  slot.settled_pages = whole_pages;
  slot.page_count = whole_pages;
  const std::span<const PageId> row = sequences.page_row(source_index);
  std::ranges::copy(row.first(whole_pages), sequences.page_row(index).begin());
  for (std::uint32_t page = slot.shared_pages; page < whole_pages; ++page) {
    if (row[page] != kNullPage) history->device.share(row[page]);
  }

  const std::uint32_t rest = slot.computed_tokens % page_tokens;
  const bool shares_tail = source.tail && source.tail->column == whole_pages;
  if (rest > 0) {
    const PageId page = shares_tail ? source.tail->source : row[whole_pages];
    slot.tail = {.tokens = rest, .column = whole_pages, .source = page};
  }
  if (!groups.empty()) {
    copy_windows(source_index, index);
    fork_state(source_index, index);
  }
  slot.pin = tree->pin_prefix(source.pin, pinned_pages(index));
  if (rest == 0) return;
  if (shares_tail && source.tail->pin) {
    slot.tail->pin = tree->clone(source.tail->pin);
  } else if (!shares_tail && whole_pages < source.shared_pages) {
    slot.tail->pin = tree->pin_page(source.pin, whole_pages);
  } else {
    history->device.share(slot.tail->source);
  }
}

// Cuts extra keys off where the tokens end.
void Cache::Impl::cut_extra_keys(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const std::span<ExtraKey> keys = sequences.extra_key_row(index);
  while (slot.extra_key_count > 0 && keys[slot.extra_key_count - 1].begin >= slot.token_count) --slot.extra_key_count;
  if (slot.extra_key_count > 0) {
    ExtraKey& last = keys[slot.extra_key_count - 1];
    last.end = std::min(last.end, slot.token_count);
  }
}

Status Cache::rewind(const Sequence& sequence, std::uint32_t token_count) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "rewind"));
  SequenceSlot& slot = impl.sequences[index];
  const Refusal refused{"rewind", index};
  if (token_count > slot.token_count) {
    return refused.invalid(" has ", slot.token_count, " tokens; it cannot be rewound by ", token_count);
  }
  const std::uint32_t end = slot.token_count - token_count;
  if (slot.replay_end > 0) return refused.invalid(" ", Impl::rebuilding(slot));
  // Computed rows that depend on tokens which are taken back go too. When all tokens left are computed, the last one
  // runs again, and the window must hold one token more than the next one would see.
  const std::uint32_t rows = token_count == 0 ? slot.computed_tokens : impl.sequences.keys().known_rows(end);
  const bool runs_again = rows == end && end == slot.computed_tokens && token_count > 0 && !impl.has_state();
  if (rows < slot.computed_tokens || runs_again) {
    Status held = runs_again ? Status{} : impl.check_held(slot, rows);
    if (held) held = impl.check_anchored_held(index, rows, rows == end && !impl.has_state());
    if (!held) return refused.invalid(" cannot be rewound to ", end, ": ", held.error().message);
  }
  if (token_count == 0) return {};
  slot.token_count = end;
  slot.seen_tokens = std::min(slot.seen_tokens, end);
  slot.prompt_tokens = std::min(slot.prompt_tokens, end);  // tokens that are appended later are not the prompt
  impl.cut_extra_keys(index);
  // The model must be asked again what follows the last token that is left.
  slot.has_run = false;
  if (rows < slot.computed_tokens) impl.truncate(index, rows);
  impl.tiers->start_waiting_loads();
  return {};
}

// Keeps the first `end` computed tokens. If they end inside a page that others have too, that page becomes the source
// of the sequence's tail.
void Cache::Impl::truncate(std::uint32_t index, std::uint32_t end) {
  SequenceSlot& slot = sequences[index];
  const std::span<PageId> row = sequences.page_row(index);
  const std::uint32_t whole_pages = end / page_tokens;
  const std::uint32_t rest = end % page_tokens;
  QUIRE_CHECK(end < slot.computed_tokens && slot.steps_in_flight == 0, "nothing is cut, or a step may write it");
  slot.computed_tokens = end;
  slot.planned_end = end;
  if (slot.window) slot.window->cut(end, whole_pages);
  if (slot.send) slot.send->cached_end = std::min(slot.send->cached_end, end);
  cut_state(index, end);
  if (slot.tail) {
    if (whole_pages == slot.tail->column && rest > 0) {
      slot.tail->tokens = rest;
      return;  // the row ended before the tail, and stays as it is
    }
    drop_tail(slot);
  }
  std::uint32_t row_end = whole_pages;
  if (rest > 0) {
    const PageId page = row[whole_pages];
    QUIRE_CHECK(page != kNullPage, "a sequence goes on in a page that it gave up");
    const bool is_in_tree = whole_pages < slot.shared_pages;
    if (!is_in_tree && !history->device.is_shared(page) && windows_own(index, whole_pages)) {
      ++row_end;
      if (history->device.state(page) == PageState::Private) history->device.reopen(page);
    } else {
      slot.tail = {.tokens = rest, .column = whole_pages, .source = page};
      if (is_in_tree) {
        slot.tail->pin = tree->pin_page(slot.pin, whole_pages);
      } else {
        history->device.share(page);  // before give_back_row() gives the row's share back
      }
    }
  }
  planner.forget_row(index);
  give_back_row(index, std::max(row_end, slot.shared_pages));
  slot.page_count = std::min(slot.page_count, row_end);
  slot.settled_pages = std::min(slot.settled_pages, whole_pages);
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
  slot.shared_pages = std::min(slot.shared_pages, whole_pages);
  truncate_windows(index, end);
  shorten_pin(index);
}

Status Cache::set_window(const Sequence& sequence, const Window& window) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "set_window"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  SequenceSlot& slot = impl.sequences[index];
  const Refusal refused{"set_window", index};
  if (window.visible_tokens == 0) return refused.invalid(" needs a window of at least 1 token; visible_tokens is 0");
  if (window.sink_tokens >= window.visible_tokens) {
    return refused.invalid(" needs a sink smaller than its window: sink_tokens is ", window.sink_tokens,
                           ", visible_tokens ", window.visible_tokens);
  }
  if (slot.window) return refused.invalid(" has a window of ", slot.window->tokens, " tokens already; it is set once");
  const auto cannot = [&](const auto&... why) { return refused.unsupported(" cannot have one: ", why...); };
  const std::span<const CacheGroup> groups = impl.config.layout.groups();
  if (impl.history_index == groups.size()) {
    return cannot("no group of its layout keeps everything, and the windows of groups are those that they declare");
  }
  for (const CacheGroup& group : groups) {
    const bool keeps_all = group.kind == GroupKind::Full || group.kind == GroupKind::Compressed;
    if (!keeps_all || !group.keys_rotated) continue;
    return cannot("group '", group.name,
                  "' stores K rotated for its position, and a window renumbers positions: declare keys_rotated = false "
                  "and rotate in the attention kernel");
  }
  if (slot.state != SequenceSlot::State::Waiting) QUIRE_TRY(impl.find_quiet(sequence, "set_window"));
  if (slot.send) return refused.invalid(" is marked for sending; windows do not go along");
  if (slot.replay_end > window.visible_tokens) return refused.invalid(" ", Impl::rebuilding(slot));
  if (impl.has_state() && slot.computed_tokens > window.visible_tokens) {
    const auto group = std::ranges::find_if(groups, has_slot);
    return cannot("group '", group->name,
                  "' keeps state, which is computed again from the beginning when a step is aborted, and the sequence "
                  "has computed ",
                  slot.computed_tokens, " tokens without it: set it before there are more than the window's ",
                  window.visible_tokens);
  }
  slot.window = {.tokens = window.visible_tokens,
                 .sink_tokens = window.sink_tokens,
                 .full_tokens = std::max(window.visible_tokens, slot.computed_tokens)};
  impl.planner.forget_row(index);
  if (slot.state == SequenceSlot::State::Running) impl.slide(index);
  return {};
}

Status Cache::commit_tree(const Sequence& sequence, std::int32_t leaf) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "commit_tree"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  SequenceSlot& slot = impl.sequences[index];
  const Refusal refused{"commit_tree", index};
  if (slot.tree_count == 0) return refused.invalid(" has no undecided tree: none was planned, or it was committed");
  if (slot.steps_in_flight > 0) {
    return refused.unavailable(" has tree tokens in a step in flight; finish that step first");
  }
  if (leaf < -1 || leaf >= static_cast<std::int64_t>(slot.tree_count)) {
    return refused.invalid(" has tree tokens 0 to ", plain(slot.tree_count - 1), "; leaf is ", plain(leaf),
                           " (-1 keeps none)");
  }

  // The path, leaf first.
  const std::span<const std::int32_t> parents = impl.sequences.tree_parent_row(index);
  const std::span<const TokenId> values = impl.sequences.tree_token_row(index);
  std::uint32_t length = 0;
  for (std::int32_t node = leaf; node >= 0; node = parents[node]) ++length;
  const std::span<const PageId> row = impl.sequences.page_row(index);
  const std::span<TokenId> tokens = impl.sequences.token_row(index);
  const std::uint32_t base = slot.computed_tokens;
  // The first tokens of the path may stand in place already; from the first that does not, all are moved.
  const auto list_moves = [&](std::span<const PageId> pages, TokenMove* moves) {
    const auto slot_of = [&](std::uint32_t position) {
      return (std::int64_t{pages[position / impl.page_tokens].value} * impl.page_tokens) +
             (position % impl.page_tokens);
    };
    std::uint32_t moved = 0;
    std::uint32_t depth = length;
    for (std::int32_t node = leaf; node >= 0; node = parents[node]) {
      --depth;
      if (static_cast<std::uint32_t>(node) == depth) continue;
      moves[moved++] = {.source_slot = slot_of(base + static_cast<std::uint32_t>(node)),
                        .target_slot = slot_of(base + depth)};
    }
    std::reverse(moves, moves + moved);  // targets ascend, so that no source is overwritten before it is read
    return moved;
  };
  std::uint32_t depth = length;
  for (std::int32_t node = leaf; node >= 0; node = parents[node]) tokens[base + --depth] = values[node];
  QUIRE_CHECK(depth == 0 && base + length <= impl.context_tokens_max, "a path of the tree has another length");
  const std::uint32_t moved = list_moves(row, impl.moves.data() + impl.move_count());
  for (const std::uint32_t i : impl.windows) {
    list_moves(impl.groups[i].row(index), impl.groups[i].moves.data() + impl.move_count());
  }
  if (moved > 0) {
    impl.move_indptr.push_back(impl.move_indptr.back() + static_cast<std::int32_t>(moved));
    impl.tiers->parts.fence.set_moves(true);
  }

  slot.token_count = base + length;
  slot.seen_tokens = slot.token_count;
  slot.computed_tokens = slot.token_count;
  slot.planned_end = slot.token_count;
  slot.tree_count = 0;
  impl.give_back_rows(index, impl.pages_for(slot.computed_tokens));
  impl.settle(index);
  impl.slide(index);
  return {};
}

}  // namespace quire
