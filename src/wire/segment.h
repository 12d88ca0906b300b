// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a segment, a file of the file store: a header, records one behind the other, and, once it is sealed, a
// footer. Everything begins at a multiple of 4096 bytes; numbers are little-endian; docs/formats.md has every byte.
//
//     [segment header][record: header, payload, zeros]…[footer: the headers of all records again][trailer]
//
// A record is trusted only if its header's checksum fits, which is seeded with the segment's salt and covers where the
// record lies: no bytes inside a payload, and none that an older segment left behind, pass for a record. The checksum
// of the header covers that of the payload.
//
// What is encoded must mean something, else the program has a bug; what is decoded is foreign and may be anything.
// Decoding answers Unsupported for what a newer quire wrote, and Corrupt for what nobody wrote.
//
// immutable
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "wire/page_name.h"

namespace quire {

inline constexpr std::uint64_t kSegmentBlockBytes = 4096;
/// What is written; older ones are read. 2 has RecordKind::DropAll.
inline constexpr std::uint16_t kSegmentVersion = 2;
inline constexpr std::uint64_t kRecordHeaderBytes = 192;
/// No payload is larger, neither as stored nor as it was before.
inline constexpr std::uint64_t kPayloadBytesMax = std::uint64_t{1} << 32U;

// ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Of a directory below a store's that is the store of a group.
inline constexpr std::string_view kGroupDirectoryPrefix = "group-";
/// Of a directory below a disk tier's that is the store of a shard of ranks, with its groups below it.
inline constexpr std::string_view kShardDirectoryPrefix = "shard-";
inline constexpr std::string_view kManifestFileName = "quire-manifest";
inline constexpr std::string_view kSegmentFilePrefix = "segment-";
/// Files with higher numbers are called like segments and are none: behind any id there is room to count on.
inline constexpr std::uint64_t kSegmentIdMax = (std::uint64_t{1} << 63U) - 1;
/// "segment-" and 16 hexadecimal digits.
[[nodiscard]] std::string segment_file_name(std::uint64_t segment_id);
/// None when it is no segment's.
[[nodiscard]] std::optional<std::uint64_t> segment_id_of(std::string_view file_name);

/// The file that makes a directory a store's.
struct Manifest {
  std::array<std::byte, 16> store_id{};
  std::int64_t created_at_ns = 0;  ///< since 1970
  std::uint16_t version = kSegmentVersion;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};
/// `out` has kSegmentBlockBytes.
void encode_manifest(const Manifest& manifest, std::span<std::byte> out);
[[nodiscard]] Result<Manifest> decode_manifest(std::span<const std::byte> block);

struct SegmentHeader {
  std::uint64_t segment_id = 0;
  std::uint64_t salt = 0;                ///< random; seeds the checksums of its records and its trailer
  std::array<std::byte, 16> store_id{};  ///< of the manifest
  std::uint16_t version = kSegmentVersion;
  friend bool operator==(const SegmentHeader&, const SegmentHeader&) = default;
};
/// `out` has kSegmentBlockBytes.
void encode_segment_header(const SegmentHeader& header, std::span<std::byte> out);
[[nodiscard]] Result<SegmentHeader> decode_segment_header(std::span<const std::byte> block);

// ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────

enum class RecordKind : std::uint8_t {
  Page = 1,
  KeySpace = 2,      ///< what a key space is called, for people; its salt is not in it
  DropKeySpace = 3,  ///< pages of this key space with a lower order are gone
  DropPage = 4,      ///< records of this name with a lower order are gone
  DropAll = 5,       ///< all pages with a lower order are gone, whatever their key space
};

enum class Compression : std::uint8_t { None = 0, Zstd = 1 };

/// Which fields a kind has is said for each; those that it has not are 0 or none.
struct RecordHeader {
  RecordKind kind = RecordKind::Page;
  Compression compression = Compression::None;  ///< of a page
  std::uint64_t order = 0;          ///< of writing, over the whole store: the higher one of two is the newer
  std::uint64_t offset = 0;         ///< of the record in its segment
  PageName name;                    ///< of a page or the drop of one
  PageName parent;                  ///< of a page: of the page before it, or the root
  PageName key_space;               ///< of all kinds but DropAll; of DropPage: may be none
  std::uint64_t layout = 0;         ///< of a page: hash of how its bytes lie, and of its shard
  std::uint32_t page_index = 0;     ///< of a page: how many pages lie before it
  std::uint64_t payload_bytes = 0;  ///< of a page or a key space: before compression, at least 1
  std::uint64_t stored_bytes = 0;   ///< as the record has them: fewer than payload_bytes if and only if compressed
  std::uint64_t checksum = 0;       ///< of the payload, uncompressed; see copy_checked.h
  std::int64_t stored_at_ns = 0;    ///< since 1970
  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

/// What a record takes of its segment.
[[nodiscard]] constexpr std::uint64_t record_bytes(std::uint64_t stored_bytes) {
  return (kRecordHeaderBytes + stored_bytes + kSegmentBlockBytes - 1) / kSegmentBlockBytes * kSegmentBlockBytes;
}

/// `out` has kRecordHeaderBytes.
void encode_record_header(const RecordHeader& header, std::uint64_t salt, std::span<std::byte> out);

/// Where a record is looked for.
struct RecordPlace {
  std::uint64_t salt = 0;           ///< of the segment
  std::uint64_t offset = 0;         ///< in it
  std::uint64_t segment_bytes = 0;  ///< where its records end at the latest: its footer's offset, or the file's length
};
/// From the first kRecordHeaderBytes of `bytes`. Says nothing about the payload, except that it lies in the segment.
[[nodiscard]] Result<RecordHeader> decode_record_header(std::span<const std::byte> bytes, const RecordPlace& place);
/// Whether the bytes begin as a record does. One that does and cannot be decoded is torn, or damaged.
[[nodiscard]] bool begins_like_record(std::span<const std::byte> bytes);

/// The payload of RecordKind::KeySpace: a KeySpace without its salt, and whether it had one.
struct KeySpaceText {
  KeySpace key_space;  ///< salt is empty
  bool has_salt = false;
  friend bool operator==(const KeySpaceText&, const KeySpaceText&) = default;
};
[[nodiscard]] std::vector<std::byte> encode_key_space_text(const KeySpace& key_space);
[[nodiscard]] Result<KeySpaceText> decode_key_space_text(std::span<const std::byte> payload);

// ── footers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/// What the footer and trailer of so many records take.
[[nodiscard]] std::uint64_t footer_bytes(std::uint64_t record_count);

/// `out` has footer_bytes(records.size()); the records are sorted by offset.
void encode_footer(std::span<const RecordHeader> records, const SegmentHeader& segment, std::uint64_t footer_offset,
                   std::span<std::byte> out);

struct Trailer {
  std::uint64_t footer_offset = 0;
  std::uint64_t record_count = 0;
  friend bool operator==(const Trailer&, const Trailer&) = default;
};
/// From the last block of a file of `file_bytes`. Corrupt when the segment is not sealed.
[[nodiscard]] Result<Trailer> decode_trailer(std::span<const std::byte> block, const SegmentHeader& segment,
                                             std::uint64_t file_bytes);
/// From all bytes [footer_offset, file_bytes). All records or an error: what a footer says of a part is worth nothing
/// when the rest is damaged, and the records themselves are still there to be scanned.
[[nodiscard]] Result<std::vector<RecordHeader>> decode_footer(std::span<const std::byte> bytes,
                                                              const SegmentHeader& segment, const Trailer& trailer);

}  // namespace quire
