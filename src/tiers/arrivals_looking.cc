// SPDX-License-Identifier: Apache-2.0
//
// Arrivals of sequences that look in lower tiers for what memory lacks: which tier they ask next, how long they wait,
// and what they have then.
#include <algorithm>
#include <utility>

#include "tiers/arrivals.h"

namespace quire {

namespace {

// So many requests leave a tier unasked, because its answers take longer than computing, and then one asks all the
// same: what was measured once may not hold, and only asking measures again.
constexpr std::uint32_t kUnaskedMax = 32;
// By so much another lower tier has to be faster before it is asked first.
constexpr double kOrderMargin = 1.25;

}  // namespace

bool Arrivals::may_look(std::uint32_t sequence, const Found& found) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  if (!parts_.has_lower() || parts_.is_paused || !parts_.is_awake()) return false;
  if (found.page_count() > arrival.looked_pages) {
    arrival.asked = 0;  // memory has more than was searched for: ask all tiers again
  }
  if (found.page_count() >= paths_.pages_asked(slot) && !paths_.lacks_anchored(slot, found)) return false;
  const std::optional<std::uint16_t> lower = choose_lower(sequence, found);
  if (lower) arrival.lower = *lower;
  return lower.has_value();
}

// Of the lower tiers that were not asked, the one that is expected to bring what is missing first. As long as one of
// two is not measured, the one that was added first goes first; and the one that went first the last time goes on doing
// so unless another is faster by some margin.
std::optional<std::uint16_t> Arrivals::choose_lower(std::uint32_t sequence, const Found& found) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  const std::uint32_t pages_asked = paths_.pages_asked(slot);
  const std::uint64_t bytes =
      (pages_asked - std::min(pages_asked, found.page_count())) * parts_.history.pages.page_bytes;
  const auto score = [&](std::uint16_t i) {
    return parts_.lowers[i].expected_ns(bytes) * (i == parts_.first_lower ? 1 : kOrderMargin);
  };
  std::optional<std::uint16_t> best;
  const bool is_first = arrival.asked == 0;
  for (std::uint16_t i = 0; i < parts_.lowers.size(); ++i) {
    const Lower& lower = parts_.lowers[i];
    const bool is_asked = (arrival.asked >> i & 1U) != 0;
    if (is_asked || lower.has_failed || !lower.settings.is_read()) continue;
    if (slot.admit_options.tier_max < lower.settings.tier) continue;
    if (is_slower_than_computing(i, slot, found)) {
      arrival.asked = static_cast<std::uint8_t>(arrival.asked | 1U << i);
      if (arrival.lower_miss == MissReason::None) arrival.lower_miss = MissReason::RecomputeCheaper;
      continue;
    }
    const bool is_sooner = best && lower.is_measured() && parts_.lowers[*best].is_measured() && score(i) < score(*best);
    if (!best || is_sooner) best = i;
  }
  if (best && is_first) parts_.first_lower = *best;
  return best;
}

// Whether the tier's answer alone takes longer than computing all that it could have.
bool Arrivals::is_slower_than_computing(std::uint16_t lower_index, const SequenceSlot& slot, const Found& found) {
  Lower& lower = parts_.lowers[lower_index];
  const double compute_ns = parts_.compute_time(missing_tokens(slot, found));
  if (compute_ns == 0 || slot.admit_options.is_for_host || lower.question_time.ns <= compute_ns) return false;
  if (++lower.unasked_count < kUnaskedMax) return true;
  lower.unasked_count = 0;
  return false;
}

// Tokens that a sequence would compute of those that lower tiers may have.
std::uint32_t Arrivals::missing_tokens(const SequenceSlot& slot, const Found& found) const {
  const std::uint32_t asked = paths_.pages_asked(slot) * parts_.page_tokens;
  return asked - std::min(asked, found.in_memory.start());
}

// All tiers together have as long as computing takes. Where all of them are of this machine, each has load_timeout_ns.
void Arrivals::set_look_deadline(std::uint32_t sequence, const Found& found) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  if (arrival.look_deadline || std::ranges::all_of(parts_.lowers, &Lower::answers_at_once)) return;
  const bool computes = !slot.admit_options.is_for_host;
  arrival.look_deadline =
      std::min(parts_.load_deadline(), computes ? parts_.computed_by(missing_tokens(slot, found)) : INT64_MAX);
}

TimeNs Arrivals::search_deadline(std::uint32_t sequence) const {
  const Arrival& arrival = parts_.arrivals[sequence];
  if (!arrival.look_deadline) return parts_.load_deadline();
  return std::min({parts_.load_deadline(), arrival.deadline, *arrival.look_deadline});
}

// Makes an admitted sequence wait for what a lower tier may have, or for its turn to look. False: it can do neither,
// and goes on without lower tiers.
bool Arrivals::start_looking(std::uint32_t sequence, const Found& found) {
  SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  set_look_deadline(sequence, found);
  const std::optional<std::uint32_t> search = searches_.look_for(sequence, found.match, arrival.lower);
  if (!search && parts_.book.live_count() == 0) {  // no transfer lives whose end could give the sequence its turn
    arrival.stop_asking();
    arrival.lower_miss = MissReason::LoadFailed;
    return false;
  }
  if (search) {
    const std::uint32_t from = found.in_memory.start() / parts_.page_tokens * parts_.page_tokens;
    arrival.lower_from = std::min(arrival.lower_from.value_or(from), from);
    arrival.looked_from = from;
    arrival.brought_tokens = 0;
    arrival.turn.reset();
  } else if (!arrival.turn) {
    arrival.turn = {.number = ++last_turn_, .deadline = parts_.load_deadline()};
  }
  parts_.sequences.set_state(sequence, SequenceSlot::State::Looking);
  arrival.search = search;
  slot.pin = search ? parts_.tree.clone(parts_.searches[*search].pin) : parts_.tree.pin_all(found.match);
  slot.soft_pin.reset();
  return true;
}

// A sequence no longer waits for its search or its turn: it asks the next lower tier, loads from the host, or runs.
void Arrivals::stop_looking(std::uint32_t sequence, MissReason miss) {
  SequenceSlot& slot = parts_.sequences[sequence];
  Arrival& arrival = parts_.arrivals[sequence];
  const bool has_looked = arrival.search.has_value();
  arrival.stop_looking();
  if (miss != MissReason::None) arrival.lower_miss = miss;
  PrefixTree::Pin waited = std::move(slot.pin);
  const Found found = paths_.find(sequence);
  if (has_looked) {
    // What others have computed meanwhile is not the tier's. The sequence may use less than was brought, where its path
    // parts from that of the search.
    const std::uint32_t gained = found.in_memory.start() - std::min(found.in_memory.start(), arrival.looked_from);
    const bool is_remote = parts_.lowers[arrival.lower].settings.tier == Tier::Remote;
    (is_remote ? arrival.remote_gain : arrival.disk_gain) += std::min(gained, arrival.brought_tokens);
  }
  if (miss == MissReason::None && may_look(sequence, found) && start_looking(sequence, found)) return;
  const Choice choice = choose(sequence, found);
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
    const std::optional<Arrival::Turn>& waited = parts_.arrivals[i].turn;
    if (!waited || waited->number <= turn) continue;
    if (next == sequences.capacity() || waited->number < parts_.arrivals[next].turn->number) next = i;
  }
  return next;
}

void Arrivals::start_waiting_searches() {
  std::uint32_t next = next_waiting_for_turn(0);
  while (next < parts_.sequences.capacity() && parts_.searches.find_free()) {
    const std::uint64_t turn = parts_.arrivals[next].turn->number;
    const Found found = paths_.find(next);
    if (may_look(next, found)) (void)start_looking(next, found);
    next = next_waiting_for_turn(turn);
  }
}

void Arrivals::finish_search(std::uint32_t search, const Search& ended) {
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    if (arrival.search != search) continue;
    arrival.asked = static_cast<std::uint8_t>(arrival.asked | 1U << ended.lower);
    // A sequence that joined somebody else's search shares the first missing page with it, but perhaps no more.
    const bool is_owner = ended.owner == SequenceId{i, sequences[i].generation};
    arrival.looked_pages = ended.first_page + (is_owner ? ended.found_pages : 0);
    arrival.limiting_group = ended.limiting_group;
    // Another tier may have the pages that this one could not bring.
    const bool is_of_tier = ended.miss == MissReason::LoadFailed || ended.miss == MissReason::LoadTimedOut;
    const bool asks_next = is_of_tier && has_unasked(arrival);
    if (asks_next) {
      arrival.lower_miss = ended.miss;
      arrival.looked_pages = UINT32_MAX;
    }
    stop_looking(i, asks_next ? MissReason::None : ended.miss);
  }
}

bool Arrivals::has_unasked(const Arrival& arrival) const {
  return arrival.asked != (1U << parts_.lowers.size()) - 1 && arrival.asked != UINT8_MAX;
}

void Arrivals::abandon_search(std::uint32_t search, MissReason miss, bool asks_next) {
  for (const std::uint32_t i : parts_.sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    if (arrival.search != search) continue;
    arrival.asked = static_cast<std::uint8_t>(arrival.asked | 1U << arrival.lower);
    if (asks_next && has_unasked(arrival)) {
      arrival.lower_miss = miss;
      arrival.looked_pages = UINT32_MAX;
      stop_looking(i, MissReason::None);
    } else {
      arrival.stop_asking();
      stop_looking(i, miss);
    }
  }
}

void Arrivals::note_brought(std::uint32_t search, std::uint32_t token_count) {
  for (const std::uint32_t i : parts_.sequences.arriving()) {
    if (parts_.arrivals[i].search == search) parts_.arrivals[i].brought_tokens += token_count;
  }
}

bool Arrivals::is_search_awaited(std::uint32_t search) const {
  for (const std::uint32_t i : parts_.sequences.arriving()) {
    if (parts_.arrivals[i].search == search) return true;
  }
  return false;
}

// Sequences that have waited long enough stop looking.
void Arrivals::expire_looking() {
  searches_.expire();
  SequenceTable& sequences = parts_.sequences;
  for (const std::uint32_t i : sequences.arriving()) {
    Arrival& arrival = parts_.arrivals[i];
    const TimeNs deadline = std::min({arrival.deadline, arrival.look_deadline.value_or(INT64_MAX),
                                      arrival.turn ? arrival.turn->deadline : INT64_MAX});
    if (sequences[i].state != SequenceSlot::State::Looking || parts_.now < deadline) continue;
    arrival.stop_asking();
    stop_looking(i, MissReason::LoadTimedOut);
  }
  searches_.cancel_unneeded();
}

// After transfers have ended: starts more loads of searches that lacked transfers, and lets sequences look whose turn
// has come. Sequences that wait for a turn in vain stop looking.
void Arrivals::look_further() {
  searches_.read_more();
  start_waiting_searches();
  for (const std::uint32_t i : parts_.sequences.arriving()) {
    if (!parts_.arrivals[i].turn) continue;
    // A sequence goes on waiting if it may look at all, and if a transfer lives whose end could give it its turn.
    if (parts_.book.live_count() == 0) {
      stop_looking(i, MissReason::LoadFailed);
    } else if (!may_look(i, paths_.find(i))) {
      const bool is_off = parts_.is_paused || std::ranges::all_of(parts_.lowers, &Lower::has_failed);
      stop_looking(i, is_off ? MissReason::LoadCancelled : MissReason::None);
    }
  }
}

}  // namespace quire
