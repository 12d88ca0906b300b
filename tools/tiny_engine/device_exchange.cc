// SPDX-License-Identifier: Apache-2.0
#include "device_exchange.h"

#include <cstdlib>
#include <cstring>

namespace tiny_engine {

DeviceExchange::~DeviceExchange() {
  if (stream_.handle != nullptr) {
    (void)device_.synchronize(stream_);
    device_.destroy_stream(stream_);
  }
  if (is_registered_) device_.unregister_host({pinned_, bytes_});
  std::free(pinned_);
  if (memory_ != nullptr) device_.release(memory_);
}

quire::Status DeviceExchange::open(std::size_t unit_count) {
  constexpr std::size_t kPinnedUnit = 4096;
  bytes_ = ((unit_count * kUnitBytes) + kPinnedUnit - 1) / kPinnedUnit * kPinnedUnit;
  pinned_ = static_cast<std::byte*>(std::aligned_alloc(kPinnedUnit, bytes_));
  if (pinned_ == nullptr) return quire::fail(quire::ErrorCode::Unavailable, "there is no memory for an engine's rows");
  std::memset(pinned_, 0, bytes_);
  QUIRE_TRY(device_.register_host({pinned_, bytes_}, bytes_));
  is_registered_ = true;
  QUIRE_TRY_ASSIGN(memory_, device_.allocate(bytes_));
  QUIRE_TRY_ASSIGN(stream_, device_.create_stream(quire::StreamPriority::High));
  return {};
}

quire::Status DeviceExchange::bring(std::size_t at, std::size_t count) const {
  if (count == 0) return {};
  return device_.copy(on_device<std::byte>(at), on_host<std::byte>(at), count * kUnitBytes, stream_);
}

quire::Status DeviceExchange::fetch(std::size_t at, std::size_t count) const {
  if (count == 0) return {};
  return device_.copy(on_host<std::byte>(at), on_device<std::byte>(at), count * kUnitBytes, stream_);
}

}  // namespace tiny_engine
