// SPDX-License-Identifier: Apache-2.0
//
// What the simulation has besides where sequences run ahead of their loads: it knows when they may be planned, and its
// engine reads layer by layer what arrives band by band. What such an entry has read need not be right before its loads
// have ended well: only then it counts.
#include <algorithm>
#include <string>

#include "cache/cache_for_tests.h"
#include "simulation.h"

namespace quire::testing {

bool Simulation::is_ahead(std::uint64_t number) {
  const Live* const live = find(number);
  return live != nullptr && live->ahead == Ahead::Yes;
}

// A request for something that has gone down to the host, if it can be: its loads are taken, and it is planned, before
// anything else happens.
void Simulation::race() {
  if (chance(50)) reclaim();
  Live* live = lives_.empty() || chance(50) ? nullptr : draw_live();
  if (live == nullptr) {
    const std::uint64_t number = next_number_;
    begin();
    live = find(number);
  }
  bool has_twin = false;
  if (live != nullptr && !live->is_admitted && chance(40)) {
    const std::uint64_t number = live->number;
    has_twin = plan_twin(*live);
    live = find(number);  // it may have had to make room
  }
  if (live == nullptr || (!live->is_admitted && !admit_one(*live))) return;
  for (int round = 0; round < 2 && live->is_loading && live->ahead == Ahead::No; ++round) take_transfers(8);
  if (live->ahead != Ahead::Yes || flights_.size() == setup_.steps_in_flight_max || chance(10)) return;
  const std::uint32_t pending = cache_->view(live->handle).value().pending_tokens;
  if (pending == 0 || live->steps_in_flight > 0 || live->has_draft) return;
  StepEntry entry{&live->handle};
  entry.token_count = 1 + random_.below(std::min(pending, setup_.step_tokens_max));
  std::vector<StepEntry> entries = {entry};
  std::vector<Live*> lives = {live};
  plan_entries(entries, lives);
  if (!has_twin || chance(30)) return;
  while (flights_.size() > 1) finish();
  for (int round = 0; round < 3; ++round) move_on();
  if (!flights_.empty()) run_up_to(0);
  if (flights_.size() < setup_.steps_in_flight_max) plan();
  run();
}

// Another request for the same text that computes all of it: what it computes may stand in the tree before the loads of
// this one arrive, which then bring pages that nobody wants but the steps that read them.
bool Simulation::plan_twin(const Live& live) {
  if (live.is_retired || lives_.size() >= setup_.sequence_count_max || flights_.size() == setup_.steps_in_flight_max) {
    return false;
  }
  const auto space =
      std::ranges::find_if(spaces_, [&](const Space& each) { return each.is_known && each.id == live.space; });
  if (space == spaces_.end()) return false;
  const std::uint64_t number = next_number_;
  const auto name = static_cast<std::uint32_t>(space - spaces_.begin());
  if (!begin_with(name, live.tokens, live.extra_keys, {.tier_max = Tier::Device})) return false;
  Live* const twin = find(number);
  if (!admit_one(*twin) || twin->is_loading) return false;
  StepEntry entry{&twin->handle};
  entry.token_count = std::min(cache_->view(twin->handle).value().pending_tokens, setup_.step_tokens_max);
  if (entry.token_count == 0) return false;
  std::vector<StepEntry> entries = {entry};
  std::vector<Live*> lives = {twin};
  counts_.add(SimEvent::TwinPlanned);
  const std::size_t flight_count = flights_.size();
  plan_entries(entries, lives);
  return flights_.size() > flight_count;
}

// Who may be planned

void Simulation::start_ahead(Live& live, const SequenceView& view) {
  counts_.add(SimEvent::RanAhead);
  live.ahead = Ahead::Yes;
  live.computed = view.computed_tokens;
  live.planned_end = view.computed_tokens;
  live.may_lose_copy = false;
  if (view.computed_tokens % setup_.page_tokens != 0 && view.replay_tokens == 0)
    throw SimFailure("a sequence runs ahead inside a page");
  if (view.computed_tokens > 0 && !computed_.contains(live.values[view.computed_tokens - 1])) {
    throw SimFailure("a hit on tokens that nobody has computed");
  }
}

// Behind apply(): good pages of loads that have ended are on the device, or wait for those before them, which another
// load brings. They may wait on until the next apply(), even if others have computed all before them by then.
void Simulation::note_brought(std::span<const SimMover::Over> over) {
  for (const SimMover::Over& each : over) {
    const bool is_good = each.kind == TransferKind::Load && each.outcome == TransferOutcome::Ok && !each.was_cancelled;
    if (is_good && each.pool_index == 0) brought_.push_back(load_paths_[each.id.index]);
  }
  std::erase_if(brought_, [&](const std::vector<SimPaths::PathKey>& load) {
    if (paths_->tier_of(load.front()) != Tier::Host) return true;
    const SimPaths::PathKey first = paths_->first_on_host(load.front());
    bool is_awaited = false;
    mover_->for_each_load([&](TransferId id, TimeNs /*taken_at*/) {
      is_awaited = is_awaited || std::ranges::count(load_paths_[id.index], first) > 0;
    });
    return !is_awaited;
  });
}

// All that it found on the host is on the device by now, or a load brings it, or has brought it and waits for those
// before it.
void Simulation::expect_on_its_way(const Live& live) const {
  if (!paths_ || live.may_look || live.is_retired) return;
  const auto keys = paths_->keys_of(live.space, live.tokens);
  for (std::uint32_t i = 0; i < live.computed / setup_.page_tokens; ++i) {
    if (paths_->tier_of(keys[i]) == Tier::Device) continue;
    const bool is_coming = paths_->tier_of(keys[i]) == Tier::Host &&
                           (mover_->is_being_loaded(paths_->page_of(keys[i])) ||
                            std::ranges::any_of(brought_, [&](const std::vector<SimPaths::PathKey>& load) {
                              return std::ranges::count(load, keys[i]) > 0;
                            }));
    if (is_coming) continue;
    throw SimFailure("a sequence may be planned, and nothing brings its page " + std::to_string(i));
  }
}

void Simulation::expect_ready() {
  for (const auto& live : lives_) {
    const bool is_ready = live->is_admitted && (!live->is_loading || live->ahead == Ahead::Yes);
    if (cache_->view(live->handle).value().is_ready != is_ready) {
      throw SimFailure("sequence " + std::to_string(live->number) +
                       (is_ready ? " may not be planned" : " may be planned, and should not"));
    }
    const bool waits = live->is_loading && live->ahead == Ahead::No && live->save_state == SaveState::None;
    if (!paths_ || !waits || !live->options.plan_while_loading || live->may_look || live->is_retired) continue;
    // Loads that were taken before it was admitted may have been called off since.
    const auto keys = paths_->keys_of(live->space, live->tokens);
    bool are_coming = live->loading_pages > 0;
    for (std::uint32_t i = live->waits_from; i < live->waits_from + live->loading_pages; ++i) {
      are_coming = are_coming && paths_->tier_of(keys[i]) == Tier::Host &&
                   mover_->is_being_loaded(paths_->page_of(keys[i]), live->admitted_at);
    }
    // One that has let go of its path takes it again with the next apply(), though others have loaded it meanwhile.
    if (are_coming && CacheForTests::has_let_go(*cache_, live->handle.id())) continue;
    if (are_coming) throw SimFailure("all pages of a sequence are on their way, and it may not be planned");
  }
}

bool Simulation::follow_ahead(Live& live) {
  if (!live.is_loading || !live.options.plan_while_loading || live.save_state != SaveState::None) return false;
  const SequenceView view = cache_->view(live.handle).value();
  if (live.ahead == Ahead::No) {
    if (!view.is_loading || !view.is_ready) return false;
    start_ahead(live, view);
    return true;
  }
  if (!view.is_loading) {
    land(live, view);
  } else if (!view.is_ready && live.ahead == Ahead::Yes) {
    if (view.steps_in_flight > 0) {
      lose(live);
    } else {
      counts_.add(SimEvent::LoadsAgain);
      live.ahead = Ahead::No;
    }
  } else if (view.is_ready && live.ahead == Ahead::Lost) {
    throw SimFailure("a sequence that was lost runs ahead");
  } else if (live.ahead == Ahead::Yes && live.steps_in_flight == 0) {
    live.computed = view.computed_tokens;
    live.planned_end = view.computed_tokens;
  }
  return false;
}

void Simulation::follow_ahead_all() {
  for (const auto& live : lives_) (void)follow_ahead(*live);
}

// Everything has come; or something has not, and it starts anew, with what has.
void Simulation::land(Live& live, const SequenceView& view) {
  const bool was_lost = live.ahead == Ahead::Lost;
  live.is_loading = false;
  live.ahead = Ahead::No;
  if (live.steps_in_flight == 0) {
    if (!was_lost && view.computed_tokens < live.computed) counts_.add(SimEvent::LostUnplanned);
    start_running(live);
    return;
  }
  counts_.add(SimEvent::Landed);
  if (was_lost) throw SimFailure("a sequence that was lost has steps in flight");
  if (view.computed_tokens != live.computed) throw SimFailure("a sequence has another hit when its pages have come");
  const std::uint32_t planned_end = live.planned_end;
  start_running(live);
  live.planned_end = planned_end;
  live.may_lose_copy = false;
}

// A load has not brought good pages: what was planned did not happen. What an earlier load took back is over, though
// its step may still be in flight.
void Simulation::lose(Live& live) {
  live.ahead = Ahead::Lost;
  for (Flight& flight : flights_) {
    for (FlightEntry& entry : flight.entries) {
      if (entry.number != live.number) continue;
      entry.is_lost = false;
      if (entry.is_void) continue;
      counts_.add(SimEvent::LostEntry);
      entry.is_void = true;
      entry.is_lost = true;
    }
  }
  live.steps_in_flight = 0;
  live.planned_end = live.computed;
  live.has_draft = false;
  live.tree.clear();
  live.promised.clear();
  live.values.resize(std::min(live.values.size(), live.tokens.size()));
}

// What steps read

bool Simulation::has_arrived(const Flight& flight, std::uint32_t band, bool is_of_anchored) const {
  return std::ranges::all_of(flight.loads, [&](const StepLoad& load) {
    if (is_of_anchored && load.pool_index == 0) return true;
    return !mover_->is_moving(load.id) || mover_->has_band(load.id, std::min(band, load.band_count - 1U));
  });
}

bool Simulation::is_read(const Flight& flight) const {
  if (setup_.has_groups()) return has_arrived(flight, UINT32_MAX);
  return std::ranges::all_of(flight.entries, [&](const FlightEntry& entry) {
    return !entry.is_ahead || entry.is_void || entry.layers_read == setup_.layer_count;
  });
}

void Simulation::read_layers(Flight& flight) {
  if (setup_.has_groups()) return;
  const auto is_moving = [&](const StepLoad& load) { return mover_->is_moving(load.id); };
  const bool is_under_way = std::ranges::any_of(flight.loads, is_moving);
  for (FlightEntry& entry : flight.entries) {
    if (!entry.is_ahead || entry.is_void) continue;
    while (entry.layers_read < setup_.layer_count && has_arrived(flight, cache_->band_of({0, entry.layers_read}))) {
      if (is_under_way) counts_.add(SimEvent::ReadUnderWay);
      if (entry.wrong.empty()) entry.wrong = find_wrong(entry, entry.layers_read);
      ++entry.layers_read;
    }
  }
}

// The mover goes on, and the cache hears of it now and then.
void Simulation::wait_until(const std::function<bool()>& is_met) {
  for (int round = 0; round < 10'000; ++round) {
    if (is_met()) return;
    mover_->get_unstuck();
    if (chance(10)) take_cancellations();
    if (chance(10)) {
      apply(false);
    } else if (!mover_->work(now_)) {
      if (mover_->report_count() > 0) {
        apply(chance(50));
      } else {
        const auto next = mover_->next_end();
        if (!next) throw SimFailure("a step waits for a load that nobody moves");
        now_ = std::max(now_ + 1, *next);
      }
    }
  }
  throw SimFailure("a step waits for ever");
}

void Simulation::wait_for_layers(Flight& flight) {
  if (flight.loads.empty()) return;
  wait_until([&] {
    read_layers(flight);
    return is_read(flight);
  });
}

void Simulation::wait_for_loads(const Flight& flight) {
  wait_until([&] {
    return std::ranges::none_of(flight.entries,
                                [&](const FlightEntry& entry) { return !entry.is_void && is_ahead(entry.number); });
  });
}

// The end of steps

void Simulation::try_finish_too_soon(const Flight& flight) {
  const bool is_too_soon = std::ranges::any_of(
      flight.entries, [&](const FlightEntry& entry) { return !entry.is_void && is_ahead(entry.number); });
  const bool has_drafts =  // about which it would hear first
      std::ranges::any_of(flight.entries, [](const FlightEntry& entry) { return entry.draft_count > 0; });
  if (!is_too_soon || has_drafts || !chance(30)) return;
  counts_.add(SimEvent::FinishTooSoon);
  const std::vector<StepResult> results(flight.entries.size());
  const Status status = cache_->finish_step(flight.step, results);
  if (status) throw SimFailure("finish_step before the pages of a step have come");
  if (status.error().code != ErrorCode::Unavailable) throw SimFailure("finish_step: " + status.error().message);
  called();
}

// What the cache says is lost, is; and nothing else.
void Simulation::check_lost(const Flight& flight) {
  const auto lost = cache_->lost_entries(flight.step);
  if (!lost) throw SimFailure("lost_entries: " + lost.error().message);
  for (std::uint32_t i = 0; i < flight.entries.size(); ++i) {
    const FlightEntry& entry = flight.entries[i];
    const bool is_lost = std::ranges::count(*lost, i) > 0;
    const Live* const live = find(entry.number);
    if (live == nullptr) {
      if (is_lost) counts_.add(SimEvent::LostEnded);
    } else if (is_lost != (entry.is_lost && live->ahead == Ahead::Lost)) {
      throw SimFailure(is_lost ? "an entry is lost, and its pages have come" : "an entry is not lost with its pages");
    }
    if (is_lost || !entry.is_ahead || entry.is_void) continue;
    for (std::uint32_t k = entry.position; k < entry.values.size(); ++k) computed_.insert(entry.values[k]);
  }
}

// A device may read any layer until the step is over: what was right must be right still.
void Simulation::check_wrong(const Flight& flight, std::span<const StepResult> results) {
  for (std::size_t i = 0; i < flight.entries.size(); ++i) {
    const FlightEntry& entry = flight.entries[i];
    if (entry.is_void || results[i].discard || find(entry.number) == nullptr) continue;
    if (!entry.wrong.empty()) throw SimFailure(entry.wrong);
    for (std::uint32_t layer = 0; entry.is_ahead && !setup_.has_groups() && layer < setup_.layer_count; ++layer) {
      if (const std::string wrong = find_wrong(entry, layer); !wrong.empty()) throw SimFailure(wrong);
    }
  }
}

}  // namespace quire::testing
