// SPDX-License-Identifier: Apache-2.0
//
// TestPool: device pages in one or more parts, each a TestDevice of its own shape, whose bytes tests write and compare
// as if they were one page with the layers of all parts, one behind the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/mover.h"
#include "quire/types.h"
#include "store/host_store.h"
#include "testing/test_device.h"

namespace quire::testing {

/// single-threaded, but for different pages
class TestPool {
 public:
  explicit TestPool(const std::vector<TestDeviceShape>& shapes) {
    for (const TestDeviceShape& shape : shapes) {
      parts_.push_back(std::make_unique<TestDevice>(shape));
      device_.push_back({.geometry = &parts_.back()->geometry(), .memory = parts_.back()->memory()});
      layer_count_ += shape.layers;
      page_bytes_ += parts_.back()->geometry().page().page_bytes();
    }
  }

  [[nodiscard]] std::size_t part_count() const { return parts_.size(); }
  [[nodiscard]] TestDevice& part(std::size_t index) { return *parts_[index]; }
  [[nodiscard]] std::uint32_t page_count() const { return parts_[0]->geometry().page_count(); }
  [[nodiscard]] std::uint32_t layer_count() const { return layer_count_; }
  [[nodiscard]] std::uint64_t page_bytes() const { return page_bytes_; }
  [[nodiscard]] std::span<const DevicePages> device() const { return device_; }
  /// The sizes of a record.
  [[nodiscard]] std::vector<RecordPart> record_parts() const {
    std::vector<RecordPart> made;
    for (const auto& part : parts_) {
      const PageGeometry& page = part->geometry().page();
      made.push_back({.layer_bytes = page.layer_bytes(), .layer_count = page.layer_count()});
    }
    return made;
  }
  [[nodiscard]] MoverPool for_mover(std::uint32_t host_page_count) const {
    MoverPool pool{.parts = {}, .host_page_count = host_page_count};
    for (const DevicePages& part : device_) pool.parts.push_back({.geometry = part.geometry, .memory = part.memory});
    return pool;
  }

  /// Bytes that depend on `content` alone, and differ from part to part.
  void fill(PageId page, std::uint64_t content) {
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i]->fill(page, content_of(content, i));
  }
  void clear(PageId page) {
    for (const auto& part : parts_) part->clear(page);
  }
  /// Whether layers [0, layer_count) are as fill() made them.
  [[nodiscard]] bool holds(PageId page, std::uint64_t content, std::uint32_t layer_count) {
    bool is_same = true;
    for (std::size_t i = 0; i < parts_.size() && layer_count > 0; ++i) {
      const std::uint32_t count = std::min(layer_count, parts_[i]->geometry().page().layer_count());
      is_same = is_same && parts_[i]->holds(page, content_of(content, i), count);
      layer_count -= count;
    }
    return is_same;
  }
  [[nodiscard]] bool holds(PageId page, std::uint64_t content) { return holds(page, content, layer_count_); }

 private:
  static std::uint64_t content_of(std::uint64_t content, std::size_t part) { return content + (part * 1'000'003); }

  std::vector<std::unique_ptr<TestDevice>> parts_;
  std::vector<DevicePages> device_;
  std::uint32_t layer_count_ = 0;
  std::uint64_t page_bytes_ = 0;
};

}  // namespace quire::testing
