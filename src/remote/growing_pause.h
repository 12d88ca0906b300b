// SPDX-License-Identifier: Apache-2.0
//
// GrowingPause: pauses between tries. Each is twice as long as the one before, up to a limit; and between half of that
// and all of it, differently from seed to seed, so that a hundred engines do not come back at the same moment.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/hash.h"
#include "quire/types.h"

namespace quire {

class GrowingPause {
 public:
  GrowingPause(TimeNs ns_min, TimeNs ns_max, std::uint64_t seed)
      : ns_min_(std::max<TimeNs>(ns_min, 1)), ns_max_(std::max(ns_max, ns_min_)), seed_(seed) {}

  /// `doublings`: how often it has grown.
  [[nodiscard]] TimeNs take(std::uint32_t doublings) {
    TimeNs longest = ns_min_;
    for (std::uint32_t i = 0; i < doublings && longest < ns_max_; ++i) longest *= 2;
    longest = std::min(longest, ns_max_);
    seed_ = mix64(seed_);
    const TimeNs half = longest / 2;
    return half + static_cast<TimeNs>(seed_ % static_cast<std::uint64_t>(longest - half + 1));
  }

 private:
  TimeNs ns_min_;
  TimeNs ns_max_;
  std::uint64_t seed_;
};

}  // namespace quire
