// SPDX-License-Identifier: Apache-2.0
//
// A library that uses pages again while a transfer reads them. No wrong byte comes of it: whatever has lost its page is
// not wanted any more. But a mover reads what an engine writes, and the simulation must say so, without the help of
// check_invariants().
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "sim_run.h"

namespace quire::testing {
namespace {

TEST(SimulationWithoutFence, PagesUsedTooEarlyAreNoticed) {
  SimCounts counts;
  const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                              .step_count = 2'000,
                                              .operations_max = 100'000,
                                              .mutation = {.checks_invariants = false}},
                                             counts);
  EXPECT_NE(failure.find("transfer"), std::string::npos) << failure;
}

}  // namespace
}  // namespace quire::testing
