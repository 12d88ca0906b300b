// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string_view>

#include "kernels/launch.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

struct ApplyDeltasWork {
  std::int32_t* table;
  std::uint32_t rows;
  std::uint32_t row_columns;
  const PageDelta* deltas;
  std::uint64_t delta_count;
};

__global__ void __launch_bounds__(kBlockThreads) apply_deltas_kernel(ApplyDeltasWork work) {
  for (std::uint64_t i = (std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x; i < work.delta_count;
       i += std::uint64_t{gridDim.x} * kBlockThreads) {
    const PageDelta delta = work.deltas[i];
    // A negative one becomes too large.
    const auto row = static_cast<std::uint32_t>(delta.row);
    const auto column = static_cast<std::uint32_t>(delta.column);
    if (row >= work.rows || column >= work.row_columns) continue;
    work.table[(std::uint64_t{row} * work.row_columns) + column] = delta.page;
  }
}

}  // namespace

Status launch_apply_deltas(const ApplyDeltasParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_apply_deltas";
  if (params.deltas.empty()) return {};
  QUIRE_TRY(check_address(params.table, kWhat, "table"));
  QUIRE_TRY(check_address(params.deltas.data(), kWhat, "deltas"));
  return launch({.blocks = block_count_for(params.deltas.size(), kBlockThreads), .stream = stream, .what = kWhat},
                apply_deltas_kernel,
                ApplyDeltasWork{.table = params.table,
                                .rows = params.rows,
                                .row_columns = params.row_columns,
                                .deltas = params.deltas.data(),
                                .delta_count = params.deltas.size()});
}

}  // namespace quire
