// SPDX-License-Identifier: Apache-2.0
//
// How one component of a page lies in memory, for copies: in each layer `count` pieces, inside which consecutive tokens
// follow each other without a gap.
//
//     [token][head][dim]   one piece; a token's heads follow each other
//     [head][token][dim]   a piece per head
//
// immutable
#pragma once

#include <cstdint>

#include "quire/layout.h"

namespace quire {

struct Pieces {
  std::uint64_t offset = 0;       ///< of the first one, in its layer of the page
  std::uint64_t count = 0;        ///< in one layer
  std::uint64_t stride = 0;       ///< from one piece to the next
  std::uint64_t token_bytes = 0;  ///< of one token in one piece
};

[[nodiscard]] inline Pieces pieces_of(const PageGeometry& page, std::uint32_t component_index) {
  const ComponentStrides& component = page.components()[component_index];
  const bool has_heads_outside = page.options().head_order == HeadOrder::Hnd;
  return {.offset = component.offset,
          .count = has_heads_outside ? page.heads_on_rank(component_index, 0).count : 1,
          .stride = component.head,
          .token_bytes = component.token};
}

}  // namespace quire
