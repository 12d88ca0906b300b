// SPDX-License-Identifier: Apache-2.0
//
// Foreign bytes for the decoders of wire/segment.h and wire/extent.h. The first byte of an input says which decoder,
// the second how: bit 0 seals the checksums, so that the bytes behind them are looked at; the rest becomes a block, a
// header, a footer or a whole file. Whatever the bytes are: an error, or something that encodes to the same bytes.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace quire::testing {

enum class SegmentInput : std::uint8_t {
  Manifest,
  SegmentHeader,
  RecordHeader,
  Trailer,
  Footer,
  KeySpaceText,
  File,
  Extent,
};
inline constexpr std::uint8_t kSegmentInputCount = 8;
/// Of a File: this many bytes of the input begin each block, and zeros follow.
inline constexpr std::size_t kBlockInputBytes = 192;

struct InputReport {
  bool is_taken = false;  ///< something was decoded
  std::string wrong;      ///< empty, or which rule was broken
};
[[nodiscard]] InputReport try_segment_input(std::span<const std::byte> input);

}  // namespace quire::testing
