// SPDX-License-Identifier: Apache-2.0
//
// Cache: pages on their way from the host to the device. The tree learns of a load when it has arrived: until then the
// pages it fills belong to the transfer alone, and the host runs it reads are pinned and marked with it, so that later
// requests join. What comes first in a path arrives first, or nothing behind it counts.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

// A run's mark: the load that brings it, counted from 1; 0 for none.

Cache::Impl::LoadChoice Cache::Impl::choose_load(const SequenceSlot& slot, const PrefixTree::Match& match) const {
  if (match.host_page_count == 0) return {};
  if (is_paused || falls_asleep || is_asleep) return {.miss = MissReason::LoadCancelled};
  if (slot.tier_max == Tier::Device) return {.miss = MissReason::NotAsked};
  LoadChoice choice{.page_count = match.host_page_count};
  std::uint32_t pages_in_run = match.host_pages_in_run;
  for (RunId run = match.host_run; tree->is_on_host(run); run = tree->parent(run)) {
    if (tree->mark(run) == 0) choice.new_pages += pages_in_run;
    pages_in_run = static_cast<std::uint32_t>(tree->pages(tree->parent(run)).size());
  }
  const HostConfig& host = config.host;
  if (host.compute_ns_per_token > 0 && load_rate > 0) {
    const std::uint64_t bytes = loading_bytes + (choice.new_pages * history_page_bytes());
    const double load_ns = static_cast<double>(bytes) / load_rate;
    const double compute_ns =
        static_cast<double>(choice.page_count) * page_tokens * static_cast<double>(host.compute_ns_per_token);
    if (load_ns > compute_ns) return {.miss = MissReason::RecomputeCheaper};
  }
  return choice;
}

// What admit() and resume() come to.
Result<Admission> Cache::Impl::start_admitted(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  slot.load_miss = MissReason::None;
  slot.waited_from_page = UINT32_MAX;
  slot.has_looked = false;
  slot.disk_miss = MissReason::None;
  slot.limiting_side = UINT32_MAX;
  slot.disk_from_page = UINT32_MAX;
  slot.skips_partial = false;
  if (!has_host()) return start_running(index);
  if (!sides.empty()) return start_admitted_with_sides(index);
  PrefixTree::Match match = match_of(index);
  if (slot.prefetch != Prefetch::BestEffort && may_look(slot, match)) {
    const Admission admission{.matched_tokens = tokens_in(match),
                              .loading_tokens = match.host_page_count * page_tokens,
                              .is_ready = false,
                              .miss = {}};
    slot.load_deadline = slot.prefetch == Prefetch::Timeout ? time_after(slot.load_timeout_ns) : INT64_MAX;
    slot.waited_from_page = match.page_count;
    if (start_looking(index, match)) {
      hand_over_transfers();
      return admission;
    }
    slot.waited_from_page = UINT32_MAX;
    slot.disk_from_page = UINT32_MAX;
    match = match_of(index);
  }
  LoadChoice choice = choose_load(slot, match);
  if (choice.page_count == 0 || slot.prefetch == Prefetch::BestEffort) {
    slot.load_miss = choice.page_count > 0 ? MissReason::LoadTimedOut : choice.miss;
    return start_running(index);
  }
  if (choice.new_pages > available_for_loads(match)) {
    make_clean(choice.new_pages, match);
    match = match_of(index);
    choice = choose_load(slot, match);
  }
  QUIRE_TRY(check_room_for_load(index, choice, match));
  slot.waited_from_page = match.page_count;
  slot.load_deadline = slot.prefetch == Prefetch::Timeout ? time_after(slot.load_timeout_ns) : INT64_MAX;
  sequences.set_state(index, SequenceSlot::State::Loading);
  const Miss miss = find_miss(index, match);  // before the tree changes
  slot.pin = tree->pin_all(match);
  slot.soft_pin.reset();
  start_loads(slot.pin, slot.key_space, TransferPriority::Waiting);
  hand_over_transfers();
  if (live_transfer_count == 0) {  // moves are still to be made in the pages it would take, and nothing is on its way
    slot.load_miss = MissReason::LoadFailed;
    const PrefixTree::Pin waited = std::move(slot.pin);
    return start_running(index);
  }
  return Admission{.matched_tokens = tokens_in(match),
                   .loading_tokens = match.host_page_count * page_tokens,
                   .is_ready = false,
                   .miss = miss};
}

Status Cache::Impl::check_room_for_load(std::uint32_t index, const LoadChoice& choice,
                                        const PrefixTree::Match& match) const {
  const std::uint32_t available = available_for_loads(match);
  if (choice.new_pages <= available) return {};
  return fail(ErrorCode::Unavailable, name_of(index) + " has " + with_separators(choice.new_pages) +
                                          " pages to load from the host; " + with_separators(available) +
                                          " device pages are available, and " + with_separators(tree->leaving_pages()) +
                                          " will be when apply() hears that they are copied");
}

// The same where other groups have a say: what they cannot go on with is not loaded.
Result<Admission> Cache::Impl::start_admitted_with_sides(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  slot.has_asked_sides = false;
  slot.side_loads = 0;
  const auto match_usable = [&] {
    const PrefixTree::Match match = match_of(index);
    const Hit hit = find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true);
    return tree->cut_pages(match, pages_for(hit.tokens));
  };
  PrefixTree::Match match = match_of(index);
  const Hit on_device = find_hit(match, slot.token_count, slot.allows_inexact);
  const auto tokens_to_load = [&on_device](const Hit& anywhere) {
    return anywhere.start() - std::min(anywhere.start(), on_device.start());
  };
  if (slot.prefetch != Prefetch::BestEffort && may_look(slot, match)) {
    const Hit on_host = find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true);
    slot.load_deadline = slot.prefetch == Prefetch::Timeout ? time_after(slot.load_timeout_ns) : INT64_MAX;
    slot.waited_from_page = match.page_count;
    if (start_looking(index, match)) {
      take_state_slot(index);  // not before: a call that fails changes nothing
      hand_over_transfers();
      return Admission{.matched_tokens = on_device.tokens,
                       .replay_tokens = on_device.replay_tokens,
                       .loading_tokens = tokens_to_load(on_host),
                       .is_ready = false,
                       .miss = {}};
    }
    slot.waited_from_page = UINT32_MAX;
    slot.disk_from_page = UINT32_MAX;
    match = match_of(index);
  }
  const Hit anywhere = find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true);
  if (!may_load(slot) || anywhere.start() <= on_device.start()) {
    if (!may_load(slot)) slot.load_miss = choose_load(slot, match).miss;
    const bool is_too_late = slot.prefetch == Prefetch::BestEffort && anywhere.start() > on_device.start();
    if (is_too_late && slot.load_miss == MissReason::None) slot.load_miss = MissReason::LoadTimedOut;
    return start_running(index);
  }
  match = match_usable();
  LoadChoice choice = choose_load(slot, match);
  if (match.host_page_count > 0 && choice.page_count == 0) {
    slot.load_miss = choice.miss;
    return start_running(index);
  }
  if (choice.new_pages > available_for_loads(match)) {
    make_clean(choice.new_pages, match);
    match = match_usable();
    choice = choose_load(slot, match);
  }
  QUIRE_TRY(check_room_for_load(index, choice, match));
  slot.waited_from_page = match.page_count;
  slot.load_deadline = slot.prefetch == Prefetch::Timeout ? time_after(slot.load_timeout_ns) : INT64_MAX;
  sequences.set_state(index, SequenceSlot::State::Loading);
  take_state_slot(index);
  slot.pin = tree->pin_all(match);
  slot.soft_pin.reset();
  start_loads(slot.pin, slot.key_space, TransferPriority::Waiting);
  const bool waits_for_history = !tree->first_host_run(slot.pin).is_none();
  if (!waits_for_history) start_side_loads(index);
  const bool waits = waits_for_history ? live_transfer_count > 0 : slot.side_loads > 0 || !slot.has_asked_sides;
  if (!waits) {
    const PrefixTree::Pin waited = std::move(slot.pin);
    return start_running(index);
  }
  hand_over_transfers();
  return Admission{.matched_tokens = on_device.tokens,
                   .replay_tokens = on_device.replay_tokens,
                   .loading_tokens = tokens_to_load(anywhere),
                   .is_ready = false,
                   .miss = {}};
}

// Before pages are loaded: has what stands in the way written out. Some of it may have been copied long ago.
void Cache::Impl::make_clean(std::uint32_t page_count, const PrefixTree::Match& match) {
  flush_moves();
  const PrefixTree::Pin wanted = tree->pin_all(match);  // not itself
  if (writes_back()) start_leaving(page_count + clean_reserve_pages);
  hand_over_transfers();
}

// The host runs of a pinned path, from its end up.
void Cache::Impl::list_host_runs(const PrefixTree::Pin& pin) {
  path_runs.clear();
  for (RunId run = pin.run(); tree->is_on_host(run); run = tree->parent(run)) path_runs.push_back(run);
}

// Starts loads of everything on a pinned path that is on the host and in no load, as far as there are transfers and
// pages. The rest is started when others are over.
void Cache::Impl::start_loads(const PrefixTree::Pin& pin, std::uint32_t key_space, TransferPriority priority) {
  list_host_runs(pin);
  while (!path_runs.empty()) {
    const RunId run = path_runs.back();
    if (const std::uint32_t mark = tree->mark(run); mark != 0) {
      if (priority == TransferPriority::Waiting) transfers[mark - 1].priority = priority;
      path_runs.pop_back();
      continue;
    }
    const std::uint32_t begin = tree->end_page(run) - static_cast<std::uint32_t>(tree->pages(run).size());
    std::uint32_t end = begin;
    while (!path_runs.empty() && tree->mark(path_runs.back()) == 0 && end - begin < config.host.transfer_pages_max) {
      end = std::min(tree->end_page(path_runs.back()), begin + config.host.transfer_pages_max);
      if (end == tree->end_page(path_runs.back())) path_runs.pop_back();
    }
    if (!start_load(pin, {begin, end}, key_space, priority)) return;
  }
}

bool Cache::Impl::start_load(const PrefixTree::Pin& pin, TokenRange range, std::uint32_t key_space,
                             TransferPriority priority) {
  const std::uint32_t page_count = range.end - range.begin;
  if (live_transfer_count == transfers.size()) return false;
  if (page_count > pool.free_count() + evictable_now()) return false;  // none of those that wait for moves
  make_room(page_count);
  const std::span<PageId> targets = std::span(leaving_pages).first(page_count);
  if (!try_take_targets(targets)) return false;
  const std::optional<std::uint32_t> index = add_transfer(TransferKind::Load, priority);
  if (!index) {
    pool.release(targets);
    return false;
  }
  Transfer& load = transfers[*index];
  load.key_space = key_space;
  load.first_page = range.begin;
  load.page_count = page_count;
  load.deadline = config.host.load_timeout_ns > 0 ? time_after(config.host.load_timeout_ns) : INT64_MAX;
  load.pin = tree->pin_prefix(pin, range.end);
  const std::span<PageTransfer> pages = pages_of(*index);
  for (RunId run = load.pin.run(); tree->is_on_host(run) && tree->end_page(run) > range.begin;
       run = tree->parent(run)) {
    tree->mark(run) = *index + 1;
    const std::span<const PageId> host_pages = tree->pages(run);
    const std::uint32_t place = tree->end_page(run) - static_cast<std::uint32_t>(host_pages.size()) - range.begin;
    for (std::uint32_t i = 0; i < host_pages.size(); ++i) {
      const PageId host_page = host_pages[i];
      ++host_readers[host_page.value];
      pages[place + i] = way_of(targets[place + i], host_page, tree->fingerprint(host_page, Tier::Host));
    }
  }
  loading_bytes += page_count * history_page_bytes();
  ++key_spaces[key_space].user_count;
  return true;
}

// Loads that have arrived, in any order, until none can go on.
void Cache::Impl::finish_loads() {
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::uint32_t i = 0; i < transfer_end; ++i) {
      const bool has_arrived =
          transfers[i].kind == TransferKind::Load && transfers[i].state == Transfer::State::Arrived;
      if (has_arrived && try_finish_load(i)) goes_on = true;
    }
  }
}

bool Cache::Impl::try_finish_load(std::uint32_t index) {
  Transfer& load = transfers[index];
  if (!load.is_unwanted) {
    const RunId first = tree->first_host_run(load.pin);
    if (!first.is_none() && tree->end_page(first) <= load.first_page) {
      // Something before it is not there: another load brings it, or it never comes.
      if (tree->mark(first) != 0) return false;
      load.good_pages = 0;
      forget_load(index, MissReason::LoadFailed);
    } else {
      if (load.good_pages > 0) promote_arrived(index);
      if (load.good_pages < load.page_count) {
        const bool is_bad = load.outcome == TransferOutcome::Failed && load.fault != TransferFault::Io &&
                            load.fault != TransferFault::None;
        if (is_bad) {
          drop_bad_page(index);
        } else {
          forget_load(index,
                      load.outcome == TransferOutcome::Cancelled ? MissReason::LoadCancelled : MissReason::LoadFailed);
        }
      }
    }
  }
  end_load(index);
  return true;
}

// The good pages of a load become the device's, run by run from the top; where the tree has got device pages meanwhile,
// they came in vain.
void Cache::Impl::promote_arrived(std::uint32_t index) {
  Transfer& load = transfers[index];
  const PrefixTree::Pin good = tree->pin_prefix(load.pin, load.first_page + load.good_pages);
  list_host_runs(good);
  for (; !path_runs.empty(); path_runs.pop_back()) {
    const RunId run = path_runs.back();
    const auto page_count = static_cast<std::uint32_t>(tree->pages(run).size());
    const std::uint32_t place = tree->end_page(run) - page_count - load.first_page;
    const std::span<PageTransfer> pages = pages_of(index).subspan(place, page_count);
    const std::span<PageId> targets = std::span(leaving_pages).first(page_count);
    for (std::uint32_t i = 0; i < page_count; ++i) {
      targets[i] = pages[i].device_page;
      pages[i].device_page = PageId::none();  // the tree's now
      copy_after_step[targets[i].value] = 0;
    }
    pool.seal(targets);
    if (has_disk()) {
      for (std::uint32_t i = 0; i < page_count; ++i) {
        device_hot[targets[i].value] = 0;
        name_log.add_copy(NameLog::Kind::DeviceCopy, targets[i], pages[i].host_page);
      }
    }
    tree->promote(run, targets);
    counters.loaded_page_total += page_count;
  }
}

// A host page is not what it should be: it goes, and what is below it. Nobody waits for that any longer.
void Cache::Impl::drop_bad_page(std::uint32_t index) {
  Transfer& load = transfers[index];
  const std::uint32_t bad_page = load.first_page + load.good_pages;
  const PrefixTree::Pin good = tree->pin_prefix(load.pin, bad_page);  // splits there
  RunId bad = load.pin.run();
  while (tree->end_page(tree->parent(bad)) > bad_page) bad = tree->parent(bad);
  if (!tree->is_on_host(bad)) {  // somebody has computed it meanwhile; what is on the host is only a copy
    forget_load(index, MissReason::LoadFailed);
    return;
  }
  PrefixTree::Pin held = tree->clone(load.pin);  // loads that end take what they can of a key space that was dropped
  const auto leads_through_it = [&](const PrefixTree::Pin& pin) {
    RunId run = pin ? pin.run() : RunId::none();
    while (!run.is_none() && run != bad) run = tree->parent(run);
    return run == bad;
  };
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    if (transfers[i].state == Transfer::State::Free || !transfers[i].pin) continue;
    if (!leads_through_it(transfers[i].pin)) continue;
    if (transfers[i].kind == TransferKind::FindOnDisk) {
      abandon_find(i, MissReason::LoadFailed);
    } else {
      call_off(i, MissReason::LoadFailed);
    }
  }
  for (std::uint32_t i = 0; i < side_transfers.size(); ++i) {
    if (side_transfers[i].pin && leads_through_it(side_transfers[i].pin)) disown_side_load(i);
  }
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    SequenceSlot& slot = sequences[i];
    if (!leads_through_it(slot.pin)) continue;  // one that waits for its turn to look will look for less
    if (slot.state == SequenceSlot::State::Loading) slot.load_miss = MissReason::LoadFailed;
    slot.pin = tree->pin_prefix(slot.pin, bad_page);
  }
  held.reset();
  tree->drop_host_run(bad, ResidencyCause::Failed);
  release_freed_host();
}

// What a load brings is not to be used any more: whoever waits for it waits in vain, and others may load the same.
void Cache::Impl::forget_load(std::uint32_t index, MissReason reason) {
  Transfer& load = transfers[index];
  if (load.is_unwanted) return;
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Loading || slot.load_miss != MissReason::None) continue;
    if (is_load_of(index, slot.pin)) slot.load_miss = reason;
  }
  load.is_unwanted = true;
  release_path(index);
}

// A load is not needed any more, or not in time. Its pages are nobody's as soon as nobody moves them; one that has
// arrived ends where it was found.
void Cache::Impl::call_off(std::uint32_t index, MissReason reason) {
  Transfer& load = transfers[index];
  const bool waits = load.state == Transfer::State::Queued || load.state == Transfer::State::Moving;
  if (waits && !load.is_unwanted) {
    const bool is_late = reason == MissReason::LoadTimedOut;
    ++counters
          .load_outcomes[static_cast<std::size_t>(is_late ? TransferOutcome::TimedOut : TransferOutcome::Cancelled)];
  }
  forget_load(index, reason);
  cancel_transfer(index);
  if (load.state == Transfer::State::Queued) end_load(index);
}

// The runs of its path, whose load is over, may be loaded by others, and evicted.
void Cache::Impl::release_path(std::uint32_t index) {
  PrefixTree::Pin& pin = transfers[index].pin;
  for (RunId run = pin.run(); tree->is_on_host(run); run = tree->parent(run)) {
    if (tree->mark(run) == index + 1) tree->mark(run) = 0;
  }
  pin.reset();
}

// Whether a load brings something of a pinned path.
bool Cache::Impl::is_load_of(std::uint32_t load, const PrefixTree::Pin& pin) const {
  for (RunId run = pin.run(); tree->is_on_host(run); run = tree->parent(run)) {
    if (tree->mark(run) == load + 1) return true;
  }
  return false;
}

// Every rank has reported, or nobody has taken it: its pages are nobody's.
void Cache::Impl::end_load(std::uint32_t index) {
  Transfer& load = transfers[index];
  const std::uint32_t key_space = load.key_space;
  if (load.pin) release_path(index);  // all of it arrived, or was there before it did
  for (const PageTransfer& page : pages_of(index)) {
    if (!page.device_page.is_none()) pool.release({&page.device_page, 1});
    release_host_read(page.host_page);
  }
  loading_bytes -= load.page_count * history_page_bytes();
  remove_transfer(index);
  --key_spaces[key_space].user_count;
  leave_key_space(key_space);
}

void Cache::Impl::expire_loads() {
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    Transfer& load = transfers[i];
    const bool waits = load.state == Transfer::State::Queued || load.state == Transfer::State::Moving;
    if (!waits || load.kind != TransferKind::Load || !load.pin || now < load.deadline) continue;
    call_off(i, MissReason::LoadTimedOut);
  }
  expire_side_loads();
}

// Loading sequences that need not wait any longer.
void Cache::Impl::wake_loading() {
  if (has_disk()) {
    expire_looking();
    go_on_looking();
  }
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Loading) continue;
    if (slot.load_miss == MissReason::None && now >= slot.load_deadline) slot.load_miss = MissReason::LoadTimedOut;
    if (tree->first_host_run(slot.pin).is_none()) {
      // What other groups have of it on the host comes next.
      const bool is_late = slot.load_miss != MissReason::None;
      if (!sides.empty() && !is_late && !slot.has_asked_sides) start_side_loads(i);
      if (!sides.empty() && !is_late && (slot.side_loads > 0 || !slot.has_asked_sides)) continue;
      wake(i, sides.empty() ? MissReason::None : slot.load_miss);  // the history has all arrived, late or not
    } else if (slot.load_miss != MissReason::None) {
      wake(i, slot.load_miss);
    } else {
      start_loads(slot.pin, slot.key_space, TransferPriority::Waiting);
      const auto is_started = [&] { return tree->mark(tree->first_host_run(slot.pin)) != 0; };
      // Nobody made room for one whose pages came from disk: admit() did not know of them.
      if (!is_started() && slot.disk_from_page != UINT32_MAX && writes_back()) {
        make_clean(pages_asked(slot), match_of(i));
        start_loads(slot.pin, slot.key_space, TransferPriority::Waiting);
      }
      if (is_started() || has_host_transfers() || live_transfer_count == transfers.size()) continue;
      wake(i, MissReason::LoadFailed);  // nothing is on its way that could make room for it
    }
  }
  cancel_unneeded_loads();
}

// Whether something moves between device and host. What the disk does makes no room, and may never end.
bool Cache::Impl::has_host_transfers() const {
  return std::ranges::any_of(transfers, [](const Transfer& each) {
    return each.state != Transfer::State::Free && (each.kind == TransferKind::Load || each.kind == TransferKind::Store);
  });
}

void Cache::Impl::wake(std::uint32_t index, MissReason reason) {
  SequenceSlot& slot = sequences[index];
  leave_side_loads(index);
  slot.load_miss = reason;
  const PrefixTree::Pin waited = std::move(slot.pin);  // until it is pinned anew
  (void)start_running(index);
  ready_sequences.push_back({index, slot.generation});
}

// Loads that were started for somebody who waits no longer.
void Cache::Impl::cancel_unneeded_loads() {
  for (std::uint32_t load = 0; load < transfer_end; ++load) {
    const Transfer& each = transfers[load];
    const bool waits = each.state == Transfer::State::Queued || each.state == Transfer::State::Moving;
    if (!waits || each.kind != TransferKind::Load || !each.pin) continue;
    if (each.priority == TransferPriority::Background) continue;  // to be there for one that has not been admitted
    bool is_needed = false;
    for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity() && !is_needed;
         i = sequences.next_loading(i + 1)) {
      is_needed = sequences[i].state == SequenceSlot::State::Loading && is_load_of(load, sequences[i].pin);
    }
    if (is_needed) continue;
    call_off(load, MissReason::LoadCancelled);
  }
}

// For a sequence that has just begun: what it will want from the host comes early, where that takes nothing from
// others.
void Cache::Impl::prefetch(std::uint32_t index, const PrefixTree::Match& match) {
  const SequenceSlot& slot = sequences[index];
  if (may_look(slot, match)) {
    if (const std::optional<std::uint32_t> find = look_for(index, match)) transfers[*find].is_prefetch = true;
    hand_over_transfers();
    prefetch_from_host(index, match_of(index));
    return;
  }
  prefetch_from_host(index, match);
}

void Cache::Impl::prefetch_from_host(std::uint32_t index, const PrefixTree::Match& match) {
  const SequenceSlot& slot = sequences[index];
  PrefixTree::Match wanted = match;
  if (!sides.empty()) {  // what other groups cannot go on with is not loaded; what they have comes with admit()
    const Hit hit = find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true);
    wanted = tree->cut_pages(match, pages_for(hit.tokens));
  }
  const LoadChoice choice = choose_load(slot, wanted);
  if (choice.page_count == 0 || choice.new_pages > available_for_loads(wanted)) return;
  const PrefixTree::Pin pin = tree->pin_all(wanted);
  start_loads(pin, slot.key_space, TransferPriority::Background);
  hand_over_transfers();
}

Status Cache::stop_loading(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  if (impl.sequences[index].state == SequenceSlot::State::Restoring) {
    return fail(ErrorCode::Unsupported, "stop_loading: " + Impl::name_of(index) +
                                            " was saved, and is brought back as a whole; end it to stop that");
  }
  const bool waits = impl.sequences[index].state == SequenceSlot::State::Loading ||
                     impl.sequences[index].state == SequenceSlot::State::Looking;
  if (!waits) {
    return fail(ErrorCode::InvalidArgument, "stop_loading: " + Impl::name_of(index) + " is not loading");
  }
  impl.wake(index, MissReason::LoadCancelled);
  impl.ready_sequences.pop_back();  // the caller knows
  impl.cancel_unneeded_loads();
  impl.cancel_unneeded_finds();
  impl.work_in_background();
  return {};
}

}  // namespace quire
