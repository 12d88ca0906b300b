// SPDX-License-Identifier: Apache-2.0
#include "host_device.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace quire::python {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPageBytes = 4096;

class HostDevice final : public Device {
 public:
  [[nodiscard]] std::uint32_t index() const override { return 0; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t multiprocessor_count() const override { return 1; }

  [[nodiscard]] Result<std::byte*> allocate(std::size_t bytes) override {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* const memory =
        rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
    if (memory == nullptr) return fail(ErrorCode::Unavailable, "no memory for " + std::to_string(bytes) + " bytes");
    std::memset(memory, 0, rounded);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) override { std::free(memory); }
  [[nodiscard]] Status register_host(std::span<std::byte> memory, std::size_t unit_bytes) override {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    if (address % kPageBytes == 0 && memory.size() % kPageBytes == 0 && !memory.empty() && unit_bytes > 0) return {};
    return fail(ErrorCode::InvalidArgument,
                "host memory of " + std::to_string(memory.size()) + " bytes in units of " + std::to_string(unit_bytes) +
                    ": give memory that begins and ends at a multiple of 4096, and units above 0");
  }
  void unregister_host(std::span<std::byte> /*memory*/) override {}

  [[nodiscard]] Result<DeviceStream> create_stream(StreamPriority /*priority*/) override {
    return DeviceStream{next_name()};
  }
  void destroy_stream(DeviceStream /*stream*/) override {}
  [[nodiscard]] Result<DeviceEvent> create_event() override { return DeviceEvent{next_name()}; }
  void destroy_event(DeviceEvent /*event*/) override {}
  [[nodiscard]] Status record(DeviceEvent /*event*/, DeviceStream /*stream*/) override { return {}; }
  [[nodiscard]] Status wait(DeviceStream /*stream*/, DeviceEvent /*event*/) override { return {}; }
  [[nodiscard]] Result<bool> has_happened(DeviceEvent /*event*/) override { return true; }
  [[nodiscard]] Status synchronize(DeviceStream /*stream*/) override { return {}; }

  [[nodiscard]] Status copy(std::byte* target, const std::byte* source, std::size_t bytes,
                            DeviceStream /*stream*/) override {
    std::memcpy(target, source, bytes);
    return {};
  }
  [[nodiscard]] Status copy_all(const CopyList& copies, DeviceStream /*stream*/) override {
    for (std::size_t i = 0; i < copies.targets.size(); ++i) {
      std::memcpy(copies.targets[i], copies.sources[i], copies.bytes[i]);
    }
    return {};
  }
  [[nodiscard]] Status move_fragments(const MoveFragmentsParams& params, DeviceStream /*stream*/) override {
    move_fragments_on_host(params);
    return {};
  }
  [[nodiscard]] Status finish_checksums(const FinishChecksumsParams& params, DeviceStream /*stream*/) override {
    finish_checksums_on_host(params);
    return {};
  }

 private:
  /// Not null, and no address that anybody reads.
  void* next_name() { return reinterpret_cast<void*>(++last_name_); }

  const std::string name_ = "host memory";
  std::atomic<std::uintptr_t> last_name_ = 0;
};

}  // namespace

std::unique_ptr<Device> open_host_device() {
  return std::make_unique<HostDevice>();
}

bool is_plain_memory(const Device& device) {
  return dynamic_cast<const HostDevice*>(&device) != nullptr;
}

}  // namespace quire::python
