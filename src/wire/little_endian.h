// SPDX-License-Identifier: Apache-2.0
//
// Numbers as bytes, the lowest byte first, whatever the machine's own order is. Compilers make one load or store of it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace quire {

/// Writes sizeof(T) bytes.
template <std::unsigned_integral T>
constexpr void put_number(std::byte* target, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) target[i] = static_cast<std::byte>(value >> (8 * i));
}

/// Reads sizeof(T) bytes.
template <std::unsigned_integral T>
[[nodiscard]] constexpr T get_number(const std::byte* source) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<std::uint64_t>(source[i]) << (8 * i);
  return static_cast<T>(value);
}

}  // namespace quire
