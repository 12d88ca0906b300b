// SPDX-License-Identifier: Apache-2.0
//
// Fills many rows of one length with a pattern that is repeated, as vector_copy.cuh copies them. The pattern is in the
// host's memory and travels with the launch: in parts, where it is long.
//
//     struct Rows { __device__ std::byte* row(std::uint64_t row) const; };     null: the row is left out
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>

#include "kernels/launch.cuh"
#include "kernels/vector_copy.cuh"
#include "quire/device.h"
#include "quire/result.h"

namespace quire {

/// Units [first_unit, first_unit + unit_count) of a pattern of pattern_units.
struct PatternPart {
  std::uint32_t pattern_units = 1;
  std::uint32_t first_unit = 0;
  std::uint32_t unit_count = 1;
  alignas(16) std::byte bytes[1024] = {};
};

template <typename Unit, typename Rows>
__global__ void __launch_bounds__(kBlockThreads)
    fill_rows_kernel(const __grid_constant__ Rows rows, const __grid_constant__ PatternPart pattern, RowSplit split,
                     std::uint64_t item_count) {
  const std::uint32_t lane = threadIdx.x & ((1U << split.lane_bits) - 1);
  const std::uint64_t stride = (std::uint64_t{gridDim.x} * kBlockThreads) >> split.lane_bits;
  for (std::uint64_t item = ((std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x) >> split.lane_bits;
       item < item_count; item += stride) {
    const Division part = divide(item, split.segment_count);
    auto* const row = reinterpret_cast<Unit*>(rows.row(part.quotient));
    if (row == nullptr) continue;
    const std::uint64_t first = ((std::uint64_t{part.remainder} * kUnitsPerLane) << split.lane_bits) + lane;
#pragma unroll
    for (std::uint32_t i = 0; i < kUnitsPerLane; ++i) {
      const std::uint64_t unit = first + (std::uint64_t{i} << split.lane_bits);
      if (unit >= split.row_units) break;
      // A unit in front of the part becomes too large.
      const std::uint32_t in_part = divide(unit, pattern.pattern_units).remainder - pattern.first_unit;
      if (in_part < pattern.unit_count) row[unit] = reinterpret_cast<const Unit*>(pattern.bytes)[in_part];
    }
  }
}

struct FillRowsRequest {
  std::uint64_t row_count = 0;
  std::uint64_t row_bytes = 0;              ///< a multiple of the pattern
  std::span<const std::byte> pattern = {};  ///< empty: zeros
  UnitWidth width;                          ///< of all addresses and strides; the length of a row is added here
  DeviceStream stream;
  std::string_view what;
};

/// Nothing is launched for no rows, or rows of no bytes.
template <typename Rows>
[[nodiscard]] Status launch_fill_rows(const Rows& rows, FillRowsRequest request) {
  if (request.row_count == 0 || request.row_bytes == 0) return {};
  const std::uint32_t unit_bytes = request.width.add(request.row_bytes).bytes();
  const RowSplit split = split_rows(request.row_bytes, unit_bytes);
  const std::uint64_t item_count = request.row_count * split.segment_count;
  const LaunchShape shape{.blocks = block_count_for(item_count, kBlockThreads >> split.lane_bits),
                          .stream = request.stream,
                          .what = request.what};
  // Repeated until it is a whole number of units.
  const std::uint64_t pattern_bytes =
      request.pattern.empty() ? unit_bytes : std::lcm(request.pattern.size(), std::uint64_t{unit_bytes});
  PatternPart part{.pattern_units = static_cast<std::uint32_t>(pattern_bytes / unit_bytes)};
  for (std::uint64_t first = 0; first < pattern_bytes; first += sizeof(part.bytes)) {
    const std::uint64_t bytes = std::min(pattern_bytes - first, std::uint64_t{sizeof(part.bytes)});
    part.first_unit = static_cast<std::uint32_t>(first / unit_bytes);
    part.unit_count = static_cast<std::uint32_t>(bytes / unit_bytes);
    if (!request.pattern.empty()) {
      for (std::uint64_t i = 0; i < bytes; ++i) part.bytes[i] = request.pattern[(first + i) % request.pattern.size()];
    }
    QUIRE_TRY(with_unit(unit_bytes, [&](auto unit) {
      return launch(shape, fill_rows_kernel<decltype(unit), Rows>, rows, part, split, item_count);
    }));
  }
  return {};
}

}  // namespace quire
