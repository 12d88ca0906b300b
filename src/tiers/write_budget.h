// SPDX-License-Identifier: Apache-2.0
//
// WriteBudget: how much may be written to a tier that wears by writing. Bytes come in evenly over the day, and a quiet
// time saves up no more than an hour's share, so that no day has more than its own. Pages that were used again may take
// the budget down to nothing, other pages only to the half of what a quiet time saves.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "quire/types.h"

namespace quire {

class WriteBudget {
 public:
  WriteBudget() = default;
  /// 0: there is no limit.
  explicit WriteBudget(std::uint64_t bytes_per_day)
      : per_day_(static_cast<double>(bytes_per_day)), burst_(per_day_ / kBurstsPerDay), left_(burst_) {}

  void refill(TimeNs elapsed_ns) {
    QUIRE_CHECK(elapsed_ns >= 0, "time goes back");
    left_ = std::min(burst_, left_ + ((per_day_ - burst_) / kDayNs * static_cast<double>(elapsed_ns)));
  }
  [[nodiscard]] bool allows(std::uint64_t bytes, bool is_hot) const {
    return per_day_ == 0 || left_ - static_cast<double>(bytes) >= (is_hot ? 0 : burst_ / 2);
  }
  void take(std::uint64_t bytes) { left_ -= static_cast<double>(bytes); }
  /// What was taken was a guess: some pages were there already, and others needed room made for them.
  void correct(std::uint64_t guessed_bytes, std::uint64_t written_bytes) {
    left_ += static_cast<double>(guessed_bytes) - static_cast<double>(written_bytes);
  }

 private:
  static constexpr double kDayNs = 86'400.0 * 1'000'000'000.0;
  static constexpr double kBurstsPerDay = 24;

  double per_day_ = 0;
  double burst_ = 0;
  double left_ = 0;
};

}  // namespace quire
