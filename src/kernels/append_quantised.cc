// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/ask_for.h"
#include "kernels/e4m3_rows.h"
#include "kernels/quantised_kernels_with.h"
#include "quire/quantised_kernels.h"

namespace quire {
namespace {

// Stores wait for what they overwrite a part of, and slots lie scattered.
constexpr std::size_t kRowsAhead = 4;

}  // namespace

void append_quantised_with(const E4m3Codec& codec, const AppendQuantisedParams& params) {
  const QuantisedEntries& entries = *params.entries;
  const PoolGeometry& geometry = entries.geometry();
  QUIRE_CHECK(params.layer_index < geometry.page().layer_count(), "appending to a layer that the group does not have");
  const bool has_positions = entries.components().positions != kNoComponent;
  QUIRE_CHECK(params.positions.size() == (has_positions ? params.slots.size() : 0),
              "appending needs as many positions as slots where entries have them, else none");
  const std::uint64_t source_row_bytes = params.source_row_bytes == 0 ? entries.row_bytes() : params.source_row_bytes;
  QUIRE_CHECK(source_row_bytes >= entries.row_bytes(), "the source's rows overlap");

  const E4m3Shape shape = shape_of(entries);
  const ComponentStrides values = strides_of(entries, entries.components().values);
  const ComponentStrides scales = strides_of(entries, entries.components().scales);
  const ComponentStrides rope = strides_of(entries, entries.components().rope);
  const ComponentStrides positions = strides_of(entries, entries.components().positions);
  const std::uint64_t head_count = entries.head_count();
  const std::uint64_t entry_count = geometry.page().entry_count();
  const std::uint64_t slot_count = geometry.page_count() * entry_count;
  std::byte* const layer = params.pool + (params.layer_index * geometry.strides().layer);
  // The first byte of a component in the entry at a slot.
  const auto place = [&](std::uint64_t slot, const ComponentStrides& component) {
    return layer + (slot / entry_count * geometry.strides().page) + component.offset +
           (slot % entry_count * component.token);
  };
  for (std::size_t i = 0; i < params.slots.size(); ++i) {
    if (i + kRowsAhead < params.slots.size()) {
      const auto later = static_cast<std::uint64_t>(params.slots[i + kRowsAhead]);
      if (later < slot_count) {
        for (std::uint64_t head = 0; head < head_count; ++head) {
          ask_for(place(later, values) + (head * values.head), values.head_bytes);
          ask_for(place(later, scales) + (head * scales.head), scales.head_bytes);
        }
        ask_for(place(later, rope), rope.head_bytes);
      }
    }
    if (params.slots[i] == kNoSlot) continue;
    const auto slot = static_cast<std::uint64_t>(params.slots[i]);  // a negative one becomes too large
    QUIRE_CHECK(slot < slot_count, "appending at a slot that the pool does not have");
    const std::byte* const source = params.source + (i * source_row_bytes);
    for (std::uint64_t head = 0; head < head_count; ++head) {
      codec.encode({.codes = place(slot, values) + (head * values.head),
                    .scales = place(slot, scales) + (head * scales.head),
                    .source = source + (head * 2 * shape.dim)},
                   shape);
    }
    std::memcpy(place(slot, rope), source + (2 * shape.dim), rope.head_bytes);  // of one head: there is none for more
    if (has_positions) std::memcpy(place(slot, positions), &params.positions[i], sizeof(std::int32_t));
  }
}

void append_quantised_on_host(const AppendQuantisedParams& params) {
  append_quantised_with(best_e4m3_codec(), params);
}

void ring_slots(const RingSlotsParams& params) {
  QUIRE_CHECK(params.ring_entries > 0, "a ring has one entry at least");
  QUIRE_CHECK(params.sink_tokens < params.ring_entries, "a ring has room behind its sink");
  const std::uint64_t room = params.ring_entries - params.sink_tokens;
  const std::uint64_t end = params.first_position + params.slots.size();
  const std::int64_t first_slot = std::int64_t{params.state_slot} * params.ring_entries;
  for (std::size_t i = 0; i < params.slots.size(); ++i) {
    const std::uint64_t position = params.first_position + i;
    const bool is_dropped = position >= params.sink_tokens && position + room < end;
    const std::uint64_t place = ring_place(params.sink_tokens, room, position);
    params.slots[i] = is_dropped ? kNoSlot : first_slot + static_cast<std::int64_t>(place);
  }
}

}  // namespace quire
