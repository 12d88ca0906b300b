// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the oracles: by definition, one small vector at a time. Nothing here is used by an engine.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.h"

namespace tiny_engine::oracle {

using Vector = std::vector<double>;

inline Vector product(const Matrix& matrix, const Vector& input) {
  Vector result(matrix.rows, 0.0);
  for (std::uint32_t row = 0; row < matrix.rows; ++row) {
    for (std::uint32_t column = 0; column < matrix.columns; ++column) {
      result[row] += matrix.values[(std::size_t{row} * matrix.columns) + column] * input[column];
    }
  }
  return result;
}

inline Vector normalized(const Vector& input, const Vector& gains, double epsilon) {
  double squares = 0.0;
  for (const double x : input) squares += x * x;
  const double factor = 1.0 / std::sqrt((squares / static_cast<double>(input.size())) + epsilon);
  Vector result(input.size());
  for (std::size_t i = 0; i < input.size(); ++i) result[i] = input[i] * factor * gains[i];
  return result;
}

/// RoPE by its definition: each pair is a complex number, multiplied by e^(i * angle).
inline Vector rotated(const Vector& input, double position, double base) {
  Vector result(input.size());
  for (std::size_t i = 0; i + 1 < input.size(); i += 2) {
    const double angle = position * std::pow(base, -static_cast<double>(i) / static_cast<double>(input.size()));
    result[i] = (input[i] * std::cos(angle)) - (input[i + 1] * std::sin(angle));
    result[i + 1] = (input[i] * std::sin(angle)) + (input[i + 1] * std::cos(angle));
  }
  return result;
}

inline Vector part(const Vector& input, std::size_t begin, std::size_t count) {
  const auto first = input.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

inline double dot(const Vector& left, const Vector& right) {
  double sum = 0.0;
  for (std::size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  return sum;
}

}  // namespace tiny_engine::oracle
