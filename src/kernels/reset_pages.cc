// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/pieces.h"
#include "quire/host_kernels.h"

namespace quire {
namespace {

// Repeats the pattern, which is not empty, over a row that is a multiple of it.
void fill_row(std::byte* row, std::uint64_t row_bytes, const std::vector<std::byte>& pattern) {
  for (std::uint64_t at = 0; at < row_bytes; at += pattern.size()) {
    std::memcpy(row + at, pattern.data(), pattern.size());
  }
}

void reset_layer(const PageGeometry& page, std::byte* layer) {
  std::memset(layer, 0, page.layer_bytes());
  for (std::uint32_t index = 0; index < page.components().size(); ++index) {
    const std::vector<std::byte>& pattern = page.group().components[index].initial;
    if (pattern.empty()) continue;
    const Pieces pieces = pieces_of(page, index);
    for (std::uint64_t piece = 0; piece < pieces.count; ++piece) {
      for (std::uint64_t entry = 0; entry < page.entry_count(); ++entry) {
        std::byte* const row = layer + pieces.offset + (piece * pieces.stride) + (entry * pieces.token_stride);
        fill_row(row, pieces.token_bytes, pattern);
      }
    }
  }
}

}  // namespace

void reset_pages_on_host(const ResetPagesParams& params) {
  const PageGeometry& page = params.geometry->page();
  const PoolStrides& strides = params.geometry->strides();
  for (const PageId id : params.pages) {
    QUIRE_CHECK(id.value < params.geometry->page_count(), "resetting a page that the pool does not have");
    for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
      reset_layer(page, params.pool + (id.value * strides.page) + (layer * strides.layer));
    }
  }
}

}  // namespace quire
