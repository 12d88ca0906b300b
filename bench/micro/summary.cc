// SPDX-License-Identifier: Apache-2.0
#include "summary.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

namespace quire::bench {
namespace {

enum class Bound { AtMost, AtLeast };

struct Target {
  const char* what;
  const char* benchmark;
  const char* counter;
  const char* unit;
  double value;
  Bound bound = Bound::AtMost;
};

constexpr std::array kTargets = {
    Target{"match of 100,000 tokens, P=16, warm", "match/warm/P:16", "to_memcmp", "x memcmp", 1.5},
    Target{"match of 100,000 tokens, P=16, cold", "match/cold/P:16", "quire_us", "us", 100},
    Target{"match of 100,000 tokens, P=16, cold, aged tree", "match/aged_cold/P:16", "quire_us", "us", 100},
    Target{"insert of 100,000 tokens, P=16", "insert/warm/P:16", "to_memcpy", "x memcpy", 4},
    Target{"W1, P=16", "chat/lru/P:16", "requests_per_s", "requests/s", 140'000, Bound::AtLeast},
    Target{"W1, P=16, eviction", "chat/lru/P:16", "evict_us_per_256_tokens", "us per 256 tokens", 1},
    Target{"W1, P=1, eviction", "chat/lru/P:1", "evict_us_per_256_tokens", "us per 256 tokens", 1},
    Target{"W2, P=1, one chunk, warm", "long_context/warm/P:1/chunk:131072", "quire_ms", "ms", 0.065},
    Target{"W2, P=1, chunks of 8,192, warm", "long_context/warm/P:1/chunk:8192", "quire_ms", "ms", 0.065},
    Target{"W2, P=1, chunks of 256, warm", "long_context/warm/P:1/chunk:256", "quire_ms", "ms", 0.065},
    Target{"W2, P=16, chunks of 256, warm", "long_context/warm/P:16/chunk:256", "quire_ms", "ms", 0.065},
    Target{"W3, P=1, 1,000,000 leaves, cold", "evict/cold/lru/P:1/leaves:1000000", "quire_us", "us", 10},
    Target{"W3, P=16, 1,000,000 leaves, cold", "evict/cold/lru/P:16/leaves:1000000", "quire_us", "us", 10},
    Target{"W3, P=1, flat to 1,000,000 leaves, cold", "evict/cold/lru/P:1/leaves:1000000", "to_1000_leaves",
           "x 1,000 leaves", 2},
    Target{"index memory, P=16", "memory/P:16", "bytes_per_token", "bytes/token", 6},
    Target{"index memory, P=1", "memory/P:1", "bytes_per_token", "bytes/token", 24},
};

std::string key_of(std::string_view benchmark, std::string_view counter) {
  return std::string(benchmark) + ' ' + std::string(counter);
}

std::string number(double value) {
  std::array<char, 32> text{};
  const int digits = value >= 1000 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  (void)std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

}  // namespace

void Summary::ReportRuns(const std::vector<Run>& runs) {
  shown_->ReportRuns(runs);
  for (const Run& run : runs) {
    if (run.run_type != Run::RT_Iteration || run.counters.empty()) continue;  // one that failed has no counters
    for (const auto& [counter, value] : run.counters) {
      values_[key_of(run.run_name.function_name, counter)].push_back(value);
    }
  }
}

std::optional<double> Summary::measured(const std::string& benchmark, const std::string& counter) const {
  const auto found = values_.find(key_of(benchmark, counter));
  if (found == values_.end()) return std::nullopt;
  std::vector<double> sorted = found->second;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

void Summary::print(std::ostream& out) const {
  bool is_first = true;
  for (const Target& target : kTargets) {
    const std::optional<double> value = measured(target.benchmark, target.counter);
    if (!value) continue;
    std::array<char, 160> line{};
    if (is_first) {
      (void)std::snprintf(line.data(), line.size(), "\n%-47s %10s  %2s %-9s %-18s %8s\n", "what", "measured", "",
                          "target", "unit", "ratio");
      out << line.data();
      is_first = false;
    }
    const bool is_met = target.bound == Bound::AtMost ? *value <= target.value : *value >= target.value;
    (void)std::snprintf(line.data(), line.size(), "%-47s %10s  %2s %-9s %-18s %8s  %s\n", target.what,
                        number(*value).c_str(),
                        target.bound == Bound::AtMost ? "<=" : ">=", number(target.value).c_str(), target.unit,
                        number(*value / target.value).c_str(), is_met ? "ok" : "short");
    out << line.data();
  }
  if (const std::optional<double> ratio = measured("chat/lru/P:16", "to_naive")) {
    out << "W1, P=16: " << number(*ratio) << " times the textbook radix tree of the same run\n";
  }
}

}  // namespace quire::bench
