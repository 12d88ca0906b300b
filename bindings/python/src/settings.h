// SPDX-License-Identifier: Apache-2.0
//
// CacheConfig as Python has it: the C++ struct, with tensors, devices and movers as Python objects where it has
// pointers. A configuration stays the caller's: open() works on a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_state.h"
#include "casters.h"
#include "quire/config.h"
#include "quire/device.h"

namespace quire::python {

namespace nb = nanobind;

/// Host memory that a device knows, until this is gone.
class Registered {
 public:
  Registered(std::shared_ptr<Device> device, std::span<std::byte> memory, nb::object kept)
      : kept_(std::move(kept)), device_(std::move(device)), memory_(memory) {}
  Registered(Registered&& other) noexcept = default;
  Registered& operator=(Registered&& other) noexcept {
    std::swap(kept_, other.kept_);
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Registered() {
    if (device_ != nullptr) device_->unregister_host(memory_);
  }
  [[nodiscard]] const std::byte* data() const { return memory_.data(); }

 private:
  nb::object kept_;
  std::shared_ptr<Device> device_;
  std::span<std::byte> memory_;
};

/// A Device that Python and caches share.
struct DeviceHandle {
  explicit DeviceHandle(std::shared_ptr<Device> opened) : device(std::move(opened)) {}
  DeviceHandle(DeviceHandle&&) = default;
  DeviceHandle(const DeviceHandle&) = delete;  // or the module would try to copy the vector

  std::shared_ptr<Device> device;
  std::vector<Registered> registered;
};

/// AdoptedTensor: `data` is a tensor whose first dimension is the page.
struct TensorSettings {
  std::uint32_t layer_index = 0;
  std::optional<std::uint32_t> component_index;
  nb::object data = nb::none();
};

struct DeviceSettings : DeviceConfig {
  nb::object adopted_memory = nb::none();
  std::vector<nb::object> adopted_group_memory;
  nb::object adopted_state_memory = nb::none();
  std::vector<std::vector<TensorSettings>> adopted_tensors;
  nb::object accelerator = nb::none();
};

struct HostSettings : HostConfig {
  std::vector<nb::object> rank_movers;
};

struct Settings : CacheConfig {
  Settings() : CacheConfig{.layout = *ModelLayout::opaque(1)} {}
  Settings(const Settings& other);
  Settings& operator=(const Settings&) = delete;

  bool has_layout = false;
  DeviceSettings device;
  HostSettings host;
};

/// The device of a setting, or null for None; raises for anything else.
[[nodiscard]] Device* device_of(const nb::object& given, const std::string& what);

/// The mover that a setting names, which lives as long as `kept` does; raises for anything else, and once it was
/// closed.
struct LentMover {
  Mover* mover = nullptr;
  nb::object kept;
};
[[nodiscard]] LentMover lend_mover(const nb::object& given, const std::string& what);

/// Memory of the caller's, which stays as long as `kept` does.
struct Lent {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  nb::object kept;
};
/// Raises unless it is one piece, large enough and where it is said to be; `what` names it.
[[nodiscard]] Lent lend(const nb::object& source, const std::string& what, std::uint64_t bytes_min,
                        const Device* accelerator);
struct LentTensor {
  AdoptedTensor tensor;
  Adopted adopted;
  nb::object kept;
};
/// The same for a tensor whose first dimension is the page.
[[nodiscard]] LentTensor lend_tensor(const TensorSettings& given, const std::string& what, const PoolGeometry& pool,
                                     const Device* accelerator);

/// What open() needs, and what has to stay as long as the cache.
struct OpenRequest {
  CacheConfig config;
  std::vector<Adopted> adopted;
  std::vector<nb::object> kept;
};
/// Checks the tensors: where they lie, how large they are, and that nothing in them is skipped.
[[nodiscard]] OpenRequest make_request(const Settings& settings);
/// A copy without pointers: those of DeviceConfig, movers of ranks, and a policy of the caller's own.
[[nodiscard]] CacheConfig copy_config(const CacheConfig& config);

}  // namespace quire::python
