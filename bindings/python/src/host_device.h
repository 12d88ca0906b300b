// SPDX-License-Identifier: Apache-2.0
//
// HostDevice: a Device in plain memory, for engines and tests without a GPU. Everything is done when it is asked for,
// so that streams are mere names and an event has happened as soon as it was recorded.
//
// thread-safe
#pragma once

#include <cstddef>
#include <memory>

#include "quire/device.h"

namespace quire::python {

[[nodiscard]] std::unique_ptr<Device> open_host_device();
/// Whether the processor reaches the device's memory.
[[nodiscard]] bool is_plain_memory(const Device& device);

}  // namespace quire::python
