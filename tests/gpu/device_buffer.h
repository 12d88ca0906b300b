// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU, a stream and graphs, for tests that include no CUDA header. A call of the runtime that fails ends
// the program with the error's name: a test has nothing better to do then.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "quire/device.h"
#include "quire/result.h"

namespace quire::testing {

/// Why no kernel can run here, in the runtime's words; empty if one can.
[[nodiscard]] std::string why_no_gpu();

/// The thread's last error of the runtime, in its words; empty if there is none.
[[nodiscard]] std::string last_cuda_error();

/// Bytes in the device's memory, with others around them that must stay what they are.
class DeviceBytes {
 public:
  /// `misalignment` bytes behind an address that everything is aligned to.
  explicit DeviceBytes(std::span<const std::byte> content, std::size_t misalignment = 0);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  [[nodiscard]] std::byte* data() { return memory_ + guard_bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  /// Waits for the device. Ends the program if bytes in front or behind have changed.
  [[nodiscard]] std::vector<std::byte> read() const;
  void write(std::span<const std::byte> content);

 private:
  std::size_t bytes_;
  std::size_t guard_bytes_;
  std::byte* memory_ = nullptr;
};

/// Numbers or small structs in the device's memory.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::span<const T> content) : bytes_(std::as_bytes(content)), count_(content.size()) {}
  explicit DeviceArray(const std::vector<T>& content) : DeviceArray(std::span<const T>(content)) {}

  [[nodiscard]] T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  [[nodiscard]] std::span<const T> span() { return {data(), count_}; }
  [[nodiscard]] std::span<T> mutable_span() { return {data(), count_}; }
  [[nodiscard]] std::vector<T> read() const {
    const std::vector<std::byte> bytes = bytes_.read();
    std::vector<T> content(count_);
    if (count_ > 0) std::memcpy(content.data(), bytes.data(), bytes.size());
    return content;
  }
  void write(std::span<const T> content) { bytes_.write(std::as_bytes(content)); }

 private:
  DeviceBytes bytes_;
  std::size_t count_;
};

/// How a test launches: as it is, or from a graph that was captured first.
enum class Launching : std::uint8_t { Directly, FromAGraph };
inline constexpr Launching kLaunchings[] = {Launching::Directly, Launching::FromAGraph};

/// Runs what `launch` puts on a stream so many times, and waits for it. `before_run` is called before each run, when
/// the device is idle. A failed launch is the result.
[[nodiscard]] Status run_on_gpu(Launching launching, const std::function<Status(DeviceStream)>& launch,
                                std::uint32_t times = 1, const std::function<void(std::uint32_t)>& before_run = {});

/// What was put on a stream once, to be run again and again.
class GpuGraph {
 public:
  /// Captures what `launch` puts on the stream; runs nothing of it. A launch that fails ends the program.
  GpuGraph(DeviceStream stream, const std::function<Status(DeviceStream)>& launch);
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  void launch(DeviceStream stream) const;

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

}  // namespace quire::testing
