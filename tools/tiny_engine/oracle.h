// SPDX-License-Identifier: Apache-2.0
//
// What the logits must be: the transformer over whole texts at once, without pages, plans, steps or a cache. It shares
// nothing but the weights with the engine, and knows nothing of quire.
//
// Texts may branch: a token names the token before it, so many continuations of one prefix are computed together. A
// token's position is the number of tokens before it, and it sees those and itself. Under a window of W tokens with s
// sink tokens, token i >= W sees only the tokens k < s and the W - s tokens up to itself; its own position then counts
// as W - 1, those of recent tokens follow from their distance to it, and a sink token's is its own. In layers with a
// window of their own (ModelShape::layer_window) a token sees, of those, the ones at positions above its own minus
// that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model.h"

namespace tiny_engine {

struct OracleToken {
  std::int32_t token = 0;
  std::int32_t previous = -1;  ///< index of the token before it, which stands earlier in the list; -1: a text begins
  std::uint32_t visible_tokens = 0;  ///< in force when it is computed; 0: none
  std::uint32_t sink_tokens = 0;
};

/// Logits of every token, one row of the vocabulary each.
[[nodiscard]] std::vector<std::vector<double>> oracle_logits(const Weights& weights,
                                                             std::span<const OracleToken> tokens);

/// Of one text, from its first token on; tokens from `window_begin` on are computed under the window.
struct OracleText {
  std::span<const std::int32_t> tokens;
  std::uint32_t visible_tokens = 0;
  std::uint32_t sink_tokens = 0;
  std::size_t window_begin = 0;
};
[[nodiscard]] std::vector<std::vector<double>> oracle_logits(const Weights& weights, const OracleText& text);

}  // namespace tiny_engine
