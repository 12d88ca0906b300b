// SPDX-License-Identifier: Apache-2.0
//
// What the GPU benchmarks share: memory, streams, clocks. A CUDA call that fails ends the program with its text.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "quire/device.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::bench {

void check(cudaError_t error, const char* what);
void check(const Status& status, const char* what);
template <typename T>
T take(Result<T> result, const char* what) {
  if (!result) check(Status(tl::unexpected(result.error())), what);
  return std::move(*result);
}

[[nodiscard]] double median(std::vector<double> values);
/// Median seconds of `times` runs that wait themselves, after one that does not count.
[[nodiscard]] double median_seconds_of(int times, const std::function<void()>& run);
/// Median seconds of `times` runs, after one that does not count. Each ends with the device being idle.
[[nodiscard]] double median_seconds(int times, const std::function<void()>& run);
/// Median seconds that the device is at work on what `run` puts on a stream, by events.
[[nodiscard]] double median_device_seconds(int times, cudaStream_t stream, const std::function<void()>& run);

/// Device memory filled with random bytes.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes, std::uint64_t seed = 1);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Host memory in huge pages, registered with a device.
class HostMemory {
 public:
  HostMemory(Device& device, std::size_t bytes, std::size_t unit_bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  [[nodiscard]] double register_seconds() const { return register_seconds_; }

 private:
  Device& device_;
  std::span<std::byte> memory_;
  std::byte* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  double register_seconds_ = 0;
};

/// Streams of high priority, and one for the engine's own work.
struct Streams {
  Streams();
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  cudaStream_t of[8] = {};
  cudaStream_t compute = nullptr;
};

/// So many different ids below `end`, in random order.
[[nodiscard]] std::vector<PageId> scattered_pages(std::uint32_t count, std::uint32_t end, std::uint64_t seed);

}  // namespace quire::bench
