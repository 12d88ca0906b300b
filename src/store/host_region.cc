// SPDX-License-Identifier: Apache-2.0
#include "store/host_region.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "base/system_error.h"

namespace quire {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;
constexpr int kHugePageFlags = MAP_HUGETLB | (21 << MAP_HUGE_SHIFT);  // of 2^21 bytes
constexpr int kDontNeedLocked = 24;                                   // MADV_DONTNEED_LOCKED, from Linux 5.18 on

void* map_memory(std::size_t bytes, int flags) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

// The system call itself: libnuma would be a library for one function. Preferred rather than bound: a region larger
// than what its node has free is no reason to end the process.
int prefer_numa_node(void* data, std::size_t bytes, std::uint32_t numa_node) {
  constexpr std::uint32_t kMaskBits = 64;
  std::array<unsigned long, 16> nodes{};
  if (numa_node >= nodes.size() * kMaskBits) {
    errno = EINVAL;
    return -1;
  }
  nodes[numa_node / kMaskBits] = 1UL << (numa_node % kMaskBits);
  // One more than there are bits: the kernel takes the number as the first that is not in the mask.
  const unsigned long node_count_max = (nodes.size() * kMaskBits) + 1;
  return static_cast<int>(::syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, nodes.data(), node_count_max, 0U));
}

bool system_has_transparent_huge_pages() {
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re"));
  if (file == nullptr) return false;
  std::array<char, 64> text{};
  (void)std::fread(text.data(), 1, text.size() - 1, file.get());
  const std::string_view choices(text.data());  // "always [madvise] never"
  return choices.find("[always]") != std::string_view::npos || choices.find("[madvise]") != std::string_view::npos;
}

}  // namespace

const RegionCalls& RegionCalls::real() {
  static constexpr RegionCalls kCalls{
      .map = map_memory,
      .unmap = [](void* data, std::size_t bytes) { return ::munmap(data, bytes); },
      .advise = [](void* data, std::size_t bytes, int advice) { return ::madvise(data, bytes, advice); },
      .prefer_node = prefer_numa_node,
      .lock = [](void* data, std::size_t bytes) { return ::mlock(data, bytes); },
      .unlock = [](void* data, std::size_t bytes) { return ::munlock(data, bytes); },
      .has_transparent_huge_pages = system_has_transparent_huge_pages};
  return kCalls;
}

HostRegion::HostRegion(HostRegion&& other) noexcept {
  *this = std::move(other);
}

HostRegion& HostRegion::operator=(HostRegion&& other) noexcept {
  std::swap(calls_, other.calls_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(status_, other.status_);
  return *this;
}

HostRegion::~HostRegion() {
  if (mapped_ != nullptr) (void)calls_->unmap(mapped_, mapped_bytes_);
}

Result<HostRegion> HostRegion::map(std::size_t bytes, const HostRegionConfig& config, const RegionCalls& calls) {
  QUIRE_CHECK(bytes != 0, "a region of nothing");
  HostRegion region;
  region.calls_ = &calls;
  region.bytes_ = bytes;
  if (!config.huge_pages || !region.try_map_reserved_huge_pages()) {
    QUIRE_TRY(region.map_plain());
    if (config.huge_pages) region.ask_for_transparent_huge_pages();
  }
  // Before anything is written: memory that has been taken stays where it is.
  if (config.numa_node) region.prefer_node(*config.numa_node);
  if (config.lock_memory) region.lock();
  return region;
}

// They are reserved by the mapping itself (so without MAP_NORESERVE): a write that finds none left would end the
// process.
bool HostRegion::try_map_reserved_huge_pages() {
  const auto padded = checked_add(bytes_, kHugePageBytes - 1);
  if (!padded) return false;
  const std::size_t whole_bytes = *padded / kHugePageBytes * kHugePageBytes;
  void* const mapped = calls_->map(whole_bytes, kHugePageFlags);
  if (mapped == MAP_FAILED) return false;
  mapped_ = mapped;
  mapped_bytes_ = whole_bytes;
  data_ = static_cast<std::byte*>(mapped);
  status_.has_huge_pages = true;
  status_.has_reserved_huge_pages = true;
  return true;
}

Status HostRegion::map_plain() {
  const std::optional<std::uint64_t> padded = checked_add(bytes_, kHugePageBytes);
  void* const mapped = padded ? calls_->map(*padded, MAP_NORESERVE) : MAP_FAILED;
  if (!padded || mapped == MAP_FAILED) {
    const int why = padded ? errno : ENOMEM;
    return fail(errno_code(why), "reserving " + std::to_string(bytes_) +
                                     " bytes of address space for host pages: " + errno_text(why) +
                                     "; make the host tier smaller or raise the address-space limit (ulimit -v)");
  }
  mapped_ = mapped;
  mapped_bytes_ = *padded;
  const std::uintptr_t misplaced = reinterpret_cast<std::uintptr_t>(mapped) % kHugePageBytes;
  data_ = static_cast<std::byte*>(mapped) + (misplaced == 0 ? 0 : kHugePageBytes - misplaced);
  return {};
}

void HostRegion::ask_for_transparent_huge_pages() {
  if (bytes_ < kHugePageBytes) return refused("huge pages", "the region is smaller than one of them");
  if (!calls_->has_transparent_huge_pages()) {
    return refused("huge pages", "none are set apart, and transparent ones are switched off");
  }
  if (calls_->advise(data_, bytes_, MADV_HUGEPAGE) != 0) {
    return refused("huge pages", ("none are set apart, and madvise says: " + errno_text(errno)).c_str());
  }
  status_.has_huge_pages = true;
}

void HostRegion::prefer_node(std::uint32_t numa_node) {
  const std::string what = "NUMA node " + std::to_string(numa_node);
  status_.numa_node = numa_node;
  if (calls_->prefer_node(data_, bytes_, numa_node) != 0) {
    return refused(what.c_str(), ("mbind says: " + errno_text(errno)).c_str());
  }
  status_.is_on_numa_node = true;
}

void HostRegion::lock() {
  if (calls_->lock(data_, bytes_) != 0) {
    return refused("locked memory", ("mlock says: " + errno_text(errno) + "; see ulimit -l").c_str());
  }
  status_.is_locked = true;
}

void HostRegion::refused(const char* what, const char* why) {
  if (!status_.refusals.empty()) status_.refusals += "; ";
  status_.refusals.append(what).append(": ").append(why);
}

Status HostRegion::forget() {
  // Of huge pages that are set apart the system gives back whole ones only, and data_ is where they begin.
  const std::size_t bytes = status_.has_reserved_huge_pages ? mapped_bytes_ : bytes_;
  if (status_.is_locked) {
    // Keeps the lock: what is written from now on is locked then.
    if (calls_->advise(data_, bytes, kDontNeedLocked) == 0) return {};
    (void)calls_->unlock(data_, bytes);
    status_.is_locked = false;
    refused("locked memory", "the system could only give it back unlocked");
  }
  if (calls_->advise(data_, bytes, MADV_DONTNEED) != 0) {
    return fail(errno_code(errno), "giving the memory of the host pages back: madvise says: " + errno_text(errno));
  }
  return {};
}

}  // namespace quire
