// SPDX-License-Identifier: Apache-2.0
#include "tiers/arrivals.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "layout/text.h"

namespace quire {

// Admission

Result<std::optional<WaitingAdmission>> Arrivals::start(std::uint32_t sequence) {
  SequenceSlot& slot = parts_.sequences[sequence];
  parts_.arrivals[sequence] = {};
  if (!parts_.has_host()) return std::nullopt;
  Arrival& arrival = parts_.arrivals[sequence];
  PrefixTree::Match match = paths_.match_of(sequence);
  const Hit on_device = paths_.hit_of(slot, match, HitScope::Device);
  const auto waiting = [&](const Hit& in_memory, const Miss& miss) {
    parts_.hand_over();
    return WaitingAdmission{.on_device = on_device, .in_memory = in_memory, .miss = miss};
  };
  arrival.host_from = on_device.start() / parts_.page_tokens * parts_.page_tokens;
  if (slot.prefetch != Prefetch::BestEffort && may_look(sequence, match)) {
    const Hit in_memory = paths_.hit_of(slot, match, HitScope::DeviceAndHost);
    set_deadline(sequence);
    if (start_looking(sequence, match)) return waiting(in_memory, {});
    match = paths_.match_of(sequence);
  }
  Choice choice = choose(sequence, match);
  if (!choice.loads || slot.prefetch == Prefetch::BestEffort) {
    arrival.load_miss = choice.loads ? MissReason::LoadTimedOut : choice.miss;
    return std::nullopt;
  }
  if (choice.new_pages > parts_.history.available_for_loads(choice.match)) {
    stores_.make_clean(choice.new_pages, choice.match);
    parts_.hand_over();
    choice = choose(sequence, paths_.match_of(sequence));
    if (!choice.loads) {  // the host had to give up those pages for the copies
      arrival.load_miss = choice.miss;
      return std::nullopt;
    }
  }
  QUIRE_TRY(check_room(sequence, choice));
  set_deadline(sequence);
  parts_.sequences.set_state(sequence, SequenceSlot::State::Loading);
  const Miss miss = find_miss(sequence, choice.match);  // before the tree changes
  start_loading(sequence, choice);
  const Progress progress = advance(sequence);
  if (progress == Progress::Waits || (progress == Progress::Stuck && parts_.book.live_count() > 0)) {
    return waiting(choice.hit, miss);
  }
  // Moves are still to be made in the pages that a load would take, and nothing is on its way; or nothing was missing.
  if (progress == Progress::Stuck) arrival.load_miss = MissReason::LoadFailed;
  return std::nullopt;
}

void Arrivals::set_deadline(std::uint32_t sequence) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  parts_.arrivals[sequence].deadline =
      slot.prefetch == Prefetch::Timeout ? parts_.time_after(slot.load_timeout_ns) : INT64_MAX;
}

// What the host has for a sequence, and whether loading it takes less time than computing it.
Arrivals::Choice Arrivals::choose(std::uint32_t sequence, const PrefixTree::Match& match) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  // Whole pages only: no load brings a part of a page.
  const Paths::HitQuery whole_pages{
      .token_count = slot.token_count, .allows_inexact = slot.allows_inexact, .allows_partial = false};
  Choice choice{.hit = paths_.find_hit(match, whole_pages, HitScope::DeviceAndHost)};
  const std::uint32_t device_tokens = paths_.hit_of(slot, match, HitScope::Device).start();
  if (choice.hit.start() <= device_tokens) return choice;
  if (parts_.is_paused || !parts_.is_awake()) return {.miss = MissReason::LoadCancelled};
  if (slot.tier_max == Tier::Device) return {.miss = MissReason::NotAsked};
  choice.match = paths_.cut(match, choice.hit);
  std::uint32_t pages_in_run = choice.match.host_pages_in_run;
  const PrefixTree& tree = parts_.tree;
  for (RunId run = choice.match.host_run; choice.match.host_page_count > 0 && tree.is_on_host(run);
       run = tree.parent(run)) {
    if (tree.load_of(run) == 0) choice.new_pages += pages_in_run;
    pages_in_run = static_cast<std::uint32_t>(tree.pages(tree.parent(run)).size());
  }
  if (is_faster_to_compute(choice, choice.hit.start() - device_tokens, slot.token_count)) {
    return {.miss = MissReason::RecomputeCheaper};
  }
  choice.loads = true;
  return choice;
}

bool Arrivals::is_faster_to_compute(const Choice& choice, std::uint32_t gained_tokens, std::uint32_t token_count) {
  const TimeNs compute_ns_per_token = parts_.config.host.compute_ns_per_token;
  if (compute_ns_per_token == 0 || parts_.load_rate.bytes_per_ns == 0) return false;
  std::uint64_t bytes = parts_.loading_bytes + (choice.new_pages * parts_.history.pages.page_bytes);
  if (!paths_.is_plain()) {
    const TierPath path = paths_.path_of(choice.match);
    paths_.for_each_anchored_need(choice.hit, token_count,
                                  [&](const AnchoredGroup& group, const WindowColumns& columns) {
                                    bytes += group.count_loads(path, columns) * group.pages.page_bytes;
                                  });
  }
  const double load_ns = static_cast<double>(bytes) / parts_.load_rate.bytes_per_ns;
  return load_ns > static_cast<double>(gained_tokens) * static_cast<double>(compute_ns_per_token);
}

Status Arrivals::check_room(std::uint32_t sequence, const Choice& choice) const {
  const std::uint32_t available = parts_.history.available_for_loads(choice.match);
  if (choice.new_pages <= available) return {};
  return fail(ErrorCode::Unavailable,
              "sequence " + std::to_string(sequence) + " has " + with_separators(choice.new_pages) +
                  " pages to load from the host; " + with_separators(available) + " device pages are available, and " +
                  with_separators(parts_.tree.leaving_pages()) + " will be when apply() hears that they are copied");
}

// Looking

bool Arrivals::may_look(std::uint32_t sequence, const PrefixTree::Match& match) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  if (!parts_.has_lower() || parts_.is_paused || !parts_.is_awake()) return false;
  const std::uint32_t found = match.page_count + match.host_page_count;
  if (found > arrival.looked_pages)
    arrival.next_lower = 0;  // memory has more than was searched for: ask all tiers again
  while (arrival.next_lower < parts_.lowers.size()) {
    const Lower& lower = parts_.lowers[arrival.next_lower];
    if (!lower.has_failed && slot.tier_max >= lower.settings.tier) break;
    ++arrival.next_lower;
  }
  if (arrival.next_lower >= parts_.lowers.size()) return false;
  return found < paths_.pages_asked(slot) || paths_.lacks_anchored(slot, match);
}

// Makes an admitted sequence wait for what a lower tier may have, or for its turn to look. False: it does not.
bool Arrivals::start_looking(std::uint32_t sequence, const PrefixTree::Match& match) {
  SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  const std::uint32_t in_memory = paths_.hit_of(slot, match, HitScope::DeviceAndHost).start();
  const std::optional<std::uint32_t> search =
      searches_.look_for(sequence, match, static_cast<std::uint16_t>(arrival.next_lower));
  if (!search && parts_.book.live_count() == 0) {  // no transfer lives whose end could give the sequence its turn
    arrival.stop_asking();
    arrival.lower_miss = MissReason::LoadFailed;
    return false;
  }
  const bool waited = slot.state == SequenceSlot::State::Looking && arrival.search == Transfer::kNone;
  if (!search && !waited) {
    arrival.turn = ++last_turn_;
    arrival.turn_deadline = parts_.load_deadline();
  }
  if (search) arrival.lower_from = std::min(arrival.lower_from, in_memory / parts_.page_tokens * parts_.page_tokens);
  parts_.sequences.set_state(sequence, SequenceSlot::State::Looking);
  arrival.search = search.value_or(Transfer::kNone);
  slot.pin = search ? parts_.tree.clone(parts_.searches[*search].pin) : parts_.tree.pin_all(match);
  slot.soft_pin.reset();
  return true;
}

// The search that a sequence waited for is over: it asks the next lower tier, loads from the host, or runs.
void Arrivals::stop_looking(std::uint32_t sequence, MissReason miss) {
  SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  if (miss != MissReason::None) arrival.lower_miss = miss;
  PrefixTree::Pin waited = std::move(slot.pin);
  const PrefixTree::Match match = paths_.match_of(sequence);
  if (miss == MissReason::None && may_look(sequence, match) && start_looking(sequence, match)) return;
  const Choice choice = choose(sequence, match);
  if (!choice.loads) {
    slot.pin = std::move(waited);
    run(sequence, choice.miss);
    return;
  }
  parts_.sequences.set_state(sequence, SequenceSlot::State::Loading);
  start_loading(sequence, choice);  // wake_sequences() starts the loads
}

// The sequence that has waited longest of those with a later turn than `turn`, or capacity().
std::uint32_t Arrivals::next_waiting_for_turn(std::uint64_t turn) const {
  const SequenceTable& sequences = parts_.sequences;
  std::uint32_t next = sequences.capacity();
  for (const std::uint32_t i : sequences.arriving()) {
    const Arrival& arrival = parts_.arrivals[i];
    const bool waits =
        sequences[i].state == SequenceSlot::State::Looking && arrival.search == Transfer::kNone && arrival.turn > turn;
    if (waits && (next == sequences.capacity() || arrival.turn < parts_.arrivals[next].turn)) next = i;
  }
  return next;
}

void Arrivals::start_waiting_searches() {
  std::uint32_t next = next_waiting_for_turn(0);
  while (next < parts_.sequences.capacity() && parts_.searches.find_free()) {
    const std::uint64_t turn = parts_.arrivals[next].turn;
    const PrefixTree::Match match = paths_.match_of(next);
    if (may_look(next, match)) (void)start_looking(next, match);
    next = next_waiting_for_turn(turn);
  }
}

void Arrivals::finish_search(std::uint32_t search, const Search& ended) {
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    if (sequences[i].state != SequenceSlot::State::Looking || arrival.search != search) continue;
    arrival.next_lower = ended.lower + 1U;
    // One that joined may want other pages behind the first.
    const bool is_owner = ended.owner == SequenceId{i, sequences[i].generation};
    arrival.looked_pages = ended.first_page + (is_owner ? ended.found_pages : 0);
    arrival.limiting_group = ended.limiting_group;
    // What one tier could not bring, the next may have.
    const bool asks_next = ended.miss == MissReason::LoadFailed && arrival.next_lower < parts_.lowers.size();
    if (asks_next) {
      arrival.lower_miss = ended.miss;
      arrival.looked_pages = UINT32_MAX;
    }
    stop_looking(i, asks_next ? MissReason::None : ended.miss);
  }
}

void Arrivals::abandon_search(std::uint32_t search, MissReason miss) {
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    if (sequences[i].state != SequenceSlot::State::Looking || arrival.search != search) continue;
    arrival.stop_asking();
    stop_looking(i, miss);
  }
}

bool Arrivals::is_search_awaited(std::uint32_t search) const {
  const SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    if (sequences[i].state == SequenceSlot::State::Looking && parts_.arrivals[i].search == search) return true;
  }
  return false;
}

// Sequences that have waited long enough take what there is.
void Arrivals::expire_looking() {
  searches_.expire();
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    const bool waits_for_turn = arrival.search == Transfer::kNone;
    const TimeNs deadline = waits_for_turn ? std::min(arrival.deadline, arrival.turn_deadline) : arrival.deadline;
    if (sequences[i].state != SequenceSlot::State::Looking || parts_.now < deadline) continue;
    arrival.stop_asking();
    stop_looking(i, MissReason::LoadTimedOut);
  }
  searches_.cancel_unneeded();
}

// After something has ended: searches that found more than there were transfers for, and sequences that wait for their
// turn.
void Arrivals::look_further() {
  searches_.read_more();
  start_waiting_searches();
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    const Arrival& arrival = parts_.arrivals[i];
    if (sequences[i].state != SequenceSlot::State::Looking || arrival.search != Transfer::kNone) continue;
    // A sequence goes on waiting if it may look at all, and if something is left to wait for.
    if (parts_.book.live_count() == 0) {
      stop_looking(i, MissReason::LoadFailed);
    } else if (!may_look(i, paths_.match_of(i))) {
      const bool is_off = parts_.is_paused || std::ranges::all_of(parts_.lowers, &Lower::has_failed);
      stop_looking(i, is_off ? MissReason::LoadCancelled : MissReason::None);
    }
  }
}

// Loading

void Arrivals::start_loading(std::uint32_t sequence, const Choice& choice) {
  SequenceSlot& slot = parts_.sequences[sequence];
  QUIRE_CHECK(choice.loads && slot.state == SequenceSlot::State::Loading, "nothing is to be loaded");
  Arrival& arrival = parts_.arrivals[sequence];
  slot.pin = parts_.tree.pin_all(choice.match);
  slot.soft_pin.reset();
  arrival.has_asked_anchored = false;
}

Arrivals::Progress Arrivals::advance(std::uint32_t sequence) {
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
  // Nobody made room for pages that came from below: admit() did not know of them.
  if (!is_started && parts_.arrivals[sequence].lower_from != Arrival::kNone && parts_.history.writes_back()) {
    stores_.make_clean(paths_.pages_asked(slot), paths_.match_of(sequence));
    parts_.hand_over();
    is_started = start();
  }
  if (!is_started) return wait_for_room(sequence);
  parts_.arrivals[sequence].room_deadline = INT64_MAX;
  return Progress::Waits;
}

// A load cannot start before a transfer is over. The sequence waits for that no longer than for a load.
Arrivals::Progress Arrivals::wait_for_room(std::uint32_t sequence) {
  Arrival& arrival = parts_.arrivals[sequence];
  if (arrival.room_deadline == INT64_MAX) arrival.room_deadline = parts_.load_deadline();
  // What lower tiers do makes no room, and may never end.
  const bool makes_room = parts_.book.any(
      [](const Transfer& each) { return each.kind == TransferKind::Load || each.kind == TransferKind::Store; });
  return makes_room || parts_.book.is_full() ? Progress::Waits : Progress::Stuck;
}

// The history has arrived: what windows and states have on the host comes next, in pieces if need be.
Arrivals::Progress Arrivals::advance_anchored(std::uint32_t sequence) {
  Arrival& arrival = parts_.arrivals[sequence];
  if (!arrival.has_asked_anchored) {
    const Progress progress = ask_anchored(sequence);
    if (progress != Progress::Arrived) return progress;
  }
  if (arrival.next_group < parts_.groups.size()) load_anchored(sequence, TransferPriority::Waiting);
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    const Transfer& load = parts_.book[i];
    if (load.is_tree_load() && load.pool > 0 && load.is_wanted() && loads_.is_awaited_by(i, sequence)) {
      arrival.room_deadline = INT64_MAX;
      return Progress::Waits;
    }
  }
  return arrival.next_group < parts_.groups.size() ? wait_for_room(sequence) : Progress::Arrived;
}

// What a sequence needs of windows and states. Arrived: there is nothing to wait for before load_anchored(), which
// finds nothing to start if transfers are paused or the device has no room for all of it.
Arrivals::Progress Arrivals::ask_anchored(std::uint32_t sequence) {
  SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  // Whole device pages only: start_running() looks for a partial page itself.
  PrefixTree::Match match = paths_.match_of(sequence);
  match = parts_.tree.cut_pages(match, match.page_count);
  arrival.hit = paths_.hit_of(slot, match, HitScope::DeviceAndHost);
  arrival.has_asked_anchored = true;
  arrival.next_group = 0;
  arrival.next_column = 0;
  slot.pin = parts_.tree.pin_all(match);
  if (arrival.hit.tokens == 0 || parts_.is_paused) {
    if (parts_.is_paused && !is_complete(sequence)) arrival.load_miss = MissReason::LoadCancelled;
    arrival.next_group = static_cast<std::uint32_t>(parts_.groups.size());
    return Progress::Arrived;
  }
  // There must be room for all of it, or what is evicted for it goes for nothing.
  const TierPath path = paths_.path_of(slot.pin);
  bool has_room = true;
  bool will_have_room = true;
  hold_on_device(sequence, /*is_held=*/true);
  paths_.for_each_anchored_need(arrival.hit, slot.token_count,
                                [&](const AnchoredGroup& group, const WindowColumns& columns) {
                                  const std::uint32_t needed = group.count_loads(path, columns);
                                  const std::uint32_t free = group.pages.device.free_count();
                                  has_room = has_room && needed <= free + group.evictable_pages();
                                  will_have_room = will_have_room && needed <= free + group.pages_in_time();
                                });
  hold_on_device(sequence, /*is_held=*/false);
  if (has_room) return Progress::Arrived;
  if (will_have_room && parts_.book.live_count() > 0) {
    arrival.has_asked_anchored = false;  // stores that read the pages end first
    return wait_for_room(sequence);
  }
  arrival.next_group = static_cast<std::uint32_t>(parts_.groups.size());
  return Progress::Arrived;
}

// Pins those pages of anchored groups that a sequence needs and the device has, so that loads of the other pages do not
// evict them.
void Arrivals::hold_on_device(std::uint32_t sequence, bool is_held) {
  const Arrival& arrival = parts_.arrivals[sequence];
  const TierPath path = paths_.path_of(parts_.sequences[sequence].pin);
  for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
    AnchoredGroup& group = *parts_.groups[i];
    if (!group.has_pages || arrival.hit.is_rebuilt(i)) continue;
    group.hold(path, paths_.needed_columns(i, arrival.hit, parts_.sequences[sequence].token_count), Tier::Device,
               is_held);
  }
}

// Starts loads of what a sequence needs of windows and states, from where it stopped before. Each page is asked for
// once: pages that others evict meanwhile are computed.
void Arrivals::load_anchored(std::uint32_t sequence, TransferPriority priority) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  hold_on_device(sequence, /*is_held=*/true);
  for (; arrival.next_group < parts_.groups.size(); ++arrival.next_group, arrival.next_column = 0) {
    AnchoredGroup& group = *parts_.groups[arrival.next_group];
    if (!group.has_host() || arrival.hit.is_rebuilt(arrival.next_group)) continue;
    const std::optional<std::uint32_t> rest =
        loads_.start({.home = group,
                      .path = slot.pin,
                      .wanted = {.columns = paths_.needed_columns(arrival.next_group, arrival.hit, slot.token_count),
                                 .from = arrival.next_column},
                      .key_space = slot.key_space,
                      .priority = priority});
    if (!rest) continue;
    arrival.next_column = *rest;
    break;
  }
  hold_on_device(sequence, /*is_held=*/false);
}

// Whether the device has all that a loading sequence asked for.
bool Arrivals::is_complete(std::uint32_t sequence) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  const Arrival& arrival = parts_.arrivals[sequence];
  if (!parts_.tree.first_host_run(slot.pin).is_none()) return false;
  if (parts_.groups.empty()) return true;
  if (!arrival.has_asked_anchored) return false;
  const TierPath path = paths_.path_of(slot.pin);
  bool has_all = true;
  paths_.for_each_anchored_need(
      arrival.hit, slot.token_count, [&](const AnchoredGroup& group, const WindowColumns& columns) {
        for_each_column(columns,
                        [&](std::uint32_t column) { has_all = has_all && group.on_device.has(path.at(column).page); });
      });
  return has_all;
}

void Arrivals::wake_sequences() {
  loads_.expire();
  loads_.finish_arrived();
  if (parts_.has_lower()) {
    expire_looking();
    look_further();
  }
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    if (sequences[i].state != SequenceSlot::State::Loading) continue;
    Arrival& arrival = parts_.arrivals[i];
    if (arrival.load_miss == MissReason::None && parts_.now >= std::min(arrival.deadline, arrival.room_deadline)) {
      arrival.load_miss = MissReason::LoadTimedOut;
    }
    if (is_complete(i)) {
      run(i, MissReason::None);  // late or not
    } else if (arrival.load_miss != MissReason::None) {
      run(i, arrival.load_miss);
    } else if (const Progress progress = advance(i); progress != Progress::Waits) {
      run(i, progress == Progress::Stuck ? MissReason::LoadFailed : arrival.load_miss);
    }
  }
  loads_.cancel_unneeded();
  prefetch_further();
}

void Arrivals::run(std::uint32_t sequence, MissReason reason) {
  SequenceSlot& slot = parts_.sequences[sequence];
  QUIRE_CHECK(slot.is_loading(), "a sequence stops waiting that does not wait");
  parts_.arrivals[sequence].load_miss = reason;
  const PrefixTree::Pin waited = std::move(slot.pin);  // keeps the path until run_sequence() has pinned it anew
  parts_.client.run_sequence(sequence);
  parts_.ready_sequences.push_back({sequence, slot.generation});
}

void Arrivals::stop(std::uint32_t sequence, MissReason reason) {
  run(sequence, reason);
  parts_.ready_sequences.pop_back();  // the caller knows
  cancel_unneeded();
}

void Arrivals::cancel_unneeded() {
  loads_.cancel_unneeded();
  if (parts_.has_lower()) searches_.cancel_unneeded();
}

// Prefetches

void Arrivals::prefetch(std::uint32_t sequence, const PrefixTree::Match& match) {
  parts_.arrivals[sequence] = {};
  if (!may_look(sequence, match)) {
    prefetch_from_host(sequence, match);
    return;
  }
  const auto lower = static_cast<std::uint16_t>(parts_.arrivals[sequence].next_lower);
  if (const std::optional<std::uint32_t> search = searches_.look_for(sequence, match, lower)) {
    parts_.searches[*search].is_prefetch = true;
  }
  parts_.hand_over();
  prefetch_from_host(sequence, paths_.match_of(sequence));
}

void Arrivals::prefetch_from_host(std::uint32_t sequence, const PrefixTree::Match& match) {
  SequenceSlot& slot = parts_.sequences[sequence];
  const Choice choice = choose(sequence, match);
  if (!choice.loads || choice.new_pages > parts_.history.available_for_loads(choice.match)) return;
  slot.pin = parts_.tree.pin_all(choice.match);
  (void)loads_.start({.home = parts_.history,
                      .path = slot.pin,
                      .wanted = {},
                      .key_space = slot.key_space,
                      .priority = TransferPriority::Background});
  const bool has_history = parts_.tree.first_host_run(slot.pin).is_none();
  if (!parts_.groups.empty() && has_history) {
    if (ask_anchored(sequence) == Progress::Arrived) load_anchored(sequence, TransferPriority::Background);
  } else if (!parts_.groups.empty() && prefetches_.size() < prefetches_.capacity()) {
    prefetches_.push_back({sequence, slot.generation});  // windows and states follow
  }
  slot.pin.reset();
  parts_.arrivals[sequence] = {};
  parts_.hand_over();
}

// History that was prefetched has arrived: windows and states follow.
void Arrivals::prefetch_further() {
  for (std::size_t i = 0; i < prefetches_.size();) {
    const std::optional<std::uint32_t> sequence = parts_.sequences.find(prefetches_[i]);
    const bool waits = sequence && parts_.sequences[*sequence].state == SequenceSlot::State::Waiting;
    const PrefixTree::Match match = waits ? paths_.match_of(*sequence) : PrefixTree::Match{};
    if (waits && match.host_page_count > 0 && tree_loads(match)) {
      ++i;  // still on its way
      continue;
    }
    prefetches_.erase(prefetches_.begin() + static_cast<std::ptrdiff_t>(i));
    if (waits && match.host_page_count == 0) prefetch_from_host(*sequence, match);
  }
}

// Whether the first host run of a match is in a load.
bool Arrivals::tree_loads(const PrefixTree::Match& match) const {
  RunId run = match.host_run;
  while (parts_.tree.is_on_host(parts_.tree.parent(run))) run = parts_.tree.parent(run);
  return parts_.tree.load_of(run) != 0;
}

}  // namespace quire
