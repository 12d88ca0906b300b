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
  std::uint64_t item_count;       // rows, heads and blocks
  std::uint32_t lane_bits;        // 2^lane_bits threads have a block of values
};

// The values of a block, 8 or 1 at a time. A thread reads its values twice: the second time they are in its processor's
// own cache, and blocks may have any length.
template <bool kIsVector>
struct Values;

template <>
struct Values<true> {
  static constexpr std::uint32_t kCount = kVectorValues;

  __device__ static uint4 load(const std::byte* source) { return *reinterpret_cast<const uint4*>(source); }
  // The bits of the greatest finite magnitude.
  __device__ static std::uint32_t greatest(const std::byte* source) {
    const uint4 pairs = load(source);
    return max(max(greatest_of(pairs.x), greatest_of(pairs.y)), max(greatest_of(pairs.z), greatest_of(pairs.w)));
  }
  __device__ static void encode(std::byte* codes, const std::byte* source, float inverse) {
    const uint4 pairs = load(source);
    *reinterpret_cast<uint2*>(codes) =
        make_uint2(encode_four(pairs.x, pairs.y, inverse), encode_four(pairs.z, pairs.w, inverse));
  }

 private:
  __device__ static std::uint32_t greatest_of(std::uint32_t pair) {
    const std::uint32_t low = pair & 0x7fffU;
    const std::uint32_t high = (pair >> 16U) & 0x7fffU;
    return max(low < kBf16Infinity ? low : 0U, high < kBf16Infinity ? high : 0U);
  }
  __device__ static bool has_nan_of(std::uint32_t pair) {
    return (pair & 0x7fffU) > kBf16Infinity || ((pair >> 16U) & 0x7fffU) > kBf16Infinity;
  }
  __device__ static std::uint32_t encode_two(std::uint32_t pair, float inverse) {
    if (has_nan_of(pair)) return encode_value(pair & 0xffffU, inverse) | (encode_value(pair >> 16U, inverse) << 8U);
    return encode_pair(pair, inverse);
  }
  __device__ static std::uint32_t encode_four(std::uint32_t first, std::uint32_t second, float inverse) {
    return encode_two(first, inverse) | (encode_two(second, inverse) << 16U);
  }
};

template <>
struct Values<false> {
  static constexpr std::uint32_t kCount = 1;

  __device__ static std::uint32_t greatest(const std::byte* source) {
    const std::uint32_t magnitude = load_bytes<std::uint16_t>(source) & 0x7fffU;
    return magnitude < kBf16Infinity ? magnitude : 0U;
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
__device__ void copy_rest(const AppendQuantisedWork& work, std::uint64_t row, std::uint64_t page, std::uint64_t entry,
                          std::uint32_t lane) {
  using Unit = std::conditional_t<kIsVector, uint4, std::uint8_t>;
  const QuantisedPlaces& places = work.places;
  const auto* const source =
      reinterpret_cast<const Unit*>(work.source + (row * work.source_row_bytes) + (std::uint64_t{2} * places.dim));
  auto* const target = reinterpret_cast<Unit*>(work.pool + places.offset_of(page, entry, places.rope));
  for (std::uint64_t i = lane; i < places.rope.head_bytes / sizeof(Unit); i += 1U << work.lane_bits) {
    target[i] = source[i];
  }
  if (work.positions != nullptr && lane == 0) {
    store_bytes(work.pool + places.offset_of(page, entry, places.positions), work.positions[row]);
  }
}

template <bool kIsVector>
__global__ void __launch_bounds__(kBlockThreads)
    append_quantised_kernel(const __grid_constant__ AppendQuantisedWork work) {
  const QuantisedPlaces& places = work.places;
  const std::uint32_t lanes = 1U << work.lane_bits;
  const std::uint32_t lane = threadIdx.x & (lanes - 1);
  // The threads of a block of values, which are neighbours in a warp: others there may be elsewhere in the loop.
  const std::uint32_t group = (0xffffffffU >> (32 - lanes)) << (threadIdx.x & (32 - lanes));
  const std::uint64_t stride = (std::uint64_t{gridDim.x} * kBlockThreads) >> work.lane_bits;
  for (std::uint64_t item = ((std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x) >> work.lane_bits;
       item < work.item_count; item += stride) {
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
    if (block == 0 && head == 0) copy_rest<kIsVector>(work, row, in_page.quotient, in_page.remainder, lane);
  }
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
  const std::uint32_t lane_values = is_vector ? kVectorValues : 1;
  const std::uint32_t lanes = std::bit_ceil(((std::min(places.block_values, places.dim) - 1) / lane_values) + 1);
  const AppendQuantisedWork work{
      .places = places,
      .pool = params.pool,
      .source = params.source,
      .source_row_bytes = source_row_bytes,
      .slots = params.slots.data(),
      .positions = has_positions ? params.positions.data() : nullptr,
      .slot_count = std::uint64_t{places.page_count} * places.entry_count,
      .item_count = params.slots.size() * places.head_count * places.block_count,
      .lane_bits = static_cast<std::uint32_t>(std::countr_zero(std::min(lanes, std::uint32_t{32})))};
  const LaunchShape shape{
      .blocks = block_count_for(work.item_count, kBlockThreads >> work.lane_bits), .stream = stream, .what = kWhat};
  return launch(shape, is_vector ? append_quantised_kernel<true> : append_quantised_kernel<false>, work);
}

}  // namespace quire
