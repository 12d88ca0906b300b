// SPDX-License-Identifier: Apache-2.0
//
// Counts every way this process can ask for memory, by standing in front of the C library's functions and of operator
// new. One binary includes this in one source. Sanitizers stand there themselves, so it is for plain builds.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace quire {

/// Allocations so far, on all threads.
inline std::atomic<std::uint64_t> allocation_count{0};
/// On this thread.
inline constinit thread_local std::uint64_t thread_allocation_count = 0;

namespace detail {

// The C library's own names for its allocator: they are there before dlsym can run.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* memory, std::size_t bytes);
extern "C" void* __libc_memalign(std::size_t alignment, std::size_t bytes);
// NOLINTEND(bugprone-reserved-identifier)

inline void count_allocation() {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  ++thread_allocation_count;
}

}  // namespace detail
}  // namespace quire

// NOLINTBEGIN(performance-no-int-to-ptr): a system call answers with a number
extern "C" {

void* malloc(std::size_t bytes) {
  quire::detail::count_allocation();
  return quire::detail::__libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  quire::detail::count_allocation();
  return quire::detail::__libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  quire::detail::count_allocation();
  return quire::detail::__libc_realloc(memory, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  quire::detail::count_allocation();
  return quire::detail::__libc_memalign(alignment, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  quire::detail::count_allocation();
  return quire::detail::__libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  quire::detail::count_allocation();
  *out = quire::detail::__libc_memalign(alignment, bytes);
  return *out == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  quire::detail::count_allocation();
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
void* mremap(void* address, std::size_t old_bytes, std::size_t bytes, int flags, ...) noexcept {
  quire::detail::count_allocation();
  return reinterpret_cast<void*>(::syscall(SYS_mremap, address, old_bytes, bytes, flags, nullptr));
}

}  // extern "C"
// NOLINTEND(performance-no-int-to-ptr)

// operator new normally calls malloc; it is replaced as well, so that an allocator under it would be seen too.
void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
