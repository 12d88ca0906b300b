// SPDX-License-Identifier: Apache-2.0
//
// The system's calls for files, except for what a test refuses.
#pragma once

#include <fcntl.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "store/file_calls.h"
#include "store/file_system.h"

namespace quire::testing {

struct Refused {
  bool uring = false;
  bool plain_requests = false;  ///< io_uring moves registered buffers only, as before Linux 5.6
  bool registered_buffers = false;
  bool direct = false;
  bool reserved_space = false;
  bool whole_transfers = false;  ///< a read or write moves one block at a time
};

[[nodiscard]] inline FileCalls calls_without(const Refused& refused) {
  FileCalls calls = FileCalls::real();
  if (refused.uring) calls.start_ring = [](unsigned, io_uring*) { return -EPERM; };
  if (refused.plain_requests) {
    calls.has_operation = [](io_uring*, int operation) {
      return operation == IORING_OP_READ_FIXED || operation == IORING_OP_WRITE_FIXED;
    };
    calls.submit = [](io_uring* ring) {
      // Operations that a kernel does not know are answered with EINVAL.
      for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
        io_uring_sqe& entry = ring->sq.sqes[i & ring->sq.ring_mask];
        if (entry.opcode == IORING_OP_READ || entry.opcode == IORING_OP_WRITE) entry.opcode = 0xff;
      }
      return FileCalls::real().submit(ring);
    };
  }
  if (refused.registered_buffers) calls.register_buffers = [](io_uring*, const iovec*, unsigned) { return -ENOMEM; };
  if (refused.direct) {
    calls.open = [](int directory, const char* name, int flags) {
      if ((flags & O_DIRECT) == 0) return FileCalls::real().open(directory, name, flags);
      errno = EINVAL;
      return -1;
    };
  }
  if (refused.reserved_space) {
    calls.reserve = [](int, std::uint64_t) {
      errno = EOPNOTSUPP;
      return -1;
    };
  }
  if (refused.whole_transfers) {
    calls.submit = [](io_uring* ring) {
      for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
        io_uring_sqe& entry = ring->sq.sqes[i & ring->sq.ring_mask];
        entry.len = std::min<unsigned>(entry.len, kIoBlockBytes);
      }
      return FileCalls::real().submit(ring);
    };
    calls.read = [](int file, void* data, std::size_t bytes, off_t offset) {
      return FileCalls::real().read(file, data, std::min<std::size_t>(bytes, kIoBlockBytes), offset);
    };
    calls.write = [](int file, const void* data, std::size_t bytes, off_t offset) {
      return FileCalls::real().write(file, data, std::min<std::size_t>(bytes, kIoBlockBytes), offset);
    };
  }
  return calls;
}

}  // namespace quire::testing
