// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/list_slots.h"

#include "kernels/launch.cuh"

namespace quire::testing {
namespace {

__global__ void __launch_bounds__(kBlockThreads) list_slots_kernel(ListSlotsParams params) {
  const std::uint32_t at = (blockIdx.x * kBlockThreads) + threadIdx.x;
  if (at >= params.entries * params.keys_max) return;
  params.slots[at] = slot_of_key(params, at / params.keys_max, at % params.keys_max);
}

}  // namespace

Status launch_list_slots(const ListSlotsParams& params, DeviceStream stream) {
  return launch({.blocks = block_count_for(std::uint64_t{params.entries} * params.keys_max, kBlockThreads),
                 .stream = stream,
                 .what = "launch_list_slots"},
                list_slots_kernel, params);
}

void list_slots_on_host(const ListSlotsParams& params) {
  for (std::uint32_t at = 0; at < params.entries * params.keys_max; ++at) {
    params.slots[at] = slot_of_key(params, at / params.keys_max, at % params.keys_max);
  }
}

}  // namespace quire::testing
