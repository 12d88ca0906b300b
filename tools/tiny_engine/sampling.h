// SPDX-License-Identifier: Apache-2.0
//
// From logits to tokens. A sampled token depends on its logits and on the sequence's state alone, so the same request
// gives the same tokens however its steps were cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/types.h"

namespace tiny_engine {

/// The token of the largest logit.
[[nodiscard]] quire::TokenId pick_best(std::span<const double> logits);
/// A token drawn from the softmax at this temperature; 0: pick_best().
[[nodiscard]] quire::TokenId pick_token(std::span<const double> logits, double temperature, std::uint64_t state);
[[nodiscard]] std::vector<double> log_probabilities(std::span<const double> logits);

/// The state that a request's sample begins with.
[[nodiscard]] std::uint64_t first_state(std::uint64_t seed, std::uint32_t sample_index);
/// What is mixed into a state for every token drawn: Engine::fold_states() with this, or next_state().
inline constexpr std::uint64_t kDrawn = 1;
[[nodiscard]] std::uint64_t next_state(std::uint64_t state);

}  // namespace tiny_engine
