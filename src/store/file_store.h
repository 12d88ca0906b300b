// SPDX-License-Identifier: Apache-2.0
//
// FileStore: the pages of the disk tier, found by name. Records are appended to segments, files of some hundred MiB in
// one or several directories; an index in memory says where the newest record of each name lies. docs/formats.md has
// the bytes, docs/disk.md the promises:
//
//   - What is read is verified: layout, name and checksum. A record that does not verify is dropped, never delivered.
//   - What was written before a flush() that has succeeded is there after any crash, until it is reclaimed or dropped.
//   - The store stays within capacity_bytes. When it is full the segment with the least worth goes; of it, records that
//     were read since they were written are carried over, as long as the page before them is there.
//   - A directory that fails is given up: its pages are gone, the others go on. With none left every call says so.
//
// thread-safe. One writer and one reader may run at a time (two lanes); find() waits for no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/copy_checked.h"
#include "quire/result.h"
#include "quire/types.h"
#include "store/file_system.h"
#include "wire/page_name.h"
#include "wire/segment.h"

namespace quire {

/// How pages of this process lie; those with another hash are not found, and go first when room is needed.
struct FileLayout {
  std::uint64_t page_bytes = 0;
  std::uint64_t hash = 0;
};

struct FileStoreConfig {
  std::vector<std::string> directories;
  std::uint64_t capacity_bytes = 0;  ///< of all directories together, split evenly
  /// Less when capacity_bytes asks for it; more when there would be more segments, all of them open files, than half of
  /// the files that the process may have open.
  std::uint64_t segment_bytes = std::uint64_t{256} << 20U;
  FileLayout layout;
  std::uint32_t store_count = 1;          ///< stores of the process that share its open files
  std::uint32_t queue_depth = 16;         ///< reads or writes in flight
  int zstd_level = 0;                     ///< 0: not compressed
  std::uint64_t random_seed = 0;          ///< for salts and the store's id
  TimeNs now_ns = 0;                      ///< since 1970; when the store was made, for people
  const CheckedCopier* copier = nullptr;  ///< null: the fastest; benchmarks have others
  /// Nothing is written: no file is made, changed or removed, and capacity_bytes is not looked at. The directories are
  /// there, and others may read them meanwhile. What is dropped is not found any more, until the store is opened again.
  bool is_read_only = false;
  [[nodiscard]] Status validate() const;
  /// What a directory's share of capacity_bytes must be for pages of this size.
  [[nodiscard]] static std::uint64_t directory_bytes_min(std::uint64_t page_bytes);
  [[nodiscard]] static std::uint64_t segment_bytes_min(std::uint64_t page_bytes);
};

enum class FileOutcome : std::uint8_t {
  Ok,
  Absent,   ///< no such name
  Corrupt,  ///< of a read: the record did not verify, and was dropped; of a write: the page given was not what its
            ///< checksum says
  Failed,   ///< the file system said no
  Full,     ///< of a write: no room could be made
};

struct FileWrite {
  PageName name;
  PageName parent;
  std::uint32_t page_index = 0;
  std::span<const std::byte> bytes;           ///< page_bytes
  std::optional<std::uint64_t> checksum;      ///< what the bytes should have, if known
  FileOutcome outcome = FileOutcome::Failed;  ///< the answer
};

struct FileRead {
  PageName name;
  std::span<std::byte> bytes;                 ///< page_bytes; written, whatever the answer
  std::uint64_t checksum = 0;                 ///< the answer, when Ok
  FileOutcome outcome = FileOutcome::Failed;  ///< the answer
};

struct FileStoreStats {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;  ///< of files, footers and garbage included
  std::uint64_t live_bytes = 0;  ///< of records that can be found
  std::uint64_t record_count = 0;
  std::uint32_t segment_count = 0;
  std::uint64_t other_layout_records = 0;
  std::uint64_t written_bytes = 0;  ///< since open, everything that was handed to the file system
  std::uint64_t carried_bytes = 0;  ///< part of it: carried over by reclaim
  std::uint64_t read_bytes = 0;
  std::uint64_t reclaimed_segments = 0;
  std::uint64_t evicted_records = 0;  ///< live ones that went with their segment
  std::uint64_t corrupt_records = 0;  ///< dropped, when opening and since
  /// Part of opening: written when the process ended. A segment that is shorter than its header counts as one.
  std::uint64_t torn_records = 0;
  std::uint64_t ignored_files = 0;    ///< found when opening: segments of no store, or of another
  std::uint64_t failed_segments = 0;  ///< retired after a write or sync failed
  std::uint32_t directory_count = 0;
  std::uint32_t failed_directories = 0;
  IoMode mode;
  std::string last_error;  ///< empty: none so far
};

class FileStore {
 public:
  /// Reads the footers of sealed segments and scans what has none. Refuses a directory that is another process's, was
  /// written by a newer quire, or has foreign files in the place of ours. `files` must outlive the store.
  [[nodiscard]] static Result<std::unique_ptr<FileStore>> open(const FileStoreConfig& config, FileSystem& files);
  ~FileStore();  ///< close()

  /// How many leading names are there.
  [[nodiscard]] std::uint32_t find(std::span<const PageName> names) const;
  /// Each page that can be read is; a page that cannot does not keep the others from it.
  void read(std::span<FileRead> pages);
  /// Appends pages of one key space. Those that are there already are Ok at once. `now_ns`: since 1970.
  void write(const KeySpace& key_space, std::span<FileWrite> pages, TimeNs now_ns);
  /// The same by name; `text` may be null, when nobody knows what the key space is called.
  void write(const PageName& key_space, const KeySpace* text, std::span<FileWrite> pages, TimeNs now_ns);
  /// Pages of the key space are gone from here on, and after the next flush() for good.
  [[nodiscard]] Status drop(const PageName& key_space, TimeNs now_ns);
  /// All pages, of key spaces that nobody here has named and of other layouts too. As with drop().
  [[nodiscard]] Status drop_all(TimeNs now_ns);
  /// One page: a reader found that it is no good. As with drop(); nothing happens when it is not there.
  void drop_page(const PageName& name, TimeNs now_ns);
  /// Everything whose write was Ok survives a crash from here on, and what was dropped stays dropped. Fails, once, when
  /// pages were lost since the last time because a write or sync failed: those are not found any more.
  [[nodiscard]] Status flush();
  /// Flushes, seals the open segments and unlocks the directories. Everything is absent afterwards.
  [[nodiscard]] Status close();

  [[nodiscard]] FileStoreStats stats() const;
  /// Bookkeeping agrees with itself; for tests.
  void check_invariants() const;

 private:
  struct Impl;
  explicit FileStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
