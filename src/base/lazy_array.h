// SPDX-License-Identifier: Apache-2.0
//
// LazyArray<T>: a fixed number of zero-filled elements in address space reserved up front. Memory is taken from the
// system only where elements are first written, so a bound that is rarely reached costs nothing, and no element
// ever allocates later. grow() may move the elements.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "quire/result.h"

namespace quire {

/// One reserved range of bytes; the untyped half of LazyArray.
class LazyMemory {
 public:
  LazyMemory() = default;
  LazyMemory(LazyMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  LazyMemory& operator=(LazyMemory&& other) noexcept;
  ~LazyMemory();

  [[nodiscard]] static Result<LazyMemory> reserve(std::size_t bytes);
  [[nodiscard]] Status grow(std::size_t bytes);

  /// Asks for huge pages if the range is large, for memory that is used all over: a lookup then misses the translation
  /// buffer less. Costs at most what the range would cost when full. Where the system refuses, nothing changes.
  void prefer_huge_pages();

  /// Gives the memory back to the system; the range is filled with zeros again.
  void discard();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

template <typename T>
class LazyArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                "elements start as zero bytes and may be moved by the system");

 public:
  LazyArray() = default;

  [[nodiscard]] static Result<LazyArray> create(std::size_t count) {
    LazyArray array;
    QUIRE_TRY_ASSIGN(const std::size_t bytes, bytes_of(count));
    QUIRE_TRY_ASSIGN(array.memory_, LazyMemory::reserve(bytes));
    array.count_ = count;
    return array;
  }

  /// Keeps the elements and appends zero-filled ones up to `count`.
  [[nodiscard]] Status grow(std::size_t count) {
    if (count <= count_) return {};
    QUIRE_TRY_ASSIGN(const std::size_t bytes, bytes_of(count));
    QUIRE_TRY(memory_.grow(bytes));
    count_ = count;
    return {};
  }

  void prefer_huge_pages() { memory_.prefer_huge_pages(); }

  [[nodiscard]] T* data() { return reinterpret_cast<T*>(memory_.data()); }
  [[nodiscard]] const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] T& operator[](std::size_t index) {
    QUIRE_DCHECK(index < count_, "index beyond the array");
    return data()[index];
  }
  [[nodiscard]] const T& operator[](std::size_t index) const {
    QUIRE_DCHECK(index < count_, "index beyond the array");
    return data()[index];
  }

 private:
  [[nodiscard]] static Result<std::size_t> bytes_of(std::size_t count) {
    const std::optional<std::uint64_t> bytes = checked_multiply(count, sizeof(T));
    if (!bytes) {
      return fail(ErrorCode::InvalidArgument, std::to_string(count) + " elements of " + std::to_string(sizeof(T)) +
                                                  " bytes are more than memory can address");
    }
    return static_cast<std::size_t>(*bytes);
  }

  LazyMemory memory_;
  std::size_t count_ = 0;
};

}  // namespace quire
