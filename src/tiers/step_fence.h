// SPDX-License-Identifier: Apache-2.0
//
// StepFence: which steps may still read or write a page. Kernels of a planned step run until the step is finished, and
// the moves of a committed token tree come with the next plan. So a page that a sequence gives back is used again when
// the last step that was planned by then is over, and a page that moves will write is copied to no other tier before.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace quire {

class StepFence {
 public:
  void reserve(std::uint32_t steps_in_flight_max) { in_flight_.reserve(steps_in_flight_max); }

  /// The number that the next planned step has.
  [[nodiscard]] std::uint64_t next_number() const { return last_planned_ + 1; }
  void plan_step() { in_flight_.push_back(++last_planned_); }
  void end_step(std::uint64_t number) {
    const auto step = std::ranges::find(in_flight_, number);
    QUIRE_CHECK(step != in_flight_.end(), "a step ends that is not in flight");
    in_flight_.erase(step);
  }
  /// Whether moves wait for the next plan.
  void set_moves(bool has_moves) { has_moves_ = has_moves; }
  void begin_call() { ++call_number_; }

  [[nodiscard]] bool has_steps() const { return !in_flight_.empty(); }
  [[nodiscard]] bool has_moves() const { return has_moves_; }
  /// No kernel runs, and none is about to write pages that are in nobody's plan yet.
  [[nodiscard]] bool is_quiet() const { return in_flight_.empty() && !has_moves_; }
  /// The step after which a page that is given back now is nobody's. Not when is_quiet().
  [[nodiscard]] std::uint64_t last_user() const {
    QUIRE_CHECK(!is_quiet(), "a page waits for steps, and there are none");
    return has_moves_ ? next_number() : in_flight_.back();
  }
  /// Pages that wait for steps before this one are nobody's.
  [[nodiscard]] std::uint64_t first_user() const {
    const std::uint64_t of_moves = has_moves_ ? next_number() : UINT64_MAX;
    return in_flight_.empty() ? of_moves : in_flight_.front();
  }
  /// Whether moves that come with a step have been made: no move that is still to come writes the page, though the page
  /// may have left the tree meanwhile. Step 0 stands for none.
  [[nodiscard]] bool is_over(std::uint64_t step) const {
    if (is_quiet() || step == 0) return true;  // moves may have been made without a step
    return step <= last_planned_ && (in_flight_.empty() || in_flight_.front() > step);
  }
  [[nodiscard]] std::uint64_t call_number() const { return call_number_; }

 private:
  std::vector<std::uint64_t> in_flight_;  // numbers, in the order of planning
  std::uint64_t last_planned_ = 0;
  bool has_moves_ = false;
  std::uint64_t call_number_ = 0;
};

}  // namespace quire
