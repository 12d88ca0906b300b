// SPDX-License-Identifier: Apache-2.0
//
// A warp has a run of places of one row: its lanes find the entries of all of them, and then it makes one after the
// other, or where entries can be cut for lanes (quantised_units.cuh), a few at a time.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernels/e4m3_device.cuh"
#include "kernels/gather_sources.cuh"
#include "kernels/launch.cuh"
#include "kernels/quantised_places.cuh"
#include "kernels/quantised_units.cuh"
#include "kernels/vector_copy.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

struct GatherWork {
  QuantisedPlaces places;
  UnitShape units;
  const std::byte* pool;
  std::byte* target;
  std::uint64_t row_entries;
  std::uint64_t first_entry;
  std::uint64_t entry_bytes;
  std::uint64_t item_count;   // rows and runs
  std::uint32_t place_count;  // of a row
  std::uint32_t run_places;
  std::uint32_t run_count;  // of a row

  [[nodiscard]] __device__ std::byte* target_of(std::uint64_t row, std::uint32_t place) const {
    return target + (((row * row_entries) + first_entry + place) * entry_bytes);
  }
};

// visit(row, first place, number of places) by the warp that has the run.
template <typename Visit>
__device__ void for_each_run(const GatherWork& work, Visit visit) {
  for (std::uint64_t item = (std::uint64_t{blockIdx.x} * kBlockWarps) + (threadIdx.x / kWarpLanes);
       item < work.item_count; item += std::uint64_t{gridDim.x} * kBlockWarps) {
    const Division in_row = divide(item, work.run_count);
    const std::uint32_t first = in_row.remainder * work.run_places;
    visit(in_row.quotient, first, min(work.run_places, work.place_count - first));
  }
}

// What a lane has of an entry, as it is stored. Of no entry: zeros, which stand for zeros.
template <std::uint32_t kUnits>
struct StoredUnits {
  uint2 codes[kUnits];  // of the last unit perhaps half of the rope values
  std::uint32_t scales[kUnits];
  uint2 more_rope;
};

template <ScaleForm kForm>
[[nodiscard]] __device__ std::uint32_t load_scale_bits(const std::byte* scale) {
  if constexpr (kForm == ScaleForm::Ue8m0) return __ldg(reinterpret_cast<const unsigned char*>(scale));
  return __ldg(reinterpret_cast<const unsigned int*>(scale));
}

// Loads say that they are of global memory: of an address that came from another lane the compiler does not know. No
// two of them have one target, since the second would wait for the first.
template <ScaleForm kForm, std::uint32_t kUnits>
[[nodiscard]] __device__ StoredUnits<kUnits> load_units(const LaneUnits<kUnits>& units, const QuantisedPlaces& places,
                                                        const std::byte* page, std::uint32_t entry) {
  StoredUnits<kUnits> stored{};
  if (entry == kNoEntry) return stored;
#pragma unroll
  for (std::uint32_t i = 0; i < kUnits; ++i) {
    const auto* const codes = reinterpret_cast<const uint2*>(page + units.place_of(i, entry, places));
    if (units.has(i)) stored.codes[i] = __ldg(codes);
    if (units.has_codes(i)) {
      stored.scales[i] = load_scale_bits<kForm>(page + units.scale_place_of(i, entry, places));
    }
    if (i == units.kLast && units.last_is_rope) stored.more_rope = __ldg(codes + 1);
  }
  return stored;
}

// `target` is the lane's first unit.
template <ScaleForm kForm, std::uint32_t kUnits>
__device__ void decode_units(const LaneUnits<kUnits>& units, const StoredUnits<kUnits>& stored, std::byte* target) {
  auto* const rows = reinterpret_cast<uint4*>(target);
#pragma unroll
  for (std::uint32_t i = 0; i < kUnits; ++i) {
    const uint2 codes = stored.codes[i];
    if (units.has_codes(i)) {
      rows[i * kWarpLanes] = decode_eight(codes, stored_scale(stored.scales[i], kForm));
    } else if (units.last_is_rope) {
      rows[i * kWarpLanes] = make_uint4(codes.x, codes.y, stored.more_rope.x, stored.more_rope.y);
    }
  }
}

template <ScaleForm kForm, std::uint32_t kUnits, typename Source>
__global__ void __launch_bounds__(kBlockThreads)
    gather_units_kernel(const __grid_constant__ GatherWork work, const __grid_constant__ Source source) {
  constexpr std::uint32_t kAtATime = 2;  // entries whose bytes are under way
  const QuantisedPlaces& places = work.places;
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  const LaneUnits<kUnits> units(work.units, places, lane);
  for_each_run(work, [&](std::uint64_t row, std::uint32_t first, std::uint32_t count) {
    const Found own = source.find(row, first, count);
    const auto own_page = reinterpret_cast<std::uintptr_t>(work.pool) + places.layer_offset +
                          (static_cast<std::uint64_t>(own.page) * places.page_stride);
    std::byte* target = work.target_of(row, first) + (lane * kUnitBytes);
    for (std::uint32_t place = 0; place < count; place += kAtATime) {
      StoredUnits<kUnits> stored[kAtATime];
#pragma unroll
      for (std::uint32_t i = 0; i < kAtATime; ++i) {
        const auto owner = static_cast<int>(place + i);  // a lane, also behind the last place
        const auto* const page = reinterpret_cast<const std::byte*>(__shfl_sync(kFullWarp, own_page, owner));
        const std::uint32_t entry = __shfl_sync(kFullWarp, own.entry, owner);
        stored[i] = load_units<kForm>(units, places, page, entry);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kAtATime; ++i) {
        if (place + i < count) decode_units<kForm>(units, stored[i], target);
        target += work.entry_bytes;
      }
    }
  });
}

[[nodiscard]] __device__ float load_scale(const std::byte* scales, std::uint32_t block, const QuantisedPlaces& places,
                                          bool is_aligned) {
  if (places.scale_form == ScaleForm::Ue8m0) return ue8m0_to_float(std::to_integer<std::uint8_t>(scales[block]));
  if (is_aligned) return reinterpret_cast<const float*>(scales)[block];
  return load_bytes<float>(scales + (block * sizeof(float)));
}

// Values of an entry, eight at a time: of each lane two are under way.
struct VectorDecoder {
  using Unit = uint4;

  __device__ static void decode(const GatherWork& work, const Found& found, std::byte* target, std::uint32_t lane) {
    const QuantisedPlaces& places = work.places;
    const std::uint32_t head_units = places.dim / kVectorValues;
    const std::uint32_t unit_count = places.head_count * head_units;
    const std::byte* const values = work.pool + places.offset_of(found.page, found.entry, places.values);
    const std::byte* const scales = work.pool + places.offset_of(found.page, found.entry, places.scales);
    constexpr std::uint32_t kAtATime = 2;
    for (std::uint32_t first = lane; first < unit_count; first += kAtATime * kWarpLanes) {
      uint2 codes[kAtATime];
      float scale[kAtATime];
#pragma unroll
      for (std::uint32_t i = 0; i < kAtATime; ++i) {
        const std::uint32_t unit = first + (i * kWarpLanes);
        if (unit >= unit_count) continue;
        const std::uint32_t head = unit / head_units;
        const std::uint32_t value = (unit % head_units) * kVectorValues;
        codes[i] = *reinterpret_cast<const uint2*>(values + (head * places.values.head) + value);
        scale[i] = load_scale(scales + (head * places.scales.head), value / places.block_values, places, true);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kAtATime; ++i) {
        const std::uint32_t unit = first + (i * kWarpLanes);
        if (unit >= unit_count) continue;
        reinterpret_cast<uint4*>(target)[unit] = decode_eight(codes[i], scale[i]);
      }
    }
  }
};

struct ScalarDecoder {
  using Unit = std::uint8_t;

  __device__ static void decode(const GatherWork& work, const Found& found, std::byte* target, std::uint32_t lane) {
    const QuantisedPlaces& places = work.places;
    for (std::uint32_t i = lane; i < places.head_count * places.dim; i += kWarpLanes) {
      const std::uint32_t head = i / places.dim;
      const std::uint32_t value = i % places.dim;
      const std::byte* const codes = work.pool + places.offset_of(found.page, found.entry, places.values, head);
      const std::byte* const scales = work.pool + places.offset_of(found.page, found.entry, places.scales, head);
      const float scale = load_scale(scales, value / places.block_values, places, false);
      const std::uint32_t bits = decode_value(std::to_integer<std::uint32_t>(codes[value]), scale);
      store_bytes(target + (std::uint64_t{i} * sizeof(std::uint16_t)), static_cast<std::uint16_t>(bits));
    }
  }
};

template <typename Decoder, typename Source>
__global__ void __launch_bounds__(kBlockThreads)
    gather_kernel(const __grid_constant__ GatherWork work, const __grid_constant__ Source source) {
  using Unit = typename Decoder::Unit;
  const QuantisedPlaces& places = work.places;
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  const std::uint64_t rope_units = places.rope.head_bytes / sizeof(Unit);
  for_each_run(work, [&](std::uint64_t row, std::uint32_t first, std::uint32_t count) {
    const Found own = source.find(row, first, count);
    for (std::uint32_t i = 0; i < count; ++i) {
      std::byte* const target = work.target_of(row, first + i);
      const Found found{.page = __shfl_sync(kFullWarp, own.page, static_cast<int>(i)),
                        .entry = __shfl_sync(kFullWarp, own.entry, static_cast<int>(i))};
      if (!found.is_entry()) {
        for (std::uint64_t unit = lane; unit < work.entry_bytes / sizeof(Unit); unit += kWarpLanes) {
          reinterpret_cast<Unit*>(target)[unit] = Unit{};
        }
        continue;
      }
      Decoder::decode(work, found, target, lane);
      const auto* const rope =
          reinterpret_cast<const Unit*>(work.pool + places.offset_of(found.page, found.entry, places.rope));
      auto* const rope_target = reinterpret_cast<Unit*>(target + (std::uint64_t{2} * places.dim));  // of one head
      for (std::uint64_t unit = lane; unit < rope_units; unit += kWarpLanes) rope_target[unit] = rope[unit];
    }
  });
}

// A block for every row.
template <typename Source>
__global__ void __launch_bounds__(kBlockThreads)
    count_kernel(const __grid_constant__ Source source, std::int32_t* valid_counts, std::uint64_t rows) {
  __shared__ std::uint32_t total;
  for (std::uint64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    const std::uint32_t count = source.count_part(row, threadIdx.x);
    if (count > 0) atomicAdd(&total, count);
    __syncthreads();
    if (threadIdx.x == 0) valid_counts[row] = static_cast<std::int32_t>(total);
    __syncthreads();
  }
}

// What the three gathers have in common.
struct GatherRequest {
  const QuantisedEntries* entries = nullptr;
  const std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;
  const GatherTarget* target = nullptr;
  std::uint64_t rows = 0;
  std::uint32_t place_count = 0;
  DeviceStream stream;
  std::string_view what;
};

[[nodiscard]] Status check_request(const GatherRequest& request) {
  const GatherTarget& target = *request.target;
  QUIRE_TRY(check_layer(request.entries->geometry(), request.layer_index, request.what));
  QUIRE_TRY(check_argument(
      target.first_entry <= target.row_entries && request.place_count <= target.row_entries - target.first_entry,
      request.what, "a row of the target is too short"));
  QUIRE_TRY(check_argument(target.valid_counts.empty() || target.valid_counts.size() == request.rows, request.what,
                           "the target has another number of valid counts than of rows"));
  if (request.rows == 0 || request.place_count == 0) return {};
  QUIRE_TRY(check_address(request.pool, request.what, "pool"));
  return check_address(target.data, request.what, "target.data");
}

[[nodiscard]] Status check_table(const EntryTable& table, std::span<const std::int32_t> table_rows,
                                 std::string_view what) {
  QUIRE_TRY(check_argument(table.entry_counts.size() == table.rows, what,
                           "the table has another number of entry counts than of rows"));
  if (table_rows.empty()) return {};
  QUIRE_TRY(check_address(table_rows.data(), what, "table_rows"));
  if (table.rows == 0 || table.row_columns == 0) return {};
  QUIRE_TRY(check_address(table.entry_counts.data(), what, "table.entry_counts"));
  return check_address(table.pages, what, "table.pages");
}

[[nodiscard]] TablePages table_pages(const EntryTable& table, std::span<const std::int32_t> table_rows,
                                     const PoolGeometry& geometry) {
  return {.pages = table.pages,
          .entry_counts = table.entry_counts.data(),
          .table_rows = table_rows.data(),
          .rows = table.rows,
          .row_columns = table.row_columns,
          .page_entries = geometry.page().entry_count(),
          .page_count = geometry.page_count()};
}

template <typename Source>
[[nodiscard]] Status launch_gather(const GatherRequest& request, const Source& source) {
  const GatherTarget& target = *request.target;
  if (request.rows == 0) return {};
  if (!target.valid_counts.empty()) {
    QUIRE_TRY(launch({.blocks = block_count_for(request.rows, 1), .stream = request.stream, .what = request.what},
                     count_kernel<Source>, source, target.valid_counts.data(), request.rows));
  }
  if (request.place_count == 0) return {};
  const std::uint32_t run_places = run_length_for(request.rows * request.place_count);
  const std::uint32_t run_count = ((request.place_count - 1) / run_places) + 1;
  const QuantisedPlaces places = quantised_places(*request.entries, request.layer_index);
  const std::uint64_t entry_bytes = request.entries->row_bytes();
  UnitWidth rows;
  const bool is_vector = is_vectorised(places, request.pool, rows.add(target.data).add(entry_bytes));
  const GatherWork work{.places = places,
                        .units = is_vector ? unit_shape(places) : UnitShape{},
                        .pool = request.pool,
                        .target = target.data,
                        .row_entries = target.row_entries,
                        .first_entry = target.first_entry,
                        .entry_bytes = entry_bytes,
                        .item_count = request.rows * run_count,
                        .place_count = request.place_count,
                        .run_places = run_places,
                        .run_count = run_count};
  const LaunchShape shape{
      .blocks = block_count_for(work.item_count, kBlockWarps), .stream = request.stream, .what = request.what};
  if (work.units.units_per_lane == 0) {
    return launch(shape, is_vector ? gather_kernel<VectorDecoder, Source> : gather_kernel<ScalarDecoder, Source>, work,
                  source);
  }
  return with_units(places.scale_form, work.units.units_per_lane, [&]<ScaleForm kForm, std::uint32_t kUnits>() {
    return launch(shape, gather_units_kernel<kForm, kUnits, Source>, work, source);
  });
}

}  // namespace

Status launch_gather_selected(const GatherSelectedParams& params, DeviceStream stream) {
  const GatherRequest request{.entries = params.entries,
                              .pool = params.pool,
                              .layer_index = params.layer_index,
                              .target = &params.target,
                              .rows = params.table_rows.size(),
                              .place_count = params.ids_per_row,
                              .stream = stream,
                              .what = "launch_gather_selected"};
  QUIRE_TRY(check_address(params.entries, request.what, "entries"));
  QUIRE_TRY(check_argument(params.ids.size() == request.rows * params.ids_per_row, request.what,
                           "there are not ids_per_row ids for every row"));
  QUIRE_TRY(check_table(params.table, params.table_rows, request.what));
  QUIRE_TRY(check_request(request));
  if (!params.ids.empty()) QUIRE_TRY(check_address(params.ids.data(), request.what, "ids"));
  return launch_gather(request,
                       SelectedSource{.table = table_pages(params.table, params.table_rows, params.entries->geometry()),
                                      .ids = params.ids.data(),
                                      .ids_per_row = params.ids_per_row});
}

Status launch_gather_last(const GatherLastParams& params, DeviceStream stream) {
  const GatherRequest request{.entries = params.entries,
                              .pool = params.pool,
                              .layer_index = params.layer_index,
                              .target = &params.target,
                              .rows = params.table_rows.size(),
                              .place_count = params.entries_max,
                              .stream = stream,
                              .what = "launch_gather_last"};
  QUIRE_TRY(check_address(params.entries, request.what, "entries"));
  QUIRE_TRY(check_table(params.table, params.table_rows, request.what));
  QUIRE_TRY(check_request(request));
  return launch_gather(request,
                       LastSource{.table = table_pages(params.table, params.table_rows, params.entries->geometry()),
                                  .entries_max = params.entries_max});
}

Status launch_gather_ring(const GatherRingParams& params, DeviceStream stream) {
  const GatherRequest request{.entries = params.entries,
                              .pool = params.pool,
                              .layer_index = params.layer_index,
                              .target = &params.target,
                              .rows = params.state_slots.size(),
                              .place_count = params.entries_max,
                              .stream = stream,
                              .what = "launch_gather_ring"};
  QUIRE_TRY(check_address(params.entries, request.what, "entries"));
  const PoolGeometry& geometry = params.entries->geometry();
  const std::uint32_t ring_entries = geometry.page().entry_count();
  const std::uint32_t sink = geometry.page().group().sink_tokens;
  QUIRE_TRY(check_argument(params.lengths.size() == request.rows, request.what, "there is not a length for every row"));
  QUIRE_TRY(check_argument(params.entries_max <= ring_entries, request.what, "entries_max is more than a ring has"));
  QUIRE_TRY(check_argument(params.entries_max >= sink && ring_entries > sink, request.what,
                           "entries_max is less than a ring's sink has"));
  QUIRE_TRY(check_request(request));
  if (request.rows > 0) {
    QUIRE_TRY(check_address(params.state_slots.data(), request.what, "state_slots"));
    QUIRE_TRY(check_address(params.lengths.data(), request.what, "lengths"));
  }
  return launch_gather(request, RingSource{.state_slots = params.state_slots.data(),
                                           .lengths = params.lengths.data(),
                                           .slot_count = geometry.page_count(),
                                           .ring_entries = ring_entries,
                                           .sink = sink,
                                           .entries_max = params.entries_max});
}

}  // namespace quire
