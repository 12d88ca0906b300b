// SPDX-License-Identifier: Apache-2.0
#include "wire/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "wire/little_endian.h"
#include "wire/segment_fields.h"

namespace quire {
namespace {

using Bytes = std::vector<std::byte>;

constexpr SegmentHeader kSegment{
    .segment_id = 7, .salt = 0x1122334455667788U, .store_id = {std::byte{0xAB}, std::byte{0xCD}}};
constexpr std::uint64_t kSegmentBytes = std::uint64_t{1} << 20U;

PageName name_of(std::uint8_t first) {
  PageName name;
  for (std::size_t i = 0; i < name.bytes.size(); ++i) name.bytes[i] = static_cast<std::byte>(first + i);
  return name;
}

RecordHeader page_record() {
  return {.kind = RecordKind::Page,
          .compression = Compression::Zstd,
          .order = 42,
          .offset = 8192,
          .name = name_of(1),
          .parent = name_of(33),
          .key_space = name_of(65),
          .layout = 0xFEDCBA9876543210U,
          .page_index = 3,
          .payload_bytes = 10000,
          .stored_bytes = 5000,
          .checksum = 0x0123456789ABCDEFU,
          .stored_at_ns = 1700000000123456789};
}
RecordHeader key_space_record() {
  return {.kind = RecordKind::KeySpace,
          .order = 43,
          .offset = 20480,
          .key_space = name_of(65),
          .payload_bytes = 48,
          .stored_bytes = 48,
          .checksum = 5,
          .stored_at_ns = -1};
}
RecordHeader drop_key_space_record() {
  return {.kind = RecordKind::DropKeySpace, .order = 44, .offset = 24576, .key_space = name_of(65), .stored_at_ns = 1};
}
RecordHeader drop_page_record() {
  return {.kind = RecordKind::DropPage, .order = 45, .offset = 28672, .name = name_of(1), .stored_at_ns = 1};
}
RecordHeader drop_all_record() {
  return {.kind = RecordKind::DropAll, .order = 46, .offset = 32768, .stored_at_ns = 1};
}
std::vector<RecordHeader> kinds_of_version_1() {
  return {page_record(), key_space_record(), drop_key_space_record(), drop_page_record()};
}
std::vector<RecordHeader> all_kinds() {
  std::vector<RecordHeader> kinds = kinds_of_version_1();
  kinds.push_back(drop_all_record());
  return kinds;
}

// Only just as long as it is, so that the address sanitizer sees the first byte behind it.
template <typename Encode>
Bytes filled(std::size_t count, Encode encode) {
  Bytes bytes(count, std::byte{0xEE});  // Encoding leaves nothing as it was.
  encode(std::span(bytes));
  return bytes;
}
Bytes encoded(const Manifest& manifest) {
  return filled(kSegmentBlockBytes, [&](auto out) { encode_manifest(manifest, out); });
}
Bytes encoded(const SegmentHeader& header) {
  return filled(kSegmentBlockBytes, [&](auto out) { encode_segment_header(header, out); });
}
Bytes encoded(const RecordHeader& header) {
  return filled(kRecordHeaderBytes, [&](auto out) { encode_record_header(header, kSegment.salt, out); });
}
Bytes encoded_footer(std::span<const RecordHeader> records, std::uint64_t footer_offset) {
  return filled(footer_bytes(records.size()), [&](auto out) { encode_footer(records, kSegment, footer_offset, out); });
}
Bytes last_block(const Bytes& footer) {
  return {footer.end() - kSegmentBlockBytes, footer.end()};
}

Result<RecordHeader> decoded_at(std::span<const std::byte> bytes, std::uint64_t offset,
                                std::uint64_t segment_bytes = kSegmentBytes) {
  return decode_record_header(bytes, {.salt = kSegment.salt, .offset = offset, .segment_bytes = segment_bytes});
}

// As if whoever wrote the bytes had meant them: the checksum fits again.
void seal(Bytes& bytes, const Field& checksum, std::uint64_t seed) {
  put_number(bytes.data() + checksum.offset, hash_bytes(bytes.data(), checksum.offset, seed));
}

template <typename T>
void expect_refused(const Result<T>& result, ErrorCode code, std::string_view text) {
  ASSERT_FALSE(result.has_value()) << text;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
}
template <typename T>
void expect_corrupt(const Result<T>& result, std::string_view text) {
  expect_refused(result, ErrorCode::Corrupt, text);
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

// Behind the digits come zeros up to `count`.
Bytes from_hex(std::string_view text, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < text.size() / 2; ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(std::string(text.substr(2 * i, 2)), nullptr, 16));
  }
  return bytes;
}

// ── what was encoded is decoded ──────────────────────────────────────────────────────────────────────────────────────

TEST(Segment, WhatWasEncodedIsDecoded) {
  const Manifest manifest{.store_id = kSegment.store_id, .created_at_ns = -5};
  EXPECT_EQ(decode_manifest(encoded(manifest)).value(), manifest);
  EXPECT_EQ(decode_segment_header(encoded(kSegment)).value(), kSegment);
  for (const RecordHeader& record : all_kinds()) {
    EXPECT_EQ(decoded_at(encoded(record), record.offset).value(), record);
  }
}

TEST(Segment, AFooterHasAllRecordsInOrder) {
  for (const std::size_t count : {0, 1, 21, 22, 64, 1000}) {
    SCOPED_TRACE(count);
    std::vector<RecordHeader> records;
    for (std::size_t i = 0; i < count; ++i) {
      records.push_back(page_record());
      records.back().order = i;
      // Between the second record and the third is a gap: nobody promises that there is none.
      records.back().offset = ((2 * i) + (i < 2 ? 1 : 5)) * kSegmentBlockBytes;
    }
    const std::uint64_t footer_offset = ((2 * count) + 9) * kSegmentBlockBytes;
    const Bytes footer = encoded_footer(records, footer_offset);
    const Trailer trailer = decode_trailer(last_block(footer), kSegment, footer_offset + footer.size()).value();
    EXPECT_EQ(trailer, (Trailer{.footer_offset = footer_offset, .record_count = count}));
    EXPECT_EQ(decode_footer(footer, kSegment, trailer).value(), records);
  }
}

TEST(Segment, BytesBehindARecordHeaderAreItsPayload) {
  Bytes bytes = encoded(page_record());
  bytes.resize(4096, std::byte{0x55});
  EXPECT_EQ(decoded_at(bytes, 8192).value(), page_record());
}

TEST(Segment, RecordsAndFootersTakeWholeBlocks) {
  EXPECT_EQ(record_bytes(0), 4096U);
  EXPECT_EQ(record_bytes(4096 - 192), 4096U);
  EXPECT_EQ(record_bytes(4096 - 191), 8192U);
  EXPECT_EQ(footer_bytes(0), 4096U);
  EXPECT_EQ(footer_bytes(1), 8192U);
  EXPECT_EQ(footer_bytes(64), 3U * 4096U + 4096U);
  EXPECT_EQ(footer_bytes(65), 4U * 4096U + 4096U);
}

TEST(Segment, FilesHaveOneNameEach) {
  EXPECT_EQ(segment_file_name(0), "segment-0000000000000000");
  EXPECT_EQ(segment_file_name(0xFEDCBA9876543210U), "segment-fedcba9876543210");
  for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{26}, kSegmentIdMax}) {
    EXPECT_EQ(segment_id_of(segment_file_name(id)), id);
  }
  for (const std::uint64_t id : {kSegmentIdMax + 1, ~std::uint64_t{0}}) {
    EXPECT_EQ(segment_id_of(segment_file_name(id)), std::nullopt);
  }
  for (const std::string_view name :
       {"", "segment-", "segment-1", "segment-000000000000000A", "Segment-0000000000000001",
        "segment-00000000000000001", "segment-000000000000000g", "segment--000000000000001",
        "segment-0000000000000001.tmp", "segment 0000000000000001", "quire-manifest"}) {
    EXPECT_EQ(segment_id_of(name), std::nullopt) << name;
  }
}

// ── version 1, for ever ──────────────────────────────────────────────────────────────────────────────────────────────

// These bytes are in files that people have. A change of the format adds a version and bytes; it changes none of these.
TEST(Segment, BytesOfVersion1AreRead) {
  const Bytes manifest = from_hex(
      "51756972654d616e0100000000000000abcd000000000000000000000000000015cd853dfe9c97170000000000000000"
      "0000000000000000b8f805274e700585",
      kSegmentBlockBytes);
  const Manifest golden_manifest{.store_id = kSegment.store_id, .created_at_ns = 1700000000123456789, .version = 1};
  EXPECT_EQ(decode_manifest(manifest).value(), golden_manifest);

  const Bytes header = from_hex(
      "51756972655365670100000000000000abcd000000000000000000000000000007000000000000008877665544332211"
      "00000000000000008b3e3cc526d5ef3d",
      kSegmentBlockBytes);
  SegmentHeader golden_header = kSegment;
  golden_header.version = 1;
  EXPECT_EQ(decode_segment_header(header).value(), golden_header);

  const Bytes trailer = from_hex(
      "5175697265456e6401000000000000000700000000000000008000000000000004000000000000000000000000000000"
      "00000000000000003f65f1c7e6592d0e",
      kSegmentBlockBytes);
  EXPECT_EQ(decode_trailer(trailer, golden_header, 32768 + 8192).value(),
            (Trailer{.footer_offset = 32768, .record_count = 4}));

  const std::array<std::string_view, 4> records = {
      // a page
      "517569726552656301010000030000002a0000000000000000200000000000001032547698badcfe1027000000000000"
      "8813000000000000efcdab896745230115cd853dfe9c97170102030405060708090a0b0c0d0e0f101112131415161718"
      "191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748"
      "494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f60000000000000000000000000000000005a6451b05383ae2b",
      // a key space
      "517569726552656302000000000000002b00000000000000005000000000000000000000000000003000000000000000"
      "30000000000000000500000000000000ffffffffffffffff000000000000000000000000000000000000000000000000"
      "000000000000000000000000000000000000000000000000000000000000000000000000000000004142434445464748"
      "494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f6000000000000000000000000000000000bc6037c32ee22c94",
      // the drop of a key space
      "517569726552656303000000000000002c00000000000000006000000000000000000000000000000000000000000000"
      "000000000000000000000000000000000100000000000000000000000000000000000000000000000000000000000000"
      "000000000000000000000000000000000000000000000000000000000000000000000000000000004142434445464748"
      "494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f6000000000000000000000000000000000a727a6582e5b684d",
      // the drop of a page
      "517569726552656304000000000000002d00000000000000007000000000000000000000000000000000000000000000"
      "0000000000000000000000000000000001000000000000000102030405060708090a0b0c0d0e0f101112131415161718"
      "191a1b1c1d1e1f2000000000000000000000000000000000000000000000000000000000000000000000000000000000"
      "000000000000000000000000000000000000000000000000000000000000000000000000000000006b7773e68c9a90ef",
  };
  Bytes footer;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Bytes bytes = from_hex(records[i], kRecordHeaderBytes);
    EXPECT_EQ(decoded_at(bytes, kinds_of_version_1()[i].offset).value(), kinds_of_version_1()[i]);
    footer.insert(footer.end(), bytes.begin(), bytes.end());
  }
  footer.resize(kSegmentBlockBytes);
  footer.insert(footer.end(), trailer.begin(), trailer.end());
  EXPECT_EQ(decode_footer(footer, golden_header, {.footer_offset = 32768, .record_count = 4}).value(),
            kinds_of_version_1());

  const Bytes text = from_hex(
      "010000000000000005000000000000006c6c616d61010000000000000032000000000000000004000000000000006266"
      "313604000000000000007961726e",
      62);
  const KeySpace key_space{.model = "llama", .revision = "2", .element = "bf16", .rope = "yarn"};
  EXPECT_EQ(decode_key_space_text(text).value(), (KeySpaceText{.key_space = key_space, .has_salt = true}));

  // What is written into a segment of version 1, which a later process seals, is of version 1.
  EXPECT_EQ(encoded(golden_manifest), manifest);
  EXPECT_EQ(encoded(golden_header), header);
  Bytes sealed(footer.size());
  encode_footer(kinds_of_version_1(), golden_header, 32768, sealed);
  EXPECT_EQ(sealed, footer);
  KeySpace salted = key_space;
  salted.salt = "x";
  EXPECT_EQ(encode_key_space_text(salted), text);
}

// ── version 2: everything may be dropped ─────────────────────────────────────────────────────────────────────────────

TEST(Segment, BytesOfVersion2AreRead) {
  const Bytes header = from_hex(
      "51756972655365670200000000000000abcd000000000000000000000000000007000000000000008877665544332211"
      "000000000000000004c10921a8def8e2",
      kSegmentBlockBytes);
  EXPECT_EQ(decode_segment_header(header).value(), kSegment);
  const Bytes drop = from_hex(
      "517569726552656305000000000000002e00000000000000008000000000000000000000000000000000000000000000"
      "000000000000000000000000000000000100000000000000000000000000000000000000000000000000000000000000"
      "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
      "00000000000000000000000000000000000000000000000000000000000000000000000000000000aaa5cf629c75fb4f",
      kRecordHeaderBytes);
  EXPECT_EQ(decoded_at(drop, 32768).value(), drop_all_record());

  // As long as version 2 is the one that is written, these are also what is written.
  static_assert(kSegmentVersion == 2);
  EXPECT_EQ(encoded(kSegment), header);
  EXPECT_EQ(encoded(drop_all_record()), drop);
}

// ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Segment, EveryBitCounts) {
  using IsTaken = std::function<bool(std::span<const std::byte>)>;
  const auto expect_every_bit_counts = [](Bytes bytes, const IsTaken& is_taken) {
    ASSERT_TRUE(is_taken(bytes));
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      ASSERT_FALSE(is_taken(bytes)) << "bit " << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  };
  expect_every_bit_counts(encoded(Manifest{.created_at_ns = 9}),
                          [](std::span<const std::byte> bytes) { return decode_manifest(bytes).has_value(); });
  expect_every_bit_counts(encoded(kSegment),
                          [](std::span<const std::byte> bytes) { return decode_segment_header(bytes).has_value(); });
  for (const RecordHeader& record : all_kinds()) {
    expect_every_bit_counts(encoded(record), [&](std::span<const std::byte> bytes) {
      return decoded_at(bytes, record.offset).has_value();
    });
  }
  expect_every_bit_counts(encoded_footer(all_kinds(), 36864), [](std::span<const std::byte> bytes) {
    const auto trailer = decode_trailer(bytes.last(kSegmentBlockBytes), kSegment, 36864 + bytes.size());
    return trailer.has_value() && decode_footer(bytes, kSegment, *trailer).has_value();
  });
}

TEST(Segment, WhatANewerQuireWroteIsUnsupported) {
  const auto expect_newer_is_unsupported = [](const Bytes& whole, std::uint64_t seed, auto decode) {
    Bytes bytes = whole;
    put_number(bytes.data() + kHeadVersion.offset, std::uint16_t{3});
    expect_corrupt(decode(bytes), "its checksum does not fit");  // A bit has turned over, nothing is newer.
    seal(bytes, kHeadChecksum, seed);
    expect_refused(decode(bytes), ErrorCode::Unsupported, "it has version 3, and this build reads up to version 2");
    bytes[100] = std::byte{1};  // A newer version may use what was 0.
    expect_refused(decode(bytes), ErrorCode::Unsupported, "version 3");
    put_number(bytes.data() + kHeadVersion.offset, std::uint16_t{0});
    seal(bytes, kHeadChecksum, seed);
    expect_corrupt(decode(bytes), "there is no version 0");
  };
  expect_newer_is_unsupported(encoded(Manifest{}), 0, decode_manifest);
  expect_newer_is_unsupported(encoded(kSegment), 0, decode_segment_header);
  expect_newer_is_unsupported(last_block(encoded_footer({}, 4096)), kSegment.salt,
                              [](const Bytes& block) { return decode_trailer(block, kSegment, 8192); });
}

TEST(Segment, BlocksOfAnotherKindOrLengthAreRefused) {
  const Bytes manifest = encoded(Manifest{});
  const Bytes header = encoded(kSegment);
  const Bytes trailer = last_block(encoded_footer({}, 4096));
  expect_corrupt(decode_manifest(header), "decoding a manifest: the bytes do not begin as one");
  expect_corrupt(decode_segment_header(manifest), "decoding a segment header: the bytes do not begin as one");
  expect_corrupt(decode_trailer(header, kSegment, 8192), "decoding a trailer: the bytes do not begin as one");
  expect_corrupt(decode_segment_header(trailer), "the bytes do not begin as one");
  for (const std::size_t count : {std::size_t{0}, std::size_t{7}, std::size_t{63}, std::size_t{4095}}) {
    Bytes part = header;
    part.resize(count);
    expect_corrupt(decode_segment_header(part), std::to_string(count) + " bytes are not a block");
    expect_corrupt(decode_manifest(part), "bytes are not a block");
    expect_corrupt(decode_trailer(part, kSegment, 8192), "bytes are not a block");
  }
  for (const std::size_t count : {0, 7, 8, 191}) {
    Bytes part = encoded(page_record());
    part.resize(count);
    expect_corrupt(decoded_at(part, 8192), std::to_string(count) + " bytes are less than one has");
  }
  expect_corrupt(decoded_at(Bytes(192), 8192), "the bytes do not begin as one");
}

TEST(Segment, ARecordIsTrustedOnlyInItsOwnPlace) {
  const Bytes bytes = encoded(page_record());
  const auto decoded = [&](const RecordPlace& place) { return decode_record_header(bytes, place); };
  EXPECT_TRUE(decoded({.salt = kSegment.salt, .offset = 8192, .segment_bytes = 8192 + 8192}).has_value());
  expect_corrupt(decoded({.salt = kSegment.salt + 1, .offset = 8192, .segment_bytes = kSegmentBytes}),
                 "its checksum does not fit");
  expect_corrupt(decoded({.salt = kSegment.salt, .offset = 4096, .segment_bytes = kSegmentBytes}),
                 "it belongs at 8192, and lies at 4096");
  for (const std::uint64_t segment_bytes : {0, 4096, 8191, 8192, 12288, 16383}) {
    expect_corrupt(decoded({.salt = kSegment.salt, .offset = 8192, .segment_bytes = segment_bytes}),
                   "a record of 5000 bytes at 8192 does not lie in the " + std::to_string(segment_bytes) + " bytes");
  }
}

TEST(Segment, WhatBeginsLikeARecordIsToldFromUnusedSpace) {
  Bytes bytes = encoded(page_record());
  bytes[100] ^= std::byte{1};
  EXPECT_TRUE(begins_like_record(bytes));
  EXPECT_TRUE(begins_like_record(std::span(bytes).first(8)));
  EXPECT_FALSE(begins_like_record(std::span(bytes).first(7)));
  EXPECT_FALSE(begins_like_record(Bytes(4096)));
}

// Headers whose checksum fits, and which still mean nothing.
TEST(Segment, RecordsThatMeanNothingAreRefused) {
  using namespace record_fields;
  struct Case {
    RecordHeader record;
    const Field* field;
    std::uint64_t value;
    std::string_view text;
  };
  const RecordHeader page = page_record();
  const RecordHeader space = key_space_record();
  const RecordHeader drop_space = drop_key_space_record();
  const RecordHeader drop_page = drop_page_record();
  const std::uint64_t huge = ~std::uint64_t{0};
  const std::vector<Case> cases = {
      {page, &kKind, 0, "there is no such kind"},
      {page, &kKind, 5, "it has what only pages have"},
      {page, &kKind, 6, "there is no such kind"},
      {page, &kKind, 255, "there is no such kind"},
      {page, &kCompression, 2, "there is no such compression"},
      {page, &kCompression, 0, "stored in another length"},
      {page, &kZeros, 1, "bytes that must be 0 are not"},
      {page, &kMoreZeros, 1, "bytes that must be 0 are not"},
      {page, &kPayloadBytes, 0, "a page has no bytes"},
      {page, &kPayloadBytes, 4999, "stored in another length"},
      {page, &kPayloadBytes, 5000, "stored in another length"},
      {page, &kPayloadBytes, kPayloadBytesMax + 1, "a page is too large"},
      {page, &kPayloadBytes, huge, "a page is too large"},
      {page, &kStoredBytes, 0, "a page has no bytes"},
      {page, &kStoredBytes, 10000, "stored in another length"},
      {page, &kStoredBytes, huge, "stored in another length"},
      {page, &kOffset, 4096, "it belongs at 4096, and lies at 8192"},
      {page, &kName, 0, "a page has no name"},
      {page, &kParent, 0, "a page has no name"},
      {page, &kKeySpace, 0, "a page has no name"},
      {page, &kKind, 2, "it has what only pages have"},
      {space, &kKind, 1, "a page has no name"},
      {space, &kKind, 3, "it has a payload"},
      {space, &kCompression, 1, "it has what only pages have"},
      {space, &kLayout, 1, "it has what only pages have"},
      {space, &kPageIndex, 1, "it has what only pages have"},
      {space, &kParent, 1, "it has what only pages have"},
      {space, &kName, 1, "it names a page"},
      {space, &kKeySpace, 0, "it names no key space"},
      {space, &kPayloadBytes, 47, "stored in another length"},
      {space, &kPayloadBytes, huge, "stored in another length"},
      {drop_space, &kKind, 2, "it has no payload"},
      {drop_space, &kKind, 4, "it names no page"},
      {drop_space, &kName, 1, "it names a page"},
      {drop_space, &kKeySpace, 0, "it names no key space"},
      {drop_space, &kStoredBytes, 1, "stored in another length"},
      {drop_space, &kChecksum, 1, "it has a checksum of nothing"},
      {drop_page, &kKind, 3, "it names a page"},
      {drop_page, &kName, 0, "it names no page"},
      {drop_page, &kLayout, 1, "it has what only pages have"},
      {drop_page, &kPayloadBytes, 1, "stored in another length"},
      {drop_page, &kChecksum, 1, "it has a checksum of nothing"},
      {drop_page, &kKind, 5, "it names a page"},
      {drop_space, &kKind, 5, "it names a key space"},
      {drop_all_record(), &kKind, 3, "it names no key space"},
      {drop_all_record(), &kKind, 4, "it names no page"},
      {drop_all_record(), &kKeySpace, 1, "it names a key space"},
      {drop_all_record(), &kPageIndex, 1, "it has what only pages have"},
      {drop_all_record(), &kStoredBytes, 1, "stored in another length"},
      {drop_all_record(), &kChecksum, 1, "it has a checksum of nothing"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.field->name) + " = " + std::to_string(c.value));
    Bytes bytes = encoded(c.record);
    for (std::size_t i = 0; i < c.field->bytes; ++i) {
      bytes[c.field->offset + i] = i < 8 ? static_cast<std::byte>(c.value >> (8 * i)) : std::byte{0};
    }
    seal(bytes, kHeaderChecksum, kSegment.salt);
    expect_corrupt(decoded_at(bytes, c.record.offset), c.text);
  }
  // A drop of a page may say which key space it was in.
  RecordHeader with_key_space = drop_page;
  with_key_space.key_space = name_of(65);
  EXPECT_EQ(decoded_at(encoded(with_key_space), 28672).value(), with_key_space);
}

TEST(Segment, RecordsOutsideOfTheSegmentAreRefused) {
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{4097}, std::uint64_t{8704},
                                     kSegmentBytes, kSegmentBytes - 4096, ~std::uint64_t{0} - 4095}) {
    SCOPED_TRACE(offset);
    Bytes bytes = encoded(page_record());
    put_number(bytes.data() + record_fields::kOffset.offset, offset);
    seal(bytes, record_fields::kHeaderChecksum, kSegment.salt);
    expect_corrupt(decoded_at(bytes, offset), "does not lie in the 1048576 bytes of the segment");
  }
  RecordHeader record = page_record();
  record.compression = Compression::None;
  record.payload_bytes = record.stored_bytes = kPayloadBytesMax;
  expect_corrupt(decoded_at(encoded(record), 8192), "does not lie in");
  EXPECT_TRUE(decoded_at(encoded(record), 8192, 8192 + record_bytes(kPayloadBytesMax)).has_value());
}

TEST(Segment, TrailersThatMeanNothingAreRefused) {
  const std::vector<RecordHeader> records = kinds_of_version_1();
  const Bytes whole = last_block(encoded_footer(records, 32768));
  const std::uint64_t file_bytes = 32768 + 8192;
  const auto with = [&](const Field& field, std::uint64_t value) {
    Bytes bytes = whole;
    put_number(bytes.data() + field.offset, value);
    seal(bytes, kHeadChecksum, kSegment.salt);
    return decode_trailer(bytes, kSegment, file_bytes);
  };
  EXPECT_TRUE(with(trailer_fields::kRecordCount, 4).has_value());
  EXPECT_TRUE(with(trailer_fields::kRecordCount, 1).has_value());  // As many blocks; its footer will not agree.
  expect_corrupt(with(trailer_fields::kSegmentId, 8), "it belongs to another segment");
  expect_corrupt(with(kHeadVersion, 1), "it has another version than its segment");  // and zeros behind it
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{22}, std::uint64_t{1} << 32U,
                                    std::uint64_t{1} << 58U, ~std::uint64_t{0}}) {
    expect_corrupt(with(trailer_fields::kRecordCount, count), "a footer of " + std::to_string(count) + " records");
  }
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{32767}, std::uint64_t{28672}, std::uint64_t{36864},
                                     std::uint64_t{40960}, ~std::uint64_t{0} - 4095, ~std::uint64_t{0}}) {
    expect_corrupt(with(trailer_fields::kFooterOffset, offset), "records at " + std::to_string(offset));
  }
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{4096}, file_bytes - 1, file_bytes + 4096}) {
    expect_corrupt(decode_trailer(whole, kSegment, bytes), "does not end with a file of " + std::to_string(bytes));
  }
  SegmentHeader other = kSegment;
  other.salt += 1;
  expect_corrupt(decode_trailer(whole, other, file_bytes), "its checksum does not fit");
}

TEST(Segment, FootersThatMeanNothingAreRefused) {
  const std::vector<RecordHeader> records = kinds_of_version_1();
  const Trailer trailer{.footer_offset = 32768, .record_count = 4};
  const Bytes whole = encoded_footer(records, 32768);
  EXPECT_TRUE(decode_footer(whole, kSegment, trailer).has_value());
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{64}, ~std::uint64_t{0}}) {
    expect_corrupt(decode_footer(whole, kSegment, {.footer_offset = 32768, .record_count = count}),
                   "8192 bytes are not those of " + std::to_string(count) + " records");
  }
  expect_corrupt(decode_footer(std::span(whole).first(8191), kSegment, trailer), "8191 bytes are not those of 4");
  expect_corrupt(decode_footer({}, kSegment, trailer), "0 bytes are not those of 4");
  // One record more than were written, one less, one in another place, one twice.
  expect_corrupt(decode_footer(whole, kSegment, {.footer_offset = 32768, .record_count = 5}), "record 4: ");
  expect_corrupt(decode_footer(whole, kSegment, {.footer_offset = 32768, .record_count = 3}), "must be 0");
  expect_corrupt(decode_footer(whole, kSegment, {.footer_offset = 28672, .record_count = 4}), "does not lie in");
  Bytes bytes = whole;
  std::copy_n(whole.begin(), 192, bytes.begin() + 192);
  expect_corrupt(decode_footer(bytes, kSegment, trailer), "record 1 is out of order");
  bytes = whole;
  std::swap_ranges(bytes.begin(), bytes.begin() + 192, bytes.begin() + 192);
  expect_corrupt(decode_footer(bytes, kSegment, trailer), "record 1 is out of order");
}

TEST(SegmentDeathTest, EncodingWhatMeansNothingIsABug) {
  Bytes out(192);
  const auto encode = [&](const std::function<void(RecordHeader&)>& change) {
    RecordHeader record = page_record();
    change(record);
    encode_record_header(record, 0, out);
  };
  EXPECT_DEATH(encode([](RecordHeader& record) { record.name = {}; }), "a page has no name");
  EXPECT_DEATH(encode([](RecordHeader& record) { record.stored_bytes = 10001; }), "stored in another length");
  EXPECT_DEATH(encode([](RecordHeader& record) { record.offset = 0; }), "behind the segment's header");
  EXPECT_DEATH(encode([](RecordHeader& record) { record.offset = 4100; }), "begins at a block");
  EXPECT_DEATH(encode_manifest({}, out), "a head is a block");
  Bytes footer(footer_bytes(2));
  const std::vector<RecordHeader> twice(2, page_record());
  EXPECT_DEATH(encode_footer(twice, kSegment, 32768, footer), "records are sorted and do not overlap");
  EXPECT_DEATH(encode_footer(std::span(twice).first(1), kSegment, 12288, std::span(footer).first(footer_bytes(1))),
               "a footer lies behind the records");
}

// ── key spaces ───────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(KeySpaceText, HasEverythingButTheSalt) {
  const KeySpace plain{.model = "m", .revision = "", .adapter = std::string("a\0b", 3), .element = "bf16", .rope = "é"};
  EXPECT_EQ(decode_key_space_text(encode_key_space_text(plain)).value(),
            (KeySpaceText{.key_space = plain, .has_salt = false}));
  KeySpace salted = plain;
  salted.salt = "secret";
  const Bytes payload = encode_key_space_text(salted);
  EXPECT_EQ(decode_key_space_text(payload).value(), (KeySpaceText{.key_space = plain, .has_salt = true}));
  EXPECT_EQ(hex(payload).find(hex(std::as_bytes(std::span(std::string_view("secret"))))), std::string::npos);
  EXPECT_EQ(decode_key_space_text(encode_key_space_text({})).value(), KeySpaceText{});
}

TEST(KeySpaceText, ForeignBytesAreRefused) {
  const Bytes whole = encode_key_space_text({.model = "llama", .rope = "x"});
  for (std::size_t count = 0; count < whole.size(); ++count) {
    EXPECT_FALSE(decode_key_space_text(std::span(whole).first(count)).has_value()) << count;
  }
  const auto with = [&](std::size_t index, std::uint8_t value) {
    Bytes bytes = whole;
    bytes[index] = std::byte{value};
    return decode_key_space_text(bytes);
  };
  expect_corrupt(with(0, 2), "bytes that must be 0 are not");
  expect_corrupt(with(7, 1), "bytes that must be 0 are not");
  expect_corrupt(with(8, 200), "a field is longer than the rest of it");
  expect_corrupt(with(15, 255), "a field is longer than the rest of it");
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  expect_corrupt(decode_key_space_text(longer), "1 bytes lie behind it");
}

}  // namespace
}  // namespace quire
