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
  const std::uint64_t layer_stride = geometry.strides().layer;
  if (geometry.byte_layout() == ByteLayout::PageFirst) {
    copy_rows({&page, 1}, {.row_bytes = geometry.page().page_bytes()});
  } else {
    copy_rows({&page, 1}, {.row_bytes = geometry.page().layer_bytes(),
                           .bundle_rows = geometry.page().layer_count(),
                           .target_stride = layer_stride,
                           .source_stride = layer_stride});
  }
}

void copy_first_entries(CopyRows copy_rows, const PoolGeometry& geometry, const RowCopy& page,
                        std::uint32_t entry_count) {
  for (std::uint32_t component = 0; component < geometry.strides().component_count; ++component) {
    const Pieces pieces = pieces_of(geometry.page(), component);
    RowList rows(copy_rows, pieces.has_records ? RowShape{.row_bytes = pieces.token_bytes,
                                                          .bundle_rows = entry_count,
                                                          .target_stride = pieces.token_stride,
                                                          .source_stride = pieces.token_stride}
                                               : RowShape{.row_bytes = pieces.token_stride * entry_count,
                                                          .bundle_rows = pieces.count,
                                                          .target_stride = pieces.stride,
                                                          .source_stride = pieces.stride});
    for (std::uint64_t layer = 0; layer < geometry.page().layer_count(); ++layer) {
      const std::uint64_t offset = (layer * geometry.strides().layer) + pieces.offset;
      rows.add({.target = page.target + offset, .source = page.source + offset});
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
      copy_first_entries(copy_rows, geometry, page, copy.token_count / geometry.page().group().tokens_per_entry);
    }
  }
}

// Copies go through all layers, so that each layer's part is read after those of the layers before it, with their
// weights and keys: a copy that fills most of a core's own cache is not there any more.
void copy_pages_on_host(const CopyPagesParams& params) {
  constexpr std::uint64_t kStreamedBytesMin = std::uint64_t{512} << 10U;
  std::uint64_t token_count = 0;
  for (const PageCopy& copy : params.copies) token_count += copy.token_count;
  const std::uint64_t bytes = token_count * params.geometry->page().token_bytes();
  copy_pages_with(best_copy_rows(bytes >= kStreamedBytesMin ? Stores::Streaming : Stores::Cached), params);
}

}  // namespace quire
