// SPDX-License-Identifier: Apache-2.0
//
// StateMemory: the state slots that an engine computes in, row by row. A group's rows are named by slot, version and
// entry, as state_slots.h lays them out.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "quire/state_slots.h"

namespace tiny_engine {

/// Which entry of a group, in one layer of it.
struct StateEntry {
  std::uint32_t group_index = 0;
  std::uint32_t slot = 0;
  std::uint32_t version_index = 0;
  std::uint32_t layer_index = 0;
  std::uint32_t entry_index = 0;
};

class StateMemory {
 public:
  StateMemory(quire::StateSlots slots, std::byte* bytes, std::uint32_t slot_count)
      : slots_(std::move(slots)), bytes_(bytes), slot_count_(slot_count) {}

  [[nodiscard]] const quire::StateSlots& slots() const { return slots_; }
  [[nodiscard]] std::uint32_t slot_count() const { return slot_count_; }
  [[nodiscard]] std::byte* bytes() const { return bytes_; }
  void set_bytes(std::byte* bytes) { bytes_ = bytes; }

  /// All heads of a component, one after the other. The entry's slot exists.
  void load(const StateEntry& entry, std::uint32_t component, std::span<double> out) const {
    each_head(entry, component, out.size_bytes(), [&](std::byte* row, std::size_t at, std::size_t bytes) {
      std::memcpy(reinterpret_cast<std::byte*>(out.data()) + at, row, bytes);
    });
  }
  void store(const StateEntry& entry, std::uint32_t component, std::span<const double> values) const {
    each_head(entry, component, values.size_bytes(), [&](std::byte* row, std::size_t at, std::size_t bytes) {
      std::memcpy(row, reinterpret_cast<const std::byte*>(values.data()) + at, bytes);
    });
  }

 private:
  template <typename Visit>
  void each_head(const StateEntry& entry, std::uint32_t component, std::size_t all_bytes, Visit visit) const {
    for (std::uint32_t part = 0; part < slots_.parts().size(); ++part) {
      if (slots_.parts()[part].group_index != entry.group_index) continue;
      const std::uint32_t heads = slots_.parts()[part].geometry.group().components[component].heads;
      for (std::uint32_t head = 0; head < heads; ++head) {
        const std::uint64_t offset = slots_.offset_of({.part_index = part,
                                                       .version_index = entry.version_index,
                                                       .layer_index = entry.layer_index,
                                                       .component_index = component,
                                                       .entry_index = entry.entry_index,
                                                       .head_index = head});
        visit(bytes_ + (entry.slot * slots_.slot_bytes()) + offset, all_bytes / heads * head, all_bytes / heads);
      }
    }
  }

  quire::StateSlots slots_;
  std::byte* bytes_ = nullptr;
  std::uint32_t slot_count_ = 0;
};

}  // namespace tiny_engine
