// SPDX-License-Identifier: Apache-2.0
//
// Entries of up to 1,024 values, a warp for each. A row of bf16 is cut in units of 16 bytes: eight values, which are 8
// bytes of codes in the entry, or eight rope values, which are 16 bytes there as well. Lanes take units in turn:
//
//     unit   0 1 2 … 31 | 32 33 … 55   56 … 63        448 values and 64 rope values: two units for each lane
//     lane   0 1 2 … 31 |  0  1 … 23   24 … 31
//            codes        codes        rope
//
// Which units a lane has is the same for all entries, so it finds out once where they are, with everything that has to
// be divided for that. Only the last unit of a lane can be something else than codes: no other one has to be asked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/launch.cuh"
#include "kernels/quantised_places.cuh"

namespace quire {

inline constexpr std::uint32_t kFullWarp = 0xffffffffU;
inline constexpr std::uint32_t kWarpLanes = 32;
inline constexpr std::uint32_t kBlockWarps = kBlockThreads / kWarpLanes;
inline constexpr std::uint32_t kUnitBytes = 16;
inline constexpr std::uint32_t kUnitsPerLaneMax = 4;
inline constexpr std::uint32_t kUnitsMax = kUnitsPerLaneMax * kWarpLanes;
inline constexpr std::uint32_t kNoEntry = 0xffffffffU;

/// How entries are cut. The divisors are as factors: a unit is a number below kUnitsMax, and so a product and a shift
/// divide it by any number up to that.
struct UnitShape {
  std::uint32_t units_per_lane = 0;  ///< 0: they cannot be cut in this way
  std::uint32_t code_units = 0;
  std::uint32_t unit_count = 0;  ///< with those of rope values
  std::uint32_t head_units = 0;
  std::uint32_t block_units = 0;  ///< not more than kUnitsMax
  std::uint32_t head_factor = 0;
  std::uint32_t block_factor = 0;
};

[[nodiscard]] inline std::uint32_t division_factor(std::uint32_t divisor) {
  return (65'536U / divisor) + 1;
}
[[nodiscard]] __device__ inline std::uint32_t divide_unit(std::uint32_t unit, std::uint32_t factor) {
  return (unit * factor) >> 16U;
}

/// For entries that can be reached eight values at a time (is_vectorised).
[[nodiscard]] inline UnitShape unit_shape(const QuantisedPlaces& places) {
  const std::uint64_t code_units = std::uint64_t{places.head_count} * (places.dim / kVectorValues);
  const std::uint64_t unit_count = code_units + (places.rope.head_bytes / kUnitBytes);
  const std::uint64_t units_per_lane = ((unit_count - 1) / kWarpLanes) + 1;
  // Offsets in a page have 32 bits.
  if (unit_count > kUnitsMax || code_units < (units_per_lane - 1) * kWarpLanes || (places.page_stride >> 32U) != 0) {
    return {};
  }
  const std::uint32_t head_units = places.dim / kVectorValues;
  const std::uint32_t block_units = std::min(places.block_values / kVectorValues, kUnitsMax);
  return {.units_per_lane = static_cast<std::uint32_t>(units_per_lane),
          .code_units = static_cast<std::uint32_t>(code_units),
          .unit_count = static_cast<std::uint32_t>(unit_count),
          .head_units = head_units,
          .block_units = block_units,
          .head_factor = division_factor(head_units),
          .block_factor = division_factor(block_units)};
}

/// call.operator()<scale form, units per lane>().
template <typename Call>
[[nodiscard]] Status with_units(ScaleForm form, std::uint32_t units_per_lane, Call call) {
  const auto with_form = [&]<std::uint32_t kUnits>() {
    return form == ScaleForm::Ue8m0 ? call.template operator()<ScaleForm::Ue8m0, kUnits>()
                                    : call.template operator()<ScaleForm::Fp32, kUnits>();
  };
  switch (units_per_lane) {
    case 1:
      return with_form.template operator()<1>();
    case 2:
      return with_form.template operator()<2>();
    case 3:
      return with_form.template operator()<3>();
    default:
      return with_form.template operator()<4>();
  }
}

/// Has the compiler keep a number. It would rather find out again for every entry what it takes many steps to find out,
/// to save a register.
__device__ inline void keep([[maybe_unused]] std::uint32_t& number) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(number));
#endif
}

/// The units of one lane, which are `lane`, `lane` + 32 and so on, and where they are in the page of an entry.
template <std::uint32_t kUnits>
struct LaneUnits {
  static constexpr std::uint32_t kLast = kUnits - 1;

  std::uint32_t first[kUnits];   ///< of entry 0: codes, or rope values
  std::uint32_t scales[kUnits];  ///< of entry 0: the unit's scale
  std::uint32_t last_stride;     ///< from entry to entry, of the last unit
  bool last_is_codes;
  bool last_is_rope;

  __device__ LaneUnits(const UnitShape& shape, const QuantisedPlaces& places, std::uint32_t lane) {
    const std::uint32_t last = lane + (kLast * kWarpLanes);
    last_is_codes = last < shape.code_units;
    last_is_rope = !last_is_codes && last < shape.unit_count;
    const std::uint32_t scale_bytes = places.scale_form == ScaleForm::Ue8m0 ? 1 : sizeof(float);
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) {
      const std::uint32_t unit = lane + (i * kWarpLanes);
      const std::uint32_t head = divide_unit(unit, shape.head_factor);
      const std::uint32_t in_head = unit - (head * shape.head_units);
      first[i] = low(places.values.offset) + (head * low(places.values.head)) + (in_head * kVectorValues);
      scales[i] = low(places.scales.offset) + (head * low(places.scales.head)) +
                  (divide_unit(in_head, shape.block_factor) * scale_bytes);
    }
    if (last_is_rope) first[kLast] = low(places.rope.offset) + ((last - shape.code_units) * kUnitBytes);
    last_stride = low(last_is_rope ? places.rope.token : places.values.token);
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) {
      keep(first[i]);
      keep(scales[i]);
    }
    keep(last_stride);
  }

  [[nodiscard]] __device__ static std::uint32_t low(std::uint64_t bytes) { return static_cast<std::uint32_t>(bytes); }

  [[nodiscard]] __device__ bool has_codes(std::uint32_t i) const { return i + 1 < kUnits || last_is_codes; }
  [[nodiscard]] __device__ bool has(std::uint32_t i) const { return has_codes(i) || last_is_rope; }
  /// From the first byte of the page.
  [[nodiscard]] __device__ std::uint32_t place_of(std::uint32_t i, std::uint32_t entry,
                                                  const QuantisedPlaces& places) const {
    return first[i] + (entry * (i == kLast ? last_stride : low(places.values.token)));
  }
  [[nodiscard]] __device__ std::uint32_t scale_place_of(std::uint32_t i, std::uint32_t entry,
                                                        const QuantisedPlaces& places) const {
    return scales[i] + (entry * low(places.scales.token));
  }
};

/// How long runs of rows or places are, of which a warp has one each: long ones, so that few warps look for where
/// theirs are, but first of all enough of them for a large device.
[[nodiscard]] inline std::uint32_t run_length_for(std::uint64_t count) {
  constexpr std::uint64_t kWarpsWanted = std::uint64_t{1} << 14U;
  return static_cast<std::uint32_t>(std::clamp(count / kWarpsWanted, std::uint64_t{1}, std::uint64_t{16}));
}

}  // namespace quire
