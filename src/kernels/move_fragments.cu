// SPDX-License-Identifier: Apache-2.0
//
// A warp takes one fragment of one page at a time, 4 KiB at most, with all its loads on their way before the first
// store: 128 KiB for each multiprocessor, which is what it takes to hide the way to memory, and 2 MiB for sixteen of
// them, which hides the way to the host. Neighbouring warps have neighbouring fragments of the record.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/hash.h"
#include "kernels/checksum_keys.h"
#include "kernels/launch.cuh"
#include "quire/device.h"
#include "quire/device_kernels.h"

namespace quire {
namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::uint32_t kThreads = 1024;
constexpr std::uint32_t kWarps = kThreads / kWarp;
constexpr std::uint32_t kFewItems = 4;       // in a kernel's parameters, so that it need not ask the host for them
constexpr std::uint32_t kLoadsInFlight = 8;  // of each thread: 32 * 8 * 16 bytes are a whole fragment

struct Finish {
  const SwapItem* items;
  std::uint64_t* sums;
  std::uint64_t* checksums;
  std::uint64_t* first_bad;
  std::uint64_t record_bytes;
  std::uint32_t item_count;
};

struct Pass {
  const Fragment* fragments;
  const SwapItem* items;
  std::uint64_t* sums;
  std::byte* records;
  std::uint64_t record_stride;
  std::uint64_t record_begin;
  std::uint32_t fragment_count;
  std::uint32_t work_count;
  RecordOrder record_order;
  bool has_few;
  SwapItem few[kFewItems];
  std::uint32_t* blocks_done;  // null: somebody else finishes
  Finish finish;
};

__constant__ WordKeys c_word_keys = make_word_keys();

__device__ std::uint64_t block_key_at(std::uint64_t offset) {
  return block_key(offset / kChecksumBlockBytes);
}

template <int kBytes>
struct Access;
template <>
struct Access<16> {
  using Type = uint4;
  // What 16 bytes at `offset` of a record, a multiple of 16, add to the sum.
  static __device__ std::uint64_t sum(const uint4& v, std::uint64_t offset, const std::uint32_t* keys) {
    const uint4 k = reinterpret_cast<const uint4*>(keys)[(offset / 16) % (kChecksumBlockBytes / 16)];
    const std::uint64_t words =
        std::uint64_t{v.x} * k.x + std::uint64_t{v.y} * k.y + std::uint64_t{v.z} * k.z + std::uint64_t{v.w} * k.w;
    return words * block_key_at(offset);
  }
};
template <>
struct Access<4> {
  using Type = std::uint32_t;
  static __device__ std::uint64_t sum(std::uint32_t v, std::uint64_t offset, const std::uint32_t* keys) {
    return std::uint64_t{v} * keys[(offset / 4) % kChecksumBlockWords] * block_key_at(offset);
  }
};
template <>
struct Access<1> {
  using Type = std::uint8_t;
  // The sum is linear in the words' bytes, so each counts at its place in its word.
  static __device__ std::uint64_t sum(std::uint8_t v, std::uint64_t offset, const std::uint32_t* keys) {
    return (std::uint64_t{v} << (8 * (offset % 4))) * keys[(offset / 4) % kChecksumBlockWords] * block_key_at(offset);
  }
};

// By one block, which looks at all items.
__device__ void finish_checksums(const Finish& finish) {
  __shared__ std::uint32_t first;
  if (threadIdx.x == 0) first = finish.item_count;
  __syncthreads();
  const std::uint64_t length_key = mix64(finish.record_bytes);
  for (std::uint32_t i = threadIdx.x; i < finish.item_count; i += kThreads) {
    const std::uint64_t checksum = mix64(__ldcg(finish.sums + i) ^ length_key);
    finish.sums[i] = 0;
    finish.checksums[i] = checksum;
    if (finish.first_bad != nullptr && checksum != finish.items[i].expected) atomicMin(&first, i);
  }
  __syncthreads();
  if (threadIdx.x == 0 && finish.first_bad != nullptr) *finish.first_bad = first;
}

// The block that is the last to come here finishes, when the sums of all others are there.
__device__ void finish_if_last(const Pass& pass) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(pass.blocks_done, 1U) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (threadIdx.x == 0) *pass.blocks_done = 0;
  finish_checksums(pass.finish);
}

template <int kBytes, FragmentWay kWay, bool kSums>
__global__ void __launch_bounds__(kThreads) move_fragments_kernel(const __grid_constant__ Pass pass) {
  using Unit = typename Access<kBytes>::Type;
  __shared__ alignas(16) std::uint32_t keys[kChecksumBlockWords];
  if constexpr (kSums) {
    for (std::uint32_t i = threadIdx.x; i < kChecksumBlockWords; i += kThreads) keys[i] = c_word_keys.of[i];
    __syncthreads();
  }
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warps = gridDim.x * kWarps;
  // 64 bits, because the last step may go past 2^32.
  for (std::uint64_t work = (blockIdx.x * kWarps) + (threadIdx.x / kWarp); work < pass.work_count; work += warps) {
    const std::uint32_t item_index = static_cast<std::uint32_t>(work) / pass.fragment_count;
    const Fragment fragment = pass.fragments[static_cast<std::uint32_t>(work) % pass.fragment_count];
    const SwapItem item = pass.has_few ? pass.few[item_index] : pass.items[item_index];
    std::byte* const on_device = fragment.first + (item.device_page * fragment.page_stride);
    const std::uint64_t record_index = pass.record_order == RecordOrder::ByItem ? item_index : item.host_page;
    std::byte* const in_record =
        pass.records + (record_index * pass.record_stride) + (fragment.record_offset - pass.record_begin);
    const auto* const source = reinterpret_cast<const Unit*>(kWay == FragmentWay::FromRecords ? in_record : on_device);
    auto* const target = reinterpret_cast<Unit*>(kWay == FragmentWay::FromRecords ? on_device : in_record);
    const auto units = static_cast<std::uint32_t>(fragment.bytes / kBytes);
    std::uint64_t sum = 0;
    for (std::uint32_t first = lane; first < units; first += kWarp * kLoadsInFlight) {
      Unit loaded[kLoadsInFlight];
#pragma unroll
      for (std::uint32_t i = 0; i < kLoadsInFlight; ++i) {
        const std::uint32_t at = first + (i * kWarp);
        if (at < units) loaded[i] = __ldcs(source + at);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kLoadsInFlight; ++i) {
        const std::uint32_t at = first + (i * kWarp);
        if (at >= units) continue;
        if constexpr (kWay != FragmentWay::SumOnly) target[at] = loaded[i];
        if constexpr (kSums) sum += Access<kBytes>::sum(loaded[i], fragment.record_offset + (at * kBytes), keys);
      }
    }
    if constexpr (kSums) {
      for (std::uint32_t step = kWarp / 2; step != 0; step /= 2) sum += __shfl_down_sync(0xFFFFFFFFU, sum, step);
      if (lane == 0) atomicAdd(reinterpret_cast<unsigned long long*>(pass.sums + item_index), sum);
    }
  }
  if constexpr (kSums) {
    if (pass.blocks_done != nullptr) finish_if_last(pass);
  }
}

using Kernel = void (*)(Pass);

template <int kBytes>
Kernel kernel_for(const MoveFragmentsParams& params) {
  const bool has_sums = !params.sums.empty();
  switch (params.way) {
    case FragmentWay::ToRecords:
      return has_sums ? move_fragments_kernel<kBytes, FragmentWay::ToRecords, true>
                      : move_fragments_kernel<kBytes, FragmentWay::ToRecords, false>;
    case FragmentWay::FromRecords:
      return has_sums ? move_fragments_kernel<kBytes, FragmentWay::FromRecords, true>
                      : move_fragments_kernel<kBytes, FragmentWay::FromRecords, false>;
    case FragmentWay::SumOnly:
      return move_fragments_kernel<kBytes, FragmentWay::SumOnly, true>;
  }
  return nullptr;
}

Kernel kernel_for(const MoveFragmentsParams& params) {
  if (params.access_bytes == 16) return kernel_for<16>(params);
  return params.access_bytes == 4 ? kernel_for<4>(params) : kernel_for<1>(params);
}

__global__ void __launch_bounds__(kThreads) finish_checksums_kernel(const Finish finish) {
  finish_checksums(finish);
}

Finish finish_of(const FinishChecksumsParams& params) {
  return {.items = params.items.data(),
          .sums = params.sums.data(),
          .checksums = params.checksums.data(),
          .first_bad = params.first_bad,
          .record_bytes = params.record_bytes,
          .item_count = static_cast<std::uint32_t>(params.items.size())};
}

}  // namespace

Status launch_move_fragments(const MoveFragmentsParams& params, DeviceStream stream) {
  const std::uint64_t work_count = std::uint64_t{params.items.size()} * params.fragments.size();
  if (work_count == 0) return {};
  if (work_count > UINT32_MAX) {
    return fail(ErrorCode::InvalidArgument, "move_fragments: " + std::to_string(params.items.size()) + " pages of " +
                                                std::to_string(params.fragments.size()) +
                                                " fragments: give fewer than 2^32 fragments in all");
  }
  if (params.access_bytes != 16 && params.access_bytes != 4 && params.access_bytes != 1) {
    return fail(ErrorCode::InvalidArgument,
                "move_fragments: access_bytes is " + std::to_string(params.access_bytes) + ": give 16, 4 or 1");
  }
  Pass pass{.fragments = params.fragments.data(),
            .items = params.items.data(),
            .sums = params.sums.data(),
            .records = params.records,
            .record_stride = params.record_stride,
            .record_begin = params.record_begin,
            .fragment_count = static_cast<std::uint32_t>(params.fragments.size()),
            .work_count = static_cast<std::uint32_t>(work_count),
            .record_order = params.record_order,
            .has_few = params.are_items_on_host && params.items.size() <= kFewItems,
            .few = {},
            .blocks_done = params.finish ? params.blocks_done : nullptr,
            .finish = params.finish ? finish_of(*params.finish) : Finish{}};
  if (pass.has_few) std::copy(params.items.begin(), params.items.end(), pass.few);
  const auto blocks = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::max(1U, params.block_count_max), ((work_count - 1) / kWarps) + 1));
  return launch({.blocks = blocks, .threads = kThreads, .stream = stream, .what = "move_fragments"}, kernel_for(params),
                pass);
}

Status launch_finish_checksums(const FinishChecksumsParams& params, DeviceStream stream) {
  if (params.items.empty()) return {};
  return launch({.blocks = 1, .threads = kThreads, .stream = stream, .what = "finish_checksums"},
                finish_checksums_kernel, finish_of(params));
}

}  // namespace quire
