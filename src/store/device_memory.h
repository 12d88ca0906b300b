// SPDX-License-Identifier: Apache-2.0
//
// Memory that a Device gave or knows, given back at the end of the object that holds it.
//
// single-threaded
#pragma once

#include <cstddef>
#include <span>

#include "quire/device.h"
#include "quire/result.h"

namespace quire {

/// Memory of a device, given back at the end.
class DeviceMemoryBlock {
 public:
  DeviceMemoryBlock() = default;
  [[nodiscard]] static Result<DeviceMemoryBlock> allocate(Device& device, std::size_t bytes);
  DeviceMemoryBlock(DeviceMemoryBlock&& other) noexcept;
  DeviceMemoryBlock& operator=(DeviceMemoryBlock&& other) noexcept;
  ~DeviceMemoryBlock();
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
};

/// Host memory that a device knows, zero at first.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  [[nodiscard]] static Result<RegisteredMemory> allocate(Device& device, std::size_t bytes, std::size_t unit_bytes);
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  ~RegisteredMemory();
  [[nodiscard]] std::byte* data() const { return memory_.data(); }

 private:
  Device* device_ = nullptr;
  std::span<std::byte> memory_;
};

}  // namespace quire
