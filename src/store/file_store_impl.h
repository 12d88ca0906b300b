// SPDX-License-Identifier: Apache-2.0
//
// What a FileStore is made of. Its parts lie in one file each: opening (file_store_recover.cc), appending and flushing
// (file_store_write.cc), making, sealing and retiring segments (file_store_segments.cc), making room
// (file_store_reclaim.cc), reading (file_store_read.cc), the rest (file_store.cc).
//
// Who may touch what:
//
//     writer_mutex_   the writer lane: directories, open segments, everything that changes files
//     reader_mutex_   the reader lane
//     index_mutex_    the index, the table of segments, figures; taken last, and never held while a file is touched
//
// A segment is in the table as long as its file exists or somebody reads it: readers pin it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kernels/copy_checked.h"
#include "quire/result.h"
#include "quire/types.h"
#include "store/file_index.h"
#include "store/file_store.h"
#include "store/file_system.h"
#include "store/page_compressor.h"
#include "wire/segment.h"

namespace quire {

inline constexpr std::uint64_t kNoOrder = std::numeric_limits<std::uint64_t>::max();
inline constexpr std::uint32_t kNoSegment = FileIndex::kNone;

/// That pages are gone: all, a key space's, or one.
struct Tombstone {
  RecordKind kind = RecordKind::DropPage;
  PageName name;  ///< of the page or the key space; of DropAll: none
  std::uint64_t order = 0;
  TimeNs at_ns = 0;
  std::uint64_t offset = 0;  ///< in its segment, once it is written
};

[[nodiscard]] constexpr bool is_tombstone(RecordKind kind) {
  return kind == RecordKind::DropKeySpace || kind == RecordKind::DropPage || kind == RecordKind::DropAll;
}
[[nodiscard]] inline Tombstone tombstone_of(const RecordHeader& record) {
  return {.kind = record.kind,
          .name = record.kind == RecordKind::DropPage ? record.name : record.key_space,
          .order = record.order,
          .at_ns = record.stored_at_ns,
          .offset = record.offset};
}
[[nodiscard]] inline RecordHeader record_of(const Tombstone& tombstone) {
  const bool is_page = tombstone.kind == RecordKind::DropPage;
  return {.kind = tombstone.kind,
          .order = tombstone.order,
          .name = is_page ? tombstone.name : PageName{},
          .key_space = is_page ? PageName{} : tombstone.name,
          .stored_at_ns = tombstone.at_ns};
}

/// Where a segment has the KeySpace record of a key space.
struct KeySpaceRecord {
  std::uint32_t key_space = 0;  ///< the index's number
  std::uint64_t offset = 0;
  std::uint32_t stored_bytes = 0;
};

struct Segment {
  enum class State : std::uint8_t {
    Open,     ///< records are appended
    Sealed,   ///< it has a footer
    Retired,  ///< neither: something failed
  };

  // Fixed; readers that pin it may look.
  std::uint32_t slot = kNoSegment;
  std::uint32_t directory = 0;
  StoreDirectory* files = nullptr;
  std::string name;
  FileId file;
  SegmentHeader header;

  // The writer lane's.
  State state = State::Open;
  bool has_failed = false;        ///< a write did not succeed
  bool is_out_of_space = false;   ///< because the disk is full
  std::uint64_t file_bytes = 0;   ///< what it takes of the capacity
  std::uint64_t end = 0;          ///< of its records
  std::uint64_t durable_end = 0;  ///< of those that survive a crash, once its name does
  std::uint64_t record_count = 0;
  std::uint64_t lowest_page_order = kNoOrder;  ///< of all pages in it, found or not: what tombstones may cover
  std::vector<RecordHeader> records;           ///< for the footer; while it is open
  std::vector<Tombstone> tombstones;
  std::vector<KeySpaceRecord> key_spaces;

  // Guarded by index_mutex_.
  std::uint64_t other_layout_records = 0;
  std::uint32_t reader_count = 0;
  bool is_removed = false;  ///< the last reader closes it
};

/// One of the directories; the writer lane's.
struct Directory {
  std::unique_ptr<StoreDirectory> files;
  Segment* open = nullptr;
  bool is_given_up = false;
  std::uint32_t failures_in_row = 0;
  std::uint64_t used_bytes = 0;
  std::uint32_t segment_count = 0;
  /// The store's, or as many as were found: those could be opened, and more are not made.
  std::uint32_t segment_count_max = 0;
  std::uint64_t next_segment_id = 1;
  bool is_without_room = false;    ///< no segment could be made, and giving up others did not help
  bool has_new_names = false;      ///< segments that a crash could take away
  bool has_removed_names = false;  ///< segments that a crash could bring back
  /// Of pages in segments that a crash could bring back.
  std::uint64_t lowest_removed_order = kNoOrder;
  std::vector<Tombstone> owed;  ///< to be written before anything else
};

/// A record on its way, in one buffer of a lane.
struct Flight {
  enum class Phase : std::uint8_t { Idle, Append, CarryRead, Read };

  Phase phase = Phase::Idle;
  Segment* segment = nullptr;
  RecordHeader header;
  FileWrite* write = nullptr;            ///< of a page that is being written
  FileRead* read = nullptr;              ///< of a page that is being read
  std::uint32_t carry_index_plus_1 = 0;  ///< of a record that is carried over
};

/// A queue and what is in flight in it: flight i has buffer i.
struct Lane {
  std::unique_ptr<IoQueue> queue;
  std::uint64_t buffer_bytes = 0;
  std::vector<Flight> flights;
  std::vector<std::uint32_t> free;  ///< buffers
  std::uint32_t in_flight_count = 0;
  std::vector<IoResult> results;
  PageCompressor compressor;

  [[nodiscard]] Status make(FileSystem& files, const IoQueueConfig& config);
  [[nodiscard]] std::span<std::byte> buffer(std::uint32_t index) {
    return queue->memory().subspan(index * buffer_bytes, buffer_bytes);
  }
  void submit(std::uint32_t index, IoKind kind, std::uint64_t bytes);
};

struct FileStore::Impl {
  enum class Room : std::uint8_t { Ok, Full, Failed };
  enum class Reclaimed : std::uint8_t { Ok, Nothing, Failed };
  enum class Cause : std::uint8_t { Write, Sync };

  /// A record that moves to another segment.
  struct Carry {
    PageName name;
    RecordKind kind = RecordKind::Page;
    PagePlace from;
    std::uint32_t stored_bytes = 0;
    std::uint32_t page_index = 0;
    std::uint32_t hits = 0;
    std::uint32_t key_space = 0;
    PagePlace to;
    std::uint64_t order = 0;
    bool is_done = false;
  };

  Impl(const FileStoreConfig& store_config, FileSystem& file_system);
  ~Impl();

  // ── file_store_recover.cc ──
  [[nodiscard]] Status open();
  [[nodiscard]] Status open_directories() QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Result<std::optional<Manifest>> read_manifest(Directory& directory,
                                                              const std::vector<std::string>& names)
      QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Status write_manifest(Directory& directory, const Manifest& manifest) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Result<std::uint64_t> open_segments(std::uint32_t number, const std::vector<std::string>& names)
      QUIRE_REQUIRES(writer_mutex_);
  void recover(std::unique_ptr<Segment> segment) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] bool recover_from_footer(Segment& segment) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Status recover_by_scan(Segment& segment) QUIRE_REQUIRES(writer_mutex_);
  void recover_record(Segment& segment, const RecordHeader& record) QUIRE_REQUIRES(writer_mutex_);
  void apply_tombstones() QUIRE_REQUIRES(writer_mutex_);

  // ── file_store_write.cc ──
  void write(const PageName& name, const KeySpace* text, std::span<FileWrite> pages, TimeNs now_ns);
  /// Without a key space: everything.
  [[nodiscard]] Status drop(const std::optional<PageName>& key_space, TimeNs now_ns);
  [[nodiscard]] Status flush();
  [[nodiscard]] Status flush_locked() QUIRE_REQUIRES(writer_mutex_);
  void write_page(const PageName& key_space, FileWrite& page, TimeNs now_ns) QUIRE_REQUIRES(writer_mutex_);
  void write_key_space(const KeySpace& key_space, const PageName& name, TimeNs now_ns) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Status write_owed() QUIRE_REQUIRES(writer_mutex_);
  /// A buffer that is nobody's; waits for one.
  [[nodiscard]] std::uint32_t take_buffer() QUIRE_REQUIRES(writer_mutex_);
  void give_buffer(std::uint32_t buffer) QUIRE_REQUIRES(writer_mutex_);
  /// Puts a record behind the others in a segment that has room for it, which was seen to.
  void append(Segment& segment, std::uint32_t buffer) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] bool is_in_flight(const PageName& name) const QUIRE_REQUIRES(writer_mutex_);
  /// Waits for one or more requests; for all.
  void collect() QUIRE_REQUIRES(writer_mutex_);
  void collect_all() QUIRE_REQUIRES(writer_mutex_);
  void finish_append(std::uint32_t buffer, const Status& status) QUIRE_REQUIRES(writer_mutex_);

  // ── file_store_segments.cc ──
  [[nodiscard]] bool has_room(const Segment& segment, std::uint64_t stored_bytes) const QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] bool has_room_for_segment(const Directory& directory) const QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Room ensure_room(std::uint32_t directory, std::uint64_t stored_bytes) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Room open_segment(std::uint32_t directory) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Status create_segment(std::uint32_t directory) QUIRE_REQUIRES(writer_mutex_);
  void seal(Directory& directory) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Status write_footer(Segment& segment) QUIRE_REQUIRES(writer_mutex_);
  /// The open segment gets no more records; those that are not known to be durable are gone.
  void retire(Directory& directory, Cause cause) QUIRE_REQUIRES(writer_mutex_);
  /// One that has no record.
  [[nodiscard]] bool try_remove_retired(Directory& directory, Segment& segment) QUIRE_REQUIRES(writer_mutex_);
  void drop_not_durable(Segment& segment) QUIRE_REQUIRES(writer_mutex_);
  void count_failure(Directory& directory) QUIRE_REQUIRES(writer_mutex_);
  void give_up(Directory& directory) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Segment* find_room(std::uint64_t stored_bytes, FileOutcome& why_not) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Status sync_names(Directory& directory, SyncPoint why) QUIRE_REQUIRES(writer_mutex_);

  // ── file_store_reclaim.cc ──
  /// Removes the segment with the least worth, and carries what is hot into the open one.
  [[nodiscard]] Reclaimed reclaim(std::uint32_t directory) QUIRE_REQUIRES(writer_mutex_);
  /// Removes the oldest one with everything in it.
  [[nodiscard]] Reclaimed reclaim_oldest(std::uint32_t directory) QUIRE_REQUIRES(writer_mutex_);
  /// For a system that has no room for a segment: as many of the oldest as that takes, if they are enough.
  [[nodiscard]] Reclaimed reclaim_for_system(std::uint32_t directory) QUIRE_REQUIRES(writer_mutex_);
  /// Those that may be removed, the oldest first.
  [[nodiscard]] std::vector<Segment*> removable_segments(std::uint32_t directory) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] Segment* choose_victim(std::uint32_t directory) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] std::uint64_t worth_bytes(const Segment& segment) QUIRE_REQUIRES(index_mutex_);
  [[nodiscard]] Reclaimed remove_segment(Segment& victim) QUIRE_REQUIRES(writer_mutex_);
  /// What of the victim goes to the target; false when its tombstones do not fit.
  [[nodiscard]] bool plan_carry(const Segment& victim, const Segment& target) QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] bool carry(Segment& victim, Segment& target) QUIRE_REQUIRES(writer_mutex_);
  void finish_carry_read(std::uint32_t buffer, const Status& status) QUIRE_REQUIRES(writer_mutex_);
  void settle_carried() QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] bool is_needed(const Tombstone& tombstone, const Segment& holder) QUIRE_REQUIRES(writer_mutex_);

  // ── file_store_read.cc ──
  void read(std::span<FileRead> pages);
  void start_read(FileRead& page) QUIRE_REQUIRES(reader_mutex_);
  void finish_read(std::uint32_t buffer, const Status& status) QUIRE_REQUIRES(reader_mutex_);
  [[nodiscard]] FileOutcome verify_into(const Flight& flight, std::span<const std::byte> record, FileRead& page)
      QUIRE_REQUIRES(reader_mutex_);
  void unpin(Segment& segment);

  // ── file_store.cc ──
  [[nodiscard]] Status close();
  void let_go_of_files() QUIRE_REQUIRES(writer_mutex_);
  [[nodiscard]] FileStoreStats stats() const;
  void check_invariants();
  [[nodiscard]] std::uint32_t find(std::span<const PageName> names) const;
  void drop_page(const PageName& name, TimeNs now_ns);
  /// The page is no longer found, and will be told so to the next process.
  void bury(std::uint32_t entry) QUIRE_REQUIRES(index_mutex_);
  /// The next records to be written say that something is gone; nothing does in a store that is only read.
  void add_tombstone(Tombstone tombstone) QUIRE_REQUIRES(index_mutex_);
  /// The payload of a record is what its header says. `scratch` holds it when it was compressed.
  [[nodiscard]] static bool is_intact(const RecordHeader& header, std::span<const std::byte> payload,
                                      PageCompressor& compressor, std::vector<std::byte>& scratch);
  [[nodiscard]] Segment& add_segment(std::unique_ptr<Segment> segment) QUIRE_REQUIRES(writer_mutex_);
  void set_file_bytes(Segment& segment, std::uint64_t bytes) QUIRE_REQUIRES(writer_mutex_);
  /// Its pages are not found any more, and its file is closed when nobody reads it. Counts the pages.
  std::uint32_t forget_segment(Segment& segment) QUIRE_REQUIRES(writer_mutex_);
  void note_error(const Error& error);
  [[nodiscard]] IndexedPage indexed(const RecordHeader& header, const Segment& segment) QUIRE_REQUIRES(index_mutex_);

  const FileStoreConfig config;
  FileSystem& files;
  const CheckedCopier& copier;
  // Fixed by open().
  std::uint64_t segment_bytes = 0;
  std::uint32_t segment_count_max = 0;  // of each directory
  std::uint64_t share_bytes = 0;        // of each directory
  std::array<std::byte, 16> store_id{};

  mutable Mutex writer_mutex_;
  std::vector<Directory> directories_ QUIRE_GUARDED_BY(writer_mutex_);
  std::uint32_t next_directory_ QUIRE_GUARDED_BY(writer_mutex_) = 0;
  Lane writer_ QUIRE_GUARDED_BY(writer_mutex_);
  std::uint64_t lost_writes_ QUIRE_GUARDED_BY(writer_mutex_) = 0;  // since a flush said so
  std::vector<Carry> carries_ QUIRE_GUARDED_BY(writer_mutex_);
  std::vector<Tombstone> carried_tombstones_ QUIRE_GUARDED_BY(writer_mutex_);
  std::vector<std::unique_ptr<Segment>> recovered_ QUIRE_GUARDED_BY(writer_mutex_);  // while opening
  std::vector<std::byte> scratch_ QUIRE_GUARDED_BY(writer_mutex_);
  bool is_closed_ QUIRE_GUARDED_BY(writer_mutex_) = false;

  mutable Mutex reader_mutex_;
  Lane reader_ QUIRE_GUARDED_BY(reader_mutex_);

  mutable Mutex index_mutex_;
  FileIndex index_ QUIRE_GUARDED_BY(index_mutex_);
  std::vector<std::unique_ptr<Segment>> segments_ QUIRE_GUARDED_BY(index_mutex_);
  std::vector<std::uint32_t> free_slots_ QUIRE_GUARDED_BY(index_mutex_);
  std::uint64_t next_order_ QUIRE_GUARDED_BY(index_mutex_) = 1;
  std::vector<Tombstone> pending_ QUIRE_GUARDED_BY(index_mutex_);  // not yet owed by any directory
  TimeNs last_now_ns_ QUIRE_GUARDED_BY(index_mutex_) = 0;
  FileStoreStats stats_ QUIRE_GUARDED_BY(index_mutex_);
};

}  // namespace quire
