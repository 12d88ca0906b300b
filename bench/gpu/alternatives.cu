// SPDX-License-Identifier: Apache-2.0
#include "alternatives.cuh"

#include <vector>

#include "cuda_rig.cuh"

namespace quire::bench {
namespace {

struct Way {
  std::byte* target;
  const std::byte* source;
};

template <typename Visit>
void for_each_fragment(const Pages& pages, Visit visit) {
  for (std::size_t i = 0; i < pages.device_pages.size(); ++i) {
    for (const Fragment& fragment : pages.fragments) {
      std::byte* const on_device = fragment.first + (pages.device_pages[i].value * fragment.page_stride);
      std::byte* const on_host =
          pages.records + (pages.record_ids[i].value * pages.record_stride) + fragment.record_offset;
      const bool is_load = pages.kind == TransferKind::Load;
      visit(Way{is_load ? on_device : on_host, is_load ? on_host : on_device}, fragment.bytes);
    }
  }
}

constexpr std::uint32_t kWarpsPerBlock = 4;

__global__ void copy_by_warps(const Way* ways, std::uint32_t count, std::uint64_t bytes) {
  const std::uint32_t warp = (blockIdx.x * kWarpsPerBlock) + (threadIdx.x / 32);
  if (warp >= count) return;
  const auto* const source = reinterpret_cast<const std::uint64_t*>(ways[warp].source);
  auto* const target = reinterpret_cast<std::uint64_t*>(ways[warp].target);
  for (std::uint64_t i = threadIdx.x % 32; i < bytes / 8; i += 32) {
    std::uint64_t word = 0;
    asm volatile("ld.global.nc.b64 %0, [%1];" : "=l"(word) : "l"(source + i));
    asm volatile("st.global.cg.b64 [%0], %1;" ::"l"(target + i), "l"(word));
  }
}

}  // namespace

void one_copy_each(const Pages& pages, cudaStream_t stream) {
  for_each_fragment(pages, [&](Way way, std::uint64_t bytes) {
    check(cudaMemcpyAsync(way.target, way.source, bytes, cudaMemcpyDefault, stream), "copying");
  });
}

Batch::Batch(const Pages& pages) {
  for_each_fragment(pages, [&](Way way, std::uint64_t fragment_bytes) {
    targets_.push_back(way.target);
    sources_.push_back(way.source);
    bytes_.push_back(fragment_bytes);
  });
}

void Batch::run(cudaStream_t stream) const {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;
  check(cudaMemcpyBatchAsync(targets_.data(), sources_.data(), bytes_.data(), bytes_.size(), &attributes, &first, 1,
                             stream),
        "copying a batch");
}

WarpEach::WarpEach(const Pages& pages) : kind_(pages.kind), bytes_(pages.fragments[0].bytes) {
  std::vector<Way> ways;
  for_each_fragment(pages, [&](Way way, std::uint64_t) { ways.push_back(way); });
  count_ = static_cast<std::uint32_t>(ways.size());
  check(cudaMalloc(&addresses_, ways.size() * sizeof(Way)), "allocating");
  check(cudaMemcpy(addresses_, ways.data(), ways.size() * sizeof(Way), cudaMemcpyHostToDevice), "copying");
}

WarpEach::~WarpEach() {
  (void)cudaFree(addresses_);
}

void WarpEach::run(cudaStream_t stream) const {
  copy_by_warps<<<(count_ + kWarpsPerBlock - 1) / kWarpsPerBlock, 32 * kWarpsPerBlock, 0, stream>>>(
      static_cast<const Way*>(addresses_), count_, bytes_);
  check(cudaGetLastError(), "launching");
}

}  // namespace quire::bench
