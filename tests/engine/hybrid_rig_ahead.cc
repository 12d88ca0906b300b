// SPDX-License-Identifier: Apache-2.0
//
// HybridRig: sequences that are planned while their pages arrive. Bands come when the engine waits for their layers,
// and loads end when the step does; what an entry gives counts when all its pages have come.
#include <algorithm>
#include <utility>

#include "hybrid_rig.h"

namespace quire::testing {

namespace {

constexpr TimeNs kLayerTimeoutNs = 60'000'000'000;

}  // namespace

bool HybridRig::is_ahead(std::uint64_t number) {
  const HybridLive* const live = find(number);
  return live != nullptr && live->is_ahead;
}

std::string HybridRig::start_transfers() {
  if (mover_ == nullptr) return "";  // the cache's own has begun by itself
  std::string problem = mover_->take();
  return problem.empty() ? follow_loads() : problem;
}

// It can be planned before its pages have come; these have come, or they will not.
std::string HybridRig::follow_ahead(HybridLive& live) {
  const SequenceView view = cache_->view(live.handle).value();
  if (!live.is_ahead) {
    if (live.is_loading && view.is_loading && view.is_ready) start_ahead(live, view);
    return "";
  }
  if (!view.is_loading) return land(live, view);
  if (view.is_ready) {
    if (view.steps_in_flight == 0) start_ahead(live, view);  // it may have waited again since a step was aborted
    return "";
  }
  counts_.add(view.steps_in_flight > 0 ? "sequence lost with steps in flight" : "sequence that loads again");
  live.is_ahead = false;
  live.is_loading = true;
  for (Flight& flight : flights_) {
    for (FlightEntry& entry : flight.entries) entry.is_lost |= entry.number == live.number && !entry.is_void;
  }
  make_void(live.number, 0);
  return "";
}

void HybridRig::start_ahead(HybridLive& live, const SequenceView& view) {
  if (!live.is_ahead) counts_.add("sequence that runs ahead");
  live.is_ahead = true;
  live.is_loading = false;
  live.is_in_doubt = false;
  live.may_lose_copy = false;
  set_computed(live, view.computed_tokens);
  live.replay_end = view.replay_tokens > 0 ? view.computed_tokens + view.replay_tokens : 0;
}

// Everything has come, or no step had what has not.
std::string HybridRig::land(HybridLive& live, const SequenceView& view) {
  live.is_ahead = false;
  if (view.steps_in_flight > 0) {
    counts_.add("pages came for steps in flight");
    return view.computed_tokens == live.texts.size() ? "" : "a sequence has another hit when its pages have come";
  }
  // What was planned of it is over: a load that failed then leaves less.
  if (is_in_flight(live)) return "a sequence begins anew, and its step in flight was not lost";
  counts_.add(view.computed_tokens < live.texts.size() ? "sequence lost without a step" : "pages came for no step");
  set_computed(live, view.computed_tokens);
  live.replay_end = view.replay_tokens > 0 ? view.computed_tokens + view.replay_tokens : 0;
  live.may_lose_copy = true;
  live.is_in_doubt = false;
  return "";
}

std::string HybridRig::wait_for_layer(const Flight& flight, const tiny_engine::GroupLayer& layer) {
  const GroupLayer asked{.group_index = layer.group_index, .layer_index = layer.layer_index};
  if (mover_ != nullptr) {
    for (const StepLoad& load : flight.loads) {
      std::string problem = mover_->bring(load.id, asked, setup_.transfer_chances);
      if (!problem.empty()) return problem;
    }
    return "";
  }
  const Result<TransferOutcome> outcome = cache_->wait_for_layer(flight.step, asked, kLayerTimeoutNs);
  if (!outcome) return "wait_for_layer: " + outcome.error().message;
  return *outcome == TransferOutcome::TimedOut ? "a layer does not arrive" : "";
}

// Until it is known which entries have read good pages.
std::string HybridRig::end_loads(const Flight& flight) {
  if (mover_ == nullptr) return collect();
  std::string problem = mover_->end(flight.loads, setup_.transfer_chances);
  return problem.empty() ? follow_loads() : problem;
}

// The cache tells all entries whose loads have failed, and no others.
std::string HybridRig::check_lost(const Flight& flight) {
  const auto lost = cache_->lost_entries(flight.step);
  if (!lost) return "lost_entries: " + lost.error().message;
  for (std::uint32_t i = 0; i < flight.entries.size(); ++i) {
    const bool is_lost = std::ranges::count(*lost, i) > 0;
    const FlightEntry& entry = flight.entries[i];
    if (find(entry.number) == nullptr) continue;
    if (is_lost && !entry.is_void) return "an entry is lost that was thought to be right";
    if (entry.is_lost && !is_lost) return "an entry is lost, and the cache does not say so";
    counts_.add("entry lost", is_lost ? 1 : 0);
  }
  return "";
}

void HybridRig::note_arrived(Flight& flight) {
  const std::size_t vocabulary = weights_.shape.vocabulary;
  for (FlightEntry& entry : flight.entries) {
    if (entry.is_void || !entry.is_ahead || find(entry.number) == nullptr || is_ahead(entry.number)) continue;
    counts_.add("entry whose pages arrived under way");
    for (std::size_t i = entry.hidden_count; i < entry.texts.size(); ++i) {
      texts_.note(entry.texts[i], std::span(entry.logits).subspan(i * vocabulary, vocabulary), call_);
    }
  }
}

}  // namespace quire::testing
