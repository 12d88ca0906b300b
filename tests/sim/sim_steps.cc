// SPDX-License-Identifier: Apache-2.0
//
// What the simulation does to steps: plans, some of them ahead, runs them in order, finishes or aborts them. A step
// writes nonsense first and what is right later, so that whoever reads in between shows.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "simulation.h"

namespace quire::testing {

std::byte* Simulation::byte_of(std::int64_t slot, std::uint32_t layer) const {
  const PoolStrides& strides = cache_->geometry().strides();
  const auto page = static_cast<std::uint64_t>(slot) / setup_.page_tokens;
  const auto place = static_cast<std::uint64_t>(slot) % setup_.page_tokens;
  return cache_->device_memory() + (page * strides.page) + (layer * strides.layer) + (place * 8);
}

void Simulation::write_value(std::int64_t slot, std::uint64_t value) {
  if (slot == kNoSlot) return;
  mover_->expect_unused(PageId{static_cast<std::uint32_t>(slot / setup_.page_tokens)},
                        static_cast<std::uint32_t>(slot % setup_.page_tokens), "a step");
  for (std::uint32_t layer = 0; layer < setup_.layer_count; ++layer) {
    const std::uint64_t bytes = value + layer;
    std::memcpy(byte_of(slot, layer), &bytes, sizeof(bytes));
  }
}

std::string Simulation::find_wrong(const FlightEntry& entry, std::uint32_t layer) const {
  const std::uint32_t context = entry.runs_again ? entry.position + 1 : entry.position;
  // The first of its tokens sees the sink and the last ones before it.
  const auto [visible_tokens, sink_tokens] = entry.window;
  const bool slides = visible_tokens > 0 && entry.position + 1 > visible_tokens;
  const std::uint32_t recent = slides ? entry.position + 1 - (visible_tokens - sink_tokens) : 0;
  for (std::uint32_t i = 0; i < context; ++i) {
    if (i >= sink_tokens && i < recent) continue;
    const std::uint32_t page = entry.pages[i / setup_.page_tokens].value;
    std::uint64_t bytes = 0;
    const std::int64_t slot = (std::int64_t{page} * setup_.page_tokens) + (i % setup_.page_tokens);
    std::memcpy(&bytes, byte_of(slot, layer), sizeof(bytes));
    if (bytes == entry.values[i] + layer) continue;
    return "wrong bytes in the context of a step: position " + std::to_string(i) + ", page " + std::to_string(page) +
           ", layer " + std::to_string(layer);
  }
  return "";
}

void Simulation::compare_value(std::int64_t slot, std::uint64_t value, const char* what, std::uint32_t position) const {
  for (std::uint32_t layer = 0; layer < setup_.layer_count; ++layer) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, byte_of(slot, layer), sizeof(bytes));
    if (bytes == value + layer) continue;
    throw SimFailure(std::string("wrong bytes in ") + what + ": position " + std::to_string(position) + ", page " +
                     std::to_string(slot / setup_.page_tokens) + ", layer " + std::to_string(layer));
  }
}

// Planning

void Simulation::plan() {
  if (flights_.size() == setup_.steps_in_flight_max) {
    finish();
    return;
  }
  std::vector<StepEntry> entries;
  std::vector<Live*> chosen;
  std::uint32_t tokens_left = setup_.step_tokens_max;
  const std::size_t first = lives_.empty() ? 0 : below(lives_.size());
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    Live& live = *lives_[(first + i) % lives_.size()];
    if (!live.is_admitted) continue;
    StepEntry entry{&live.handle};
    if (live.is_loading && live.ahead != Ahead::Yes) {
      if (!chance(3)) continue;
      counts_.add(SimEvent::PlanTooSoon);
      const Result<PlanOutcome> refused = cache_->plan_step({&entry, 1});
      if (refused) throw SimFailure("plan_step takes a loading sequence");
      continue;
    }
    if (live.has_draft || !live.tree.empty() || chance(25)) continue;
    const auto known = static_cast<std::uint32_t>(live.tokens.size());
    const std::uint32_t missing = known - std::min(known, live.planned_end);
    std::uint32_t count = missing;
    if (live.steps_in_flight == 0) {
      count = cache_->view(live.handle).value().pending_tokens;
      if (count == 0) continue;
    } else if (missing == 0) {
      const bool fits =
          live.planned_end + 1 <= known + live.steps_in_flight && live.planned_end < setup_.context_tokens_max;
      if (!fits || !chance(60)) continue;
      count = 1;
    }
    if (count > tokens_left || chance(25)) count = 1 + random_.below(std::min(count, std::max(1U, tokens_left)));
    if (tokens_left == 0) break;
    entry.token_count = count;
    tokens_left -= count;
    // Drafts and trees stand behind everything known.
    const bool is_end = count == missing && missing > 0 && live.planned_end + count == known &&
                        live.window.visible_tokens == 0;  // their bytes are not a window's
    const std::uint32_t room = std::min<std::uint32_t>(setup_.context_tokens_max - known, tokens_left);
    const std::size_t place = entries.size();
    if (is_end && room >= 4 && live.promised.empty() && chance(setup_.draft_chance)) {
      entry.token_count = 0;
      entry.draft_count = 1 + random_.below(setup_.draft_tokens_max);
      tokens_left -= entry.draft_count;
    } else if (is_end && room >= 6 && live.promised.empty() && chance(setup_.tree_chance)) {
      entry.token_count = 0;
      tree_parents_[place].clear();
      const std::uint32_t size = 1 + random_.below(6);
      for (std::uint32_t k = 0; k < size; ++k)
        tree_parents_[place].push_back(static_cast<std::int32_t>(random_.below(k + 1)) - 1);
      entry.tree_parents = tree_parents_[place];
      tokens_left -= size;
    }
    entries.push_back(entry);
    chosen.push_back(&live);
  }
  if (entries.empty()) {
    admit();
  } else {
    plan_entries(entries, chosen);
  }
}

std::optional<PlanOutcome> Simulation::ask_plan(std::span<const StepEntry> entries) {
  Result<PlanOutcome> outcome = cache_->plan_step(entries);
  called();
  if (outcome) return std::move(*outcome);
  // Groups cannot compute all that is asked for; and a copy that was given up has made an entry longer.
  const auto says = [&](const char* words) { return outcome.error().message.find(words) != std::string::npos; };
  const bool is_of_group = setup_.has_groups() && (outcome.error().code == ErrorCode::Unavailable ||
                                                   says("cannot compute") || says("step_tokens_max"));
  if (!is_of_group) throw SimFailure("plan_step: " + outcome.error().message);
  for (const auto& live : lives_) refresh(*live);
  return std::nullopt;
}

void Simulation::plan_entries(std::vector<StepEntry>& entries, std::vector<Live*>& lives) {
  std::optional<PlanOutcome> outcome = ask_plan(entries);
  if (!outcome) return;
  if (!outcome->step) {
    const Shortage& shortage = outcome->shortage;
    counts_.add(shortage.is_of_history ? SimEvent::PlanShort : SimEvent::ShortOfAnchored);
    for (const auto& live : lives_) refresh(*live);
    if (shortage.pages_needed <= shortage.pages_available) throw SimFailure("short, though there are enough pages");
    if (shortage.entries_that_fit >= entries.size()) throw SimFailure("short, though all entries fit");
    if (shortage.entries_that_fit == 0) {
      make_room();
      return;
    }
    entries.resize(shortage.entries_that_fit);
    lives.resize(shortage.entries_that_fit);
    outcome = ask_plan(entries);
    if (!outcome) return;
    // Meanwhile what is written back may have begun to read pages of other groups.
    if (!outcome->step && !outcome->shortage.is_of_history && setup_.write_policy == WritePolicy::WriteBack) return;
    if (!outcome->step) throw SimFailure("entries that fit do not fit");
  }
  record_flight(*outcome->step, entries, lives);
}

// Nothing fits. With steps in flight their end may help; otherwise somebody has to go.
void Simulation::make_room() {
  if (!flights_.empty()) {
    finish();
  } else if (chance(50)) {
    apply(true);
  } else if (chance(60)) {
    preempt();
  } else {
    end();
  }
}

void Simulation::record_flight(const Step& step, std::span<const StepEntry> entries, std::span<Live* const> lives) {
  counts_.add(SimEvent::Planned);
  Flight& flight = flights_.emplace_back();
  flight.may_move = std::exchange(has_moves_, false);
  flight.step = step;
  flight.loads.assign(step.loads.begin(), step.loads.end());
  flight.entries.resize(entries.size());
  // Steps in flight keep sequences from losing a copy; all others are asked again.
  for (const AttentionPlanEntry& planned : step.plan.entries) {
    record_entry(planned, entries[planned.entry_index], *lives[planned.entry_index],
                 flight.entries[planned.entry_index]);
  }
  for (const auto& live : lives_) refresh(*live);
  counts_.tell([&] {
    std::string text = "    copies:";
    for (const PageCopy& copy : step.plan.copies) {
      text += " " + std::to_string(copy.source.value) + " -> " + std::to_string(copy.target.value) + " (" +
              std::to_string(copy.token_count) + ")";
    }
    for (const TokenMove& move : step.plan.groups[0].moves) {
      text += " slot " + std::to_string(move.source_slot) + " -> " + std::to_string(move.target_slot);
    }
    return text;
  });
  counts_.add(SimEvent::Copied, step.plan.copies.size());
  counts_.add(SimEvent::Moved, step.plan.groups[0].moves.size());
}

void Simulation::record_entry(const AttentionPlanEntry& planned, const StepEntry& asked, Live& live,
                              FlightEntry& entry) {
  entry.number = live.number;
  entry.salt = live.salt;
  entry.position = planned.position;
  entry.window = live.window;
  entry.draft_count = planned.draft_count;
  entry.known_count = planned.token_count - planned.draft_count;
  entry.is_tree = !asked.tree_parents.empty();
  const auto known = static_cast<std::uint32_t>(live.tokens.size());
  if (live.steps_in_flight == 0) {
    const std::uint32_t computed = cache_->view(live.handle).value().computed_tokens;
    if (setup_.has_groups() || (computed < live.computed && live.may_lose_copy)) {
      if (computed < live.computed) counts_.add(SimEvent::CopyGivenUp);
      live.computed = computed;
      live.planned_end = computed;
    }
    entry.runs_again = planned.position + 1 == live.computed && planned.position + 1 == known && entry.draft_count == 0;
  } else {
    counts_.add(SimEvent::PlannedAhead);
  }
  live.may_lose_copy = false;
  entry.is_ahead = live.ahead == Ahead::Yes;
  if (entry.is_ahead) counts_.add(SimEvent::PlannedArriving);
  if (!entry.runs_again && planned.position != live.planned_end) {
    throw SimFailure("a plan begins at " + std::to_string(planned.position) + ", not at " +
                     std::to_string(live.planned_end));
  }
  const std::uint32_t end = entry.position + entry.known_count;
  while (live.tokens.size() + live.promised.size() < end) live.promised.push_back(draw_token());
  extend_values(live);
  // Rows that look ahead depend on what is behind them.
  const std::size_t value_count = lookahead_tokens_ > 0 && entry.draft_count == 0 ? live.values.size() : end;
  entry.values.assign(live.values.begin(), live.values.begin() + static_cast<std::ptrdiff_t>(value_count));
  const std::uint64_t root = end == 0 ? mix64(live.salt) : live.values[end - 1];
  std::uint64_t value = root;
  for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
    const TokenId token = draw_token();
    if (entry.is_tree) {
      const std::int32_t parent = asked.tree_parents[i];
      value = parent < 0 ? root : live.tree[parent].value;
      // Trees and drafts have no extra keys.
      value = mix64(value + static_cast<std::uint64_t>(token));
      live.tree.push_back({.token = token, .parent = parent, .value = value});
    } else {
      value = mix64(value + static_cast<std::uint64_t>(token));
    }
    entry.drafts.push_back(token);
    entry.values.push_back(value);
  }
  if (entry.draft_count > 0) counts_.add(entry.is_tree ? SimEvent::Treed : SimEvent::Drafted);
  if (planned.token_count < asked.token_count + asked.draft_count) counts_.add(SimEvent::ChunkCut);
  live.has_draft = entry.draft_count > 0 && !entry.is_tree;
  if (!entry.runs_again) live.planned_end = end;
  ++live.steps_in_flight;
  counts_.tell([&] {
    std::string text =
        "    step of sequence " + std::to_string(live.number) + ": [" + std::to_string(planned.position) + ", " +
        std::to_string(planned.position + planned.token_count) + ") of " + std::to_string(known) + ", pages";
    for (const PageId page : planned.pages) text += " " + std::to_string(page.value);
    return text;
  });
  if (setup_.has_groups()) {
    entry.view = cache_->view(live.handle).value();  // what was to be copied may have been given up
    return;
  }
  entry.pages.assign(planned.pages.begin(), planned.pages.end());
  entry.slots.assign(planned.append_slots.begin(), planned.append_slots.end());
}

// Running

// Copies, then what the step reads; then it begins to write.
void Simulation::begin_flight(Flight& flight) {
  if (std::exchange(flight.has_begun, true)) return;
  if (setup_.has_groups()) {
    wait_until([&] { return has_arrived(flight, UINT32_MAX, /*is_of_anchored=*/true); });
    start_groups(flight);
    return;
  }
  for (const PageCopy& copy : flight.step.plan.copies) mover_->expect_unused(copy.target, 0, "a copy");
  const Status status = cache_->apply_copies(flight.step);
  if (!status) throw SimFailure("apply_copies: " + status.error().message);
  called();
  counts_.add(SimEvent::Ran);
  for (const FlightEntry& entry : flight.entries) {
    const bool slides = entry.window.visible_tokens > 0 && entry.position + 1 > entry.window.visible_tokens;
    if (!entry.is_void && slides) counts_.add(SimEvent::Slid);
    for (std::uint32_t layer = 0; layer < setup_.layer_count && !entry.is_void && !entry.is_ahead; ++layer) {
      if (std::string wrong = find_wrong(entry, layer); !wrong.empty()) throw SimFailure(wrong);
    }
    for (const std::int64_t slot : entry.slots) write_value(slot, mix64(static_cast<std::uint64_t>(slot) + now_));
  }
}

void Simulation::run_flight(Flight& flight) {
  begin_flight(flight);
  if (std::exchange(flight.has_run, true)) return;
  wait_for_layers(flight);
  if (setup_.has_groups()) run_groups(flight);
  for (const FlightEntry& entry : flight.entries) {
    for (std::size_t i = 0; i < entry.slots.size(); ++i) {
      if (entry.is_void || !entry.wrong.empty()) continue;  // what is computed of wrong bytes is wrong
      write_value(entry.slots[i], entry.values[entry.position + i]);
      if (!entry.is_ahead) computed_.insert(entry.values[entry.position + i]);
    }
  }
}

void Simulation::run_up_to(std::size_t place) {
  for (std::size_t i = 0; i <= place; ++i) run_flight(flights_[i]);
}

void Simulation::run() {
  for (Flight& flight : flights_) {
    if (flight.has_run) continue;
    const bool has_ahead = std::ranges::any_of(flight.entries, &FlightEntry::is_ahead);
    if (has_ahead && !setup_.has_groups()) {
      begin_flight(flight);
      read_layers(flight);
      if (is_read(flight)) run_flight(flight);
    } else if (has_ahead && !has_arrived(flight, UINT32_MAX)) {
      move_on();
    } else if (flight.has_begun || chance(50)) {
      run_flight(flight);
    } else {
      begin_flight(flight);
    }
    return;
  }
  plan();
}

void Simulation::finish() {
  if (flights_.empty()) return;
  run_up_to(0);
  Flight& flight = flights_.front();
  const bool has_ahead = std::ranges::any_of(flight.entries, &FlightEntry::is_ahead);
  if (has_ahead) try_finish_too_soon(flight);
  if (has_ahead && !chance(15)) wait_for_loads(flight);
  std::vector<StepResult> results(flight.entries.size());
  std::vector<std::vector<TokenId>> tokens(flight.entries.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const FlightEntry& entry = flight.entries[i];
    Live* const live = find(entry.number);
    if (live == nullptr || entry.is_void) continue;
    if (live->ahead == Ahead::Yes) {
      counts_.add(SimEvent::DiscardedAhead);
      results[i].discard = true;
      continue;
    }
    if (chance(setup_.abort_chance / 2)) {
      results[i].discard = true;
      continue;
    }
    if (entry.is_tree) {
      tokens[i] = entry.drafts;
    } else {
      results[i].accepted_count = random_.below(entry.draft_count + 1);
      tokens[i].assign(entry.drafts.begin(), entry.drafts.begin() + results[i].accepted_count);
      const std::uint32_t end = entry.position + entry.known_count;
      if (entry.runs_again || end == live->tokens.size()) {
        if (!live->promised.empty()) {
          tokens[i].push_back(live->promised.front());
        } else {
          std::uint32_t more = chance(60) ? 1 : random_.below(3);
          more = std::min<std::uint32_t>(
              more, static_cast<std::uint32_t>(setup_.context_tokens_max - live->tokens.size() - tokens[i].size()));
          for (std::uint32_t k = 0; k < more; ++k) tokens[i].push_back(draw_token());
        }
      }
    }
    results[i].tokens = tokens[i];
  }
  complete_rows(flight, results);
  if (has_ahead) check_lost(flight);
  if (has_ahead) check_wrong(flight, results);
  const Status status = cache_->finish_step(flight.step, results);
  if (!status) throw SimFailure("finish_step: " + status.error().message);
  counts_.add(SimEvent::Finished);
  Flight finished = std::move(flights_.front());
  flights_.pop_front();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const FlightEntry& entry = finished.entries[i];
    Live* const live = find(entry.number);
    if (live == nullptr || entry.is_void) continue;
    if (results[i].discard) {
      counts_.add(SimEvent::Discarded);
      --live->steps_in_flight;
      make_void(entry.number, 0, entry);
      continue;
    }
    --live->steps_in_flight;
    if (!entry.runs_again) live->computed = entry.position + entry.known_count;
    if (entry.is_tree) continue;
    live->computed += results[i].accepted_count;
    if (entry.draft_count > 0) live->has_draft = false;
    if (!live->promised.empty() && !tokens[i].empty()) {
      live->promised.erase(live->promised.begin());
    }
    live->tokens.insert(live->tokens.end(), tokens[i].begin(), tokens[i].end());
    extend_values(*live);
    if (live->steps_in_flight == 0) live->planned_end = live->computed;
    if (entry.draft_count > 0) live->planned_end = live->computed;
  }
  follow_ahead_all();
  called();
  for (const auto& live : lives_) refresh(*live);
  for (const FlightEntry& entry : finished.entries) {
    const Live* const live = find(entry.number);
    const bool is_there = live != nullptr && !live->is_loading;  // nor does a lost one have what it was to load
    if (is_there && live->options.publish == Publish::All) expect_cached(*live);
  }
}

void Simulation::abort() {
  if (flights_.empty()) return;
  const std::size_t place = below(flights_.size());
  if (place > 0) run_up_to(place - 1);
  // The device may have got as far as the step's own work, or not; what a plan asks for before it is always done. But
  // for snapshots that have not come.
  const Flight& chosen = flights_[place];
  const bool is_ahead = std::ranges::any_of(chosen.entries, &FlightEntry::is_ahead) && !chosen.has_run;
  if (is_ahead) counts_.add(SimEvent::AbortedAhead);
  if (is_ahead && setup_.has_groups() && !chosen.has_begun && chance(60)) {
    if (!has_arrived(chosen, UINT32_MAX, /*is_of_anchored=*/true)) counts_.add(SimEvent::AbortedUnapplied);
    engine_->take_deltas(chosen.step);
  } else if (is_ahead && !setup_.has_groups()) {
    if (chance(50)) begin_flight(flights_[place]);
    if (chosen.has_begun) read_layers(flights_[place]);
  } else if (chance(50)) {
    run_flight(flights_[place]);
  } else if (chance(50) || setup_.has_groups()) {
    begin_flight(flights_[place]);
  }
  const Status status = cache_->abort_step(flights_[place].step);
  if (!status) throw SimFailure("abort_step: " + status.error().message);
  counts_.add(SimEvent::Aborted);
  const Flight aborted = std::move(flights_[place]);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(place));
  for (const FlightEntry& entry : aborted.entries) {
    if (entry.is_void) continue;
    if (Live* const live = find(entry.number); live != nullptr) --live->steps_in_flight;
    make_void(entry.number, place, entry);
  }
  follow_ahead_all();
  called();
  for (const auto& live : lives_) refresh(*live);
}

// What the sequence has in flights from `first_flight` on did not happen, nor did `first`.
void Simulation::make_void(std::uint64_t number, std::size_t first_flight, const FlightEntry& first) {
  Live* const live = find(number);
  for (std::size_t i = first_flight; i < flights_.size(); ++i) {
    for (FlightEntry& entry : flights_[i].entries) {
      if (entry.number != number || entry.is_void) continue;
      entry.is_void = true;
      if (live != nullptr) --live->steps_in_flight;
    }
  }
  if (live == nullptr) return;  // it has ended, but its steps are in flight
  live->planned_end = first.runs_again ? live->computed : first.position;
  live->has_draft = false;
  live->tree.clear();
  live->may_lose_copy = true;  // which a step that did not happen has not made
  const std::size_t kept = live->planned_end > live->tokens.size() ? live->planned_end - live->tokens.size() : 0;
  live->promised.resize(std::min(live->promised.size(), kept));
  live->values.resize(std::min(live->values.size(), live->tokens.size() + live->promised.size()));
}

}  // namespace quire::testing
