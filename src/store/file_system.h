// SPDX-License-Identifier: Apache-2.0
//
// FileSystem: everything the file store asks of files, as a seam. The real one (system_files.h) uses io_uring, O_DIRECT
// and registered buffers where the system has them, and does without what it refuses; the simulated one
// (testing/sim_disk.h) loses, tears and reorders what was not synced.
//
// What a crash may do: of bytes written since the last sync_file() of their file, any subset of 512-byte sectors may be
// there, in the old or in the new form; its length may be any between; names made, renamed or removed since the last
// sync_directory() may be there or not, each on its own. What was synced stays.
//
// thread-safe, except that an IoQueue belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/result.h"

namespace quire {

/// Why a sync is needed: each has a test that fails without it.
enum class SyncPoint : std::uint8_t {
  ManifestFile,       ///< the manifest's bytes, before it gets its name
  ManifestDirectory,  ///< its name, before anything depends on it
  SegmentDirectory,   ///< the name of a new segment, before a flush counts on it
  SegmentSeal,        ///< the records of a segment, before its footer speaks for them
  Flush,              ///< the records that flush() promises
  Carry,              ///< the records carried over, before the segment they came from is removed
  RemoveDirectory,    ///< that a segment is gone, before tombstones that cover it are let go
};
inline constexpr std::size_t kSyncPointCount = 7;

/// An open file. Closed by FileSystem::close().
struct FileId {
  std::uint32_t value = 0xffffffffU;
  [[nodiscard]] constexpr bool is_none() const { return value == 0xffffffffU; }
  friend constexpr auto operator<=>(FileId, FileId) = default;
};

enum class IoKind : std::uint8_t { Read, Write };

/// One read or write. Offsets, lengths and buffers are multiples of 4096 bytes, and buffers lie in the memory of the
/// queue (IoQueue::memory()).
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

/// Reads and writes in flight, up to a depth.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  /// Aligned buffers, depth() of buffer_bytes each, one behind the other.
  [[nodiscard]] virtual std::span<std::byte> memory() = 0;
  [[nodiscard]] virtual std::uint32_t depth() const = 0;
  /// At most depth() requests may be in flight.
  virtual void submit(const IoRequest& request) = 0;
  /// Waits until at least one request in flight is done; none in flight is a mistake. The results, as many as fit.
  [[nodiscard]] virtual std::span<IoResult> wait(std::span<IoResult> out) = 0;
};

/// How files are accessed, and what the system refused.
struct IoMode {
  enum class Engine : std::uint8_t { Uring, Threads, Simulated };
  Engine engine = Engine::Threads;
  bool is_direct = false;              ///< O_DIRECT
  bool has_registered_buffers = false;
  std::string refusals;                ///< what was asked for and refused, and why; empty when nothing was
};

struct IoQueueConfig {
  std::uint32_t depth = 16;
  std::uint64_t buffer_bytes = 0;  ///< a multiple of 4096
};

/// A directory of a store, locked by this process until it is closed.
class StoreDirectory {
 public:
  virtual ~StoreDirectory() = default;  ///< gives the lock back

  [[nodiscard]] virtual const std::string& path() const = 0;
  /// The plain files in it, in no order.
  [[nodiscard]] virtual Result<std::vector<std::string>> list() = 0;
  /// Makes a file, readable and writable by its owner only; it must not exist. With bytes reserved, so that a full disk
  /// is noticed here; its length is 0 or `bytes`.
  [[nodiscard]] virtual Result<FileId> create(const std::string& name, std::uint64_t bytes) = 0;
  [[nodiscard]] virtual Result<FileId> open(const std::string& name) = 0;
  virtual void close(FileId file) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> length(FileId file) = 0;
  [[nodiscard]] virtual Status set_length(FileId file, std::uint64_t bytes) = 0;
  /// Whole small files and footers, without a queue: any memory, any offset. A short read is an error.
  [[nodiscard]] virtual Status read(FileId file, std::uint64_t offset, std::span<std::byte> out) = 0;
  [[nodiscard]] virtual Status write(FileId file, std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual Status rename(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual Status remove(const std::string& name) = 0;
  [[nodiscard]] virtual Status sync_file(FileId file, SyncPoint why) = 0;
  [[nodiscard]] virtual Status sync_directory(SyncPoint why) = 0;
  /// What the file system has left for this process.
  [[nodiscard]] virtual Result<std::uint64_t> free_bytes() = 0;
  [[nodiscard]] virtual IoMode mode() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Makes the directory (and its parents) if it is missing, for its owner only, and locks it. Unavailable when another
  /// process, or another store of this one, has it: the message says which process where that is known.
  [[nodiscard]] virtual Result<std::unique_ptr<StoreDirectory>> open_directory(const std::string& path) = 0;
  /// For files of any of its directories.
  [[nodiscard]] virtual Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueConfig& config) = 0;
};

}  // namespace quire
