// SPDX-License-Identifier: Apache-2.0
//
// SimDisk: a FileSystem in memory that does what file_system.h allows a file system to do. It keeps what is durable
// apart from what was only written, and knows two ends of a process:
//
//   crash(seed)  the power fails: of what was not synced any part may be there, by sectors of 512 bytes and by names
//   kill(seed)   the process ends: what was written is there, but no more durable than it was
//
// Both leave this disk dead (every call fails with Io, as a dead process would never see) and give a new one with what
// remains; from one dead disk several can be made. Faults are asked for by kind and are the same for the same seed and
// the same calls. Buffers that change while their write is in flight are found, and reads in flight show rubbish.
//
// single-threaded. Directories and queues must not outlive their disk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "store/file_system.h"
#include "testing/seeded_run.h"

namespace quire::testing {

class SimQueue;

inline constexpr std::uint64_t kSectorBytes = 512;

/// What can be counted and made to fail. Read and Write are those of directories and, one by one, of queues.
enum class SimOperation : std::uint8_t {
  OpenDirectory,
  MakeQueue,
  List,
  Create,
  Open,
  Length,
  SetLength,
  Read,
  Write,
  Rename,
  Remove,
  SyncFile,
  SyncDirectory,
  FreeBytes,
};
inline constexpr std::size_t kSimOperationCount = 14;

/// The bytes of a file; sectors that were never written are zero and take no memory.
class SparseBytes {
 public:
  using Sector = std::array<std::byte, kSectorBytes>;

  [[nodiscard]] std::uint64_t length() const { return length_; }
  /// What lies behind a shorter length is gone: zero, when the length grows again.
  void set_length(std::uint64_t bytes);
  /// The file grows to hold the sector.
  void write(std::uint64_t sector_index, std::span<const std::byte> sector);
  [[nodiscard]] Sector read(std::uint64_t sector_index) const;

 private:
  std::uint64_t length_ = 0;
  std::map<std::uint64_t, Sector> sectors_;
};

class SimDisk final : public FileSystem {
 public:
  explicit SimDisk(std::uint64_t seed);
  ~SimDisk() override;
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  [[nodiscard]] Result<std::unique_ptr<StoreDirectory>> open_directory(const std::string& path) override;
  /// Whoever changes something in it meanwhile stops the program.
  [[nodiscard]] Result<std::unique_ptr<StoreDirectory>> open_directory_to_read(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueConfig& config) override;
  [[nodiscard]] std::uint32_t open_files_max() const override { return open_files_max_; }
  [[nodiscard]] IoMode mode() const override;

  /// `operations` more succeed, or fail as asked for; the next is cut off in its middle, and the process is dead.
  void crash_after(std::uint64_t operations);
  [[nodiscard]] bool is_dead() const { return is_dead_; }
  [[nodiscard]] std::unique_ptr<SimDisk> crash(std::uint64_t seed);
  [[nodiscard]] std::unique_ptr<SimDisk> kill(std::uint64_t seed);

  /// The operation fails with Io once, after `successes` more of its kind. What was to be written or synced may be
  /// there in part, what was to be read as well.
  void fail_once(SimOperation operation, std::uint64_t successes = 0);
  /// Of a thousand operations of this kind so many fail.
  void set_failures(SimOperation operation, std::uint32_t per_thousand);
  /// Each directory is a disk of this size, full when its files have this length together. Without limit at first.
  void set_capacity(std::uint64_t bytes) { capacity_bytes_ = bytes; }
  /// Said, not enforced.
  void set_open_files_max(std::uint32_t count) { open_files_max_ = count; }
  /// Every operation in this directory fails with Io from here on, or no longer.
  void set_broken(const std::string& path, bool is_broken = true);
  /// As if another process had it; 0: it ended.
  void set_lock_owner(const std::string& path, std::uint64_t pid);
  /// Syncs of this kind succeed and make nothing durable.
  void ignore_syncs(SyncPoint why, bool is_ignored = true);

  /// Since the disk was made: those that were tried, whether they failed or not.
  [[nodiscard]] std::uint64_t operation_count() const { return operation_count_; }
  [[nodiscard]] std::uint64_t operation_count(SimOperation operation) const;
  [[nodiscard]] std::uint64_t sync_count(SyncPoint why) const;

  // What a stranger does to files. The directory and the file must be there, except for put_file().
  void put_file(const std::string& path, const std::string& name, std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::byte> file_bytes(const std::string& path, const std::string& name) const;
  [[nodiscard]] std::vector<std::string> file_names(const std::string& path) const;
  void remove_file(const std::string& path, const std::string& name);
  void flip_bit(const std::string& path, const std::string& name, std::uint64_t bit_index);

 private:
  friend class SimDirectory;
  friend class SimQueue;

  using NodeId = std::uint32_t;
  /// A write, or a new length where there are no bytes.
  struct Change {
    NodeId node = 0;
    std::uint64_t offset_or_length = 0;
    std::vector<std::byte> bytes;
  };
  struct Node {
    std::string directory;
    SparseBytes now;               ///< what is read
    SparseBytes durable;           ///< what a crash leaves, apart from
    std::vector<Change> unsynced;  ///< what it leaves in part
    std::uint32_t opened_count = 0;
  };
  /// `name` becomes `node`'s; without a node it goes. A rename takes `from` away from the node, too.
  struct NameChange {
    std::string name;
    std::optional<NodeId> node;
    std::string from;
  };
  struct Directory {
    std::map<std::string, NodeId> now;
    std::map<std::string, NodeId> durable;
    std::vector<NameChange> unsynced;
    bool is_locked = false;
    std::uint32_t reader_count = 0;  ///< who have it by open_directory_to_read()
    bool is_broken = false;
    std::uint64_t foreign_pid = 0;
  };
  enum class Verdict : std::uint8_t { Go, Fail, CutOff, Dead };
  struct Failure {
    SimOperation operation;
    std::uint64_t successes;
  };

  [[nodiscard]] Result<std::unique_ptr<StoreDirectory>> open_directory(const std::string& path, bool is_to_read);
  /// Counts the operation, and says how it goes. In no directory: nullptr.
  [[nodiscard]] Verdict begin(SimOperation operation, const Directory* directory);
  void die();
  [[nodiscard]] std::unique_ptr<SimDisk> remains(Random& random) const;
  [[nodiscard]] FileId open_node(NodeId node);
  [[nodiscard]] NodeId node_of(FileId file) const;
  [[nodiscard]] const Node& named(const std::string& path, const std::string& name) const;
  [[nodiscard]] std::uint64_t used_bytes(const std::string& directory) const;
  /// Unavailable when the directory has no room for so many bytes more.
  [[nodiscard]] Status room_for(std::uint64_t bytes, const std::string& directory, const std::string& what) const;
  [[nodiscard]] Status change(Verdict verdict, Change change, const std::string& what);
  [[nodiscard]] Status change_name(Verdict verdict, const std::string& path, NameChange change,
                                   const std::string& what);
  [[nodiscard]] Status read_now(Verdict verdict, NodeId node, std::uint64_t offset, std::span<std::byte> out,
                                const std::string& what);
  void sync_badly(Node& node);
  /// Forgets files that have no name, are not open and cannot come back.
  void collect();

  static void apply(const Change& change, SparseBytes& bytes);
  static void apply(const NameChange& change, std::map<std::string, NodeId>& names);
  /// All, nothing or some sectors of a write, or a length between; more of it for more eighths. What was applied.
  static std::vector<Change> apply_some(const Change& change, SparseBytes& bytes, Random& random,
                                        std::uint32_t eighths);

  Random random_;
  std::map<NodeId, Node> nodes_;
  std::map<std::string, Directory> directories_;
  NodeId next_node_ = 0;

  // Of the process.
  std::map<std::uint32_t, NodeId> open_files_;
  std::uint32_t next_file_ = 0;
  std::vector<SimQueue*> queues_;
  bool is_dead_ = false;
  // What the end came in the middle of.
  std::vector<Change> cut_off_;
  std::vector<std::pair<std::string, NameChange>> cut_off_names_;

  // Faults.
  std::optional<std::uint64_t> operations_left_;
  std::vector<Failure> failures_;
  std::array<std::uint32_t, kSimOperationCount> failures_per_thousand_{};
  std::optional<std::uint64_t> capacity_bytes_;
  std::uint32_t open_files_max_ = 1'000'000;
  std::array<bool, kSyncPointCount> is_sync_ignored_{};

  std::uint64_t operation_count_ = 0;
  std::array<std::uint64_t, kSimOperationCount> operation_counts_{};
  std::array<std::uint64_t, kSyncPointCount> sync_counts_{};
};

}  // namespace quire::testing
