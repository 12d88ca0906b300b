// SPDX-License-Identifier: Apache-2.0
//
// Numbers of 8 and 16 bits, one at a time: what every vector loop must agree with, bit for bit.
//
//     E4M3    sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f and 0xff are NaN, there are no infinities,
//             the greatest is 448, the least normal 2^-6, the least 2^-9
//     UE8M0   a power of two: 2^(byte - 127); 255 is NaN
//     bf16    the upper half of an fp32
//
// All rounding is to the nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace quire {

inline constexpr float kE4m3Max = 448.0F;
inline constexpr std::uint8_t kE4m3Nan = 0x7f;
inline constexpr std::uint16_t kBf16Nan = 0x7fc0;
inline constexpr std::uint16_t kBf16Infinity = 0x7f80;

[[nodiscard]] constexpr float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x80U} << 24U;
  const std::uint32_t magnitude = code & 0x7fU;
  if (magnitude == kE4m3Nan) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (magnitude < 8) {  // below the least normal number: multiples of 2^-9
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9F);
    return std::bit_cast<float>(sign | bits);
  }
  constexpr std::uint32_t kBiasDifference = 127 - 7;
  return std::bit_cast<float>(sign | ((magnitude << 20U) + (kBiasDifference << 23U)));
}

/// Saturates: what is beyond 448, infinities too, becomes 448 with its sign. NaN becomes NaN.
[[nodiscard]] constexpr std::uint8_t e4m3_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24U) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint8_t>(sign | kE4m3Nan);
  const float clamped = std::bit_cast<float>(magnitude) < kE4m3Max ? std::bit_cast<float>(magnitude) : kE4m3Max;
  if (clamped < 0x1p-6F) {
    // The sum's last bit is worth 2^-9, so adding rounds; 8 is the least normal number's code.
    const auto sum = std::bit_cast<std::uint32_t>(clamped + 0x1p14F);
    return static_cast<std::uint8_t>(sign | (sum - std::bit_cast<std::uint32_t>(0x1p14F)));
  }
  constexpr std::uint32_t kBiasDifference = 127 - 7;
  const auto exact = std::bit_cast<std::uint32_t>(clamped);
  const std::uint32_t rounded = (exact + 0x7ffffU + ((exact >> 20U) & 1U)) >> 20U;
  return static_cast<std::uint8_t>(sign | (rounded - (kBiasDifference << 3U)));
}

[[nodiscard]] constexpr float ue8m0_to_float(std::uint8_t byte) {
  if (byte == 255) return std::numeric_limits<float>::quiet_NaN();
  if (byte == 0) return 0x1p-127F;  // the one power that is no normal fp32
  return std::bit_cast<float>(std::uint32_t{byte} << 23U);
}

/// The least power of two that is not below the value, which is a normal number of at most 2^127.
[[nodiscard]] constexpr std::uint8_t ue8m0_at_least(float value) {
  return static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(value) + 0x7fffffU) >> 23U);
}

[[nodiscard]] constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

/// A NaN must have nothing in its lower half, as those of e4m3_to_float.
[[nodiscard]] constexpr std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace quire
