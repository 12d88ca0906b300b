// SPDX-License-Identifier: Apache-2.0
#include "store/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace quire {
namespace {

constexpr std::size_t kSystemPage = 4096;

}  // namespace

Result<DeviceMemoryBlock> DeviceMemoryBlock::allocate(Device& device, std::size_t bytes) {
  DeviceMemoryBlock block;
  QUIRE_TRY_ASSIGN(block.data_, device.allocate(bytes));
  block.device_ = &device;
  return block;
}

DeviceMemoryBlock::DeviceMemoryBlock(DeviceMemoryBlock&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}

DeviceMemoryBlock& DeviceMemoryBlock::operator=(DeviceMemoryBlock&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  return *this;
}

DeviceMemoryBlock::~DeviceMemoryBlock() {
  if (device_ != nullptr) device_->release(data_);
}

Result<RegisteredMemory> RegisteredMemory::allocate(Device& device, std::size_t bytes, std::size_t unit_bytes) {
  const std::size_t whole_pages = (std::max<std::size_t>(bytes, 1) + kSystemPage - 1) / kSystemPage * kSystemPage;
  void* const data = std::aligned_alloc(kSystemPage, whole_pages);
  if (data == nullptr) {
    return fail(ErrorCode::Unavailable, "there is no room for " + std::to_string(whole_pages) + " bytes on the host");
  }
  std::memset(data, 0, whole_pages);
  RegisteredMemory memory;
  memory.memory_ = {static_cast<std::byte*>(data), whole_pages};
  QUIRE_TRY(device.register_host(memory.memory_, unit_bytes));
  memory.device_ = &device;
  return memory;
}

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), memory_(std::exchange(other.memory_, {})) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  return *this;
}

RegisteredMemory::~RegisteredMemory() {
  if (device_ != nullptr) device_->unregister_host(memory_);
  std::free(memory_.data());
}

}  // namespace quire
