// SPDX-License-Identifier: Apache-2.0
#include "tiers/loads.h"

#include <algorithm>

#include "base/check.h"
#include "tiers/searches.h"

namespace quire {

std::optional<std::uint32_t> Loads::start(const Order& order) {
  // Somebody waits for pages that a prefetch brings: its loads become Waiting. Those that are still queued are
  // submitted as such; all of them may be called off when nobody waits any more.
  if (order.priority == TransferPriority::Waiting) {
    for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
      Transfer& load = parts_.book[i];
      const bool is_joined = load.is_tree_load() && load.priority != order.priority && load.pool == order.home.pool;
      if (is_joined && order.home.brings(i, order.path, order.wanted.columns)) load.priority = order.priority;
    }
  }
  PageHome::Wanted wanted = order.wanted;
  for (;;) {
    const PageHome::Listed listed = order.home.list_loads(order.path, wanted, pages_);
    if (listed.page_count == 0) return std::nullopt;
    if (!start_one(order, listed.page_count)) return wanted.from;
    wanted.from = listed.next_column;
  }
}

bool Loads::start_one(const Order& order, std::uint32_t page_count) {
  QUIRE_CHECK(page_count > 0 && page_count <= parts_.book.pages_max(), "a load of no page, or of too many");
  PageHome& home = order.home;
  if (parts_.book.is_full() || parts_.is_paused) return false;
  const std::span<PageId> targets = std::span(targets_).first(page_count);
  if (!home.try_take_targets(targets)) return false;
  const std::uint32_t index = *parts_.add_transfer(TransferKind::Load, order.priority);
  Transfer& load = parts_.book[index];
  load.pool = home.pool;
  load.key_space = order.key_space;
  load.deadline = parts_.load_deadline();
  load.first_page = pages_.front().place;
  load.last_page = pages_[page_count - 1].place;
  load.pin =
      home.pool == 0 ? parts_.tree.pin_prefix(order.path, load.first_page + page_count) : parts_.tree.clone(order.path);
  for (std::uint32_t i = 0; i < page_count; ++i) {
    pages_[i].device_page = targets[i];
    home.pages.begin_host_read(pages_[i].host_page);
    parts_.book.add_page(index, pages_[i]);
  }
  home.note_load(load.pin, parts_.book.pages(index), index);
  ++parts_.loading_count;
  parts_.loading_bytes += page_count * home.pages.page_bytes;
  parts_.use_key_space(order.key_space);
  return true;
}

void Loads::finish_arrived() {
  if (parts_.loading_count == 0) return;
  expire();
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
      const Transfer& load = parts_.book[i];
      if (load.is_tree_load() && load.has_ended() && try_finish(i)) goes_on = true;
    }
  }
}

bool Loads::try_finish(std::uint32_t index) {
  Transfer& load = parts_.book[index];
  PageHome& home = *parts_.homes[load.pool];
  if (load.is_wanted()) {
    const PageHome::Turn turn = home.turn_of(load);
    if (turn == PageHome::Turn::Later) return false;
    if (turn == PageHome::Turn::Never) {
      forget(index, MissReason::LoadFailed);
    } else {
      if (load.good_pages > 0) home.attach(load, parts_.book.pages(index).first(load.good_pages));
      if (load.good_pages == load.page_count) take_ahead(index);
      if (load.good_pages < load.page_count) {
        const bool is_bad = load.outcome == TransferOutcome::Failed && load.fault != TransferFault::Io &&
                            load.fault != TransferFault::None;
        if (is_bad) drop_bad_page(index);
        forget(index, load.outcome == TransferOutcome::Cancelled ? MissReason::LoadCancelled : MissReason::LoadFailed);
      }
    }
  }
  end(index);
  return true;
}

// Sequences that run ahead on a load have its pages from here on.
void Loads::take_ahead(std::uint32_t index) {
  for_each_ahead(index, [&](std::uint32_t sequence) { parts_.client.take_loaded(sequence, index); });
}

// The first page that is not good has wrong bytes on the host: drops the host page and, of the history, the runs behind
// it, and calls off what depends on them.
void Loads::drop_bad_page(std::uint32_t index) {
  const Transfer& load = parts_.book[index];
  const RunId bad = parts_.homes[load.pool]->drop_bad(load, parts_.book.pages(index)[load.good_pages], load.good_pages);
  if (!bad.is_none()) drop_run(bad);
}

void Loads::drop_run(RunId bad) {
  PrefixTree& tree = parts_.tree;
  const std::uint32_t bad_page = tree.end_page(tree.parent(bad));
  PrefixTree::Pin held = tree.pin_run(bad);  // the end of a load may evict the run, if its key space was dropped
  const auto leads_through_it = [&](const PrefixTree::Pin& pin) {
    RunId run = pin ? pin.run() : RunId::none();
    while (!run.is_none() && run != bad) run = tree.parent(run);
    return run == bad;
  };
  if (searches_ != nullptr) searches_->abandon_through(leads_through_it);
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    const Transfer& each = parts_.book[i];
    if (each.is_live() && each.kind == TransferKind::Load && leads_through_it(each.pin)) {
      call_off(i, MissReason::LoadFailed);
    }
  }
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    SequenceSlot& slot = sequences[i];
    if (!leads_through_it(slot.pin)) continue;
    // A sequence that is Looking goes on, with a pin on the good pages before the bad one.
    if (slot.state != SequenceSlot::State::Looking) parts_.arrivals[i].load_miss = MissReason::LoadFailed;
    // What it needs of other groups hangs on pages behind the bad one.
    if (slot.state == SequenceSlot::State::Loading) parts_.arrivals[i].anchored.reset();
    slot.pin = tree.pin_prefix(slot.pin, bad_page);
  }
  held.reset();
  parts_.history.drop_host_run(bad, ResidencyCause::Failed);
}

bool Loads::is_awaited_by(std::uint32_t index, std::uint32_t sequence) const {
  const SequenceSlot& slot = parts_.sequences[sequence];
  if (slot.state == SequenceSlot::State::RunningAhead) return !slot.is_lost && parts_.ahead.has(sequence, index);
  if (slot.state != SequenceSlot::State::Loading) return false;
  const Transfer& load = parts_.book[index];
  PageHome& home = *parts_.homes[load.pool];
  if (load.pool == 0) return home.brings(index, slot.pin, {});
  const std::optional<Arrival::AnchoredNeed>& need = parts_.arrivals[sequence].anchored;
  if (!need || need->hit.is_rebuilt(load.pool - 1U)) return false;
  return home.brings(index, slot.pin, paths_.needed_columns(load.pool - 1U, need->hit, slot.token_count));
}

// Nobody uses what a load brings from here on: sequences that wait for it get the reason, and other loads may bring the
// same pages.
void Loads::forget(std::uint32_t index, MissReason reason) {
  Transfer& load = parts_.book[index];
  if (!load.pin) return;
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    if (arrival.load_miss == MissReason::None && is_awaited_by(index, i)) arrival.load_miss = reason;
  }
  for_each_ahead(index, [&](std::uint32_t sequence) { parts_.client.lose_loaded(sequence, index); });
  parts_.homes[load.pool]->forget_load(load.pin, parts_.book.pages(index), index);
  load.pin.reset();
}

// A load that somebody is moving ends with its completion; one that nobody has taken ends now; and one that has arrived
// ends where finish_arrived() finds it.
void Loads::call_off(std::uint32_t index, MissReason reason) {
  Transfer& load = parts_.book[index];
  if (!load.is_wanted()) return;
  const bool is_queued = load.state == Transfer::State::Queued;
  if (load.is_on_its_way()) {
    const bool is_late = reason == MissReason::LoadTimedOut;
    const TransferOutcome outcome = is_late ? TransferOutcome::TimedOut : TransferOutcome::Cancelled;
    ++parts_.counters.load_outcomes[static_cast<std::size_t>(outcome)];
  }
  forget(index, reason);
  parts_.call_off(index);
  if (is_queued) end(index);
}

// Every rank has reported, or nobody has taken the load. Releases the device pages that did not attach, and removes the
// load.
void Loads::end(std::uint32_t index) {
  Transfer& load = parts_.book[index];
  QUIRE_CHECK(load.kind == TransferKind::Load && load.is_of_tree(), "a transfer ends as a load, and is none");
  PageHome& home = *parts_.homes[load.pool];
  if (load.pin) {  // not forgotten: all pages were good
    home.forget_load(load.pin, parts_.book.pages(index), index);
    load.pin.reset();
  }
  for (const PageTransfer& page : parts_.book.pages(index)) {
    if (!page.device_page.is_none() && load.is_read_ahead) {
      home.pages.give_back(page.device_page);  // steps in flight may read it
    } else if (!page.device_page.is_none()) {
      home.pages.device.release({&page.device_page, 1});
    }
    home.pages.end_host_read(page.host_page);
  }
  const std::uint64_t bytes = load.page_count * home.pages.page_bytes;
  QUIRE_CHECK(bytes <= parts_.loading_bytes, "more bytes are loaded than were begun");
  parts_.loading_bytes -= bytes;
  --parts_.loading_count;
  const std::uint32_t key_space = load.key_space;
  parts_.book.remove(index);
  parts_.leave_key_space(key_space);
}

void Loads::expire() {
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    const Transfer& load = parts_.book[i];
    if (load.is_tree_load() && load.is_on_its_way() && parts_.now >= load.deadline)
      call_off(i, MissReason::LoadTimedOut);
  }
}

void Loads::cancel_unneeded() {
  for (std::uint32_t load = 0; load < parts_.book.end(); ++load) {
    const Transfer& each = parts_.book[load];
    if (!each.is_tree_load() || !each.is_on_its_way()) continue;
    if (each.priority == TransferPriority::Background) continue;  // a prefetch for a sequence that is not admitted yet
    bool is_needed = false;
    for (const std::uint32_t i : parts_.sequences.arriving()) is_needed = is_needed || is_awaited_by(load, i);
    if (!is_needed) call_off(load, MissReason::LoadCancelled);
  }
}

void Loads::call_off_all() {
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    const Transfer& load = parts_.book[i];
    if (!load.is_tree_load()) continue;
    const bool has_arrived = load.state == Transfer::State::Arrived;
    call_off(i, MissReason::LoadCancelled);
    if (has_arrived) end(i);
  }
}

}  // namespace quire
