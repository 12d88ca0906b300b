// SPDX-License-Identifier: Apache-2.0
//
// The file store keeps its promises when the power fails.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/file_store.h"
#include "testing/file_pages.h"
#include "testing/sanitized.h"
#include "testing/sim_disk.h"
#include "tests/store/crash_run.h"

namespace quire::testing {
namespace {

// Runs seeds until so many crashes have been seen, or the one of QUIRE_SEED; what they saw together.
CrashOutcome run_many(CrashRun run, std::uint64_t crashes_wanted, const std::string& test) {
  const char* const seed_text = std::getenv("QUIRE_SEED");
  run.seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 1;
  if (seed_text != nullptr) crashes_wanted = 1;
  CrashOutcome sum;
  for (; sum.crash_count < crashes_wanted; ++run.seed) {
    const CrashOutcome outcome = run_crashes(run);
    if (!outcome.violation.empty()) {
      sum.violation = "\nQUIRE_SEED=" + std::to_string(run.seed) +
                      " bin/file_store_crash_test --gtest_filter=FileStoreCrash." + test + "\n" + outcome.violation;
      return sum;
    }
    sum.crash_count += outcome.crash_count;
    sum.promised_count += outcome.promised_count;
    sum.dropped_count += outcome.dropped_count;
    sum.reclaimed_count += outcome.reclaimed_count;
    sum.carried_bytes += outcome.carried_bytes;
  }
  std::cout << sum.crash_count << " crashes: " << sum.promised_count << " pages were promised, " << sum.dropped_count
            << " had been dropped, " << sum.reclaimed_count << " segments reclaimed, " << sum.carried_bytes
            << " bytes carried over\n";
  return sum;
}

TEST(FileStoreCrash, NoPromiseIsBroken) {
  const CrashOutcome sum = run_many({}, kIsSanitized ? 1'000 : 10'000, "NoPromiseIsBroken");
  ASSERT_EQ(sum.violation, "");
  if (std::getenv("QUIRE_SEED") != nullptr) return;
  // The workload was one that could have broken them.
  EXPECT_GT(sum.promised_count, sum.crash_count);
  EXPECT_GT(sum.dropped_count, sum.crash_count);
  EXPECT_GT(sum.reclaimed_count, sum.crash_count);
  EXPECT_GT(sum.carried_bytes, sum.crash_count * 4096);
}

TEST(FileStoreCrash, NoPromiseIsBrokenWhenCallsFailAsWell) {
  for (const std::uint32_t per_thousand : {3U, 30U}) {
    const CrashOutcome sum = run_many({.failures_per_thousand = per_thousand}, kIsSanitized ? 200 : 2'000,
                                      "NoPromiseIsBrokenWhenCallsFailAsWell");
    ASSERT_EQ(sum.violation, "") << per_thousand << " of a thousand calls";
  }
}

// A sync that fails leaves what was written in the system's memory, where it reads well and counts as written: no later
// sync writes it. Its process does not get to cut it off.
class FailedSync : public ::testing::TestWithParam<bool> {};

TEST_P(FailedSync, WhatItLeftIsNotPromisedByTheNextProcess) {
  const bool fails_when_opening = GetParam();
  const FileStoreConfig config{.directories = {"a"},
                               .capacity_bytes = 8 * 40'960,
                               .segment_bytes = 40'960,
                               .layout = {.page_bytes = 3000, .hash = 7}};
  std::uint64_t promised_count = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    auto disk = std::make_unique<SimDisk>(seed);
    std::unique_ptr<SimDisk> killed;
    std::unique_ptr<SimDisk> crashed;
    auto store = FileStore::open(config, *disk).value();
    ASSERT_EQ(write_one(*store, {0, 0}, config), FileOutcome::Ok);
    ASSERT_TRUE(store->flush());
    for (std::uint32_t index = 1; index < 4; ++index) {
      ASSERT_EQ(write_one(*store, {0, index}, config), FileOutcome::Ok);
    }
    if (!fails_when_opening) {
      disk->fail_once(SimOperation::SyncFile);
      disk->crash_after(1);  // the sync that fails
      EXPECT_FALSE(store->flush());
    }
    killed = disk->kill(seed);
    store.reset();
    if (fails_when_opening) {
      killed->fail_once(SimOperation::SyncFile);
      EXPECT_FALSE(FileStore::open(config, *killed).has_value()) << "its only directory is given up";
    }
    store = FileStore::open(config, *killed).value();
    ASSERT_TRUE(store->flush());
    ASSERT_TRUE(has_page(*store, {0, 0})) << "what was flushed before is there";
    std::vector<TestPage> promised;
    for (std::uint32_t index = 0; index < 4; ++index) {
      if (has_page(*store, {0, index})) promised.push_back({0, index});
    }
    crashed = killed->crash(seed);
    store.reset();
    store = FileStore::open(config, *crashed).value();
    for (const TestPage page : promised) {
      ASSERT_EQ(read_one(*store, page, config), "") << "seed " << seed << ", page " << page.index;
    }
    promised_count += promised.size();
    store.reset();
  }
  EXPECT_GT(promised_count, 220U) << "what can be read is kept";
}

INSTANTIATE_TEST_SUITE_P(FileStoreCrash, FailedSync, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "WhenOpening" : "OfAFlush"; });

}  // namespace
}  // namespace quire::testing
