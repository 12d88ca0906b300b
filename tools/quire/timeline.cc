// SPDX-License-Identifier: Apache-2.0
#include "timeline.h"

#include <algorithm>

namespace quire {

Timeline::Timeline(const Trace& trace, std::uint32_t bin_count) : trace_(&trace) {
  if (trace.requests.empty()) return;
  const auto [first, last] = std::ranges::minmax(trace.requests, {}, &TraceRequest::timestamp_ns);
  has_times_ = first.timestamp_ns != last.timestamp_ns;
  first_ns_ = first.timestamp_ns;
  const std::uint64_t bins_max = std::max(1U, bin_count);
  const std::uint64_t whole = has_times_ ? static_cast<std::uint64_t>(last.timestamp_ns - first.timestamp_ns) + 1
                                         : std::uint64_t{trace.requests.size()};
  span_ = (whole + bins_max - 1) / bins_max;
  bin_count_ = (whole + span_ - 1) / span_;
}

std::size_t Timeline::bin_of(std::size_t request_index) const {
  if (!has_times_) return request_index / span_;
  return static_cast<std::uint64_t>(trace_->requests[request_index].timestamp_ns - first_ns_) / span_;
}

std::vector<TimeBin> Timeline::bins() const {
  std::vector<TimeBin> bins(bin_count_);
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const auto begin = static_cast<double>(i * span_);
    bins[i].begin = has_times_ ? begin / 1e9 : begin;
  }
  return bins;
}

}  // namespace quire
