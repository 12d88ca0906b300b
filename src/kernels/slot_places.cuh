// SPDX-License-Identifier: Apache-2.0
//
// Where in a pool the rows of slots are, of one component in one layer: what Pieces says, as numbers for a kernel.
#pragma once

#include <cstdint>

#include "kernels/launch.cuh"
#include "kernels/pieces.h"
#include "kernels/vector_copy.cuh"
#include "quire/layout.h"

namespace quire {

struct SlotPlaces {
  std::uint64_t slot_count = 0;
  std::uint64_t first = 0;  ///< of slot 0's first piece, in the pool
  std::uint64_t page_stride = 0;
  std::uint64_t token_stride = 0;
  std::uint64_t piece_stride = 0;
  std::uint32_t entry_count = 0;

  /// A negative slot is not in the pool either.
  [[nodiscard]] __device__ bool has(std::int64_t slot) const { return static_cast<std::uint64_t>(slot) < slot_count; }
  [[nodiscard]] __device__ std::uint64_t offset_of(std::int64_t slot, std::uint32_t piece) const {
    const Division in_page = divide(static_cast<std::uint64_t>(slot), entry_count);
    return first + (in_page.quotient * page_stride) + (in_page.remainder * token_stride) + (piece * piece_stride);
  }
};

[[nodiscard]] inline SlotPlaces slot_places(const PoolGeometry& geometry, const Pieces& pieces,
                                            std::uint32_t layer_index) {
  return {.slot_count = std::uint64_t{geometry.page_count()} * geometry.page().entry_count(),
          .first = (layer_index * geometry.strides().layer) + pieces.offset,
          .page_stride = geometry.strides().page,
          .token_stride = pieces.token_stride,
          .piece_stride = pieces.stride,
          .entry_count = geometry.page().entry_count()};
}

/// A stride that is never taken says nothing about addresses.
inline UnitWidth& add_places(UnitWidth& width, const SlotPlaces& places, const Pieces& pieces) {
  width.add(places.first).add(places.page_stride);
  if (places.entry_count > 1) width.add(places.token_stride);
  if (pieces.count > 1) width.add(places.piece_stride);
  return width;
}

}  // namespace quire
