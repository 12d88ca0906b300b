// SPDX-License-Identifier: Apache-2.0
//
// Who runs, and in which steps; decoding.cc has what becomes of the logits.
#include "scheduler.h"

#include <algorithm>
#include <ranges>
#include <thread>
#include <utility>

#include "sampling.h"

namespace tiny_engine {

namespace {

constexpr quire::TimeNs kLayerTimeoutNs = 60'000'000'000;

}  // namespace

using quire::ErrorCode;
using quire::fail;
using quire::Result;
using quire::Status;

Scheduler::Scheduler(quire::Cache& cache, Engine& engine, quire::KeySpaceId key_space, SchedulerOptions options)
    : cache_(cache), engine_(engine), key_space_(key_space), options_(std::move(options)) {}

void Scheduler::add(Request request) {
  auto track = std::make_unique<Track>();
  track->request_index = requests_.size();
  track->output.request_index = requests_.size();
  track->output.prompt_tokens = request.prompt.size();
  track->output.tokens = request.prompt;
  requests_.push_back(std::move(request));
  tracks_.push_back(std::move(track));
}

Status Scheduler::run() {
  const auto has_work = [this] {
    return std::any_of(tracks_.begin(), tracks_.end(), [](const auto& track) { return track->state != State::Ended; });
  };
  while (has_work() || !flights_.empty()) {
    QUIRE_TRY(collect());
    QUIRE_TRY(admit_waiting());
    while (flights_.size() < options_.steps_in_flight) {
      QUIRE_TRY_ASSIGN(const bool is_planned, plan_next());
      if (!is_planned) break;
    }
    if (flights_.empty()) {
      QUIRE_TRY_ASSIGN(const quire::Stats stats, cache_.stats());
      if (stats.transfers_in_flight == 0 && stats.loading_sequence_count == 0) {
        return fail(ErrorCode::Unavailable, "no sequence can go on: the pool is too small");
      }
      std::this_thread::yield();  // everybody waits for pages that are looked for or being moved
      continue;
    }
    QUIRE_TRY(finish_oldest());
    std::erase_if(tracks_, [](const auto& track) { return track->state == State::Ended && track->in_flight == 0; });
  }
  return {};
}

std::uint32_t Scheduler::running_count() const {
  return static_cast<std::uint32_t>(
      std::count_if(tracks_.begin(), tracks_.end(), [](const auto& track) { return track->state == State::Running; }));
}

// What has been moved between the tiers since.
Status Scheduler::collect() {
  if (!cache_.config().host.is_on()) return {};
  QUIRE_TRY_ASSIGN(const auto completions, cache_.poll());
  QUIRE_TRY(cache_.apply(completions, 0));
  for (Flight& flight : flights_) QUIRE_TRY(note_lost(flight));
  return {};
}

Status Scheduler::admit_waiting() {
  for (const auto& track : tracks_) {
    if (track->state == State::Running || track->state == State::Ended) continue;
    // After a preemption those that are left go first; without this two sequences could push each other out for ever.
    // Those whose pages are on their way are left: they hold room, and only go on if they are asked.
    const bool may_admit = running_count() < options_.running_max && (may_admit_ || running_count() == 0);
    if (!may_admit && track->state != State::Loading) continue;
    QUIRE_TRY(admit(*track));
    if (track->state != State::Running) continue;
    // A text that is cached whole has its last token run again, to hear what follows.
    if (track->planned == track->output.tokens.size() && !track->has_answer) --track->planned;
  }
  return {};
}

// Goes on with a sequence that does not run, as far as it can now.
Status Scheduler::admit(Track& track) {
  const bool is_new = track.state == State::Waiting;
  if (is_new && !track.handle) {
    const Request& request = request_of(track);
    QUIRE_TRY_ASSIGN(track.handle, cache_.begin(key_space_, {.tokens = track.output.tokens},
                                                {.plan_while_loading = options_.plans_while_loading}));
    if (request.window.visible_tokens > 0) QUIRE_TRY(cache_.set_window(track.handle, request.window));
  }
  QUIRE_TRY_ASSIGN(quire::SequenceView view, cache_.view(track.handle));
  if (view.is_waiting) {
    const Result<quire::Admission> admission = is_new ? cache_.admit(track.handle) : cache_.resume(track.handle);
    if (!admission && admission.error().code == ErrorCode::Unavailable) return {};  // no room for what is to come back
    QUIRE_TRY(admission);
    if (is_new) {
      counts_.prompt_tokens += track.output.prompt_tokens;
      counts_.found_tokens += admission->matched_tokens + admission->loading_tokens;
    }
    QUIRE_TRY_ASSIGN(view, cache_.view(track.handle));
  }
  track.is_restored = track.is_restored || !is_new;
  track.state = view.is_ready ? State::Running : State::Loading;
  if (!view.is_ready) return {};
  track.planned = view.computed_tokens;
  if (!track.is_restored) track.output.window_begin = view.computed_tokens;
  track.is_restored = true;
  return {};
}

// True when a sequence has given up its pages.
Result<bool> Scheduler::preempt_youngest() {
  if (running_count() <= 1) return false;
  for (const auto& youngest : std::views::reverse(tracks_)) {
    Track& track = *youngest;
    if (track.state != State::Running || track.in_flight > 0 || !track.tree.empty()) continue;
    Status status = cache_.preempt(track.handle, options_.preempt);
    if (!status) {
      // No room to save it, or it could not be computed again as it was: then the other way, or somebody else.
      const bool saves = options_.preempt == quire::Preempt::Save;
      status = cache_.preempt(track.handle, saves ? quire::Preempt::Drop : quire::Preempt::Save);
    }
    if (!status) continue;
    track.state = State::Preempted;
    may_admit_ = false;
    ++counts_.preempt_count;
    return true;
  }
  return false;
}

Result<Scheduler::Track*> Scheduler::fork(Track& source, std::uint32_t sample_index) {
  auto track = std::make_unique<Track>();
  track->request_index = source.request_index;
  track->state = State::Running;
  track->output = source.output;
  track->output.sample_index = sample_index;
  track->planned = source.planned;
  track->has_answer = source.has_answer;
  track->answer = source.answer;
  QUIRE_TRY_ASSIGN(track->handle, cache_.fork(source.handle, static_cast<std::uint32_t>(source.output.tokens.size())));
  ++counts_.fork_count;
  Track* const forked = track.get();
  // Beside its source: both are of the same age.
  const auto at =
      std::find_if(tracks_.begin(), tracks_.end(), [&](const auto& other) { return other.get() == &source; });
  tracks_.insert(at + 1, std::move(track));
  return forked;
}

Status Scheduler::end(Track& track, bool is_output) {
  track.state = State::Ended;
  may_admit_ = true;
  if (is_output) {
    counts_.new_tokens += track.output.tokens.size() - track.output.prompt_tokens;
    outputs_.push_back(std::move(track.output));
  }
  return cache_.end(track.handle);
}

// True when a step was planned.
Result<bool> Scheduler::plan_next() {
  while (true) {
    std::vector<Part> parts;
    std::uint32_t tokens_left = options_.step_tokens_max;
    // Decoding comes before prompts: somebody is waiting for those tokens.
    for (const bool is_decoding : {true, false}) {
      for (const auto& track : tracks_) {
        const bool is_close = track->output.tokens.size() <= track->planned + 1 || !track->tree.empty();
        if (track->state != State::Running || is_close != is_decoding || tokens_left == 0) continue;
        Part part{.track = track.get()};
        if (!describe_part(*track, tokens_left, part)) continue;
        tokens_left -= part.known_count + static_cast<std::uint32_t>(part.drafts.size());
        parts.push_back(std::move(part));
      }
    }
    if (parts.empty()) return false;

    std::vector<quire::StepEntry> entries;
    for (const Part& part : parts) {
      const bool has_drafts = !part.drafts.empty();
      entries.push_back({.sequence = &part.track->handle,
                         .token_count = has_drafts ? 0 : part.known_count,
                         .draft_count = part.parents.empty() ? static_cast<std::uint32_t>(part.drafts.size()) : 0,
                         .tree_parents = part.parents});
    }
    QUIRE_TRY_ASSIGN(quire::PlanOutcome outcome, cache_.plan_step(entries));
    if (!outcome.step && outcome.shortage.entries_that_fit > 0) {
      parts.resize(outcome.shortage.entries_that_fit);
      entries.resize(outcome.shortage.entries_that_fit);
      QUIRE_TRY_ASSIGN(outcome, cache_.plan_step(entries));
    }
    if (outcome.step) {
      QUIRE_TRY_ASSIGN(DevicePlan plan, DevicePlan::upload(outcome.step->plan));
      for (const quire::AttentionPlanEntry& entry : outcome.step->plan.entries) {
        Part& part = parts[entry.entry_index];
        Track& track = *part.track;
        // When pages were short a copy may have been given up: its tokens are then computed again.
        part.position = entry.position;
        part.known_count = entry.token_count - entry.draft_count;
        if (entry.position < track.output.window_begin) track.output.window_begin = entry.position;
        if (part.known_count > 0) {
          track.planned = part.position + part.known_count;
          part.reaches_end = track.planned >= track.output.tokens.size();
        }
        ++track.in_flight;
      }
      ++counts_.step_count;
      if (!outcome.step->loads.empty()) ++counts_.early_steps;
      counts_.copied_pages += outcome.step->plan.copies.size();
      counts_.moved_tokens += outcome.step->plan.groups[0].moves.size();
      flights_.push_back({.step = *outcome.step, .plan = std::move(plan), .parts = std::move(parts)});
      return true;
    }
    if (outcome.shortage.pages_leaving > 0) return false;  // some are on their way out already
    QUIRE_TRY_ASSIGN(const bool has_room, preempt_youngest());
    if (!has_room) return false;
  }
}

bool Scheduler::describe_part(Track& track, std::uint32_t tokens_left, Part& part) {
  const Request& request = request_of(track);
  if (!track.tree.empty() && track.in_flight > track.lost_in_flight) return false;
  if (!track.tree.empty()) {
    add_drafts(track, tokens_left, part);
    return !part.drafts.empty();
  }
  const std::size_t known = track.output.tokens.size();
  if (track.planned < known) {
    const bool is_prompt = known - track.planned > 1;
    part.known_count = static_cast<std::uint32_t>(known - track.planned);
    part.known_count = std::min({part.known_count, tokens_left, is_prompt ? options_.chunk_tokens_max : 1U});
    part.position = track.planned;
    const bool reaches_end = track.planned + part.known_count == known;
    const bool is_new = known > track.output.prompt_tokens;
    if (reaches_end && is_new && request.speculation != Speculation::None) {
      add_drafts(track, tokens_left - part.known_count, part);
    }
    return true;
  }
  // Everything known is planned. Alone and greedy or sampled, the next token is fed on the device: one step ahead.
  const bool goes_ahead = track.in_flight > track.lost_in_flight && request.beam_width == 0 &&
                          request.speculation == Speculation::None &&
                          (request.sample_count == 1 || known > track.output.prompt_tokens);
  if (!goes_ahead || track.planned - known >= options_.steps_in_flight) return false;
  if (room_of(track) <= track.planned - known + 1) return false;
  part.position = track.planned;
  part.known_count = 1;
  return true;
}

// Guesses behind the last token, or behind the deepest ones of an undecided tree.
void Scheduler::add_drafts(const Track& track, std::uint32_t tokens_left, Part& part) const {
  const Request& request = request_of(track);
  const std::uint32_t room =
      std::min({tokens_left, options_.draft_tokens, room_of(track) > 0 ? room_of(track) - 1 : 0});
  std::vector<quire::TokenId> text = track.output.tokens;
  if (request.speculation == Speculation::Chain) {
    for (std::uint32_t i = 0; i < room; ++i) {
      part.drafts.push_back(options_.guess(text, 1).front());
      text.push_back(part.drafts.back());
    }
    return;
  }
  // A chain of best guesses, with the second best beside each.
  auto parent = static_cast<std::int32_t>(track.tree.size()) - 1;
  if (!track.tree.empty()) {
    std::vector<quire::TokenId> path;
    for (std::int32_t at = parent; at >= 0; at = track.tree[static_cast<std::size_t>(at)].parent) {
      path.push_back(track.tree[static_cast<std::size_t>(at)].token);
    }
    text.insert(text.end(), path.rbegin(), path.rend());
  }
  const auto before = static_cast<std::int32_t>(track.tree.size());
  for (std::uint32_t i = 0; i + 1 < tokens_left && i < room; ++i) {
    const std::vector<quire::TokenId> guesses = options_.guess(text, 2);
    const std::int32_t under = parent;
    // The best one last, so that it is the deepest of the tree, and accepted paths have to be moved together.
    for (std::size_t j = guesses.size(); j-- > 0;) {
      part.drafts.push_back(guesses[j]);
      part.parents.push_back(under);
      parent = before + static_cast<std::int32_t>(part.drafts.size()) - 1;
    }
    text.push_back(guesses.front());
  }
}

Status Scheduler::finish_oldest() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  QUIRE_TRY(run_flight(flight));
  std::vector<quire::StepResult> results;
  for (const Part& part : flight.parts) {
    results.push_back({.tokens = part.results, .accepted_count = part.accepted_count});
    --part.track->in_flight;
    if (part.is_lost) --part.track->lost_in_flight;
  }
  QUIRE_TRY(cache_.finish_step(flight.step, results));
  for (const Part& part : flight.parts) {
    if (part.track->state == State::Running && !part.is_lost && is_done(*part.track)) {
      QUIRE_TRY(end(*part.track, true));
    }
  }
  return decide();
}

Status Scheduler::run_flight(Flight& flight) {
  if (cache_.config().device.memory == quire::DeviceMemory::Host) QUIRE_TRY(cache_.apply_copies(flight.step));
  if (const std::string problem = engine_.prepare(flight.plan); !problem.empty()) {
    return fail(ErrorCode::Corrupt, "the engine refuses a plan: " + problem);
  }
  std::vector<quire::TokenId> tokens;
  for (const quire::AttentionPlanEntry& entry : flight.step.plan.entries) {
    const Part& part = flight.parts[entry.entry_index];
    const std::vector<quire::TokenId>& text = part.track->output.tokens;
    for (std::uint32_t i = 0; i < part.known_count; ++i) {
      // A sequence that has ended meanwhile has no such token; what the step makes of it is ignored.
      const std::size_t position = part.position + i;
      tokens.push_back(part.track->state == State::Running && position < text.size() ? text[position] : 0);
    }
    tokens.insert(tokens.end(), part.drafts.begin(), part.drafts.end());
  }
  std::vector<double> logits;
  const auto wait = [&](std::uint32_t layer_index) -> std::string {
    if (flight.step.loads.empty()) return "";
    const auto outcome = cache_.wait_for_layer(flight.step, {0, layer_index}, kLayerTimeoutNs);
    if (!outcome) return outcome.error().message;
    // Of loads that have failed, lost_entries() tells.
    return *outcome == quire::TransferOutcome::TimedOut ? "a layer does not arrive" : "";
  };
  if (const std::string problem = engine_.forward(flight.plan, tokens, logits, wait); !problem.empty()) {
    return fail(ErrorCode::Corrupt, "the engine refuses a plan: " + problem);
  }
  if (!flight.step.loads.empty()) QUIRE_TRY(wait_for_loads(flight));
  return take_logits(flight, logits);
}

// Until it is known which entries have read good pages. What the others give is not used.
Status Scheduler::wait_for_loads(Flight& flight) {
  while (true) {
    QUIRE_TRY(collect());
    QUIRE_TRY(note_lost(flight));
    bool is_loading = false;
    for (const Part& part : flight.parts) {
      if (part.is_lost || part.track->state != State::Running) continue;
      QUIRE_TRY_ASSIGN(const quire::SequenceView view, cache_.view(part.track->handle));
      is_loading = is_loading || view.is_loading;
    }
    if (!is_loading) return {};
    std::this_thread::yield();
  }
}

Status Scheduler::note_lost(Flight& flight) {
  if (flight.step.loads.empty()) return {};
  QUIRE_TRY_ASSIGN(const std::span<const std::uint32_t> lost, cache_.lost_entries(flight.step));
  for (const std::uint32_t entry : lost) {
    Part& part = flight.parts[entry];
    if (part.is_lost) continue;
    part.is_lost = true;
    if (part.track->state == State::Running) lose(*part.track);
  }
  return {};
}

// Nothing that is planned of it happens: it goes on with what has arrived, when its oldest step is finished.
void Scheduler::lose(Track& track) {
  ++counts_.lost_entries;
  for (Flight& later : flights_) {
    for (Part& part : later.parts) part.is_lost = part.is_lost || part.track == &track;
  }
  track.lost_in_flight = track.in_flight;
  track.state = State::Loading;
}

}  // namespace tiny_engine
