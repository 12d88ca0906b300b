// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/launch.cuh"
#include "kernels/pieces.h"
#include "kernels/vector_fill.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

// Rows of the listed pages: of each its layers, of each layer its pieces, of each piece its entries.
struct PageRows {
  std::byte* pool;
  const PageId* pages;
  std::uint64_t offset;
  std::uint64_t page_stride;
  std::uint64_t layer_stride;
  std::uint64_t piece_stride;
  std::uint64_t entry_stride;
  std::uint32_t page_count;  // of the pool
  std::uint32_t layer_count;
  std::uint32_t piece_count;
  std::uint32_t entry_count;

  [[nodiscard]] __device__ std::byte* row(std::uint64_t row) const {
    const Division in_piece = divide(row, entry_count);
    const Division in_layer = divide(in_piece.quotient, piece_count);
    const Division in_page = divide(in_layer.quotient, layer_count);
    const std::uint32_t page = pages[in_page.quotient].value;
    if (page >= page_count) return nullptr;
    return pool + offset + (page * page_stride) + (in_page.remainder * layer_stride) +
           (in_layer.remainder * piece_stride) + (in_piece.remainder * entry_stride);
  }
};

}  // namespace

// First zeros everywhere, then the components that begin with something else: one launch in most cases.
Status launch_reset_pages(const ResetPagesParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_reset_pages";
  QUIRE_TRY(check_address(params.geometry, kWhat, "geometry"));
  if (params.pages.empty()) return {};
  QUIRE_TRY(check_address(params.pool, kWhat, "pool"));
  QUIRE_TRY(check_address(params.pages.data(), kWhat, "pages"));

  const PoolGeometry& geometry = *params.geometry;
  const PageGeometry& page = geometry.page();
  const std::uint64_t layer_rows = params.pages.size() * page.layer_count();
  UnitWidth width;
  width.add(params.pool).add(geometry.strides().page).add(geometry.strides().layer);
  PageRows rows{.pool = params.pool,
                .pages = params.pages.data(),
                .page_stride = geometry.strides().page,
                .layer_stride = geometry.strides().layer,
                .page_count = geometry.page_count(),
                .layer_count = page.layer_count(),
                .piece_count = 1,
                .entry_count = 1};
  QUIRE_TRY(launch_fill_rows(
      rows,
      {.row_count = layer_rows, .row_bytes = page.layer_bytes(), .width = width, .stream = stream, .what = kWhat}));
  for (std::uint32_t index = 0; index < geometry.strides().component_count; ++index) {
    const std::vector<std::byte>& pattern = page.group().components[index].initial;
    if (pattern.empty()) continue;
    const Pieces pieces = pieces_of(page, index);
    rows.offset = pieces.offset;
    rows.piece_stride = pieces.stride;
    rows.entry_stride = pieces.token_stride;
    rows.piece_count = static_cast<std::uint32_t>(pieces.count);
    rows.entry_count = page.entry_count();
    UnitWidth row_width = width;
    row_width.add(pieces.offset).add(pieces.stride).add(pieces.token_stride);
    QUIRE_TRY(launch_fill_rows(rows, {.row_count = layer_rows * pieces.count * page.entry_count(),
                                      .row_bytes = pieces.token_bytes,
                                      .pattern = pattern,
                                      .width = row_width,
                                      .stream = stream,
                                      .what = kWhat}));
  }
  return {};
}

}  // namespace quire
