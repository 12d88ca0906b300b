// SPDX-License-Identifier: Apache-2.0
#include "cuda_rig.cuh"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

namespace quire::bench {
namespace {

__global__ void fill(std::uint64_t* words, std::size_t count, std::uint64_t seed) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = (std::size_t{blockIdx.x} * blockDim.x) + threadIdx.x; i < count; i += step) {
    std::uint64_t x = (i + seed) * 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    // The exponents of bf16 numbers stay in the middle, so that matrices of them have ordinary products.
    words[i] = (x & 0x83FF83FF83FF83FFULL) | 0x3C003C003C003C00ULL;
  }
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)std::fprintf(stderr, "gpu_bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void check(const Status& status, const char* what) {
  if (status) return;
  (void)std::fprintf(stderr, "gpu_bench: %s: %s\n", what, status.error().message.c_str());
  std::exit(1);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double median_seconds_of(int times, const std::function<void()>& run) {
  run();
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const double begin = now_seconds();
    run();
    seconds.push_back(now_seconds() - begin);
  }
  return median(seconds);
}

double median_seconds(int times, const std::function<void()>& run) {
  return median_seconds_of(times, [&] {
    run();
    check(cudaDeviceSynchronize(), "waiting for the device");
  });
}

double median_device_seconds(int times, cudaStream_t stream, const std::function<void()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "making an event");
  check(cudaEventCreate(&end), "making an event");
  run();
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    check(cudaEventRecord(begin, stream), "recording");
    run();
    check(cudaEventRecord(end, stream), "recording");
    check(cudaEventSynchronize(end), "waiting");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "timing");
    seconds.push_back(ms / 1e3);
  }
  check(cudaEventDestroy(begin), "destroying an event");
  check(cudaEventDestroy(end), "destroying an event");
  return median(seconds);
}

Buffer::Buffer(std::size_t bytes, std::uint64_t seed) : bytes_(bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "allocating device memory");
  data_ = static_cast<std::byte*>(data);
  fill<<<1024, 256>>>(reinterpret_cast<std::uint64_t*>(data_), bytes / 8, seed);
  check(cudaGetLastError(), "filling device memory");
  check(cudaDeviceSynchronize(), "filling device memory");
}

Buffer::~Buffer() {
  (void)cudaFree(data_);
}

HostMemory::HostMemory(Device& device, std::size_t bytes, std::size_t unit_bytes) : device_(device) {
  constexpr std::size_t kHuge = std::size_t{2} << 20U;
  const std::size_t rounded = (bytes + kHuge - 1) / kHuge * kHuge;
  mapped_bytes_ = rounded + kHuge;
  void* const mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    (void)std::fprintf(stderr, "gpu_bench: no room for %zu bytes on the host\n", bytes);
    std::exit(1);
  }
  mapped_ = static_cast<std::byte*>(mapped);
  auto* const begin =
      reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(mapped) + kHuge - 1) / kHuge * kHuge);
  (void)madvise(begin, rounded, MADV_HUGEPAGE);
  memory_ = {begin, rounded};
  const double start = now_seconds();
  check(device.register_host(memory_, unit_bytes), "registering host memory");
  register_seconds_ = now_seconds() - start;
}

HostMemory::~HostMemory() {
  device_.unregister_host(memory_);
  (void)munmap(mapped_, mapped_bytes_);
}

Streams::Streams() {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities");
  for (cudaStream_t& stream : of) {
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "making a stream");
  }
  check(cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, least), "making a stream");
}

Streams::~Streams() {
  for (cudaStream_t stream : of) (void)cudaStreamDestroy(stream);
  (void)cudaStreamDestroy(compute);
}

std::vector<PageId> scattered_pages(std::uint32_t count, std::uint32_t end, std::uint64_t seed) {
  std::vector<std::uint32_t> all(end);
  std::iota(all.begin(), all.end(), 0U);
  std::mt19937_64 draws(seed);
  std::shuffle(all.begin(), all.end(), draws);
  std::vector<PageId> pages;
  for (std::uint32_t i = 0; i < count; ++i) pages.push_back(PageId{all[i]});
  return pages;
}

}  // namespace quire::bench
