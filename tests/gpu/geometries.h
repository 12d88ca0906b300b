// SPDX-License-Identifier: Apache-2.0
//
// Pools of odd and usual shapes, drawn from a seed, for comparing device kernels with their host twins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/layout.h"
#include "testing/seeded_run.h"

namespace quire::testing {

[[nodiscard]] inline std::vector<std::byte> random_bytes(Random& random, std::uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next() & 0xffU);
  return bytes;
}

/// A few components of any elements: areas and records, one head and several, aligned and not, with initial bytes.
[[nodiscard]] inline std::vector<Component> draw_components(Random& random) {
  constexpr ElementType kElements[] = {ElementType::Bf16, ElementType::Fp16,  ElementType::Fp32, ElementType::Fp8,
                                       ElementType::Int8, ElementType::Bytes, ElementType::Int32};
  constexpr std::uint32_t kDims[] = {1, 2, 3, 7, 8, 16, 33, 64, 80, 128, 131, 576, 1000, 2100};
  std::vector<Component> components(1 + random.below(4));
  const bool is_usual = random.below(3) == 0;
  for (std::size_t i = 0; i < components.size(); ++i) {
    Component& component = components[i];
    component.name = "c" + std::to_string(i);
    if (is_usual) {
      component.heads = 1 + random.below(8);
      component.dim = 64 << random.below(3);
      continue;
    }
    component.element = kElements[random.below(std::size(kElements))];
    component.heads = random.below(2) == 0 ? 1 : 1 + random.below(5);
    component.dim = kDims[random.below(std::size(kDims))];
    component.placement = random.below(3) == 0 ? Placement::Interleaved : Placement::Area;
    component.alignment = random.below(2) == 0 ? 1 : 1U << random.below(7);
    const std::uint32_t row_bytes = component.dim * element_bytes(component.element);
    if (random.below(2) == 0) {
      // Of one element, of the whole row, of a part that is no power of two.
      const std::uint32_t kind = random.below(3);
      std::uint32_t pattern_bytes = kind == 0 ? element_bytes(component.element) : row_bytes;
      if (kind == 2 && row_bytes % 3 == 0) pattern_bytes = row_bytes / 3;
      component.initial = random_bytes(random, pattern_bytes);
    }
  }
  return components;
}

struct DrawnPool {
  std::string name;
  PoolGeometry geometry;
};

[[nodiscard]] inline DrawnPool draw_pool(Random& random) {
  constexpr std::uint32_t kPageTokens[] = {1, 2, 3, 5, 7, 16, 17, 64};
  CacheGroup group{
      .name = "drawn", .layers = layer_range(0, 1 + random.below(4)), .components = draw_components(random)};
  if (random.below(3) == 0) {
    std::uint32_t alignment = 1;
    for (const Component& component : group.components) alignment = std::max(alignment, component.alignment);
    group.layer_multiple_bytes = alignment * (1 + random.below(5));
  }
  const PageOptions options{.page_tokens = kPageTokens[random.below(std::size(kPageTokens))],
                            .head_order = random.below(2) == 0 ? HeadOrder::Nhd : HeadOrder::Hnd};
  const ByteLayout byte_layout = random.below(2) == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst;
  std::string name = "pages of " + std::to_string(options.page_tokens) +
                     (options.head_order == HeadOrder::Nhd ? ", nhd" : ", hnd") +
                     (byte_layout == ByteLayout::PageFirst ? ", page-first" : ", layer-first");
  for (const Component& component : group.components) {
    name += ", " + std::to_string(component.heads) + " * " + std::to_string(component.dim) + " " +
            std::string(to_string(component.element)) + (component.placement == Placement::Area ? "" : " in a record");
  }
  PageGeometry page = PageGeometry::create(std::move(group), options).value();
  return {
      .name = std::move(name),
      .geometry = PoolGeometry::create(std::move(page), {.page_count = 2 + random.below(9), .byte_layout = byte_layout})
                      .value()};
}

[[nodiscard]] inline std::int64_t slot_count_of(const PoolGeometry& geometry) {
  return std::int64_t{geometry.page_count()} * geometry.page().entry_count();
}

/// Half of the slots or so, each once, in random order, with kNoSlot (-1) in the places of the others.
[[nodiscard]] inline std::vector<std::int64_t> draw_slots(Random& random, std::int64_t slot_count) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(slot_count), -1);
  for (std::int64_t slot = 0; slot < slot_count; ++slot) {
    if (random.below(2) == 0) slots[static_cast<std::size_t>(slot)] = slot;
  }
  for (std::size_t i = slots.size(); i > 1; --i) {
    std::swap(slots[i - 1], slots[random.below(static_cast<std::uint32_t>(i))]);
  }
  return slots;
}

}  // namespace quire::testing
