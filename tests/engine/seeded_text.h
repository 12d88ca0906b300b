// SPDX-License-Identifier: Apache-2.0
//
// Texts for scripted tests of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/types.h"
#include "tools/tiny_engine/model.h"

namespace quire::testing {

/// Tokens that depend on the seed alone.
[[nodiscard]] inline std::vector<TokenId> seeded_text(std::uint64_t seed, std::size_t count) {
  const std::uint32_t vocabulary = tiny_engine::ModelShape{}.vocabulary;
  std::vector<TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>(tiny_engine::scramble((seed * 1000) + i) % vocabulary);
  }
  return tokens;
}

/// One text after the other.
[[nodiscard]] inline std::vector<TokenId> join(std::vector<TokenId> left, const std::vector<TokenId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace quire::testing
