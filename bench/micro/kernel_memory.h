// SPDX-License-Identifier: Apache-2.0
//
// The memory that benchmarks of host kernels work on, and memcpy as the limit beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/lazy_array.h"
#include "testing/seeded_run.h"
#include "timing.h"

namespace quire::bench {

/// Touched, and in huge pages where there is enough of it. The system maps one piece behind the other: source and
/// target at a distance of a power of two would fall on the same banks of the memory, which makes memcpy a quarter
/// slower.
[[nodiscard]] inline LazyMemory make_memory(std::uint64_t bytes) {
  constexpr std::uint64_t kApartBytes = std::uint64_t{4} << 20U;
  LazyMemory memory = LazyMemory::reserve(bytes + kApartBytes).value();
  memory.prefer_huge_pages();
  std::memset(memory.data(), 1, memory.bytes());
  return memory;
}

[[nodiscard]] inline std::vector<std::uint32_t> shuffled(std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  for (std::uint32_t i = 0; i < count; ++i) numbers[i] = i;
  testing::Random random(7);
  for (std::uint32_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[random.below(i)]);
  return numbers;
}

/// Pieces of `bytes`, from one memory to another, always the next piece.
class Memcpy {
 public:
  Memcpy(std::uint64_t piece_bytes, std::uint64_t total_bytes)
      : bytes_(piece_bytes),
        piece_count_(total_bytes / piece_bytes),
        source_(make_memory(total_bytes)),
        target_(make_memory(total_bytes)) {}

  void run() {
    const std::uint64_t offset = turn_++ % piece_count_ * bytes_;
    std::memcpy(target_.data() + offset, source_.data() + offset, bytes_);
    keep(target_);
  }

 private:
  std::uint64_t bytes_;
  std::uint64_t piece_count_;
  LazyMemory source_;
  LazyMemory target_;
  std::uint64_t turn_ = 0;
};

}  // namespace quire::bench
