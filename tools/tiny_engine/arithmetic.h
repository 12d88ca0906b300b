// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the engines, in double. The oracles have their own (oracle_arithmetic.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "model.h"
#include "portable_exp.h"

namespace tiny_engine {

inline void multiply(const Matrix& matrix, std::span<const double> input, std::span<double> out) {
  const double* row = matrix.values.data();
  for (std::uint32_t i = 0; i < matrix.rows; ++i, row += matrix.columns) {
    double sum = 0.0;
    for (std::uint32_t j = 0; j < matrix.columns; ++j) sum += row[j] * input[j];
    out[i] = sum;
  }
}

inline void rms_norm(std::span<const double> input, std::span<const double> gains, double epsilon,
                     std::span<double> out) {
  double squares = epsilon * static_cast<double>(input.size());
  for (const double x : input) squares += x * x;
  const double factor = std::sqrt(static_cast<double>(input.size()) / squares);
  for (std::size_t i = 0; i < input.size(); ++i) out[i] = gains[i] * (input[i] * factor);
}

/// RoPE of one head in place. The angles of a position follow from each other by a factor.
inline void rotate(std::span<double> head, std::int32_t position, double base) {
  const double ratio = std::pow(base, -2.0 / static_cast<double>(head.size()));
  double angle = position;
  for (std::size_t i = 0; i + 1 < head.size(); i += 2, angle *= ratio) {
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    const double x = head[i];
    const double y = head[i + 1];
    head[i] = (cosine * x) - (sine * y);
    head[i + 1] = (sine * x) + (cosine * y);
  }
}

inline double dot(std::span<const double> left, std::span<const double> right) {
  double sum = 0.0;
  for (std::size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  return sum;
}

/// Softmax over scores that arrive one by one, as paged kernels do it: the sum so far is rescaled when a score is
/// higher than all before.
class OnlineSoftmax {
 public:
  explicit OnlineSoftmax(std::span<double> out) : out_(out) { std::fill(out.begin(), out.end(), 0.0); }

  void add(double score, std::span<const double> value) {
    if (score > highest_) {
      const double shrink = total_ > 0.0 ? portable_exp(highest_ - score) : 0.0;
      total_ *= shrink;
      for (double& x : out_) x *= shrink;
      highest_ = score;
    }
    const double weight = portable_exp(score - highest_);
    total_ += weight;
    for (std::size_t i = 0; i < out_.size(); ++i) out_[i] += weight * value[i];
  }
  void finish() {
    for (double& x : out_) x /= total_;
  }

 private:
  std::span<double> out_;
  double highest_ = -1e300;
  double total_ = 0.0;
};

/// Row number `index` of rows that lie one after the other.
template <typename Container>
auto row_of(Container& rows, std::size_t index, std::size_t size) {
  return std::span(rows).subspan(index * size, size);
}

}  // namespace tiny_engine
