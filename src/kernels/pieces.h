// SPDX-License-Identifier: Apache-2.0
//
// How one component of a page lies in memory, for copies: in each layer `count` pieces, inside which tokens follow each
// other at equal distances.
//
//     [token][head][dim]       one piece; a token's heads follow each other
//     [head][token][dim]       a piece per head
//     [token][… head, dim …]   one piece; between two tokens are the other components of their records
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
  std::uint64_t token_stride =
      0;  ///< from one token to the next; what lies between is padding, unless there are records
  bool has_records = false;
};

[[nodiscard]] inline Pieces pieces_of(const PageGeometry& page, std::uint32_t component_index) {
  const ComponentStrides& component = page.components()[component_index];
  const bool has_records = page.group().components[component_index].placement == Placement::Interleaved;
  const bool has_heads_outside = page.options().head_order == HeadOrder::Hnd && !has_records;
  const std::uint64_t head_count = page.heads_on_rank(component_index, 0).count;
  return {.offset = component.offset,
          .count = has_heads_outside ? head_count : 1,
          .stride = component.head,
          .token_bytes = has_heads_outside ? component.head_bytes : head_count * component.head_bytes,
          .token_stride = component.token,
          .has_records = has_records};
}

}  // namespace quire
