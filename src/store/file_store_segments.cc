// SPDX-License-Identifier: Apache-2.0
//
// The life of segments in the writer lane: made when a record needs room, sealed when they are full, retired when
// something fails; and of directories, which are given up.
#include <algorithm>
#include <array>
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

bool FileStore::Impl::has_room(const Segment& segment, std::uint64_t stored_bytes) const {
  return segment.end + record_bytes(stored_bytes) + footer_bytes(segment.record_count + 1) <= segment_bytes;
}

bool FileStore::Impl::has_room_for_segment(const Directory& directory) const {
  return directory.used_bytes + segment_bytes <= share_bytes && directory.segment_count < directory.segment_count_max;
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
  // There is room for one more, which the last one saw to; unless there is less than there was.
  while (!has_room_for_segment(directory)) {
    const Reclaimed reclaimed = reclaim_oldest(number);
    if (reclaimed != Reclaimed::Ok) return reclaimed == Reclaimed::Nothing ? Room::Full : Room::Failed;
  }
  // After a crash there must not be both, this one and those it takes the place of: the capacity is for all of them.
  if (directory.has_removed_names && !sync_names(directory, SyncPoint::RemoveDirectory)) return Room::Failed;
  Status created = create_segment(number);
  if (!created && created.error().code == ErrorCode::Unavailable && !directory.is_given_up) {
    // Others have filled the disk, or have opened all files that the process may open. What is there can still be read,
    // and goes once at most: else a disk that stays full would cost a segment for every page that somebody tries to
    // write.
    if (!directory.is_without_room && reclaim_for_system(number) == Reclaimed::Ok) {
      created = create_segment(number);
      directory.is_without_room = !created;
    }
    if (!created && created.error().code == ErrorCode::Unavailable && !directory.is_given_up) return Room::Full;
  }
  if (directory.is_given_up) return Room::Failed;
  if (!created) return Room::Ok;  // the next try, or the last one
  while (!has_room_for_segment(directory)) {
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
  directory.is_without_room = false;
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
  {
    const MutexLock lock(index_mutex_);
    ++stats_.failed_segments;
  }
  const bool is_out_of_space = segment.is_out_of_space;
  if (std::exchange(segment.records, {}).empty() && try_remove_retired(directory, segment)) {
    if (!is_out_of_space) count_failure(directory);
    return;
  }
  // After a write that failed the other records may be good. After a sync that failed nobody knows, and no later sync
  // would tell. What the segment does not use is given back with the same sync: else each one that fails would cost as
  // much as a full one.
  if (cause == Cause::Write && segment.end > segment.durable_end) {
    const Status cut = directory.files->set_length(segment.file, segment.end);
    if (!cut) note_error(cut.error());
    if (const Status synced = directory.files->sync_file(segment.file, SyncPoint::Flush); synced) {
      segment.durable_end = segment.end;
      if (cut) set_file_bytes(segment, segment.end);
    } else {
      note_error(synced.error());
    }
  }
  for (const Tombstone& tombstone : segment.tombstones) {
    if (tombstone.offset >= segment.durable_end) directory.owed.push_back(tombstone);
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
  if (!is_out_of_space) count_failure(directory);
}

bool FileStore::Impl::try_remove_retired(Directory& directory, Segment& segment) {
  if (const Status removed = directory.files->remove(segment.name); !removed) {
    note_error(removed.error());
    return false;
  }
  // A record whose write failed may be there all the same: a crash could bring it back.
  directory.has_removed_names = true;
  directory.lowest_removed_order = std::min(directory.lowest_removed_order, segment.lowest_page_order);
  (void)forget_segment(segment);
  return true;
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
