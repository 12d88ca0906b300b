// SPDX-License-Identifier: Apache-2.0
//
// SwapRig: a FakeDevice with pages in one of three layouts, registered records, and a naive twin of both: plain copies
// of all bytes, in which a swap is a loop over bytes at addresses that are worked out here once more.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "kernels/copy_checked.h"
#include "quire/layout.h"
#include "quire/swap.h"
#include "testing/fake_device.h"

namespace quire::testing {

enum class SwapForm : std::uint8_t { PageFirst, LayerFirst, KvApart };

struct SwapShape {
  SwapForm form = SwapForm::PageFirst;
  std::uint32_t layers = 3;
  std::uint32_t component_bytes = 48;  ///< of k and of v: a layer has twice as many
  std::uint32_t device_pages = 7;
  std::uint32_t records = 9;
  std::uint32_t first_byte = 0;     ///< where pages and records begin, behind an address that is aligned
  std::uint32_t stride_unit = 64;   ///< distances of records, and of pages apart, are multiples of it
  std::uint64_t ring_pages = 2;     ///< a third of what the staging ring has room for
  std::uint64_t slot_pages = 1000;  ///< of one slot at most: with fewer than those there are more slots
};

/// Bytes that depend on `content` and their place alone.
inline void fill_swap_bytes(std::span<std::byte> bytes, std::uint64_t content, std::uint64_t first_place = 0) {
  for (std::uint64_t i = 0; i < bytes.size();) {
    const std::uint64_t place = first_place + i;
    const std::uint64_t word = mix64((content * 0x9E3779B97F4A7C15U) + (place / 8)) >> (8 * (place % 8));
    const std::uint64_t length = std::min(bytes.size() - i, 8 - (place % 8));
    std::memcpy(bytes.data() + i, &word, length);
    i += length;
  }
}

/// single-threaded, but for what the engine and the device allow
class SwapRig {
 public:
  explicit SwapRig(const SwapShape& shape, const FakeDeviceConfig& device_config = {})
      : shape_(shape), device_(device_config), page_(make_page(shape)) {
    const std::uint64_t pages_bytes = page_.layer_count() * tensor_bytes() * 2;
    device_bytes_ = kGuard + shape.first_byte + std::max(pages_bytes, shape.device_pages * page_.page_bytes()) + kGuard;
    device_bytes_ = round_up(device_bytes_, 4096);
    stride_ = round_up(page_.page_bytes() + shape.first_byte + kGap, shape.stride_unit);
    host_bytes_ = round_up(shape.records * stride_, 4096);
    device_memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, device_bytes_)));
    host_memory_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, host_bytes_)));
    fill_swap_bytes({device_memory_.get(), device_bytes_}, 1);
    fill_swap_bytes({host_memory_.get(), host_bytes_}, 2);
    device_.adopt({device_memory_.get(), device_bytes_});
    (void)device_.register_host({host_memory_.get(), host_bytes_}, stride_);
    sync_twin();
  }
  ~SwapRig() {
    engine_.reset();
    for (const DeviceStream stream : streams_) device_.destroy_stream(stream);
    device_.unregister_host({host_memory_.get(), host_bytes_});
  }
  SwapRig(const SwapRig&) = delete;
  SwapRig& operator=(const SwapRig&) = delete;

  [[nodiscard]] SwapConfig config() {
    const std::uint64_t record_room = round_up(page_.page_bytes(), 256);
    return {.device = &device_,
            .layers = layers(),
            .device_page_count = shape_.device_pages,
            .records = records(),
            .record_stride = stride_,
            .record_count = shape_.records,
            .load_paths = SwapPaths{},
            .store_paths = SwapPaths{},
            .call_pages_max = 6,
            .calls_in_flight_max = 3,
            .staging_bytes = 3 * shape_.ring_pages * record_room,
            .slot_bytes_max = shape_.slot_pages * record_room};
  }
  [[nodiscard]] std::vector<std::vector<Fragment>> layers() {
    if (shape_.form != SwapForm::KvApart) {
      const ByteLayout layout = shape_.form == SwapForm::PageFirst ? ByteLayout::PageFirst : ByteLayout::LayerFirst;
      const PoolGeometry pool =
          PoolGeometry::create(page_, {.page_count = shape_.device_pages, .byte_layout = layout}).value();
      return fragments_of(pool, pages());
    }
    return fragments_of(page_, tensors()).value();
  }
  /// K and V of each layer, in no particular order.
  [[nodiscard]] std::vector<AdoptedTensor> tensors() {
    std::vector<AdoptedTensor> made;
    for (std::uint32_t layer = page_.layer_count(); layer-- > 0;) {
      for (const std::uint32_t component : {1U, 0U}) {
        made.push_back({.layer_index = layer,
                        .component_index = component,
                        .data = pages() + ((layer * 2 + component) * tensor_bytes()),
                        .page_stride = tensor_stride()});
      }
    }
    return made;
  }
  /// Opens the engine of the rig.
  SwapEngine& open(const SwapConfig& config) {
    engine_ = SwapEngine::open(config).value();
    return *engine_;
  }
  SwapEngine& open() { return open(config()); }
  void close() { engine_.reset(); }
  DeviceStream add_stream() {
    streams_.push_back(device_.create_stream(StreamPriority::High).value());
    return streams_.back();
  }

  [[nodiscard]] FakeDevice& device() { return device_; }
  [[nodiscard]] SwapEngine& engine() { return *engine_; }
  [[nodiscard]] const PageGeometry& page() const { return page_; }
  [[nodiscard]] const SwapShape& shape() const { return shape_; }
  [[nodiscard]] std::byte* pages() { return device_memory_.get() + kGuard + shape_.first_byte; }
  [[nodiscard]] std::byte* records() { return host_memory_.get() + shape_.first_byte; }
  [[nodiscard]] std::byte* record(std::uint32_t index) { return records() + (index * stride_); }
  [[nodiscard]] std::uint64_t record_bytes() const { return page_.page_bytes(); }

  /// Where byte `at` of a page's record lies on the device.
  [[nodiscard]] std::uint64_t place_of(std::uint32_t page, std::uint64_t at) const {
    const std::uint64_t layer_bytes = page_.layer_bytes();
    const std::uint64_t layer = at / layer_bytes;
    const std::uint64_t in_layer = at % layer_bytes;
    switch (shape_.form) {
      case SwapForm::PageFirst:
        return (page * page_.page_bytes()) + at;
      case SwapForm::LayerFirst:
        return (layer * shape_.device_pages * layer_bytes) + (page * layer_bytes) + in_layer;
      case SwapForm::KvApart:
        break;
    }
    const std::uint64_t component = in_layer / shape_.component_bytes;
    return ((layer * 2 + component) * tensor_bytes()) + (page * tensor_stride()) + (in_layer % shape_.component_bytes);
  }
  /// The bytes [begin, end) of a page's record, in pieces that lie together on the device.
  template <typename Do>
  void for_each_piece(std::uint32_t page, std::uint64_t begin, std::uint64_t end, Do do_piece) const {
    for (std::uint64_t at = begin; at < end;) {
      const std::uint64_t bytes = std::min(end - at, shape_.component_bytes - (at % shape_.component_bytes));
      do_piece(place_of(page, at), at, bytes);
      at += bytes;
    }
  }

  // The twin.
  /// From now on the twin is what is there.
  void sync_twin() {
    device_twin_.assign(device_memory_.get(), device_memory_.get() + device_bytes_);
    host_twin_.assign(host_memory_.get(), host_memory_.get() + host_bytes_);
  }
  void twin_swap(TransferKind kind, std::uint32_t device_page, std::uint32_t host_page) {
    std::byte* const record = twin_record(host_page);
    for_each_piece(device_page, 0, record_bytes(), [&](std::uint64_t place, std::uint64_t at, std::uint64_t bytes) {
      std::byte* const on_device = twin_pages() + place;
      std::memcpy(kind == TransferKind::Load ? on_device : record + at,
                  kind == TransferKind::Load ? record + at : on_device, bytes);
    });
  }
  [[nodiscard]] std::byte* twin_pages() { return device_twin_.data() + kGuard + shape_.first_byte; }
  [[nodiscard]] std::byte* twin_record(std::uint32_t index) {
    return host_twin_.data() + shape_.first_byte + (index * stride_);
  }
  [[nodiscard]] std::uint64_t twin_checksum(std::uint32_t record_index) {
    return best_checked_copier()
        .sum({.source = twin_record(record_index), .bytes = record_bytes()})
        .finish(record_bytes());
  }
  /// Every byte there is, pages, records and all between them: "" or what differs first.
  [[nodiscard]] std::string difference() const {
    const auto first_of = [](const std::byte* a, const std::vector<std::byte>& b) {
      return static_cast<std::uint64_t>(std::mismatch(b.begin(), b.end(), a).first - b.begin());
    };
    if (std::memcmp(device_memory_.get(), device_twin_.data(), device_bytes_) != 0) {
      const std::uint64_t first = first_of(device_memory_.get(), device_twin_);
      return "byte " + std::to_string(static_cast<std::int64_t>(first - kGuard - shape_.first_byte)) + " of the pages";
    }
    if (std::memcmp(host_memory_.get(), host_twin_.data(), host_bytes_) != 0) {
      const std::uint64_t first = first_of(host_memory_.get(), host_twin_) - shape_.first_byte;
      return "byte " + std::to_string(first % stride_) + " of record " + std::to_string(first / stride_);
    }
    return "";
  }
  [[nodiscard]] bool has_twin_page(std::uint32_t page, std::uint64_t begin, std::uint64_t end) {
    bool is_same = true;
    for_each_piece(page, begin, end, [&](std::uint64_t place, std::uint64_t, std::uint64_t bytes) {
      is_same = is_same && std::memcmp(pages() + place, twin_pages() + place, bytes) == 0;
    });
    return is_same;
  }
  [[nodiscard]] bool has_twin_record(std::uint32_t index) {
    return std::equal(record(index), record(index) + stride_ - shape_.first_byte, twin_record(index));
  }

 private:
  static constexpr std::uint64_t kGuard = 256;  // of bytes that belong to nobody
  static constexpr std::uint64_t kGap = 5;      // between records
  struct FreeMemory {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<std::byte[], FreeMemory>;  // NOLINT(modernize-avoid-c-arrays): the deleter is free()

  static std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }
  static PageGeometry make_page(const SwapShape& shape) {
    CacheGroup group{.name = "pages", .components = {}};
    for (std::uint32_t i = 0; i < shape.layers; ++i) group.layers.push_back(i);
    for (const char* const name : {"k", "v"}) {
      group.components.push_back({.name = name, .element = ElementType::Bytes, .dim = shape.component_bytes});
    }
    return PageGeometry::create(std::move(group), {.page_tokens = 1}).value();
  }
  // With K and V apart: of one tensor.
  [[nodiscard]] std::uint64_t tensor_stride() const { return round_up(shape_.component_bytes + 3, shape_.stride_unit); }
  [[nodiscard]] std::uint64_t tensor_bytes() const { return shape_.device_pages * tensor_stride(); }

  const SwapShape shape_;
  FakeDevice device_;
  const PageGeometry page_;
  std::uint64_t device_bytes_ = 0;
  std::uint64_t stride_ = 0;
  std::uint64_t host_bytes_ = 0;
  Memory device_memory_;
  Memory host_memory_;
  std::vector<std::byte> device_twin_;
  std::vector<std::byte> host_twin_;
  std::unique_ptr<SwapEngine> engine_;
  std::vector<DeviceStream> streams_;
};

inline std::vector<RecordId> record_ids(std::initializer_list<std::uint32_t> values) {
  std::vector<RecordId> ids;
  for (const std::uint32_t value : values) ids.push_back(RecordId{value});
  return ids;
}

inline std::vector<PageId> page_ids(std::initializer_list<std::uint32_t> values) {
  std::vector<PageId> ids;
  for (const std::uint32_t value : values) ids.push_back(PageId{value});
  return ids;
}

}  // namespace quire::testing
