// SPDX-License-Identifier: Apache-2.0
//
// WriteBudget: how much may be written to a tier that wears by writing. The budget grows evenly with time, up to the
// share of one hour. In a day it grows by bytes_per_day less that share, so that no 24 hours see more than
// bytes_per_day. Pages that were used again may take it down to nothing, other pages only down to half of the hour's
// share.
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
  /// Replaces the guess that take() was given by what was written: less where the tier had pages already, more where it
  /// had to make room.
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
