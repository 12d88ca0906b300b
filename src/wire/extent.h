// SPDX-License-Identifier: Apache-2.0
//
// An extent: consecutive pages of one path as one value of a store that many machines share. Its first page's index is
// a multiple of its number of pages, and the name of its last page, which all the others are hashed into, is its own.
//
//     value   [header of page 0]…[header of page n-1][payload of page 0]…[payload of page n-1]
//     key     <prefix>:1:<key space, 16 digits>:<layout, 16 digits>:<n>:<name, 64 digits>
//
// Headers are those of records on disk (segment.h), with kExtentSalt as salt and (i + 1) * kSegmentBlockBytes as the
// offset of the i-th. All payloads have one length. 1 is the version; digits are hexadecimal, n is decimal. Pages of
// other groups are extents of one page, under the name of the history's page that they hang on.
//
// immutable
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "quire/remote_store.h"
#include "quire/result.h"
#include "wire/page_name.h"
#include "wire/segment.h"

namespace quire {

inline constexpr std::uint64_t kExtentSalt = 0x0031746E65747845ULL;  // "Extent1"
inline constexpr std::uint32_t kExtentPagesMax = 1024;
/// Of the prefix of a key, so that there is room for the rest.
inline constexpr std::size_t kExtentPrefixBytesMax = 128;

[[nodiscard]] constexpr std::uint64_t extent_headers_bytes(std::uint32_t page_count) {
  return page_count * kRecordHeaderBytes;
}
[[nodiscard]] constexpr std::uint64_t extent_bytes(std::uint32_t page_count, std::uint64_t page_bytes) {
  return page_count * (kRecordHeaderBytes + page_bytes);
}

/// Pages that follow each other. `out` has extent_headers_bytes(). Where the headers lie is filled in here.
void encode_extent(std::span<const RecordHeader> pages, std::span<std::byte> out);
/// From the first extent_headers_bytes(out.size()) of a value: headers of uncompressed pages of one path, layout and
/// length that follow each other. Says nothing about the payloads.
[[nodiscard]] Status decode_extent(std::span<const std::byte> headers, std::span<RecordHeader> out);

struct ExtentKey {
  std::string_view prefix;
  PageName key_space;
  std::uint64_t layout = 0;
  std::uint32_t page_count = 0;
  PageName name;  ///< of the last page
};
/// The text of a key, in `out`.
[[nodiscard]] std::string_view write_extent_key(const ExtentKey& key, std::span<char, kRemoteKeyBytesMax> out);
/// How the keys of a key space begin; without one, of all.
[[nodiscard]] std::string_view write_key_space_prefix(std::string_view prefix, const PageName& key_space,
                                                      std::span<char, kRemoteKeyBytesMax> out);

}  // namespace quire
