// SPDX-License-Identifier: Apache-2.0
#include "draft.h"

#include <algorithm>
#include <cstddef>

namespace tiny_engine {

std::vector<quire::TokenId> guess_from_text(std::span<const quire::TokenId> text, std::uint32_t count) {
  std::vector<quire::TokenId> guesses;
  const auto add = [&guesses](quire::TokenId token) {
    if (std::find(guesses.begin(), guesses.end(), token) == guesses.end()) guesses.push_back(token);
  };
  for (std::size_t i = text.size() - 1; i-- > 0 && guesses.size() < count;) {
    if (text[i] == text.back()) add(text[i + 1]);
  }
  for (quire::TokenId token = text.back(); guesses.size() < count; token = token > 0 ? token - 1 : 15) add(token);
  return guesses;
}

}  // namespace tiny_engine
