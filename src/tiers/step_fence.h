// SPDX-License-Identifier: Apache-2.0
//
// StepFence: which steps are in flight, and whether moves wait for the next plan. Kernels of a planned step run until
// the step has ended, and the moves of a committed token tree come with the next plan. So a page that a sequence gives
// back is used again only after the last step planned by then has ended, or after the next step if moves wait; and a
// page that moves will write is not copied to another tier before they are made.
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
  /// Says whether moves wait for the next plan.
  void set_moves(bool has_moves) { has_moves_ = has_moves; }
  /// A public call of the cache begins. Calls are counted for rows that look ahead (TierPages::settle_later()).
  void begin_call() { ++call_number_; }

  [[nodiscard]] bool has_steps() const { return !in_flight_.empty(); }
  [[nodiscard]] bool has_moves() const { return has_moves_; }
  /// No step is in flight, and no moves wait for the next plan.
  [[nodiscard]] bool is_quiet() const { return in_flight_.empty() && !has_moves_; }
  /// The last step that may use a page which is given back now: the next plan's if moves wait, else the newest in
  /// flight. Not to be called when is_quiet().
  [[nodiscard]] std::uint64_t last_user() const {
    QUIRE_CHECK(!is_quiet(), "a page waits for steps, and there are none");
    return has_moves_ ? next_number() : in_flight_.back();
  }
  /// The oldest step that may still use a page: pages that wait for an earlier one are free.
  [[nodiscard]] std::uint64_t first_user() const {
    const std::uint64_t of_moves = has_moves_ ? next_number() : UINT64_MAX;
    return in_flight_.empty() ? of_moves : in_flight_.front();
  }
  /// Whether the moves that come with a step have been made, so that none is still to write the pages they write. Step
  /// 0 stands for no moves.
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
