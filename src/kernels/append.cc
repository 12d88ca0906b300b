// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "kernels/copy_rows.h"
#include "kernels/host_kernels_with.h"
#include "kernels/pieces.h"
#include "kernels/row_list.h"
#include "quire/host_kernels.h"

namespace quire {

void append_with(CopyRows copy_rows, const AppendParams& params) {
  const PageGeometry& page = params.geometry->page();
  const PoolStrides& strides = params.geometry->strides();
  QUIRE_CHECK(params.layer_index < page.layer_count(), "appending to a layer that the group does not have");
  QUIRE_CHECK(params.component_index < strides.component_count,
              "appending to a component that the group does not have");
  const Pieces pieces = pieces_of(page, params.component_index);
  const std::uint64_t token_bytes = pieces.count * pieces.token_bytes;
  const std::uint64_t source_token_bytes = params.source_token_bytes == 0 ? token_bytes : params.source_token_bytes;
  QUIRE_CHECK(source_token_bytes >= token_bytes, "the source's tokens overlap");

  std::byte* const layer = params.pool + (params.layer_index * strides.layer) + pieces.offset;
  const std::uint64_t entry_count = page.entry_count();
  const std::uint64_t slot_count = params.geometry->page_count() * entry_count;
  RowList rows(copy_rows, {.row_bytes = pieces.token_bytes,
                           .bundle_rows = pieces.count,
                           .target_stride = pieces.stride,
                           .source_stride = pieces.token_bytes});
  for (std::size_t i = 0; i < params.slots.size(); ++i) {
    if (params.slots[i] == kNoSlot) continue;
    const auto slot = static_cast<std::uint64_t>(params.slots[i]);  // a negative one becomes too large
    QUIRE_CHECK(slot < slot_count, "appending at a slot that the pool does not have");
    std::byte* const target = layer + (slot / entry_count * strides.page) + (slot % entry_count * pieces.token_stride);
    rows.add({.target = target, .source = params.source + (i * source_token_bytes)});
  }
  rows.flush();
}

// Through the caches also when the pool is far larger. Stores around them reach memcpy's speed in any head order, but
// attention reads these rows next, and the two together take no less time (append_then_read in
// bench/micro/host_kernels.cc).
void append_on_host(const AppendParams& params) {
  append_with(best_copy_rows(Stores::Cached), params);
}

}  // namespace quire
