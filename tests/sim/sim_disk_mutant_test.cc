// SPDX-License-Identifier: Apache-2.0
//
// A library whose disk tier leaves out one thing: it does not verify the checksum, the name or the layout of what it
// reads, a host page keeps the name of what it held before, or names are not computed in the order in which things
// happened. Each is a test of its own, with this text, and each must be noticed by bytes that are not what they should
// be.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "sim_run.h"

namespace quire::testing {
namespace {

TEST(SimulationOfADiskTier, WhatIsLeftOutIsNoticed) {
  SimCounts counts;
  const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                              .step_count = 2'000,
                                              .operations_max = 100'000,
                                              .mutation = {.QUIRE_SIM_MUTATION = true},
                                              .disk_tier = SimDiskTier::Always,
                                              .has_groups = QUIRE_SIM_HAS_GROUPS != 0},
                                             counts);
  const bool is_told = failure.find("wrong bytes") != std::string::npos ||
                       failure.find("tokens that nobody has computed") != std::string::npos;
  EXPECT_TRUE(is_told) << failure;
  RecordProperty("operations", std::to_string(counts.operations()));
}

}  // namespace
}  // namespace quire::testing
