// SPDX-License-Identifier: Apache-2.0
//
// The hybrid engine with pages and states on a device that does things late, and whose memory nobody else may touch;
// gpu_test has the same schedules on a GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "fake_step_kernels.h"
#include "hybrid_device_schedule.h"
#include "testing/fake_device.h"
#include "testing/sanitized.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t seed_count_of(HybridTier tier) {
  if (tier == HybridTier::Device) return kIsSanitized ? 25 : 150;
  if (tier == HybridTier::Host) return kIsSanitized ? 15 : 50;
  return kIsSanitized ? 30 : 60;
}

class HybridDeviceTest : public ::testing::TestWithParam<HybridTier> {};

TEST_P(HybridDeviceTest, EveryLogitIsTheOraclesAndThatOfPlainMemory) {
  ScheduleCounts counts;
  for (std::uint64_t seed = 1; seed <= seed_count_of(GetParam()); ++seed) {
    FakeDevice device({.seed = seed, .guards_memory = true});
    FakeStepKernels kernels(device);
    ASSERT_EQ(run_hybrid_on_device({.device = &device, .kernels = &kernels}, GetParam(), seed, counts), "");
    ASSERT_EQ(device.leak_count(), 0U) << seed;
  }
  for (const auto& [name, count] : counts.by_name) std::cout << "  " << name << ": " << count << "\n";
  for (const char* name : must_happen_on_device(GetParam())) EXPECT_GT(counts.by_name[name], 0U) << name;
}

INSTANTIATE_TEST_SUITE_P(Tiers, HybridDeviceTest, ::testing::ValuesIn(kHybridTiers),
                         [](const ::testing::TestParamInfo<HybridTier>& tier) {
                           return std::string(to_string(tier.param));
                         });

}  // namespace
}  // namespace quire::testing
