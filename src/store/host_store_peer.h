// SPDX-License-Identifier: Apache-2.0
//
// What tests break in a HostStore.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/types.h"
#include "store/host_store.h"

namespace quire {

struct HostStorePeer {
  /// The bytes of a page, all layers.
  [[nodiscard]] static std::span<std::byte> record(HostStore& store, PageId page) {
    return {store.record(page.value - 1), store.page_bytes_};
  }
  static void flip_bit(HostStore& store, PageId page, std::uint64_t bit) {
    record(store, page)[bit / 8] ^= std::byte(1U << (bit % 8));
  }
  [[nodiscard]] static std::uint64_t& checksum(HostStore& store, PageId page) {
    return store.facts_.checksums[page.value - 1];
  }
  [[nodiscard]] static std::uint32_t& generation(HostStore& store, PageId page) {
    return store.facts_.generations[page.value - 1];
  }
  [[nodiscard]] static std::uint64_t& name_tag(HostStore& store, PageId page) {
    return store.facts_.name_tags[page.value - 1];
  }
  /// As if somebody wrote it right now.
  static void set_writer(HostStore& store, PageId page, bool is_there) {
    store.facts_.claims[page.value - 1] = is_there ? UINT32_MAX : 0;
  }
  static void set_readers(HostStore& store, PageId page, std::uint32_t count) {
    store.facts_.claims[page.value - 1] = count;
  }
};

}  // namespace quire
