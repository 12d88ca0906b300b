// SPDX-License-Identifier: Apache-2.0
//
// HostRegion: one piece of memory for the pages of the host tier, aligned to 2 MiB and zero at first. It asks for huge
// pages (those that the system has set apart, else transparent ones), for a NUMA node and for a lock, as configured;
// what is refused is done without and told by status(). Memory is taken where it is first written, unless it is locked
// or comes from huge pages set apart.
//
// single-threaded; the bytes are whoever's
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/mover.h"
#include "quire/result.h"

namespace quire {

/// What a region asks of the system, so that tests can refuse it. Calls answer as the system's do: with -1 or
/// MAP_FAILED, and the reason in errno.
struct RegionCalls {
  void* (*map)(std::size_t bytes, int flags);
  int (*unmap)(void* data, std::size_t bytes);
  int (*advise)(void* data, std::size_t bytes, int advice);
  int (*prefer_node)(void* data, std::size_t bytes, std::uint32_t numa_node);
  int (*lock)(void* data, std::size_t bytes);
  int (*unlock)(void* data, std::size_t bytes);
  /// Whether the system gives transparent huge pages to those who ask: its answer to the asking is always yes.
  bool (*has_transparent_huge_pages)();

  /// The system's own.
  [[nodiscard]] static const RegionCalls& real();
};

class HostRegion {
 public:
  HostRegion() = default;
  /// Fails only when there is not enough address space. `calls` must outlive the region.
  [[nodiscard]] static Result<HostRegion> map(std::size_t bytes, const HostRegionConfig& config,
                                              const RegionCalls& calls = RegionCalls::real());
  HostRegion(HostRegion&& other) noexcept;
  HostRegion& operator=(HostRegion&& other) noexcept;
  ~HostRegion();

  /// Gives all memory back to the system; the bytes are zero again.
  [[nodiscard]] Status forget();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] const HostRegionStatus& status() const { return status_; }
  /// For who works on the region: its threads are on the processors of its node, or why they are not.
  void set_bound_threads(bool has_bound_threads) { status_.has_bound_threads = has_bound_threads; }
  /// Something was asked for and refused.
  void refused(const char* what, const char* why);

 private:
  [[nodiscard]] bool try_map_reserved_huge_pages();
  [[nodiscard]] Status map_plain();
  void ask_for_transparent_huge_pages();
  void prefer_node(std::uint32_t numa_node);
  void lock();

  const RegionCalls* calls_ = nullptr;
  void* mapped_ = nullptr;  // begins before data_, for its alignment
  std::size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  HostRegionStatus status_;
};

}  // namespace quire
