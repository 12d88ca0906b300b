// SPDX-License-Identifier: Apache-2.0
//
// The writer lane: records behind records, segments behind segments, and what makes them durable.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "store/file_store_impl.h"

namespace quire {
namespace {

// A directory that fails so often in a row is given up: what would be written to it next would be lost as well.
constexpr std::uint32_t kFailuresMax = 3;
// How often a directory may be asked for room for one record. More than a few means that what must be kept fills it.
constexpr int kRoomTries = 8;

}  // namespace

void FileStore::Impl::write(const PageName& name, const KeySpace* text, std::span<FileWrite> pages, TimeNs now_ns) {
  for (const FileWrite& page : pages) {
    QUIRE_CHECK(page.bytes.size() == config.layout.page_bytes, "a page is written as a whole");
    QUIRE_CHECK(!page.name.is_none(), "a page has a name");
  }
  const MutexLock lane(writer_mutex_);
  std::uint64_t failed_before = 0;
  bool has_text = text == nullptr;
  {
    const MutexLock lock(index_mutex_);
    last_now_ns_ = now_ns;
    failed_before = stats_.failed_segments + stats_.failed_directories;
    const std::uint32_t number = index_.find_key_space(name);
    has_text = has_text || (number != FileIndex::kNone && index_.key_space_facts(number).text_count > 0);
  }
  if (is_closed_) {
    for (FileWrite& page : pages) page.outcome = FileOutcome::Failed;
    return;
  }
  // A failure stays owed, and flush() says so.
  (void)write_owed();
  for (FileWrite& page : pages) {
    page.outcome = FileOutcome::Failed;
    {
      const MutexLock lock(index_mutex_);
      if (index_.find(page.name) != FileIndex::kNone) page.outcome = FileOutcome::Ok;
    }
    if (page.outcome == FileOutcome::Ok) continue;
    if (!has_text) write_key_space(*text, name, now_ns);
    has_text = true;
    write_page(name, page, now_ns);
  }
  collect_all();
  for (Directory& directory : directories_) {
    if (directory.open != nullptr && directory.open->has_failed) retire(directory, Cause::Write);
  }
  copier.settle();

  const MutexLock lock(index_mutex_);
  if (stats_.failed_segments + stats_.failed_directories == failed_before) return;
  // Some of those that had been written went with their segment.
  for (FileWrite& page : pages) {
    if (page.outcome == FileOutcome::Ok && index_.find(page.name) == FileIndex::kNone) {
      page.outcome = FileOutcome::Failed;
    }
  }
}

void FileStore::Impl::write_page(const PageName& key_space, FileWrite& page, TimeNs now_ns) {
  // The same page twice: the second one waits for the first and finds it.
  while (is_in_flight(page.name)) collect();
  {
    const MutexLock lock(index_mutex_);
    if (index_.find(page.name) != FileIndex::kNone) {
      page.outcome = FileOutcome::Ok;
      return;
    }
  }
  const std::uint32_t buffer = take_buffer();
  const std::span<std::byte> payload = writer_.buffer(buffer).subspan(kRecordHeaderBytes);
  RecordHeader header{.kind = RecordKind::Page,
                      .name = page.name,
                      .parent = page.parent,
                      .key_space = key_space,
                      .layout = config.layout.hash,
                      .page_index = page.page_index,
                      .payload_bytes = page.bytes.size(),
                      .stored_bytes = page.bytes.size(),
                      .stored_at_ns = now_ns};
  ChecksumPart sum;
  // Worth it only if the record is shorter by a block.
  const std::uint64_t full_bytes = record_bytes(page.bytes.size());
  std::optional<std::uint64_t> compressed_bytes;
  if (config.zstd_level > 0 && full_bytes > kSegmentBlockBytes) {
    compressed_bytes = writer_.compressor.compress(
        page.bytes, payload.first(full_bytes - kSegmentBlockBytes - kRecordHeaderBytes), config.zstd_level);
  }
  if (compressed_bytes) {
    header.compression = Compression::Zstd;
    header.stored_bytes = *compressed_bytes;
    sum = copier.sum({.source = page.bytes.data(), .bytes = page.bytes.size()});
  } else {
    sum = copier.copy_summed({.target = payload.data(), .source = page.bytes.data(), .bytes = page.bytes.size()});
  }
  header.checksum = sum.finish(page.bytes.size());
  if (page.checksum && *page.checksum != header.checksum) {
    page.outcome = FileOutcome::Corrupt;
    give_buffer(buffer);
    return;
  }
  Segment* const segment = find_room(header.stored_bytes, page.outcome);
  if (segment == nullptr) {
    give_buffer(buffer);
    return;
  }
  writer_.flights[buffer] = {.header = header, .write = &page};
  append(*segment, buffer);
}

// For people: without it a page is found just as well, so that nothing depends on whether it succeeds.
void FileStore::Impl::write_key_space(const KeySpace& key_space, const PageName& name, TimeNs now_ns) {
  const std::vector<std::byte> text = encode_key_space_text(key_space);
  if (record_bytes(text.size()) > writer_.buffer_bytes) return;
  const std::uint32_t buffer = take_buffer();
  const std::span<std::byte> payload = writer_.buffer(buffer).subspan(kRecordHeaderBytes);
  std::memcpy(payload.data(), text.data(), text.size());
  FileOutcome why_not = FileOutcome::Ok;
  Segment* const segment = find_room(text.size(), why_not);
  if (segment == nullptr) {
    give_buffer(buffer);
    return;
  }
  writer_.flights[buffer] = {
      .header = {.kind = RecordKind::KeySpace,
                 .key_space = name,
                 .payload_bytes = text.size(),
                 .stored_bytes = text.size(),
                 .checksum = copier.sum({.source = text.data(), .bytes = text.size()}).finish(text.size()),
                 .stored_at_ns = now_ns}};
  append(*segment, buffer);
}

Status FileStore::Impl::write_owed() {
  std::vector<Tombstone> pending;
  {
    const MutexLock lock(index_mutex_);
    pending.swap(pending_);
  }
  // Every directory gets them all, so that each can forget them when it has nothing that they cover.
  for (Directory& directory : directories_) {
    if (directory.is_given_up) continue;
    directory.owed.insert(directory.owed.end(), pending.begin(), pending.end());
  }
  bool is_written = true;
  bool has_directory = false;
  for (std::uint32_t number = 0; number < directories_.size(); ++number) {
    Directory& directory = directories_[number];
    for (std::uint32_t tries = 0; tries < kFailuresMax && !directory.owed.empty(); ++tries) {
      const std::vector<Tombstone> owed = std::exchange(directory.owed, {});
      for (std::size_t i = 0; i < owed.size(); ++i) {
        const std::uint32_t buffer = take_buffer();
        if (ensure_room(number, 0) != Room::Ok) {
          give_buffer(buffer);
          if (!directory.is_given_up) {
            directory.owed.insert(directory.owed.end(), owed.begin() + static_cast<std::ptrdiff_t>(i), owed.end());
          }
          break;
        }
        const Tombstone& tombstone = owed[i];
        const bool is_page = tombstone.kind == RecordKind::DropPage;
        writer_.flights[buffer] = {.header = {.kind = tombstone.kind,
                                              .order = tombstone.order,
                                              .name = is_page ? tombstone.name : PageName{},
                                              .key_space = is_page ? PageName{} : tombstone.name,
                                              .stored_at_ns = tombstone.at_ns}};
        append(*directory.open, buffer);
      }
      collect_all();
    }
    is_written = is_written && directory.owed.empty();
    has_directory = has_directory || !directory.is_given_up;
  }
  if (!has_directory) return fail(ErrorCode::Io, "the file store has no directory left: " + stats().last_error);
  if (is_written) return {};
  return fail(ErrorCode::Unavailable, "what was dropped could not be written down: " + stats().last_error);
}

Status FileStore::Impl::drop(const PageName& key_space, TimeNs now_ns) {
  const MutexLock lane(writer_mutex_);
  if (is_closed_) return fail(ErrorCode::Io, "the file store is closed");
  {
    const MutexLock lock(index_mutex_);
    last_now_ns_ = now_ns;
    pending_.push_back({.kind = RecordKind::DropKeySpace, .name = key_space, .order = next_order_++, .at_ns = now_ns});
    const std::uint32_t number = index_.find_key_space(key_space);
    for (std::uint32_t slot = 0; slot < segments_.size() && number != FileIndex::kNone; ++slot) {
      std::uint32_t next = FileIndex::kNone;
      for (std::uint32_t entry = index_.segment(slot).first; entry != FileIndex::kNone; entry = next) {
        next = index_.next_in_segment(entry);
        if (index_.page(entry).key_space == number) index_.remove(entry);
      }
    }
  }
  return write_owed();
}

Status FileStore::Impl::flush() {
  const MutexLock lane(writer_mutex_);
  if (is_closed_) return fail(ErrorCode::Io, "the file store is closed");
  return flush_locked();
}

Status FileStore::Impl::flush_locked() {
  Status status = write_owed();
  collect_all();
  bool has_directory = false;
  for (Directory& directory : directories_) {
    if (Segment* const open = directory.open; open != nullptr) {
      if (open->has_failed) {
        retire(directory, Cause::Write);
      } else if (open->end > open->durable_end) {
        if (const Status synced = directory.files->sync_file(open->file, SyncPoint::Flush); synced) {
          open->durable_end = open->end;
          directory.failures_in_row = 0;
        } else {
          note_error(synced.error());
          retire(directory, Cause::Sync);
        }
      }
    }
    if (!directory.is_given_up && directory.has_new_names) (void)sync_names(directory, SyncPoint::SegmentDirectory);
    // A tombstone that went with a retired segment.
    if (status && !directory.owed.empty()) {
      status = fail(ErrorCode::Io, "what was dropped could not be written down: " + stats().last_error);
    }
    has_directory = has_directory || !directory.is_given_up;
  }
  if (!has_directory) {
    lost_writes_ = 0;
    return fail(ErrorCode::Io, "the file store has no directory left: " + stats().last_error);
  }
  if (const std::uint64_t lost = std::exchange(lost_writes_, 0); lost > 0) {
    return fail(ErrorCode::Io, std::to_string(lost) + " pages of the file store are lost: " + stats().last_error);
  }
  return status;
}

std::uint32_t FileStore::Impl::take_buffer() {
  while (writer_.free.empty()) collect();
  const std::uint32_t buffer = writer_.free.back();
  writer_.free.pop_back();
  return buffer;
}

void FileStore::Impl::give_buffer(std::uint32_t buffer) {
  writer_.flights[buffer] = {};
  writer_.free.push_back(buffer);
}

bool FileStore::Impl::is_in_flight(const PageName& name) const {
  return std::any_of(writer_.flights.begin(), writer_.flights.end(), [&name](const Flight& flight) {
    return flight.phase == Flight::Phase::Append && flight.header.kind == RecordKind::Page &&
           flight.header.name == name;
  });
}

void FileStore::Impl::append(Segment& segment, std::uint32_t buffer) {
  Flight& flight = writer_.flights[buffer];
  flight.segment = &segment;
  flight.phase = Flight::Phase::Append;
  RecordHeader& header = flight.header;
  header.offset = segment.end;
  const std::uint64_t bytes = record_bytes(header.stored_bytes);
  {
    const MutexLock lock(index_mutex_);
    if (header.order == 0) header.order = next_order_++;
    stats_.written_bytes += bytes;
    if (flight.carry_index_plus_1 > 0) stats_.carried_bytes += bytes;
  }
  segment.end += bytes;
  // Whether it succeeds or not: a record whose write failed may be there all the same when the store is opened again.
  if (header.kind == RecordKind::Page) segment.lowest_page_order = std::min(segment.lowest_page_order, header.order);
  ++segment.record_count;
  const std::span<std::byte> record = writer_.buffer(buffer).first(bytes);
  encode_record_header(header, segment.header.salt, record.first(kRecordHeaderBytes));
  std::ranges::fill(record.subspan(kRecordHeaderBytes + header.stored_bytes), std::byte{0});
  writer_.submit(buffer, IoKind::Write, bytes);
}

void FileStore::Impl::collect_all() {
  while (writer_.in_flight_count > 0) collect();
}

void FileStore::Impl::collect() {
  for (const IoResult& result : writer_.queue->wait(writer_.results)) {
    --writer_.in_flight_count;
    const auto buffer = static_cast<std::uint32_t>(result.tag);
    if (writer_.flights[buffer].phase == Flight::Phase::CarryRead) {
      finish_carry_read(buffer, result.status);
    } else {
      finish_append(buffer, result.status);
    }
  }
}

void FileStore::Impl::finish_append(std::uint32_t buffer, const Status& status) {
  const Flight& flight = writer_.flights[buffer];
  const RecordHeader& header = flight.header;
  Segment& segment = *flight.segment;
  const Tombstone tombstone{.kind = header.kind,
                            .name = header.kind == RecordKind::DropPage ? header.name : header.key_space,
                            .order = header.order,
                            .at_ns = header.stored_at_ns,
                            .offset = header.offset};
  const bool is_tombstone = header.kind == RecordKind::DropPage || header.kind == RecordKind::DropKeySpace;
  if (!status) {
    note_error(status.error());
    segment.has_failed = true;
    segment.is_out_of_space = status.error().code == ErrorCode::Unavailable;
    if (flight.write != nullptr)
      flight.write->outcome = segment.is_out_of_space ? FileOutcome::Full : FileOutcome::Failed;
    if (is_tombstone && flight.carry_index_plus_1 == 0) directories_[segment.directory].owed.push_back(tombstone);
    give_buffer(buffer);
    return;
  }
  segment.records.push_back(header);
  if (is_tombstone) segment.tombstones.push_back(tombstone);
  {
    const MutexLock lock(index_mutex_);
    if (header.kind == RecordKind::KeySpace) {
      const std::uint32_t number = index_.key_space(header.key_space);
      index_.add_text(number);
      segment.key_spaces.push_back({.key_space = number,
                                    .offset = header.offset,
                                    .stored_bytes = static_cast<std::uint32_t>(header.stored_bytes)});
    } else if (flight.write != nullptr) {
      index_.insert(indexed(header, segment));
      flight.write->outcome = FileOutcome::Ok;
    }
  }
  if (flight.carry_index_plus_1 > 0) {
    Carry& carried = carries_[flight.carry_index_plus_1 - 1];
    carried.to = {.segment = segment.slot, .block = static_cast<std::uint32_t>(header.offset / kSegmentBlockBytes)};
    carried.order = header.order;
    carried.is_done = true;
  }
  give_buffer(buffer);
}

bool FileStore::Impl::has_room(const Segment& segment, std::uint64_t stored_bytes) const {
  return segment.end + record_bytes(stored_bytes) + footer_bytes(segment.record_count + 1) <= segment_bytes;
}

Segment* FileStore::Impl::find_room(std::uint64_t stored_bytes, FileOutcome& why_not) {
  bool is_full = false;
  const auto count = static_cast<std::uint32_t>(directories_.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t number = (next_directory_ + i) % count;
    const Room room = ensure_room(number, stored_bytes);
    if (room == Room::Ok) {
      // The next page goes to the next directory, so that all disks work at once, on writes and later on reads.
      next_directory_ = (number + 1) % count;
      return directories_[number].open;
    }
    is_full = is_full || room == Room::Full;
  }
  why_not = is_full ? FileOutcome::Full : FileOutcome::Failed;
  return nullptr;
}

FileStore::Impl::Room FileStore::Impl::ensure_room(std::uint32_t number, std::uint64_t stored_bytes) {
  Directory& directory = directories_[number];
  for (int tries = 0; tries < kRoomTries; ++tries) {
    if (directory.is_given_up) return Room::Failed;
    if (directory.open != nullptr) {
      if (directory.open->has_failed) {
        collect_all();
        retire(directory, Cause::Write);
        continue;
      }
      bool is_index_full = false;
      {
        // Each record in flight may be a page that the index will have to take.
        const MutexLock lock(index_mutex_);
        is_index_full = index_.page_count() + writer_.in_flight_count >= index_.page_count_max();
      }
      if (is_index_full) {
        collect_all();
        const Reclaimed reclaimed = reclaim_oldest(number);
        if (reclaimed == Reclaimed::Ok) continue;
        return reclaimed == Reclaimed::Nothing ? Room::Full : Room::Failed;
      }
      if (has_room(*directory.open, stored_bytes)) return Room::Ok;
      seal(directory);
      continue;
    }
    if (const Room room = open_segment(number); room != Room::Ok) return room;
  }
  return Room::Full;
}

FileStore::Impl::Room FileStore::Impl::open_segment(std::uint32_t number) {
  Directory& directory = directories_[number];
  // There is room for one more, which the last one saw to; unless the capacity is less than it was.
  while (directory.used_bytes + segment_bytes > share_bytes) {
    const Reclaimed reclaimed = reclaim_oldest(number);
    if (reclaimed != Reclaimed::Ok) return reclaimed == Reclaimed::Nothing ? Room::Full : Room::Failed;
  }
  // After a crash there must not be both, this one and those it takes the place of: the capacity is for all of them.
  if (directory.has_removed_names && !sync_names(directory, SyncPoint::RemoveDirectory)) return Room::Failed;
  Status created = create_segment(number);
  if (!created && created.error().code == ErrorCode::Unavailable && !directory.is_given_up) {
    // Others have filled the disk. What is there can still be read.
    if (reclaim_oldest(number) == Reclaimed::Ok) created = create_segment(number);
    if (!created && created.error().code == ErrorCode::Unavailable && !directory.is_given_up) return Room::Full;
  }
  if (directory.is_given_up) return Room::Failed;
  if (!created) return Room::Ok;  // the next try, or the last one
  while (directory.used_bytes + segment_bytes > share_bytes) {
    const Reclaimed reclaimed = reclaim(number);
    if (reclaimed != Reclaimed::Ok) return directory.is_given_up ? Room::Failed : Room::Ok;
  }
  return Room::Ok;
}

Status FileStore::Impl::create_segment(std::uint32_t number) {
  Directory& directory = directories_[number];
  auto segment = std::make_unique<Segment>();
  const std::uint64_t id = directory.next_segment_id++;
  segment->directory = number;
  segment->files = directory.files.get();
  segment->name = segment_file_name(id);
  std::uint64_t order = 0;
  {
    const MutexLock lock(index_mutex_);
    order = next_order_;
  }
  segment->header = {.segment_id = id,
                     .salt = mix64(config.random_seed ^ mix64(id ^ mix64(order ^ mix64(number)))),
                     .store_id = store_id};
  Result<FileId> file = directory.files->create(segment->name, segment_bytes);
  if (!file) {
    note_error(file.error());
    // Whoever cannot make files has lost the disk, or the right to write to it.
    if (file.error().code != ErrorCode::Unavailable) give_up(directory);
    return tl::unexpected<Error>(file.error());
  }
  segment->file = *file;
  std::array<std::byte, kSegmentBlockBytes> block{};
  encode_segment_header(segment->header, block);
  if (Status written = directory.files->write(segment->file, 0, block); !written) {
    note_error(written.error());
    directory.files->close(segment->file);
    (void)directory.files->remove(segment->name);
    if (written.error().code != ErrorCode::Unavailable) count_failure(directory);
    return written;
  }
  segment->end = kSegmentBlockBytes;
  segment->durable_end = kSegmentBlockBytes;
  segment->records.reserve((segment_bytes / record_bytes(config.layout.page_bytes)) + 1);
  directory.has_new_names = true;
  directory.open = &add_segment(std::move(segment));
  set_file_bytes(*directory.open, segment_bytes);
  return {};
}

void FileStore::Impl::seal(Directory& directory) {
  collect_all();
  Segment& segment = *directory.open;
  if (segment.has_failed) {
    retire(directory, Cause::Write);
    return;
  }
  if (segment.record_count == 0) {
    directory.open = nullptr;
    (void)directory.files->remove(segment.name);
    (void)forget_segment(segment);
    return;
  }
  if (segment.end > segment.durable_end) {
    if (const Status synced = directory.files->sync_file(segment.file, SyncPoint::SegmentSeal); !synced) {
      note_error(synced.error());
      retire(directory, Cause::Sync);
      return;
    }
    segment.durable_end = segment.end;
    directory.failures_in_row = 0;
  }
  directory.open = nullptr;
  // The footer itself is not synced: a segment that lost it is scanned.
  const Status written = write_footer(segment);
  segment.records = {};
  if (written) return;
  note_error(written.error());
  {
    const MutexLock lock(index_mutex_);
    ++stats_.failed_segments;
  }
  segment.state = Segment::State::Retired;
  count_failure(directory);
}

Status FileStore::Impl::write_footer(Segment& segment) {
  std::ranges::sort(segment.records, {}, &RecordHeader::offset);
  const std::uint64_t bytes = footer_bytes(segment.records.size());
  std::vector<std::byte> footer(bytes);
  encode_footer(segment.records, segment.header, segment.end, footer);
  QUIRE_TRY(segment.files->write(segment.file, segment.end, footer));
  QUIRE_TRY(segment.files->set_length(segment.file, segment.end + bytes));
  segment.state = Segment::State::Sealed;
  set_file_bytes(segment, segment.end + bytes);
  const MutexLock lock(index_mutex_);
  stats_.written_bytes += bytes;
  return {};
}

void FileStore::Impl::retire(Directory& directory, Cause cause) {
  QUIRE_CHECK(writer_.in_flight_count == 0, "what is in flight may still land in it");
  Segment& segment = *directory.open;
  directory.open = nullptr;
  segment.state = Segment::State::Retired;
  segment.records = {};
  // After a write that failed the other records may be good. After a sync that failed nobody knows, and no later sync
  // would tell.
  if (cause == Cause::Write && segment.end > segment.durable_end) {
    if (const Status synced = directory.files->sync_file(segment.file, SyncPoint::Flush); synced) {
      segment.durable_end = segment.end;
    } else {
      note_error(synced.error());
    }
  }
  for (const Tombstone& tombstone : segment.tombstones) {
    if (tombstone.offset >= segment.durable_end) directory.owed.push_back(tombstone);
  }
  {
    const MutexLock lock(index_mutex_);
    ++stats_.failed_segments;
  }
  drop_not_durable(segment);
  // Nor may the next process find it: it would sync what this one could not, be told that all is well, and be wrong.
  if (segment.end > segment.durable_end) {
    segment.end = segment.durable_end;
    std::erase_if(segment.tombstones,
                  [&segment](const Tombstone& tombstone) { return tombstone.offset >= segment.end; });
    if (const Status cut = directory.files->set_length(segment.file, segment.end); cut) {
      set_file_bytes(segment, segment.end);
    } else {
      note_error(cut.error());
      give_up(directory);
      return;
    }
  }
  if (!segment.is_out_of_space) count_failure(directory);
}

void FileStore::Impl::drop_not_durable(Segment& segment) {
  const MutexLock lock(index_mutex_);
  std::uint32_t next = FileIndex::kNone;
  for (std::uint32_t entry = index_.segment(segment.slot).first; entry != FileIndex::kNone; entry = next) {
    next = index_.next_in_segment(entry);
    if (index_.page(entry).place.block * kSegmentBlockBytes < segment.durable_end) continue;
    index_.remove(entry);
    ++lost_writes_;
  }
  for (const KeySpaceRecord& record : segment.key_spaces) {
    if (record.offset >= segment.durable_end) index_.remove_text(record.key_space);
  }
  std::erase_if(segment.key_spaces,
                [&segment](const KeySpaceRecord& record) { return record.offset >= segment.durable_end; });
}

void FileStore::Impl::count_failure(Directory& directory) {
  if (++directory.failures_in_row >= kFailuresMax) give_up(directory);
}

void FileStore::Impl::give_up(Directory& directory) {
  collect_all();
  if (directory.is_given_up) return;
  directory.is_given_up = true;
  directory.open = nullptr;
  directory.owed.clear();
  std::vector<Segment*> segments;
  {
    const MutexLock lock(index_mutex_);
    ++stats_.failed_directories;
    for (const std::unique_ptr<Segment>& segment : segments_) {
      if (segment && !segment->is_removed && segment->files == directory.files.get()) {
        segments.push_back(segment.get());
      }
    }
  }
  for (Segment* const segment : segments) lost_writes_ += forget_segment(*segment);
}

Status FileStore::Impl::sync_names(Directory& directory, SyncPoint why) {
  Status synced = directory.files->sync_directory(why);
  if (synced) {
    directory.has_new_names = false;
    directory.has_removed_names = false;
    directory.lowest_removed_order = kNoOrder;
  } else {
    // Which of its files a crash would leave is unknown from here on.
    note_error(synced.error());
    give_up(directory);
  }
  return synced;
}

}  // namespace quire
