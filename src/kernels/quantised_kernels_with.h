// SPDX-License-Identifier: Apache-2.0
//
// The kernels of quire/quantised_kernels.h, which has the contract, on a given codec, for tests; and what they share.
//
// thread-safe: calls on memory that does not overlap may run at the same time.
#pragma once

#include <cstdint>

#include "kernels/e4m3_rows.h"
#include "quire/quantised_kernels.h"

namespace quire {

void append_quantised_with(const E4m3Codec& codec, const AppendQuantisedParams& params);
void gather_selected_with(const E4m3Codec& codec, const GatherSelectedParams& params);
void gather_last_with(const E4m3Codec& codec, const GatherLastParams& params);
void gather_ring_with(const E4m3Codec& codec, const GatherRingParams& params);

[[nodiscard]] inline E4m3Shape shape_of(const QuantisedEntries& entries) {
  return {.dim = entries.dim(),
          .block_values = entries.block_values(),
          .scale_form = entries.scale_form(),
          .scales_bytes = entries.geometry().page().components()[entries.components().scales].head_bytes};
}

/// A component's place in an entry. Of one that there is not: 0, with nothing to read or write there.
[[nodiscard]] inline ComponentStrides strides_of(const QuantisedEntries& entries, std::uint32_t component_index) {
  if (component_index == kNoComponent) return {};
  return entries.geometry().strides().components[component_index];
}

/// As ring_entry(), for rings of any group: the sink's tokens, then the others in turn.
[[nodiscard]] constexpr std::uint64_t ring_place(std::uint64_t sink_tokens, std::uint64_t room,
                                                 std::uint64_t position) {
  return position < sink_tokens ? position : sink_tokens + ((position - sink_tokens) % room);
}

}  // namespace quire
