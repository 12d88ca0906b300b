// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler is asked for, and what it gives back. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/cache.h"
#include "quire/types.h"

namespace tiny_engine {

enum class Speculation : std::uint8_t {
  None,
  Chain,  ///< a few guesses one after the other
  Tree,   ///< alternatives too, over up to two rounds
};

struct Request {
  std::vector<quire::TokenId> prompt;
  std::uint32_t new_tokens_max = 16;
  std::optional<quire::TokenId> end_token;      ///< the sequence ends with it; not for beams
  double temperature = 0.0;                     ///< 0: greedy
  std::uint64_t seed = 0;                       ///< of the samples
  std::uint32_t sample_count = 1;               ///< continuations of the one prompt
  std::uint32_t beam_width = 0;                 ///< above 0: beam search instead of sampling
  Speculation speculation = Speculation::None;  ///< for greedy requests with one sample
  quire::Window window;                         ///< visible_tokens 0: none
};

/// One continuation of a request.
struct Output {
  std::size_t request_index = 0;
  std::uint32_t sample_index = 0;  ///< of beams: 0 is the best one
  double score = 0.0;              ///< of a beam: the sum of its tokens' log-probabilities
  std::size_t prompt_tokens = 0;
  std::vector<quire::TokenId> tokens;  ///< the prompt's, then the new ones
  /// For each new token the logits it was chosen from.
  std::vector<std::vector<double>> logits;
  /// The first token computed under the request's window: those before were found in the cache.
  std::size_t window_begin = 0;
};

}  // namespace tiny_engine
