// SPDX-License-Identifier: Apache-2.0
//
// Random weights, one after the other from a seed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.h"

namespace tiny_engine {

/// single-threaded
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(scramble(seed)) {}

  /// Rows that keep the size of what they multiply, times `gain`.
  Matrix matrix(std::uint32_t rows, std::uint32_t columns, double gain) {
    Matrix matrix{.rows = rows, .columns = columns, .values = {}};
    const double scale = gain * std::sqrt(3.0 / columns);
    matrix.values.resize(std::size_t{rows} * columns);
    for (double& value : matrix.values) value = scale * symmetric();
    return matrix;
  }
  /// Close to 1, and no two alike.
  std::vector<double> norm(std::uint32_t size) {
    std::vector<double> gains(size);
    for (double& gain : gains) gain = 1.0 + (0.3 * symmetric());
    return gains;
  }

 private:
  double symmetric() { return (2.0 * unit_interval(scramble(state_++))) - 1.0; }

  std::uint64_t state_;
};

}  // namespace tiny_engine
