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

// A row for every token and piece, as in append.cu, the other way.
struct ReadRows {
  SlotPlaces places;
  const std::byte* pool;
  std::byte* target;
  const std::int64_t* slots;
  std::uint64_t target_token_bytes;
  std::uint64_t row_bytes;
  std::uint32_t piece_count;

  [[nodiscard]] __device__ RowPlace place(std::uint64_t row) const {
    const Division token = divide(row, piece_count);
    const std::int64_t slot = slots[token.quotient];
    return {.target = target + (token.quotient * target_token_bytes) + (token.remainder * row_bytes),
            .source = places.has(slot) ? pool + places.offset_of(slot, token.remainder) : nullptr};
  }
};

}  // namespace

Status launch_read_rows(const ReadRowsParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_read_rows";
  QUIRE_TRY_ASSIGN(const SlotRows rows, slot_rows_of({.geometry = params.geometry,
                                                      .layer_index = params.layer_index,
                                                      .component_index = params.component_index,
                                                      .pool = params.pool,
                                                      .tokens = params.target,
                                                      .token_bytes = params.target_token_bytes,
                                                      .slots = params.slots,
                                                      .tokens_name = "target",
                                                      .what = kWhat}));
  if (params.slots.empty()) return {};
  return launch_copy_rows(ReadRows{.places = rows.places,
                                   .pool = params.pool,
                                   .target = params.target,
                                   .slots = params.slots.data(),
                                   .target_token_bytes = rows.token_bytes,
                                   .row_bytes = rows.pieces.token_bytes,
                                   .piece_count = static_cast<std::uint32_t>(rows.pieces.count)},
                          {.row_count = params.slots.size() * rows.pieces.count,
                           .row_bytes = rows.pieces.token_bytes,
                           .width = rows.width,
                           .stream = stream,
                           .what = kWhat});
}

}  // namespace quire
