// SPDX-License-Identifier: Apache-2.0
//
// Cache: sequences that give their device pages up for a while. What is in the tree stays there, for anyone to find or
// for the policy to evict. Save also copies every page the sequence needs to the host, where they are its own, so that
// resume() does not depend on anybody. It keeps its device pages until all of them have arrived, and goes on as if
// nothing had happened when one does not.
#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

/// Nobody but the sequence looks for a saved page, so its name is a number of its own.
std::uint64_t name_tag_of(SequenceId sequence, std::uint32_t place) {
  return mix64(mix64((std::uint64_t{sequence.generation} << 32U) | sequence.index) + place);
}

}  // namespace

Status Cache::preempt(const Sequence& sequence, Preempt how) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_quiet(sequence, "preempt"));
  SequenceSlot& slot = impl.sequences[index];
  if (how > Preempt::Save) {
    return fail(ErrorCode::InvalidArgument,
                "preempt: there is no way " + std::to_string(static_cast<int>(how)) + ": use Drop or Save");
  }
  if (how == Preempt::Drop) {
    if (!impl.can_be_computed_again(slot)) {
      return fail(ErrorCode::Unsupported, "preempt: " + Impl::name_of(index) + " saw " +
                                              with_separators(slot.full_tokens) + " tokens before its window of " +
                                              with_separators(slot.window_tokens) +
                                              " was set, so it cannot be computed again as it was; use Preempt::Save");
    }
    impl.become_dropped(index);
  } else {
    QUIRE_TRY(impl.require_one_group("preempt", "only pages of one full group can be saved; use Preempt::Drop"));
    QUIRE_TRY(impl.check_save(index, impl.held_page_count(index) + (slot.tail_tokens > 0 ? 1 : 0)));
    impl.start_saving(index);
  }
  slot.is_preempted = true;
  ++impl.counters.preempted_sequence_count;
  impl.work_in_background();
  return {};
}

bool Cache::Impl::can_be_computed_again(const SequenceSlot& slot) {
  return slot.window_tokens == 0 || slot.full_tokens <= slot.window_tokens;
}

// A waiting sequence that knows its tokens and holds nothing.
void Cache::Impl::become_dropped(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  release_pages(index);
  sequences.set_state(index, SequenceSlot::State::Waiting);
  slot.computed_tokens = 0;
  slot.planned_end = 0;
  slot.replay_end = 0;
  slot.has_run = false;
  slot.soft_pin = tree->soft_pin(match_of(index));
}

std::uint32_t Cache::Impl::held_page_count(std::uint32_t index, std::uint32_t first_page) const {
  const SequenceSlot& slot = sequences[index];
  const auto held = sequences.page_row(index).subspan(first_page, slot.page_count - first_page);
  return static_cast<std::uint32_t>(std::ranges::count_if(held, [](PageId page) { return page != kNullPage; }));
}

// Saving

Status Cache::Impl::check_save(std::uint32_t index, std::uint32_t page_count) const {
  const auto name = [&] { return "preempt: " + name_of(index); };
  if (!has_host()) {
    return fail(ErrorCode::Unsupported, name() +
                                            " can be saved on the host only; use Preempt::Drop, or set "
                                            "host.page_count or host.capacity_bytes");
  }
  const bool has_moves = std::ranges::any_of(
      step_order, [this](std::uint32_t place) { return !steps[place].plan.groups.front().moves.empty(); });
  if (config.device.memory != DeviceMemory::Host && (move_count() > 0 || has_moves)) {
    return fail(ErrorCode::Unavailable, name() +
                                            ": moves of a committed tree are not made yet; finish the step that "
                                            "makes them first");
  }
  // Pages that loads read are not free when they are given up.
  std::uint32_t read_pages = 0;
  for (const Transfer& each : transfers) {
    const bool reads = each.kind == TransferKind::Load || each.kind == TransferKind::StoreToDisk;
    if (each.state != Transfer::State::Free && reads) read_pages += each.page_count;
  }
  const std::uint32_t evictable = tree->host_evictable_pages();
  const std::uint32_t room = host_pool.free_count() + evictable - std::min(evictable, read_pages);
  if (page_count > room) {
    return fail(ErrorCode::Unavailable, name() + " has " + with_separators(page_count) +
                                            " pages to save; the host has room for " + with_separators(room));
  }
  return check_transfers(page_count, "preempt: ", index);
}

Status Cache::Impl::check_transfers(std::uint32_t page_count, const char* call, std::uint32_t index) const {
  if (page_count == 0) return {};
  const auto name = [&] { return call + name_of(index); };
  const std::uint32_t needed = (page_count + config.host.transfer_pages_max - 1) / config.host.transfer_pages_max;
  const auto free_count = static_cast<std::uint32_t>(transfers.size()) - live_transfer_count;
  if (needed > transfers.size()) {
    return fail(ErrorCode::Unsupported, name() + " has " + with_separators(page_count) + " pages, which takes " +
                                            with_separators(needed) + " transfers; host.transfer_count_max is " +
                                            with_separators(transfers.size()));
  }
  if (is_paused || needed > free_count) {
    return fail(ErrorCode::Unavailable,
                name() + " needs " + std::to_string(needed) + " transfers; " +
                    (is_paused ? "they are paused: resume_transfers() first"
                               : std::to_string(free_count) + " are free: apply what poll() gives first"));
  }
  return {};
}

void Cache::Impl::start_saving(std::uint32_t index) {
  flush_moves();
  SequenceSlot& slot = sequences[index];
  const SequenceId id{index, slot.generation};
  const std::span<const PageId> row = sequences.page_row(index);
  const std::span<PageId> saved = saved_row(index);
  sequences.set_state(index, SequenceSlot::State::Saving);
  slot.has_lost_pages = false;
  slot.saved_page_count = slot.page_count + (slot.tail_tokens > 0 ? 1 : 0);
  std::optional<std::uint32_t> transfer;
  for (std::uint32_t place = 0; place < slot.saved_page_count; ++place) {
    const PageId device_page = place < slot.page_count ? row[place] : slot.tail_source;
    saved[place] = kNullPage;
    if (device_page == kNullPage) continue;
    if (!transfer || transfers[*transfer].page_count == config.host.transfer_pages_max) {
      transfer = add_transfer(TransferKind::Store, TransferPriority::Waiting);
      QUIRE_CHECK(transfer.has_value(), "transfers that were counted are not there");
      transfers[*transfer].sequence = id;
      ++slot.transfers_in_flight;
    }
    saved[place] = take_host_page();
    QUIRE_CHECK(!saved[place].is_none(), "host pages that were counted are not there");
    ++device_readers[device_page.value];
    add_page(*transfer, way_of(device_page, saved[place], name_tag_of(id, place), place));
  }
  if (slot.transfers_in_flight == 0) end_saving(index);
}

void Cache::Impl::finish_save(std::uint32_t transfer) {
  const Transfer& save = transfers[transfer];
  const std::uint32_t index = save.sequence.index;
  SequenceSlot& slot = sequences[index];
  const bool is_awaited = slot.generation == save.sequence.generation && slot.state == SequenceSlot::State::Saving;
  const std::span<const PageTransfer> pages = pages_of(transfer);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageTransfer& page = pages[i];
    if (is_awaited && i < save.good_pages) {
      host_pool.make_private({&page.host_page, 1});
    } else {
      host_pool.release({&page.host_page, 1});
      if (is_awaited) saved_row(index)[page.place] = kNullPage;
    }
    release_read(page.device_page);
  }
  if (is_awaited && save.good_pages < pages.size()) slot.has_lost_pages = true;
  if (!is_awaited) abandoned_save_pages -= save.page_count;
  remove_transfer(transfer);
  if (is_awaited && --slot.transfers_in_flight == 0) end_saving(index);
}

// The sequence ends before its pages are saved: what is cached of them can be evicted from now on, but not used.
void Cache::Impl::abandon_saving(std::uint32_t index) {
  for (const Transfer& transfer : transfers) {
    if (transfer.state == Transfer::State::Free) continue;
    if (transfer.sequence == SequenceId{index, sequences[index].generation})
      abandoned_save_pages += transfer.page_count;
  }
}

// All pages have arrived on the host, and the device's go; or one has not, and the sequence stays where it is.
void Cache::Impl::end_saving(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  if (slot.has_lost_pages) {
    slot.has_lost_pages = false;
    release_saved(index);
    sequences.set_state(index, SequenceSlot::State::Running);
    slot.is_preempted = false;
    ready_sequences.push_back({index, slot.generation});
    return;
  }
  const std::uint32_t page_count = slot.saved_page_count;
  const std::uint32_t hole_begin = slot.hole_begin;
  const std::uint32_t hole_end = slot.hole_end;
  release_pages(index);
  slot.hole_begin = hole_begin;
  slot.hole_end = hole_end;
  slot.saved_page_count = page_count;
  sequences.set_state(index, SequenceSlot::State::Saved);
}

// What is saved of it goes. What is on its way is dropped when it arrives.
void Cache::Impl::release_saved(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  for (PageId& page : saved_row(index).first(slot.saved_page_count)) {
    if (page != kNullPage && host_pool.state(page) == PageState::Private) release_host(page);
    page = kNullPage;
  }
  slot.saved_page_count = 0;
}

// Restoring

Result<Admission> Cache::resume(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  const SequenceSlot& slot = impl.sequences[index];
  if (!slot.is_preempted) {
    return fail(ErrorCode::InvalidArgument, "resume: " + Impl::name_of(index) + " is not preempted");
  }
  if (slot.is_loading()) {
    return fail(ErrorCode::InvalidArgument, "resume: " + Impl::name_of(index) + Impl::not_running(slot));
  }
  QUIRE_TRY(impl.require_awake("resume"));
  QUIRE_TRY(impl.check_state_slot(index, "resume: "));
  if (slot.state == SequenceSlot::State::Saving) {
    return fail(ErrorCode::Unavailable,
                "resume: " + Impl::name_of(index) + " is being saved; apply what poll() gives first");
  }
  if (slot.state == SequenceSlot::State::Waiting) {
    QUIRE_TRY(impl.check_expected(index));
    return impl.start_admitted(index);
  }
  if (slot.has_lost_pages) {
    return fail(ErrorCode::Corrupt, "resume: " + Impl::name_of(index) +
                                        " has lost pages that were saved, and cannot "
                                        "be computed again; end it");
  }
  return impl.start_restoring(index);
}

// What is still in the tree is taken from there, the rest from the host.
Result<Admission> Cache::Impl::start_restoring(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const KeySpaceTable::Entry& space = key_spaces[slot.key_space];
  const bool may_match = slot.may_use_cache && !space.is_retired && !slot.has_hole();
  const std::uint32_t same_tokens = slot.window_tokens > 0 ? slot.full_tokens : UINT32_MAX;
  const std::uint32_t tokens_max = may_match ? std::min(slot.computed_tokens, same_tokens) : 0;
  const auto match_saved = [&] {
    return tree->match(space.root, sequences.key(index, tokens_max / page_tokens * page_tokens));
  };
  const std::span<PageId> saved = saved_row(index).first(slot.saved_page_count);
  const auto pages_to_load = [&](const PrefixTree::Match& match) {
    return static_cast<std::uint32_t>(
        std::ranges::count_if(saved.subspan(match.page_count), [](PageId page) { return page != kNullPage; }));
  };
  const auto name = [&] { return "resume: " + name_of(index); };
  PrefixTree::Match match = match_saved();
  if (pages_to_load(match) > available_for_loads(match)) {
    make_clean(pages_to_load(match), match);
    match = match_saved();
  }
  const std::uint32_t page_count = pages_to_load(match);
  const std::uint32_t available = available_for_loads(match);
  if (page_count > available) {
    return fail(ErrorCode::Unavailable, name() + " has " + with_separators(page_count) +
                                            " saved pages to bring back; " + with_separators(available) +
                                            " device pages are free or can be evicted, " +
                                            with_separators(step_order.empty() ? 0 : fenced.count()) +
                                            " return when steps in flight finish, and " +
                                            with_separators(tree->leaving_pages()) + " when they are on the host");
  }
  QUIRE_TRY(check_transfers(page_count, "resume: ", index));
  flush_moves();
  const PrefixTree::Pin kept = tree->pin_all(match);  // what makes room is not what it finds
  make_room(page_count);
  const std::span<PageId> targets = std::span(page_scratch).first(page_count);
  if (!try_take_targets(targets)) {
    return fail(ErrorCode::Unavailable, name() +
                                            ": moves of a committed tree are still to be made in the pages it would "
                                            "use; finish the step that makes them first");
  }
  match = match_saved();
  const SequenceId id{index, slot.generation};
  const std::span<PageId> row = sequences.page_row(index);
  for (PageId& page : saved.first(match.page_count)) {
    release_host(page);
    page = kNullPage;
  }
  tree->copy_pages(match, 0, row);
  slot.pin = tree->pin(match, retention_of(slot));
  slot.shared_pages = match.page_count;
  slot.settled_pages = match.page_count;
  slot.page_count = slot.saved_page_count;
  sequences.set_state(index, SequenceSlot::State::Restoring);
  std::size_t taken = 0;
  std::optional<std::uint32_t> transfer;
  for (std::uint32_t place = match.page_count; place < slot.page_count; ++place) {
    row[place] = kNullPage;
    if (saved[place] == kNullPage) continue;
    row[place] = targets[taken++];
    if (!transfer || transfers[*transfer].page_count == config.host.transfer_pages_max) {
      transfer = add_transfer(TransferKind::Load, TransferPriority::Waiting);
      QUIRE_CHECK(transfer.has_value(), "transfers that were counted are not there");
      transfers[*transfer].sequence = id;
      ++slot.transfers_in_flight;
    }
    ++host_readers[saved[place].value];
    add_page(*transfer, way_of(row[place], saved[place], name_tag_of(id, place), place));
  }
  const std::uint32_t matched = tokens_in(match);
  if (slot.transfers_in_flight == 0) end_restoring(index);
  work_in_background();
  return Admission{.matched_tokens = slot.state == SequenceSlot::State::Running ? slot.computed_tokens : matched,
                   .loading_tokens = slot.state == SequenceSlot::State::Running ? 0 : slot.computed_tokens - matched};
}

void Cache::Impl::finish_restore(std::uint32_t transfer) {
  const Transfer& restore = transfers[transfer];
  const std::uint32_t index = restore.sequence.index;
  SequenceSlot& slot = sequences[index];
  const bool is_awaited = !restore.is_unwanted;
  const std::span<const PageTransfer> pages = pages_of(transfer);
  for (const PageTransfer& page : pages) {
    --host_readers[page.host_page.value];
    host_pool.release({&page.host_page, 1});
    if (is_awaited) {
      saved_row(index)[page.place] = kNullPage;
    } else {
      pool.release({&page.device_page, 1});
    }
  }
  if (is_awaited && restore.good_pages < pages.size()) slot.has_lost_pages = true;
  remove_transfer(transfer);
  if (is_awaited && --slot.transfers_in_flight == 0) {
    end_restoring(index);
    ready_sequences.push_back({index, slot.generation});
  }
}

void Cache::Impl::end_restoring(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  slot.saved_page_count = 0;
  if (!slot.has_lost_pages) {
    sequences.set_state(index, SequenceSlot::State::Running);
    slot.is_preempted = false;
    slot.changed_column = 0;
    settle(index);
    return;
  }
  if (can_be_computed_again(slot)) {
    slot.has_lost_pages = false;
    become_dropped(index);
    slot.load_miss = MissReason::LoadFailed;
    slot.waited_from_page = UINT32_MAX;
    slot.disk_from_page = UINT32_MAX;
    (void)start_running(index);
    return;
  }
  release_pages(index);
  sequences.set_state(index, SequenceSlot::State::Saved);  // of nothing: it can only be ended
}

// The sequence ends before its pages are back: they belong to the transfers, until those are over.
void Cache::Impl::abandon_restoring(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    Transfer& transfer = transfers[i];
    if (transfer.state == Transfer::State::Free || transfer.sequence != SequenceId{index, slot.generation}) continue;
    transfer.is_unwanted = true;
    ++counters.load_outcomes[static_cast<std::size_t>(TransferOutcome::Cancelled)];
    cancel_transfer(i);
    for (const PageTransfer& page : pages_of(i)) {
      sequences.page_row(index)[page.place] = kNullPage;
      saved_row(index)[page.place] = kNullPage;
      host_pool.fence({&page.host_page, 1});
    }
    if (transfer.state == Transfer::State::Queued) finish_restore(i);
  }
  slot.transfers_in_flight = 0;
}

}  // namespace quire
