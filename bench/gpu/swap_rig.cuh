// SPDX-License-Identifier: Apache-2.0
//
// A model's pages on a device and on the host, and a SwapEngine between them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "alternatives.cuh"
#include "benchmarks.h"
#include "cuda_rig.cuh"
#include "quire/swap.h"

namespace quire::bench {

struct SwapShape {
  std::string name;
  std::uint64_t fragment_bytes = 0;
  std::uint32_t fragment_count = 0;  ///< of a page
  std::uint32_t layer_count = 0;
  bool is_page_first = false;  ///< on the device
  std::uint32_t call_pages = 256;
  [[nodiscard]] std::uint64_t page_bytes() const { return fragment_bytes * fragment_count; }
};

inline SwapShape llama_shape() {
  // 16 tokens of 8 heads of 128 bf16 values, K and V in tensors of their own.
  return {.name = "Llama-3-8B, 32 KiB fragments", .fragment_bytes = 32768, .fragment_count = 64, .layer_count = 32};
}

/// A device that keeps how long kernels of swaps were at work.
class TimedDevice : public Device {
 public:
  explicit TimedDevice(Device& device) : device_(device) {}
  ~TimedDevice() override;
  void keep_times(bool keeps) { keeps_times_ = keeps; }
  /// Seconds times blocks of all kernels since the last call; waits for them.
  [[nodiscard]] double take_block_seconds();

  [[nodiscard]] std::uint32_t index() const override { return device_.index(); }
  [[nodiscard]] const std::string& name() const override { return device_.name(); }
  [[nodiscard]] std::uint32_t multiprocessor_count() const override { return device_.multiprocessor_count(); }
  [[nodiscard]] Result<std::byte*> allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  void release(std::byte* memory) override { device_.release(memory); }
  [[nodiscard]] Status register_host(std::span<std::byte> memory, std::size_t unit_bytes) override {
    return device_.register_host(memory, unit_bytes);
  }
  void unregister_host(std::span<std::byte> memory) override { device_.unregister_host(memory); }
  [[nodiscard]] Result<DeviceStream> create_stream(StreamPriority p) override { return device_.create_stream(p); }
  void destroy_stream(DeviceStream stream) override { device_.destroy_stream(stream); }
  [[nodiscard]] Result<DeviceEvent> create_event() override { return device_.create_event(); }
  void destroy_event(DeviceEvent event) override { device_.destroy_event(event); }
  [[nodiscard]] Status record(DeviceEvent event, DeviceStream s) override { return device_.record(event, s); }
  [[nodiscard]] Status wait(DeviceStream stream, DeviceEvent event) override { return device_.wait(stream, event); }
  [[nodiscard]] Result<bool> has_happened(DeviceEvent event) override { return device_.has_happened(event); }
  [[nodiscard]] Status synchronize(DeviceStream stream) override { return device_.synchronize(stream); }
  [[nodiscard]] Status copy(std::byte* target, const std::byte* source, std::size_t bytes, DeviceStream s) override {
    return device_.copy(target, source, bytes, s);
  }
  [[nodiscard]] Status copy_all(const CopyList& copies, DeviceStream s) override { return device_.copy_all(copies, s); }
  [[nodiscard]] Status move_fragments(const MoveFragmentsParams& params, DeviceStream stream) override;
  [[nodiscard]] Status finish_checksums(const FinishChecksumsParams& params, DeviceStream stream) override;

 private:
  struct Kernel {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    std::uint32_t blocks = 0;
  };
  [[nodiscard]] Kernel& next_kernel();
  Device& device_;
  bool keeps_times_ = false;
  std::vector<Kernel> kernels_;
  std::size_t used_ = 0;
};

class SwapRig {
 public:
  SwapRig(Device& device, const SwapShape& shape, const Settings& settings, bool checksums);

  [[nodiscard]] SwapEngine& engine() { return *engine_; }
  [[nodiscard]] const SwapShape& shape() const { return shape_; }
  [[nodiscard]] Pages pages(TransferKind kind) const;
  [[nodiscard]] std::uint64_t call_bytes() const { return shape_.call_pages * shape_.page_bytes(); }
  /// Puts a call on the rig's streams, after waiting for one that is finished if that is what it takes.
  void start(TransferKind kind, std::optional<SwapPath> path = std::nullopt);
  /// Waits for all calls of one kind. Loads and stores may be started and finished by two threads.
  void finish_all(TransferKind kind);
  /// GB/s of so many calls in a row, of loads, stores or both at once.
  [[nodiscard]] double rate(bool loads, bool stores, int calls, std::optional<SwapPath> path = std::nullopt);
  /// Of the multiprocessors' time while loads or stores run, in parts of the whole.
  [[nodiscard]] double busy_share(TransferKind kind, int calls);
  [[nodiscard]] double register_seconds() const { return host_.register_seconds(); }
  [[nodiscard]] std::uint64_t host_bytes() const { return host_bytes_; }
  Streams& streams() { return streams_; }

 private:
  TimedDevice device_;
  SwapShape shape_;
  std::uint32_t page_count_;
  std::uint64_t host_bytes_;
  Buffer pool_;
  HostMemory host_;
  Streams streams_;
  std::vector<std::vector<Fragment>> layers_;
  std::vector<Fragment> fragments_;
  std::vector<PageId> load_device_, store_device_;
  std::vector<RecordId> load_records_, store_records_;
  std::unique_ptr<SwapEngine> engine_;
  std::array<std::vector<SwapTicket>, 2> on_their_way_;  // loads, stores
};

}  // namespace quire::bench
