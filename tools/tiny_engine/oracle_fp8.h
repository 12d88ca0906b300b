// SPDX-License-Identifier: Apache-2.0
//
// What is left of a row that was stored in 8 bits, by the definition of the formats: one number at a time, each rounded
// to the nearest of those that there are. Nothing here is used by an engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace tiny_engine::oracle {

/// The nearest multiple; of two, the even one.
inline double nearest_multiple(double value, double step) {
  return std::nearbyint(value / step) * step;
}

/// 8 bits of precision.
inline double as_bf16(double value) {
  if (value == 0.0) return value;
  return nearest_multiple(value, std::ldexp(1.0, std::ilogb(value) - 7));
}

/// 4 bits of precision down to 2^-6, and then multiples of 2^-9.
inline double as_e4m3(double value) {
  const int exponent = value == 0.0 ? -6 : std::max(std::ilogb(value), -6);
  return std::clamp(nearest_multiple(value, std::ldexp(1.0, exponent - 3)), -448.0, 448.0);
}

/// `count` numbers from `first` on share a scale, which is a number of fp32 or a power of two; so is all arithmetic.
inline void store_block(std::vector<double>& row, std::size_t first, std::size_t count, bool has_power_of_two) {
  float greatest = 0.0F;
  for (std::size_t i = first; i < first + count; ++i) {
    row[i] = as_bf16(row[i]);
    greatest = std::max(greatest, std::abs(static_cast<float>(row[i])));
  }
  float scale = std::max(greatest / 448.0F, 0x1p-126F);
  if (has_power_of_two) {
    const float least = std::max(greatest, 1e-4F) / 448.0F;
    for (scale = 1.0F; scale / 2.0F >= least;) scale /= 2.0F;
    while (scale < least) scale *= 2.0F;
  }
  for (std::size_t i = first; i < first + count; ++i) {
    const auto code = static_cast<float>(as_e4m3(static_cast<float>(row[i]) * (1.0F / scale)));
    row[i] = as_bf16(code * scale);
  }
}

}  // namespace tiny_engine::oracle
