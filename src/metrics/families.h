// SPDX-License-Identifier: Apache-2.0
//
// From a snapshot to metrics: the one place that knows their names, types, texts and labels. docs/metrics.md lists
// them; a test compares the two.
//
// immutable
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/histograms.h"
#include "quire/cache.h"
#include "quire/metrics.h"
#include "quire/stats.h"
#include "quire/types.h"

namespace quire {

inline constexpr std::size_t kTierCount = 4;

/// What of a Cache does not change.
struct CacheFacts {
  std::uint64_t page_bytes = 0;
  std::uint32_t page_tokens = 0;
  std::string policy;
  std::string host_policy;                     ///< empty: no host tier
  std::uint64_t disk_write_bytes_per_day = 0;  ///< 0: no limit
  std::uint64_t remote_write_bytes_per_day = 0;
};

/// All that a scrape shows.
struct MetricsSnapshot {
  std::optional<double> start_time_seconds;
  std::optional<CacheFacts> facts;
  std::optional<Stats> stats;
  std::optional<DiskStatus> disk;
  std::optional<RemoteTierStatus> remote;
  std::array<Histogram, kTimedCallCount> call_seconds;
  std::array<Histogram, kTransferKindCount> transfer_seconds;
  std::array<Histogram, kTransferKindCount> remote_transfer_seconds;  ///< of those of the remote tier
  std::array<Histogram, kTierCount> miss_age_seconds;                 ///< by the tier that held it last
  Histogram ready_seconds;
  Histogram prompt_tokens;
  Histogram matched_tokens;
  Histogram matched_ratio;
};

enum class MetricType : std::uint8_t { Counter, Gauge, Histogram };

struct MetricLabel {
  std::string_view name;
  std::string value;
};

struct Metric {
  std::vector<MetricLabel> labels;
  double value = 0;
  Histogram histogram;
};

struct MetricFamily {
  std::string_view name;
  MetricType type = MetricType::Counter;
  std::string_view help;
  std::span<const double> bounds;  ///< of a histogram
  std::vector<Metric> metrics;
};

/// What of the snapshot is not there yet is left out.
[[nodiscard]] std::vector<MetricFamily> families_of(const MetricsSnapshot& snapshot);

}  // namespace quire
