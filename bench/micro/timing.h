// SPDX-License-Identifier: Apache-2.0
//
// What the benchmarks measure with. A figure is the median of many timed calls, and each contender of a
// comparison runs in the same process, in turns of a few calls each, so that a noisy neighbour disturbs all
// of them alike.
//
// Warm: the same calls follow each other. Cold: OtherTraffic::pass() runs before each call, so that nothing
// of the tree is left in the caches and the translation buffer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace quire::bench {

template <typename Call>
[[nodiscard]] double time_us(Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// Keeps the compiler from leaving out a computation whose result nobody reads.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

/// Timed calls of one contender, in microseconds.
class Samples {
 public:
  void add(double us) { us_.push_back(us); }
  template <typename Call>
  void time(Call&& call) {
    add(time_us(call));
  }
  /// `count` calls in a row. One more goes before them and is not counted: it finds the caches as the last
  /// contender left them.
  template <typename Call>
  void time_warm(std::size_t count, Call&& call) {
    call();
    for (std::size_t i = 0; i < count; ++i) time(call);
  }

  [[nodiscard]] std::size_t count() const { return us_.size(); }
  [[nodiscard]] double sum() const { return std::accumulate(us_.begin(), us_.end(), 0.0); }
  [[nodiscard]] double mean() const { return us_.empty() ? 0 : sum() / static_cast<double>(us_.size()); }
  [[nodiscard]] double median() const { return quantile(0.5); }
  [[nodiscard]] double quantile(double part) const {
    if (us_.empty()) return 0;
    std::vector<double> sorted = us_;
    const auto index = static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1));
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(index), sorted.end());
    return sorted[index];
  }

 private:
  std::vector<double> us_;
};

/// What an engine does between two calls: reads and writes 512 MB that have nothing to do with the tree.
class OtherTraffic {
 public:
  void pass() {
    // Ordinary loads and stores. A memset of this size would bypass the caches and leave the tree in them.
    for (std::size_t i = 0; i < words_.size(); i += kLineBytes / sizeof(std::uint64_t)) ++words_[i];
    keep(words_);
    keep(time_us([] {}));  // The clock has been evicted too, which is not the next call's fault.
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{512} << 20U;
  static constexpr std::size_t kLineBytes = 64;
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(kBytes / sizeof(std::uint64_t));
};

}  // namespace quire::bench
