// SPDX-License-Identifier: Apache-2.0
#include "wire/extent.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/hash.h"
#include "wire/little_endian.h"
#include "wire/segment_fields.h"

namespace quire {
namespace {

constexpr std::uint32_t kPages = 4;

PageName named(std::uint8_t value) {
  PageName name;
  name.bytes.fill(std::byte{value});
  return name;
}

std::vector<RecordHeader> some_pages() {
  std::vector<RecordHeader> pages;
  for (std::uint8_t i = 0; i < kPages; ++i) {
    pages.push_back({.name = named(static_cast<std::uint8_t>(i + 2)),
                     .parent = named(static_cast<std::uint8_t>(i + 1)),
                     .key_space = named(99),
                     .layout = 0x0123456789ABCDEFU,
                     .page_index = 8U + i,
                     .payload_bytes = 100,
                     .stored_bytes = 100,
                     .checksum = 7U + i,
                     .stored_at_ns = 5});
  }
  return pages;
}

std::vector<std::byte> encoded(const std::vector<RecordHeader>& pages) {
  std::vector<std::byte> bytes(extent_headers_bytes(static_cast<std::uint32_t>(pages.size())));
  encode_extent(pages, bytes);
  return bytes;
}

std::string fault_of(std::span<const std::byte> bytes, std::uint32_t page_count = kPages) {
  std::vector<RecordHeader> pages(page_count);
  const Status status = decode_extent(bytes, pages);
  return status ? "" : status.error().message;
}

// What somebody would write who means to deceive: one page's header is encoded anew with something changed.
template <typename Change>
std::string fault_with(std::uint32_t page, Change change) {
  std::vector<RecordHeader> pages = some_pages();
  std::vector<std::byte> bytes = encoded(pages);
  change(pages[page]);
  pages[page].offset = (page + 1) * kSegmentBlockBytes;
  encode_record_header(pages[page], kExtentSalt,
                       std::span(bytes).subspan(page * kRecordHeaderBytes, kRecordHeaderBytes));
  return fault_of(bytes);
}

TEST(Extent, WhatIsEncodedIsDecoded) {
  const std::vector<RecordHeader> pages = some_pages();
  std::vector<RecordHeader> again(kPages);
  ASSERT_TRUE(decode_extent(encoded(pages), again));
  for (std::size_t i = 0; i < kPages; ++i) {
    RecordHeader wanted = pages[i];
    wanted.offset = (i + 1) * kSegmentBlockBytes;
    EXPECT_EQ(again[i], wanted);
  }
}

TEST(Extent, EveryBitOfAHeaderIsLookedAt) {
  const std::vector<std::byte> good = encoded(some_pages());
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<std::byte> bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    ASSERT_NE(fault_of(bytes), "") << "bit " << bit;
  }
}

TEST(Extent, HeadersThatEndTooEarlyAreRefused) {
  const std::vector<std::byte> bytes = encoded(some_pages());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_NE(fault_of(part), "") << length << " bytes";
  }
}

TEST(Extent, PagesThatDoNotFollowEachOtherAreRefused) {
  const auto expect_fault = [](const std::string& fault, const std::string& why) {
    EXPECT_NE(fault.find(why), std::string::npos) << fault;
  };
  expect_fault(fault_with(2, [](RecordHeader& page) { page.parent = named(50); }), "does not follow");
  expect_fault(fault_with(2, [](RecordHeader& page) { page.name = named(50); }), "page 3: it does not follow");
  expect_fault(fault_with(1, [](RecordHeader& page) { ++page.page_index; }), "index is not the next");
  expect_fault(fault_with(1, [](RecordHeader& page) { ++page.layout; }), "another layout");
  expect_fault(fault_with(1, [](RecordHeader& page) { page.key_space = named(1); }), "another key space");
  expect_fault(fault_with(1, [](RecordHeader& page) { page.payload_bytes = page.stored_bytes = 101; }),
               "another length");
  expect_fault(fault_with(3,
                          [](RecordHeader& page) {
                            page.compression = Compression::Zstd;
                            page.stored_bytes = 50;
                          }),
               "compressed");
  expect_fault(fault_with(0, [](RecordHeader& page) { page = {.kind = RecordKind::DropPage, .name = named(4)}; }),
               "no page");
}

TEST(Extent, HeadersInAnotherPlaceAreRefused) {
  std::vector<std::byte> bytes = encoded(some_pages());
  std::swap_ranges(bytes.begin(), bytes.begin() + kRecordHeaderBytes, bytes.begin() + kRecordHeaderBytes);
  EXPECT_NE(fault_of(bytes).find("lies at"), std::string::npos);
}

TEST(Extent, AnExtentBeginsAtAMultipleOfItsLength) {
  std::vector<RecordHeader> pages = some_pages();
  for (RecordHeader& page : pages) ++page.page_index;
  EXPECT_NE(fault_of(encoded(pages)).find("begins at its index"), std::string::npos);
}

TEST(Extent, AKeySaysEverythingThatKeepsValuesApart) {
  std::array<char, kRemoteKeyBytesMax> room;
  const ExtentKey key{
      .prefix = "quire", .key_space = named(0xab), .layout = 0x0123456789ABCDEFU, .page_count = 16, .name = named(0x5)};
  std::string name;
  for (int i = 0; i < 32; ++i) name += "05";
  EXPECT_EQ(write_extent_key(key, room), "quire:1:abababababababab:0123456789abcdef:16:" + name);
  EXPECT_EQ(write_key_space_prefix("quire", key.key_space, room), "quire:1:abababababababab:");
  EXPECT_EQ(write_key_space_prefix("quire", {}, room), "quire:1:");
  const std::string longest(kExtentPrefixBytesMax, 'p');
  EXPECT_LE(write_extent_key(
                {.prefix = longest, .key_space = {}, .layout = 0, .page_count = kExtentPagesMax, .name = {}}, room)
                .size(),
            kRemoteKeyBytesMax);
}

}  // namespace
}  // namespace quire
