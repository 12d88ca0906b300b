// SPDX-License-Identifier: Apache-2.0
//
// Copies of many rows of one length, the inner loop of the device kernels. A kernel says where each row is (`Rows`),
// and everything else is the same for all: a row is cut in segments, a segment is copied by 1 to 32 neighbouring
// threads in the widest units that all addresses allow, and a thread loads all its units before it stores the first, so
// that it waits for memory once.
//
//     row      |............................................|...........|      units of 1, 2, 4, 8 or 16 bytes
//     segment   0 1 2 … lanes-1 | 0 1 2 … | 0 1 2 … | 0 1 2 …                  which thread copies which unit
//
//     struct Rows { __device__ RowPlace place(std::uint64_t row) const; };
//
// Where every row has a source, also one that is left out, Rows may have begin(row) with a `.source` instead, and
// target_of() that: then nothing has to be known of the target before the row is under way.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/launch.cuh"
#include "quire/device.h"
#include "quire/result.h"

namespace quire {

/// No target: the row is left out. No source: it becomes zeros. A row's source and target do not overlap.
struct RowPlace {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
};

/// The widest unit in which everything added can be reached: the greatest power of two up to 16 that divides it all.
class UnitWidth {
 public:
  UnitWidth& add(std::uint64_t bytes) {
    bits_ |= bytes;
    return *this;
  }
  UnitWidth& add(const void* address) { return add(reinterpret_cast<std::uintptr_t>(address)); }
  [[nodiscard]] std::uint32_t bytes() const { return 1U << static_cast<std::uint32_t>(std::countr_zero(bits_)); }

 private:
  std::uint64_t bits_ = 16;
};

/// How rows are cut, for units of some width.
struct RowSplit {
  std::uint64_t row_units = 0;
  std::uint32_t lane_bits = 0;  ///< 2^lane_bits threads copy a segment
  std::uint32_t segment_count = 0;
};

inline constexpr std::uint32_t kUnitsPerLane = 4;

[[nodiscard]] inline RowSplit split_rows(std::uint64_t row_bytes, std::uint32_t unit_bytes) {
  const std::uint64_t row_units = row_bytes / unit_bytes;
  // Eight lanes of 16 bytes are a whole line of the caches; with fewer, rows of a few units would leave lanes idle.
  std::uint32_t lane_bits = 0;
  while (lane_bits < 5 && (std::uint64_t{lane_bits < 3 ? 1 : kUnitsPerLane} << lane_bits) < row_units) ++lane_bits;
  const std::uint64_t segment_units = std::uint64_t{kUnitsPerLane} << lane_bits;
  return {.row_units = row_units,
          .lane_bits = lane_bits,
          .segment_count = static_cast<std::uint32_t>(((row_units - 1) / segment_units) + 1)};
}

/// What one thread has of a segment.
template <typename Unit>
class SegmentPart {
 public:
  __device__ SegmentPart(std::uint64_t row_units, std::uint32_t lane_bits, std::uint32_t segment, std::uint32_t lane)
      : row_units_(row_units),
        lane_bits_(lane_bits),
        first_(((std::uint64_t{segment} * kUnitsPerLane) << lane_bits) + lane) {}

  __device__ void load(const std::byte* source) {
#pragma unroll
    for (std::uint32_t i = 0; i < kUnitsPerLane; ++i) {
      if (place_of(i) < row_units_) units_[i] = reinterpret_cast<const Unit*>(source)[place_of(i)];
    }
  }
  /// Zeros, if nothing was loaded.
  __device__ void store(std::byte* target) const {
#pragma unroll
    for (std::uint32_t i = 0; i < kUnitsPerLane; ++i) {
      if (place_of(i) < row_units_) reinterpret_cast<Unit*>(target)[place_of(i)] = units_[i];
    }
  }

 private:
  [[nodiscard]] __device__ std::uint64_t place_of(std::uint32_t i) const {
    return first_ + (std::uint64_t{i} << lane_bits_);
  }

  std::uint64_t row_units_;
  std::uint32_t lane_bits_;
  std::uint64_t first_;
  Unit units_[kUnitsPerLane] = {};
};

/// One segment of a row by the threads of its group, of which `lane` is one.
template <typename Unit>
__device__ inline void copy_segment(const RowPlace& place, std::uint64_t row_units, std::uint32_t lane_bits,
                                    std::uint32_t segment, std::uint32_t lane) {
  SegmentPart<Unit> part(row_units, lane_bits, segment, lane);
  if (place.source != nullptr) part.load(place.source);
  part.store(place.target);
}

template <typename Rows>
concept BeginsRows = requires(const Rows& rows) { rows.target_of(rows.begin(0)); };

// Rows that are under way take registers for longer: they are not to cost too many threads.
template <typename Unit, typename Rows>
__global__ void __launch_bounds__(kBlockThreads, BeginsRows<Rows> ? 6 : 0)
    copy_rows_kernel(const __grid_constant__ Rows rows, RowSplit split, std::uint64_t item_count) {
  const std::uint32_t lane = threadIdx.x & ((1U << split.lane_bits) - 1);
  const std::uint64_t stride = (std::uint64_t{gridDim.x} * kBlockThreads) >> split.lane_bits;
  for (std::uint64_t item = ((std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x) >> split.lane_bits;
       item < item_count; item += stride) {
    const Division part = divide(item, split.segment_count);
    if constexpr (BeginsRows<Rows>) {
      SegmentPart<Unit> units(split.row_units, split.lane_bits, part.remainder, lane);
      const auto begun = rows.begin(part.quotient);
      units.load(begun.source);
      std::byte* const target = rows.target_of(begun);
      if (target != nullptr) units.store(target);
    } else {
      const RowPlace place = rows.place(part.quotient);
      if (place.target == nullptr) continue;
      copy_segment<Unit>(place, split.row_units, split.lane_bits, part.remainder, lane);
    }
  }
}

/// call(Unit{}) with the type for a width.
template <typename Call>
[[nodiscard]] Status with_unit(std::uint32_t unit_bytes, Call call) {
  switch (unit_bytes) {
    case 16:
      return call(uint4{});
    case 8:
      return call(uint2{});
    case 4:
      return call(std::uint32_t{});
    case 2:
      return call(std::uint16_t{});
    default:
      return call(std::uint8_t{});
  }
}

struct CopyRowsRequest {
  std::uint64_t row_count = 0;
  std::uint64_t row_bytes = 0;
  UnitWidth width;  ///< of all addresses and strides; the length of a row is added here
  DeviceStream stream;
  std::string_view what;
};

/// Nothing is launched for no rows, or rows of no bytes.
template <typename Rows>
[[nodiscard]] Status launch_copy_rows(const Rows& rows, CopyRowsRequest request) {
  if (request.row_count == 0 || request.row_bytes == 0) return {};
  const std::uint32_t unit_bytes = request.width.add(request.row_bytes).bytes();
  const RowSplit split = split_rows(request.row_bytes, unit_bytes);
  const std::uint64_t item_count = request.row_count * split.segment_count;
  const LaunchShape shape{.blocks = block_count_for(item_count, kBlockThreads >> split.lane_bits),
                          .stream = request.stream,
                          .what = request.what};
  return with_unit(unit_bytes, [&](auto unit) {
    return launch(shape, copy_rows_kernel<decltype(unit), Rows>, rows, split, item_count);
  });
}

}  // namespace quire
