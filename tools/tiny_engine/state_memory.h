// SPDX-License-Identifier: Apache-2.0
//
// StateMemory: the state slots that an engine computes in.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "quire/state_slots.h"

namespace tiny_engine {

class StateMemory {
 public:
  StateMemory(quire::StateSlots slots, std::byte* bytes, std::uint32_t slot_count)
      : slots_(std::move(slots)), bytes_(bytes), slot_count_(slot_count) {}

  [[nodiscard]] const quire::StateSlots& slots() const { return slots_; }
  [[nodiscard]] std::uint32_t slot_count() const { return slot_count_; }
  [[nodiscard]] std::byte* bytes() const { return bytes_; }
  void set_bytes(std::byte* bytes) { bytes_ = bytes; }

 private:
  quire::StateSlots slots_;
  std::byte* bytes_ = nullptr;
  std::uint32_t slot_count_ = 0;
};

}  // namespace tiny_engine
