// SPDX-License-Identifier: Apache-2.0
#include "store/file_calls.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace quire {
namespace {

constexpr mode_t kDirectoryMode = 0700;
constexpr mode_t kFileMode = 0600;

int lock_open_file_as(int file, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return ::fcntl(file, F_OFD_SETLK, &lock);
}

// A thread that is at work is not interrupted for completions; it finds them when it asks. Kernels before 5.19 do not
// know the flag. IORING_SETUP_DEFER_TASKRUN, which ties a ring to one thread, brought nothing more.
int start_ring_of(unsigned entries, io_uring* ring) {
  const int started = ::io_uring_queue_init(entries, ring, IORING_SETUP_COOP_TASKRUN);
  return started == -EINVAL ? ::io_uring_queue_init(entries, ring, 0) : started;
}

bool has_operation_in(io_uring* ring, int operation) {
  // None before Linux 5.6, which cannot be asked.
  io_uring_probe* const probe = ::io_uring_get_probe_ring(ring);
  if (probe == nullptr) return false;
  const bool is_there = ::io_uring_opcode_supported(probe, operation) != 0;
  ::io_uring_free_probe(probe);
  return is_there;
}

int wait_for_completions(io_uring* ring, unsigned completion_count) {
  io_uring_cqe* completion = nullptr;
  return ::io_uring_wait_cqe_nr(ring, &completion, completion_count);
}

}  // namespace

const FileCalls& FileCalls::real() {
  static constexpr FileCalls kCalls{
      .make_directory = [](const char* path) { return ::mkdir(path, kDirectoryMode); },
      .open = [](int directory, const char* name, int flags) { return ::openat(directory, name, flags, kFileMode); },
      .lock = [](int file) { return lock_open_file_as(file, F_WRLCK); },
      .lock_directory = [](int directory) { return ::flock(directory, LOCK_EX | LOCK_NB); },
      .share_lock = [](int file) { return lock_open_file_as(file, F_RDLCK); },
      .share_directory_lock = [](int directory) { return ::flock(directory, LOCK_SH | LOCK_NB); },
      .reserve = [](int file, std::uint64_t bytes) { return ::fallocate(file, 0, 0, static_cast<off_t>(bytes)); },
      .set_length = [](int file, std::uint64_t bytes) { return ::ftruncate(file, static_cast<off_t>(bytes)); },
      .read = ::pread,
      .write = ::pwrite,
      .rename = [](int directory, const char* from,
                   const char* to) { return ::renameat(directory, from, directory, to); },
      .remove = [](int directory, const char* name) { return ::unlinkat(directory, name, 0); },
      .sync_data = ::fdatasync,
      .sync_directory = ::fsync,
      .start_ring = start_ring_of,
      .has_operation = has_operation_in,
      .register_buffers = ::io_uring_register_buffers,
      .submit = ::io_uring_submit,
      .wait = wait_for_completions};
  return kCalls;
}

}  // namespace quire
