// SPDX-License-Identifier: Apache-2.0
//
// Making room: which segment goes, and what of it stays. A directory always has room for one more segment than it has,
// so that what is carried over has a place before the segment it comes from is removed.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "store/file_store_impl.h"

namespace quire {
namespace {

// How many segments are looked at page by page; all others only by their sums.
constexpr std::size_t kLookedAt = 8;

struct Candidate {
  Segment* segment = nullptr;
  std::uint64_t file_bytes = 0;
  std::uint64_t worth_bytes = 0;  // at most twice file_bytes
  std::uint64_t age = 0;  // how many were made since, gone or not: without bound, so that nothing stays for ever

  // Those that are mostly garbage go first, the more the earlier; among the others age counts as much as what would be
  // lost: an old segment of cold pages goes before a young one, and one that is still read stays for some rounds.
  [[nodiscard]] bool is_mostly_garbage() const { return worth_bytes * 2 <= file_bytes; }
  [[nodiscard]] double score() const {
    const double worth = static_cast<double>(worth_bytes) / (2.0 * static_cast<double>(file_bytes));
    return (1.0 - worth) * (is_mostly_garbage() ? 1.0 : static_cast<double>(age));
  }
  friend bool operator<(const Candidate& a, const Candidate& b) {
    if (a.is_mostly_garbage() != b.is_mostly_garbage()) return a.is_mostly_garbage();
    if (a.score() != b.score()) return a.score() > b.score();
    return a.age > b.age;
  }
};

}  // namespace

Segment* FileStore::Impl::choose_victim(std::uint32_t number) {
  std::vector<Candidate> candidates;
  const std::uint64_t next_segment_id = directories_[number].next_segment_id;
  const MutexLock lock(index_mutex_);
  for (const std::unique_ptr<Segment>& segment : segments_) {
    if (!segment || segment->is_removed || segment->directory != number || segment->state == Segment::State::Open) {
      continue;
    }
    const FileIndex::SegmentPages& pages = index_.segment(segment->slot);
    candidates.push_back({.segment = segment.get(),
                          .file_bytes = std::max<std::uint64_t>(segment->file_bytes, 1),
                          .worth_bytes = pages.live_bytes + pages.hot_bytes,
                          .age = next_segment_id - segment->header.segment_id});
  }
  if (candidates.empty()) return nullptr;
  const std::size_t looked_at = std::min(kLookedAt, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(looked_at), candidates.end());
  candidates.resize(looked_at);
  for (Candidate& candidate : candidates) candidate.worth_bytes = worth_bytes(*candidate.segment);
  return std::min_element(candidates.begin(), candidates.end())->segment;
}

// A page is worth its bytes, and twice as much when it is read; nothing when the page before it is not here, because
// nobody would ask for it.
std::uint64_t FileStore::Impl::worth_bytes(const Segment& segment) {
  std::uint64_t worth = 0;
  for (std::uint32_t entry = index_.segment(segment.slot).first; entry != FileIndex::kNone;
       entry = index_.next_in_segment(entry)) {
    const IndexedPage& page = index_.page(entry);
    if (page.page_index > 0 && index_.find(page.parent) == FileIndex::kNone) continue;
    worth += record_bytes(page.stored_bytes) * (index_.hits(entry) > 0 ? 2 : 1);
  }
  return worth;
}

FileStore::Impl::Reclaimed FileStore::Impl::reclaim(std::uint32_t number) {
  const std::vector<Segment*> segments = removable_segments(number);
  if (segments.empty()) return Reclaimed::Nothing;
  // Where there are too many files and not too many bytes, they are short: of processes that wrote little. Such a one
  // is mostly what every segment has besides pages, and only its age tells it from others.
  const bool is_short_of_bytes = directories_[number].used_bytes + segment_bytes > share_bytes;
  Segment* const victim = is_short_of_bytes ? choose_victim(number) : segments.front();
  Segment& target = *directories_[number].open;
  // The oldest one has no tombstones that anything needs.
  if (!plan_carry(*victim, target)) return reclaim_oldest(number);
  if (!carry(*victim, target)) return Reclaimed::Failed;
  return remove_segment(*victim);
}

std::vector<Segment*> FileStore::Impl::removable_segments(std::uint32_t number) {
  std::vector<Segment*> found;
  {
    const MutexLock lock(index_mutex_);
    for (const std::unique_ptr<Segment>& segment : segments_) {
      if (!segment || segment->is_removed || segment->directory != number || segment->state == Segment::State::Open) {
        continue;
      }
      found.push_back(segment.get());
    }
  }
  std::ranges::sort(found, {}, [](const Segment* segment) { return segment->header.segment_id; });
  return found;
}

FileStore::Impl::Reclaimed FileStore::Impl::reclaim_oldest(std::uint32_t number) {
  const std::vector<Segment*> segments = removable_segments(number);
  return segments.empty() ? Reclaimed::Nothing : remove_segment(*segments.front());
}

FileStore::Impl::Reclaimed FileStore::Impl::reclaim_for_system(std::uint32_t number) {
  const std::vector<Segment*> segments = removable_segments(number);
  std::uint64_t room_bytes = directories_[number].files->free_bytes().value_or(0);
  // One at least: the system may count otherwise, as with a quota.
  std::size_t count = 0;
  for (; count < segments.size() && (count == 0 || room_bytes < segment_bytes); ++count) {
    room_bytes += segments[count]->file_bytes;
  }
  if (count == 0 || room_bytes < segment_bytes) return Reclaimed::Nothing;
  for (std::size_t i = 0; i < count; ++i) {
    if (const Reclaimed reclaimed = remove_segment(*segments[i]); reclaimed != Reclaimed::Ok) return reclaimed;
  }
  return Reclaimed::Ok;
}

bool FileStore::Impl::is_needed(const Tombstone& tombstone, const Segment& holder) {
  const MutexLock lock(index_mutex_);
  return std::ranges::any_of(segments_, [&](const std::unique_ptr<Segment>& segment) {
    return segment && !segment->is_removed && segment.get() != &holder && segment->directory == holder.directory &&
           segment->lowest_page_order < tombstone.order;
  });
}

FileStore::Impl::Reclaimed FileStore::Impl::remove_segment(Segment& victim) {
  Directory& directory = directories_[victim.directory];
  const bool lets_go = std::ranges::any_of(
      victim.tombstones, [&](const Tombstone& tombstone) { return tombstone.order > directory.lowest_removed_order; });
  // Segments that this one's tombstones cover were removed; a crash must not bring them back without it.
  if (lets_go && !sync_names(directory, SyncPoint::RemoveDirectory)) return Reclaimed::Failed;
  if (const Status removed = directory.files->remove(victim.name); !removed) {
    note_error(removed.error());
    give_up(directory);
    return Reclaimed::Failed;
  }
  directory.has_removed_names = true;
  directory.lowest_removed_order = std::min(directory.lowest_removed_order, victim.lowest_page_order);
  const std::uint32_t evicted = forget_segment(victim);
  const MutexLock lock(index_mutex_);
  ++stats_.reclaimed_segments;
  stats_.evicted_records += evicted;
  return Reclaimed::Ok;
}

bool FileStore::Impl::plan_carry(const Segment& victim, const Segment& target) {
  carries_.clear();
  carried_tombstones_.clear();
  std::uint64_t end = target.end;
  std::uint64_t record_count = target.record_count;
  const auto take = [&](std::uint64_t stored_bytes, std::uint64_t end_max) {
    const std::uint64_t bytes = record_bytes(stored_bytes);
    if (end + bytes + footer_bytes(record_count + 1) > end_max) return false;
    end += bytes;
    ++record_count;
    return true;
  };
  // What is carried leaves room for new pages: of the small records half a segment at most, of pages all but one.
  const std::uint64_t small_end_max = segment_bytes / 2;
  const std::uint64_t page_end_max = segment_bytes - record_bytes(config.layout.page_bytes) - kSegmentBlockBytes;
  for (const Tombstone& tombstone : victim.tombstones) {
    if (!is_needed(tombstone, victim)) continue;
    if (!take(0, small_end_max)) return false;
    carried_tombstones_.push_back(tombstone);
  }

  const MutexLock lock(index_mutex_);
  for (const KeySpaceRecord& record : victim.key_spaces) {
    const FileIndex::KeySpaceFacts& facts = index_.key_space_facts(record.key_space);
    if (facts.text_count > 1 || facts.page_count == 0 || record_bytes(record.stored_bytes) > writer_.buffer_bytes ||
        !take(record.stored_bytes, small_end_max)) {
      continue;
    }
    carries_.push_back(
        {.name = facts.name,
         .kind = RecordKind::KeySpace,
         .from = {.segment = victim.slot, .block = static_cast<std::uint32_t>(record.offset / kSegmentBlockBytes)},
         .stored_bytes = record.stored_bytes});
  }

  std::vector<Carry> hot;
  for (std::uint32_t entry = index_.segment(victim.slot).first; entry != FileIndex::kNone;
       entry = index_.next_in_segment(entry)) {
    if (index_.hits(entry) == 0) continue;
    const IndexedPage& page = index_.page(entry);
    hot.push_back({.name = page.name,
                   .from = page.place,
                   .stored_bytes = page.stored_bytes,
                   .page_index = page.page_index,
                   .hits = index_.hits(entry)});
  }
  // Parents before children, and what is read most before the rest.
  std::ranges::sort(hot, [](const Carry& a, const Carry& b) {
    if (a.page_index != b.page_index) return a.page_index < b.page_index;
    if (a.hits != b.hits) return a.hits > b.hits;
    return a.from.block < b.from.block;
  });
  // At most half of it, or making room would turn into copying.
  const std::uint64_t bytes_max = victim.file_bytes / 2;
  std::uint64_t bytes = 0;
  std::unordered_set<std::uint32_t> carried;
  for (const Carry& page : hot) {
    const std::uint32_t entry = index_.find(page.name);
    if (page.page_index > 0) {
      const std::uint32_t parent = index_.find(index_.page(entry).parent);
      if (parent == FileIndex::kNone) continue;
      if (index_.page(parent).place.segment == victim.slot && !carried.contains(parent)) continue;
    }
    if (bytes + record_bytes(page.stored_bytes) > bytes_max || !take(page.stored_bytes, page_end_max)) break;
    bytes += record_bytes(page.stored_bytes);
    carries_.push_back(page);
    carried.insert(entry);
  }
  return true;
}

// Whether everything that had to be kept is durable in the target.
bool FileStore::Impl::carry(Segment& victim, Segment& target) {
  Directory& directory = directories_[victim.directory];
  for (const Tombstone& tombstone : carried_tombstones_) {
    const std::uint32_t buffer = take_buffer();
    writer_.flights[buffer] = {.header = record_of(tombstone)};
    append(target, buffer);
  }
  for (std::uint32_t i = 0; i < carries_.size(); ++i) {
    const std::uint32_t buffer = take_buffer();
    writer_.flights[buffer] = {.phase = Flight::Phase::CarryRead,
                               .segment = &victim,
                               .header = {.offset = carries_[i].from.block * kSegmentBlockBytes},
                               .carry_index_plus_1 = i + 1};
    writer_.submit(buffer, IoKind::Read, record_bytes(carries_[i].stored_bytes));
  }
  collect_all();
  if (target.has_failed) return false;
  if (target.end > target.durable_end) {
    if (const Status synced = directory.files->sync_file(target.file, SyncPoint::Carry); !synced) {
      note_error(synced.error());
      retire(directory, Cause::Sync);
      return false;
    }
    target.durable_end = target.end;
    directory.failures_in_row = 0;
    if (directory.has_new_names && !sync_names(directory, SyncPoint::SegmentDirectory)) return false;
  }
  settle_carried();
  return true;
}

void FileStore::Impl::finish_carry_read(std::uint32_t buffer, const Status& status) {
  const std::uint32_t carry_index = writer_.flights[buffer].carry_index_plus_1 - 1;
  const Carry& carried = carries_[carry_index];
  const Segment& victim = *writer_.flights[buffer].segment;
  Segment& target = *directories_[victim.directory].open;
  if (!status) {
    note_error(status.error());
    give_buffer(buffer);
    return;
  }
  const std::uint64_t offset = carried.from.block * kSegmentBlockBytes;
  const std::span<const std::byte> record = writer_.buffer(buffer).first(record_bytes(carried.stored_bytes));
  Result<RecordHeader> header = decode_record_header(
      record, {.salt = victim.header.salt, .offset = offset, .segment_bytes = offset + record.size()});
  const bool is_good =
      header && header->kind == carried.kind && header->stored_bytes == carried.stored_bytes &&
      (carried.kind == RecordKind::Page ? header->name : header->key_space) == carried.name &&
      is_intact(*header, record.subspan(kRecordHeaderBytes, header->stored_bytes), writer_.compressor, scratch_);
  bool is_wanted = is_good && !target.has_failed && has_room(target, carried.stored_bytes);
  {
    const MutexLock lock(index_mutex_);
    if (!is_good) ++stats_.corrupt_records;
    if (is_wanted) {
      header->order = next_order_++;
      // Dropped meanwhile: its tombstone has a lower order than the copy would have.
      if (carried.kind == RecordKind::Page) {
        const std::uint32_t entry = index_.find(carried.name);
        is_wanted = entry != FileIndex::kNone && index_.page(entry).place == carried.from;
      }
    }
  }
  if (!is_wanted) {
    give_buffer(buffer);
    return;
  }
  writer_.flights[buffer] = {.header = *header, .carry_index_plus_1 = carry_index + 1};
  append(target, buffer);
}

void FileStore::Impl::settle_carried() {
  const MutexLock lock(index_mutex_);
  for (const Carry& carried : carries_) {
    if (!carried.is_done || carried.kind != RecordKind::Page) continue;
    const std::uint32_t entry = index_.find(carried.name);
    // Dropped since: the tombstone has the higher order.
    if (entry == FileIndex::kNone || index_.page(entry).place != carried.from) continue;
    index_.move(entry, carried.to, carried.order);
  }
}

}  // namespace quire
