// SPDX-License-Identifier: Apache-2.0
//
// What a plan sends from one cache goes over to another, byte by byte, in memory that the processor reaches: before the
// step, behind its copies, and once its tokens are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "quire/cache.h"

namespace quire::testing {

/// One token or entry of a group with pages, all layers.
inline void send_entry(const Cache& source, std::int64_t source_slot, const Cache& target, std::int64_t target_slot,
                       std::uint32_t group) {
  const auto place = [&](const Cache& cache, std::int64_t slot, std::uint32_t layer, std::uint32_t component,
                         std::uint32_t head) {
    const PoolGeometry& geometry = cache.geometry(group);
    const auto entries = static_cast<std::int64_t>(geometry.page().entry_count());
    return cache.device_memory(group) + geometry.offset_of({.page = PageId{static_cast<std::uint32_t>(slot / entries)},
                                                            .layer_index = layer,
                                                            .component_index = component,
                                                            .token_index = static_cast<std::uint32_t>(slot % entries),
                                                            .head_index = head});
  };
  const PageGeometry& page = source.geometry(group).page();
  for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
    for (std::uint32_t component = 0; component < page.components().size(); ++component) {
      for (std::uint32_t head = 0; head < page.heads_on_rank(component, 0).count; ++head) {
        std::memcpy(place(target, target_slot, layer, component, head),
                    place(source, source_slot, layer, component, head), page.components()[component].head_bytes);
      }
    }
  }
}

/// Of every group with state slots, the version that is sent.
inline void send_state(const Cache& source, const Cache& target, const StateSend& send) {
  const StateSlots& slots = source.state_slots();
  const auto first_byte = [&](const Cache& cache, std::int32_t slot) {
    return cache.state_memory() + (static_cast<std::uint64_t>(slot) * slots.slot_bytes());
  };
  for (std::uint32_t part = 0; part < slots.parts().size(); ++part) {
    const PageGeometry& geometry = slots.parts()[part].geometry;
    const CacheGroup& group = geometry.group();
    StateRow row{.part_index = part,
                 .version_index = static_cast<std::uint32_t>(send.position) % (group.slot_history + 1)};
    for (row.layer_index = 0; row.layer_index < geometry.layer_count(); ++row.layer_index) {
      for (row.component_index = 0; row.component_index < geometry.components().size(); ++row.component_index) {
        const auto& component = geometry.components()[row.component_index];
        for (row.entry_index = 0; row.entry_index < group.slot_entries; ++row.entry_index) {
          for (row.head_index = 0; row.head_index < geometry.heads_on_rank(row.component_index, 0).count;
               ++row.head_index) {
            std::memcpy(first_byte(target, send.target) + slots.offset_of(row),
                        first_byte(source, send.source) + slots.offset_of(row), component.head_bytes);
          }
        }
      }
    }
  }
}

inline void send_before(const Cache& source, const AttentionPlan& plan, const Cache& target) {
  for (std::uint32_t g = 0; g < plan.groups.size(); ++g) {
    for (const SendRun& run : plan.groups[g].sends) {
      for (std::int32_t i = 0; i < run.token_count; ++i) {
        send_entry(source, run.local_slot + i, target, run.remote_slot + i, g);
      }
    }
  }
  for (const StateSend& send : plan.state_sends) {
    if (send.time == SendTime::BeforeStep) send_state(source, target, send);
  }
}

/// Empty, or what is wrong.
[[nodiscard]] inline std::string send_after(const Cache& source, const AttentionPlan& plan, const Cache& target) {
  for (std::uint32_t g = 0; g < plan.groups.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    for (std::uint32_t i = 0; i < plan.token_count && !group.remote_slots.empty(); ++i) {
      if (group.remote_slots[i] == kNoSlot) continue;
      if (group.receivers[i] < 0) return "a token is sent to nobody";
      if (group.append_slots[i] == kNoSlot) return "group " + std::to_string(g) + " sends what it does not store";
      send_entry(source, group.append_slots[i], target, group.remote_slots[i], g);
    }
  }
  for (const StateSend& send : plan.state_sends) {
    if (send.time == SendTime::AfterStep) send_state(source, target, send);
  }
  return "";
}

}  // namespace quire::testing
