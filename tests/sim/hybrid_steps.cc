// SPDX-License-Identifier: Apache-2.0
//
// Steps of the simulation of several groups. They are planned, run some time later in the order of their plans, and
// finished or aborted.
#include <algorithm>
#include <string>
#include <utility>

#include "hybrid_simulation.h"

namespace quire::testing {

void HybridSimulation::plan() {
  const SimSetup& sim = setup_.sim;
  if (flights_.size() == sim.steps_in_flight_max) {
    finish();
    return;
  }
  std::vector<StepEntry> entries;
  std::vector<Live*> lives;
  std::uint32_t tokens_left = sim.step_tokens_max;
  for (const auto& live : lives_) {
    if (!live->is_admitted || live->is_loading || tokens_left == 0 || chance(30)) continue;
    const SequenceView view = cache_->view(live->handle).value();
    // One for which a step did not happen waits until all others that have it are over.
    if (view.pending_tokens == 0 || view.steps_in_flight > live->steps_in_flight) continue;
    if (live->steps_in_flight > 0 && view.token_count == view.computed_tokens) continue;
    StepEntry entry{.sequence = &live->handle, .token_count = std::min(view.pending_tokens, tokens_left)};
    if (chance(50)) entry.token_count = 1 + below(entry.token_count);
    tokens_left -= entry.token_count;
    const std::size_t room = sim.context_tokens_max - live->tokens.size();
    const std::size_t drafts_max = std::min<std::size_t>({setup_.draft_tokens_max, room, tokens_left});
    const bool computes_last = entry.token_count == view.pending_tokens && view.computed_tokens < view.token_count;
    if (drafts_max > 0 && computes_last && live->steps_in_flight == 0 && chance(30)) {
      entry.draft_count = 1 + below(drafts_max);
      tokens_left -= entry.draft_count;
    }
    entries.push_back(entry);
    lives.push_back(live.get());
  }
  if (!entries.empty()) (void)plan_entries(entries, lives);
}

bool HybridSimulation::plan_entries(std::span<const StepEntry> entries, std::span<Live* const> lives) {
  const Result<PlanOutcome> outcome = cache_->plan_step(entries);
  called();
  if (!outcome) {
    const bool is_expected = outcome.error().code == ErrorCode::Unavailable ||
                             outcome.error().message.find("cannot compute") != std::string::npos;
    if (!is_expected) throw SimFailure("plan_step: " + outcome.error().message);
    return false;
  }
  if (!outcome->step) {
    const Shortage& shortage = outcome->shortage;
    counts_.add(shortage.is_of_history ? SimEvent::PlanShort : SimEvent::ShortOfSide);
    if (shortage.pages_needed <= shortage.pages_available) throw SimFailure("a shortage of nothing");
    if (shortage.entries_that_fit >= entries.size()) throw SimFailure("short, though all entries fit");
    return false;
  }
  counts_.add(SimEvent::Planned);
  if (!flights_.empty()) counts_.add(SimEvent::PlannedAhead);
  Flight flight{.step = *outcome->step};
  flight.entries.resize(entries.size());
  for (const AttentionPlanEntry& planned : flight.step.plan.entries) {
    Live& live = *lives[planned.entry_index];
    const StepEntry& asked = entries[planned.entry_index];
    FlightEntry& entry = flight.entries[planned.entry_index];
    entry.number = live.number;
    entry.view = cache_->view(live.handle).value();  // what was to be copied may have been given up
    for (std::uint32_t i = 0; i < planned.draft_count; ++i) entry.drafts.push_back(draw_token());
    entry.numbers = numbers_of(live, entry.drafts);
    ++live.steps_in_flight;
    if (planned.draft_count > 0) counts_.add(SimEvent::Drafted);
    if (planned.token_count < asked.token_count + asked.draft_count) counts_.add(SimEvent::ChunkCut);
    if (planned.sequence != live.handle.id()) throw SimFailure("the plan has another sequence");
  }
  flights_.push_back(std::move(flight));
  return true;
}

// No transfer may use a page, of any group, that the step writes.
void HybridSimulation::expect_unused(const AttentionPlan& plan) const {
  for (std::uint32_t g = 0; g < setup_.groups.size(); ++g) {
    if (has_slot(setup_.groups[g])) continue;
    const std::uint32_t entries = cache_->geometry(g).page().entry_count();
    for (const std::int64_t slot : plan.groups[g].append_slots) {
      if (slot == kNoSlot) continue;
      const PageId page{static_cast<std::uint32_t>(slot / entries)};
      mover_->expect_unused(page, static_cast<std::uint32_t>(slot % entries), "a step", pool_of_group_[g]);
    }
  }
}

void HybridSimulation::begin_flight(Flight& flight) {
  if (std::exchange(flight.has_begun, true)) return;
  const AttentionPlan& plan = flight.step.plan;
  for (std::uint32_t g = 0; g < setup_.groups.size(); ++g) {
    for (const PageCopy& copy : plan.groups[g].copies) {
      counts_.add(SimEvent::Copied);
      mover_->expect_unused(copy.target, 0, "a copy", pool_of_group_[g]);
    }
  }
  for (const auto& states : {plan.state_copies, plan.state_saves}) {
    for (const StateCopy& copy : states) {
      if (copy.kind != StateCopyKind::Save) continue;
      mover_->expect_unused(PageId{static_cast<std::uint32_t>(copy.target)}, 0, "a snapshot",
                            pool_of_group_[static_cast<std::size_t>(copy.group)]);
    }
  }
  if (const std::string problem = engine_->start(flight.step); !problem.empty()) throw SimFailure(problem);
  called();
}

void HybridSimulation::run_flight(Flight& flight) {
  if (std::exchange(flight.has_run, true)) return;
  begin_flight(flight);
  const AttentionPlan& plan = flight.step.plan;
  expect_unused(plan);
  for (std::size_t place = 0; place < plan.entries.size(); ++place) {
    const AttentionPlanEntry& planned = plan.entries[place];
    const FlightEntry& entry = flight.entries[planned.entry_index];
    if (entry.is_void) {
      engine_->spoil(plan, place);
      continue;
    }
    const std::string problem = engine_->run(plan, place, entry.numbers, entry.view);
    if (problem.empty()) continue;
    throw SimFailure("wrong bytes in the context of a step: sequence " + std::to_string(entry.number) + ", " +
                     std::to_string(planned.token_count) + " tokens at " + std::to_string(planned.position) + ": " +
                     problem);
  }
  if (const Status status = cache_->apply_saves(flight.step); !status) {
    throw SimFailure("apply_saves: " + status.error().message);
  }
  called();
  counts_.add(SimEvent::Ran);
}

void HybridSimulation::run_up_to(std::size_t place) {
  for (std::size_t i = 0; i <= place; ++i) run_flight(flights_[i]);
}

void HybridSimulation::run() {
  if (!flights_.empty()) run_up_to(below(flights_.size()));
}

void HybridSimulation::finish() {
  if (flights_.empty()) return;
  run_up_to(0);
  Flight& flight = flights_.front();
  std::vector<StepResult> results(flight.entries.size());
  std::vector<std::vector<TokenId>> added(results.size());
  for (const AttentionPlanEntry& planned : flight.step.plan.entries) {
    const FlightEntry& entry = flight.entries[planned.entry_index];
    if (entry.is_void) continue;
    StepResult& result = results[planned.entry_index];
    if (chance(setup_.sim.abort_chance / 4)) {
      result.discard = true;
      continue;
    }
    const Live* const live = find(entry.number);
    if (live == nullptr) continue;  // what it has computed counts all the same
    std::vector<TokenId>& tokens = added[planned.entry_index];
    const bool is_last = planned.position + planned.token_count - planned.draft_count >= live->tokens.size();
    if (is_last && live->steps_in_flight == 1) {
      result.accepted_count = random_.below(planned.draft_count + 1);
      tokens.assign(entry.drafts.begin(), entry.drafts.begin() + result.accepted_count);
      const bool has_room = live->tokens.size() + tokens.size() < setup_.sim.context_tokens_max;
      if (has_room && chance(85)) tokens.push_back(draw_token());
    }
    result.tokens = tokens;
  }
  const Status status = cache_->finish_step(flight.step, results);
  if (!status) throw SimFailure("finish_step: " + status.error().message);
  called();
  counts_.add(SimEvent::Finished);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (flight.entries[i].is_void) continue;
    if (results[i].discard) {
      counts_.add(SimEvent::Discarded);
      make_void(flight.entries[i].number, 0);
      continue;
    }
    Live* const live = find(flight.entries[i].number);
    if (live == nullptr) continue;
    --live->steps_in_flight;
    live->tokens.insert(live->tokens.end(), added[i].begin(), added[i].end());
  }
  flights_.pop_front();
}

void HybridSimulation::abort() {
  if (flights_.empty()) return;
  const std::size_t place = below(flights_.size());
  if (place > 0) run_up_to(place - 1);
  // Copies are made in any case; the step itself may have run or not.
  begin_flight(flights_[place]);
  if (chance(40)) run_flight(flights_[place]);
  const Status status = cache_->abort_step(flights_[place].step);
  if (!status) throw SimFailure("abort_step: " + status.error().message);
  called();
  counts_.add(SimEvent::Aborted);
  for (const FlightEntry& entry : flights_[place].entries) {
    if (!entry.is_void) make_void(entry.number, place);
  }
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(place));
}

// What flights from this one on compute of a sequence did not happen.
void HybridSimulation::make_void(std::uint64_t number, std::size_t first_flight) {
  Live* const live = find(number);
  for (std::size_t i = first_flight; i < flights_.size(); ++i) {
    for (FlightEntry& entry : flights_[i].entries) {
      if (entry.number != number || std::exchange(entry.is_void, true)) continue;
      if (live != nullptr) --live->steps_in_flight;
    }
  }
}

}  // namespace quire::testing
