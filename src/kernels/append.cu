// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/launch.cuh"
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
  QUIRE_TRY_ASSIGN(const SlotRows rows, slot_rows_of({.geometry = params.geometry,
                                                      .layer_index = params.layer_index,
                                                      .component_index = params.component_index,
                                                      .pool = params.pool,
                                                      .tokens = params.source,
                                                      .token_bytes = params.source_token_bytes,
                                                      .slots = params.slots,
                                                      .tokens_name = "source",
                                                      .what = kWhat}));
  if (params.slots.empty()) return {};
  return launch_copy_rows(AppendRows{.places = rows.places,
                                     .pool = params.pool,
                                     .source = params.source,
                                     .slots = params.slots.data(),
                                     .source_token_bytes = rows.token_bytes,
                                     .row_bytes = rows.pieces.token_bytes,
                                     .piece_count = static_cast<std::uint32_t>(rows.pieces.count)},
                          {.row_count = params.slots.size() * rows.pieces.count,
                           .row_bytes = rows.pieces.token_bytes,
                           .width = rows.width,
                           .stream = stream,
                           .what = kWhat});
}

}  // namespace quire
