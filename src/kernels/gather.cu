// SPDX-License-Identifier: Apache-2.0
//
// A warp has a run of places of one row: it finds where the first one's entry is and walks on from there. A `Source`
// says which entries a row has:
//
//     begin(row, place)      where the entry of a place is, all lanes of the warp together
//     next(walk)             the same of the place behind it, one after the other
//     count_part(row, thread)  how many places of a row get an entry, as far as one thread of a block counts them
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernels/e4m3_device.cuh"
#include "kernels/launch.cuh"
#include "kernels/quantised_places.cuh"
#include "kernels/vector_copy.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

constexpr std::uint32_t kWarpLanes = 32;
constexpr std::uint32_t kBlockWarps = kBlockThreads / kWarpLanes;

// An entry, or none: then the place becomes zeros.
struct Found {
  std::int64_t page = -1;
  std::uint32_t entry = 0;
};

// The pages of one sequence. Of a row that the table does not have there are no entries, and never more than its row
// has pages for.
struct SequencePages {
  const std::int32_t* pages = nullptr;
  std::uint64_t entry_count = 0;
};

struct TablePages {
  const std::int32_t* pages;
  const std::int32_t* entry_counts;
  const std::int32_t* table_rows;
  std::uint32_t rows;
  std::uint32_t row_columns;
  std::uint32_t page_entries;
  std::uint32_t page_count;  // of the pool

  [[nodiscard]] __device__ SequencePages sequence_of(std::uint64_t row) const {
    const auto table_row = static_cast<std::uint32_t>(table_rows[row]);  // a negative one becomes too large
    if (table_row >= rows) return {};
    const auto count = static_cast<std::uint64_t>(max(entry_counts[table_row], 0));
    return {.pages = pages + (std::uint64_t{table_row} * row_columns),
            .entry_count = min(count, std::uint64_t{row_columns} * page_entries)};
  }
  // A negative page is none that the pool has.
  [[nodiscard]] __device__ bool has_page(std::int32_t page) const {
    return static_cast<std::uint32_t>(page) < page_count;
  }
};

struct SelectedSource {
  TablePages table;
  const std::int32_t* ids;
  std::uint32_t ids_per_row;

  struct Walk {
    SequencePages sequence;
    const std::int32_t* id;
  };
  [[nodiscard]] __device__ Walk begin(std::uint64_t row, std::uint64_t place) const {
    return {.sequence = table.sequence_of(row), .id = ids + (row * ids_per_row) + place};
  }
  [[nodiscard]] __device__ Found next(Walk& walk) const { return find(walk.sequence, *walk.id++); }
  [[nodiscard]] __device__ std::uint32_t count_part(std::uint64_t row, std::uint32_t thread) const {
    const SequencePages sequence = table.sequence_of(row);
    std::uint32_t count = 0;
    for (std::uint32_t place = thread; place < ids_per_row; place += kBlockThreads) {
      count += find(sequence, ids[(row * ids_per_row) + place]).page >= 0 ? 1 : 0;
    }
    return count;
  }

 private:
  [[nodiscard]] __device__ Found find(const SequencePages& sequence, std::int32_t id) const {
    const auto entry = static_cast<std::uint32_t>(id);  // a negative one becomes too large
    if (entry >= sequence.entry_count) return {};
    const std::int32_t page = sequence.pages[entry / table.page_entries];
    if (!table.has_page(page)) return {};
    return {.page = page, .entry = entry % table.page_entries};
  }
};

// The last entries, without those of pages that there are not: so where one goes depends on all pages before it.
struct LastSource {
  TablePages table;
  std::uint32_t entries_max;

  struct Walk {
    SequencePages sequence;
    std::uint64_t id;  // of the next entry, if its page is there
  };
  [[nodiscard]] __device__ Walk begin(std::uint64_t row, std::uint64_t place) const {
    const SequencePages sequence = table.sequence_of(row);
    const std::uint64_t first_id = first_of(sequence);
    if (first_id == sequence.entry_count) return {.sequence = sequence, .id = first_id};
    const std::uint32_t lane = threadIdx.x % kWarpLanes;
    const std::uint64_t last_column = (sequence.entry_count - 1) / table.page_entries;
    std::uint64_t passed = 0;  // entries in the columns before these
    for (std::uint64_t column = first_id / table.page_entries; column <= last_column; column += kWarpLanes) {
      const std::uint64_t own_column = column + lane;
      const std::uint32_t own = own_column <= last_column ? entries_in(sequence, own_column) : 0;
      std::uint32_t up_to = own;  // in the columns up to this lane's
      for (std::uint32_t distance = 1; distance < kWarpLanes; distance *= 2) {
        const std::uint32_t before = __shfl_up_sync(0xffffffffU, up_to, distance);
        if (lane >= distance) up_to += before;
      }
      const std::uint32_t has_it = __ballot_sync(0xffffffffU, passed + up_to > place);
      if (has_it != 0) {
        const int owner = __ffs(static_cast<int>(has_it)) - 1;
        const std::uint64_t in_column = place - passed - (up_to - own);
        const std::uint64_t id = max(own_column * table.page_entries, first_id) + in_column;
        return {.sequence = sequence, .id = __shfl_sync(0xffffffffU, id, owner)};
      }
      passed += __shfl_sync(0xffffffffU, up_to, kWarpLanes - 1);
    }
    return {.sequence = sequence, .id = sequence.entry_count};
  }
  [[nodiscard]] __device__ Found next(Walk& walk) const {
    while (walk.id < walk.sequence.entry_count) {
      const Division in_page = divide(walk.id, table.page_entries);
      const std::int32_t page = walk.sequence.pages[in_page.quotient];
      if (table.has_page(page)) {
        ++walk.id;
        return {.page = page, .entry = in_page.remainder};
      }
      walk.id = (in_page.quotient + 1) * table.page_entries;
    }
    return {};
  }
  [[nodiscard]] __device__ std::uint32_t count_part(std::uint64_t row, std::uint32_t thread) const {
    const SequencePages sequence = table.sequence_of(row);
    if (first_of(sequence) == sequence.entry_count) return 0;
    const std::uint64_t last_column = (sequence.entry_count - 1) / table.page_entries;
    std::uint32_t count = 0;
    for (std::uint64_t column = (first_of(sequence) / table.page_entries) + thread; column <= last_column;
         column += kBlockThreads) {
      count += entries_in(sequence, column);
    }
    return count;
  }

 private:
  [[nodiscard]] __device__ std::uint64_t first_of(const SequencePages& sequence) const {
    return sequence.entry_count - min(sequence.entry_count, std::uint64_t{entries_max});
  }
  // Those among the last.
  [[nodiscard]] __device__ std::uint32_t entries_in(const SequencePages& sequence, std::uint64_t column) const {
    if (!table.has_page(sequence.pages[column])) return 0;
    const std::uint64_t begin = max(column * table.page_entries, first_of(sequence));
    const std::uint64_t end = min((column + 1) * table.page_entries, sequence.entry_count);
    return static_cast<std::uint32_t>(end - begin);
  }
};

struct RingSource {
  const std::int32_t* state_slots;
  const std::int32_t* lengths;
  std::uint32_t slot_count;
  std::uint32_t ring_entries;
  std::uint32_t sink;
  std::uint32_t entries_max;

  struct Walk {
    std::int64_t slot;
    std::uint32_t length;
    std::uint32_t valid_count;
    std::uint32_t place;
  };
  [[nodiscard]] __device__ Walk begin(std::uint64_t row, std::uint64_t place) const {
    const std::uint32_t length = length_of(row);
    return {.slot = state_slots[row],
            .length = length,
            .valid_count = min(length, entries_max),
            .place = static_cast<std::uint32_t>(place)};
  }
  [[nodiscard]] __device__ Found next(Walk& walk) const {
    const std::uint32_t place = walk.place++;
    if (place >= walk.valid_count) return {};
    const std::uint32_t position = place < sink ? place : walk.length - walk.valid_count + place;
    return {.page = walk.slot, .entry = static_cast<std::uint32_t>(ring_place(sink, ring_entries - sink, position))};
  }
  [[nodiscard]] __device__ std::uint32_t count_part(std::uint64_t row, std::uint32_t thread) const {
    return thread == 0 ? min(length_of(row), entries_max) : 0;
  }

 private:
  // Tokens of the sequence, where there is one.
  [[nodiscard]] __device__ std::uint32_t length_of(std::uint64_t row) const {
    const bool has_slot = static_cast<std::uint32_t>(state_slots[row]) < slot_count;  // a negative one is too large
    return has_slot ? static_cast<std::uint32_t>(max(lengths[row], 0)) : 0;
  }
};

struct GatherWork {
  QuantisedPlaces places;
  const std::byte* pool;
  std::byte* target;
  std::uint64_t row_entries;
  std::uint64_t first_entry;
  std::uint64_t entry_bytes;
  std::uint64_t place_count;  // of a row
  std::uint64_t item_count;   // rows and runs
  std::uint32_t run_places;
  std::uint32_t run_count;  // of a row
};

[[nodiscard]] __device__ float load_scale(const std::byte* scales, std::uint32_t block, const QuantisedPlaces& places,
                                          bool is_aligned) {
  if (places.scale_form == ScaleForm::Ue8m0) return ue8m0_to_float(std::to_integer<std::uint8_t>(scales[block]));
  if (is_aligned) return reinterpret_cast<const float*>(scales)[block];
  return load_bytes<float>(scales + (block * sizeof(float)));
}

// Four codes to four bf16.
[[nodiscard]] __device__ uint2 decode_four(std::uint32_t codes, float scale) {
  if (is_finite(scale) && !has_nan(codes))
    return make_uint2(decode_pair(codes, scale), decode_pair(codes >> 16U, scale));
  return make_uint2(decode_value(codes & 0xffU, scale) | (decode_value((codes >> 8U) & 0xffU, scale) << 16U),
                    decode_value((codes >> 16U) & 0xffU, scale) | (decode_value(codes >> 24U, scale) << 16U));
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
        const uint2 low = decode_four(codes[i].x, scale[i]);
        const uint2 high = decode_four(codes[i].y, scale[i]);
        reinterpret_cast<uint4*>(target)[unit] = make_uint4(low.x, low.y, high.x, high.y);
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
  for (std::uint64_t item = (std::uint64_t{blockIdx.x} * kBlockWarps) + (threadIdx.x / kWarpLanes);
       item < work.item_count; item += std::uint64_t{gridDim.x} * kBlockWarps) {
    const Division in_row = divide(item, work.run_count);
    const std::uint64_t row = in_row.quotient;
    const std::uint64_t first = std::uint64_t{in_row.remainder} * work.run_places;
    const std::uint64_t end = min(first + work.run_places, work.place_count);
    typename Source::Walk walk = source.begin(row, first);
    for (std::uint64_t place = first; place < end; ++place) {
      std::byte* const target =
          work.target + (((row * work.row_entries) + work.first_entry + place) * work.entry_bytes);
      const Found found = source.next(walk);
      if (found.page < 0) {
        for (std::uint64_t i = lane; i < work.entry_bytes / sizeof(Unit); i += kWarpLanes) {
          reinterpret_cast<Unit*>(target)[i] = Unit{};
        }
        continue;
      }
      Decoder::decode(work, found, target, lane);
      const auto* const rope =
          reinterpret_cast<const Unit*>(work.pool + places.offset_of(found.page, found.entry, places.rope));
      auto* const rope_target = reinterpret_cast<Unit*>(target + (std::uint64_t{2} * places.dim));  // of one head
      for (std::uint64_t i = lane; i < rope_units; i += kWarpLanes) rope_target[i] = rope[i];
    }
  }
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
  std::uint64_t place_count = 0;
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
  // Long runs, so that few warps look for where theirs begins, but first of all enough of them for a large device.
  constexpr std::uint64_t kWarpsWanted = std::uint64_t{1} << 14U;
  const std::uint64_t run_places =
      std::clamp(request.rows * request.place_count / kWarpsWanted, std::uint64_t{1}, std::uint64_t{16});
  const std::uint64_t run_count = ((request.place_count - 1) / run_places) + 1;
  const GatherWork work{.places = quantised_places(*request.entries, request.layer_index),
                        .pool = request.pool,
                        .target = target.data,
                        .row_entries = target.row_entries,
                        .first_entry = target.first_entry,
                        .entry_bytes = request.entries->row_bytes(),
                        .place_count = request.place_count,
                        .item_count = request.rows * run_count,
                        .run_places = static_cast<std::uint32_t>(run_places),
                        .run_count = static_cast<std::uint32_t>(run_count)};
  UnitWidth rows;
  const bool is_vector = is_vectorised(work.places, request.pool, rows.add(target.data).add(work.entry_bytes));
  const LaunchShape shape{
      .blocks = block_count_for(work.item_count, kBlockWarps), .stream = request.stream, .what = request.what};
  return launch(shape, is_vector ? gather_kernel<VectorDecoder, Source> : gather_kernel<ScalarDecoder, Source>, work,
                source);
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
