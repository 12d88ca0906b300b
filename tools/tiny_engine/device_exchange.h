// SPDX-License-Identifier: Apache-2.0
//
// DeviceExchange: memory of a device, pinned memory of the same size, and a stream: what an engine's host brings there
// and fetches from there has the same place in both. Places count units of 8 bytes.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/device.h"
#include "quire/result.h"

namespace tiny_engine {

class DeviceExchange {
 public:
  static constexpr std::size_t kUnitBytes = 8;

  explicit DeviceExchange(quire::Device& device) : device_(device) {}
  /// Waits for the stream.
  ~DeviceExchange();
  DeviceExchange(const DeviceExchange&) = delete;
  DeviceExchange& operator=(const DeviceExchange&) = delete;

  [[nodiscard]] quire::Status open(std::size_t unit_count);

  template <typename Element>
  [[nodiscard]] Element* on_host(std::size_t at) const {
    return reinterpret_cast<Element*>(pinned_ + (at * kUnitBytes));
  }
  template <typename Element>
  [[nodiscard]] Element* on_device(std::size_t at) const {
    return reinterpret_cast<Element*>(memory_ + (at * kUnitBytes));
  }
  /// Put copies on the stream.
  [[nodiscard]] quire::Status bring(std::size_t at, std::size_t count) const;
  [[nodiscard]] quire::Status fetch(std::size_t at, std::size_t count) const;
  [[nodiscard]] quire::Status wait() const { return device_.synchronize(stream_); }

  [[nodiscard]] quire::DeviceStream stream() const { return stream_; }
  [[nodiscard]] std::size_t unit_count() const { return bytes_ / kUnitBytes; }

 private:
  quire::Device& device_;
  std::byte* memory_ = nullptr;
  std::byte* pinned_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_registered_ = false;
  quire::DeviceStream stream_;
};

}  // namespace tiny_engine
