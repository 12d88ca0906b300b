// SPDX-License-Identifier: Apache-2.0
//
// Cache: preempt() and resume(). A preempted sequence gives up its device pages for a while. Pages that are in the tree
// stay there, for anyone to find or for the policy to evict. Preempt::Save also copies every page that the sequence
// needs, of all groups, to host pages of its own, so that resume() depends on nobody; the state stays in its state
// slot.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Status Cache::preempt(const Sequence& sequence, Preempt how) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "preempt"));
  SequenceSlot& slot = impl.sequences[index];
  if (how > Preempt::Save) {
    return invalid("preempt: there is no way ", plain(static_cast<int>(how)), ": use Drop or Save");
  }
  if (how == Preempt::Drop) {
    if (!impl.can_be_computed_again(slot)) {
      return Refusal{"preempt", index}.unsupported(
          " saw ", slot.window->full_tokens, " tokens before its window of ", slot.window->tokens,
          " was set, so it cannot be computed again as it was; use Preempt::Save",
          impl.has_host() ? "" : ", which needs a host tier: set host.page_count or host.capacity_bytes");
    }
    impl.become_waiting(index);
  } else {
    const std::span<const HeldPages> held = impl.held_pages(index);
    QUIRE_TRY(impl.check_save(index, held));
    impl.make_moves();
    impl.sequences.set_state(index, SequenceSlot::State::Saving);
    impl.tiers->saves.start_saving(index, held);
    if (!impl.tiers->saves.is_moving(index)) impl.end_save(index);
  }
  slot.is_preempted = true;
  ++impl.counters.preempted_sequence_count;
  impl.tiers->work_in_background();
  return {};
}

bool Cache::Impl::can_be_computed_again(const SequenceSlot& slot) {
  return slot.full_tokens() <= slot.window_tokens();
}

// Makes a sequence wait as after begin(): it keeps its tokens and holds no pages.
void Cache::Impl::become_waiting(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  release_pages(index);
  sequences.set_state(index, SequenceSlot::State::Waiting);
  slot.computed_tokens = 0;
  slot.planned_end = 0;
  slot.replay_end = 0;
  slot.has_run = false;
  slot.soft_pin = tree->soft_pin(tiers->paths.match_of(index));
}

std::uint32_t Cache::Impl::held_page_count(std::uint32_t index, std::uint32_t first_page) const {
  const SequenceSlot& slot = sequences[index];
  const auto held = sequences.page_row(index).subspan(first_page, slot.page_count - first_page);
  return static_cast<std::uint32_t>(std::ranges::count_if(held, [](PageId page) { return page != kNullPage; }));
}

// Saving

// What a sequence holds of the history and of each window group, one entry for each.
std::span<const HeldPages> Cache::Impl::held_pages(std::uint32_t index) {
  const SequenceSlot& slot = sequences[index];
  std::vector<HeldPages>& held = scratch.held;
  held.clear();
  held.push_back({.home = &tiers->parts.history,
                  .row = sequences.page_row(index).first(slot.page_count),
                  .tail = slot.tail ? slot.tail->source : PageId::none()});
  for (const std::uint32_t i : windows) {
    const WindowRow& window = groups[i].slots[index];
    held.push_back(
        {.home = groups[i].tier, .row = groups[i].row(index).first(window.page_count), .tail = window.tail_source});
  }
  return held;
}

Status Cache::Impl::check_save(std::uint32_t index, std::span<const HeldPages> held) const {
  const Refusal refused{"preempt", index};
  const SequenceSlot& slot = sequences[index];
  if (!has_host()) {
    return refused.unsupported(" can be saved on the host only; ",
                               can_be_computed_again(slot) ? "use Preempt::Drop, or " : "",
                               "set host.page_count or host.capacity_bytes");
  }
  if (slot.replay_end > 0 || (slot.state_slot && slot.state_slot->needs_fill && slot.computed_tokens > 0)) {
    return refused.unavailable(
        " has not been rebuilt from what it was admitted with; compute its next step first, or use "
        "Preempt::Drop, which loses nothing");
  }
  if (config.device.memory != DeviceMemory::Host && is_moving()) {
    return refused.unavailable(": moves of a committed tree are not made yet; finish the step that makes them first");
  }
  return tiers->saves.check_save(index, held);
}

// All saving transfers are over. If every page is on the host, the sequence gives up its device pages; if one was lost,
// it runs on with them.
void Cache::Impl::end_save(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.state == SequenceSlot::State::Saving, "a save ends that was not begun");
  if (tiers->saves.has_lost_pages(index)) {
    tiers->saves.release(index);
    sequences.set_state(index, SequenceSlot::State::Running);
    slot.is_preempted = false;
    tiers->parts.ready_sequences.push_back({index, slot.generation});
    return;
  }
  release_pages(index, KeepState::Yes);
  sequences.set_state(index, SequenceSlot::State::Saved);
}

// Restoring

Result<Admission> Cache::resume(const Sequence& sequence, ReadyCallback callback) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  const SequenceSlot& slot = impl.sequences[index];
  const Refusal refused{"resume", index};
  if (!slot.is_preempted) return refused.invalid(" is not preempted");
  if (slot.is_loading()) return refused.invalid(Impl::not_running(slot));
  QUIRE_TRY(impl.require_awake("resume"));
  QUIRE_TRY(impl.check_state_slot(refused));
  if (slot.state == SequenceSlot::State::Saving) {
    return refused.unavailable(" is being saved; apply what poll() gives first");
  }
  const bool is_saved = slot.state == SequenceSlot::State::Saved;
  if (!is_saved) QUIRE_TRY(impl.check_expected(index));
  if (is_saved && impl.tiers->saves.has_lost_pages(index)) {
    return fail(ErrorCode::Corrupt, "resume: " + Impl::name_of(index) +
                                        " has lost pages that were saved, and cannot "
                                        "be computed again; end it");
  }
  QUIRE_TRY_ASSIGN(const Admission admission, is_saved ? impl.start_restoring(index) : impl.start_admitted(index));
  impl.tell_when_ready(index, admission.is_ready, std::move(callback));
  return admission;
}

// Whether the device has room, and there are transfers, for the saved pages that the tree no longer has.
Status Cache::Impl::check_restore(std::uint32_t index, const PrefixTree::Match& match) const {
  const std::uint32_t page_count = tiers->saves.page_count(index, tiers->parts.history, match.page_count);
  const std::uint32_t available = tiers->parts.history.available_for_loads(match);
  const Refusal refused{"resume", index};
  TransferNeed need;
  need.add(page_count, tiers->parts.book.pages_max());
  if (page_count > available) {
    return refused.unavailable(
        " has ", page_count, " saved pages to bring back; ", available, " device pages are free or can be evicted, ",
        step_order.empty() ? 0 : history->fenced.count(), " return when steps in flight finish, and ",
        tree->leaving_pages(), " when they are on the host");
  }
  for (const std::uint32_t i : windows) {
    const AnchoredGroup& group = *groups[i].tier;
    const std::uint32_t of_group = tiers->saves.page_count(index, group);
    need.add(of_group, tiers->parts.book.pages_max());
    const std::uint32_t room = group.pages.device.free_count() + group.evictable_pages();
    if (of_group <= room) continue;
    return refused.unavailable(" has ", of_group, " saved pages of group '", group.group->name, "' to bring back; ",
                               room, " device pages are free or can be evicted");
  }
  return tiers->saves.check_transfers(need, refused);
}

// Takes the pages that the tree still has from there, and loads the others from the host.
Result<Admission> Cache::Impl::start_restoring(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.state == SequenceSlot::State::Saved && slot.page_count == 0, "the sequence has pages already");
  const KeySpaceTable::Entry& space = key_spaces[slot.key_space];
  const bool may_match = slot.options.may_use_cache && !space.is_retired && !slot.has_hole();
  const std::uint32_t tokens_max = may_match ? std::min(slot.computed_tokens, slot.full_tokens()) : 0;
  const auto match_saved = [&] {
    return tree->match(space.root, sequences.key(index, tokens_max / page_tokens * page_tokens));
  };
  const auto pages_to_load = [&](const PrefixTree::Match& match) {
    return tiers->saves.page_count(index, tiers->parts.history, match.page_count);
  };
  PrefixTree::Match match = match_saved();
  if (pages_to_load(match) > tiers->parts.history.available_for_loads(match)) {
    tiers->stores.make_clean(pages_to_load(match), match);
    tiers->parts.hand_over();
    match = match_saved();
  }
  QUIRE_TRY(check_restore(index, match));
  make_moves();
  const PrefixTree::Pin kept = tree->pin_all(match);  // try_take_targets() must not evict the matched pages

  // Takes device pages for all groups, or for none. The sequence's rows are empty now: held_pages() only names the
  // pools.
  const std::span<const HeldPages> rows = held_pages(index);
  const auto pages_of = [&](const HeldPages& row) {
    return tiers->saves.page_count(index, *row.home, row.home->pool == 0 ? match.page_count : 0);
  };
  std::size_t taken = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PageHome& home = *rows[i].home;
    const std::uint32_t needed = pages_of(rows[i]);
    if (home.try_take_targets(std::span(page_scratch).subspan(taken, needed))) {
      taken += needed;
      continue;
    }
    taken = 0;
    for (const HeldPages& earlier : rows.first(i)) {
      earlier.home->pages.device.release(std::span(page_scratch).subspan(taken, pages_of(earlier)));
      taken += pages_of(earlier);
    }
    return Refusal{"resume", index}.unavailable(
        ": moves of a committed tree are still to be made in the pages it would use; finish the step "
        "that makes them first");
  }

  match = match_saved();
  tiers->saves.release_first(index, match.page_count);
  tree->copy_pages(match, 0, sequences.page_row(index));
  slot.pin = tree->pin(match, retention_of(slot));
  slot.shared_pages = match.page_count;
  slot.settled_pages = match.page_count;
  slot.page_count = tiers->saves.place_count(index, tiers->parts.history);
  sequences.set_state(index, SequenceSlot::State::Restoring);
  taken = 0;
  for (const HeldPages& row : rows) {
    const bool is_history = row.home->pool == 0;
    const std::span<const PageId> targets = std::span(page_scratch).subspan(taken, pages_of(row));
    taken += targets.size();
    if (!is_history) groups[row.home->pool - 1U].slots[index].page_count = tiers->saves.place_count(index, *row.home);
    tiers->saves.start_restoring(index, *row.home, is_history ? match.page_count : 0, row_in(*row.home, index),
                                 targets);
  }
  const std::uint32_t matched = tiers->paths.tokens_in(match);
  if (!tiers->saves.is_moving(index)) run_restored(index);
  tiers->work_in_background();
  const bool is_running = slot.state == SequenceSlot::State::Running;
  return Admission{.matched_tokens = is_running ? slot.computed_tokens : matched,
                   .loading_tokens = is_running ? 0 : slot.computed_tokens - matched,
                   .is_ready = is_running};
}

void Cache::Impl::end_restore(std::uint32_t index) {
  run_restored(index);
  tiers->parts.ready_sequences.push_back({index, sequences[index].generation});
}

// All restoring transfers are over. The sequence runs; if a page was lost, it runs with what is cached, or can only be
// ended.
void Cache::Impl::run_restored(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.state == SequenceSlot::State::Restoring, "a restore ends that was not begun");
  const bool has_lost_pages = tiers->saves.has_lost_pages(index);
  if (!has_lost_pages) {
    tiers->saves.release(index);
    sequences.set_state(index, SequenceSlot::State::Running);
    slot.is_preempted = false;
    slot.changed_column = 0;
    settle_windows(index, {0, slot.shared_pages}, slot.shared_pages);  // the tree has got these pages, or takes them
    settle(index);
    return;
  }
  if (can_be_computed_again(slot)) {
    tiers->saves.release(index);
    become_waiting(index);
    tiers->parts.arrivals[index] = {.load_miss = MissReason::LoadFailed, .has_lost_pages = true};
    (void)start_running(index);
    return;
  }
  release_pages(index);
  sequences.set_state(index, SequenceSlot::State::Saved);  // with pages lost: the sequence can only be ended
}

}  // namespace quire
