// SPDX-License-Identifier: Apache-2.0
//
// e^x from additions, products and one division: the libraries of a host and of a GPU round their own ones differently,
// so with this one attention has the same bits on both. Off by less than one unit in the last place.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace tiny_engine {

/// For exponents of normal numbers.
[[nodiscard]] constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52U);
}

// After the exp() of Sun's fdlibm: x = k ln 2 + r, and a rational function of r.
[[nodiscard]] constexpr double portable_exp(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01;  // few bits, so that its product with k is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kInverseLn2 = 1.44269504088896338700e+00;
  constexpr double kTerm1 = 1.66666666666666019037e-01;
  constexpr double kTerm2 = -2.77777777770155933842e-03;
  constexpr double kTerm3 = 6.61375632143793436117e-05;
  constexpr double kTerm4 = -1.65339022054652515390e-06;
  constexpr double kTerm5 = 4.13813679705723846039e-08;
  if (x != x) return x;
  if (x > 709.0) return std::numeric_limits<double>::infinity();
  if (x < -745.0) return 0.0;
  const int k = static_cast<int>((x * kInverseLn2) + (x < 0.0 ? -0.5 : 0.5));
  const double high = x - (k * kLn2High);
  const double low = k * kLn2Low;
  const double r = high - low;
  const double t = r * r;
  const double c = r - (t * (kTerm1 + (t * (kTerm2 + (t * (kTerm3 + (t * (kTerm4 + (t * kTerm5)))))))));
  const double y = 1.0 - ((low - ((r * c) / (2.0 - c))) - high);
  // In two steps, since 2^k may be less than a normal number is.
  return y * power_of_two(k / 2) * power_of_two(k - (k / 2));
}

}  // namespace tiny_engine
