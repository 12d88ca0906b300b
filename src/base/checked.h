// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic on sizes that says when it does not fit, instead of wrapping around. Sizes come from
// configuration and from files: check them once where they enter, and the code behind needs no checks of its
// own.
#pragma once

#include <cstdint>
#include <optional>

namespace quire {

/// The product, or nothing when it does not fit in 64 bits.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// The sum, or nothing when it does not fit in 64 bits.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

}  // namespace quire
