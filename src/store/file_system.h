// SPDX-License-Identifier: Apache-2.0
//
// FileSystem: everything the file store asks of files, as a seam. The real one (system_files.h) uses io_uring, O_DIRECT
// and registered buffers where the system has them, and does without what it refuses; the simulated one
// (testing/sim_disk.h) loses, tears and reorders what was not synced.
//
// What a crash may do: of bytes written since the last sync_file() of their file, any subset of 512-byte sectors may be
// there, in the old or in the new form; its length may be any between; names made, renamed or removed since the last
// sync_directory() may be there or not, each on its own. What was synced stays. A sync that failed has synced some of
// it, nobody knows what, and a later one does not make up for it: what was written before must be written again, to
// another file.
//
// Everything goes by blocks of 4096 bytes, which is what O_DIRECT asks for.
//
// thread-safe, except that an IoQueue belongs to one thread at a time, which lives until its requests are done; calls
// for one file must not overlap, but those of queues.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/result.h"

namespace quire {

/// Offsets and lengths of reads and writes, lengths of files, and addresses of a queue's buffers are multiples of it.
inline constexpr std::uint64_t kIoBlockBytes = 4096;

/// Why a sync is needed: each has a test that fails without it.
enum class SyncPoint : std::uint8_t {
  ManifestFile,       ///< the manifest's bytes, before it gets its name
  ManifestDirectory,  ///< its name, before anything depends on it
  SegmentDirectory,   ///< the name of a new segment, before a flush counts on it
  SegmentSeal,        ///< the records of a segment, before its footer speaks for them
  Flush,              ///< the records that flush() promises
  Carry,              ///< the records carried over, before the segment they came from is removed
  RemoveDirectory,    ///< that a segment is gone, before another takes its room or tombstones that cover it go
};
inline constexpr std::size_t kSyncPointCount = 7;

/// An open file. Closed by StoreDirectory::close().
struct FileId {
  std::uint32_t value = 0xffffffffU;
  [[nodiscard]] constexpr bool is_none() const { return value == 0xffffffffU; }
  friend constexpr auto operator<=>(FileId, FileId) = default;
};

enum class IoKind : std::uint8_t { Read, Write };

/// One read or write. The buffer is a part of IoQueue::memory() and is the queue's until the request is done.
struct IoRequest {
  IoKind kind = IoKind::Read;
  FileId file;
  std::uint64_t offset = 0;
  std::span<std::byte> buffer;
  std::uint64_t tag = 0;  ///< the caller's
};
struct IoResult {
  std::uint64_t tag = 0;
  Status status;  ///< Io when it failed or came short: a read behind the end of a file is short
};

/// Reads and writes in flight, up to a depth. They are done in any order. Destroying it waits for what is in flight.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  /// depth() times buffer_bytes in one piece, beginning at a multiple of kIoBlockBytes.
  [[nodiscard]] virtual std::span<std::byte> memory() = 0;
  [[nodiscard]] virtual std::uint32_t depth() const = 0;
  /// Starts at once, or, small requests, together with others and at the latest in the next wait(). At most depth()
  /// requests may be in flight; the file stays open until the request is done.
  virtual void submit(const IoRequest& request) = 0;
  /// Waits until at least one request in flight is done; none in flight is a mistake. The results, as many as fit.
  [[nodiscard]] virtual std::span<IoResult> wait(std::span<IoResult> out) = 0;
};

/// How files are accessed, and what the system refused.
struct IoMode {
  enum class Engine : std::uint8_t { Uring, Threads, Simulated };
  Engine engine = Engine::Threads;
  bool is_direct = false;  ///< O_DIRECT
  bool has_registered_buffers = false;
  std::string refusals;  ///< what was asked for and refused, and why; empty when nothing was
};

struct IoQueueConfig {
  std::uint32_t depth = 16;
  std::uint64_t buffer_bytes = 0;  ///< a multiple of kIoBlockBytes
};

/// A directory of a store, locked by this process until it is destroyed. The files in it are closed before.
class StoreDirectory {
 public:
  virtual ~StoreDirectory() = default;  ///< gives the lock back

  [[nodiscard]] virtual const std::string& path() const = 0;
  /// The plain files in it but the lock, in no order.
  [[nodiscard]] virtual Result<std::vector<std::string>> list() = 0;
  /// Makes a file of this length, all zero, readable and writable by its owner only; it must not exist. Its bytes are
  /// reserved where the file system can do that, so that a full disk is noticed here: Unavailable.
  [[nodiscard]] virtual Result<FileId> create(const std::string& name, std::uint64_t bytes) = 0;
  [[nodiscard]] virtual Result<FileId> open(const std::string& name) = 0;
  virtual void close(FileId file) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> length(FileId file) = 0;
  [[nodiscard]] virtual Status set_length(FileId file, std::uint64_t bytes) = 0;
  /// For small files, headers and footers, without a queue: any memory. A short read is an error.
  [[nodiscard]] virtual Status read(FileId file, std::uint64_t offset, std::span<std::byte> out) = 0;
  [[nodiscard]] virtual Status write(FileId file, std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Takes the place of a file that is called `to`.
  [[nodiscard]] virtual Status rename(const std::string& from, const std::string& to) = 0;
  /// An open file can still be read and written. One that is not there is removed already.
  [[nodiscard]] virtual Status remove(const std::string& name) = 0;
  /// Of what was written by requests that are done, and by write().
  [[nodiscard]] virtual Status sync_file(FileId file, SyncPoint why) = 0;
  [[nodiscard]] virtual Status sync_directory(SyncPoint why) = 0;
  /// What the file system has left for this process.
  [[nodiscard]] virtual Result<std::uint64_t> free_bytes() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Makes the directory (and its parents) if it is missing, for its owner only, and locks it. Unavailable when another
  /// process, or another store of this one, has it: the message says which process where that is known.
  [[nodiscard]] virtual Result<std::unique_ptr<StoreDirectory>> open_directory(const std::string& path) = 0;
  /// A directory that is there and whose files are only read: nothing in it changes, not even its lock, and others may
  /// read it at the same time. Unavailable when somebody has it by open_directory(), who is refused meanwhile, too.
  [[nodiscard]] virtual Result<std::unique_ptr<StoreDirectory>> open_directory_to_read(const std::string& path) = 0;
  /// For files of any of its directories.
  [[nodiscard]] virtual Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueConfig& config) = 0;
  /// How many files this process may have open, those that have nothing to do with a store included.
  [[nodiscard]] virtual std::uint32_t open_files_max() const = 0;
  /// Of the directories and queues made so far: what all of them have, and what any of them was refused.
  [[nodiscard]] virtual IoMode mode() const = 0;
};

}  // namespace quire
