// SPDX-License-Identifier: Apache-2.0
//
// Where the components of a group lie in one layer of a page or of a state slot: areas, records, alignment, padding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/layout.h"

namespace quire {

struct LayerShape {
  std::vector<ComponentStrides> components;
  std::uint64_t layer_bytes = 0;
  std::uint32_t alignment = 1;
};

struct LayerRequest {
  std::string where;                     ///< begins each message
  std::string_view what;                 ///< what has the entries: "page", "state slot"
  std::string_view unit;                 ///< what they are counted in: "tokens", "entries"
  const CacheGroup* group = nullptr;     ///< as check_group() wants it
  std::span<const std::uint32_t> heads;  ///< of each component on one rank
  std::uint64_t entry_count = 0;
  HeadOrder head_order = HeadOrder::Nhd;
};

/// Fails on components that overlap or stand where their alignment forbids it, and on 2^64 bytes or more.
[[nodiscard]] Result<LayerShape> place_components(const LayerRequest& request);

}  // namespace quire
