// SPDX-License-Identifier: Apache-2.0
//
// CacheConfig as Python has it: the C++ struct, with tensors and devices as Python objects where it has pointers. A
// configuration stays the caller's: open() works on a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache_state.h"
#include "casters.h"
#include "quire/config.h"
#include "quire/device.h"

namespace quire::python {

namespace nb = nanobind;

/// A Device that Python and caches share.
struct DeviceHandle {
  std::shared_ptr<Device> device;
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

struct Settings : CacheConfig {
  Settings() : CacheConfig{.layout = *ModelLayout::opaque(1)} {}
  Settings(const Settings& other);
  Settings& operator=(const Settings&) = delete;

  bool has_layout = false;
  DeviceSettings device;
};

/// What open() needs, and what has to stay as long as the cache.
struct OpenRequest {
  CacheConfig config;
  std::vector<Adopted> adopted;
  std::vector<nb::object> kept;
};
/// Checks the tensors: where they lie, how large they are, and that nothing in them is skipped.
[[nodiscard]] OpenRequest make_request(const Settings& settings);
/// A copy without the pointers of DeviceConfig and without a policy of the caller's own.
[[nodiscard]] CacheConfig copy_config(const CacheConfig& config);

}  // namespace quire::python
