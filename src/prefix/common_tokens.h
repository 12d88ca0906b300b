// SPDX-License-Identifier: Apache-2.0
//
// How many leading tokens two sequences share. memcmp is the fastest comparison there is on each machine, but does
// not say where it stopped, so ranges are compared in pieces and only the last piece is searched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "quire/types.h"

namespace quire {

[[nodiscard]] inline std::size_t common_tokens(const TokenId* a, const TokenId* b, std::size_t count) {
  constexpr std::size_t kPieceTokens = 256;
  std::size_t done = 0;
  while (done < count) {
    const std::size_t piece = std::min(kPieceTokens, count - done);
    if (std::memcmp(a + done, b + done, piece * sizeof(TokenId)) != 0) break;
    done += piece;
  }
  while (done < count && a[done] == b[done]) ++done;
  return done;
}

}  // namespace quire
