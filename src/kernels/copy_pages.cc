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
namespace {

// One row where a page is in one piece, else a row per layer.
void copy_whole_page(CopyRows copy_rows, const PoolGeometry& geometry, const RowCopy& page) {
  const bool is_one_piece = geometry.byte_layout() == ByteLayout::PageFirst;
  const std::uint64_t row_count = is_one_piece ? 1 : geometry.page().layer_count();
  RowList rows(copy_rows, is_one_piece ? geometry.page().page_bytes() : geometry.page().layer_bytes());
  for (std::uint64_t i = 0; i < row_count; ++i) {
    const std::uint64_t offset = i * geometry.strides().layer;
    rows.add({.target = page.target + offset, .source = page.source + offset});
  }
  rows.flush();
}

void copy_first_tokens(CopyRows copy_rows, const PoolGeometry& geometry, const RowCopy& page,
                       std::uint32_t token_count) {
  for (std::uint32_t component = 0; component < geometry.strides().component_count; ++component) {
    const Pieces pieces = pieces_of(geometry.page(), component);
    RowList rows(copy_rows, pieces.token_bytes * token_count);
    for (std::uint64_t layer = 0; layer < geometry.page().layer_count(); ++layer) {
      std::uint64_t offset = (layer * geometry.strides().layer) + pieces.offset;
      for (std::uint64_t piece = 0; piece < pieces.count; ++piece, offset += pieces.stride) {
        rows.add({.target = page.target + offset, .source = page.source + offset});
      }
    }
    rows.flush();
  }
}

}  // namespace

void copy_pages_with(CopyRows copy_rows, const CopyPagesParams& params) {
  const PoolGeometry& geometry = *params.geometry;
  const std::uint32_t page_tokens = geometry.page().options().page_tokens;
  for (const PageCopy& copy : params.copies) {
    QUIRE_CHECK(copy.source.value < geometry.page_count(), "copying from a page that the pool does not have");
    QUIRE_CHECK(copy.target.value < geometry.page_count(), "copying to a page that the pool does not have");
    QUIRE_CHECK(copy.token_count <= page_tokens, "copying more tokens than a page has");
    if (copy.token_count == 0 || copy.source == copy.target) continue;
    const RowCopy page{.target = params.pool + (copy.target.value * geometry.strides().page),
                       .source = params.pool + (copy.source.value * geometry.strides().page)};
    if (copy.token_count == page_tokens) {
      copy_whole_page(copy_rows, geometry, page);
    } else {
      copy_first_tokens(copy_rows, geometry, page, copy.token_count);
    }
  }
}

void copy_pages_on_host(const CopyPagesParams& params) {
  copy_pages_with(best_copy_rows(), params);
}

}  // namespace quire
