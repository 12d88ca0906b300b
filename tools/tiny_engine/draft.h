// SPDX-License-Identifier: Apache-2.0
//
// Guesses what comes next by looking for the last token earlier in the text: cheap, and often half right, which is what
// speculation has to cope with.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/types.h"

namespace tiny_engine {

/// Guesses for the token that follows a text, best first; at most so many.
using Guess = std::function<std::vector<quire::TokenId>(std::span<const quire::TokenId> text, std::uint32_t count)>;

/// What followed earlier occurrences of the last token, the most recent first, then tokens near it.
[[nodiscard]] std::vector<quire::TokenId> guess_from_text(std::span<const quire::TokenId> text, std::uint32_t count);

}  // namespace tiny_engine
