// SPDX-License-Identifier: Apache-2.0
//
// The system's calls for files, some of which fail when a test says so, as those of a disk that fills up, breaks, or
// becomes read-only under a store. With io_uring and without.
//
// thread-safe, but there is one set of failures for a process.
#pragma once

#include <fcntl.h>
#include <liburing.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "store/file_calls.h"
#include "testing/refused_calls.h"

namespace quire::testing {

/// What each kind of call fails with from here on; 0: it does not.
struct CallFailures {
  std::atomic<int> open = 0;    ///< of a file that is there
  std::atomic<int> create = 0;  ///< of a new one, and of the lock
  std::atomic<int> reserve = 0;
  std::atomic<int> set_length = 0;
  std::atomic<int> read = 0;
  std::atomic<int> write = 0;
  std::atomic<int> rename = 0;
  std::atomic<int> remove = 0;
  std::atomic<int> sync_data = 0;
  std::atomic<int> sync_directory = 0;

  void clear() {
    for (std::atomic<int>* each :
         {&open, &create, &reserve, &set_length, &read, &write, &rename, &remove, &sync_data, &sync_directory}) {
      *each = 0;
    }
  }
  /// Everything that changes something.
  void make_read_only() {
    for (std::atomic<int>* each : {&create, &reserve, &set_length, &write, &rename, &remove}) *each = EROFS;
  }
};

inline CallFailures call_failures;

namespace failing_calls_detail {

inline FileCalls base = FileCalls::real();

inline bool fails(const std::atomic<int>& failure) {
  const int error_number = failure;
  if (error_number == 0) return false;
  errno = error_number;
  return true;
}

// A request for no file is answered at once; then it gets the reason that was asked for.
inline int submit(io_uring* ring) {
  const int read_error = call_failures.read;
  const int write_error = call_failures.write;
  bool has_failed = false;
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
    io_uring_sqe& entry = ring->sq.sqes[i & ring->sq.ring_mask];
    const bool is_read = entry.opcode == IORING_OP_READ || entry.opcode == IORING_OP_READ_FIXED;
    const bool is_write = entry.opcode == IORING_OP_WRITE || entry.opcode == IORING_OP_WRITE_FIXED;
    if ((is_read && read_error != 0) || (is_write && write_error != 0)) {
      entry.fd = -1;
      has_failed = true;
    }
  }
  const int taken = base.submit(ring);
  if (!has_failed) return taken;
  const unsigned end = io_uring_smp_load_acquire(ring->cq.ktail);
  for (unsigned i = *ring->cq.khead; i != end; ++i) {
    io_uring_cqe& completion = ring->cq.cqes[i & ring->cq.ring_mask];
    if (completion.res == -EBADF) completion.res = -(write_error != 0 ? write_error : read_error);
  }
  return taken;
}

}  // namespace failing_calls_detail

/// Nothing fails at first. The calls of all stores that are open must be those of the last call of this.
[[nodiscard]] inline FileCalls failing_calls(const Refused& refused = {}) {
  namespace detail = failing_calls_detail;
  call_failures.clear();
  detail::base = calls_without(refused);
  FileCalls calls = detail::base;
  calls.open = [](int directory, const char* name, int flags) {
    if ((flags & O_DIRECTORY) == 0 && detail::fails((flags & O_CREAT) != 0 ? call_failures.create : call_failures.open))
      return -1;
    return detail::base.open(directory, name, flags);
  };
  calls.reserve = [](int file, std::uint64_t bytes) {
    return detail::fails(call_failures.reserve) ? -1 : detail::base.reserve(file, bytes);
  };
  calls.set_length = [](int file, std::uint64_t bytes) {
    return detail::fails(call_failures.set_length) ? -1 : detail::base.set_length(file, bytes);
  };
  calls.read = [](int file, void* data, std::size_t bytes, off_t offset) {
    return detail::fails(call_failures.read) ? ssize_t{-1} : detail::base.read(file, data, bytes, offset);
  };
  calls.write = [](int file, const void* data, std::size_t bytes, off_t offset) {
    return detail::fails(call_failures.write) ? ssize_t{-1} : detail::base.write(file, data, bytes, offset);
  };
  calls.rename = [](int directory, const char* from, const char* to) {
    return detail::fails(call_failures.rename) ? -1 : detail::base.rename(directory, from, to);
  };
  calls.remove = [](int directory, const char* name) {
    return detail::fails(call_failures.remove) ? -1 : detail::base.remove(directory, name);
  };
  calls.sync_data = [](int file) { return detail::fails(call_failures.sync_data) ? -1 : detail::base.sync_data(file); };
  calls.sync_directory = [](int directory) {
    return detail::fails(call_failures.sync_directory) ? -1 : detail::base.sync_directory(directory);
  };
  calls.submit = detail::submit;
  return calls;
}

}  // namespace quire::testing
