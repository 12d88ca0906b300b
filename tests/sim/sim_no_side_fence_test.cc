// SPDX-License-Identifier: Apache-2.0
//
// A library that uses pages of windows and snapshots again while a transfer reads them. As for one group, the
// simulation must say so without the help of check_invariants().
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "sim_run.h"

namespace quire::testing {
namespace {

TEST(SimulationWithoutSideFence, PagesUsedTooEarlyAreNoticed) {
  SimCounts counts;
  const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                              .step_count = 3'000,
                                              .operations_max = 100'000,
                                              .mutation = {.checks_invariants = false},
                                              .has_groups = true},
                                             counts);
  EXPECT_NE(failure.find("transfer"), std::string::npos) << failure;
}

}  // namespace
}  // namespace quire::testing
