// SPDX-License-Identifier: Apache-2.0
#include "kernels/copy_page_part.h"

#include <cstring>

#include "base/check.h"

namespace quire {

void copy_page_part_on_host(const PoolGeometry& geometry, std::byte* pool, const PageCopy& copy) {
  const PageGeometry& page = geometry.page();
  QUIRE_CHECK(copy.token_count <= page.options().page_tokens, "copying more tokens than a page has");
  const bool heads_first = page.options().head_order == HeadOrder::Hnd;
  for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
    for (std::uint32_t component = 0; component < page.components().size(); ++component) {
      // Heads outside: each holds its tokens in one piece. Tokens outside: all heads of the tokens are one piece.
      const std::uint32_t pieces = heads_first ? page.heads_on_rank(component, 0).count : 1;
      const std::uint64_t piece_bytes = page.components()[component].token * copy.token_count;
      for (std::uint32_t head = 0; head < pieces; ++head) {
        RowLocation row{.page = copy.source, .layer_index = layer, .component_index = component, .head_index = head};
        const std::byte* const source = pool + geometry.offset_of(row);
        row.page = copy.target;
        std::memcpy(pool + geometry.offset_of(row), source, piece_bytes);
      }
    }
  }
}

}  // namespace quire
