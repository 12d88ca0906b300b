// SPDX-License-Identifier: Apache-2.0
//
// Whether the payload of a record is what its header says, and if not, why.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "store/page_compressor.h"
#include "wire/segment.h"

namespace quire {

/// No page of a file store is larger.
inline constexpr std::uint64_t kFilePageBytesMax = std::uint64_t{1} << 30U;

/// Of a page's bytes; see copy_checked.h.
[[nodiscard]] std::uint64_t page_checksum(std::span<const std::byte> page);

/// Empty when the payload, as stored, is what the header says; else what is wrong with it. `scratch` holds it when it
/// was compressed.
[[nodiscard]] std::string_view payload_fault(const RecordHeader& header, std::span<const std::byte> stored,
                                             PageCompressor& compressor, std::vector<std::byte>& scratch);

}  // namespace quire
