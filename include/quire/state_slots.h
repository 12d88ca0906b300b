// SPDX-License-Identifier: Apache-2.0
//
// What a live sequence has besides pages. A state slot is a region of fixed size, one for each sequence that may run at
// once, with the same number in every layer: rings of window groups, tails of compressors, recurrent states and the
// earlier versions of them that a rewind goes back to.
//
//     a slot   [group a: [layer 0: [component][component]][layer 1: …]][group b: …]
//
// Slots may lie one after the other as drawn, so that a sequence's state moves in one copy; pool_of() then is a part of
// all of them as a pool, for the kernels that take one. Where an engine has a tensor for each group or layer instead, a
// pool of a part's geometry says where everything lies. The number of the slot is the number of the page in both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/layout.h"
#include "quire/result.h"

namespace quire {

/// Where in a slot the row of a token lies, of groups that have one for each of the last tokens: the sink's first, the
/// others modulo the room that is left. A chunk longer than that writes only its last rows.
[[nodiscard]] constexpr std::uint32_t ring_entry(const CacheGroup& group, std::uint32_t position) {
  const std::uint32_t sink = group.sink_tokens;
  return position < sink ? position : sink + ((position - sink) % (group.slot_entries - sink));
}

/// One group's part of a slot.
struct StatePart {
  std::uint32_t group_index = 0;  ///< in ModelLayout::groups()
  std::uint64_t offset = 0;       ///< in the slot
  /// The part as if it were a page: the entries of version 0, then those of version 1, …
  PageGeometry geometry;
};

/// One row of a slot. Layers and components count from 0 in the group, heads from 0 on the rank.
struct StateRow {
  std::uint32_t part_index = 0;
  std::uint32_t version_index = 0;  ///< after n tokens: n modulo the group's slot_history + 1
  std::uint32_t layer_index = 0;
  std::uint32_t component_index = 0;
  std::uint32_t entry_index = 0;
  std::uint32_t head_index = 0;
};

/// The size and the inside of state slots on one rank; every rank has the same. immutable.
class StateSlots {
 public:
  /// A layout without rings and snapshots has slots of 0 bytes. Fails on what PageGeometry refuses, and on slots of
  /// 2^64 bytes or more.
  [[nodiscard]] static Result<StateSlots> create(const ModelLayout& layout, const PageOptions& options = {});

  [[nodiscard]] std::span<const StatePart> parts() const { return parts_; }
  /// One slot, all parts, padded to alignment().
  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  /// What the first slot must be aligned to.
  [[nodiscard]] std::uint32_t alignment() const { return alignment_; }
  /// First byte of a row in its slot; a row outside stops the program. Its length is the component's head_bytes.
  [[nodiscard]] std::uint64_t offset_of(const StateRow& row) const;
  /// A part of so many slots, one after the other, as a pool: its first byte is the first slot's, plus the part's
  /// offset. Fails on no slots; a part that there is not stops the program.
  [[nodiscard]] Result<PoolGeometry> pool_of(std::uint32_t part_index, std::uint32_t slot_count) const;
  /// A slot of a sequence that has computed nothing.
  [[nodiscard]] std::vector<std::byte> initial_bytes() const;

 private:
  StateSlots() = default;

  std::vector<StatePart> parts_;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t alignment_ = 1;
};

}  // namespace quire
