// SPDX-License-Identifier: Apache-2.0
//
// Looking into the files of a disk tier: what a store has, and whether all of it can be read. For tools and operators;
// a Cache needs none of it. docs/formats.md has the bytes, docs/disk.md what they are for.
//
// Both functions read only, take no lock and make no file, so they work beside a process that has the store open: they
// then see it as it was a moment ago, and say that somebody has it. Only a repair writes; it takes the lock first.
//
// thread-safe: calls share nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/key_space.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

// ── what a store has ─────────────────────────────────────────────────────────────────────────────────────────────────

enum class DiskSegmentState : std::uint8_t {
  Sealed,   ///< complete: its footer lists what is in it
  Open,     ///< without a footer: somebody writes it, or ended before it was complete. Opening the store seals it.
  Damaged,  ///< its header or footer cannot be read
  Empty,    ///< made and never written
  Newer,    ///< a newer quire wrote it
  Foreign,  ///< of another store, or under a wrong name: never read, never removed
};
[[nodiscard]] std::string_view to_string(DiskSegmentState state);

struct DiskDirectoryReport {
  std::string path;
  std::uint64_t file_bytes = 0;  ///< of its segments
  std::uint32_t segment_count = 0;
  bool is_in_use = false;                  ///< a process has it open
  std::optional<std::int64_t> process;     ///< which, where that is known
  std::vector<std::string> foreign_files;  ///< that are no part of a store
  /// Directories in it that are stores of groups or of shards of ranks; look at them one by one.
  std::vector<std::string> group_stores;
  std::optional<std::uint64_t> free_bytes;  ///< what the file system has left
};

struct DiskSegmentReport {
  std::uint32_t directory_index = 0;
  std::string file;  ///< "segment-0000000000000001"
  DiskSegmentState state = DiskSegmentState::Sealed;
  std::string why;                    ///< of one that is damaged, newer or foreign
  std::uint64_t file_bytes = 0;       ///< length of the file
  std::uint64_t page_count = 0;       ///< pages in it, found or not
  std::uint64_t live_pages = 0;       ///< that can be found
  std::uint64_t live_bytes = 0;       ///< of their records, and of those that pages need: key spaces, tombstones
  std::uint64_t garbage_bytes = 0;    ///< that goes when the segment is reclaimed
  std::uint64_t tombstone_count = 0;  ///< records that pages are gone
  std::uint64_t torn_count = 0;       ///< places that begin like a record and are none
};

struct DiskKeySpaceReport {
  std::string name;  ///< 64 hexadecimal digits
  /// What it is called; its salt is not written to disk. Unset when no record says so.
  std::optional<KeySpace> text;
  bool is_salted = false;
  std::uint64_t page_count = 0;  ///< live
  std::uint64_t bytes = 0;       ///< of these pages, before compression
  TimeNs newest_ns = 0;          ///< since 1970; when the newest of them was written
};

struct DiskLayoutReport {
  std::uint64_t hash = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t page_count = 0;  ///< live
};

/// Live pages that were written no longer ago than this, and longer ago than what the age before says.
struct DiskAgeReport {
  TimeNs age_ns_max = 0;  ///< the highest value: all others
  std::uint64_t page_count = 0;
};

struct DiskStoreReport {
  std::string store_id;  ///< 32 hexadecimal digits
  TimeNs created_at_ns = 0;
  std::vector<DiskDirectoryReport> directories;
  std::vector<DiskSegmentReport> segments;
  std::vector<DiskKeySpaceReport> key_spaces;  ///< those with most bytes first
  std::vector<DiskLayoutReport> layouts;       ///< those with most pages first
  std::vector<DiskAgeReport> ages;             ///< youngest first
  std::uint64_t file_bytes = 0;
  std::uint64_t page_count = 0;  ///< live: of each name and layout the newest, if it was not dropped since
  std::uint64_t page_bytes = 0;  ///< of these, before compression
  std::uint64_t compressed_pages = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t garbage_bytes = 0;
  std::uint64_t tombstone_count = 0;
  TimeNs oldest_ns = 0;  ///< since 1970, of live pages
  TimeNs newest_ns = 0;
};

struct InspectOptions {
  TimeNs now_ns = 0;  ///< since 1970, for ages
};

/// What the store in these directories has. Give all of its directories: what one of them says is gone may lie in
/// another. Sealed segments are taken at their footer's word, others are scanned for headers; payloads are not read.
/// Fails for directories that cannot be read, are no store, are not of one store, or whose manifest is damaged or of a
/// newer quire; what is wrong with a segment is in its report.
[[nodiscard]] Result<DiskStoreReport> inspect_disk_store(std::span<const std::string> directories,
                                                         const InspectOptions& options = {});

// ── whether it can be read ───────────────────────────────────────────────────────────────────────────────────────────

enum class DiskRepair : std::uint8_t {
  NotAsked,
  Dropped,  ///< the record is gone
  Mended,   ///< everything that it was about is still there: written anew from a copy that is good
  Removed,  ///< the file is gone: nothing in it could be read
  Left,     ///< not to be repaired here: a newer quire's, or the file system says no
};
[[nodiscard]] std::string_view to_string(DiskRepair repair);

/// Something that is not as it was written.
struct DiskFault {
  std::uint32_t directory_index = 0;
  std::string file;
  std::optional<std::uint64_t> offset;  ///< of the record in it; unset: the file as a whole
  std::string name;                     ///< 64 hexadecimal digits, of a page or key space; empty: not known
  std::string why;
  DiskRepair repair = DiskRepair::NotAsked;
};

struct VerifyProgress {
  std::uint64_t done_bytes = 0;
  std::uint64_t all_bytes = 0;
  std::uint64_t fault_count = 0;
};

struct VerifyOptions {
  /// Drop what is bad, so that all that is left is good. Takes the locks of all directories: Unavailable when somebody
  /// else has one. A crash meanwhile is one of the store's: what was good is still found.
  bool repair = false;
  /// Called now and then on the calling thread. Once it returns false, nothing more is looked at.
  std::function<bool(const VerifyProgress&)> on_progress = {};
};

struct VerifyReport {
  std::vector<DiskDirectoryReport> directories;
  std::uint64_t segment_count = 0;  ///< that were looked at
  std::uint64_t record_count = 0;   ///< good ones
  std::uint64_t page_count = 0;     ///< of these
  std::uint64_t compressed_pages = 0;
  std::uint64_t file_bytes = 0;  ///< of the segments that were looked at
  std::vector<DiskFault> faults;
  /// Records without a footer that were not complete while a process had the store: on their way to disk.
  std::uint64_t unfinished_count = 0;
  bool is_complete = true;  ///< false: stopped by on_progress

  /// Nothing is bad, or nothing any more.
  [[nodiscard]] bool is_clean() const;
};

/// Reads every record of the store, and compares headers, footers and payloads with their checksums; compressed ones
/// are decompressed for it. Fails as inspect_disk_store() does; everything else that is wrong is in the report.
[[nodiscard]] Result<VerifyReport> verify_disk_store(std::span<const std::string> directories,
                                                     const VerifyOptions& options = {});

}  // namespace quire
