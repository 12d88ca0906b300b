// SPDX-License-Identifier: Apache-2.0
#include "store/file_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "layout/text.h"
#include "store/file_store_impl.h"
#include "store/record_payload.h"

namespace quire {
namespace {

// Fewer than four, and making room would throw away a large part of the store at once.
constexpr std::uint64_t kSegmentsMin = 4;
// Small stores have shorter segments instead of fewer.
constexpr std::uint64_t kSegmentsWanted = 8;
constexpr std::uint64_t kSegmentBytesMax = std::uint64_t{1} << 40U;
constexpr std::uint32_t kQueueDepthMax = 4096;

constexpr std::uint64_t round_down(std::uint64_t bytes) {
  return bytes / kSegmentBlockBytes * kSegmentBlockBytes;
}

// A segment that holds one page, what its key space is called, and a tombstone.
std::uint64_t least_segment_bytes(std::uint64_t page_bytes) {
  return kSegmentBlockBytes + record_bytes(page_bytes) + (2 * kSegmentBlockBytes) + footer_bytes(3);
}

std::uint64_t share_of(const FileStoreConfig& config) {
  return round_down(config.capacity_bytes / std::max<std::uint64_t>(config.directories.size(), 1));
}

// Every segment is an open file: half of what the process may have is for them, the rest is everybody else's.
std::uint32_t segment_count_max_of(const FileStoreConfig& config, const FileSystem& files) {
  const std::uint64_t shares = std::max<std::uint64_t>(config.directories.size(), 1) * std::max(config.store_count, 1U);
  const std::uint64_t count = files.open_files_max() / 2 / shares;
  return static_cast<std::uint32_t>(std::max(count, kSegmentsWanted));
}

std::uint64_t segment_bytes_of(const FileStoreConfig& config, const FileSystem& files) {
  const std::uint64_t share_bytes = share_of(config);
  const std::uint64_t least = least_segment_bytes(config.layout.page_bytes);
  const std::uint64_t wanted =
      std::clamp(round_down(share_bytes / kSegmentsWanted), least, std::max(round_down(config.segment_bytes), least));
  // Large stores have longer segments instead of more. A quarter of them may be short: each process leaves one.
  const std::uint64_t full_count = segment_count_max_of(config, files) * std::uint64_t{3} / 4;
  return std::max(wanted, std::min(round_down(share_bytes / full_count), kSegmentBytesMax));
}

}  // namespace

std::uint64_t FileStoreConfig::segment_bytes_min(std::uint64_t page_bytes) {
  return least_segment_bytes(page_bytes);
}

std::uint64_t FileStoreConfig::directory_bytes_min(std::uint64_t page_bytes) {
  return kSegmentsMin * segment_bytes_min(page_bytes);
}

Status FileStoreConfig::validate() const {
  if (directories.empty()) return fail(ErrorCode::InvalidArgument, "directories is empty: name one for the file store");
  for (std::size_t i = 0; i < directories.size(); ++i) {
    if (directories[i].empty()) return fail(ErrorCode::InvalidArgument, "one of the directories has an empty name");
    if (std::find(directories.begin(), directories.begin() + static_cast<std::ptrdiff_t>(i), directories[i]) !=
        directories.begin() + static_cast<std::ptrdiff_t>(i)) {
      return fail(ErrorCode::InvalidArgument, "directories names " + directories[i] + " twice");
    }
  }
  if (layout.page_bytes == 0 || layout.page_bytes > kFilePageBytesMax) {
    return fail(ErrorCode::InvalidArgument, "page_bytes is " + std::to_string(layout.page_bytes) +
                                                ": a page has at least 1 byte and at most " +
                                                std::to_string(kFilePageBytesMax));
  }
  if (queue_depth == 0 || queue_depth > kQueueDepthMax) {
    return fail(ErrorCode::InvalidArgument, "queue_depth is " + std::to_string(queue_depth) +
                                                ": at least 1 and at most " + std::to_string(kQueueDepthMax));
  }
  if (zstd_level < 0 || zstd_level > 22) {
    return fail(ErrorCode::InvalidArgument, "zstd_level is " + std::to_string(zstd_level) + ": 0 for none, up to 22");
  }
  if (segment_bytes > kSegmentBytesMax) {
    return fail(ErrorCode::InvalidArgument,
                "segment_bytes is " + std::to_string(segment_bytes) + ": at most " + std::to_string(kSegmentBytesMax));
  }
  const std::uint64_t least = segment_bytes_min(layout.page_bytes);
  if (segment_bytes < least) {
    return fail(ErrorCode::InvalidArgument, "segment_bytes is " + std::to_string(segment_bytes) +
                                                ", but a segment with one page takes " + std::to_string(least));
  }
  if (!is_read_only && share_of(*this) < directory_bytes_min(layout.page_bytes)) {
    return fail(ErrorCode::InvalidArgument,
                "capacity_bytes is " + with_separators(capacity_bytes) + ": a directory needs at least " +
                    with_separators(directory_bytes_min(layout.page_bytes)) + ", " + std::to_string(kSegmentsMin) +
                    " segments of one page; directories: " + std::to_string(directories.size()));
  }
  return {};
}

Status Lane::make(FileSystem& files, const IoQueueConfig& config) {
  buffer_bytes = config.buffer_bytes;
  QUIRE_TRY_ASSIGN(queue, files.make_queue(config));
  flights.resize(config.depth);
  results.resize(config.depth);
  free.reserve(config.depth);
  for (std::uint32_t buffer = config.depth; buffer > 0; --buffer) free.push_back(buffer - 1);
  return {};
}

void Lane::submit(std::uint32_t index, IoKind kind, std::uint64_t bytes) {
  ++in_flight_count;
  queue->submit({.kind = kind,
                 .file = flights[index].segment->file,
                 .offset = flights[index].header.offset,
                 .buffer = buffer(index).first(bytes),
                 .tag = index});
}

FileStore::Impl::Impl(const FileStoreConfig& store_config, FileSystem& file_system)
    : config(store_config),
      files(file_system),
      copier(store_config.copier != nullptr ? *store_config.copier : best_checked_copier()),
      segment_bytes(segment_bytes_of(store_config, file_system)),
      segment_count_max(segment_count_max_of(store_config, file_system)),
      share_bytes(share_of(store_config)) {}

FileStore::Impl::~Impl() {
  (void)close();
  const MutexLock writer(writer_mutex_);
  let_go_of_files();
}

Status FileStore::Impl::close() {
  const MutexLock writer(writer_mutex_);
  if (is_closed_) return {};
  const Status status = flush_locked();
  for (Directory& directory : directories_) {
    if (directory.open != nullptr) seal(directory);
  }
  is_closed_ = true;
  let_go_of_files();
  return status;
}

void FileStore::Impl::let_go_of_files() {
  const MutexLock reader(reader_mutex_);
  std::vector<std::unique_ptr<Segment>> segments = std::exchange(recovered_, {});
  {
    const MutexLock lock(index_mutex_);
    index_.clear();
    for (std::unique_ptr<Segment>& segment : segments_) {
      if (segment) segments.push_back(std::move(segment));
    }
    segments_.clear();
    free_slots_.clear();
    stats_.used_bytes = 0;
    stats_.segment_count = 0;
    stats_.other_layout_records = 0;
  }
  for (const std::unique_ptr<Segment>& segment : segments) segment->files->close(segment->file);
  // Queues go before the directories of the files they worked on, and those give their locks back.
  writer_.queue.reset();
  reader_.queue.reset();
  directories_.clear();
}

std::uint32_t FileStore::Impl::find(std::span<const PageName> names) const {
  const MutexLock lock(index_mutex_);
  std::uint32_t count = 0;
  while (count < names.size() && index_.find(names[count]) != FileIndex::kNone) ++count;
  return count;
}

void FileStore::Impl::bury(std::uint32_t entry) {
  add_tombstone({.kind = RecordKind::DropPage, .name = index_.page(entry).name, .at_ns = last_now_ns_});
  index_.remove(entry);
}

void FileStore::Impl::add_tombstone(Tombstone tombstone) {
  if (config.is_read_only) return;
  tombstone.order = next_order_++;
  pending_.push_back(tombstone);
}

void FileStore::Impl::drop_page(const PageName& name, TimeNs now_ns) {
  const MutexLock lock(index_mutex_);
  last_now_ns_ = now_ns;
  if (const std::uint32_t entry = index_.find(name); entry != FileIndex::kNone) bury(entry);
}

bool FileStore::Impl::is_intact(const RecordHeader& header, std::span<const std::byte> payload,
                                PageCompressor& compressor, std::vector<std::byte>& scratch) {
  return payload_fault(header, payload, compressor, scratch).empty();
}

Segment& FileStore::Impl::add_segment(std::unique_ptr<Segment> segment) {
  const MutexLock lock(index_mutex_);
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(segments_.size()));
    segments_.emplace_back();
  }
  Segment& added = *segment;
  ++directories_[added.directory].segment_count;
  added.slot = free_slots_.back();
  free_slots_.pop_back();
  index_.add_segment(added.slot);
  segments_[added.slot] = std::move(segment);
  ++stats_.segment_count;
  return added;
}

void FileStore::Impl::set_file_bytes(Segment& segment, std::uint64_t bytes) {
  Directory& directory = directories_[segment.directory];
  directory.used_bytes = directory.used_bytes - segment.file_bytes + bytes;
  const MutexLock lock(index_mutex_);
  stats_.used_bytes = stats_.used_bytes - segment.file_bytes + bytes;
  segment.file_bytes = bytes;
}

std::uint32_t FileStore::Impl::forget_segment(Segment& segment) {
  set_file_bytes(segment, 0);
  --directories_[segment.directory].segment_count;
  std::unique_ptr<Segment> unread;
  std::uint32_t page_count = 0;
  {
    const MutexLock lock(index_mutex_);
    for (std::uint32_t first = index_.segment(segment.slot).first; first != FileIndex::kNone;
         first = index_.segment(segment.slot).first) {
      index_.remove(first);
      ++page_count;
    }
    for (const KeySpaceRecord& record : segment.key_spaces) index_.remove_text(record.key_space);
    segment.key_spaces.clear();
    stats_.other_layout_records -= segment.other_layout_records;
    segment.other_layout_records = 0;
    --stats_.segment_count;
    segment.is_removed = true;
    if (segment.reader_count == 0) {
      free_slots_.push_back(segment.slot);
      unread = std::move(segments_[segment.slot]);
    }
  }
  if (unread) unread->files->close(unread->file);
  return page_count;
}

void FileStore::Impl::unpin(Segment& segment) {
  std::unique_ptr<Segment> unread;
  {
    const MutexLock lock(index_mutex_);
    if (--segment.reader_count > 0 || !segment.is_removed) return;
    free_slots_.push_back(segment.slot);
    unread = std::move(segments_[segment.slot]);
  }
  unread->files->close(unread->file);
}

void FileStore::Impl::note_error(const Error& error) {
  const MutexLock lock(index_mutex_);
  stats_.last_error = error.message;
}

IndexedPage FileStore::Impl::indexed(const RecordHeader& header, const Segment& segment) {
  return {.name = header.name,
          .parent = header.parent,
          .order = header.order,
          .place = {.segment = segment.slot, .block = static_cast<std::uint32_t>(header.offset / kSegmentBlockBytes)},
          .stored_bytes = static_cast<std::uint32_t>(header.stored_bytes),
          .page_index = header.page_index,
          .key_space = index_.key_space(header.key_space)};
}

FileStoreStats FileStore::Impl::stats() const {
  const MutexLock lock(index_mutex_);
  FileStoreStats stats = stats_;
  stats.capacity_bytes = config.capacity_bytes;
  stats.live_bytes = index_.live_bytes();
  stats.record_count = index_.page_count();
  stats.directory_count = static_cast<std::uint32_t>(config.directories.size());
  stats.mode = files.mode();
  return stats;
}

void FileStore::Impl::check_invariants() {
  const MutexLock writer(writer_mutex_);
  const MutexLock lock(index_mutex_);
  index_.check_invariants();
  QUIRE_CHECK(writer_.in_flight_count == 0, "nothing is in flight between calls");
  std::vector<std::uint64_t> used_bytes(directories_.size());
  std::vector<std::uint32_t> segment_counts(directories_.size());
  std::uint64_t other_layout_records = 0;
  for (const std::unique_ptr<Segment>& segment : segments_) {
    if (!segment || segment->is_removed) continue;
    used_bytes[segment->directory] += segment->file_bytes;
    ++segment_counts[segment->directory];
    other_layout_records += segment->other_layout_records;
    QUIRE_CHECK(!directories_[segment->directory].is_given_up, "nothing is found in a directory that was given up");
    QUIRE_CHECK((directories_[segment->directory].open == segment.get()) == (segment->state == Segment::State::Open),
                "a directory knows its open segment");
    QUIRE_CHECK(segment->durable_end <= segment->end, "what is durable was written");
    for (std::uint32_t entry = index_.segment(segment->slot).first; entry != FileIndex::kNone;
         entry = index_.next_in_segment(entry)) {
      const IndexedPage& page = index_.page(entry);
      QUIRE_CHECK((page.place.block * kSegmentBlockBytes) + record_bytes(page.stored_bytes) <= segment->end,
                  "records lie inside their segment");
      QUIRE_CHECK(page.order >= segment->lowest_page_order && page.order < next_order_, "orders are known");
      QUIRE_CHECK(
          segment->state != Segment::State::Retired || page.place.block * kSegmentBlockBytes < segment->durable_end,
          "what a retired segment has is durable");
    }
  }
  for (std::size_t i = 0; i < directories_.size(); ++i) {
    QUIRE_CHECK(used_bytes[i] == directories_[i].used_bytes, "a directory's bytes are those of its segments");
    QUIRE_CHECK(used_bytes[i] <= share_bytes, "no directory has more than its share");
    QUIRE_CHECK(segment_counts[i] == directories_[i].segment_count, "a directory's segments are counted");
    QUIRE_CHECK(segment_counts[i] <= directories_[i].segment_count_max, "no directory has more files than it may");
  }
  QUIRE_CHECK(other_layout_records == stats_.other_layout_records, "records with another layout are counted");
}

FileStore::FileStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FileStore::~FileStore() = default;

Result<std::unique_ptr<FileStore>> FileStore::open(const FileStoreConfig& config, FileSystem& files) {
  QUIRE_TRY(config.validate());
  auto impl = std::make_unique<Impl>(config, files);
  QUIRE_TRY(impl->open());
  return std::unique_ptr<FileStore>(new FileStore(std::move(impl)));
}

std::uint32_t FileStore::find(std::span<const PageName> names) const {
  return impl_->find(names);
}
void FileStore::read(std::span<FileRead> pages) {
  impl_->read(pages);
}
void FileStore::write(const KeySpace& key_space, std::span<FileWrite> pages, TimeNs now_ns) {
  impl_->write(key_space_name(key_space), &key_space, pages, now_ns);
}

void FileStore::write(const PageName& key_space, const KeySpace* text, std::span<FileWrite> pages, TimeNs now_ns) {
  impl_->write(key_space, text, pages, now_ns);
}
Status FileStore::drop(const PageName& key_space, TimeNs now_ns) {
  return impl_->drop(key_space, now_ns);
}
Status FileStore::drop_all(TimeNs now_ns) {
  return impl_->drop(std::nullopt, now_ns);
}
void FileStore::drop_page(const PageName& name, TimeNs now_ns) {
  impl_->drop_page(name, now_ns);
}
Status FileStore::flush() {
  return impl_->flush();
}
Status FileStore::close() {
  return impl_->close();
}
FileStoreStats FileStore::stats() const {
  return impl_->stats();
}
void FileStore::check_invariants() const {
  impl_->check_invariants();
}

}  // namespace quire
