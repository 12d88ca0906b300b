// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: continuous batching on a Cache and an Engine. Requests wait, are admitted in order, and share steps:
// tokens to decode first, then as much of the prompts as the step has room for. When pages are short, the youngest
// sequence is preempted. With two steps in flight, a step is planned before the tokens of the one before are known.
//
// single-threaded
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "device_plan.h"
#include "draft.h"
#include "engine.h"
#include "quire/cache.h"
#include "request.h"

namespace tiny_engine {

struct SchedulerOptions {
  std::uint32_t step_tokens_max = 64;   ///< at most the cache's
  std::uint32_t chunk_tokens_max = 64;  ///< of one prompt in one step
  std::uint32_t running_max = 16;       ///< sequences admitted at once
  std::uint32_t steps_in_flight = 1;    ///< 2: asynchronous scheduling
  quire::Preempt preempt = quire::Preempt::Drop;
  /// Steps are planned for sequences whose pages are still arriving, and wait for them layer by layer.
  bool plans_while_loading = false;
  std::uint32_t draft_tokens = 3;  ///< of a chain, and the depth of a tree's round
  Guess guess = guess_from_text;
};

struct SchedulerCounts {
  std::uint64_t step_count = 0;
  std::uint64_t prompt_tokens = 0;  ///< of all requests
  std::uint64_t found_tokens = 0;   ///< of them, those that needed no prefill
  std::uint64_t new_tokens = 0;
  std::uint64_t copied_pages = 0;
  std::uint64_t moved_tokens = 0;
  std::uint64_t fork_count = 0;
  std::uint64_t preempt_count = 0;
  std::uint64_t drafted_tokens = 0;
  std::uint64_t accepted_tokens = 0;
  std::uint64_t early_steps = 0;   ///< that were planned before all their pages had arrived
  std::uint64_t lost_entries = 0;  ///< of them, computed again because a load did not bring good pages
};

class Scheduler {
 public:
  /// Cache and engine must outlive the scheduler, and be on the same pool.
  Scheduler(quire::Cache& cache, Engine& engine, quire::KeySpaceId key_space, SchedulerOptions options);

  /// Queues a request; its index is the number of those before it.
  void add(Request request);
  /// Runs until every request is done. Fails when a call of the cache does, or the engine refuses a plan.
  [[nodiscard]] quire::Status run();

  /// In the order they were finished.
  [[nodiscard]] const std::vector<Output>& outputs() const { return outputs_; }
  [[nodiscard]] const std::vector<Request>& requests() const { return requests_; }
  [[nodiscard]] const SchedulerCounts& counts() const { return counts_; }

 private:
  enum class State : std::uint8_t { Waiting, Preempted, Loading, Running, Ended };
  struct TreeToken {
    quire::TokenId token = 0;
    std::int32_t parent = -1;
    std::vector<double> logits;
  };
  /// A sequence on its way.
  struct Track {
    std::size_t request_index = 0;
    State state = State::Waiting;
    quire::Sequence handle;
    Output output;            // its tokens include those that are only on the device so far
    std::size_t planned = 0;  // tokens that are computed or in a step in flight
    std::uint32_t in_flight = 0;
    std::uint32_t lost_in_flight = 0;  // of them, those that do not count
    bool has_state = false;            // its state slot has been set
    bool is_restored = false;          // it has run before
    bool has_answer = false;  // logits after the last token are in `answer`; somebody has to choose what follows
    std::vector<double> answer;
    std::vector<TreeToken> tree;  // undecided
    std::uint32_t tree_rounds = 0;
  };
  struct Part {
    Track* track = nullptr;
    std::size_t position = 0;
    std::uint32_t known_count = 0;
    bool reaches_end = false;             // computes the last token there is, so the model's answer is wanted
    std::vector<quire::TokenId> drafts;   // a chain, or tree tokens
    std::vector<std::int32_t> parents;    // of tree tokens
    std::vector<quire::TokenId> results;  // for finish_step
    std::uint32_t accepted_count = 0;
    bool is_lost = false;  // pages that it reads did not arrive: what is computed of it does not count
  };
  struct Flight {
    quire::Step step;
    DevicePlan plan;
    std::vector<Part> parts;  // as in the call of plan_step
  };

  // Sequences come and go.
  [[nodiscard]] quire::Status admit_waiting();
  [[nodiscard]] quire::Status admit(Track& track);
  [[nodiscard]] quire::Status collect();
  [[nodiscard]] quire::Result<bool> preempt_youngest();
  [[nodiscard]] quire::Result<Track*> fork(Track& source, std::uint32_t sample_index);
  [[nodiscard]] quire::Status end(Track& track, bool is_output);
  [[nodiscard]] std::uint32_t running_count() const;
  [[nodiscard]] const Request& request_of(const Track& track) const { return requests_[track.request_index]; }

  // Steps.
  [[nodiscard]] quire::Result<bool> plan_next();
  [[nodiscard]] bool describe_part(Track& track, std::uint32_t tokens_left, Part& part);
  void add_drafts(const Track& track, std::uint32_t tokens_left, Part& part) const;
  [[nodiscard]] quire::Status finish_oldest();
  [[nodiscard]] quire::Status run_flight(Flight& flight);

  // What follows from logits.
  [[nodiscard]] quire::Status take_logits(Flight& flight, std::span<const double> logits);
  void choose_token(Part& part, std::span<const double> logits, std::uint64_t state);
  void accept_chain(Part& part, std::span<const double> logits);
  void grow_tree(Part& part, std::span<const double> logits);
  [[nodiscard]] quire::Status decide();
  [[nodiscard]] quire::Status decide_tree(Track& track);
  [[nodiscard]] quire::Status start_samples(Track& track);
  [[nodiscard]] quire::Status step_beams(std::size_t request_index);
  [[nodiscard]] quire::Status append(Track& track, quire::TokenId token, std::span<const double> logits);
  [[nodiscard]] quire::Status wait_for_loads(Flight& flight);
  [[nodiscard]] quire::Status note_lost(Flight& flight);
  void lose(Track& track);
  [[nodiscard]] bool is_done(const Track& track) const;
  /// New tokens that may still come.
  [[nodiscard]] std::uint32_t room_of(const Track& track) const;

  quire::Cache& cache_;
  Engine& engine_;
  quire::KeySpaceId key_space_;
  SchedulerOptions options_;
  std::vector<Request> requests_;
  std::vector<std::unique_ptr<Track>> tracks_;  // oldest first
  std::deque<Flight> flights_;
  bool may_admit_ = true;  // nothing has been preempted since a sequence last ended
  std::vector<Output> outputs_;
  SchedulerCounts counts_;
};

}  // namespace tiny_engine
