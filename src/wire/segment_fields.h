// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a block or a record header are which field, as docs/formats.md has them: a test compares its tables
// with these. The fields of a table follow each other without gaps; those that are called "zeros" are 0.
//
// immutable
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "wire/segment.h"

namespace quire {

struct Field {
  std::string_view name;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

// Manifest, segment header and trailer begin alike: what they are, their version, six zeros; and in every version the
// bytes [56, 64) are a checksum of those before it. So a reader can tell what is newer from what is damaged.
inline constexpr Field kHeadMagic{"magic", 0, 8};
inline constexpr Field kHeadVersion{"version", 8, 2};
inline constexpr Field kHeadZeros{"zeros", 10, 6};
inline constexpr Field kHeadChecksum{"header_checksum", 56, 8};
inline constexpr Field kHeadRest{"zeros", 64, kSegmentBlockBytes - 64};

namespace manifest_fields {
inline constexpr Field kStoreId{"store_id", 16, 16};
inline constexpr Field kCreatedAtNs{"created_at_ns", 32, 8};
inline constexpr Field kZeros{"zeros", 40, 16};
inline constexpr std::array kAll = {kHeadMagic,   kHeadVersion, kHeadZeros,    kStoreId,
                                    kCreatedAtNs, kZeros,       kHeadChecksum, kHeadRest};
}  // namespace manifest_fields

namespace segment_fields {
inline constexpr Field kStoreId{"store_id", 16, 16};
inline constexpr Field kSegmentId{"segment_id", 32, 8};
inline constexpr Field kSalt{"salt", 40, 8};
inline constexpr Field kZeros{"zeros", 48, 8};
inline constexpr std::array kAll = {kHeadMagic, kHeadVersion, kHeadZeros,    kStoreId, kSegmentId,
                                    kSalt,      kZeros,       kHeadChecksum, kHeadRest};
}  // namespace segment_fields

namespace trailer_fields {
inline constexpr Field kSegmentId{"segment_id", 16, 8};
inline constexpr Field kFooterOffset{"footer_offset", 24, 8};
inline constexpr Field kRecordCount{"record_count", 32, 8};
inline constexpr Field kZeros{"zeros", 40, 16};
inline constexpr std::array kAll = {kHeadMagic,   kHeadVersion, kHeadZeros,    kSegmentId, kFooterOffset,
                                    kRecordCount, kZeros,       kHeadChecksum, kHeadRest};
}  // namespace trailer_fields

namespace record_fields {
inline constexpr Field kMagic{"magic", 0, 8};
inline constexpr Field kKind{"kind", 8, 1};
inline constexpr Field kCompression{"compression", 9, 1};
inline constexpr Field kZeros{"zeros", 10, 2};
inline constexpr Field kPageIndex{"page_index", 12, 4};
inline constexpr Field kOrder{"order", 16, 8};
inline constexpr Field kOffset{"offset", 24, 8};
inline constexpr Field kLayout{"layout", 32, 8};
inline constexpr Field kPayloadBytes{"payload_bytes", 40, 8};
inline constexpr Field kStoredBytes{"stored_bytes", 48, 8};
inline constexpr Field kChecksum{"checksum", 56, 8};
inline constexpr Field kStoredAtNs{"stored_at_ns", 64, 8};
inline constexpr Field kName{"name", 72, 32};
inline constexpr Field kParent{"parent", 104, 32};
inline constexpr Field kKeySpace{"key_space", 136, 32};
inline constexpr Field kMoreZeros{"zeros", 168, 16};
inline constexpr Field kHeaderChecksum{"header_checksum", 184, 8};
inline constexpr std::array kAll = {kMagic,  kKind,   kCompression,  kZeros,       kPageIndex,     kOrder,
                                    kOffset, kLayout, kPayloadBytes, kStoredBytes, kChecksum,      kStoredAtNs,
                                    kName,   kParent, kKeySpace,     kMoreZeros,   kHeaderChecksum};
}  // namespace record_fields

// The fields of a key space follow these, each behind its length.
namespace key_space_text_fields {
inline constexpr Field kHasSalt{"has_salt", 0, 1};
inline constexpr Field kZeros{"zeros", 1, 7};
inline constexpr std::array kAll = {kHasSalt, kZeros};
}  // namespace key_space_text_fields

inline constexpr std::string_view kManifestMagic = "QuireMan";
inline constexpr std::string_view kSegmentMagic = "QuireSeg";
inline constexpr std::string_view kRecordMagic = "QuireRec";
inline constexpr std::string_view kTrailerMagic = "QuireEnd";

template <std::size_t kCount>
constexpr bool covers(const std::array<Field, kCount>& fields, std::size_t bytes) {
  std::size_t offset = 0;
  for (const Field& field : fields) {
    if (field.offset != offset) return false;
    offset += field.bytes;
  }
  return offset == bytes;
}
static_assert(covers(manifest_fields::kAll, kSegmentBlockBytes));
static_assert(covers(segment_fields::kAll, kSegmentBlockBytes));
static_assert(covers(trailer_fields::kAll, kSegmentBlockBytes));
static_assert(covers(record_fields::kAll, kRecordHeaderBytes));
static_assert(covers(key_space_text_fields::kAll, 8));

}  // namespace quire
