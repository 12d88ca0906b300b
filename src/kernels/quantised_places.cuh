// SPDX-License-Identifier: Apache-2.0
//
// Where the parts of quantised entries lie in a layer of a pool, as numbers for a kernel; and in which of two ways they
// can be reached: eight values at a time, or value by value and byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/launch.cuh"
#include "kernels/quantised_kernels_with.h"
#include "kernels/vector_copy.cuh"
#include "quire/layout.h"
#include "quire/quantised_kernels.h"

namespace quire {

inline constexpr std::uint32_t kVectorValues = 8;  ///< 16 bytes of bf16, 8 of codes

struct QuantisedPlaces {
  std::uint64_t layer_offset = 0;  ///< in the pool
  std::uint64_t page_stride = 0;
  ComponentStrides values;
  ComponentStrides scales;
  ComponentStrides rope;
  ComponentStrides positions;
  std::uint32_t page_count = 0;
  std::uint32_t entry_count = 0;
  std::uint32_t head_count = 0;
  std::uint32_t dim = 0;
  std::uint32_t block_values = 0;
  std::uint32_t block_count = 0;
  ScaleForm scale_form = ScaleForm::Fp32;

  [[nodiscard]] __device__ std::uint64_t offset_of(std::uint64_t page, std::uint64_t entry,
                                                   const ComponentStrides& component, std::uint64_t head = 0) const {
    return layer_offset + (page * page_stride) + component.offset + (entry * component.token) + (head * component.head);
  }
};

[[nodiscard]] inline QuantisedPlaces quantised_places(const QuantisedEntries& entries, std::uint32_t layer_index) {
  const PoolGeometry& geometry = entries.geometry();
  return {.layer_offset = layer_index * geometry.strides().layer,
          .page_stride = geometry.strides().page,
          .values = strides_of(entries, entries.components().values),
          .scales = strides_of(entries, entries.components().scales),
          .rope = strides_of(entries, entries.components().rope),
          .positions = strides_of(entries, entries.components().positions),
          .page_count = geometry.page_count(),
          .entry_count = geometry.page().entry_count(),
          .head_count = entries.head_count(),
          .dim = entries.dim(),
          .block_values = entries.block_values(),
          .block_count = ((entries.dim() - 1) / entries.block_values()) + 1,
          .scale_form = entries.scale_form()};
}

/// Whether all of it can be reached eight values at a time. `rows` is of the rows of bf16: their address and distance.
[[nodiscard]] inline bool is_vectorised(const QuantisedPlaces& places, const void* pool, UnitWidth rows) {
  const auto width_of = [&](const ComponentStrides& component) {
    UnitWidth width;
    width.add(pool).add(places.layer_offset).add(places.page_stride).add(component.offset);
    if (places.entry_count > 1) width.add(component.token);
    if (places.head_count > 1) width.add(component.head);
    return width.bytes();
  };
  const bool has_fp32_scales = places.scale_form == ScaleForm::Fp32;
  return places.dim % kVectorValues == 0 && places.block_values % kVectorValues == 0 && rows.bytes() == 16 &&
         width_of(places.values) >= kVectorValues && width_of(places.scales) >= (has_fp32_scales ? 4U : 1U) &&
         (places.rope.head_bytes == 0 || (width_of(places.rope) == 16 && places.rope.head_bytes % 16 == 0));
}

}  // namespace quire
