// SPDX-License-Identifier: Apache-2.0
//
// What a store has. All record headers are collected first, because what a page is worth is decided by others: a newer
// record of its name, or a tombstone, which may lie in any segment.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "quire/disk_store.h"
#include "store/record_payload.h"
#include "store/store_reader.h"

namespace quire {
namespace {

constexpr TimeNs kSecondNs = 1'000'000'000;
constexpr std::array<TimeNs, 8> kAgeLimits = {
    60 * kSecondNs,     600 * kSecondNs,     3'600 * kSecondNs,     21'600 * kSecondNs,
    86'400 * kSecondNs, 604'800 * kSecondNs, 2'592'000 * kSecondNs, std::numeric_limits<TimeNs>::max()};

/// A page record, with what is needed to judge it.
struct FoundPage {
  PageName name;
  std::uint64_t layout = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t order = 0;
  TimeNs stored_at_ns = 0;
  std::uint32_t key_space = 0;  ///< number
  std::uint32_t segment = 0;    ///< number
  bool is_compressed = false;
};

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    text += kDigits[value >> 4U];
    text += kDigits[value & 15U];
  }
  return text;
}

class Inspection {
 public:
  explicit Inspection(const StoreReader& reader) : reader_(reader) {
    report_.store_id = hex(reader.manifest().store_id);
    report_.created_at_ns = reader.manifest().created_at_ns;
    report_.directories = reader.directories();
  }

  void add_segment(const SegmentFile& file);
  DiskStoreReport finish(TimeNs now_ns);

 private:
  struct KeySpaceFound {
    DiskKeySpaceReport report;
    std::uint64_t dropped_before = 0;  ///< pages with a lower order are gone
  };

  std::uint32_t key_space_number(const PageName& name);
  void add_record(const RecordHeader& record, SegmentBytes& bytes, std::uint32_t segment);
  void add_live(const FoundPage& page, TimeNs now_ns);

  const StoreReader& reader_;
  DiskStoreReport report_;
  std::map<PageName, std::uint32_t> key_space_numbers_;
  std::vector<KeySpaceFound> key_spaces_;
  std::vector<FoundPage> pages_;
  std::map<PageName, std::uint64_t> dropped_pages_;  // those with a lower order are gone
  std::uint64_t all_dropped_before_ = 0;             // all pages with a lower order are
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> layouts_;
  PageCompressor compressor_;
  std::vector<std::byte> scratch_;
};

std::uint32_t Inspection::key_space_number(const PageName& name) {
  const auto [entry, is_new] = key_space_numbers_.try_emplace(name, static_cast<std::uint32_t>(key_spaces_.size()));
  if (is_new) key_spaces_.push_back({.report = {.name = to_hex(name)}});
  return entry->second;
}

void Inspection::add_segment(const SegmentFile& file) {
  DiskSegmentReport segment{.directory_index = file.directory_index, .file = file.name, .file_bytes = file.bytes};
  Result<std::optional<SegmentBytes>> opened = reader_.open_segment(file);
  Result<SegmentContents> contents = fail(ErrorCode::Io, "");
  SegmentBytes* bytes = nullptr;
  if (opened) {
    std::optional<SegmentBytes>& found = *opened;
    if (!found) return;  // reclaimed since the directory was listed
    bytes = &*found;
    segment.file_bytes = bytes->size();
    contents = reader_.read_contents(file, *bytes);
  } else {
    contents = tl::unexpected<Error>(opened.error());
  }
  const auto number = static_cast<std::uint32_t>(report_.segments.size());
  report_.file_bytes += segment.file_bytes;
  if (!contents) {
    segment.state = DiskSegmentState::Damaged;
    segment.why = contents.error().message;
  } else {
    segment.state = contents->state;
    segment.why = contents->why;
    segment.torn_count = contents->torn.size();
  }
  const bool is_lost = contents && !contents->is_readable && contents->state != DiskSegmentState::Newer;
  if (is_lost && segment.state != DiskSegmentState::Foreign) segment.garbage_bytes = segment.file_bytes;
  report_.segments.push_back(std::move(segment));
  if (!contents) return;
  for (const RecordHeader& record : contents->records) add_record(record, *bytes, number);
}

void Inspection::add_record(const RecordHeader& record, SegmentBytes& bytes, std::uint32_t segment) {
  DiskSegmentReport& holder = report_.segments[segment];
  switch (record.kind) {
    case RecordKind::Page:
      ++holder.page_count;
      pages_.push_back({.name = record.name,
                        .layout = record.layout,
                        .payload_bytes = record.payload_bytes,
                        .stored_bytes = record.stored_bytes,
                        .order = record.order,
                        .stored_at_ns = record.stored_at_ns,
                        .key_space = key_space_number(record.key_space),
                        .segment = segment,
                        .is_compressed = record.compression != Compression::None});
      return;
    case RecordKind::KeySpace: {
      holder.live_bytes += record_bytes(record.stored_bytes);
      DiskKeySpaceReport& known = key_spaces_[key_space_number(record.key_space)].report;
      if (known.text) return;
      const Result<std::span<const std::byte>> stored =
          bytes.at(record.offset + kRecordHeaderBytes, record.stored_bytes);
      if (!stored || !payload_fault(record, *stored, compressor_, scratch_).empty()) return;
      if (Result<KeySpaceText> text = decode_key_space_text(*stored)) {
        known.text = std::move(text->key_space);
        known.is_salted = text->has_salt;
      }
      return;
    }
    case RecordKind::DropKeySpace: {
      ++holder.tombstone_count;
      holder.live_bytes += record_bytes(0);
      std::uint64_t& before = key_spaces_[key_space_number(record.key_space)].dropped_before;
      before = std::max(before, record.order);
      return;
    }
    case RecordKind::DropAll:
      ++holder.tombstone_count;
      holder.live_bytes += record_bytes(0);
      all_dropped_before_ = std::max(all_dropped_before_, record.order);
      return;
    case RecordKind::DropPage: {
      ++holder.tombstone_count;
      holder.live_bytes += record_bytes(0);
      std::uint64_t& before = dropped_pages_[record.name];
      before = std::max(before, record.order);
      return;
    }
  }
}

void Inspection::add_live(const FoundPage& page, TimeNs now_ns) {
  DiskSegmentReport& holder = report_.segments[page.segment];
  ++holder.live_pages;
  holder.live_bytes += record_bytes(page.stored_bytes);
  DiskKeySpaceReport& key_space = key_spaces_[page.key_space].report;
  key_space.newest_ns =
      key_space.page_count == 0 ? page.stored_at_ns : std::max(key_space.newest_ns, page.stored_at_ns);
  ++key_space.page_count;
  key_space.bytes += page.payload_bytes;
  ++layouts_[{page.layout, page.payload_bytes}];
  report_.oldest_ns = report_.page_count == 0 ? page.stored_at_ns : std::min(report_.oldest_ns, page.stored_at_ns);
  report_.newest_ns = report_.page_count == 0 ? page.stored_at_ns : std::max(report_.newest_ns, page.stored_at_ns);
  ++report_.page_count;
  report_.page_bytes += page.payload_bytes;
  report_.compressed_pages += page.is_compressed ? 1 : 0;
  // Times are foreign: one that lies in the future is young, and none overflows.
  TimeNs age_ns = 0;
  if (page.stored_at_ns < now_ns && __builtin_sub_overflow(now_ns, page.stored_at_ns, &age_ns)) {
    age_ns = std::numeric_limits<TimeNs>::max();
  }
  const auto bin =
      std::ranges::find_if(report_.ages, [&](const DiskAgeReport& age) { return age_ns <= age.age_ns_max; });
  ++bin->page_count;
}

DiskStoreReport Inspection::finish(TimeNs now_ns) {
  for (const TimeNs limit : kAgeLimits) report_.ages.push_back({.age_ns_max = limit});
  // Of each name the newest first. Pages of another layout are other pages: no process finds both.
  std::ranges::sort(pages_, [](const FoundPage& a, const FoundPage& b) {
    return std::tie(a.name, a.layout, a.payload_bytes, b.order) < std::tie(b.name, b.layout, b.payload_bytes, a.order);
  });
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const FoundPage& page = pages_[i];
    const bool is_newest = i == 0 || pages_[i - 1].name != page.name || pages_[i - 1].layout != page.layout ||
                           pages_[i - 1].payload_bytes != page.payload_bytes;
    const auto dropped = dropped_pages_.find(page.name);
    const bool is_dropped = (dropped != dropped_pages_.end() && page.order < dropped->second) ||
                            page.order < key_spaces_[page.key_space].dropped_before || page.order < all_dropped_before_;
    if (is_newest && !is_dropped) {
      add_live(page, now_ns);
    } else {
      report_.segments[page.segment].garbage_bytes += record_bytes(page.stored_bytes);
    }
  }
  for (const DiskSegmentReport& segment : report_.segments) {
    report_.live_bytes += segment.live_bytes;
    report_.garbage_bytes += segment.garbage_bytes;
    report_.tombstone_count += segment.tombstone_count;
  }
  for (KeySpaceFound& found : key_spaces_) report_.key_spaces.push_back(std::move(found.report));
  std::ranges::sort(report_.key_spaces, [](const DiskKeySpaceReport& a, const DiskKeySpaceReport& b) {
    return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name);
  });
  for (const auto& [layout, page_count] : layouts_) {
    report_.layouts.push_back({.hash = layout.first, .page_bytes = layout.second, .page_count = page_count});
  }
  std::ranges::sort(report_.layouts, [](const DiskLayoutReport& a, const DiskLayoutReport& b) {
    return a.page_count != b.page_count ? a.page_count > b.page_count : a.hash < b.hash;
  });
  return std::move(report_);
}

}  // namespace

std::string_view to_string(DiskSegmentState state) {
  switch (state) {
    case DiskSegmentState::Sealed:
      return "sealed";
    case DiskSegmentState::Open:
      return "open";
    case DiskSegmentState::Damaged:
      return "damaged";
    case DiskSegmentState::Empty:
      return "empty";
    case DiskSegmentState::Newer:
      return "newer";
    case DiskSegmentState::Foreign:
      return "foreign";
  }
  return "";
}

Result<DiskStoreReport> inspect_disk_store(std::span<const std::string> directories, const InspectOptions& options) {
  QUIRE_TRY_ASSIGN(const StoreReader reader, StoreReader::open(directories, FileCalls::real()));
  Inspection inspection(reader);
  for (const SegmentFile& file : reader.segments()) inspection.add_segment(file);
  return inspection.finish(options.now_ns);
}

}  // namespace quire
