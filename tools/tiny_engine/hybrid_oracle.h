// SPDX-License-Identifier: Apache-2.0
//
// What the logits of the hybrid model must be: over whole texts at once, without pages, slots, plans or steps. It
// shares nothing but the weights with the engine. Texts may branch and have windows, as in oracle.h: these are for the
// layers that keep everything.
#pragma once

#include <span>
#include <vector>

#include "hybrid_model.h"
#include "oracle.h"

namespace tiny_engine {

/// Logits of every token, one row of the vocabulary each.
[[nodiscard]] std::vector<std::vector<double>> oracle_logits(const HybridWeights& weights,
                                                             std::span<const OracleToken> tokens);

}  // namespace tiny_engine
