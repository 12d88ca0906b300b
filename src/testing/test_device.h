// SPDX-License-Identifier: Apache-2.0
//
// TestDevice: device pages in plain memory, in either layout, whose bytes tests write and compare by page and layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "quire/layout.h"
#include "quire/types.h"

namespace quire::testing {

struct TestDeviceShape {
  std::uint32_t layers = 4;
  std::uint32_t layer_bytes = 96;
  std::uint32_t pages = 16;
  ByteLayout byte_layout = ByteLayout::PageFirst;
};

/// single-threaded
class TestDevice {
 public:
  explicit TestDevice(const TestDeviceShape& shape)
      : geometry_(make_geometry(shape)), memory_(geometry_.pool_bytes()) {}

  [[nodiscard]] const PoolGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::byte* memory() { return memory_.data(); }

  /// Bytes that depend on `content` alone.
  void fill(PageId page, std::uint64_t content) {
    for_each_byte(page, [&](std::byte& byte, std::uint64_t place) { byte = byte_of(content, place); });
  }
  void clear(PageId page) {
    for_each_byte(page, [](std::byte& byte, std::uint64_t) { byte = std::byte{0}; });
  }
  /// Whether layers [0, layer_count) are as fill() made them.
  [[nodiscard]] bool holds(PageId page, std::uint64_t content, std::uint32_t layer_count) {
    bool is_same = true;
    for_each_byte(page, [&](std::byte& byte, std::uint64_t place) {
      if (place < layer_count * geometry_.page().layer_bytes()) is_same = is_same && byte == byte_of(content, place);
    });
    return is_same;
  }
  [[nodiscard]] bool holds(PageId page, std::uint64_t content) {
    return holds(page, content, geometry_.page().layer_count());
  }

 private:
  static PoolGeometry make_geometry(const TestDeviceShape& shape) {
    CacheGroup group{.name = "pages",
                     .layers = layer_range(0, shape.layers),
                     .components = {{.name = "bytes", .element = ElementType::Bytes, .dim = shape.layer_bytes}}};
    return PoolGeometry::create(PageGeometry::create(std::move(group), {.page_tokens = 1}).value(),
                                {.page_count = shape.pages, .byte_layout = shape.byte_layout})
        .value();
  }
  static std::byte byte_of(std::uint64_t content, std::uint64_t place) {
    return std::byte((mix64((content << 20U) + (place / 8)) >> (8 * (place % 8))) & 0xFFU);
  }
  template <typename Visit>
  void for_each_byte(PageId page, Visit visit) {
    const std::uint64_t layer_bytes = geometry_.page().layer_bytes();
    for (std::uint64_t layer = 0; layer < geometry_.page().layer_count(); ++layer) {
      std::byte* const begin =
          memory_.data() + (page.value * geometry_.strides().page) + (layer * geometry_.strides().layer);
      for (std::uint64_t i = 0; i < layer_bytes; ++i) visit(begin[i], (layer * layer_bytes) + i);
    }
  }

  PoolGeometry geometry_;
  std::vector<std::byte> memory_;
};

}  // namespace quire::testing
