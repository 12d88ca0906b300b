// SPDX-License-Identifier: Apache-2.0
//
// Cache: prefill in one cache, decode in another. The receiving side reserves pages and names their slots; the sending
// side lists, step by step, which token goes to which of them. Bytes are the engines' business.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<std::span<const SlotRun>> Cache::prepare_receive(const Sequence& sequence, std::uint32_t token_count) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require_one_group("prepare_receive", "only tokens of one full group have slots to be received at"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "prepare_receive"));
  SequenceSlot& slot = impl.sequences[index];
  const auto name = [&] { return "prepare_receive: " + Impl::name_of(index); };
  const std::uint32_t missing = slot.token_count - slot.computed_tokens;
  if (token_count == 0 || token_count > missing) {
    return fail(ErrorCode::InvalidArgument, name() + " has " + with_separators(missing) +
                                                " tokens without K and V; token_count is " +
                                                with_separators(token_count));
  }
  const std::uint32_t end = slot.computed_tokens + token_count;
  if (slot.window_tokens > 0 && end > slot.window_tokens) {
    return fail(ErrorCode::Unsupported, name() + " has a window of " + with_separators(slot.window_tokens) +
                                            " tokens and cannot receive beyond it; token " + with_separators(end - 1) +
                                            " was asked for");
  }
  if (slot.tail_tokens > 0) {
    return fail(ErrorCode::Unavailable, name() +
                                            " begins inside a page that a step has to copy first; begin it with "
                                            "match_tokens_max at a multiple of page_tokens, or receive what a step "
                                            "has left");
  }
  // Its kernels may still run, and write pages that somebody keeps open.
  const auto may_write = [](const Impl::StepPart& part) { return part.is_discarded; };
  for (const std::uint32_t place : impl.step_order) {
    const Impl::StepInFlight& step = impl.steps[place];
    const bool has_moves = impl.config.device.memory != DeviceMemory::Host && !step.plan.groups.front().moves.empty();
    if (!has_moves && std::ranges::none_of(step.parts, may_write)) continue;
    return fail(ErrorCode::Unavailable,
                name() + ": step " + std::to_string(step.number) + " is in flight and " +
                    (has_moves ? "moves tokens that may lie" : "has discarded entries, which may still write") +
                    " where others would be received; finish it first");
  }
  if (impl.move_count() > 0 && impl.config.device.memory != DeviceMemory::Host) {
    return fail(ErrorCode::Unavailable, name() + ": moves of a committed tree are pending; plan a step first");
  }
  const std::uint32_t page_count = impl.pages_for(end) - slot.page_count;
  if (impl.writes_back() && page_count > impl.available_pages()) {
    impl.start_leaving(page_count);  // some may have been copied long ago
    impl.hand_over_transfers();
  }
  const std::uint32_t available = impl.available_pages();
  if (page_count > available) {
    return fail(ErrorCode::Unavailable, name() + " needs " + with_separators(page_count) + " pages; " +
                                            with_separators(available) + " are free or can be evicted, and " +
                                            with_separators(impl.fenced.count()) +
                                            " return when steps in flight finish");
  }

  impl.flush_moves();
  impl.make_room(page_count);
  const std::span<PageId> row = impl.sequences.page_row(index);
  QUIRE_CHECK(impl.pool.try_allocate(row.subspan(slot.page_count, page_count)),
              "pages that were counted are not there");
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
  slot.page_count += page_count;
  slot.is_receiving = true;
  slot.receive_tokens = token_count;
  const std::span<SlotRun> runs = impl.sequences.receive_row(index);
  slot.receive_run_count = 0;
  for (std::uint32_t position = slot.computed_tokens; position < end;) {
    const std::uint32_t place = position % impl.page_tokens;
    const std::uint32_t count = std::min(impl.page_tokens - place, end - position);
    const std::int64_t first = (std::int64_t{row[position / impl.page_tokens].value} * impl.page_tokens) + place;
    if (slot.receive_run_count > 0) {
      SlotRun& last = runs[slot.receive_run_count - 1];
      if (last.first_slot + last.token_count == first) {
        last.token_count += count;
        position += count;
        continue;
      }
    }
    runs[slot.receive_run_count++] = {.first_slot = first, .token_count = count};
    position += count;
  }
  return std::span<const SlotRun>(runs.first(slot.receive_run_count));
}

Result<std::uint32_t> Cache::Impl::find_receiving(const Sequence& sequence, const char* call) const {
  QUIRE_TRY_ASSIGN(const std::uint32_t index, find_sequence(sequence));
  if (sequences[index].is_receiving) return index;
  return fail(ErrorCode::InvalidArgument,
              std::string(call) + ": " + name_of(index) + " is not receiving; prepare_receive comes first");
}

Status Cache::finish_receive(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_receiving(sequence, "finish_receive"));
  SequenceSlot& slot = impl.sequences[index];
  slot.is_receiving = false;
  slot.computed_tokens += slot.receive_tokens;
  slot.planned_end = slot.computed_tokens;
  slot.has_run = false;
  impl.counters.received_tokens += slot.receive_tokens;
  impl.list_cached_sends(index);  // what has arrived may be for others too
  impl.settle(index);
  impl.slide(index);
  return {};
}

Status Cache::abort_receive(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_receiving(sequence, "abort_receive"));
  SequenceSlot& slot = impl.sequences[index];
  slot.is_receiving = false;
  impl.give_back_row(index, impl.pages_for(slot.computed_tokens));
  return {};
}

Status Cache::mark_send(const Sequence& sequence, std::uint32_t begin, std::span<const SlotRun> slots,
                        std::int32_t receiver) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require_one_group("mark_send", "only tokens of one full group can be sent"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "mark_send"));
  SequenceSlot& slot = impl.sequences[index];
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "mark_send: " + Impl::name_of(index) + " " + what);
  };
  if (slot.window_tokens > 0) return bad("has a window; its tokens cannot be sent");
  if (receiver < 0) return bad("needs a receiver from 0 on; receiver is " + std::to_string(receiver));
  const std::span<SlotRun> row = impl.sequences.send_row(index);
  std::uint64_t token_count = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].first_slot < 0 || slots[i].token_count <= 0) {
      return bad("has a run of slots without slots: run " + std::to_string(i) + " begins at " +
                 std::to_string(slots[i].first_slot) + " and has " + std::to_string(slots[i].token_count) + " tokens");
    }
    const auto tokens = static_cast<std::uint64_t>(slots[i].token_count);
    token_count += std::min(tokens, UINT32_MAX - std::min<std::uint64_t>(token_count, UINT32_MAX));
  }
  if (begin + token_count > impl.context_tokens_max || slots.size() > row.size()) {
    return bad("needs slots for tokens below context_tokens_max = " + with_separators(impl.context_tokens_max) + "; " +
               with_separators(token_count) + " from " + with_separators(begin) + " on were given");
  }
  std::ranges::copy(slots, row.begin());
  slot.send_run_count = static_cast<std::uint32_t>(slots.size());
  slot.send_begin = begin;
  slot.send_end = begin + static_cast<std::uint32_t>(token_count);
  slot.receiver = receiver;
  impl.list_cached_sends(index);
  return {};
}

// What a marked sequence has computed is to be sent by its next step.
void Cache::Impl::list_cached_sends(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const std::uint32_t end = slot.send_run_count > 0 ? std::min(slot.send_end, slot.computed_tokens) : 0;
  slot.send_cached_end = end > slot.send_begin ? end : 0;
  if (slot.send_cached_end > 0) slot.has_run = false;  // a step has to list them, if only to run the last token again
}

}  // namespace quire
