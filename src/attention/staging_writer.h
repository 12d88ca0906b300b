// SPDX-License-Identifier: Apache-2.0
//
// StagingWriter: hands out the arrays of a plan one after the other in a staging buffer, each 16-byte aligned as vector
// loads want it. The buffer is large enough for every plan; a bug in its size stops the program, it never overruns.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/check.h"
#include "base/lazy_array.h"

namespace quire {

class StagingWriter {
 public:
  static constexpr std::size_t kAlignBytes = 16;

  explicit StagingWriter(const LazyMemory& memory) : data_(memory.data()), capacity_bytes_(memory.bytes()) {}

  /// The next array, contents undefined.
  template <typename T>
  [[nodiscard]] std::span<T> take(std::size_t count) {
    const std::span<T> array = rest<T>();
    QUIRE_CHECK(count <= array.size(), "a plan is larger than its staging buffer");
    used_bytes_ = begin_bytes() + (count * sizeof(T));
    return array.first(count);
  }

  /// Where the next array will lie, with all the room behind it: for an array whose length is known once it is written.
  template <typename T>
  [[nodiscard]] std::span<T> rest() const {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignBytes);
    const std::size_t begin = begin_bytes();
    if (begin >= capacity_bytes_) return {};
    return {reinterpret_cast<T*>(data_ + begin), (capacity_bytes_ - begin) / sizeof(T)};
  }

  /// All arrays up to here.
  [[nodiscard]] std::span<const std::byte> written() const { return {data_, used_bytes_}; }

 private:
  [[nodiscard]] std::size_t begin_bytes() const { return (used_bytes_ + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

  std::byte* data_;
  std::size_t capacity_bytes_;
  std::size_t used_bytes_ = 0;
};

/// A copy of an array of the caller's.
template <typename T>
[[nodiscard]] std::span<const T> copy_array(std::span<const T> source, StagingWriter& staging) {
  const std::span<T> target = staging.take<T>(source.size());
  std::copy(source.begin(), source.end(), target.begin());
  return target;
}

}  // namespace quire
