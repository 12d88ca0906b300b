// SPDX-License-Identifier: Apache-2.0
//
// A value of a shared store as a cache would write it, and its key, for tests of what reads them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/record_payload.h"
#include "wire/extent.h"

namespace quire::testing {

struct SampleExtent {
  std::string key;
  std::vector<std::byte> value;
};

struct SampleExtentOptions {
  std::string prefix = "quire";
  std::uint8_t key_space = 99;
  std::uint64_t layout = 0x0123456789ABCDEFU;
  std::uint32_t page_count = 4;
  std::uint64_t page_bytes = 4'096;
  std::uint8_t name = 0;  ///< different ones for different extents, from 0 to 15
};

inline SampleExtent sample_extent(const SampleExtentOptions& options = {}) {
  const auto named = [](std::uint8_t value, std::uint8_t number) {
    PageName name;
    name.bytes.fill(std::byte{value});
    name.bytes.back() = std::byte{number};
    return name;
  };
  SampleExtent extent;
  extent.value.resize(extent_bytes(options.page_count, options.page_bytes));
  const std::span<std::byte> value = extent.value;
  const std::uint64_t headers_bytes = extent_headers_bytes(options.page_count);
  std::vector<RecordHeader> pages;
  for (std::uint32_t i = 0; i < options.page_count; ++i) {
    const auto number = static_cast<std::uint8_t>((options.name * 16) + i + 1);
    const std::span<std::byte> page = value.subspan(headers_bytes + (i * options.page_bytes), options.page_bytes);
    for (std::size_t j = 0; j < page.size(); ++j) page[j] = static_cast<std::byte>((j * 7) + number);
    pages.push_back({.name = named(5, number),
                     .parent = named(5, static_cast<std::uint8_t>(number - 1)),
                     .key_space = named(options.key_space, 0),
                     .layout = options.layout,
                     .page_index = i,
                     .payload_bytes = options.page_bytes,
                     .stored_bytes = options.page_bytes,
                     .checksum = page_checksum(page)});
  }
  encode_extent(pages, value.first(headers_bytes));
  std::array<char, kRemoteKeyBytesMax> room;
  extent.key = write_extent_key({.prefix = options.prefix,
                                 .key_space = pages.back().key_space,
                                 .layout = options.layout,
                                 .page_count = options.page_count,
                                 .name = pages.back().name},
                                room);
  return extent;
}

}  // namespace quire::testing
