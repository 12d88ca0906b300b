// SPDX-License-Identifier: Apache-2.0
//
// Timeline: divides the requests of a trace into stretches, so that figures can be shown over time. Equal spans of the
// timestamps, or of the requests when all timestamps are equal. immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "replay.h"
#include "trace.h"

namespace quire {

class Timeline {
 public:
  Timeline(const Trace& trace, std::uint32_t bin_count);

  [[nodiscard]] std::size_t bin_of(std::size_t request_index) const;
  /// Each stretch with its begin, and nothing counted yet.
  [[nodiscard]] std::vector<TimeBin> bins() const;

 private:
  const Trace* trace_;
  bool has_times_ = false;
  TimeNs first_ns_ = 0;
  std::uint64_t span_ = 1;  // nanoseconds, or requests
  std::size_t bin_count_ = 1;
};

}  // namespace quire
