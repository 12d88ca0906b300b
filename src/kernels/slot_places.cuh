// SPDX-License-Identifier: Apache-2.0
//
// Where in a pool the rows of slots are, of one component in one layer: what Pieces says, as numbers for a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/launch.cuh"
#include "kernels/pieces.h"
#include "kernels/vector_copy.cuh"
#include "quire/layout.h"
#include "quire/result.h"

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

/// What a launcher is asked for that moves rows between slots and tokens one behind the other.
struct SlotRowsRequest {
  const PoolGeometry* geometry = nullptr;
  std::uint32_t layer_index = 0;
  std::uint32_t component_index = 0;
  const std::byte* pool = nullptr;
  const std::byte* tokens = nullptr;
  std::uint64_t token_bytes = 0;  ///< from one of them to the next; 0: what a token has
  std::span<const std::int64_t> slots;
  std::string_view tokens_name;  ///< what the launcher calls them: "source" or "target"
  std::string_view what;         ///< the launcher's name
};

struct SlotRows {
  Pieces pieces;
  SlotPlaces places;
  std::uint64_t token_bytes = 0;
  UnitWidth width;  ///< of all addresses on both sides
};

/// Or what is wrong with the request. Addresses are looked at only where there are slots.
[[nodiscard]] inline Result<SlotRows> slot_rows_of(const SlotRowsRequest& request) {
  QUIRE_TRY(check_address(request.geometry, request.what, "geometry"));
  const PoolGeometry& geometry = *request.geometry;
  QUIRE_TRY(check_layer(geometry, request.layer_index, request.what));
  QUIRE_TRY(check_component(geometry, request.component_index, request.what));
  const Pieces pieces = pieces_of(geometry.page(), request.component_index);
  const std::uint64_t bytes_min = pieces.count * pieces.token_bytes;
  SlotRows rows{.pieces = pieces,
                .places = slot_places(geometry, pieces, request.layer_index),
                .token_bytes = request.token_bytes == 0 ? bytes_min : request.token_bytes};
  if (rows.token_bytes < bytes_min) {
    const std::string name(request.tokens_name);
    QUIRE_TRY(check_argument(false, request.what,
                             "the " + name + "'s tokens overlap: " + name + "_token_bytes is less than a token has"));
  }
  if (request.slots.empty()) return rows;
  QUIRE_TRY(check_address(request.pool, request.what, "pool"));
  QUIRE_TRY(check_address(request.tokens, request.what, request.tokens_name));
  QUIRE_TRY(check_address(request.slots.data(), request.what, "slots"));
  add_places(rows.width, rows.places, pieces).add(request.pool).add(request.tokens).add(rows.token_bytes);
  return rows;
}

}  // namespace quire
