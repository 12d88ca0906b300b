// SPDX-License-Identifier: Apache-2.0
//
// Cache: prefill in one cache, decode in another. The receiving one reserves pages and names their slots; the sending
// one lists, step by step, which token goes to which of them. Bytes are the engines' business.
//
// Of windows only the tokens go over that a sequence of so many still needs, as if it had found them in the cache; of
// states the one behind the last token, into the sequence's own slot:
//
//     history    [computed ──────────────────────────── end)
//     window     sink          gap          [last pages, end)
//     state                                               end
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<std::span<const SlotRun>> Cache::prepare_receive(const Sequence& sequence, std::uint32_t token_count) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "prepare_receive"));
  SequenceSlot& slot = impl.sequences[index];
  const Refusal refused{"prepare_receive", index};
  const std::uint32_t missing = slot.token_count - slot.computed_tokens;
  if (token_count == 0 || token_count > missing) {
    return refused.invalid(" has ", missing, " tokens without K and V; token_count is ", token_count);
  }
  const std::uint32_t end = slot.computed_tokens + token_count;
  if (end > slot.window_tokens()) {
    return refused.unsupported(" has a window of ", slot.window_tokens(),
                               " tokens and cannot receive beyond it; token ", end - 1, " was asked for");
  }
  if (slot.tail) {
    return refused.unavailable(
        " begins inside a page that a step has to copy first; begin it with match_tokens_max at a "
        "multiple of page_tokens, or receive what a step has left");
  }
  // Kernels of a discarded part may still run, and write a page that its sequence still has open.
  const auto may_write = [](const StepPart& part) { return part.is_discarded; };
  for (const std::uint32_t place : impl.step_order) {
    const StepInFlight& step = impl.steps[place];
    const bool has_moves = impl.config.device.memory != DeviceMemory::Host && step.has_moves();
    if (!has_moves && std::ranges::none_of(step.parts, may_write)) continue;
    return refused.unavailable(": step ", plain(step.number), " is in flight and ",
                               has_moves ? "moves tokens that may lie" : "has discarded entries, which may still write",
                               " where others would be received; finish it first");
  }
  if (impl.move_count() > 0 && impl.config.device.memory != DeviceMemory::Host) {
    return refused.unavailable(": moves of a committed tree are pending; plan a step first");
  }
  QUIRE_TRY(impl.check_receive(index));
  for (const std::uint32_t i : impl.windows) {
    const AnchoredGroup& group = *impl.groups[i].tier;
    const WindowColumns columns = impl.received_columns(i, index, end);
    std::uint32_t needed = 0;
    for_each_column(columns,
                    [&](std::uint32_t column) { needed += column >= impl.groups[i].slots[index].page_count ? 1 : 0; });
    const std::uint32_t available = group.available_pages();
    if (needed <= available) continue;
    return refused.unavailable(" needs ", needed, " pages of group '", group.group->name, "'; ", available,
                               " are free or can be evicted, and ", group.pages.fenced.count(),
                               " return when steps in flight finish");
  }
  QUIRE_CHECK(slot.page_count <= impl.pages_for(end), "the row is longer than its tokens");
  const std::uint32_t page_count = impl.pages_for(end) - slot.page_count;
  if (page_count > impl.tiers->parts.history.available_pages()) (void)impl.tiers->arrivals.let_go();
  if (impl.tiers->parts.history.writes_back() && page_count > impl.tiers->parts.history.available_pages()) {
    impl.tiers->stores.start_leaving(page_count);  // pages that have a copy on the host leave at once
    impl.tiers->parts.hand_over();
  }
  const std::uint32_t available = impl.tiers->parts.history.available_pages();
  if (page_count > available) {
    return refused.unavailable(" needs ", page_count, " pages; ", available, " are free or can be evicted, and ",
                               impl.history->fenced.count(), " return when steps in flight finish");
  }

  impl.make_moves();
  impl.tiers->parts.history.make_room(page_count);
  const std::span<PageId> row = impl.sequences.page_row(index);
  QUIRE_CHECK(impl.history->device.try_allocate(row.subspan(slot.page_count, page_count)),
              "pages that were counted are not there");
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
  slot.page_count += page_count;
  slot.receive = {.tokens = token_count};
  const std::span<SlotRun> runs = impl.sequences.receive_row(index);
  std::size_t run_count = 0;
  for (std::uint32_t position = slot.computed_tokens; position < end;) {
    const std::uint32_t place = position % impl.page_tokens;
    const std::uint32_t count = std::min(impl.page_tokens - place, end - position);
    const std::int64_t first = (std::int64_t{row[position / impl.page_tokens].value} * impl.page_tokens) + place;
    SlotRun* const before = run_count > 0 ? &runs[run_count - 1] : nullptr;
    if (before != nullptr && before->first_slot + before->token_count == first) {
      before->token_count += count;
    } else {
      runs[run_count++] = {.first_slot = first, .token_count = count};
    }
    position += count;
  }
  impl.reserve_windows(index, end);
  return std::span<const SlotRun>(runs.first(run_count));
}

// Whether windows and states let a sequence receive: it is not being rebuilt, it is not marked for sending, and no copy
// of its state slot is still to be made.
Status Cache::Impl::check_receive(std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  if (groups.empty()) return {};
  const Refusal refused{"prepare_receive", index};
  if (slot.replay_end > 0) return refused.unavailable(" ", rebuilding(slot));
  if (slot.send) {
    return refused.unavailable(
        " is marked for sending, and windows may not keep for others what it receives; mark it again when it has "
        "received, and take the mark back until then");
  }
  // Copies between slots that are still to be made would read what arrives, or overwrite it.
  const auto is_copied = [&](const StateCopy& copy) {
    const auto own = slot.state_slot ? static_cast<std::int32_t>(slot.state_slot->index) : -1;
    return copy.kind == StateCopyKind::Fork && (copy.source == own || copy.target == own);
  };
  const auto copies_slot = [&](std::uint32_t place) {
    return std::ranges::any_of(steps[place].plan.state_copies, is_copied);
  };
  if (std::ranges::any_of(pending_forks, is_copied)) {
    return refused.unavailable(
        " was forked, or is a fork, and the copy of the state comes with the next step; plan one first");
  }
  if (std::ranges::any_of(step_order, copies_slot)) {
    return refused.unavailable(
        " was forked, or is a fork, and the step that copies the state is in flight; finish it first");
  }
  return {};
}

// The pages that a sequence of `end` tokens holds of a window: those that it would go on with behind a hit, and at
// least the last one, which it goes on in.
WindowColumns Cache::Impl::received_columns(std::uint32_t window, std::uint32_t index, std::uint32_t end) const {
  const bool runs_again = end == sequences[index].token_count && !has_state();
  WindowColumns columns = window_columns(tiers->paths.hit_group(window), tiers->paths.limits(),
                                         {.start = end, .end = end, .runs_again = runs_again});
  columns.first = std::max(std::min(columns.first, (end - 1) / page_tokens), columns.sink_pages);
  return columns;
}

void Cache::Impl::reserve_windows(std::uint32_t index, std::uint32_t end) {
  SequenceSlot& sequence = sequences[index];
  const std::span<WindowRun> runs = sequences.receive_window_row(index);
  std::uint32_t& run_count = sequence.receive->window_count;
  for (const std::uint32_t i : windows) {
    GroupRows& group = groups[i];
    WindowRow& slot = group.slots[index];
    const std::span<PageId> row = group.row(index);
    const WindowColumns columns = received_columns(i, index, end);
    const std::uint32_t first_new = slot.page_count;
    slot.changed_column = std::min(slot.changed_column, first_new);
    // Where the received columns begin behind the sequence's current page, nothing arrives in that page or before it,
    // and end_receive() gives these pages up.
    slot.received_from = columns.first > sequence.computed_tokens / page_tokens ? columns.first : 0;
    slot.page_count = columns.last;
    std::fill(row.begin() + first_new, row.begin() + columns.last, kNullPage);
    for_each_column(columns, [&](std::uint32_t column) {
      if (column >= first_new) {
        group.tier->make_room(1);
        QUIRE_CHECK(group.pool().try_allocate({&row[column], 1}), "pages that were counted are not there");
      }
      const std::uint32_t begin = std::max(column * page_tokens, sequence.computed_tokens);
      const std::uint32_t last = std::min((column + 1) * page_tokens, end);
      if (begin >= last) return;
      const std::int64_t first_slot = (std::int64_t{row[column].value} * page_tokens) + (begin % page_tokens);
      WindowRun* const before = run_count > 0 ? &runs[run_count - 1] : nullptr;
      if (before != nullptr && before->group == group.memory.group_index &&
          before->position + before->token_count == begin && before->first_slot + before->token_count == first_slot) {
        before->token_count += last - begin;
        return;
      }
      runs[run_count++] = {
          .group = group.memory.group_index, .position = begin, .first_slot = first_slot, .token_count = last - begin};
    });
  }
}

Result<ReceiveTargets> Cache::receive_targets(const Sequence& sequence) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_receiving(sequence, "receive_targets"));
  const SequenceSlot& slot = impl.sequences[index];
  return ReceiveTargets{.windows = impl.sequences.receive_window_row(index).first(slot.receive->window_count),
                        .state_slot = slot.state_slot ? static_cast<std::int32_t>(slot.state_slot->index) : -1};
}

Result<std::uint32_t> Cache::Impl::find_receiving(const Sequence& sequence, const char* call) const {
  QUIRE_TRY_ASSIGN(const std::uint32_t index, find_sequence(sequence));
  if (sequences[index].receive) return index;
  return Refusal{call, index}.invalid(" is not receiving; prepare_receive comes first");
}

Status Cache::finish_receive(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_receiving(sequence, "finish_receive"));
  SequenceSlot& slot = impl.sequences[index];
  const std::uint32_t token_count = slot.receive->tokens;
  QUIRE_CHECK(slot.computed_tokens + token_count <= slot.token_count, "tokens were received that nobody knows");
  slot.receive.reset();
  slot.computed_tokens += token_count;
  slot.planned_end = slot.computed_tokens;
  slot.seen_tokens = slot.token_count;
  slot.has_run = false;
  impl.counters.received_tokens += token_count;
  impl.end_receive(index);
  impl.list_cached_sends(index);  // a marked sequence sends on what it has received
  impl.settle(index);
  impl.slide(index);
  return {};
}

// Called before settle(). Gives up the window pages before those that were received: the last of them may be full only
// in part, and settle() would take it for a full page.
void Cache::Impl::end_receive(std::uint32_t index) {
  slide_windows(index);
  for (const std::uint32_t i : windows) groups[i].slots[index].received_from = 0;
  if (has_state()) take_received_state(index);
}

Status Cache::abort_receive(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_receiving(sequence, "abort_receive"));
  SequenceSlot& slot = impl.sequences[index];
  slot.receive.reset();
  impl.give_back_rows(index, impl.pages_for(slot.computed_tokens));
  for (const std::uint32_t i : impl.windows) impl.groups[i].slots[index].received_from = 0;
  if (!slot.state_slot || slot.state_slot->needs_fill) return {};
  // Some of the other state may have arrived.
  if (slot.computed_tokens == 0) {
    impl.restart_state(index);
  } else {
    impl.begin_anew(index);
  }
  return {};
}

Status Cache::mark_send(const Sequence& sequence, std::uint32_t begin, std::span<const SlotRun> slots,
                        std::int32_t receiver, const ReceiveTargets& targets) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "mark_send"));
  SequenceSlot& slot = impl.sequences[index];
  const Refusal refused{"mark_send", index};
  if (slot.window) return refused.invalid(" has a window; its tokens cannot be sent");
  if (receiver < 0) return refused.invalid(" needs a receiver from 0 on; receiver is ", plain(receiver));
  const std::span<SlotRun> row = impl.sequences.send_row(index);
  std::uint64_t token_count = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].first_slot < 0 || slots[i].token_count <= 0) {
      return refused.invalid(" has a run of slots without slots: run ", plain(i), " begins at ",
                             plain(slots[i].first_slot), " and has ", plain(slots[i].token_count), " tokens");
    }
    const auto tokens = static_cast<std::uint64_t>(slots[i].token_count);
    token_count += std::min(tokens, UINT32_MAX - std::min<std::uint64_t>(token_count, UINT32_MAX));
  }
  if (begin + token_count > impl.context_tokens_max || slots.size() > row.size()) {
    return refused.invalid(" needs slots for tokens below context_tokens_max = ", impl.context_tokens_max, "; ",
                           token_count, " from ", begin, " on were given");
  }
  const TokenRange range{begin, begin + static_cast<std::uint32_t>(token_count)};
  if (slots.empty()) {
    slot.send.reset();
    return {};
  }
  if (const Status status = impl.check_send(index, range, targets); !status) {
    return fail(status.error().code, "mark_send: " + Impl::name_of(index) + " " + status.error().message);
  }
  QUIRE_CHECK(targets.windows.size() <= impl.sequences.send_window_row(index).size(),
              "there are more runs than tokens");
  std::ranges::copy(slots, row.begin());
  std::ranges::copy(targets.windows, impl.sequences.send_window_row(index).begin());
  slot.send = {.run_count = static_cast<std::uint32_t>(slots.size()),
               .window_count = static_cast<std::uint32_t>(targets.windows.size()),
               .begin = begin,
               .end = range.end,
               .cached_end = begin,
               .receiver = receiver,
               .state_slot = targets.state_slot};
  impl.list_cached_sends(index);
  return {};
}

// Whether the receiver has slots for the windows and states that are to be sent, and this sequence has or will have
// them.
Status Cache::Impl::check_send(std::uint32_t index, TokenRange range, const ReceiveTargets& targets) const {
  const SequenceSlot& slot = sequences[index];
  if (slot.is_inexact) {
    return unsupported(
        "was rebuilt inexactly, and the receiver would cache what follows; send it without allow_inexact_replay");
  }
  if (slot.replay_end > 0) return unavailable(rebuilding(slot));
  std::size_t checked = 0;
  for (const std::uint32_t i : windows) {
    const auto is_other = [&](const WindowRun& run) { return run.group != groups[i].memory.group_index; };
    const auto first = targets.windows.begin() + static_cast<std::ptrdiff_t>(checked);
    const auto end = std::find_if(first, targets.windows.end(), is_other);
    const std::span<const WindowRun> runs(first, end);
    QUIRE_TRY(check_send_window(i, index, range, runs));
    checked += runs.size();
  }
  if (checked < targets.windows.size()) {
    return invalid("has a run of slots of group ", plain(targets.windows[checked].group),
                   ", which is no window group with pages here, or not where its group comes: give the runs as "
                   "receive_targets() has them");
  }
  if (!has_state()) return targets.state_slot < 0 ? Status{} : invalid("has no state, and a state slot was given");
  if (targets.state_slot < 0) {
    return invalid("has a state: give the receiver's state slot, as receive_targets() has it");
  }
  for (const GroupRows& group : groups) {
    if (!group.is_window() && slot.computed_tokens >= range.end) {
      QUIRE_TRY(check_state_held(group, index, range.end));
    }
  }
  return {};
}

Status Cache::Impl::check_send_window(std::uint32_t window, std::uint32_t index, TokenRange range,
                                      std::span<const WindowRun> runs) const {
  const GroupRows& group = groups[window];
  const WindowRow& slot = group.slots[index];
  const auto bad = [&](const auto&... what) { return invalid("group '", group.group->name, "' ", what...); };
  const auto name_of_tokens = [](std::uint64_t begin, std::uint64_t end) {
    return "[" + with_separators(begin) + ", " + with_separators(end) + ")";
  };
  // The tokens that the token at range.end sees and the receiver does not have: from `sink_at` in the sink, from `at`
  // on behind it.
  const std::uint32_t seen = group.group->window_tokens - 1;
  std::uint32_t sink_at = range.begin;
  std::uint32_t at = std::max(range.begin, range.end - std::min(range.end, seen));
  const std::uint32_t sink_end = std::min(group.group->sink_tokens, range.end);
  // Pages of the sink are never given up; behind the sink, the pages before hole_end have been.
  const std::uint64_t sink_held = std::uint64_t{group.tier->sink_pages} * page_tokens;
  const std::uint64_t held = std::max(std::uint64_t{slot.hole_end} * page_tokens, std::uint64_t{slot.valid_from});
  std::uint64_t last = range.begin;
  for (const WindowRun& run : runs) {
    const bool has_tokens = run.token_count > 0 && run.token_count <= range.end && run.first_slot >= 0;
    const std::uint64_t end = run.position + (has_tokens ? static_cast<std::uint64_t>(run.token_count) : 0);
    if (!has_tokens || run.position < last || end > range.end) {
      return bad("has slots from ", plain(run.first_slot), " on for ", plain(run.token_count), " tokens at ",
                 run.position, ": runs follow each other, and their tokens are among those that are sent, ",
                 name_of_tokens(range.begin, range.end));
    }
    last = end;
    if (run.position <= sink_at) sink_at = std::max(sink_at, static_cast<std::uint32_t>(end));
    if (run.position <= at) at = std::max(at, static_cast<std::uint32_t>(end));
    const std::uint64_t lost_from = std::max<std::uint64_t>(run.position, sink_held);
    const std::uint64_t lost_end = std::min({end, held, std::uint64_t{sequences[index].computed_tokens}});
    if (lost_from < lost_end) {
      return bad("no longer holds its tokens ", name_of_tokens(lost_from, lost_end), ", which its window of ",
                 count_of(group.group->window_tokens, "token"),
                 " has left: mark a sequence before it has computed more than is sent, or begin it with use_cache off");
    }
  }
  if (sink_at < sink_end || at < range.end) {
    const std::uint32_t missing = sink_at < sink_end ? sink_at : at;
    return bad("has no slot for token ", missing, ", which a sequence of ", count_of(range.end, "token"),
               " still sees: give the runs as receive_targets() has them");
  }
  return {};
}

// The step that ends at send_end lists the state, to be sent after it. If that step has ended already, the sequence's
// next step lists the state, to be sent before it.
void Cache::Impl::list_state_send(const StepPart& part) {
  const SequenceSlot& slot = sequences[part.index];
  QUIRE_CHECK(slot.send && slot.state_slot, "there is no state to send");
  const SequenceSlot::Send& send = *slot.send;
  const bool ends_there = part.token_count > 0 && part.position + part.token_count == send.end;
  const bool is_there = slot.computed_tokens >= send.end && slot.steps_in_flight == 1;
  if (!ends_there && !is_there) return;
  scratch.state_sends.push_back({.source = static_cast<std::int32_t>(slot.state_slot->index),
                                 .target = send.state_slot,
                                 .position = static_cast<std::int32_t>(send.end),
                                 .receiver = send.receiver,
                                 .time = ends_there ? SendTime::AfterStep : SendTime::BeforeStep});
}

// Marked tokens that are computed already are sent by the sequence's next step.
void Cache::Impl::list_cached_sends(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  if (!slot.send) return;
  slot.send->cached_end = std::max(slot.send->begin, std::min(slot.send->end, slot.computed_tokens));
  if (slot.send->cached_end > slot.send->begin)
    slot.has_run = false;  // a step must list them, if only by running the last token again
}

}  // namespace quire
