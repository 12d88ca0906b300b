// SPDX-License-Identifier: Apache-2.0
//
// HybridRig: steps are planned, run, finished and aborted.
#include <algorithm>
#include <utility>

#include "hybrid_rig.h"
#include "tests/cache/peer_bytes.h"

namespace quire::testing {

// What the sequence has, and what steps in flight compute of it.
std::vector<std::int32_t> HybridRig::planned_texts(const HybridLive& live) const {
  std::vector<std::int32_t> texts = live.texts;
  for (const Flight& flight : flights_) {
    for (const FlightEntry& entry : flight.entries) {
      if (entry.number != live.number || entry.is_void) continue;
      for (std::uint32_t i = 0; i < entry.known_count; ++i) {
        if (entry.position + i == texts.size()) texts.push_back(entry.texts[i]);
      }
    }
  }
  return texts;
}

std::string HybridRig::follow(HybridLive& live, const char* after) {
  const SequenceView view = cache_->view(live.handle).value();
  if (view.computed_tokens > live.texts.size()) return std::string(after) + ": more is computed than was";
  if (view.computed_tokens < live.texts.size()) {
    counts_.add(std::string("computed tokens lost by ") + after, live.texts.size() - view.computed_tokens);
    live.texts.resize(view.computed_tokens);
  }
  return "";
}

// A copy may be given up for want of a page: the sequence goes back to the page before, or is found anew.
void HybridRig::follow_copy(HybridLive& live) {
  const SequenceView view = cache_->view(live.handle).value();
  if (view.computed_tokens == live.texts.size()) return;
  counts_.add(view.computed_tokens < live.texts.size() ? "copy given up" : "sequence found anew");
  set_computed(live, view.computed_tokens);
  live.replay_end = view.replay_tokens > 0 ? view.computed_tokens + view.replay_tokens : 0;
}

std::string HybridRig::plan(std::vector<HybridAsk>& asks, const PlanShape& shape, bool& planned,
                            std::uint32_t& fitting) {
  planned = false;
  fitting = 0;
  std::vector<StepEntry> entries;
  for (const HybridAsk& ask : asks) {
    entries.push_back({.sequence = &ask.live->handle,
                       .token_count = ask.token_count,
                       .draft_count = static_cast<std::uint32_t>(ask.drafts.size())});
  }
  Result<PlanOutcome> outcome = cache_->plan_step(entries, shape);
  if (!outcome) return "plan_step: " + outcome.error().message;
  if (!outcome->step) {
    counts_.add("short plan");
    const Shortage& shortage = outcome->shortage;
    if (shortage.pages_needed <= shortage.pages_available) return "short, though there are enough pages";
    if (shortage.entries_that_fit >= entries.size()) return "short, though all entries fit";
    if (shortage.group_index >= cache_->config().layout.groups().size()) return "short of pages of no group";
    counts_.add("short of pages of a " +
                std::string(to_string(cache_->config().layout.groups()[shortage.group_index].kind)));
    fitting = shortage.entries_that_fit;
    return "";
  }
  planned = true;
  Result<tiny_engine::DevicePlan> plan = tiny_engine::DevicePlan::upload(outcome->step->plan);
  if (!plan) return "upload: " + plan.error().message;
  Flight flight{.step = *outcome->step, .plan = *std::move(plan)};
  flight.loads.assign(flight.step.loads.begin(), flight.step.loads.end());
  if (!flight.loads.empty()) counts_.add("step planned while pages arrive");
  flight.entries.resize(entries.size());
  for (const AttentionPlanEntry& entry : outcome->step->plan.entries) {
    flight.plan_order.push_back(entry.entry_index);
    const std::string problem = describe_entry(entry, asks[entry.entry_index], flight.entries[entry.entry_index]);
    if (!problem.empty()) return problem;
  }
  const AttentionPlan& made = outcome->step->plan;
  counts_.add("step");
  counts_.add("snapshots asked for", made.state_saves.size());
  for (std::size_t i = 0; i < made.entry_count; ++i) {
    if (made.context_lens.empty() || made.context_lens[i] == made.seq_lens[i]) continue;
    counts_.add(made.entries[i].token_count > 1 ? "chunk of a window that has moved"
                                                : "token of a window that has moved");
  }
  for (const StateCopy& copy : made.state_copies) {
    constexpr const char* kNames[] = {"state reset", "state restored", "state saved before a step", "state forked"};
    counts_.add(kNames[static_cast<std::size_t>(copy.kind)]);
  }
  for (const GroupPlan& group : made.groups) {
    counts_.add("copies", group.copies.size());
    for (const LayerWindowPlan& window : group.layer_windows) {
      if (window.first_keys.front() > 0) counts_.add("list trimmed for layers");
    }
  }
  flights_.push_back(std::move(flight));
  return "";
}

std::string HybridRig::describe_entry(const AttentionPlanEntry& planned, const HybridAsk& ask, FlightEntry& entry) {
  HybridLive& live = *ask.live;
  if (counts_.log != nullptr) {
    *counts_.log << "    sequence " << live.number << " of " << live.tokens.size() << " tokens: position "
                 << planned.position << ", tokens " << planned.token_count << ", drafts " << planned.draft_count
                 << ", checkpoint " << planned.checkpoint << ", state slot " << planned.state_slot << '\n';
  }
  // A copy may have been given up when pages were short.
  if (!is_in_flight(live) && std::exchange(live.may_lose_copy, false)) follow_copy(live);
  const std::vector<std::int32_t> texts = planned_texts(live);
  entry.number = live.number;
  entry.is_ahead = live.is_ahead;
  entry.position = planned.position;
  entry.draft_count = planned.draft_count;
  entry.known_count = planned.token_count - planned.draft_count;
  entry.brings = ask.brings;
  entry.has_window = live.window.visible_tokens > 0;
  if (planned.sequence != live.handle.id()) return "the plan has another sequence";
  if (planned.draft_count != 0 && planned.draft_count != ask.drafts.size()) return "the plan has other drafts";
  if (planned.position > texts.size()) return "the plan leaves a token out";
  if (ask.token_count > entry.known_count || (planned.draft_count == 0 && !ask.drafts.empty())) {
    counts_.add(planned.checkpoint > 0 ? "chunk cut at a checkpoint" : "chunk cut at a checkpoint without a page");
    if (planned.draft_count > 0) return "a chunk is cut, and its drafts are not";
  }
  if (planned.checkpoint > 0 && planned.checkpoint != planned.position + entry.known_count) {
    return "a checkpoint is not where the known tokens end";
  }
  if (planned.position < live.replay_end) counts_.add("chunk of a replay");
  if (planned.position < texts.size()) {
    counts_.add("last token run again");
    const bool is_last = planned.position + 1 == texts.size() && texts.size() == live.tokens.size();
    if (!is_last) return "tokens are computed again for nothing";
  }

  // The step before brings the token that this one begins with.
  std::vector<TokenId> known = live.tokens;
  for (Flight& flight : flights_) {
    for (FlightEntry& earlier : flight.entries) {
      const bool is_last = earlier.position + earlier.known_count == known.size();
      if (earlier.number != live.number || earlier.is_void || !is_last) continue;
      if (entry.position + entry.known_count <= known.size()) continue;
      earlier.must_bring = true;
      known.push_back(earlier.brings);
    }
  }
  if (watches_keys()) entry.texts_before.assign(texts.begin(), texts.begin() + entry.position);
  std::int32_t previous = entry.position == 0 ? OracleTexts::kBegin : texts[entry.position - 1];
  for (std::uint32_t i = 0; i < entry.known_count; ++i) {
    const std::uint32_t position = entry.position + i;
    if (position >= known.size()) return "the plan computes a token that nobody knows";
    entry.queries.push_back(known[position]);
    previous = intern(live, previous, known[position]);
    entry.texts.push_back(previous);
  }
  // What was stored of it saw more than it sees now, so that it gives what no text does.
  const bool is_mixed = entry.position < texts.size() && entry.texts.front() != texts[entry.position];
  if (is_mixed) {
    counts_.add("last token run again under a new window");
    entry.hidden_count = 1;
  }
  // While a window is rebuilt its layer gives something else; but nobody asks for what follows those tokens.
  if (replays_windows_ && entry.position < live.replay_end) {
    const auto last = static_cast<std::uint32_t>(live.tokens.size()) - 1;
    entry.hidden_count = std::min(live.replay_end, last) - std::min(entry.position, last);
  }
  for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
    entry.queries.push_back(ask.drafts[i]);
    previous = intern(live, previous, ask.drafts[i]);
    entry.texts.push_back(previous);
  }
  return "";
}

std::string HybridRig::prepare(Flight& flight, bool waits) {
  if (std::exchange(flight.is_prepared, true)) return "";
  if (waits && !flight.loads.empty() && setup_.waits != HybridWaits::LayersOnly) {
    const auto wait = [&](const tiny_engine::GroupLayer& layer) {
      counts_.add("snapshot waited for");
      return wait_for_layer(flight, layer);
    };
    if (std::string problem = engine_->wait_for_snapshots(flight.plan, wait); !problem.empty()) {
      return "engine: " + problem;
    }
  }
  if (waits && !setup_.adopts_memory && device_ == nullptr) {
    const Status status = cache_->apply_copies(flight.step);
    if (!status) return "apply_copies: " + status.error().message;
  }
  const std::string problem = engine_->prepare(flight.plan);
  return problem.empty() ? "" : "engine: " + problem;
}

// Pages that are still arriving may turn out to be bad. A window moves positions.
void HybridRig::watch_keys(const Flight& flight) {
  std::vector<KeyWriters::Entry> entries;
  for (const std::uint32_t index : flight.plan_order) {
    const FlightEntry& entry = flight.entries[index];
    KeyWriters::Entry& watched = entries.emplace_back();
    watched.sequence = entry.number;
    watched.texts = entry.texts_before;
    watched.texts.insert(watched.texts.end(), entry.texts.begin(), entry.texts.end());
    watched.position = entry.position;
    watched.query_count = static_cast<std::uint32_t>(entry.texts.size());
    watched.is_checked = !entry.is_void && !entry.is_ahead && !entry.has_window;
  }
  key_writers_.begin_step(std::move(entries));
}

std::string HybridRig::run(Flight& flight) {
  flight.has_run = true;
  if (std::string problem = prepare(flight); !problem.empty()) return problem;
  Recorded record{.plan = flight.plan, .tokens = {}, .texts = {}};
  for (const std::uint32_t index : flight.plan_order) {
    const FlightEntry& entry = flight.entries[index];
    record.tokens.insert(record.tokens.end(), entry.queries.begin(), entry.queries.end());
    for (std::size_t i = 0; i < entry.texts.size(); ++i) {
      record.texts.push_back(entry.is_void || i < entry.hidden_count ? -1 : entry.texts[i]);
    }
  }
  if (receiver_ != nullptr) send_before(*cache_, flight.step.plan, *receiver_);
  if (watches_keys()) watch_keys(flight);
  std::vector<double> logits;
  const auto wait = [&](const tiny_engine::GroupLayer& layer) {
    const bool waits = !flight.loads.empty() && setup_.waits != HybridWaits::SnapshotsOnly;
    return waits ? wait_for_layer(flight, layer) : std::string();
  };
  if (std::string problem = engine_->forward(flight.plan, record.tokens, logits, wait); !problem.empty()) {
    return "engine: " + problem;
  }
  if (receiver_ != nullptr) {
    if (std::string problem = send_after(*cache_, flight.step.plan, *receiver_); !problem.empty()) return problem;
    for (const GroupPlan& group : flight.step.plan.groups) counts_.add("runs sent", group.sends.size());
    counts_.add("states sent", flight.step.plan.state_sends.size());
  }
  if (!setup_.adopts_memory && device_ == nullptr) {
    const Status status = cache_->apply_saves(flight.step);
    if (!status) return "apply_saves: " + status.error().message;
  }
  if (std::string problem = engine_->save(flight.plan); !problem.empty()) return "engine: " + problem;
  const std::size_t vocabulary = weights_.shape.vocabulary;
  std::size_t query = 0;
  for (const std::uint32_t index : flight.plan_order) {
    FlightEntry& entry = flight.entries[index];
    for (std::size_t i = 0; i < entry.texts.size(); ++i, ++query) {
      const std::span<const double> given = std::span(logits).subspan(query * vocabulary, vocabulary);
      if (entry.is_ahead) entry.logits.insert(entry.logits.end(), given.begin(), given.end());
      if (entry.is_ahead || record.texts[query] < 0) continue;
      texts_.note(record.texts[query], given, call_);
    }
  }
  recorded_.push_back(std::move(record));
  return "";
}

std::string HybridRig::run_up_to(std::size_t flight_index) {
  for (std::size_t i = 0; i <= flight_index; ++i) {
    if (flights_[i].has_run) continue;
    if (std::string problem = run(flights_[i]); !problem.empty()) return problem;
  }
  return "";
}

std::string HybridRig::finish(const std::function<HybridAnswer(const FlightEntry&, const HybridLive&)>& answer) {
  if (std::string problem = run_up_to(0); !problem.empty()) return problem;
  Flight& flight = flights_.front();
  // A step whose pages are still arriving can only be discarded.
  if (!flight.loads.empty() && ahead_random_.below(100) < 85) {
    if (std::string problem = end_loads(flight); !problem.empty()) return problem;
  }
  if (std::string problem = check_lost(flight); !problem.empty()) return problem;
  note_arrived(flight);
  std::vector<StepResult> results(flight.entries.size());
  std::vector<std::vector<TokenId>> tokens(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const FlightEntry& entry = flight.entries[i];
    const HybridLive* live = find(entry.number);
    if (live == nullptr || entry.is_void) continue;
    if (live->is_ahead) {
      counts_.add("discard while pages arrive");
      results[i].discard = true;
      continue;
    }
    const HybridAnswer made = answer(entry, *live);
    results[i].discard = made.discard;
    if (made.discard) continue;
    results[i].accepted_count = made.accepted_count;
    const auto drafts = entry.queries.begin() + entry.known_count;
    tokens[i].assign(drafts, drafts + made.accepted_count);
    tokens[i].insert(tokens[i].end(), made.next.begin(), made.next.end());
    results[i].tokens = tokens[i];
  }
  const Status status = cache_->finish_step(flight.step, results);
  if (!status) return "finish_step: " + status.error().message;
  std::vector<std::uint64_t> discarded;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const FlightEntry& entry = flight.entries[i];
    HybridLive* live = find(entry.number);
    if (live == nullptr || entry.is_void) continue;
    if (results[i].discard) {
      counts_.add("discard");
      discarded.push_back(live->number);
      continue;
    }
    for (std::uint32_t j = 0; j < entry.known_count + results[i].accepted_count; ++j) {
      if (entry.position + j == live->texts.size()) live->texts.push_back(entry.texts[j]);
    }
    live->tokens.insert(live->tokens.end(), tokens[i].begin(), tokens[i].end());
    if (entry.draft_count == 0) continue;
    counts_.add("drafts accepted", results[i].accepted_count);
    counts_.add("drafts rejected", entry.draft_count - results[i].accepted_count);
  }
  for (const std::uint64_t number : discarded) make_void(number, 0);
  flights_.pop_front();
  counts_.add("finish");
  if (!flights_.empty()) counts_.add("finish with steps in flight");
  return setup_.plans_while_loading ? follow_loads() : "";
}

std::string HybridRig::abort(std::size_t flight_index, bool runs) {
  if (flight_index > 0) {
    if (std::string problem = run_up_to(flight_index - 1); !problem.empty()) return problem;
  }
  // The device may have got as far as the step's own work, or not; what a plan asks for before it is always done.
  Flight& flight = flights_[flight_index];
  const bool has_work = runs && !flight.has_run;
  // Of snapshots that have not come, nobody needs what they fill.
  const bool waits = flight.loads.empty() || ahead_random_.below(2) == 0;
  if (!flight.loads.empty()) counts_.add("abort while pages arrive");
  if (std::string problem = has_work ? run(flight) : prepare(flight, waits); !problem.empty()) return problem;
  const Status status = cache_->abort_step(flight.step);
  if (!status) return "abort_step: " + status.error().message;
  counts_.add(flight.has_run ? "abort of a step that has run" : "abort");
  std::vector<std::uint64_t> numbers;
  for (const FlightEntry& entry : flight.entries) {
    if (!entry.is_void) numbers.push_back(entry.number);
  }
  for (const std::uint64_t number : numbers) make_void(number, flight_index);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(flight_index));
  return setup_.plans_while_loading ? follow_loads() : "";
}

// What the sequence has in flights from `first_flight` on did not happen.
void HybridRig::make_void(std::uint64_t number, std::size_t first_flight) {
  FlightEntry* last = nullptr;
  for (std::size_t i = 0; i < flights_.size(); ++i) {
    for (FlightEntry& entry : flights_[i].entries) {
      if (entry.number != number || entry.is_void) continue;
      if (i < first_flight) {
        last = &entry;
      } else {
        entry.is_void = true;
      }
    }
  }
  // Nor has it made the copies of its plan.
  if (HybridLive* live = find(number); live != nullptr) {
    live->may_lose_copy = true;
    live->is_in_doubt = std::ranges::any_of(cache_->config().layout.groups(), has_slot);
  }
  // The step before it, if one is in flight, may bring as many tokens as it likes again.
  if (last != nullptr) last->must_bring = false;
}

std::string HybridRig::step(std::vector<HybridAsk> asks, const std::vector<HybridAnswer>& answers) {
  bool planned = false;
  std::uint32_t fitting = 0;
  // Pages may be on their way to the host.
  for (int attempts = 0; attempts < 3 && !planned; ++attempts) {
    if (std::string problem = collect(); !problem.empty()) return problem;
    if (std::string problem = plan(asks, {}, planned, fitting); !problem.empty()) return problem;
  }
  if (!planned) return "a script is short of pages";
  const auto answer = [&](const FlightEntry& entry, const HybridLive&) {
    for (std::size_t i = 0; i < asks.size(); ++i) {
      if (asks[i].live->number == entry.number) return i < answers.size() ? answers[i] : HybridAnswer{};
    }
    return HybridAnswer{};
  };
  return finish(answer);
}

}  // namespace quire::testing
