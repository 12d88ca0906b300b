// SPDX-License-Identifier: Apache-2.0
//
// Opening: whose directories these are, and what of their segments can be trusted. A segment with a good footer was
// synced before the footer was written, so its headers are enough, and payloads are verified when they are read. Any
// other one is scanned, payloads included, and sealed then, so that it is scanned once. What the scan reads may be in
// the system's memory only, and may even count as written there: a sync that failed for the process before leaves it
// so, and no later sync writes it. So every record that is kept is written once more, in its place, and synced.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/mutants.h"
#include "store/file_store_impl.h"
#include "wire/little_endian.h"
#include "wire/segment_fields.h"

namespace quire {
namespace {

const std::string kManifestName(kManifestFileName);
const std::string kNewManifestName = kManifestName + ".new";
// Behind a higher id of somebody else's file ours could end at kSegmentIdMax.
constexpr std::uint64_t kForeignIdMax = kSegmentIdMax / 2;
// A scan reads so much at once; more, when a record is longer.
constexpr std::uint64_t kScanBytes = std::uint64_t{4} << 20U;
// The record of a key space is written only if it is no longer than this.
constexpr std::uint64_t kBufferBytesMin = std::uint64_t{16} << 10U;
// Pages that were read are copied out of these while the others are in flight.
constexpr std::uint32_t kSpareReadBuffers = 4;
// KV compressed to less than a quarter is not expected; what the index cannot hold makes room.
constexpr std::uint64_t kCompressionMax = 4;

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

/// Whether a block that lies at `offset` begins with the header of a record that lies before it, as footers do.
bool begins_like_footer(std::span<const std::byte> block, std::uint64_t salt, std::uint64_t offset) {
  const auto copied = get_number<std::uint64_t>(block.data() + record_fields::kOffset.offset);
  return copied < offset && decode_record_header(block, {.salt = salt, .offset = copied, .segment_bytes = offset});
}

/// The bytes of a segment, by a window that moves on.
class Scan {
 public:
  Scan(const Segment& segment, std::uint64_t file_bytes) : segment_(segment), file_bytes_(file_bytes) {}

  /// All that lies at [offset, offset + bytes), valid until the next call.
  [[nodiscard]] Result<std::span<const std::byte>> bytes_at(std::uint64_t offset, std::uint64_t bytes) {
    if (offset < begin_ || offset + bytes > begin_ + window_.size()) {
      window_.resize(std::min(std::max(bytes, kScanBytes), file_bytes_ - offset));
      begin_ = offset;
      if (Status read = segment_.files->read(segment_.file, offset, window_); !read) {
        window_.clear();
        return tl::unexpected<Error>(std::move(read).error());
      }
    }
    return std::span<const std::byte>(window_).subspan(offset - begin_, bytes);
  }

 private:
  const Segment& segment_;
  std::uint64_t file_bytes_;
  std::uint64_t begin_ = 0;
  std::vector<std::byte> window_;
};

}  // namespace

Status FileStore::Impl::open() {
  const MutexLock writer(writer_mutex_);
  // What fails leaves nothing to flush.
  is_closed_ = true;
  QUIRE_TRY(open_directories());
  const std::uint64_t buffer_bytes = std::max(record_bytes(config.layout.page_bytes), kBufferBytesMin);
  // One more than may be asked for: while a page waits for room, what is carried over needs a buffer as well.
  if (!config.is_read_only) {
    QUIRE_TRY(writer_.make(files, {.depth = config.queue_depth + 1, .buffer_bytes = buffer_bytes}));
  }
  const MutexLock reader(reader_mutex_);
  QUIRE_TRY(reader_.make(files, {.depth = config.queue_depth + kSpareReadBuffers, .buffer_bytes = buffer_bytes}));
  is_closed_ = false;
  return {};
}

Status FileStore::Impl::open_directories() {
  std::vector<std::vector<std::string>> names;
  std::optional<Manifest> known;
  std::vector<std::size_t> new_ones;
  for (const std::string& path : config.directories) {
    directories_.emplace_back();
    Directory& directory = directories_.back();
    QUIRE_TRY_ASSIGN(directory.files,
                     config.is_read_only ? files.open_directory_to_read(path) : files.open_directory(path));
    QUIRE_TRY_ASSIGN(std::vector<std::string> listed, directory.files->list());
    QUIRE_TRY_ASSIGN(const std::optional<Manifest> manifest, read_manifest(directory, listed));
    if (!manifest && config.is_read_only) {
      return fail(ErrorCode::InvalidArgument,
                  path +
                      " has no file store in it, and is only to be read: name the directory of one, or let it be "
                      "written");
    }
    if (!manifest) {
      new_ones.push_back(directories_.size() - 1);
    } else if (!known) {
      known = manifest;
    } else if (manifest->store_id != known->store_id) {
      return fail(ErrorCode::InvalidArgument, path + " belongs to another file store than " + config.directories[0] +
                                                  ": open them as two, or remove the files of one");
    }
    names.push_back(std::move(listed));
  }
  if (!known) {
    known.emplace();
    known->created_at_ns = config.now_ns;
    const std::array<std::uint64_t, 2> id = {
        mix64(config.random_seed), mix64(mix64(config.random_seed) ^ static_cast<std::uint64_t>(config.now_ns))};
    std::memcpy(known->store_id.data(), id.data(), sizeof(id));
  }
  store_id = known->store_id;
  for (std::size_t number = 0; number < names.size(); ++number) {
    // Left behind when a process ended before the store was there. Not before all directories are known to be ours.
    const bool is_left = std::ranges::find(names[number], kNewManifestName) != names[number].end();
    if (!is_left || config.is_read_only) continue;
    QUIRE_TRY(directories_[number].files->remove(kNewManifestName));
  }
  for (const std::size_t number : new_ones) QUIRE_TRY(write_manifest(directories_[number], *known));

  std::uint64_t found_bytes = 0;
  for (std::uint32_t number = 0; number < directories_.size(); ++number) {
    // Names that this process found count as if it had made them: another one may have ended before it synced them.
    if (!config.is_read_only) {
      QUIRE_TRY(directories_[number].files->sync_directory(SyncPoint::ManifestDirectory));
    }
    QUIRE_TRY_ASSIGN(const std::uint64_t bytes, open_segments(number, names[number]));
    found_bytes += bytes;
  }
  // Whoever wrote what is only read may have compressed it.
  const bool may_be_compressed = config.zstd_level > 0 || config.is_read_only;
  const std::uint64_t page_bytes = config.layout.page_bytes / (may_be_compressed ? kCompressionMax : 1);
  const std::uint64_t page_count_max =
      std::min((std::max(config.is_read_only ? 0 : config.capacity_bytes, found_bytes) / record_bytes(page_bytes)) +
                   config.queue_depth + 2,
               std::uint64_t{1} << 30U);
  {
    const MutexLock lock(index_mutex_);
    QUIRE_TRY_ASSIGN(index_, FileIndex::create(static_cast<std::uint32_t>(page_count_max), config.random_seed));
  }
  for (std::unique_ptr<Segment>& segment : std::exchange(recovered_, {})) recover(std::move(segment));
  apply_tombstones();
  bool has_directory = false;
  for (std::uint32_t number = 0; number < directories_.size(); ++number) {
    directories_[number].segment_count_max = std::max(segment_count_max, directories_[number].segment_count);
    while (!config.is_read_only && directories_[number].used_bytes > share_bytes &&
           reclaim_oldest(number) == Reclaimed::Ok) {
      continue;
    }
    has_directory = has_directory || !directories_[number].is_given_up;
  }
  lost_writes_ = 0;
  if (!has_directory) return fail(ErrorCode::Io, "no directory of the file store can be read: " + stats().last_error);
  return {};
}

// None when the directory is new. What is in a directory without a manifest is somebody else's.
Result<std::optional<Manifest>> FileStore::Impl::read_manifest(Directory& directory,
                                                               const std::vector<std::string>& names) {
  StoreDirectory& in = *directory.files;
  const bool has_manifest = std::ranges::find(names, kManifestName) != names.end();
  for (const std::string& name : names) {
    if (has_manifest || name == kNewManifestName) continue;
    return fail(ErrorCode::InvalidArgument,
                in.path() + " is not a file store, but has files in it, such as " + name +
                    ": give the store a directory of its own" +
                    (segment_id_of(name) ? ", or, if it was one, remove its segments" : ""));
  }
  if (!has_manifest) return std::optional<Manifest>{};
  QUIRE_TRY_ASSIGN(const FileId file, in.open(kManifestName));
  std::array<std::byte, kSegmentBlockBytes> block{};
  const Status read = in.read(file, 0, block);
  in.close(file);
  QUIRE_TRY(read);
  Result<Manifest> manifest = decode_manifest(block);
  if (manifest) return std::optional(*manifest);
  const bool is_newer = manifest.error().code == ErrorCode::Unsupported;
  return fail(manifest.error().code,
              in.path() + "/" + kManifestName + ": " + manifest.error().message +
                  (is_newer ? ". A newer quire wrote it: use that one, or another directory"
                            : ". Remove the directory's files to begin anew, or use another directory"));
}

Status FileStore::Impl::write_manifest(Directory& directory, const Manifest& manifest) {
  StoreDirectory& in = *directory.files;
  std::array<std::byte, kSegmentBlockBytes> block{};
  encode_manifest(manifest, block);
  QUIRE_TRY_ASSIGN(const FileId file, in.create(kNewManifestName, kSegmentBlockBytes));
  Status written = in.write(file, 0, block);
  if (written) written = in.sync_file(file, SyncPoint::ManifestFile);
  in.close(file);
  QUIRE_TRY(written);
  return in.rename(kNewManifestName, kManifestName);
}

// Opens the files that are segments of this store. Their lengths together.
Result<std::uint64_t> FileStore::Impl::open_segments(std::uint32_t number, const std::vector<std::string>& names) {
  Directory& directory = directories_[number];
  StoreDirectory& in = *directory.files;
  std::uint64_t bytes = 0;
  for (const std::string& name : names) {
    const std::optional<std::uint64_t> id = segment_id_of(name);
    if (!id) {
      const MutexLock lock(index_mutex_);
      if (name.starts_with(kSegmentFilePrefix)) ++stats_.ignored_files;
      continue;
    }
    // Ids of others count as used, so that ours do not meet them, unless they are so high that ours never will.
    if (*id <= kForeignIdMax) directory.next_segment_id = std::max(directory.next_segment_id, *id + 1);
    QUIRE_TRY_ASSIGN(const FileId file, in.open(name));
    auto segment = std::make_unique<Segment>();
    segment->directory = number;
    segment->files = &in;
    segment->name = name;
    segment->file = file;
    segment->state = Segment::State::Retired;
    segment->header.segment_id = *id;
    std::array<std::byte, kSegmentBlockBytes> block{};
    const Result<std::uint64_t> length = in.length(file);
    Status read = length ? Status{} : tl::unexpected<Error>(length.error());
    if (read && *length >= block.size()) read = in.read(file, 0, block);
    const Result<SegmentHeader> header = decode_segment_header(block);
    const bool is_ours = read && header && header->segment_id == *id && header->store_id == store_id;
    if (is_ours) {
      directory.next_segment_id = std::max(directory.next_segment_id, *id + 1);
      segment->header = *header;
      segment->file_bytes = *length;
      bytes += *length;
      recovered_.push_back(std::move(segment));
      continue;
    }
    in.close(file);
    if (!header && header.error().code == ErrorCode::Unsupported) {
      return fail(ErrorCode::Unsupported, in.path() + "/" + name + ": " + header.error().message +
                                              ". A newer quire wrote it: use that one, or another directory");
    }
    // Made when the process ended: nothing in it was ever promised.
    if (read && is_zero(block)) {
      if (!config.is_read_only) QUIRE_TRY(in.remove(name));
      const MutexLock lock(index_mutex_);
      // Perhaps it was cut off, and had pages in it.
      if (*length > 0 && *length < block.size()) ++stats_.torn_records;
      continue;
    }
    if (!read) {
      note_error(read.error());
      give_up(directory);
      return bytes;
    }
    const MutexLock lock(index_mutex_);
    ++stats_.ignored_files;
  }
  return bytes;
}

void FileStore::Impl::recover(std::unique_ptr<Segment> found) {
  Directory& directory = directories_[found->directory];
  if (directory.is_given_up) {
    found->files->close(found->file);
    return;
  }
  const std::uint64_t file_bytes = std::exchange(found->file_bytes, 0);
  Segment& segment = add_segment(std::move(found));
  set_file_bytes(segment, file_bytes);
  if (recover_from_footer(segment)) return;
  if (const Status scanned = recover_by_scan(segment); !scanned) {
    // What cannot be read may be tombstones: nothing here can be trusted to be wanted still. What cannot be written
    // again may be gone when the power fails.
    note_error(scanned.error());
    give_up(directory);
    return;
  }
  if (segment.record_count == 0) {
    if (!config.is_read_only) (void)directory.files->remove(segment.name);
    (void)forget_segment(segment);
    return;
  }
  if (config.is_read_only) {
    segment.records = {};
    return;
  }
  if (const Status synced = directory.files->sync_file(segment.file, SyncPoint::SegmentSeal); !synced) {
    note_error(synced.error());
    give_up(directory);
    return;
  }
  segment.durable_end = segment.end;
  if (const Status written = write_footer(segment); !written) note_error(written.error());
  segment.records = {};
}

bool FileStore::Impl::recover_from_footer(Segment& segment) {
  const std::uint64_t file_bytes = segment.file_bytes;
  if (file_bytes < 2 * kSegmentBlockBytes || file_bytes % kSegmentBlockBytes != 0) return false;
  std::array<std::byte, kSegmentBlockBytes> block{};
  if (!segment.files->read(segment.file, file_bytes - block.size(), block)) return false;
  const Result<Trailer> trailer = decode_trailer(block, segment.header, file_bytes);
  if (!trailer) return false;
  std::vector<std::byte> footer(file_bytes - trailer->footer_offset);
  if (!segment.files->read(segment.file, trailer->footer_offset, footer)) return false;
  const Result<std::vector<RecordHeader>> records = decode_footer(footer, segment.header, *trailer);
  if (!records) return false;
  segment.state = Segment::State::Sealed;
  segment.end = trailer->footer_offset;
  segment.durable_end = segment.end;
  for (const RecordHeader& record : *records) recover_record(segment, record);
  return true;
}

Status FileStore::Impl::recover_by_scan(Segment& segment) {
  segment.end = kSegmentBlockBytes;
  segment.durable_end = kSegmentBlockBytes;
  const std::uint64_t file_bytes = segment.file_bytes / kSegmentBlockBytes * kSegmentBlockBytes;
  Scan scan(segment, file_bytes);
  std::uint64_t torn_count = 0;
  std::uint64_t written_bytes = 0;
  Status status;
  // The same bytes: a write that is torn spoils nothing that was durable. A store that is only read promises nothing.
  const auto write_again = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    if (config.is_read_only) return true;
    status = segment.files->write(segment.file, offset, bytes);
    if (status) written_bytes += bytes.size();
    return status.has_value();
  };
  for (std::uint64_t offset = kSegmentBlockBytes; offset < file_bytes;) {
    Result<std::span<const std::byte>> bytes = scan.bytes_at(offset, kSegmentBlockBytes);
    if (!bytes) {
      status = tl::unexpected<Error>(bytes.error());
      break;
    }
    const Result<RecordHeader> record =
        decode_record_header(*bytes, {.salt = segment.header.salt, .offset = offset, .segment_bytes = file_bytes});
    if (!record) {
      if (begins_like_record(*bytes) && !begins_like_footer(*bytes, segment.header.salt, offset)) ++torn_count;
      offset += kSegmentBlockBytes;
      continue;
    }
    const std::uint64_t taken_bytes = record_bytes(record->stored_bytes);
    bytes = scan.bytes_at(offset, taken_bytes);
    if (!bytes) {
      status = tl::unexpected<Error>(bytes.error());
      break;
    }
    const bool has_payload = record->kind == RecordKind::Page || record->kind == RecordKind::KeySpace;
    if (has_payload &&
        !is_intact(*record, bytes->subspan(kRecordHeaderBytes, record->stored_bytes), writer_.compressor, scratch_)) {
      ++torn_count;
    } else {
      if (!write_again(offset, *bytes)) break;
      recover_record(segment, *record);
      segment.records.push_back(*record);
      segment.end = offset + taken_bytes;
    }
    offset += taken_bytes;
  }
  if (status && segment.record_count > 0) {
    Result<std::span<const std::byte>> header = scan.bytes_at(0, kSegmentBlockBytes);
    if (!header) {
      status = tl::unexpected<Error>(header.error());
    } else {
      (void)write_again(0, *header);
    }
  }
  const MutexLock lock(index_mutex_);
  stats_.torn_records += torn_count;
  stats_.read_bytes += file_bytes;
  stats_.written_bytes += written_bytes;
  return status;
}

void FileStore::Impl::recover_record(Segment& segment, const RecordHeader& record) {
  ++segment.record_count;
  const MutexLock lock(index_mutex_);
  next_order_ = std::max(next_order_, record.order + 1);
  switch (record.kind) {
    case RecordKind::Page: {
      segment.lowest_page_order = std::min(segment.lowest_page_order, record.order);
      if (record.layout != config.layout.hash || record.payload_bytes != config.layout.page_bytes) {
        ++segment.other_layout_records;
        ++stats_.other_layout_records;
        return;
      }
      if (const std::uint32_t known = index_.find(record.name); known != FileIndex::kNone) {
        if (index_.page(known).order >= record.order) return;
        index_.remove(known);
      }
      if (index_.is_full()) {
        ++stats_.evicted_records;
        return;
      }
      index_.insert(indexed(record, segment));
      return;
    }
    case RecordKind::KeySpace: {
      const std::uint32_t number = index_.key_space(record.key_space);
      index_.add_text(number);
      segment.key_spaces.push_back({.key_space = number,
                                    .offset = record.offset,
                                    .stored_bytes = static_cast<std::uint32_t>(record.stored_bytes)});
      return;
    }
    case RecordKind::DropKeySpace:
    case RecordKind::DropPage:
    case RecordKind::DropAll:
      segment.tombstones.push_back(tombstone_of(record));
      return;
  }
}

// When all records are known, because a tombstone may be found before what it covers.
void FileStore::Impl::apply_tombstones() {
  const MutexLock lock(index_mutex_);
  std::vector<std::uint64_t> dropped;  // by number of key space: the highest order
  std::uint64_t all_dropped = 0;       // the same for all of them
  for (const std::unique_ptr<Segment>& segment : segments_) {
    if (!segment || is_mutated(Mutant::ForgetsDrops)) continue;
    for (const Tombstone& tombstone : segment->tombstones) {
      if (tombstone.kind == RecordKind::DropPage) {
        const std::uint32_t entry = index_.find(tombstone.name);
        if (entry != FileIndex::kNone && index_.page(entry).order < tombstone.order) index_.remove(entry);
      } else if (tombstone.kind == RecordKind::DropAll) {
        all_dropped = std::max(all_dropped, tombstone.order);
      } else if (const std::uint32_t number = index_.find_key_space(tombstone.name); number != FileIndex::kNone) {
        if (number >= dropped.size()) dropped.resize(number + 1);
        dropped[number] = std::max(dropped[number], tombstone.order);
      }
    }
  }
  for (const std::unique_ptr<Segment>& segment : segments_) {
    if (!segment || (dropped.empty() && all_dropped == 0)) continue;
    std::uint32_t next = FileIndex::kNone;
    for (std::uint32_t entry = index_.segment(segment->slot).first; entry != FileIndex::kNone; entry = next) {
      next = index_.next_in_segment(entry);
      const IndexedPage& page = index_.page(entry);
      const std::uint64_t before = page.key_space < dropped.size() ? dropped[page.key_space] : 0;
      if (page.order < std::max(before, all_dropped)) index_.remove(entry);
    }
  }
}

}  // namespace quire
