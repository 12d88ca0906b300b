// SPDX-License-Identifier: Apache-2.0
//
// write_segments <directory>: writes a store's files and extents with the encoders, good ones first and then damaged
// copies, and lists what the decoders find in them. read_segment.py does the same without any of this code.
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "kernels/copy_checked.h"
#include "testing/seeded_run.h"
#include "wire/extent.h"
#include "wire/little_endian.h"
#include "wire/page_name.h"
#include "wire/segment.h"
#include "wire/segment_fields.h"

namespace quire {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Manifest kManifest{.store_id = {std::byte{1}, std::byte{2}, std::byte{3}},
                             .created_at_ns = 1700000000000000001};
constexpr std::uint64_t kDamagedCount = 1500;
constexpr std::uint32_t kExtentCount = 500;

std::uint64_t checksum_of(std::span<const std::byte> payload) {
  return best_checked_copier().sum({.source = payload.data(), .bytes = payload.size()}).finish(payload.size());
}

// ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

class SegmentWriter {
 public:
  explicit SegmentWriter(std::uint64_t id)
      : header_{.segment_id = id, .salt = mix64(id), .store_id = kManifest.store_id}, bytes_(kSegmentBlockBytes) {
    encode_segment_header(header_, bytes_);
  }

  void add(RecordHeader record, const Bytes& payload) {
    record.order = next_order_++;
    record.offset = bytes_.size();
    record.payload_bytes = payload.size();
    record.checksum = payload.empty() ? 0 : checksum_of(payload);
    Bytes stored = payload;
    if (record.compression == Compression::Zstd) {
      stored.resize(ZSTD_compressBound(payload.size()));
      stored.resize(ZSTD_compress(stored.data(), stored.size(), payload.data(), payload.size(), 1));
    }
    record.stored_bytes = stored.size();
    bytes_.resize(bytes_.size() + record_bytes(stored.size()));
    encode_record_header(record, header_.salt, std::span(bytes_).subspan(record.offset, kRecordHeaderBytes));
    std::ranges::copy(stored, bytes_.begin() + static_cast<std::ptrdiff_t>(record.offset + kRecordHeaderBytes));
    records_.push_back(record);
  }

  [[nodiscard]] Bytes open() const { return bytes_; }
  [[nodiscard]] Bytes sealed() const {
    Bytes bytes = bytes_;
    bytes.resize(bytes.size() + footer_bytes(records_.size()));
    encode_footer(records_, header_, bytes_.size(), std::span(bytes).subspan(bytes_.size()));
    return bytes;
  }

 private:
  static inline std::uint64_t next_order_ = 1;
  SegmentHeader header_;
  Bytes bytes_;
  std::vector<RecordHeader> records_;
};

// One record of every kind, and payloads of odd lengths: four pages of a prompt, with an item over positions 20 to 40.
SegmentWriter some_segment(std::uint64_t id) {
  const KeySpace key_space{.model = "model", .revision = "2", .element = "bf16", .rope = "yarn", .salt = "secret"};
  const PageName space = key_space_name(key_space);
  std::array<TokenId, 64> tokens;
  std::iota(tokens.begin(), tokens.end(), 0);
  ExtraKey item{.begin = 20, .end = 40};
  item.item.fill(7);
  std::array<PageName, 4> names;
  const PageName root = root_name(space, 16);
  name_pages({.parent = root, .page_tokens = 16, .tokens = tokens, .extra_keys = std::span(&item, 1)}, names);

  SegmentWriter writer(id);
  writer.add({.kind = RecordKind::KeySpace, .key_space = space, .stored_at_ns = 5}, encode_key_space_text(key_space));
  constexpr std::array<std::size_t, 4> kLengths = {1, 3904, 3905, 1030};
  testing::Random random(id);
  for (std::uint32_t i = 0; i < 4; ++i) {
    Bytes payload(kLengths[i]);
    const bool is_compressed = i == 1;
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random.below(is_compressed ? 2 : 256));
    writer.add({.compression = is_compressed ? Compression::Zstd : Compression::None,
                .name = names[i],
                .parent = i == 0 ? root : names[i - 1],
                .key_space = space,
                .layout = mix64(i),
                .page_index = i,
                .stored_at_ns = -std::int64_t{i}},
               payload);
  }
  writer.add({.kind = RecordKind::DropPage, .name = names[3]}, {});
  writer.add({.kind = RecordKind::DropKeySpace, .key_space = space}, {});
  writer.add({.kind = RecordKind::DropAll}, {});
  return writer;
}

// ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────

void seal(std::span<std::byte> bytes, const Field& checksum, std::uint64_t seed) {
  put_number(bytes.data() + checksum.offset, hash_bytes(bytes.data(), checksum.offset, seed));
}

// Changes a field of a header in the block, mostly to a number that could be meant, and mostly with a checksum that
// fits, since otherwise nothing but checksums would be compared.
void damage_header(std::span<std::byte> header, std::span<const Field> fields, std::uint64_t seed,
                   testing::Random& random) {
  constexpr std::array<std::uint64_t, 13> kNumbers = {
      0, 1, 2, 3, 4, 5, 4096, 8192, 65536, std::uint64_t{1} << 32U, std::uint64_t{1} << 63U, ~std::uint64_t{0}, 4100};
  const Field& field = fields[random.below(static_cast<std::uint32_t>(fields.size()))];
  const std::span<std::byte> place = header.subspan(field.offset, field.bytes);
  if (random.below(3) == 0) {
    place[random.below(static_cast<std::uint32_t>(place.size()))] ^= std::byte{1} << random.below(8);
  } else {
    const std::uint64_t number = kNumbers[random.below(kNumbers.size())];
    for (std::size_t i = 0; i < place.size(); ++i) {
      place[i] = i < 8 ? static_cast<std::byte>(number >> (8 * i)) : std::byte{0};
    }
  }
  if (random.below(5) == 0) return;
  const Field& checksum = header.size() == kRecordHeaderBytes ? record_fields::kHeaderChecksum : kHeadChecksum;
  seal(header, checksum, seed);
}

void damage(Bytes& file, std::uint64_t salt, testing::Random& random) {
  const auto block_count = static_cast<std::uint32_t>(file.size() / kSegmentBlockBytes);
  const auto block = [&](std::size_t i) { return std::span(file).subspan(i * kSegmentBlockBytes, kSegmentBlockBytes); };
  switch (random.below(9)) {
    case 0:
      damage_header(block(0), segment_fields::kAll, 0, random);
      break;
    case 1:
      damage_header(block(block_count - 1), trailer_fields::kAll, salt, random);
      break;
    case 2:
    case 3:  // a record in the footer, which is the block before the trailer
      damage_header(block(block_count - 2).subspan(kRecordHeaderBytes * random.below(9), kRecordHeaderBytes),
                    record_fields::kAll, salt, random);
      break;
    case 4:
    case 5:
    case 6: {  // a record where it lies, in a file without a trailer: the scan finds it
      block(block_count - 1)[0] = std::byte{0};
      std::uint32_t i = 1 + random.below(block_count - 1);
      while (i + 1 < block_count && !begins_like_record(block(i))) ++i;
      damage_header(block(i).first(kRecordHeaderBytes), record_fields::kAll, salt, random);
      break;
    }
    case 7:
      file.resize(random.below(static_cast<std::uint32_t>(file.size())));
      break;
    default:
      file[random.below(static_cast<std::uint32_t>(file.size()))] ^= std::byte{1} << random.below(8);
      break;
  }
}

// ── listing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<std::size_t>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string verdict_on(const RecordHeader& record, std::span<const std::byte> payload) {
  if (record.compression == Compression::Zstd) return "compressed";
  if (!payload.empty() && checksum_of(payload) != record.checksum) return "damaged";
  if (record.kind != RecordKind::KeySpace) return "good";
  const auto text = decode_key_space_text(payload);
  if (!text.has_value()) return "good but no key space";
  const KeySpace& space = text->key_space;
  std::string verdict = "good salt " + std::to_string(text->has_salt ? 1 : 0);
  for (const std::string* const field : {&space.model, &space.revision, &space.adapter, &space.element, &space.rope}) {
    verdict += ' ' + (field->empty() ? "-" : hex(std::as_bytes(std::span(*field))));
  }
  return verdict;
}

void list(const RecordHeader& record, std::span<const std::byte> file) {
  const auto number = [](auto value) { return std::to_string(value); };
  const std::array<std::pair<const char*, std::string>, 13> fields = {{
      {"kind", number(static_cast<int>(record.kind))},
      {"compression", number(static_cast<int>(record.compression))},
      {"page_index", number(record.page_index)},
      {"order", number(record.order)},
      {"offset", number(record.offset)},
      {"layout", number(record.layout)},
      {"payload_bytes", number(record.payload_bytes)},
      {"stored_bytes", number(record.stored_bytes)},
      {"checksum", number(record.checksum)},
      {"stored_at_ns", number(record.stored_at_ns)},
      {"name", to_hex(record.name)},
      {"parent", to_hex(record.parent)},
      {"key_space", to_hex(record.key_space)},
  }};
  std::string line = " ";
  for (const auto& [name, value] : fields) line += std::string(" ") + name + " " + value;
  const auto payload = file.subspan(record.offset + kRecordHeaderBytes, record.stored_bytes);
  std::printf("%s %s\n", line.c_str(), verdict_on(record, payload).c_str());
}

Result<std::vector<RecordHeader>> read_footer(std::span<const std::byte> file, const SegmentHeader& header) {
  if (file.size() < 2 * kSegmentBlockBytes) return fail(ErrorCode::Corrupt, "too short for a trailer");
  const auto trailer = decode_trailer(file.last(kSegmentBlockBytes), header, file.size());
  if (!trailer.has_value()) return tl::unexpected(trailer.error());
  return decode_footer(file.subspan(trailer->footer_offset), header, *trailer);
}

std::vector<RecordHeader> scan(std::span<const std::byte> file, const SegmentHeader& header) {
  std::vector<RecordHeader> records;
  for (std::uint64_t offset = kSegmentBlockBytes; offset < file.size();) {
    const auto record = decode_record_header(file.subspan(offset),
                                             {.salt = header.salt, .offset = offset, .segment_bytes = file.size()});
    if (record.has_value()) records.push_back(*record);
    offset += record.has_value() ? record_bytes(record->stored_bytes) : kSegmentBlockBytes;
  }
  return records;
}

void list(std::uint64_t id, std::span<const std::byte> file) {
  const auto header = decode_segment_header(file.first(std::min<std::size_t>(file.size(), kSegmentBlockBytes)));
  const bool is_ours = header.has_value() && header->segment_id == id && header->store_id == kManifest.store_id;
  std::printf("segment %llu: ", static_cast<unsigned long long>(id));
  if (!is_ours) {
    const bool is_newer = !header.has_value() && header.error().code == ErrorCode::Unsupported;
    std::printf("%s\n", is_newer ? "unsupported" : "corrupt");
    return;
  }
  const auto records = read_footer(file, *header);
  std::printf("%s\n", records.has_value() ? "sealed" : "open");
  for (const RecordHeader& record : records.has_value() ? *records : scan(file, *header)) list(record, file);
}

// ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────

bool write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return file.flush().good();
}

bool write_store(const std::filesystem::path& directory) {
  std::array<std::byte, kSegmentBlockBytes> manifest;
  encode_manifest(kManifest, manifest);
  bool is_written = write_file(directory / kManifestFileName, manifest);
  std::printf("store %s created_at_ns %lld\n", hex(kManifest.store_id).c_str(),
              static_cast<long long>(kManifest.created_at_ns));
  const auto add = [&](std::uint64_t id, std::span<const std::byte> file) {
    is_written = is_written && write_file(directory / segment_file_name(id), file);
    list(id, file);
  };
  add(1, some_segment(1).sealed());
  add(2, some_segment(2).open());
  add(3, SegmentWriter(3).sealed());
  add(4, SegmentWriter(4).open());
  for (std::uint64_t id = 5; id < 5 + kDamagedCount; ++id) {
    testing::Random random(id);
    Bytes file = some_segment(id).sealed();
    for (std::uint32_t i = 0; i <= random.below(2); ++i) {
      if (file.size() >= 8 * kSegmentBlockBytes) damage(file, mix64(id), random);
    }
    add(id, file);
  }
  return is_written;
}

// ── extents ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Bytes some_extent(std::uint32_t page_count, testing::Random& random) {
  const std::uint64_t page_bytes = 1 + random.below(300);
  std::vector<RecordHeader> pages(page_count);
  Bytes value(extent_bytes(page_count, page_bytes));
  PageName parent = key_space_name(KeySpace{.model = "parent"});
  for (std::uint32_t i = 0; i < page_count; ++i) {
    const std::span<std::byte> payload =
        std::span(value).subspan(extent_headers_bytes(page_count) + (i * page_bytes), page_bytes);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random.below(256));
    pages[i] = {.name = key_space_name(KeySpace{.model = std::to_string(random.next())}),
                .parent = parent,
                .key_space = key_space_name(KeySpace{}),
                .layout = 0x1234'5678'9abc'def0U,
                .page_index = (7 * page_count) + i,
                .payload_bytes = page_bytes,
                .stored_bytes = page_bytes,
                .checksum = checksum_of(payload),
                .stored_at_ns = 5};
    parent = pages[i].name;
  }
  encode_extent(pages, std::span(value).first(extent_headers_bytes(page_count)));
  return value;
}

void damage_extent(Bytes& value, std::uint32_t page_count, testing::Random& random) {
  const std::span<std::byte> header =
      std::span(value).subspan(random.below(page_count) * kRecordHeaderBytes, kRecordHeaderBytes);
  switch (random.below(4)) {
    case 0:
      damage_header(header, record_fields::kAll, kExtentSalt, random);
      break;
    case 1:
      value[random.below(static_cast<std::uint32_t>(value.size()))] ^= std::byte{1} << random.below(8);
      break;
    case 2: {  // One field, sealed as if somebody meant it: index, offset, layout, name, parent or key space.
      constexpr std::array<std::size_t, 7> kPlaces = {8, 12, 24, 32, 72, 104, 136};
      header[kPlaces[random.below(kPlaces.size())]] ^= std::byte{1} << random.below(3);
      seal(header, record_fields::kHeaderChecksum, kExtentSalt);
      break;
    }
    default:
      value.resize(random.below(static_cast<std::uint32_t>(value.size() + 9)));
      break;
  }
}

void list_extent(std::uint32_t id, std::uint32_t page_count, std::span<const std::byte> value) {
  std::vector<RecordHeader> pages(page_count);
  const Status status = decode_extent(value, pages);
  if (!status || value.size() != extent_bytes(page_count, pages[0].payload_bytes)) {
    std::printf("extent %u: refused\n", id);
    return;
  }
  std::array<char, kRemoteKeyBytesMax> room;
  const ExtentKey key{.prefix = "quire",
                      .key_space = pages[0].key_space,
                      .layout = pages[0].layout,
                      .page_count = page_count,
                      .name = pages.back().name};
  std::printf("extent %u: %s\n", id, std::string(write_extent_key(key, room)).c_str());
  for (std::uint32_t i = 0; i < page_count; ++i) {
    const auto payload =
        value.subspan(extent_headers_bytes(page_count) + (i * pages[i].payload_bytes), pages[i].payload_bytes);
    std::printf("  page %u %s\n", pages[i].page_index,
                checksum_of(payload) == pages[i].checksum ? "arrives" : "is not what it was");
  }
}

bool write_extents(const std::filesystem::path& directory) {
  bool is_written = true;
  for (std::uint32_t id = 1000; id < 1000 + kExtentCount; ++id) {
    testing::Random random(id);
    const std::uint32_t page_count = 1 + random.below(4);
    Bytes value = some_extent(page_count, random);
    if (id >= 1010) damage_extent(value, page_count, random);
    const std::string name = "extent-" + std::to_string(id) + "-of-" + std::to_string(page_count);
    is_written = is_written && write_file(directory / name, value);
    list_extent(id, page_count, value);
  }
  return is_written;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_segments <directory>\n");
    return 2;
  }
  return quire::write_store(argv[1]) && quire::write_extents(argv[1]) ? 0 : 1;
}
