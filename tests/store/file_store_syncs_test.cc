// SPDX-License-Identifier: Apache-2.0
//
// Each sync of the file store is needed: without it, a promise is broken when the power fails.
#include <cstdint>

#include <gtest/gtest.h>

#include "tests/store/crash_run.h"

namespace quire::testing {
namespace {

// How many seeds until a promise is broken; none within the bound is 0.
std::uint64_t seeds_until_broken(SyncPoint ignored) {
  constexpr std::uint64_t kSeedsMax = 20'000;
  for (std::uint64_t seed = 1; seed <= kSeedsMax; ++seed) {
    if (!run_crashes({.seed = seed, .ignored = ignored}).violation.empty()) return seed;
  }
  return 0;
}

TEST(FileStoreSyncs, WithoutTheSyncOfTheManifestTheCrashTestFails) {
  EXPECT_GT(seeds_until_broken(SyncPoint::ManifestFile), 0U);
}
TEST(FileStoreSyncs, WithoutTheSyncOfTheManifestsNameTheCrashTestFails) {
  EXPECT_GT(seeds_until_broken(SyncPoint::ManifestDirectory), 0U);
}
TEST(FileStoreSyncs, WithoutTheSyncOfSegmentNamesTheCrashTestFails) {
  EXPECT_GT(seeds_until_broken(SyncPoint::SegmentDirectory), 0U);
}
TEST(FileStoreSyncs, WithoutTheSyncBeforeAFooterTheCrashTestFails) {
  EXPECT_GT(seeds_until_broken(SyncPoint::SegmentSeal), 0U);
}
TEST(FileStoreSyncs, WithoutTheSyncOfFlushTheCrashTestFails) {
  EXPECT_GT(seeds_until_broken(SyncPoint::Flush), 0U);
}
TEST(FileStoreSyncs, WithoutTheSyncOfCarriedRecordsTheCrashTestFails) {
  EXPECT_GT(seeds_until_broken(SyncPoint::Carry), 0U);
}
TEST(FileStoreSyncs, WithoutTheSyncOfRemovedNamesTheCrashTestFails) {
  EXPECT_GT(seeds_until_broken(SyncPoint::RemoveDirectory), 0U);
}

}  // namespace
}  // namespace quire::testing
