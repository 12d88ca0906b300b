// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/pieces.h"
#include "quire/host_kernels.h"

namespace quire {

// Row by row with memcpy: whoever looks at a cache is in no hurry.
void read_rows_on_host(const ReadRowsParams& params) {
  const PageGeometry& page = params.geometry->page();
  const PoolStrides& strides = params.geometry->strides();
  QUIRE_CHECK(params.layer_index < page.layer_count(), "reading from a layer that the group does not have");
  QUIRE_CHECK(params.component_index < strides.component_count,
              "reading from a component that the group does not have");
  const Pieces pieces = pieces_of(page, params.component_index);
  const std::uint64_t token_bytes = pieces.count * pieces.token_bytes;
  const std::uint64_t target_token_bytes = params.target_token_bytes == 0 ? token_bytes : params.target_token_bytes;
  QUIRE_CHECK(target_token_bytes >= token_bytes, "the target's tokens overlap");

  const std::byte* const layer = params.pool + (params.layer_index * strides.layer) + pieces.offset;
  const std::uint64_t entry_count = page.entry_count();
  const std::uint64_t slot_count = params.geometry->page_count() * entry_count;
  for (std::size_t i = 0; i < params.slots.size(); ++i) {
    std::byte* const target = params.target + (i * target_token_bytes);
    if (params.slots[i] == kNoSlot) {
      std::memset(target, 0, token_bytes);
      continue;
    }
    const auto slot = static_cast<std::uint64_t>(params.slots[i]);  // a negative one becomes too large
    QUIRE_CHECK(slot < slot_count, "reading a slot that the pool does not have");
    const std::byte* const source =
        layer + (slot / entry_count * strides.page) + (slot % entry_count * pieces.token_stride);
    for (std::uint64_t piece = 0; piece < pieces.count; ++piece) {
      std::memcpy(target + (piece * pieces.token_bytes), source + (piece * pieces.stride), pieces.token_bytes);
    }
  }
}

}  // namespace quire
