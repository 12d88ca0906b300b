// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: what becomes of logits. Tokens of plain requests are chosen as soon as their step has run; samples, beams
// and trees are decided between steps.
#include <algorithm>
#include <functional>
#include <utility>

#include "sampling.h"
#include "scheduler.h"

namespace tiny_engine {

using quire::ErrorCode;
using quire::fail;
using quire::Status;

namespace {

std::vector<double> copy_of(std::span<const double> row) {
  return {row.begin(), row.end()};
}

}  // namespace

bool Scheduler::is_done(const Track& track) const {
  const Request& request = request_of(track);
  const Output& output = track.output;
  if (output.tokens.size() == output.prompt_tokens || request.beam_width > 0) return false;
  return room_of(track) == 0 || (request.end_token && output.tokens.back() == *request.end_token);
}

std::uint32_t Scheduler::room_of(const Track& track) const {
  const std::size_t made = track.output.tokens.size() - track.output.prompt_tokens;
  return request_of(track).new_tokens_max - static_cast<std::uint32_t>(made);
}

Status Scheduler::take_logits(Flight& flight, std::span<const double> logits) {
  const std::size_t vocabulary = engine_.weights().shape.vocabulary;
  // Tokens are drawn on the device, where states are found by the plan's state slots.
  std::vector<std::uint64_t> draws;
  for (const quire::AttentionPlanEntry& entry : flight.step.plan.entries) {
    const Part& part = flight.parts[entry.entry_index];
    const Request& request = request_of(*part.track);
    const bool draws_here = part.reaches_end && !part.is_lost && request.sample_count == 1 && request.beam_width == 0;
    draws.push_back(draws_here ? kDrawn : 0);
    if (draws_here && part.track->state == State::Running && !std::exchange(part.track->has_state, true)) {
      engine_.state(entry.state_slot) = first_state(request.seed, 0);
    }
    if (part.reaches_end && !part.is_lost && part.track->has_state && request.sample_count > 1) draws.back() = kDrawn;
  }
  std::vector<std::uint64_t> states;
  if (const std::string problem = engine_.fold_states(flight.plan, draws, states); !problem.empty()) {
    return fail(ErrorCode::Corrupt, "the engine refuses a plan: " + problem);
  }
  std::size_t first = 0;
  for (std::size_t i = 0; i < flight.step.plan.entries.size(); ++i) {
    Part& part = flight.parts[flight.step.plan.entries[i].entry_index];
    const std::size_t count = part.known_count + part.drafts.size();
    const auto rows = logits.subspan(first * vocabulary, count * vocabulary);
    first += count;
    if (part.track->state != State::Running || part.is_lost) continue;
    if (!part.parents.empty()) {
      grow_tree(part, rows);
    } else if (!part.drafts.empty()) {
      accept_chain(part, rows);
    } else if (part.reaches_end) {
      choose_token(part, rows.last(vocabulary), states[i]);
    }
  }
  return {};
}

void Scheduler::choose_token(Part& part, std::span<const double> logits, std::uint64_t state) {
  Track& track = *part.track;
  const Request& request = request_of(track);
  const bool waits = request.beam_width > 0 || (request.sample_count > 1 && !track.has_state);
  if (waits) {
    track.has_answer = true;
    track.answer = copy_of(logits);
    return;
  }
  const quire::TokenId token = pick_token(logits, request.temperature, state);
  track.output.tokens.push_back(token);
  track.output.logits.push_back(copy_of(logits));
  part.results = {token};
}

// Keeps the guesses that the model would have made itself, and the model's own token behind them.
void Scheduler::accept_chain(Part& part, std::span<const double> logits) {
  Track& track = *part.track;
  const std::size_t vocabulary = engine_.weights().shape.vocabulary;
  counts_.drafted_tokens += part.drafts.size();
  for (std::size_t i = 0; i <= part.drafts.size(); ++i) {
    const auto row = logits.subspan((part.known_count - 1 + i) * vocabulary, vocabulary);
    const quire::TokenId token = pick_best(row);
    track.output.tokens.push_back(token);
    track.output.logits.push_back(copy_of(row));
    part.results.push_back(token);
    const bool is_guessed = i < part.drafts.size() && part.drafts[i] == token;
    if (!is_guessed || is_done(track)) break;
    ++part.accepted_count;
    ++counts_.accepted_tokens;
    ++track.planned;
  }
}

void Scheduler::grow_tree(Part& part, std::span<const double> logits) {
  Track& track = *part.track;
  const std::size_t vocabulary = engine_.weights().shape.vocabulary;
  if (part.known_count > 0) track.answer = copy_of(logits.subspan((part.known_count - 1) * vocabulary, vocabulary));
  for (std::size_t i = 0; i < part.drafts.size(); ++i) {
    track.tree.push_back({.token = part.drafts[i],
                          .parent = part.parents[i],
                          .logits = copy_of(logits.subspan((part.known_count + i) * vocabulary, vocabulary))});
  }
  counts_.drafted_tokens += part.drafts.size();
  part.results = part.drafts;
  ++track.tree_rounds;
}

Status Scheduler::decide() {
  std::vector<Track*> deciding;
  std::vector<std::size_t> beams;
  for (const auto& track : tracks_) {
    if (track->state == State::Running && track->in_flight == 0) deciding.push_back(track.get());
  }
  for (Track* track : deciding) {
    const Request& request = request_of(*track);
    if (!track->tree.empty()) {
      QUIRE_TRY(decide_tree(*track));
    } else if (track->has_answer && request.beam_width > 0) {
      if (beams.empty() || beams.back() != track->request_index) beams.push_back(track->request_index);
    } else if (track->has_answer) {
      QUIRE_TRY(start_samples(*track));
    }
  }
  for (const std::size_t request_index : beams) QUIRE_TRY(step_beams(request_index));
  return {};
}

// Follows the model's own choices down the tree. At its deepest token, the tree grows once more before it is decided.
Status Scheduler::decide_tree(Track& track) {
  std::vector<std::int32_t> path;
  const std::vector<double>* logits = &track.answer;
  std::int32_t at = -1;
  while (true) {
    const quire::TokenId token = pick_best(*logits);
    const auto next = std::find_if(track.tree.begin(), track.tree.end(),
                                   [&](const TreeToken& node) { return node.parent == at && node.token == token; });
    const Request& request = request_of(track);
    const bool must_stop = path.size() + 1 >= room_of(track) || (request.end_token && token == *request.end_token);
    if (next == track.tree.end() || must_stop) break;
    at = static_cast<std::int32_t>(next - track.tree.begin());
    path.push_back(at);
    logits = &next->logits;
  }
  const bool is_deepest = at + 1 == static_cast<std::int32_t>(track.tree.size());
  if (is_deepest && track.tree_rounds < 2 && path.size() + 2 <= room_of(track)) return {};

  QUIRE_TRY(cache_.commit_tree(track.handle, at));
  counts_.accepted_tokens += path.size();
  const std::vector<TreeToken> tree = std::exchange(track.tree, {});
  track.tree_rounds = 0;
  std::vector<double> before = std::exchange(track.answer, {});
  for (const std::int32_t node : path) {
    track.output.tokens.push_back(tree[static_cast<std::size_t>(node)].token);
    track.output.logits.push_back(std::move(before));
    before = tree[static_cast<std::size_t>(node)].logits;
    ++track.planned;
  }
  QUIRE_TRY(append(track, pick_best(before), before));
  return is_done(track) ? end(track, true) : Status{};
}

// The prompt is computed: every sample takes its own token from the same logits.
Status Scheduler::start_samples(Track& track) {
  const Request& request = request_of(track);
  std::vector<Track*> samples = {&track};
  for (std::uint32_t i = 1; i < request.sample_count; ++i) {
    QUIRE_TRY_ASSIGN(Track* const sample, fork(track, i));
    samples.push_back(sample);
  }
  for (Track* sample : samples) {
    QUIRE_TRY_ASSIGN(const quire::SequenceView view, cache_.view(sample->handle));
    const std::uint64_t state = first_state(request.seed, sample->output.sample_index);
    engine_.state(view.state_slot) = next_state(state);
    sample->has_state = true;
    sample->has_answer = false;
    const std::vector<double> logits = std::exchange(sample->answer, {});
    QUIRE_TRY(append(*sample, pick_token(logits, request.temperature, state), logits));
    if (is_done(*sample)) QUIRE_TRY(end(*sample, true));
  }
  return {};
}

// All beams of a request have answered: the best continuations go on, each from a fork of the beam it continues.
Status Scheduler::step_beams(std::size_t request_index) {
  const Request& request = requests_[request_index];
  struct Candidate {
    Track* track = nullptr;
    quire::TokenId token = 0;
    double score = 0.0;
  };
  std::vector<Track*> beams;
  for (const auto& track : tracks_) {
    if (track->request_index != request_index || track->state == State::Ended) continue;
    if (!track->has_answer || track->state != State::Running) return {};  // it waits for the others
    beams.push_back(track.get());
  }
  std::vector<Candidate> candidates;
  for (Track* beam : beams) {
    const std::vector<double> logs = log_probabilities(beam->answer);
    for (std::size_t i = 0; i < logs.size(); ++i) {
      candidates.push_back(
          {.track = beam, .token = static_cast<quire::TokenId>(i), .score = beam->output.score + logs[i]});
    }
  }
  std::ranges::sort(candidates, std::greater{}, &Candidate::score);
  candidates.resize(std::min<std::size_t>(candidates.size(), request.beam_width));

  // Forks come first, while every beam still is what it was.
  std::vector<Track*> taken;
  for (Candidate& candidate : candidates) {
    if (std::find(taken.begin(), taken.end(), candidate.track) != taken.end()) {
      QUIRE_TRY_ASSIGN(candidate.track, fork(*candidate.track, 0));
    }
    taken.push_back(candidate.track);
  }
  for (Track* beam : beams) {
    if (std::find(taken.begin(), taken.end(), beam) == taken.end()) QUIRE_TRY(end(*beam, false));
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Track& track = *candidates[i].track;
    track.output.sample_index = static_cast<std::uint32_t>(i);
    track.output.score = candidates[i].score;
    track.has_answer = false;
    const std::vector<double> logits = std::exchange(track.answer, {});
    QUIRE_TRY(append(track, candidates[i].token, logits));
    if (room_of(track) == 0) QUIRE_TRY(end(track, true));
  }
  return {};
}

Status Scheduler::append(Track& track, quire::TokenId token, std::span<const double> logits) {
  track.output.tokens.push_back(token);
  track.output.logits.push_back(copy_of(logits));
  return cache_.append(track.handle, {.tokens = {&token, 1}});
}

}  // namespace tiny_engine
