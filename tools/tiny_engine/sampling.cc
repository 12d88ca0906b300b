// SPDX-License-Identifier: Apache-2.0
#include "sampling.h"

#include <algorithm>
#include <cmath>

#include "model.h"

namespace tiny_engine {

quire::TokenId pick_best(std::span<const double> logits) {
  return static_cast<quire::TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<double> log_probabilities(std::span<const double> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const double logit : logits) total += std::exp(logit - highest);
  std::vector<double> result;
  for (const double logit : logits) result.push_back(logit - highest - std::log(total));
  return result;
}

quire::TokenId pick_token(std::span<const double> logits, double temperature, std::uint64_t state) {
  if (temperature == 0.0) return pick_best(logits);
  std::vector<double> scaled(logits.begin(), logits.end());
  for (double& logit : scaled) logit /= temperature;
  double left = unit_interval(scramble(state));
  const std::vector<double> logs = log_probabilities(scaled);
  for (std::size_t i = 0; i < logs.size(); ++i) {
    left -= std::exp(logs[i]);
    if (left < 0.0) return static_cast<quire::TokenId>(i);
  }
  return pick_best(logits);
}

std::uint64_t first_state(std::uint64_t seed, std::uint32_t sample_index) {
  return scramble(scramble(seed) + sample_index);
}

std::uint64_t next_state(std::uint64_t state) {
  return scramble(state ^ kDrawn);
}

}  // namespace tiny_engine
