// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/launch.cuh"
#include "kernels/pieces.h"
#include "kernels/vector_copy.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

// So many moves are under way at a time.
constexpr std::uint32_t kMovesAtATime = 8;

// One component's units of a token in one layer.
struct ComponentUnits {
  std::uint64_t offset;
  std::uint64_t token_stride;
  std::uint64_t piece_stride;
  std::uint32_t piece_units;
  std::uint32_t token_units;  // of all pieces
};

struct MoveTokensWork {
  std::byte* pool;
  const TokenMove* moves;
  std::uint64_t move_count;
  std::uint64_t slot_count;
  std::uint64_t page_stride;
  std::uint64_t layer_stride;
  std::uint32_t entry_count;
  std::uint32_t layer_count;
  std::uint32_t layer_units;  // of a token, in all components
  ComponentUnits components[kComponentsMax];
};

// Moves depend on each other, bytes of a token do not: a thread has one unit of every token, in one layer, and makes
// all moves of it in their order. It loads the units of several moves before it stores any; a source that is the target
// of one of these gets what that move has in hand.
template <typename Unit>
__device__ void move_unit(const MoveTokensWork& work, std::byte* base, std::uint64_t token_stride) {
  const auto unit_at = [&](std::int64_t slot) {
    const Division in_page = divide(static_cast<std::uint64_t>(slot), work.entry_count);
    return reinterpret_cast<Unit*>(base + (in_page.quotient * work.page_stride) + (in_page.remainder * token_stride));
  };
  for (std::uint64_t first = 0; first < work.move_count; first += kMovesAtATime) {
    Unit units[kMovesAtATime];
    TokenMove moves[kMovesAtATime];
#pragma unroll
    for (std::uint32_t i = 0; i < kMovesAtATime; ++i) {
      moves[i] = first + i < work.move_count ? work.moves[first + i] : TokenMove{};
      const bool is_possible = static_cast<std::uint64_t>(moves[i].source_slot) < work.slot_count &&
                               static_cast<std::uint64_t>(moves[i].target_slot) < work.slot_count;
      // What is left out has one slot on both sides.
      if (!is_possible) moves[i] = {};
      if (moves[i].source_slot != moves[i].target_slot) units[i] = *unit_at(moves[i].source_slot);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kMovesAtATime; ++i) {
      if (moves[i].source_slot == moves[i].target_slot) continue;
#pragma unroll
      for (std::uint32_t earlier = 0; earlier < i; ++earlier) {
        if (moves[earlier].source_slot == moves[earlier].target_slot) continue;
        if (moves[earlier].target_slot == moves[i].source_slot) units[i] = units[earlier];
      }
      *unit_at(moves[i].target_slot) = units[i];
    }
  }
}

template <typename Unit>
__global__ void __launch_bounds__(kBlockThreads) move_tokens_kernel(const __grid_constant__ MoveTokensWork work) {
  const std::uint64_t unit_count = std::uint64_t{work.layer_count} * work.layer_units;
  for (std::uint64_t at = (std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x; at < unit_count;
       at += std::uint64_t{gridDim.x} * kBlockThreads) {
    const Division in_layer = divide(at, work.layer_units);
    std::uint32_t unit = in_layer.remainder;
    std::uint32_t index = 0;
    while (unit >= work.components[index].token_units) unit -= work.components[index++].token_units;
    const ComponentUnits& component = work.components[index];
    std::byte* const base = work.pool + (in_layer.quotient * work.layer_stride) + component.offset +
                            (unit / component.piece_units * component.piece_stride) +
                            (unit % component.piece_units * sizeof(Unit));
    move_unit<Unit>(work, base, component.token_stride);
  }
}

}  // namespace

Status launch_move_tokens(const MoveTokensParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_move_tokens";
  QUIRE_TRY(check_address(params.geometry, kWhat, "geometry"));
  if (params.moves.empty()) return {};
  QUIRE_TRY(check_address(params.pool, kWhat, "pool"));
  QUIRE_TRY(check_address(params.moves.data(), kWhat, "moves"));

  const PoolGeometry& geometry = *params.geometry;
  const PageGeometry& page = geometry.page();
  const std::uint32_t component_count = geometry.strides().component_count;
  UnitWidth width;
  width.add(params.pool).add(geometry.strides().page).add(geometry.strides().layer);
  for (std::uint32_t index = 0; index < component_count; ++index) {
    const Pieces pieces = pieces_of(page, index);
    width.add(pieces.offset).add(pieces.token_stride).add(pieces.token_bytes);
    if (pieces.count > 1) width.add(pieces.stride);
  }
  MoveTokensWork work{.pool = params.pool,
                      .moves = params.moves.data(),
                      .move_count = params.moves.size(),
                      .slot_count = std::uint64_t{geometry.page_count()} * page.entry_count(),
                      .page_stride = geometry.strides().page,
                      .layer_stride = geometry.strides().layer,
                      .entry_count = page.entry_count(),
                      .layer_count = page.layer_count()};
  for (std::uint32_t index = 0; index < component_count; ++index) {
    const Pieces pieces = pieces_of(page, index);
    const auto piece_units = static_cast<std::uint32_t>(pieces.token_bytes / width.bytes());
    work.components[index] = {.offset = pieces.offset,
                              .token_stride = pieces.token_stride,
                              .piece_stride = pieces.stride,
                              .piece_units = piece_units,
                              .token_units = piece_units * static_cast<std::uint32_t>(pieces.count)};
    work.layer_units += work.components[index].token_units;
  }
  const LaunchShape shape{.blocks = block_count_for(std::uint64_t{work.layer_count} * work.layer_units, kBlockThreads),
                          .stream = stream,
                          .what = kWhat};
  return with_unit(width.bytes(), [&](auto unit) { return launch(shape, move_tokens_kernel<decltype(unit)>, work); });
}

}  // namespace quire
