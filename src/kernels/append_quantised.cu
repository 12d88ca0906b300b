// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kernels/e4m3_device.cuh"
#include "kernels/launch.cuh"
#include "kernels/quantised_places.cuh"
#include "kernels/quantised_units.cuh"
#include "kernels/vector_copy.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

struct AppendQuantisedWork {
  QuantisedPlaces places;
  std::byte* pool;
  const std::byte* source;
  std::uint64_t source_row_bytes;
  const std::int64_t* slots;
  const std::int32_t* positions;  // null where entries have none
  std::uint64_t slot_count;       // of the pool
  std::uint64_t row_count;
};

// Rows of which a warp has all units in its registers.
struct UnitWork {
  AppendQuantisedWork append;
  UnitShape units;
  std::uint64_t run_count;
  std::uint32_t run_rows;
  std::uint32_t group_lanes;  // neighbours that share a scale: 2^n
  bool has_one_scale;         // all units of a row share it, whichever lane has them
  std::uint32_t padding;      // bytes behind the scales of a head
};

// A lane's units of a row, encoded and stored together with the other lanes.
template <ScaleForm kForm, std::uint32_t kUnits>
class UnitAppender {
 public:
  __device__ UnitAppender(const UnitWork& work, std::uint32_t lane)
      : work_(work), units_(work.units, work.append.places, lane) {
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) {
      const std::uint32_t unit = lane + (i * kWarpLanes);
      const std::uint32_t in_head = unit - (divide_unit(unit, work.units.head_factor) * work.units.head_units);
      const std::uint32_t block = divide_unit(in_head, work.units.block_factor);
      if (in_head != block * work.units.block_units) continue;
      leads_ |= 1U << i;
      if (block + 1 == work.append.places.block_count) ends_ |= 1U << i;
    }
    keep(leads_);
    keep(ends_);
  }

  // `source` is the lane's first unit.
  __device__ void load(uint4 (&row)[kUnits], const std::byte* source) const {
    const auto* const units = reinterpret_cast<const uint4*>(source);
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) {
      if (units_.has(i)) row[i] = __ldcs(units + (i * kWarpLanes));
    }
  }

  __device__ void append(const uint4 (&row)[kUnits], std::byte* page, std::uint32_t entry) const {
    const QuantisedPlaces& places = work_.append.places;
    std::uint32_t greatest[kPairs];
    find_greatest(row, greatest);
#pragma unroll
    for (std::uint32_t i = 0; i < kUnits; ++i) {
      std::byte* const target = page + units_.place_of(i, entry, places);
      if (!units_.has_codes(i)) {
        if (units_.last_is_rope) *reinterpret_cast<uint4*>(target) = row[i];
        break;
      }
      const std::uint32_t own = i % 2 == 0 ? greatest[i / 2] & 0xffffU : greatest[i / 2] >> 16U;
      const BlockScale scale = scale_of(own, kForm);
      *reinterpret_cast<uint2*>(target) = encode_eight(row[i], scale.inverse);
      if (((leads_ >> i) & 1U) != 0) store_scale(i, page + units_.scale_place_of(i, entry, places), scale.scale);
    }
  }

 private:
  static constexpr std::uint32_t kPairs = (kUnits + 1) / 2;

  // The bits of the greatest finite magnitude of the block of each unit. Those of two units at a time are in the halves
  // of a word: as numbers without a sign, bf16 are ordered as their bits are.
  __device__ void find_greatest(const uint4 (&row)[kUnits], std::uint32_t (&greatest)[kPairs]) const {
    std::uint32_t above = 0;  // bit 15 and 31: of a unit with something that is not finite
#pragma unroll
    for (std::uint32_t i = 0; i < kPairs; ++i) {
      const std::uint32_t even = greatest_halves(row, 2 * i);
      const std::uint32_t odd = (2 * i) + 1 < kUnits ? greatest_halves(row, (2 * i) + 1) : 0;
      greatest[i] = __vmaxu2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
      above |= greatest[i] + 0x00800080U;
    }
    if ((above & 0x80008000U) != 0) {
#pragma unroll
      for (std::uint32_t i = 0; i < kUnits; ++i) {
        if (i % 2 == 0) greatest[i / 2] = 0;
        if (units_.has_codes(i)) greatest[i / 2] |= greatest_finite(row[i]) << (i % 2 * 16U);
      }
    }
    if (work_.has_one_scale) {
#pragma unroll
      for (std::uint32_t i = 1; i < kPairs; ++i) greatest[0] = __vmaxu2(greatest[0], greatest[i]);
      greatest[0] = __vmaxu2(greatest[0], __byte_perm(greatest[0], 0, 0x1032));
#pragma unroll
      for (std::uint32_t i = 1; i < kPairs; ++i) greatest[i] = greatest[0];
    }
    for (std::uint32_t distance = work_.group_lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (std::uint32_t i = 0; i < kPairs; ++i) {
        greatest[i] = __vmaxu2(greatest[i], __shfl_xor_sync(kFullWarp, greatest[i], static_cast<int>(distance)));
      }
    }
  }
  // Of the values with even and with odd places.
  [[nodiscard]] __device__ std::uint32_t greatest_halves(const uint4 (&row)[kUnits], std::uint32_t i) const {
    constexpr std::uint32_t kNoSigns = 0x7fff7fffU;
    if (!units_.has_codes(i)) return 0;
    return __vmaxu2(__vmaxu2(row[i].x & kNoSigns, row[i].y & kNoSigns),
                    __vmaxu2(row[i].z & kNoSigns, row[i].w & kNoSigns));
  }
  __device__ void store_scale(std::uint32_t i, std::byte* target, float scale) const {
    if constexpr (kForm == ScaleForm::Ue8m0) {
      *target = static_cast<std::byte>(__float_as_uint(scale) >> 23U);
      if (((ends_ >> i) & 1U) == 0) return;
#pragma unroll 1
      for (std::uint32_t byte = 1; byte <= work_.padding; ++byte) target[byte] = std::byte{0};
    } else {
      *reinterpret_cast<float*>(target) = scale;
    }
  }

  const UnitWork& work_;
  LaneUnits<kUnits> units_;
  std::uint32_t leads_ = 0;  // bit i: unit i is the first of its block
  std::uint32_t ends_ = 0;   // and that is the last of its head
};

template <ScaleForm kForm, std::uint32_t kUnits>
__global__ void __launch_bounds__(kBlockThreads, kUnits < 4 ? 4 : 3)
    append_units_kernel(const __grid_constant__ UnitWork work) {
  constexpr std::uint32_t kAtATime = 2;  // rows whose bytes are under way
  const AppendQuantisedWork& append = work.append;
  const QuantisedPlaces& places = append.places;
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  const UnitAppender<kForm, kUnits> appender(work, lane);
  for (std::uint64_t run = (std::uint64_t{blockIdx.x} * kBlockWarps) + (threadIdx.x / kWarpLanes); run < work.run_count;
       run += std::uint64_t{gridDim.x} * kBlockWarps) {
    const std::uint64_t first = run * work.run_rows;
    const auto count = static_cast<std::uint32_t>(min(std::uint64_t{work.run_rows}, append.row_count - first));
    // Each lane finds where one of the rows goes.
    std::uint64_t own_page = 0;
    std::uint32_t own_entry = kNoEntry;
    if (lane < count) {
      const auto slot = static_cast<std::uint64_t>(append.slots[first + lane]);  // a negative one becomes too large
      if (slot < append.slot_count) {
        const Division in_page = divide(slot, places.entry_count);
        own_page = places.layer_offset + (in_page.quotient * places.page_stride);
        own_entry = in_page.remainder;
        if (append.positions != nullptr) {
          store_bytes(append.pool + own_page + places.positions.offset + (own_entry * places.positions.token),
                      append.positions[first + lane]);
        }
      }
    }
    const std::byte* source = append.source + (first * append.source_row_bytes) + (lane * kUnitBytes);
    for (std::uint32_t row = 0; row < count; row += kAtATime) {
      uint4 rows[kAtATime][kUnits];
      std::uint32_t entries[kAtATime];
#pragma unroll
      for (std::uint32_t i = 0; i < kAtATime; ++i) {
        entries[i] = __shfl_sync(kFullWarp, own_entry, static_cast<int>(row + i));  // none behind the last row
        if (entries[i] != kNoEntry) appender.load(rows[i], source);
        source += append.source_row_bytes;
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kAtATime; ++i) {
        const std::uint64_t page = __shfl_sync(kFullWarp, own_page, static_cast<int>(row + i));
        if (entries[i] != kNoEntry) appender.append(rows[i], append.pool + page, entries[i]);
      }
    }
  }
}

// Rows of any shape: a block of values for each group of neighbouring threads.
struct BlockWork {
  AppendQuantisedWork append;
  std::uint64_t item_count;  // rows, heads and blocks
  std::uint32_t lane_bits;   // 2^lane_bits threads have a block of values
};

// The values of a block, 8 or 1 at a time. A thread reads its values twice: the second time they are in its processor's
// own cache, and blocks may have any length.
template <bool kIsVector>
struct Values;

template <>
struct Values<true> {
  static constexpr std::uint32_t kCount = kVectorValues;

  __device__ static uint4 load(const std::byte* source) { return *reinterpret_cast<const uint4*>(source); }
  __device__ static std::uint32_t greatest(const std::byte* source) { return greatest_finite(load(source)); }
  __device__ static void encode(std::byte* codes, const std::byte* source, float inverse) {
    *reinterpret_cast<uint2*>(codes) = encode_eight(load(source), inverse);
  }
};

template <>
struct Values<false> {
  static constexpr std::uint32_t kCount = 1;

  __device__ static std::uint32_t greatest(const std::byte* source) {
    return greatest_finite(std::uint32_t{load_bytes<std::uint16_t>(source)});
  }
  __device__ static void encode(std::byte* codes, const std::byte* source, float inverse) {
    *codes = static_cast<std::byte>(encode_value(load_bytes<std::uint16_t>(source), inverse));
  }
};

template <bool kIsVector>
__device__ void store_scale(std::byte* scales, std::uint32_t block, const QuantisedPlaces& places, float scale) {
  std::uint32_t written = block + 1;
  if (places.scale_form == ScaleForm::Ue8m0) {
    scales[block] = static_cast<std::byte>(__float_as_uint(scale) >> 23U);
  } else {
    written *= sizeof(float);
    if constexpr (kIsVector) {
      reinterpret_cast<float*>(scales)[block] = scale;
    } else {
      store_bytes(scales + (block * sizeof(float)), scale);
    }
  }
  if (written < places.block_count * (places.scale_form == ScaleForm::Ue8m0 ? 1U : 4U)) return;
  for (; written < places.scales.head_bytes; ++written) scales[written] = std::byte{0};  // what pads them
}

// What an entry has besides values and scales.
template <bool kIsVector>
__device__ void copy_rest(const BlockWork& blocks, std::uint64_t row, std::uint64_t page, std::uint64_t entry,
                          std::uint32_t lane) {
  using Unit = std::conditional_t<kIsVector, uint4, std::uint8_t>;
  const AppendQuantisedWork& work = blocks.append;
  const QuantisedPlaces& places = work.places;
  const auto* const source =
      reinterpret_cast<const Unit*>(work.source + (row * work.source_row_bytes) + (std::uint64_t{2} * places.dim));
  auto* const target = reinterpret_cast<Unit*>(work.pool + places.offset_of(page, entry, places.rope));
  for (std::uint64_t i = lane; i < places.rope.head_bytes / sizeof(Unit); i += 1U << blocks.lane_bits) {
    target[i] = source[i];
  }
  if (work.positions != nullptr && lane == 0) {
    store_bytes(work.pool + places.offset_of(page, entry, places.positions), work.positions[row]);
  }
}

template <bool kIsVector>
__global__ void __launch_bounds__(kBlockThreads) append_blocks_kernel(const __grid_constant__ BlockWork blocks) {
  const AppendQuantisedWork& work = blocks.append;
  const QuantisedPlaces& places = work.places;
  const std::uint32_t lanes = 1U << blocks.lane_bits;
  const std::uint32_t lane = threadIdx.x & (lanes - 1);
  // The threads of a block of values, which are neighbours in a warp: others there may be elsewhere in the loop.
  const std::uint32_t group = (0xffffffffU >> (32 - lanes)) << (threadIdx.x & (32 - lanes));
  const std::uint64_t stride = (std::uint64_t{gridDim.x} * kBlockThreads) >> blocks.lane_bits;
  for (std::uint64_t item = ((std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x) >> blocks.lane_bits;
       item < blocks.item_count; item += stride) {
    const Division in_head = divide(item, places.block_count);
    const Division in_row = divide(in_head.quotient, places.head_count);
    const std::uint64_t row = in_row.quotient;
    const auto slot = static_cast<std::uint64_t>(work.slots[row]);  // a negative one becomes too large
    if (slot >= work.slot_count) continue;
    const Division in_page = divide(slot, places.entry_count);
    const std::uint32_t head = in_row.remainder;
    const std::uint32_t block = in_head.remainder;
    const std::uint32_t first = block * places.block_values;
    const std::uint32_t count = min(places.block_values, places.dim - first);
    const std::byte* const source = work.source + (row * work.source_row_bytes) +
                                    (((std::uint64_t{head} * places.dim) + first) * sizeof(std::uint16_t));
    std::uint32_t greatest = 0;
    for (std::uint32_t i = lane * Values<kIsVector>::kCount; i < count; i += lanes * Values<kIsVector>::kCount) {
      greatest = max(greatest, Values<kIsVector>::greatest(source + (i * sizeof(std::uint16_t))));
    }
    for (std::uint32_t distance = lanes / 2; distance > 0; distance /= 2) {
      greatest = max(greatest, __shfl_xor_sync(group, greatest, static_cast<int>(distance)));
    }
    const BlockScale scale = scale_of(greatest, places.scale_form);
    std::byte* const codes =
        work.pool + places.offset_of(in_page.quotient, in_page.remainder, places.values, head) + first;
    for (std::uint32_t i = lane * Values<kIsVector>::kCount; i < count; i += lanes * Values<kIsVector>::kCount) {
      Values<kIsVector>::encode(codes + i, source + (i * sizeof(std::uint16_t)), scale.inverse);
    }
    if (lane == 0) {
      store_scale<kIsVector>(work.pool + places.offset_of(in_page.quotient, in_page.remainder, places.scales, head),
                             block, places, scale.scale);
    }
    if (block == 0 && head == 0) copy_rest<kIsVector>(blocks, row, in_page.quotient, in_page.remainder, lane);
  }
}

// Whether lanes that have units of one block are neighbours in a group, or it is all of them.
[[nodiscard]] bool can_share_scales(const UnitShape& units, bool has_one_scale) {
  const bool is_group = std::has_single_bit(units.block_units) && units.block_units <= kWarpLanes;
  const bool begins_with_heads = units.head_units == units.code_units || units.head_units % units.block_units == 0;
  return units.units_per_lane > 0 && (has_one_scale || (is_group && begins_with_heads));
}

[[nodiscard]] Status launch_append_units(const AppendQuantisedWork& append, const UnitShape& units, bool has_one_scale,
                                         LaunchShape shape) {
  const QuantisedPlaces& places = append.places;
  const std::uint32_t scale_bytes = places.scale_form == ScaleForm::Ue8m0 ? 1 : sizeof(float);
  const std::uint32_t run_rows = run_length_for(append.row_count);
  const UnitWork work{
      .append = append,
      .units = units,
      .run_count = ((append.row_count - 1) / run_rows) + 1,
      .run_rows = run_rows,
      .group_lanes = has_one_scale ? kWarpLanes : units.block_units,
      .has_one_scale = has_one_scale,
      .padding = static_cast<std::uint32_t>(places.scales.head_bytes) - (places.block_count * scale_bytes)};
  shape.blocks = block_count_for(work.run_count, kBlockWarps);
  return with_units(places.scale_form, units.units_per_lane, [&]<ScaleForm kForm, std::uint32_t kUnits>() {
    return launch(shape, append_units_kernel<kForm, kUnits>, work);
  });
}

[[nodiscard]] Status launch_append_blocks(const AppendQuantisedWork& append, bool is_vector, LaunchShape shape) {
  const QuantisedPlaces& places = append.places;
  const std::uint32_t lane_values = is_vector ? kVectorValues : 1;
  const std::uint32_t lanes = std::bit_ceil(((std::min(places.block_values, places.dim) - 1) / lane_values) + 1);
  const BlockWork work{.append = append,
                       .item_count = append.row_count * places.head_count * places.block_count,
                       .lane_bits = static_cast<std::uint32_t>(std::countr_zero(std::min(lanes, kWarpLanes)))};
  shape.blocks = block_count_for(work.item_count, kBlockThreads >> work.lane_bits);
  return launch(shape, is_vector ? append_blocks_kernel<true> : append_blocks_kernel<false>, work);
}

}  // namespace

Status launch_append_quantised(const AppendQuantisedParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_append_quantised";
  QUIRE_TRY(check_address(params.entries, kWhat, "entries"));
  const QuantisedEntries& entries = *params.entries;
  QUIRE_TRY(check_layer(entries.geometry(), params.layer_index, kWhat));
  const bool has_positions = entries.components().positions != kNoComponent;
  QUIRE_TRY(check_argument(params.positions.size() == (has_positions ? params.slots.size() : 0), kWhat,
                           "there are not as many positions as slots where entries have them, else none"));
  const std::uint64_t source_row_bytes = params.source_row_bytes == 0 ? entries.row_bytes() : params.source_row_bytes;
  QUIRE_TRY(check_argument(source_row_bytes >= entries.row_bytes(), kWhat,
                           "the source's rows overlap: source_row_bytes is less than a row has"));
  if (params.slots.empty()) return {};
  QUIRE_TRY(check_address(params.pool, kWhat, "pool"));
  QUIRE_TRY(check_address(params.source, kWhat, "source"));
  QUIRE_TRY(check_address(params.slots.data(), kWhat, "slots"));
  if (has_positions) QUIRE_TRY(check_address(params.positions.data(), kWhat, "positions"));

  const QuantisedPlaces places = quantised_places(entries, params.layer_index);
  UnitWidth rows;
  const bool is_vector = is_vectorised(places, params.pool, rows.add(params.source).add(source_row_bytes));
  const AppendQuantisedWork work{.places = places,
                                 .pool = params.pool,
                                 .source = params.source,
                                 .source_row_bytes = source_row_bytes,
                                 .slots = params.slots.data(),
                                 .positions = has_positions ? params.positions.data() : nullptr,
                                 .slot_count = std::uint64_t{places.page_count} * places.entry_count,
                                 .row_count = params.slots.size()};
  const LaunchShape shape{.stream = stream, .what = kWhat};
  const UnitShape units = is_vector ? unit_shape(places) : UnitShape{};
  const bool has_one_scale = places.head_count == 1 && places.block_count == 1;
  if (can_share_scales(units, has_one_scale)) return launch_append_units(work, units, has_one_scale, shape);
  return launch_append_blocks(work, is_vector, shape);
}

}  // namespace quire
