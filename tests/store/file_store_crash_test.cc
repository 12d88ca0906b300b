// SPDX-License-Identifier: Apache-2.0
//
// The file store keeps its promises when the power fails.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "testing/sanitized.h"
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

}  // namespace
}  // namespace quire::testing
