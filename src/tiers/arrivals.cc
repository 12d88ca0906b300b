// SPDX-License-Identifier: Apache-2.0
#include "tiers/arrivals.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "layout/text.h"

namespace quire {

namespace {

// So often may apply() be called while nobody plans a step, and nothing is moved, before a sequence that waits for room
// without a limit of time takes it that the engine waits for it.
constexpr std::uint32_t kIdleWakesMax = 16;

}  // namespace

// Admission

Result<std::optional<WaitingAdmission>> Arrivals::start(std::uint32_t sequence) {
  SequenceSlot& slot = parts_.sequences[sequence];
  parts_.arrivals[sequence] = {};
  if (!parts_.has_host()) return std::nullopt;
  Arrival& arrival = parts_.arrivals[sequence];
  const Found found = paths_.find(sequence);
  const auto waiting = [&](const Hit& in_memory, const Miss& miss) {
    parts_.hand_over();
    return WaitingAdmission{.on_device = found.on_device, .in_memory = in_memory, .miss = miss};
  };
  arrival.host_from = found.on_device.start() / parts_.page_tokens * parts_.page_tokens;
  if (slot.admit_options.prefetch != Prefetch::BestEffort && may_look(sequence, found)) {
    set_deadline(sequence);
    if (start_looking(sequence, found)) return waiting(found.in_memory, {});
  }
  Choice choice = choose(sequence, found);
  if (!choice.loads || slot.admit_options.prefetch == Prefetch::BestEffort) {
    // Prefetch::BestEffort does not wait: pages that are still to be loaded come too late.
    arrival.load_miss = choice.loads ? MissReason::LoadTimedOut : choice.miss;
    return std::nullopt;
  }
  if (choice.new_pages > parts_.history.available_for_loads(choice.match)) {
    stores_.make_clean(choice.new_pages, choice.match);
    parts_.hand_over();
    choice = choose(sequence, paths_.find(sequence));
    if (!choice.loads) {  // make_clean() has evicted from the host what was to be loaded
      arrival.load_miss = choice.miss;
      return std::nullopt;
    }
  }
  QUIRE_TRY(check_room(sequence, choice));
  set_deadline(sequence);
  parts_.sequences.set_state(sequence, SequenceSlot::State::Loading);
  const Miss miss = paths_.find_miss(sequence, choice.match);  // before the tree changes
  start_loading(sequence, choice);
  const Progress progress = advance(sequence);
  if (progress == Progress::Waits || (progress == Progress::Stuck && parts_.book.live_count() > 0)) {
    return waiting(choice.hit, miss);
  }
  // Stuck without any transfer: moves are still to write the pages that a load would take. Otherwise nothing is
  // missing.
  if (progress == Progress::Stuck) arrival.load_miss = MissReason::LoadFailed;
  return std::nullopt;
}

void Arrivals::set_deadline(std::uint32_t sequence) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  parts_.arrivals[sequence].deadline = slot.admit_options.prefetch == Prefetch::Timeout
                                           ? parts_.time_after(slot.admit_options.load_timeout_ns)
                                           : INT64_MAX;
}

// What the host has for a sequence, and whether loading it takes less time than computing it.
Arrivals::Choice Arrivals::choose(std::uint32_t sequence, const Found& found) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  Choice choice{.hit = found.in_memory};
  if (choice.hit.start() <= found.on_device.start() || slot.admit_options.is_for_host) return choice;
  if (parts_.is_paused || !parts_.is_awake()) return {.miss = MissReason::LoadCancelled};
  if (slot.admit_options.tier_max == Tier::Device) return {.miss = MissReason::NotAsked};
  choice.match = paths_.cut(found.match, choice.hit);
  // Host runs from the end of the match upwards: pages of runs that no load brings are new.
  std::uint32_t pages_in_run = choice.match.host_pages_in_run;
  const PrefixTree& tree = parts_.tree;
  for (RunId run = choice.match.host_run; choice.match.host_page_count > 0 && tree.is_on_host(run);
       run = tree.parent(run)) {
    if (tree.load_of(run) == 0) choice.new_pages += pages_in_run;
    pages_in_run = static_cast<std::uint32_t>(tree.pages(tree.parent(run)).size());
  }
  if (is_faster_to_compute(slot, found, choice)) return {.miss = MissReason::RecomputeCheaper};
  choice.loads = true;
  return choice;
}

bool Arrivals::is_faster_to_compute(const SequenceSlot& slot, const Found& found, const Choice& choice) {
  const TimeNs compute_ns_per_token = parts_.config.host.compute_ns_per_token;
  if (compute_ns_per_token == 0 || parts_.load_rate.bytes_per_ns == 0) return false;
  // Whole pages only: no load brings a part of a page.
  const Paths::HitQuery whole_pages{
      .token_count = slot.token_count, .allows_inexact = slot.options.allows_inexact, .allows_partial = false};
  const Hit hit = paths_.find_hit(found.match, whole_pages, HitScope::DeviceAndHost);
  const std::uint32_t gained_tokens = hit.start() - std::min(hit.start(), found.on_device.start());
  std::uint64_t bytes = parts_.loading_bytes + (choice.new_pages * parts_.history.pages.page_bytes);
  if (!paths_.is_plain()) {
    const TierPath path = paths_.path_of(choice.match);
    paths_.for_each_anchored_need(hit, slot.token_count, [&](const AnchoredGroup& group, const WindowColumns& columns) {
      bytes += group.count_loads(path, columns) * group.pages.page_bytes;
    });
  }
  const double load_ns = static_cast<double>(bytes) / parts_.load_rate.bytes_per_ns;
  return load_ns > static_cast<double>(gained_tokens) * static_cast<double>(compute_ns_per_token);
}

Status Arrivals::check_room(std::uint32_t sequence, const Choice& choice) const {
  const std::uint32_t available = parts_.history.available_for_loads(choice.match);
  if (choice.new_pages <= available) return {};
  return unavailable("sequence ", plain(sequence), " has ", choice.new_pages, " pages to load from the host; ",
                     available, " device pages are available, and ", parts_.tree.leaving_pages(),
                     " will be when apply() hears that they are copied");
}

// Loading

void Arrivals::start_loading(std::uint32_t sequence, const Choice& choice) {
  SequenceSlot& slot = parts_.sequences[sequence];
  QUIRE_CHECK(choice.loads && slot.state == SequenceSlot::State::Loading, "nothing is to be loaded");
  slot.pin = parts_.tree.pin_all(choice.match);
  slot.soft_pin.reset();
  parts_.arrivals[sequence].anchored.reset();
}

Arrivals::Progress Arrivals::advance(std::uint32_t sequence) {
  if (parts_.sequences[sequence].admit_options.plan_while_loading && !parts_.groups.empty()) {
    load_anchored_first(sequence);
  }
  const Progress progress = advance_history(sequence);
  return progress == Progress::Arrived && !parts_.groups.empty() ? advance_anchored(sequence) : progress;
}

Arrivals::Progress Arrivals::advance_history(std::uint32_t sequence) {
  SequenceSlot& slot = parts_.sequences[sequence];
  const PrefixTree& tree = parts_.tree;
  if (tree.first_host_run(slot.pin).is_none()) return Progress::Arrived;
  const auto start = [&] {
    (void)loads_.start({.home = parts_.history, .path = slot.pin, .wanted = {}, .key_space = slot.key_space});
    return tree.load_of(tree.first_host_run(slot.pin)) != 0;
  };
  bool is_started = start();
  // admit() did not know of pages that came from lower tiers, so nobody has made room for them.
  if (!is_started && parts_.arrivals[sequence].lower_from && parts_.history.writes_back()) {
    stores_.make_clean(paths_.pages_asked(slot), paths_.match_of(sequence));
    parts_.hand_over();
    is_started = start();
  }
  if (!is_started) return wait_for_room(sequence);
  parts_.arrivals[sequence].end_wait_for_room();
  return Progress::Waits;
}

// A load cannot start before a transfer is over, or before others give pages back. The sequence waits for that no
// longer than for a load. Those that run never wait for it: see let_go().
Arrivals::Progress Arrivals::wait_for_room(std::uint32_t sequence) {
  Arrival& arrival = parts_.arrivals[sequence];
  if (arrival.room_deadline == INT64_MAX) arrival.room_deadline = parts_.load_deadline();
  arrival.waits_for_room = true;
  const bool has_limit = arrival.room_deadline != INT64_MAX;
  if (parts_.sequences.has_running() && (has_limit || arrival.idle_wakes < kIdleWakesMax)) return Progress::Waits;
  // Transfers of lower tiers free no device page, and may never end: they count only when they fill the book.
  const bool makes_room = parts_.book.any(
      [](const Transfer& each) { return each.kind == TransferKind::Load || each.kind == TransferKind::Store; });
  return makes_room || parts_.book.is_full() ? Progress::Waits : Progress::Stuck;
}

// A sequence that may run ahead needs windows and states in its first layers, and the history's later layers come last:
// what hangs on history that is still on the host is loaded before that history, if there is room for all of it.
void Arrivals::load_anchored_first(std::uint32_t sequence) {
  SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  if (arrival.anchored || parts_.is_paused || parts_.tree.first_host_run(slot.pin).is_none()) return;
  const Found found = paths_.find(sequence);
  const PrefixTree::Match match = paths_.cut(found.match, found.in_memory);
  if (found.in_memory.tokens == 0 || match.host_page_count == 0) return;
  slot.pin = parts_.tree.pin_all(match);
  arrival.anchored.emplace().hit = found.in_memory;
  const TierPath path = paths_.path_of(slot.pin);
  bool has_room = true;
  hold_on_device(sequence, /*is_held=*/true);
  paths_.for_each_anchored_need(
      found.in_memory, slot.token_count, [&](const AnchoredGroup& group, const WindowColumns& columns) {
        has_room =
            has_room && group.count_loads(path, columns) <= group.pages.device.free_count() + group.evictable_pages();
      });
  hold_on_device(sequence, /*is_held=*/false);
  if (has_room) {
    load_anchored(sequence, TransferPriority::Waiting);
  } else {
    arrival.anchored.reset();  // advance_anchored() waits for room, once the history is there
  }
}

// A load that has failed, on one rank or on all, still has its runs until its turn comes, at some later apply(). A step
// that is planned on it would be lost for sure.
bool Arrivals::is_on_its_way(std::uint32_t load) const {
  const Transfer& transfer = parts_.book[load];
  return transfer.is_wanted() && transfer.state != Transfer::State::Queued && transfer.outcome == TransferOutcome::Ok;
}

bool Arrivals::try_run_ahead(std::uint32_t sequence) {
  SequenceSlot& slot = parts_.sequences[sequence];
  const Arrival& arrival = parts_.arrivals[sequence];
  if (slot.state != SequenceSlot::State::Loading || !slot.admit_options.plan_while_loading || slot.send) return false;
  const bool is_off = arrival.has_let_go || parts_.key_spaces[slot.key_space].is_retired;
  if (is_off || arrival.load_miss != MissReason::None) return false;
  const PrefixTree& tree = parts_.tree;
  // If others have computed all that was to be loaded, nothing is on its way, and the next apply() lets the sequence
  // run.
  bool has_loads = false;
  for (RunId run = slot.pin.run(); tree.is_on_host(run); run = tree.parent(run)) {
    if (tree.load_of(run) == 0 || !is_on_its_way(tree.load_of(run) - 1)) return false;
    has_loads = true;
  }
  bool has_all = parts_.groups.empty() || arrival.anchored;
  if (has_all && arrival.anchored) {
    const TierPath path = paths_.path_of(slot.pin);
    paths_.for_each_anchored_need(
        arrival.anchored->hit, slot.token_count, [&](const AnchoredGroup& group, const WindowColumns& columns) {
          for_each_column(columns, [&](std::uint32_t column) {
            const NamedPage anchor = path.at(column);
            const bool is_there = anchor.tier == Tier::Device && group.on_device.has(anchor.page);
            const std::uint32_t load = group.load_at(anchor);
            has_all = has_all && (is_there || (load != 0 && is_on_its_way(load - 1)));
            has_loads = has_loads || !is_there;
          });
        });
  }
  if (!has_all || !has_loads) return false;
  if (arrival.anchored) {  // the history that memory has may go on behind the hit
    const std::uint32_t tokens = arrival.anchored->hit.tokens;
    if (tokens == 0 || tokens % parts_.page_tokens != 0) return false;
    slot.pin = parts_.tree.pin_prefix(slot.pin, tokens / parts_.page_tokens);
  }
  parts_.client.run_ahead(sequence);
  return true;
}

void Arrivals::run_ahead() {
  for (const std::uint32_t i : parts_.sequences.arriving()) {
    if (try_run_ahead(i)) parts_.ready_sequences.push_back({i, parts_.sequences[i].generation});
  }
}

// apply() was called. Without a limit of time the sequence waits only as long as others do something: an engine that
// waits for it before it plans a step would wait for ever.
void Arrivals::note_idle_wake(std::uint32_t sequence) {
  Arrival& arrival = parts_.arrivals[sequence];
  const std::uint64_t next_step = parts_.fence.next_number();
  const bool is_idle = arrival.seen_step == next_step && !parts_.fence.has_steps() && parts_.book.live_count() == 0;
  arrival.idle_wakes = is_idle ? arrival.idle_wakes + 1 : 0;
  arrival.seen_step = next_step;
}

bool Arrivals::let_go() {
  bool has_let_go = false;
  for (const std::uint32_t i : parts_.sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    SequenceSlot& slot = parts_.sequences[i];
    if (slot.state != SequenceSlot::State::Loading || !arrival.waits_for_room || arrival.has_let_go) continue;
    slot.pin = parts_.tree.pin_prefix(slot.pin, 0);
    arrival.anchored.reset();
    arrival.has_let_go = true;
    has_let_go = true;
  }
  return has_let_go;
}

// A sequence that has let go of its path takes it again once there is room for all of it; what has left memory since is
// computed. Arrived: it has its path, or there is nothing to load any more, as load_miss then says.
Arrivals::Progress Arrivals::find_again(std::uint32_t sequence) {
  Arrival& arrival = parts_.arrivals[sequence];
  if (parts_.is_paused) return wait_for_room(sequence);  // nothing can be loaded now, as with a path that is held
  const Choice choice = choose(sequence, paths_.find(sequence));
  if (!choice.loads) {
    arrival.load_miss = choice.miss;
    return Progress::Arrived;
  }
  if (choice.new_pages > parts_.history.available_for_loads(choice.match)) {
    stores_.make_clean(choice.new_pages, choice.match);
    return wait_for_room(sequence);
  }
  arrival.has_let_go = false;
  start_loading(sequence, choice);
  return Progress::Arrived;
}

// Only apply() lets sequences run, so that engines hear of it there. This is called at the end of every step, and tries
// nothing before there is more room than there was.
void Arrivals::start_waiting_loads() {
  std::uint64_t room = parts_.history.available_pages();
  for (const auto& group : parts_.groups) room += group->has_pages ? group->available_pages() : 0;
  if (room <= std::exchange(seen_room_, room)) return;
  for (const std::uint32_t i : parts_.sequences.arriving()) {
    const Arrival& arrival = parts_.arrivals[i];
    const bool waits = parts_.sequences[i].state == SequenceSlot::State::Loading && arrival.waits_for_room;
    if (!waits || arrival.load_miss != MissReason::None) continue;
    if (arrival.has_let_go) (void)find_again(i);
    if (!arrival.has_let_go) (void)advance(i);
  }
}

// The history is on the device: starts loads of windows and states from the host, in several calls if transfers or
// pages run out.
Arrivals::Progress Arrivals::advance_anchored(std::uint32_t sequence) {
  Arrival& arrival = parts_.arrivals[sequence];
  if (!arrival.anchored) {
    const Progress progress = ask_anchored(sequence);
    if (progress != Progress::Arrived) return progress;
  }
  if (arrival.anchored->next_group < parts_.groups.size()) load_anchored(sequence, TransferPriority::Waiting);
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    const Transfer& load = parts_.book[i];
    if (load.is_tree_load() && load.pool > 0 && load.is_wanted() && loads_.is_awaited_by(i, sequence)) {
      arrival.end_wait_for_room();
      return Progress::Waits;
    }
  }
  return arrival.anchored->next_group < parts_.groups.size() ? wait_for_room(sequence) : Progress::Arrived;
}

// Finds out what a sequence needs of windows and states. Arrived: load_anchored() may begin at next_group. That is the
// end, so that nothing is loaded, if transfers are paused or the device will never have room for all of it.
Arrivals::Progress Arrivals::ask_anchored(std::uint32_t sequence) {
  SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  // Whole device pages only: Cache::Impl::start_running() looks for a partial page itself.
  PrefixTree::Match match = paths_.match_of(sequence);
  match = parts_.tree.cut_pages(match, match.page_count);
  Arrival::AnchoredNeed& need = arrival.anchored.emplace();
  need.hit = paths_.hit_of(slot, match, HitScope::DeviceAndHost);
  slot.pin = parts_.tree.pin_all(match);
  if (need.hit.tokens == 0 || parts_.is_paused) {
    if (parts_.is_paused && !is_complete(sequence)) arrival.load_miss = MissReason::LoadCancelled;
    need.next_group = static_cast<std::uint32_t>(parts_.groups.size());
    return Progress::Arrived;
  }
  // Room for all pages or none: a part would evict other pages, and be of no use.
  const TierPath path = paths_.path_of(slot.pin);
  bool has_room = true;
  bool will_have_room = true;
  hold_on_device(sequence, /*is_held=*/true);
  paths_.for_each_anchored_need(need.hit, slot.token_count,
                                [&](const AnchoredGroup& group, const WindowColumns& columns) {
                                  const std::uint32_t needed = group.count_loads(path, columns);
                                  const std::uint32_t free = group.pages.device.free_count();
                                  has_room = has_room && needed <= free + group.evictable_pages();
                                  will_have_room = will_have_room && needed <= free + group.pages_in_time();
                                });
  hold_on_device(sequence, /*is_held=*/false);
  if (has_room) return Progress::Arrived;
  if (will_have_room && parts_.book.live_count() > 0) {
    arrival.anchored.reset();  // asked again when the stores that read idle pages have ended
    return wait_for_room(sequence);
  }
  need.next_group = static_cast<std::uint32_t>(parts_.groups.size());
  return Progress::Arrived;
}

void Arrivals::hold_on_device(std::uint32_t sequence, bool is_held) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  paths_.hold(paths_.path_of(slot.pin), parts_.arrivals[sequence].anchored->hit, slot.token_count, Tier::Device,
              is_held);
}

// Starts loads of the windows and states that a sequence needs, from where the call before stopped. Each page is asked
// for once: where others evict a page meanwhile, its tokens are computed.
void Arrivals::load_anchored(std::uint32_t sequence, TransferPriority priority) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  Arrival::AnchoredNeed& need = *parts_.arrivals[sequence].anchored;
  hold_on_device(sequence, /*is_held=*/true);
  for (; need.next_group < parts_.groups.size(); ++need.next_group, need.next_column = 0) {
    AnchoredGroup& group = *parts_.groups[need.next_group];
    if (!group.has_host() || need.hit.is_rebuilt(need.next_group)) continue;
    const std::optional<std::uint32_t> rest =
        loads_.start({.home = group,
                      .path = slot.pin,
                      .wanted = {.columns = paths_.needed_columns(need.next_group, need.hit, slot.token_count),
                                 .from = need.next_column},
                      .key_space = slot.key_space,
                      .priority = priority});
    if (!rest) continue;
    need.next_column = *rest;
    break;
  }
  hold_on_device(sequence, /*is_held=*/false);
}

// Whether the device has all that a loading sequence asked for.
bool Arrivals::is_complete(std::uint32_t sequence) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  const std::optional<Arrival::AnchoredNeed>& need = parts_.arrivals[sequence].anchored;
  if (!parts_.tree.first_host_run(slot.pin).is_none()) return false;
  if (parts_.groups.empty()) return true;
  if (!need) return false;
  const TierPath path = paths_.path_of(slot.pin);
  bool has_all = true;
  paths_.for_each_anchored_need(
      need->hit, slot.token_count, [&](const AnchoredGroup& group, const WindowColumns& columns) {
        for_each_column(columns,
                        [&](std::uint32_t column) { has_all = has_all && group.on_device.has(path.at(column).page); });
      });
  return has_all;
}

void Arrivals::wake_sequences() {
  if (parts_.has_lower()) {
    expire_looking();
    look_further();
  }
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    if (sequences[i].state == SequenceSlot::State::RunningAhead) {
      const bool has_ended = arrival.load_miss != MissReason::None || !parts_.ahead.has_any(i);
      if (has_ended && !sequences[i].is_lost) parts_.client.run_sequence(i);
      continue;
    }
    if (sequences[i].state != SequenceSlot::State::Loading) continue;
    if (arrival.load_miss == MissReason::None && parts_.now >= std::min(arrival.deadline, arrival.room_deadline)) {
      arrival.load_miss = MissReason::LoadTimedOut;
    }
    if (arrival.waits_for_room) note_idle_wake(i);
    if (!arrival.has_let_go && is_complete(i)) {
      run(i, MissReason::None);  // everything is here, even if it came after the deadline
    } else if (arrival.load_miss != MissReason::None) {
      run(i, arrival.load_miss);
    } else {
      Progress progress = arrival.has_let_go ? find_again(i) : Progress::Arrived;
      if (!arrival.has_let_go) progress = advance(i);
      if (progress != Progress::Waits) run(i, progress == Progress::Stuck ? MissReason::LoadFailed : arrival.load_miss);
    }
  }
  if (parts_.loading_count > 0) loads_.cancel_unneeded();
  prefetch_further();
}

void Arrivals::run(std::uint32_t sequence, MissReason reason) {
  SequenceSlot& slot = parts_.sequences[sequence];
  QUIRE_CHECK(slot.is_loading(), "a sequence stops waiting that does not wait");
  parts_.arrivals[sequence].stop_looking();
  parts_.arrivals[sequence].load_miss = reason;
  const PrefixTree::Pin waited = std::move(slot.pin);  // keeps the path until run_sequence() has pinned it anew
  const SequenceId id{sequence, slot.generation};
  parts_.client.run_sequence(sequence);
  if (parts_.sequences.find(id)) parts_.ready_sequences.push_back(id);  // one of the cache's own has ended
}

void Arrivals::stop(std::uint32_t sequence, MissReason reason) {
  if (parts_.sequences[sequence].state == SequenceSlot::State::RunningAhead) {
    parts_.arrivals[sequence].load_miss = reason;
    if (!parts_.sequences[sequence].is_lost) parts_.client.run_sequence(sequence);
  } else {
    run(sequence, reason);
    parts_.ready_sequences.pop_back();  // the caller knows that the sequence runs
  }
  cancel_unneeded();
}

void Arrivals::cancel_unneeded() {
  loads_.cancel_unneeded();
  if (parts_.has_lower()) searches_.cancel_unneeded();
}

// Prefetches

void Arrivals::prefetch(std::uint32_t sequence, const PrefixTree::Match& match) {
  parts_.arrivals[sequence] = {};
  const Found found = paths_.find(parts_.sequences[sequence], match);
  if (may_look(sequence, found)) {
    const std::uint16_t lower = parts_.arrivals[sequence].lower;
    if (const std::optional<std::uint32_t> search = searches_.look_for(sequence, match, lower)) {
      parts_.searches[*search].is_prefetch = true;
      prefetch_later({.sequence = {sequence, parts_.sequences[sequence].generation},
                      .after = Prefetched::After::Search,
                      .search = *search,
                      .missing = parts_.searches[*search].missing});
    }
    parts_.hand_over();
  }
  prefetch_from_host(sequence, paths_.find(sequence), MakeRoom::Yes);
}

// What there is no room for in the list is not prefetched: admit() loads it.
void Arrivals::prefetch_later(const Prefetched& prefetched) {
  if (prefetches_.size() < prefetches_.capacity()) prefetches_.push_back(prefetched);
}

void Arrivals::prefetch_from_host(std::uint32_t sequence, const Found& found, MakeRoom makes_room) {
  SequenceSlot& slot = parts_.sequences[sequence];
  const SequenceId id{sequence, slot.generation};
  const Choice choice = choose(sequence, found);
  if (!choice.loads) return;
  if (choice.new_pages > parts_.history.available_for_loads(choice.match)) {
    if (makes_room == MakeRoom::No || !parts_.history.writes_back()) return;
    stores_.make_clean(choice.new_pages, choice.match);
    parts_.hand_over();
    prefetch_later({.sequence = id, .after = Prefetched::After::Room});
    return;
  }
  slot.pin = parts_.tree.pin_all(choice.match);
  (void)loads_.start({.home = parts_.history,
                      .path = slot.pin,
                      .wanted = {},
                      .key_space = slot.key_space,
                      .priority = TransferPriority::Background});
  const bool has_history = parts_.tree.first_host_run(slot.pin).is_none();
  if (!parts_.groups.empty() && has_history) {
    if (ask_anchored(sequence) == Progress::Arrived) load_anchored(sequence, TransferPriority::Background);
  } else if (!parts_.groups.empty()) {
    prefetch_later({.sequence = id, .after = Prefetched::After::History});
  }
  slot.pin.reset();
  parts_.arrivals[sequence] = {};
  parts_.hand_over();
}

bool Arrivals::is_awaited(const Prefetched& prefetched, const PrefixTree::Match& match) const {
  switch (prefetched.after) {
    case Prefetched::After::Search:
      return parts_.searches[prefetched.search].is_open() &&
             parts_.searches[prefetched.search].missing == prefetched.missing;
    case Prefetched::After::Room:
      return parts_.tree.leaving_pages() > 0;
    case Prefetched::After::History:
      return match.host_page_count > 0 && tree_loads(match);
  }
  return false;
}

// Loads what waited for a search, for room or for history.
void Arrivals::prefetch_further() {
  for (std::size_t i = 0; i < prefetches_.size();) {
    const Prefetched prefetched = prefetches_[i];
    const std::optional<std::uint32_t> sequence = parts_.sequences.find(prefetched.sequence);
    const bool waits = sequence && parts_.sequences[*sequence].state == SequenceSlot::State::Waiting;
    const PrefixTree::Match match = waits ? paths_.match_of(*sequence) : PrefixTree::Match{};
    if (waits && is_awaited(prefetched, match)) {
      ++i;
      continue;
    }
    prefetches_.erase(prefetches_.begin() + static_cast<std::ptrdiff_t>(i));
    // History that did not arrive is not tried again.
    if (!waits || (prefetched.after == Prefetched::After::History && match.host_page_count > 0)) continue;
    const MakeRoom makes_room = prefetched.after == Prefetched::After::Search ? MakeRoom::Yes : MakeRoom::No;
    prefetch_from_host(*sequence, paths_.find(parts_.sequences[*sequence], match), makes_room);
  }
}

// Whether the first host run of a match is in a load.
bool Arrivals::tree_loads(const PrefixTree::Match& match) const {
  RunId run = match.host_run;
  while (parts_.tree.is_on_host(parts_.tree.parent(run))) run = parts_.tree.parent(run);
  return parts_.tree.load_of(run) != 0;
}

}  // namespace quire
