// SPDX-License-Identifier: Apache-2.0
//
// RemoteStore: values under keys, on machines that many caches share. A cache asks one for pages that neither memory
// nor disk has, and puts pages there that others may need. open_redis_store() (redis_store.h) has one for Valkey and
// Redis; docs/remote.md says how to write another.
//
// Keys are at most kRemoteKeyBytesMax bytes, printable and without spaces. A value never changes: the same key means
// the same bytes, whoever puts them. The caller verifies what it gets, so a store need not have checksums of its own. A
// store may lose any value at any time.
//
// Work comes in batches, which belong to the caller with all that they point to. From the call of try_submit() to the
// answer of poll() the store may read and write that memory; from the answer on it does neither. Each batch gets
// exactly one answer, and each object its own outcome. No call waits for the network.
//
// thread-safe. A store outlives the caches that use it; destroying it ends what is in flight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/result.h"
#include "quire/types.h"

namespace quire {

inline constexpr std::size_t kRemoteKeyBytesMax = 256;

enum class RemoteOperation : std::uint8_t {
  Find,  ///< is there a value? Asking counts as using it, for stores that make room by what was used
  Get,
  Put,
  Drop,       ///< Ok too where there was nothing
  DropBelow,  ///< every value whose key begins with the object's key
};

enum class RemoteOutcome : std::uint8_t {
  NotTried,  ///< what every object begins with; the batch ended before its turn
  Ok,
  Absent,
  Corrupt,  ///< Get: the value has another length than its target, or the answer made no sense
  Late,     ///< the deadline passed, or the batch was cancelled. A Put may have happened all the same
  Failed,   ///< refused, or the machine cannot be reached. A Put may have happened all the same
};

[[nodiscard]] constexpr std::string_view to_string(RemoteOutcome outcome) {
  constexpr std::array<std::string_view, 6> kNames = {"not tried", "ok", "absent", "corrupt", "late", "failed"};
  return kNames[static_cast<std::size_t>(outcome)];
}

/// What somebody waits for goes first. A question never waits behind a value.
enum class RemotePriority : std::uint8_t { Waiting, Background };

struct RemoteObject {
  std::string_view key = {};
  std::span<const std::span<std::byte>> target = {};        ///< Get: where the value goes, piece by piece
  std::span<const std::span<const std::byte>> source = {};  ///< Put: the pieces of the value
  RemoteOutcome outcome = RemoteOutcome::NotTried;          ///< the store's answer
};

struct RemoteBatch {
  std::uint64_t id = 0;  ///< the caller's; no two batches in flight have the same
  RemoteOperation operation = RemoteOperation::Find;
  RemotePriority priority = RemotePriority::Waiting;
  /// From try_submit() on. Objects that have no outcome by then are Late, and the batch is answered. 0: the store's own
  /// limit.
  TimeNs timeout_ns = 0;
  /// Get, Find: objects are of use in their order only, so those behind the first that is not Ok need not be tried.
  bool is_path = false;
  std::span<RemoteObject> objects = {};
};

struct RemoteAnswer {
  std::uint64_t id = 0;
  TimeNs first_byte_ns = 0;       ///< from try_submit() to the first byte of an answer; 0: none came
  TimeNs busy_ns = 0;             ///< from try_submit() to the end
  std::uint64_t moved_bytes = 0;  ///< of values, both ways
};

struct RemoteStatus {
  std::uint32_t node_count = 0;
  std::uint32_t failed_nodes = 0;   ///< left alone for a while, because they were late or failed
  bool is_usable = true;            ///< false: nothing is asked at present; every batch fails at once
  std::uint32_t batch_count = 0;    ///< in flight
  std::uint64_t waiting_bytes = 0;  ///< of values that are not on their way yet
  std::string last_error = {};      ///< never has a password
};

class RemoteStore {
 public:
  virtual ~RemoteStore() = default;

  /// Memory that targets and sources of values will lie in, for stores that have to know; it stays until the store is
  /// destroyed or unregister_memory() is called with it.
  [[nodiscard]] virtual Status register_memory(std::span<std::byte> memory) = 0;
  virtual void unregister_memory(std::span<std::byte> memory) = 0;

  /// False: the store has no room for it now, and has taken nothing.
  [[nodiscard]] virtual bool try_submit(const RemoteBatch& batch) = 0;
  /// Ends a batch as soon as its memory is out of use; what is open is Late. Unknown ids are ignored: it may be over.
  virtual void cancel(std::uint64_t id) = 0;
  /// Batches that have ended since the last call, as many as `out` has room for.
  [[nodiscard]] virtual std::span<RemoteAnswer> poll(std::span<RemoteAnswer> out) = 0;
  /// Readable while there is something to poll; -1: poll it now and then.
  [[nodiscard]] virtual int event_fd() const = 0;
  [[nodiscard]] virtual RemoteStatus status() const = 0;
};

}  // namespace quire
