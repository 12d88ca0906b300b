// SPDX-License-Identifier: Apache-2.0
//
// FileCalls: what the real file system asks of the operating system, as a table, so that tests can refuse it. Calls
// answer as the system's do, with -1 and the reason in errno; those of io_uring with the negative reason, as liburing's
// do.
//
// immutable
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

struct io_uring;
struct iovec;

namespace quire {

struct FileCalls {
  int (*make_directory)(const char* path);
  /// openat(), for the owner only when it makes a file.
  int (*open)(int directory, const char* name, int flags);
  /// For this open file, not for this process: a second open file in the same process is refused, too.
  int (*lock)(int file);
  /// The same for a directory. Some file systems cannot.
  int (*lock_directory)(int directory);
  /// Locks that any number of open files can share, but not with those above.
  int (*share_lock)(int file);
  int (*share_directory_lock)(int directory);
  int (*reserve)(int file, std::uint64_t bytes);
  int (*set_length)(int file, std::uint64_t bytes);
  ssize_t (*read)(int file, void* data, std::size_t bytes, off_t offset);
  ssize_t (*write)(int file, const void* data, std::size_t bytes, off_t offset);
  int (*rename)(int directory, const char* from, const char* to);
  int (*remove)(int directory, const char* name);
  int (*sync_data)(int file);
  int (*sync_directory)(int directory);

  int (*start_ring)(unsigned entries, io_uring* ring);
  /// Whether the kernel knows an operation, one of IORING_OP_….
  bool (*has_operation)(io_uring* ring, int operation);
  int (*register_buffers)(io_uring* ring, const iovec* buffers, unsigned buffer_count);
  int (*submit)(io_uring* ring);
  int (*wait)(io_uring* ring, unsigned completion_count);  ///< until there are so many completions

  /// The system's own.
  [[nodiscard]] static const FileCalls& real();
};

}  // namespace quire
