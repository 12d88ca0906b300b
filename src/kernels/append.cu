// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/launch.cuh"
#include "kernels/pieces.h"
#include "kernels/slot_places.cuh"
#include "kernels/vector_copy.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

// A row for every token and piece.
struct AppendRows {
  SlotPlaces places;
  std::byte* pool;
  const std::byte* source;
  const std::int64_t* slots;
  std::uint64_t source_token_bytes;
  std::uint64_t row_bytes;
  std::uint32_t piece_count;

  struct Begun {
    const std::byte* source;
    std::int64_t slot;
    std::uint32_t piece;
  };
  [[nodiscard]] __device__ Begun begin(std::uint64_t row) const {
    const Division token = divide(row, piece_count);
    return {.source = source + (token.quotient * source_token_bytes) + (token.remainder * row_bytes),
            .slot = slots[token.quotient],
            .piece = token.remainder};
  }
  [[nodiscard]] __device__ std::byte* target_of(const Begun& begun) const {
    return places.has(begun.slot) ? pool + places.offset_of(begun.slot, begun.piece) : nullptr;
  }
};

}  // namespace

Status launch_append(const AppendParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_append";
  QUIRE_TRY(check_address(params.geometry, kWhat, "geometry"));
  const PoolGeometry& geometry = *params.geometry;
  QUIRE_TRY(check_layer(geometry, params.layer_index, kWhat));
  QUIRE_TRY(check_component(geometry, params.component_index, kWhat));
  const Pieces pieces = pieces_of(geometry.page(), params.component_index);
  const std::uint64_t token_bytes = pieces.count * pieces.token_bytes;
  const std::uint64_t source_token_bytes = params.source_token_bytes == 0 ? token_bytes : params.source_token_bytes;
  QUIRE_TRY(check_argument(source_token_bytes >= token_bytes, kWhat,
                           "the source's tokens overlap: source_token_bytes is less than a token has"));
  if (params.slots.empty()) return {};
  QUIRE_TRY(check_address(params.pool, kWhat, "pool"));
  QUIRE_TRY(check_address(params.source, kWhat, "source"));
  QUIRE_TRY(check_address(params.slots.data(), kWhat, "slots"));

  const SlotPlaces places = slot_places(geometry, pieces, params.layer_index);
  UnitWidth width;
  add_places(width, places, pieces).add(params.pool).add(params.source).add(source_token_bytes);
  return launch_copy_rows(AppendRows{.places = places,
                                     .pool = params.pool,
                                     .source = params.source,
                                     .slots = params.slots.data(),
                                     .source_token_bytes = source_token_bytes,
                                     .row_bytes = pieces.token_bytes,
                                     .piece_count = static_cast<std::uint32_t>(pieces.count)},
                          {.row_count = params.slots.size() * pieces.count,
                           .row_bytes = pieces.token_bytes,
                           .width = width,
                           .stream = stream,
                           .what = kWhat});
}

}  // namespace quire
