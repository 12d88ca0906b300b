// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/segment_target.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "wire/extent.h"
#include "wire/little_endian.h"
#include "wire/segment.h"
#include "wire/segment_fields.h"

namespace quire::testing {
namespace {

constexpr SegmentHeader kSegment{.segment_id = 7, .salt = 99, .store_id = {}};
constexpr std::uint64_t kFooterOffset = std::uint64_t{1} << 20U;

// Exactly as long as they are, on the heap, so that the address sanitizer sees the first byte behind them.
class Bytes {
 public:
  explicit Bytes(std::size_t count) : bytes_(std::make_unique<std::byte[]>(count)), count_(count) {}
  Bytes(std::span<const std::byte> source, std::size_t count) : Bytes(count) {
    std::ranges::copy(source.first(std::min(source.size(), count)), bytes_.get());
  }
  [[nodiscard]] std::span<std::byte> all() const { return {bytes_.get(), count_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t count_;
};

void seal(std::span<std::byte> bytes, const Field& checksum, std::uint64_t seed) {
  if (bytes.size() < checksum.offset + checksum.bytes) return;
  put_number(bytes.data() + checksum.offset, hash_bytes(bytes.data(), checksum.offset, seed));
}

std::string differs(std::span<const std::byte> bytes, std::span<const std::byte> again, const char* what) {
  return std::ranges::equal(bytes, again) ? "" : std::string(what) + " encodes to other bytes";
}

InputReport try_manifest(std::span<std::byte> block, bool is_sealed) {
  if (is_sealed) seal(block, kHeadChecksum, 0);
  const auto manifest = decode_manifest(block);
  if (!manifest.has_value()) return {};
  const Bytes again(kSegmentBlockBytes);
  encode_manifest(*manifest, again.all());
  return {.is_taken = true, .wrong = differs(block, again.all(), "a manifest")};
}

InputReport try_segment_header(std::span<std::byte> block, bool is_sealed) {
  if (is_sealed) seal(block, kHeadChecksum, 0);
  const auto header = decode_segment_header(block);
  if (!header.has_value()) return {};
  const Bytes again(kSegmentBlockBytes);
  encode_segment_header(*header, again.all());
  return {.is_taken = true, .wrong = differs(block, again.all(), "a segment header")};
}

std::string wrong_in(const RecordHeader& record, const RecordPlace& place, std::span<const std::byte> bytes) {
  if (record.offset != place.offset) return "a record was taken in another place";
  if (record.stored_bytes > kPayloadBytesMax || record.payload_bytes > kPayloadBytesMax) return "a record is too large";
  if (record.offset + record_bytes(record.stored_bytes) > place.segment_bytes) return "a record lies outside";
  const Bytes again(kRecordHeaderBytes);
  encode_record_header(record, place.salt, again.all());
  return differs(bytes.first(kRecordHeaderBytes), again.all(), "a record header");
}

InputReport try_record_header(std::span<std::byte> bytes, bool is_sealed) {
  using record_fields::kOffset;
  if (is_sealed) seal(bytes, record_fields::kHeaderChecksum, kSegment.salt);
  RecordPlace place{.salt = kSegment.salt, .offset = kSegmentBlockBytes, .segment_bytes = kFooterOffset};
  // Every place there is, so that not all but one are refused for lying elsewhere.
  if (bytes.size() >= kRecordHeaderBytes) place.offset = get_number<std::uint64_t>(bytes.data() + kOffset.offset);
  const auto record = decode_record_header(bytes, place);
  if (!record.has_value()) return {};
  return {.is_taken = true, .wrong = wrong_in(*record, place, bytes)};
}

InputReport try_trailer(std::span<std::byte> block, bool is_sealed) {
  if (is_sealed) seal(block, kHeadChecksum, kSegment.salt);
  const std::uint64_t file_bytes = kFooterOffset + footer_bytes(3);
  const auto trailer = decode_trailer(block, kSegment, file_bytes);
  if (!trailer.has_value()) return {};
  const bool is_right = trailer->footer_offset + footer_bytes(trailer->record_count) == file_bytes;
  return {.is_taken = true, .wrong = is_right ? "" : "a trailer does not end with its file"};
}

// The input is a list of record headers.
InputReport try_footer(std::span<const std::byte> input, bool is_sealed) {
  const std::size_t count = input.size() / kRecordHeaderBytes;
  const Bytes footer(input.first(count * kRecordHeaderBytes), footer_bytes(count));
  for (std::size_t i = 0; is_sealed && i < count; ++i) {
    seal(footer.all().subspan(i * kRecordHeaderBytes, kRecordHeaderBytes), record_fields::kHeaderChecksum,
         kSegment.salt);
  }
  const auto records = decode_footer(footer.all(), kSegment, {.footer_offset = kFooterOffset, .record_count = count});
  if (!records.has_value()) return {};
  const Bytes again(footer.all().size());
  encode_footer(*records, kSegment, kFooterOffset, again.all());
  const std::size_t headers_bytes = again.all().size() - kSegmentBlockBytes;
  return {.is_taken = count > 0,
          .wrong = differs(footer.all().first(headers_bytes), again.all().first(headers_bytes), "a footer")};
}

InputReport try_key_space_text(std::span<const std::byte> payload) {
  const auto text = decode_key_space_text(payload);
  if (!text.has_value()) return {};
  KeySpace key_space = text->key_space;
  if (text->has_salt) key_space.salt = "any";
  return {.is_taken = true, .wrong = differs(payload, encode_key_space_text(key_space), "a key space")};
}

// The input is a list of record headers.
InputReport try_extent(std::span<const std::byte> input, bool is_sealed) {
  const std::size_t count = input.size() / kRecordHeaderBytes;
  const Bytes headers(input, count * kRecordHeaderBytes);
  for (std::size_t i = 0; is_sealed && i < count; ++i) {
    seal(headers.all().subspan(i * kRecordHeaderBytes, kRecordHeaderBytes), record_fields::kHeaderChecksum,
         kExtentSalt);
  }
  std::vector<RecordHeader> pages(count);
  if (!decode_extent(headers.all(), pages)) return {};
  const Bytes again(headers.all().size());
  encode_extent(pages, again.all());
  return {.is_taken = count > 0, .wrong = differs(headers.all(), again.all(), "an extent")};
}

// As a store opens a segment: by its footer, and where that is none, record by record and block by block.
InputReport try_file(std::span<const std::byte> input, bool is_sealed) {
  const std::size_t block_count = (input.size() + kBlockInputBytes - 1) / kBlockInputBytes;
  if (block_count == 0) return {};
  const Bytes file(block_count * kSegmentBlockBytes);
  const auto block = [&](std::size_t i) { return file.all().subspan(i * kSegmentBlockBytes, kSegmentBlockBytes); };
  for (std::size_t i = 0; i < block_count; ++i) {
    const auto part = input.subspan(i * kBlockInputBytes);
    std::ranges::copy(part.first(std::min(part.size(), kBlockInputBytes)), block(i).begin());
  }
  if (is_sealed) seal(block(0), kHeadChecksum, 0);
  const auto header = decode_segment_header(block(0));
  if (!header.has_value()) return {};
  for (std::size_t i = 1; is_sealed && i < block_count; ++i) {
    seal(block(i), begins_like_record(block(i)) ? record_fields::kHeaderChecksum : kHeadChecksum, header->salt);
  }

  InputReport report{.is_taken = true};
  const std::uint64_t file_bytes = file.all().size();
  const auto trailer = decode_trailer(block(block_count - 1), *header, file_bytes);
  if (trailer.has_value() && trailer->footer_offset < file_bytes) {
    const auto records = decode_footer(file.all().subspan(trailer->footer_offset), *header, *trailer);
    if (records.has_value() && records->size() != trailer->record_count) report.wrong = "a footer is not complete";
    if (records.has_value()) return report;
  }
  for (std::uint64_t offset = kSegmentBlockBytes; offset < file_bytes && report.wrong.empty();) {
    const RecordPlace place{.salt = header->salt, .offset = offset, .segment_bytes = file_bytes};
    const auto record = decode_record_header(file.all().subspan(offset), place);
    if (record.has_value()) report.wrong = wrong_in(*record, place, file.all().subspan(offset));
    offset += record.has_value() ? record_bytes(record->stored_bytes) : kSegmentBlockBytes;
  }
  return report;
}

}  // namespace

InputReport try_segment_input(std::span<const std::byte> input) {
  if (input.size() < 2) return {};
  const auto kind = static_cast<SegmentInput>(std::to_integer<std::uint8_t>(input[0]) % kSegmentInputCount);
  const bool is_sealed = (input[1] & std::byte{1}) != std::byte{0};
  const std::span<const std::byte> rest = input.subspan(2);
  const Bytes block(rest, kSegmentBlockBytes);
  const Bytes exact(rest, rest.size());
  switch (kind) {
    case SegmentInput::Manifest:
      return try_manifest(block.all(), is_sealed);
    case SegmentInput::SegmentHeader:
      return try_segment_header(block.all(), is_sealed);
    case SegmentInput::RecordHeader:
      return try_record_header(exact.all(), is_sealed);
    case SegmentInput::Trailer:
      return try_trailer(block.all(), is_sealed);
    case SegmentInput::Footer:
      return try_footer(rest, is_sealed);
    case SegmentInput::KeySpaceText:
      return try_key_space_text(exact.all());
    case SegmentInput::File:
      return try_file(rest, is_sealed);
    case SegmentInput::Extent:
      return try_extent(rest, is_sealed);
  }
  return {};
}

}  // namespace quire::testing
