// SPDX-License-Identifier: Apache-2.0
#include "quire/state_slots.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "layout/text.h"

namespace quire {
namespace {

std::optional<std::uint64_t> rounded_up(std::uint64_t bytes, std::uint32_t alignment) {
  const std::uint64_t rest = bytes % alignment;
  return rest == 0 ? bytes : checked_add(bytes, alignment - rest);
}

}  // namespace

Result<StateSlots> StateSlots::create(const ModelLayout& layout, const PageOptions& options) {
  StateSlots slots;
  for (std::uint32_t index = 0; index < layout.groups().size(); ++index) {
    const CacheGroup& group = layout.groups()[index];
    if (!has_slot(group)) continue;
    QUIRE_TRY_ASSIGN(PageGeometry part, PageGeometry::create_slot(group, options));
    slots.alignment_ = std::max(slots.alignment_, part.alignment());
    const auto offset = rounded_up(slots.slot_bytes_, part.alignment());
    const auto end = offset ? checked_add(*offset, part.page_bytes()) : std::nullopt;
    if (!end) {
      return fail(ErrorCode::InvalidArgument, "layout '" + layout.name() + "': with group '" + group.name +
                                                  "' a state slot does not fit in 64 bits (" +
                                                  with_separators(slots.slot_bytes_) + " + " +
                                                  with_separators(part.page_bytes()) + " bytes): make it smaller");
    }
    slots.slot_bytes_ = *end;
    slots.parts_.push_back({.group_index = index, .offset = *offset, .geometry = std::move(part)});
  }
  const auto padded = rounded_up(slots.slot_bytes_, slots.alignment_);
  if (!padded) {
    return fail(ErrorCode::InvalidArgument,
                "layout '" + layout.name() + "': a padded state slot does not fit in 64 bits: make it smaller");
  }
  slots.slot_bytes_ = *padded;
  return slots;
}

std::uint64_t StateSlots::offset_of(const StateRow& row) const {
  QUIRE_CHECK(row.part_index < parts_.size(), "a slot has no such part");
  const StatePart& part = parts_[row.part_index];
  const PageGeometry& geometry = part.geometry;
  const CacheGroup& group = geometry.group();
  QUIRE_CHECK(row.version_index <= group.slot_history, "the slot has no such version");
  QUIRE_CHECK(row.layer_index < geometry.layer_count(), "the group has no such layer");
  QUIRE_CHECK(row.component_index < geometry.components().size(), "the group has no such component");
  QUIRE_CHECK(row.entry_index < group.slot_entries, "the slot has no such entry");
  QUIRE_CHECK(row.head_index < geometry.heads_on_rank(row.component_index, 0).count, "the rank has no such head");
  const ComponentStrides& component = geometry.components()[row.component_index];
  const std::uint64_t entry = (std::uint64_t{row.version_index} * group.slot_entries) + row.entry_index;
  return part.offset + (row.layer_index * geometry.layer_bytes()) + component.offset + (entry * component.token) +
         (row.head_index * component.head);
}

Result<PoolGeometry> StateSlots::pool_of(std::uint32_t part_index, std::uint32_t slot_count) const {
  QUIRE_CHECK(part_index < parts_.size(), "a slot has no such part");
  return PoolGeometry::create(parts_[part_index].geometry,
                              {.page_count = slot_count, .page_stride_bytes = slot_bytes_});
}

std::vector<std::byte> StateSlots::initial_bytes() const {
  std::vector<std::byte> bytes(slot_bytes_);
  for (const StatePart& part : parts_) {
    const std::vector<std::byte> own = part.geometry.initial_bytes();
    std::ranges::copy(own, bytes.data() + part.offset);
  }
  return bytes;
}

}  // namespace quire
