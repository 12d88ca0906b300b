// SPDX-License-Identifier: Apache-2.0
//
// Compares what the scheduler gave with what the oracle says: every new token must be the one that follows from the
// oracle's logits for the text before it, and the engine's logits must be the oracle's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.h"
#include "request.h"

namespace tiny_engine {

struct Verdict {
  std::size_t token_count = 0;
  std::size_t equal_count = 0;
  double difference = 0.0;  ///< the largest, as a part of the largest logit of its token
};

/// Of one output of a request that is sampled or decoded greedily; of a beam, only its logits are looked at.
[[nodiscard]] Verdict check_output(const Weights& weights, const Request& request, const Output& output);

/// A request's beams by the oracle, best first: their tokens, prompts included.
[[nodiscard]] std::vector<std::vector<quire::TokenId>> oracle_beams(const Weights& weights, const Request& request);

}  // namespace tiny_engine
