// SPDX-License-Identifier: Apache-2.0
//
// The writer lane: records behind records, tombstones, and flush().
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/mutants.h"
#include "store/file_store_impl.h"

namespace quire {
namespace {

// How often tombstones are written anew when the segment they went to fails.
constexpr std::uint32_t kOwedTries = 3;

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
  if (is_closed_ || config.is_read_only) {
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
  if (page.checksum && *page.checksum != header.checksum && !is_mutated(Mutant::TrustsHostPages)) {
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
    for (std::uint32_t tries = 0; tries < kOwedTries && !directory.owed.empty(); ++tries) {
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
        writer_.flights[buffer] = {.header = record_of(owed[i])};
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

Status FileStore::Impl::drop(const std::optional<PageName>& key_space, TimeNs now_ns) {
  const MutexLock lane(writer_mutex_);
  if (is_closed_) return fail(ErrorCode::Io, "the file store is closed");
  std::uint32_t number = FileIndex::kNone;
  std::uint32_t slot_count = 0;
  {
    const MutexLock lock(index_mutex_);
    last_now_ns_ = now_ns;
    add_tombstone({.kind = key_space ? RecordKind::DropKeySpace : RecordKind::DropAll,
                   .name = key_space.value_or(PageName{}),
                   .at_ns = now_ns});
    if (key_space) number = index_.find_key_space(*key_space);
    slot_count = static_cast<std::uint32_t>(segments_.size());
  }
  const bool has_pages = !key_space || number != FileIndex::kNone;
  // Segment by segment, so that find() does not wait for a walk over all pages. Nobody but this lane adds pages, moves
  // them or gives a number to a key space: what was looked at stays as it is.
  for (std::uint32_t slot = 0; slot < slot_count && has_pages; ++slot) {
    const MutexLock lock(index_mutex_);
    std::uint32_t next = FileIndex::kNone;
    for (std::uint32_t entry = index_.segment(slot).first; entry != FileIndex::kNone; entry = next) {
      next = index_.next_in_segment(entry);
      if (!key_space || index_.page(entry).key_space == number) index_.remove(entry);
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
        Status synced;
        if (!is_mutated(Mutant::FlushWithoutSync)) synced = directory.files->sync_file(open->file, SyncPoint::Flush);
        if (synced) {
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
  if (!status) {
    note_error(status.error());
    segment.has_failed = true;
    segment.is_out_of_space = status.error().code == ErrorCode::Unavailable;
    if (flight.write != nullptr)
      flight.write->outcome = segment.is_out_of_space ? FileOutcome::Full : FileOutcome::Failed;
    if (is_tombstone(header.kind) && flight.carry_index_plus_1 == 0) {
      directories_[segment.directory].owed.push_back(tombstone_of(header));
    }
    give_buffer(buffer);
    return;
  }
  segment.records.push_back(header);
  if (is_tombstone(header.kind)) segment.tombstones.push_back(tombstone_of(header));
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

}  // namespace quire
