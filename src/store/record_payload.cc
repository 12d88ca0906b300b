// SPDX-License-Identifier: Apache-2.0
#include "store/record_payload.h"

#include "kernels/copy_checked.h"

namespace quire {

std::uint64_t page_checksum(std::span<const std::byte> page) {
  return best_checked_copier().sum({.source = page.data(), .bytes = page.size()}).finish(page.size());
}

std::string_view payload_fault(const RecordHeader& header, std::span<const std::byte> stored,
                               PageCompressor& compressor, std::vector<std::byte>& scratch) {
  std::span<const std::byte> payload = stored;
  if (header.compression == Compression::Zstd) {
    if (header.payload_bytes > kFilePageBytesMax) return "its payload would be larger than any page";
    if (scratch.size() < header.payload_bytes) scratch.resize(header.payload_bytes);
    const std::span<std::byte> page = std::span(scratch).first(header.payload_bytes);
    if (!compressor.decompress(stored, page)) return "its payload cannot be decompressed";
    payload = page;
  } else if (stored.size() != header.payload_bytes) {
    return "its payload has another length than its header says";
  }
  return page_checksum(payload) == header.checksum ? "" : "its payload does not have its checksum";
}

}  // namespace quire
