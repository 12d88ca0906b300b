// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a segment, a file of the file store: a header, records one behind the other, and, once it is sealed, a
// footer. Everything begins at a multiple of 4096 bytes; numbers are little-endian; docs/formats.md has every byte.
//
//     [segment header][record: header, payload, zeros]…[footer: the headers of all records again][trailer]
//
// A record is trusted only if its header's checksum fits, which is seeded with the segment's salt and covers where the
// record lies: no bytes inside a payload, and none that an older segment left behind, pass for a record.
//
// immutable
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/result.h"
#include "wire/page_name.h"

namespace quire {

inline constexpr std::uint64_t kSegmentBlockBytes = 4096;
inline constexpr std::uint16_t kSegmentVersion = 1;

struct SegmentHeader {
  std::uint64_t segment_id = 0;
  std::uint64_t salt = 0;                    ///< random; seeds the checksums of its records
  std::array<std::byte, 16> store_id{};      ///< of the manifest
};

enum class RecordKind : std::uint8_t {
  Page = 1,
  KeySpace = 2,      ///< what a key space is called, for people; its salt is not in it
  DropKeySpace = 3,  ///< pages of this key space with a lower order are gone
  DropPage = 4,      ///< records of this name with a lower order are gone
};

enum class Compression : std::uint8_t { None = 0, Zstd = 1 };

struct RecordHeader {
  RecordKind kind = RecordKind::Page;
  Compression compression = Compression::None;
  std::uint64_t order = 0;          ///< of writing, over the whole store: the higher one of two is the newer
  std::uint64_t offset = 0;         ///< of the record in its segment
  PageName name;                    ///< of a page; else none
  PageName parent;                  ///< of a page: of the page before it, or the root
  PageName key_space;
  std::uint64_t layout = 0;         ///< of a page: hash of how its bytes lie, and of its shard
  std::uint32_t page_index = 0;     ///< of a page: how many pages lie before it
  std::uint64_t payload_bytes = 0;  ///< as the page has
  std::uint64_t stored_bytes = 0;   ///< as the record has: fewer when compressed
  std::uint64_t checksum = 0;       ///< of the payload, uncompressed; see copy_checked.h
  std::int64_t stored_at_ns = 0;    ///< since 1970
  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

inline constexpr std::uint64_t kRecordHeaderBytes = 192;

/// What a record takes of its segment.
[[nodiscard]] constexpr std::uint64_t record_bytes(std::uint64_t stored_bytes) {
  return (kRecordHeaderBytes + stored_bytes + kSegmentBlockBytes - 1) / kSegmentBlockBytes * kSegmentBlockBytes;
}
/// What the footer and trailer of so many records take.
[[nodiscard]] std::uint64_t footer_bytes(std::uint64_t record_count);

/// `out` has kSegmentBlockBytes.
void encode_segment_header(const SegmentHeader& header, std::span<std::byte> out);
[[nodiscard]] Result<SegmentHeader> decode_segment_header(std::span<const std::byte> block);

/// `out` has kRecordHeaderBytes.
void encode_record_header(const RecordHeader& header, std::uint64_t salt, std::span<std::byte> out);
/// Of the record that should lie at `offset` of a segment of `segment_bytes`. Corrupt when it is none.
[[nodiscard]] Result<RecordHeader> decode_record_header(std::span<const std::byte> bytes, std::uint64_t salt,
                                                        std::uint64_t offset, std::uint64_t segment_bytes);

/// `out` has footer_bytes(records.size()).
void encode_footer(std::span<const RecordHeader> records, const SegmentHeader& segment, std::uint64_t footer_offset,
                   std::span<std::byte> out);
struct Trailer {
  std::uint64_t footer_offset = 0;
  std::uint64_t record_count = 0;
};
/// From the last block of a file of `file_bytes`. Corrupt when the segment is not sealed.
[[nodiscard]] Result<Trailer> decode_trailer(std::span<const std::byte> block, const SegmentHeader& segment,
                                             std::uint64_t file_bytes);
/// From all bytes [footer_offset, file_bytes).
[[nodiscard]] Result<std::vector<RecordHeader>> decode_footer(std::span<const std::byte> bytes,
                                                              const SegmentHeader& segment, const Trailer& trailer);

/// The file that makes a directory a store's.
struct Manifest {
  std::array<std::byte, 16> store_id{};
  std::int64_t created_at_ns = 0;  ///< since 1970
};
/// `out` has kSegmentBlockBytes.
void encode_manifest(const Manifest& manifest, std::span<std::byte> out);
/// Unsupported when a newer quire wrote it, Corrupt when it is no manifest.
[[nodiscard]] Result<Manifest> decode_manifest(std::span<const std::byte> block);

/// The payload of RecordKind::KeySpace: a KeySpace without its salt, and whether it had one.
struct KeySpaceText {
  KeySpace key_space;  ///< salt is empty
  bool has_salt = false;
};
[[nodiscard]] std::vector<std::byte> encode_key_space_text(const KeySpace& key_space);
[[nodiscard]] Result<KeySpaceText> decode_key_space_text(std::span<const std::byte> payload);

}  // namespace quire
