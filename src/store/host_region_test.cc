// SPDX-License-Identifier: Apache-2.0
#include "store/host_region.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace quire {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20U;
constexpr std::size_t kBytes = (4 * kHuge) + 12'345;

// The real calls, except for those a test refuses.
RegionCalls calls_without_reserved_pages() {
  RegionCalls calls = RegionCalls::real();
  calls.map = [](std::size_t bytes, int flags) {
    if ((flags & MAP_HUGETLB) == 0) return RegionCalls::real().map(bytes, flags);
    errno = ENOMEM;
    return MAP_FAILED;
  };
  calls.has_transparent_huge_pages = [] { return true; };
  calls.advise = [](void*, std::size_t, int) { return 0; };
  return calls;
}

template <int kErrno>
int refuse(void* /*data*/, std::size_t /*bytes*/) {
  errno = kErrno;
  return -1;
}

bool is_all_zero(const HostRegion& region) {
  for (std::size_t i = 0; i < region.bytes(); i += 512) {
    if (region.data()[i] != std::byte{0}) return false;
  }
  return region.data()[region.bytes() - 1] == std::byte{0};
}

TEST(HostRegion, IsWritableZeroAndAligned) {
  for (const bool huge_pages : {false, true}) {
    const HostRegion region = HostRegion::map(kBytes, {.huge_pages = huge_pages}).value();
    EXPECT_EQ(region.bytes(), kBytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.data()) % kHuge, 0U);
    EXPECT_TRUE(is_all_zero(region));
    region.data()[0] = std::byte{1};
    region.data()[kBytes - 1] = std::byte{2};
  }
}

TEST(HostRegion, MuchMoreCanBeMappedThanIsEverWritten) {
  const HostRegion region = HostRegion::map(std::size_t{1} << 40U, {.huge_pages = false}).value();
  region.data()[region.bytes() - 1] = std::byte{1};
  EXPECT_EQ(region.data()[region.bytes() / 2], std::byte{0});
}

TEST(HostRegion, MovingTakesTheMemoryAlong) {
  HostRegion source = HostRegion::map(kBytes, {.huge_pages = false}).value();
  source.data()[3] = std::byte{33};
  HostRegion moved = std::move(source);
  EXPECT_EQ(moved.data()[3], std::byte{33});
  HostRegion target = HostRegion::map(kHuge, {.huge_pages = false}).value();
  target = std::move(moved);
  EXPECT_EQ(target.bytes(), kBytes);
  EXPECT_EQ(target.data()[3], std::byte{33});
}

TEST(HostRegion, NothingAskedForIsNothingRefused) {
  const HostRegion region = HostRegion::map(kBytes, {.huge_pages = false}).value();
  EXPECT_FALSE(region.status().has_huge_pages);
  EXPECT_FALSE(region.status().is_on_numa_node);
  EXPECT_FALSE(region.status().is_locked);
  EXPECT_EQ(region.status().refusals, "");
}

TEST(HostRegion, HugePagesThatAreSetApartComeFirst) {
  RegionCalls calls = RegionCalls::real();
  calls.map = [](std::size_t bytes, int flags) {
    EXPECT_NE(flags & MAP_HUGETLB, 0);
    EXPECT_EQ(flags & MAP_NORESERVE, 0) << "a write that finds none left would end the process";
    EXPECT_EQ(bytes % kHuge, 0U);
    return RegionCalls::real().map(bytes, 0);  // A stand-in: this machine may have none.
  };
  calls.has_transparent_huge_pages = [] { return false; };
  const HostRegion region = HostRegion::map(kBytes, {}, calls).value();
  EXPECT_TRUE(region.status().has_huge_pages);
  EXPECT_TRUE(region.status().has_reserved_huge_pages);
  EXPECT_EQ(region.status().refusals, "");
  region.data()[kBytes - 1] = std::byte{1};
}

TEST(HostRegion, TransparentHugePagesComeSecond) {
  const RegionCalls calls = calls_without_reserved_pages();
  const HostRegion region = HostRegion::map(kBytes, {}, calls).value();
  EXPECT_TRUE(region.status().has_huge_pages);
  EXPECT_FALSE(region.status().has_reserved_huge_pages);
  EXPECT_EQ(region.status().refusals, "");
}

TEST(HostRegion, RefusedHugePagesAreDoneWithoutAndReported) {
  RegionCalls calls = calls_without_reserved_pages();
  calls.advise = [](void*, std::size_t, int) {
    errno = EINVAL;
    return -1;
  };
  const HostRegion refused = HostRegion::map(kBytes, {}, calls).value();
  EXPECT_FALSE(refused.status().has_huge_pages);
  EXPECT_EQ(refused.status().refusals, "huge pages: none are set apart, and madvise says: Invalid argument");
  refused.data()[kBytes - 1] = std::byte{1};

  calls = calls_without_reserved_pages();
  calls.has_transparent_huge_pages = [] { return false; };
  const HostRegion off = HostRegion::map(kBytes, {}, calls).value();
  EXPECT_FALSE(off.status().has_huge_pages);
  EXPECT_EQ(off.status().refusals, "huge pages: none are set apart, and transparent ones are switched off");

  const HostRegion small = HostRegion::map(kHuge - 1, {}, calls).value();
  EXPECT_EQ(small.status().refusals, "huge pages: the region is smaller than one of them");
}

TEST(HostRegion, ARefusedNodeIsDoneWithoutAndReported) {
  RegionCalls calls = calls_without_reserved_pages();
  calls.prefer_node = [](void*, std::size_t, std::uint32_t numa_node) {
    EXPECT_EQ(numa_node, 3U);
    errno = EPERM;
    return -1;
  };
  const HostRegion region = HostRegion::map(kBytes, {.numa_node = 3}, calls).value();
  EXPECT_FALSE(region.status().is_on_numa_node);
  EXPECT_TRUE(region.status().has_huge_pages);
  EXPECT_EQ(region.status().refusals, "NUMA node 3: mbind says: Operation not permitted");
  region.data()[kBytes - 1] = std::byte{1};
}

TEST(HostRegion, ANodeThatThisMachineCannotHaveIsRefused) {
  for (const std::uint32_t node : {1023U, 1024U, 4'000'000'000U}) {
    const HostRegion region = HostRegion::map(kBytes, {.huge_pages = false, .numa_node = node}).value();
    EXPECT_FALSE(region.status().is_on_numa_node);
    EXPECT_EQ(region.status().refusals.find("NUMA node " + std::to_string(node) + ": mbind says: "), 0U);
  }
}

// Containers may refuse the call as such; then that is what is reported.
TEST(HostRegion, TheFirstNodeIsThereOrTheRefusalIsReported) {
  const HostRegion region = HostRegion::map(kBytes, {.huge_pages = false, .numa_node = 0}).value();
  EXPECT_EQ(region.status().is_on_numa_node, region.status().refusals.empty()) << region.status().refusals;
  region.data()[kBytes - 1] = std::byte{1};
}

TEST(HostRegion, ARefusedLockIsDoneWithoutAndReported) {
  RegionCalls calls = calls_without_reserved_pages();
  calls.lock = refuse<EPERM>;
  const HostRegion region = HostRegion::map(kBytes, {.lock_memory = true}, calls).value();
  EXPECT_FALSE(region.status().is_locked);
  EXPECT_EQ(region.status().refusals, "locked memory: mlock says: Operation not permitted; see ulimit -l");
}

// A small region, of which most systems let anybody lock as much.
TEST(HostRegion, ALockIsThereOrTheRefusalIsReported) {
  HostRegion region = HostRegion::map(65'536, {.huge_pages = false, .lock_memory = true}).value();
  EXPECT_EQ(region.status().is_locked, region.status().refusals.empty()) << region.status().refusals;
  region.data()[5] = std::byte{1};
  ASSERT_TRUE(region.forget().has_value());
  EXPECT_TRUE(is_all_zero(region));
}

TEST(HostRegion, AllRefusalsAreReportedTogether) {
  RegionCalls calls = calls_without_reserved_pages();
  calls.has_transparent_huge_pages = [] { return false; };
  calls.prefer_node = [](void*, std::size_t, std::uint32_t) {
    errno = ENOSYS;
    return -1;
  };
  calls.lock = refuse<ENOMEM>;
  const HostRegion region = HostRegion::map(kBytes, {.numa_node = 1, .lock_memory = true}, calls).value();
  EXPECT_EQ(region.status().refusals,
            "huge pages: none are set apart, and transparent ones are switched off; "
            "NUMA node 1: mbind says: Function not implemented; "
            "locked memory: mlock says: Cannot allocate memory; see ulimit -l");
}

TEST(HostRegion, AddressSpaceThatIsNotThereIsAnError) {
  const auto region = HostRegion::map(std::size_t{1} << 60U, {.huge_pages = false});
  ASSERT_FALSE(region.has_value());
  EXPECT_EQ(region.error().message.find("reserving 1152921504606846976 bytes of address space for host pages: "), 0U);
  const auto most = HostRegion::map(SIZE_MAX, {});
  ASSERT_FALSE(most.has_value());
}

TEST(HostRegion, ForgettingMakesEverythingZeroAgain) {
  HostRegion region = HostRegion::map(kBytes, {.huge_pages = false}).value();
  for (std::size_t i = 0; i < kBytes; i += 512) region.data()[i] = std::byte{7};
  ASSERT_TRUE(region.forget().has_value());
  EXPECT_TRUE(is_all_zero(region));
  region.data()[5] = std::byte{1};
}

TEST(HostRegion, ForgettingLockedMemoryKeepsTheLockWhereTheSystemCan) {
  static int advice_refused;
  RegionCalls calls = calls_without_reserved_pages();
  calls.lock = [](void*, std::size_t) { return 0; };
  calls.unlock = [](void*, std::size_t) { return 0; };
  calls.advise = [](void* data, std::size_t bytes, int advice) {
    if (advice == MADV_HUGEPAGE) return 0;
    if (advice == advice_refused) {
      errno = EINVAL;
      return -1;
    }
    return RegionCalls::real().advise(data, bytes, MADV_DONTNEED);
  };
  advice_refused = -1;
  HostRegion kept = HostRegion::map(kBytes, {.lock_memory = true}, calls).value();
  kept.data()[0] = std::byte{7};
  ASSERT_TRUE(kept.forget().has_value());
  EXPECT_TRUE(kept.status().is_locked);
  EXPECT_TRUE(is_all_zero(kept));

  advice_refused = 24;
  HostRegion lost = HostRegion::map(kBytes, {.lock_memory = true}, calls).value();
  lost.data()[0] = std::byte{7};
  ASSERT_TRUE(lost.forget().has_value());
  EXPECT_FALSE(lost.status().is_locked);
  EXPECT_EQ(lost.status().refusals, "locked memory: the system could only give it back unlocked");
  EXPECT_TRUE(is_all_zero(lost));

  advice_refused = MADV_DONTNEED;
  HostRegion stuck = HostRegion::map(kBytes, {}, calls).value();
  const Status status = stuck.forget();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message, "giving the memory of the host pages back: madvise says: Invalid argument");
}

}  // namespace
}  // namespace quire
