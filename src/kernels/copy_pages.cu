// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/launch.cuh"
#include "kernels/pieces.h"
#include "kernels/vector_copy.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

// What the first entries of a page have of one component in one layer: lines, of which each is in one piece. In records
// a line is an entry's part, else it is what all those entries have of a head or of all heads.
struct ComponentLines {
  std::uint64_t offset;
  std::uint64_t stride;       // from one line to the next
  std::uint64_t entry_units;  // of a line
  std::uint32_t line_count;   // of a page of which all entries are copied
  std::uint32_t segment_count;
  bool has_records;
};

// How many tokens a copy has is known to the device alone. So each gets as many groups of threads as the whole page
// takes, or all its lines, and those that are too many go home.
struct CopyPagesWork {
  std::byte* pool;
  const PageCopy* copies;
  std::uint64_t copy_count;
  std::uint64_t page_stride;
  std::uint64_t layer_stride;
  std::uint64_t layer_units;
  std::uint32_t page_count;
  std::uint32_t page_tokens;
  std::uint32_t tokens_per_entry;
  std::uint32_t entry_count;
  std::uint32_t layer_count;
  std::uint32_t layer_segments;  // of a layer that is copied whole
  std::uint32_t layer_items;     // the greater of those and of all lines' segments
  std::uint32_t lane_bits;
  std::uint32_t component_count;
  ComponentLines components[kComponentsMax];
};

// Item `item` of a layer of which some entries are copied.
template <typename Unit>
__device__ void copy_line_segment(const CopyPagesWork& work, const RowPlace& layer, std::uint32_t entries,
                                  std::uint32_t item, std::uint32_t lane) {
  for (std::uint32_t index = 0; index < work.component_count; ++index) {
    const ComponentLines& lines = work.components[index];
    const std::uint32_t items = lines.line_count * lines.segment_count;
    if (item >= items) {
      item -= items;
      continue;
    }
    const std::uint32_t line = item / lines.segment_count;
    if (lines.has_records && line >= entries) return;
    const std::uint64_t offset = lines.offset + (line * lines.stride);
    copy_segment<Unit>({.target = layer.target + offset, .source = layer.source + offset},
                       lines.entry_units * (lines.has_records ? 1 : entries), work.lane_bits,
                       item % lines.segment_count, lane);
    return;
  }
}

template <typename Unit>
__global__ void __launch_bounds__(kBlockThreads) copy_pages_kernel(const __grid_constant__ CopyPagesWork work) {
  const std::uint32_t lane = threadIdx.x & ((1U << work.lane_bits) - 1);
  const std::uint64_t item_count = work.copy_count * work.layer_count * work.layer_items;
  const std::uint64_t stride = (std::uint64_t{gridDim.x} * kBlockThreads) >> work.lane_bits;
  for (std::uint64_t item = ((std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x) >> work.lane_bits;
       item < item_count; item += stride) {
    const Division in_layer = divide(item, work.layer_items);
    const Division in_page = divide(in_layer.quotient, work.layer_count);
    const PageCopy copy = work.copies[in_page.quotient];
    const bool is_possible = copy.source.value < work.page_count && copy.target.value < work.page_count &&
                             copy.token_count <= work.page_tokens;
    if (!is_possible || copy.token_count == 0 || copy.source.value == copy.target.value) continue;
    std::byte* const layer = work.pool + (in_page.remainder * work.layer_stride);
    const RowPlace place{.target = layer + (copy.target.value * work.page_stride),
                         .source = layer + (copy.source.value * work.page_stride)};
    if (copy.token_count == work.page_tokens) {
      if (in_layer.remainder < work.layer_segments) {
        copy_segment<Unit>(place, work.layer_units, work.lane_bits, in_layer.remainder, lane);
      }
    } else {
      const std::uint32_t entries = min(copy.token_count / work.tokens_per_entry, work.entry_count);
      if (entries > 0) copy_line_segment<Unit>(work, place, entries, in_layer.remainder, lane);
    }
  }
}

// Everything but the copies, in units of a width.
CopyPagesWork work_of(const PoolGeometry& geometry, std::uint32_t unit_bytes) {
  const PageGeometry& page = geometry.page();
  const RowSplit whole = split_rows(page.layer_bytes(), unit_bytes);
  CopyPagesWork work{.page_stride = geometry.strides().page,
                     .layer_stride = geometry.strides().layer,
                     .layer_units = whole.row_units,
                     .page_count = geometry.page_count(),
                     .page_tokens = page.options().page_tokens,
                     .tokens_per_entry = page.group().tokens_per_entry,
                     .entry_count = page.entry_count(),
                     .layer_count = page.layer_count(),
                     .layer_segments = whole.segment_count,
                     .lane_bits = whole.lane_bits,
                     .component_count = geometry.strides().component_count};
  std::uint32_t line_items = 0;
  for (std::uint32_t index = 0; index < work.component_count; ++index) {
    const Pieces pieces = pieces_of(page, index);
    const std::uint64_t line_bytes = pieces.has_records ? pieces.token_bytes : pieces.token_stride * page.entry_count();
    const std::uint64_t segment_units = std::uint64_t{kUnitsPerLane} << whole.lane_bits;
    ComponentLines& lines = work.components[index];
    lines = {.offset = pieces.offset,
             .stride = pieces.has_records ? pieces.token_stride : pieces.stride,
             .entry_units = (pieces.has_records ? pieces.token_bytes : pieces.token_stride) / unit_bytes,
             .line_count = pieces.has_records ? page.entry_count() : static_cast<std::uint32_t>(pieces.count),
             .segment_count = static_cast<std::uint32_t>((((line_bytes / unit_bytes) - 1) / segment_units) + 1),
             .has_records = pieces.has_records};
    line_items += lines.line_count * lines.segment_count;
  }
  work.layer_items = std::max(work.layer_segments, line_items);
  return work;
}

}  // namespace

Status launch_copy_pages(const CopyPagesParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_copy_pages";
  QUIRE_TRY(check_address(params.geometry, kWhat, "geometry"));
  if (params.copies.empty()) return {};
  QUIRE_TRY(check_address(params.pool, kWhat, "pool"));
  QUIRE_TRY(check_address(params.copies.data(), kWhat, "copies"));

  const PoolGeometry& geometry = *params.geometry;
  UnitWidth width;
  width.add(params.pool).add(geometry.strides().page).add(geometry.strides().layer).add(geometry.page().layer_bytes());
  for (std::uint32_t index = 0; index < geometry.strides().component_count; ++index) {
    const Pieces pieces = pieces_of(geometry.page(), index);
    width.add(pieces.offset).add(pieces.token_stride);
    if (pieces.count > 1) width.add(pieces.stride);
    if (pieces.has_records) width.add(pieces.token_bytes);
  }
  CopyPagesWork work = work_of(geometry, width.bytes());
  work.pool = params.pool;
  work.copies = params.copies.data();
  work.copy_count = params.copies.size();
  const std::uint64_t items = work.copy_count * work.layer_count * work.layer_items;
  const LaunchShape shape{
      .blocks = block_count_for(items, kBlockThreads >> work.lane_bits), .stream = stream, .what = kWhat};
  return with_unit(width.bytes(), [&](auto unit) { return launch(shape, copy_pages_kernel<decltype(unit)>, work); });
}

}  // namespace quire
