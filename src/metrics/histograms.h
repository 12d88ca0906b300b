// SPDX-License-Identifier: Apache-2.0
//
// Histograms: distributions of what an engine has observed, with fixed buckets. Observing allocates nothing.
//
// single-threaded
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"

namespace quire {

/// Counts of values by the first bound that is not below them; the last count is of those above all bounds.
struct Histogram {
  static constexpr std::size_t kBoundCountMax = 20;

  std::array<std::uint64_t, kBoundCountMax + 1> counts{};
  std::uint64_t count = 0;
  double sum = 0;

  void observe(std::span<const double> bounds, double value) {
    QUIRE_DCHECK(bounds.size() <= kBoundCountMax, "a histogram has too many bounds");
    ++counts[static_cast<std::size_t>(std::ranges::lower_bound(bounds, value) - bounds.begin())];
    ++count;
    sum += value;
  }
};

namespace bounds {

inline constexpr std::array kCallSeconds{1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4,
                                         2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1};
inline constexpr std::array kTransferSeconds{1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                             2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0,  2.0,  5.0,  10.0};
inline constexpr std::array kReadySeconds{1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1,
                                          2e-1, 5e-1, 1.0,  2.0,  5.0,  10.0, 20.0, 50.0, 100.0};
inline constexpr std::array kTokens{0.0,    64.0,    128.0,   256.0,   512.0,    1024.0,   2048.0,   4096.0,
                                    8192.0, 16384.0, 32768.0, 65536.0, 131072.0, 262144.0, 524288.0, 1048576.0};
inline constexpr std::array kRatio{0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0};
/// A second to a week.
inline constexpr std::array kAgeSeconds{1.0,     10.0,    60.0,    300.0,   900.0,    1800.0,  3600.0,
                                        10800.0, 21600.0, 43200.0, 86400.0, 259200.0, 604800.0};

}  // namespace bounds
}  // namespace quire
