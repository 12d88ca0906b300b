// SPDX-License-Identifier: Apache-2.0
#include "base/lazy_array.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "base/system_error.h"

namespace quire {

LazyMemory& LazyMemory::operator=(LazyMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

LazyMemory::~LazyMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<LazyMemory> LazyMemory::reserve(std::size_t bytes) {
  LazyMemory memory;
  if (bytes == 0) return memory;
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return fail(errno_code(errno), "reserving " + std::to_string(bytes) +
                                       " bytes of address space: " + errno_text(errno) +
                                       "; make the pools smaller or raise the address-space limit (ulimit -v)");
  }
  memory.data_ = data;
  memory.bytes_ = bytes;
  return memory;
}

Status LazyMemory::grow(std::size_t bytes) {
  if (bytes <= bytes_) return {};
  if (data_ == nullptr) {
    QUIRE_TRY_ASSIGN(*this, reserve(bytes));
    return {};
  }
  void* const data = ::mremap(data_, bytes_, bytes, MREMAP_MAYMOVE);
  if (data == MAP_FAILED) {
    return fail(errno_code(errno), "growing a reservation from " + std::to_string(bytes_) + " to " +
                                       std::to_string(bytes) + " bytes: " + errno_text(errno));
  }
  data_ = data;
  bytes_ = bytes;
  return {};
}

void LazyMemory::prefer_huge_pages() {
  // Below this the translation buffer covers the range anyway, and whole huge pages would be a large part of it.
  constexpr std::size_t kLargeBytes = std::size_t{64} << 20U;
  if (bytes_ >= kLargeBytes) (void)::madvise(data_, bytes_, MADV_HUGEPAGE);
}

void LazyMemory::discard() {
  if (data_ == nullptr) return;
  QUIRE_CHECK(::madvise(data_, bytes_, MADV_DONTNEED) == 0, "private memory that the system does not take back");
}

}  // namespace quire
