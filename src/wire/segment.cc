// SPDX-License-Identifier: Apache-2.0
#include "wire/segment.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "wire/little_endian.h"
#include "wire/segment_fields.h"

namespace quire {
namespace {

constexpr std::size_t kSegmentIdDigits = 16;

// ── fields ───────────────────────────────────────────────────────────────────────────────────────────────────────────

template <const Field& kField, typename T>
void put(std::span<std::byte> out, T value) {
  static_assert(sizeof(T) == kField.bytes);
  put_number(out.data() + kField.offset, value);
}

template <const Field& kField, std::size_t kBytes>
void put(std::span<std::byte> out, const std::array<std::byte, kBytes>& bytes) {
  static_assert(kBytes == kField.bytes);
  std::ranges::copy(bytes, out.begin() + kField.offset);
}

template <const Field& kField, typename T>
T get(std::span<const std::byte> bytes) {
  static_assert(sizeof(T) == kField.bytes);
  return get_number<T>(bytes.data() + kField.offset);
}

template <const Field& kField, std::size_t kBytes>
std::array<std::byte, kBytes> get_bytes(std::span<const std::byte> bytes) {
  static_assert(kBytes == kField.bytes);
  std::array<std::byte, kBytes> field;
  std::ranges::copy(bytes.subspan(kField.offset, kBytes), field.begin());
  return field;
}

void put_magic(std::span<std::byte> out, std::string_view magic) {
  static_assert(kHeadMagic.offset == 0 && record_fields::kMagic.offset == 0);
  std::memcpy(out.data(), magic.data(), magic.size());
}

bool has_magic(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

template <std::size_t kCount>
bool zeros_are_zero(std::span<const std::byte> bytes, const std::array<Field, kCount>& fields) {
  for (const Field& field : fields) {
    if (field.name != "zeros") continue;
    for (const std::byte byte : bytes.subspan(field.offset, field.bytes)) {
      if (byte != std::byte{0}) return false;
    }
  }
  return true;
}

tl::unexpected<Error> corrupt(std::string_view what, std::string_view why) {
  return fail(ErrorCode::Corrupt, "decoding " + std::string(what) + ": " + std::string(why));
}

// ── heads: what manifests, segment headers and trailers have in common ───────────────────────────────────────────────

struct HeadKind {
  std::string_view what;
  std::string_view magic;
};
constexpr HeadKind kManifestHead{"a manifest", kManifestMagic};
constexpr HeadKind kSegmentHead{"a segment header", kSegmentMagic};
constexpr HeadKind kTrailerHead{"a trailer", kTrailerMagic};

void begin_head(const HeadKind& kind, std::span<std::byte> out, std::uint16_t version) {
  QUIRE_CHECK(out.size() == kSegmentBlockBytes, "a head is a block");
  std::ranges::fill(out, std::byte{0});
  put_magic(out, kind.magic);
  put<kHeadVersion>(out, version);
}

void end_head(std::span<std::byte> out, std::uint64_t seed) {
  put<kHeadChecksum>(out, hash_bytes(out.data(), kHeadChecksum.offset, seed));
}

// The checksum goes before the version: a bit that turned over does not make a file look newer than it is.
template <std::size_t kCount>
Status check_head(const HeadKind& kind, std::span<const std::byte> block, std::uint64_t seed,
                  const std::array<Field, kCount>& fields) {
  if (block.size() != kSegmentBlockBytes) {
    return corrupt(kind.what, std::to_string(block.size()) + " bytes are not a block");
  }
  if (!has_magic(block, kind.magic)) return corrupt(kind.what, "the bytes do not begin as one");
  if (get<kHeadChecksum, std::uint64_t>(block) != hash_bytes(block.data(), kHeadChecksum.offset, seed)) {
    return corrupt(kind.what, "its checksum does not fit");
  }
  const auto version = get<kHeadVersion, std::uint16_t>(block);
  if (version > kSegmentVersion) {
    return fail(ErrorCode::Unsupported, "decoding " + std::string(kind.what) + ": it has version " +
                                            std::to_string(version) + ", and this build reads up to version " +
                                            std::to_string(kSegmentVersion));
  }
  if (version == 0) return corrupt(kind.what, "there is no version 0");
  if (!zeros_are_zero(block, fields)) return corrupt(kind.what, "bytes that must be 0 are not");
  return {};
}

// ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────

// What no record of its kind may say; null when there is nothing of it. The enumerators may be any number.
const char* wrong_in_page(const RecordHeader& header) {
  if (header.compression > Compression::Zstd) return "there is no such compression";
  if (header.name.is_none() || header.parent.is_none() || header.key_space.is_none()) return "a page has no name";
  if (header.payload_bytes == 0 || header.stored_bytes == 0) return "a page has no bytes";
  if (header.payload_bytes > kPayloadBytesMax) return "a page is too large";
  const bool is_smaller = header.stored_bytes < header.payload_bytes;
  if (header.compression == Compression::None ? header.stored_bytes != header.payload_bytes : !is_smaller) {
    return "a page is stored in another length than it has";
  }
  return nullptr;
}

const char* wrong_in_other(const RecordHeader& header) {
  const bool has_name = header.kind == RecordKind::DropPage;
  const bool needs_key_space = header.kind == RecordKind::KeySpace || header.kind == RecordKind::DropKeySpace;
  const bool has_payload = header.kind == RecordKind::KeySpace;
  if (header.compression != Compression::None || header.layout != 0 || header.page_index != 0 ||
      !header.parent.is_none()) {
    return "it has what only pages have";
  }
  if (header.name.is_none() == has_name) return has_name ? "it names no page" : "it names a page";
  if (needs_key_space && header.key_space.is_none()) return "it names no key space";
  if (header.kind == RecordKind::DropAll && !header.key_space.is_none()) return "it names a key space";
  if (header.stored_bytes != header.payload_bytes) return "it is stored in another length than it has";
  if ((header.payload_bytes == 0) == has_payload) return has_payload ? "it has no payload" : "it has a payload";
  if (header.payload_bytes > kPayloadBytesMax) return "its payload is too large";
  if (!has_payload && header.checksum != 0) return "it has a checksum of nothing";
  return nullptr;
}

const char* wrong_in(const RecordHeader& header) {
  switch (header.kind) {
    case RecordKind::Page:
      return wrong_in_page(header);
    case RecordKind::KeySpace:
    case RecordKind::DropKeySpace:
    case RecordKind::DropPage:
    case RecordKind::DropAll:
      return wrong_in_other(header);
  }
  return "there is no such kind";
}

// Whether a record of these bytes lies between the segment's header and `end`. No sum here can be too large for its
// type, given that stored_bytes is at most kPayloadBytesMax.
bool fits(std::uint64_t offset, std::uint64_t stored_bytes, std::uint64_t end) {
  return offset >= kSegmentBlockBytes && offset % kSegmentBlockBytes == 0 && offset <= end &&
         record_bytes(stored_bytes) <= end - offset;
}

std::uint64_t header_checksum(std::span<const std::byte> bytes, std::uint64_t salt) {
  return hash_bytes(bytes.data(), record_fields::kHeaderChecksum.offset, salt);
}

RecordHeader get_record_header(std::span<const std::byte> bytes) {
  using namespace record_fields;
  return {.kind = static_cast<RecordKind>(get<kKind, std::uint8_t>(bytes)),
          .compression = static_cast<Compression>(get<kCompression, std::uint8_t>(bytes)),
          .order = get<kOrder, std::uint64_t>(bytes),
          .offset = get<kOffset, std::uint64_t>(bytes),
          .name = {get_bytes<kName, 32>(bytes)},
          .parent = {get_bytes<kParent, 32>(bytes)},
          .key_space = {get_bytes<kKeySpace, 32>(bytes)},
          .layout = get<kLayout, std::uint64_t>(bytes),
          .page_index = get<kPageIndex, std::uint32_t>(bytes),
          .payload_bytes = get<kPayloadBytes, std::uint64_t>(bytes),
          .stored_bytes = get<kStoredBytes, std::uint64_t>(bytes),
          .checksum = get<kChecksum, std::uint64_t>(bytes),
          .stored_at_ns = static_cast<std::int64_t>(get<kStoredAtNs, std::uint64_t>(bytes))};
}

}  // namespace

// ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────

std::string segment_file_name(std::uint64_t segment_id) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name(kSegmentFilePrefix);
  for (std::size_t i = kSegmentIdDigits; i-- > 0;) name += kDigits[(segment_id >> (4 * i)) & 15U];
  return name;
}

std::optional<std::uint64_t> segment_id_of(std::string_view file_name) {
  if (file_name.size() != kSegmentFilePrefix.size() + kSegmentIdDigits) return std::nullopt;
  const std::string_view digits = file_name.substr(kSegmentFilePrefix.size());
  std::uint64_t id = 0;
  if (std::from_chars(digits.begin(), digits.end(), id, 16).ptr != digits.end()) return std::nullopt;
  // The one name that it has: neither another prefix nor capital letters.
  if (segment_file_name(id) != file_name || id > kSegmentIdMax) return std::nullopt;
  return id;
}

void encode_manifest(const Manifest& manifest, std::span<std::byte> out) {
  using namespace manifest_fields;
  begin_head(kManifestHead, out, manifest.version);
  put<kStoreId>(out, manifest.store_id);
  put<kCreatedAtNs>(out, static_cast<std::uint64_t>(manifest.created_at_ns));
  end_head(out, 0);
}

Result<Manifest> decode_manifest(std::span<const std::byte> block) {
  using namespace manifest_fields;
  QUIRE_TRY(check_head(kManifestHead, block, 0, kAll));
  return Manifest{.store_id = get_bytes<kStoreId, 16>(block),
                  .created_at_ns = static_cast<std::int64_t>(get<kCreatedAtNs, std::uint64_t>(block)),
                  .version = get<kHeadVersion, std::uint16_t>(block)};
}

void encode_segment_header(const SegmentHeader& header, std::span<std::byte> out) {
  using namespace segment_fields;
  begin_head(kSegmentHead, out, header.version);
  put<kStoreId>(out, header.store_id);
  put<kSegmentId>(out, header.segment_id);
  put<kSalt>(out, header.salt);
  end_head(out, 0);
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte> block) {
  using namespace segment_fields;
  QUIRE_TRY(check_head(kSegmentHead, block, 0, kAll));
  return SegmentHeader{.segment_id = get<kSegmentId, std::uint64_t>(block),
                       .salt = get<kSalt, std::uint64_t>(block),
                       .store_id = get_bytes<kStoreId, 16>(block),
                       .version = get<kHeadVersion, std::uint16_t>(block)};
}

// ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────

void encode_record_header(const RecordHeader& header, std::uint64_t salt, std::span<std::byte> out) {
  using namespace record_fields;
  QUIRE_CHECK(out.size() == kRecordHeaderBytes, "a record header has its length");
  const char* const wrong = wrong_in(header);
  QUIRE_CHECK(wrong == nullptr, wrong);
  QUIRE_CHECK(header.offset >= kSegmentBlockBytes && header.offset % kSegmentBlockBytes == 0,
              "a record begins at a block behind the segment's header");
  std::ranges::fill(out, std::byte{0});
  put_magic(out, kRecordMagic);
  put<kKind>(out, static_cast<std::uint8_t>(header.kind));
  put<kCompression>(out, static_cast<std::uint8_t>(header.compression));
  put<kPageIndex>(out, header.page_index);
  put<kOrder>(out, header.order);
  put<kOffset>(out, header.offset);
  put<kLayout>(out, header.layout);
  put<kPayloadBytes>(out, header.payload_bytes);
  put<kStoredBytes>(out, header.stored_bytes);
  put<kChecksum>(out, header.checksum);
  put<kStoredAtNs>(out, static_cast<std::uint64_t>(header.stored_at_ns));
  put<kName>(out, header.name.bytes);
  put<kParent>(out, header.parent.bytes);
  put<kKeySpace>(out, header.key_space.bytes);
  put<kHeaderChecksum>(out, header_checksum(out, salt));
}

Result<RecordHeader> decode_record_header(std::span<const std::byte> bytes, const RecordPlace& place) {
  using namespace record_fields;
  constexpr std::string_view kWhat = "a record header";
  if (bytes.size() < kRecordHeaderBytes) {
    return corrupt(kWhat, std::to_string(bytes.size()) + " bytes are less than one has");
  }
  bytes = bytes.first(kRecordHeaderBytes);
  if (!begins_like_record(bytes)) return corrupt(kWhat, "the bytes do not begin as one");
  if (get<record_fields::kHeaderChecksum, std::uint64_t>(bytes) != header_checksum(bytes, place.salt)) {
    return corrupt(kWhat, "its checksum does not fit");
  }
  if (!zeros_are_zero(bytes, kAll)) return corrupt(kWhat, "bytes that must be 0 are not");
  const RecordHeader header = get_record_header(bytes);
  if (const char* const wrong = wrong_in(header); wrong != nullptr) return corrupt(kWhat, wrong);
  if (header.offset != place.offset) {
    return corrupt(kWhat,
                   "it belongs at " + std::to_string(header.offset) + ", and lies at " + std::to_string(place.offset));
  }
  if (!fits(header.offset, header.stored_bytes, place.segment_bytes)) {
    return corrupt(kWhat, "a record of " + std::to_string(header.stored_bytes) + " bytes at " +
                              std::to_string(header.offset) + " does not lie in the " +
                              std::to_string(place.segment_bytes) + " bytes of the segment");
  }
  return header;
}

bool begins_like_record(std::span<const std::byte> bytes) {
  return has_magic(bytes, kRecordMagic);
}

std::vector<std::byte> encode_key_space_text(const KeySpace& key_space) {
  using namespace key_space_text_fields;
  // The canonical form of a key space ends with its salt: without one, with eight zeros, its length.
  KeySpace without_salt = key_space;
  without_salt.salt.clear();
  const std::string form = without_salt.canonical_form();
  const std::size_t fields_bytes = form.size() - sizeof(std::uint64_t);
  std::vector<std::byte> payload(kHasSalt.bytes + kZeros.bytes + fields_bytes);
  put<kHasSalt>(payload, static_cast<std::uint8_t>(key_space.salt.empty() ? 0 : 1));
  std::memcpy(payload.data() + kHasSalt.bytes + kZeros.bytes, form.data(), fields_bytes);
  return payload;
}

Result<KeySpaceText> decode_key_space_text(std::span<const std::byte> payload) {
  using namespace key_space_text_fields;
  constexpr std::string_view kWhat = "a key space";
  constexpr std::size_t kHeadBytes = kHasSalt.bytes + kZeros.bytes;
  if (payload.size() < kHeadBytes) return corrupt(kWhat, "it ends too early");
  const auto has_salt = get<kHasSalt, std::uint8_t>(payload);
  if (has_salt > 1 || !zeros_are_zero(payload, kAll)) return corrupt(kWhat, "bytes that must be 0 are not");
  KeySpaceText text{.has_salt = has_salt == 1};
  KeySpace& space = text.key_space;
  std::span<const std::byte> rest = payload.subspan(kHeadBytes);
  for (std::string* const field : {&space.model, &space.revision, &space.adapter, &space.element, &space.rope}) {
    if (rest.size() < sizeof(std::uint64_t)) return corrupt(kWhat, "it ends too early");
    const auto length = get_number<std::uint64_t>(rest.data());
    rest = rest.subspan(sizeof(length));
    if (length > rest.size()) return corrupt(kWhat, "a field is longer than the rest of it");
    field->assign(reinterpret_cast<const char*>(rest.data()), length);
    rest = rest.subspan(length);
  }
  if (!rest.empty()) return corrupt(kWhat, std::to_string(rest.size()) + " bytes lie behind it");
  return text;
}

// ── footers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

std::uint64_t footer_bytes(std::uint64_t record_count) {
  const std::uint64_t headers_bytes = record_count * kRecordHeaderBytes;
  return ((headers_bytes + kSegmentBlockBytes - 1) / kSegmentBlockBytes * kSegmentBlockBytes) + kSegmentBlockBytes;
}

void encode_footer(std::span<const RecordHeader> records, const SegmentHeader& segment, std::uint64_t footer_offset,
                   std::span<std::byte> out) {
  using namespace trailer_fields;
  QUIRE_CHECK(out.size() == footer_bytes(records.size()), "a footer has its length");
  QUIRE_CHECK(footer_offset % kSegmentBlockBytes == 0, "a footer begins at a block");
  std::ranges::fill(out, std::byte{0});
  std::uint64_t end = kSegmentBlockBytes;
  for (std::size_t i = 0; i < records.size(); ++i) {
    QUIRE_CHECK(records[i].offset >= end, "records are sorted and do not overlap");
    end = records[i].offset + record_bytes(records[i].stored_bytes);
    encode_record_header(records[i], segment.salt, out.subspan(i * kRecordHeaderBytes, kRecordHeaderBytes));
  }
  QUIRE_CHECK(end <= footer_offset, "a footer lies behind the records");
  const std::span<std::byte> trailer = out.last(kSegmentBlockBytes);
  begin_head(kTrailerHead, trailer, segment.version);
  put<kSegmentId>(trailer, segment.segment_id);
  put<kFooterOffset>(trailer, footer_offset);
  put<kRecordCount>(trailer, std::uint64_t{records.size()});
  end_head(trailer, segment.salt);
}

Result<Trailer> decode_trailer(std::span<const std::byte> block, const SegmentHeader& segment,
                               std::uint64_t file_bytes) {
  using namespace trailer_fields;
  QUIRE_TRY(check_head(kTrailerHead, block, segment.salt, kAll));
  if (get<kSegmentId, std::uint64_t>(block) != segment.segment_id) {
    return corrupt(kTrailerHead.what, "it belongs to another segment");
  }
  if (get<kHeadVersion, std::uint16_t>(block) != segment.version) {
    return corrupt(kTrailerHead.what, "it has another version than its segment");
  }
  const Trailer trailer{.footer_offset = get<kFooterOffset, std::uint64_t>(block),
                        .record_count = get<kRecordCount, std::uint64_t>(block)};
  // Every record takes a block at least, which bounds their number before it is multiplied with anything.
  const bool is_inside = trailer.footer_offset >= kSegmentBlockBytes && trailer.footer_offset < file_bytes &&
                         trailer.footer_offset % kSegmentBlockBytes == 0 &&
                         trailer.record_count <= trailer.footer_offset / kSegmentBlockBytes - 1 &&
                         footer_bytes(trailer.record_count) == file_bytes - trailer.footer_offset;
  if (!is_inside) {
    return corrupt(kTrailerHead.what, "a footer of " + std::to_string(trailer.record_count) + " records at " +
                                          std::to_string(trailer.footer_offset) + " does not end with a file of " +
                                          std::to_string(file_bytes) + " bytes");
  }
  return trailer;
}

Result<std::vector<RecordHeader>> decode_footer(std::span<const std::byte> bytes, const SegmentHeader& segment,
                                                const Trailer& trailer) {
  constexpr std::string_view kWhat = "a footer";
  if (trailer.record_count > bytes.size() / kRecordHeaderBytes || bytes.size() != footer_bytes(trailer.record_count)) {
    return corrupt(kWhat, std::to_string(bytes.size()) + " bytes are not those of " +
                              std::to_string(trailer.record_count) + " records");
  }
  const std::size_t headers_bytes = trailer.record_count * kRecordHeaderBytes;
  std::vector<RecordHeader> records;
  records.reserve(trailer.record_count);
  std::uint64_t end = kSegmentBlockBytes;
  for (std::size_t at = 0; at < headers_bytes; at += kRecordHeaderBytes) {
    const std::span<const std::byte> one = bytes.subspan(at, kRecordHeaderBytes);
    // A record says itself where it lies; that it can lie there is checked like everything else.
    const RecordPlace place{.salt = segment.salt,
                            .offset = get<record_fields::kOffset, std::uint64_t>(one),
                            .segment_bytes = trailer.footer_offset};
    const Result<RecordHeader> record = decode_record_header(one, place);
    if (!record.has_value()) {
      return corrupt(kWhat, "record " + std::to_string(records.size()) + ": " + record.error().message);
    }
    if (record->offset < end) return corrupt(kWhat, "record " + std::to_string(records.size()) + " is out of order");
    end = record->offset + record_bytes(record->stored_bytes);
    records.push_back(*record);
  }
  for (const std::byte byte : bytes.subspan(headers_bytes, bytes.size() - kSegmentBlockBytes - headers_bytes)) {
    if (byte != std::byte{0}) return corrupt(kWhat, "bytes that must be 0 are not");
  }
  return records;
}

}  // namespace quire
