// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "oracle.h"
#include "sampling.h"

namespace tiny_engine {

Verdict check_output(const Weights& weights, const Request& request, const Output& output) {
  const std::vector<std::vector<double>> expected =
      oracle_logits(weights, OracleText{.tokens = output.tokens,
                                        .visible_tokens = request.window.visible_tokens,
                                        .sink_tokens = request.window.sink_tokens,
                                        .window_begin = output.window_begin});
  Verdict verdict;
  std::uint64_t state = first_state(request.seed, output.sample_index);
  for (std::size_t i = output.prompt_tokens; i < output.tokens.size(); ++i, state = next_state(state)) {
    const std::vector<double>& right = expected[i - 1];
    const std::vector<double>& made = output.logits[i - output.prompt_tokens];
    double largest = 0.0;
    double difference = 0.0;
    for (std::size_t j = 0; j < right.size(); ++j) {
      largest = std::max(largest, std::abs(right[j]));
      difference = std::max(difference, std::abs(right[j] - made[j]));
    }
    verdict.difference = std::max(verdict.difference, difference / largest);
    ++verdict.token_count;
    const bool is_equal = request.beam_width > 0 || output.tokens[i] == pick_token(right, request.temperature, state);
    if (is_equal) ++verdict.equal_count;
  }
  return verdict;
}

std::vector<std::vector<quire::TokenId>> oracle_beams(const Weights& weights, const Request& request) {
  struct Beam {
    std::vector<quire::TokenId> tokens;
    double score = 0.0;
  };
  std::vector<Beam> beams = {{.tokens = request.prompt}};
  for (std::uint32_t i = 0; i < request.new_tokens_max; ++i) {
    std::vector<Beam> candidates;
    for (const Beam& beam : beams) {
      const std::vector<double> logs =
          log_probabilities(oracle_logits(weights, OracleText{.tokens = beam.tokens}).back());
      for (std::size_t j = 0; j < logs.size(); ++j) {
        Beam& longer = candidates.emplace_back(beam);
        longer.tokens.push_back(static_cast<quire::TokenId>(j));
        longer.score += logs[j];
      }
    }
    std::ranges::sort(candidates, std::greater{}, &Beam::score);
    candidates.resize(std::min<std::size_t>(candidates.size(), request.beam_width));
    beams = std::move(candidates);
  }
  std::vector<std::vector<quire::TokenId>> tokens;
  tokens.reserve(beams.size());
  for (Beam& beam : beams) tokens.push_back(std::move(beam.tokens));
  return tokens;
}

}  // namespace tiny_engine
