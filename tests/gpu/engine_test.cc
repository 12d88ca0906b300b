// SPDX-License-Identifier: Apache-2.0
//
// The tiny engine with its K and V on a GPU, appended, copied, moved, sent and attended to there, and moved between the
// tiers by quire; and the hybrid engine with pages of 8 bits and states there, appended, gathered and copied. Logits
// are the oracle's, and bit for bit those of plain memory. engine_device_test and hybrid_device_test have the same
// schedules on a device without a GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "quire/device.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"
#include "tests/engine/hybrid_device_schedule.h"
#include "tests/engine/schedule_model.h"
#include "tests/engine/tiered_conversations.h"
#include "tools/tiny_engine/cuda_step_kernels.h"

namespace quire::testing {
namespace {

TEST(EngineOnGpu, EveryLogitIsTheOraclesWhateverTheSchedule) {
  const std::unique_ptr<Device> device = open_cuda_device(0).value();
  tiny_engine::CudaStepKernels kernels;
  ScheduleCounts counts;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    const ScheduleSetup setup = draw_setup(random);
    ScheduleModel model(setup, counts, {.device = device.get(), .kernels = &kernels});
    for (int call = 1; call <= 220; ++call) {
      ASSERT_EQ(model.apply(random), "") << "seed " << seed << ", call " << call << ": " << to_string(setup);
    }
    const auto mismatch = model.compare();
    ASSERT_FALSE(mismatch.has_value()) << "seed " << seed << ", call " << mismatch->when << ": " << mismatch->text
                                       << "\n"
                                       << to_string(setup);
  }
  for (const char* name : {"logits compared", "fork inside a page", "tree committed with moves", "preempt with save",
                           "bytes loaded from the host", "pages evicted", "copies", "moves", "set_window with a sink",
                           "list trimmed for layers", "tokens sent after their step", "tokens sent by their step"}) {
    EXPECT_GT(counts.by_name[name], 0U) << name;
  }
}

TEST(EngineOnGpu, ConversationsThroughAllTiersAreTheOraclesAndThoseOfPlainMemory) {
  const std::unique_ptr<Device> device = open_cuda_device(0).value();
  tiny_engine::CudaStepKernels kernels;
  ConversationsResult sum;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const TempDirectory plain_directory;
    const ConversationsResult plain = run_conversations({}, seed, plain_directory.path());
    ASSERT_EQ(plain.problem, "");
    const TempDirectory directory;
    const ConversationsResult result =
        run_conversations({.device = device.get(), .kernels = &kernels}, seed, directory.path());
    ASSERT_EQ(result.problem, "");
    EXPECT_EQ(compare_outputs(result.outputs, plain.outputs), "") << "seed " << seed;
    EXPECT_GT(result.restarted_disk_loaded_pages, 0U) << "seed " << seed;
    add_counts(sum, result);
  }
  EXPECT_GT(sum.evicted_pages, 0U);
  EXPECT_GT(sum.loaded_pages - sum.restarted_loaded_pages, 0U);  // from the host, before there was anything else
  EXPECT_GT(sum.fork_count, 0U);
  EXPECT_GT(sum.preempt_count, 0U);
  EXPECT_GT(sum.copied_pages, 0U);
  std::cout << to_string(sum);
}

class HybridEngineOnGpu : public ::testing::TestWithParam<HybridTier> {};

TEST_P(HybridEngineOnGpu, EveryLogitIsTheOraclesAndThatOfPlainMemory) {
  const std::unique_ptr<Device> device = open_cuda_device(0).value();
  tiny_engine::CudaStepKernels kernels;
  ScheduleCounts counts;
  for (std::uint64_t seed = 1; seed <= (GetParam() == HybridTier::Host ? 15 : 30); ++seed) {
    ASSERT_EQ(run_hybrid_on_device({.device = device.get(), .kernels = &kernels}, GetParam(), seed, counts), "");
  }
  for (const char* name : must_happen_on_device(GetParam())) EXPECT_GT(counts.by_name[name], 0U) << name;
}

INSTANTIATE_TEST_SUITE_P(Tiers, HybridEngineOnGpu, ::testing::ValuesIn(kHybridTiers),
                         [](const ::testing::TestParamInfo<HybridTier>& tier) {
                           return std::string(to_string(tier.param));
                         });

}  // namespace
}  // namespace quire::testing
