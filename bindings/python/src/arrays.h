// SPDX-License-Identifier: Apache-2.0
//
// Memory in and out of Python without copies. Out: NumPy arrays of plans and DLPack tensors of pools, which own a share
// of the cache. In: tokens from anything that has a buffer or speaks DLPack, and tensors to be adopted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_state.h"
#include "casters.h"
#include "quire/types.h"

namespace quire::python {

using ForeignArray = nb::ndarray<nb::ro>;

/// A capsule that destroys `owner` with the last reference to it.
template <typename T>
nb::object own(T owner) {
  return nb::capsule(new T(std::move(owner)), [](void* memory) noexcept { delete static_cast<T*>(memory); });
}

/// A read-only NumPy array of a span's memory, with `columns` columns where it is not 0.
template <typename T>
nb::object array_of(std::span<const T> values, const nb::object& owner, std::size_t columns = 0) {
  static const T kNothing{};
  const T* data = values.empty() ? &kNothing : values.data();
  if (columns == 0) return nb::cast(nb::ndarray<nb::numpy, const T>(data, {values.size()}, owner));
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, {values.size() / columns, columns}, owner));
}

/// The same for structs that are made of `T` alone: a row for each.
template <typename T, typename S>
nb::object rows_of(std::span<const S> values, const nb::object& owner) {
  static_assert(sizeof(S) % sizeof(T) == 0 && alignof(S) == alignof(T) && std::is_trivially_copyable_v<S>);
  constexpr std::size_t kColumns = sizeof(S) / sizeof(T);
  return array_of(std::span<const T>(reinterpret_cast<const T*>(values.data()), values.size() * kColumns), owner,
                  kColumns);
}

/// A NumPy array with its own copy.
template <typename T>
nb::object copy_of(std::span<const T> values) {
  auto owned = std::make_unique<std::vector<T>>(values.begin(), values.end());
  const std::span<const T> span(*owned);
  return array_of(span, own(std::move(owned)));
}

/// Raises why something is no array that can be read: it has no memory to show, or says itself why not. `advice` is
/// what to give instead.
[[noreturn]] void refuse_array(nb::handle source, const std::string& what, const std::string& advice);
/// A caller's array, checked to be one-dimensional, contiguous and on the processor; `what` names it in errors.
[[nodiscard]] ForeignArray import_array(nb::handle source, const char* what);
/// An int, or a scalar of NumPy or a tensor library that is one.
[[nodiscard]] std::optional<long long> integer_of(nb::handle object);
/// "int64", "bfloat16", …
[[nodiscard]] std::string name_of(nb::dlpack::dtype type);

/// Tokens of the caller's, as the cache reads them: int32 in place, int64 narrowed, lists of int converted.
class Tokens {
 public:
  /// 64-bit tokens and lists are written to `place` where it is large enough, else to `scratch`; both must outlive
  /// this.
  Tokens(nb::handle source, std::vector<TokenId>& scratch, const char* what = "tokens", std::span<TokenId> place = {});
  [[nodiscard]] std::span<const TokenId> span() const { return span_; }

 private:
  ForeignArray array_;  // keeps the memory
  std::span<const TokenId> span_;
};

}  // namespace quire::python
