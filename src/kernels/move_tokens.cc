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

// Component by component: one never touches another's bytes, and within each the rows are copied in the moves' order.
void move_tokens_with(CopyRows copy_rows, const MoveTokensParams& params) {
  const PoolGeometry& geometry = *params.geometry;
  const PoolStrides& strides = geometry.strides();
  const std::uint64_t entry_count = geometry.page().entry_count();
  const std::uint64_t slot_count = geometry.page_count() * entry_count;
  for (std::uint32_t component = 0; component < strides.component_count; ++component) {
    const Pieces pieces = pieces_of(geometry.page(), component);
    RowList rows(copy_rows, {.row_bytes = pieces.token_bytes,
                             .bundle_rows = pieces.count,
                             .target_stride = pieces.stride,
                             .source_stride = pieces.stride});
    for (const TokenMove& move : params.moves) {
      // A negative slot becomes too large.
      const auto source_slot = static_cast<std::uint64_t>(move.source_slot);
      const auto target_slot = static_cast<std::uint64_t>(move.target_slot);
      QUIRE_CHECK(source_slot < slot_count, "moving from a slot that the pool does not have");
      QUIRE_CHECK(target_slot < slot_count, "moving to a slot that the pool does not have");
      if (source_slot == target_slot) continue;
      const auto offset_of = [&](std::uint64_t slot) {
        return (slot / entry_count * strides.page) + (slot % entry_count * pieces.token_stride) + pieces.offset;
      };
      const std::byte* const source = params.pool + offset_of(source_slot);
      std::byte* const target = params.pool + offset_of(target_slot);
      for (std::uint64_t layer = 0; layer < geometry.page().layer_count(); ++layer) {
        const std::uint64_t offset = layer * strides.layer;
        rows.add({.target = target + offset, .source = source + offset});
      }
    }
    rows.flush();
  }
}

void move_tokens_on_host(const MoveTokensParams& params) {
  move_tokens_with(best_copy_rows(Stores::Cached), params);
}

}  // namespace quire
