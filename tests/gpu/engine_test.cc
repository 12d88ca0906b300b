// SPDX-License-Identifier: Apache-2.0
//
// The tiny engine with its K and V on a GPU, appended, copied, moved, sent and attended to there, and moved between the
// tiers by quire. Its logits are the oracle's, and bit for bit those that it computes in plain memory.
// engine_device_test has the same schedules on a device without a GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "examples/tiny_engine/cuda_step_kernels.h"
#include "quire/device.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"
#include "tests/engine/schedule_model.h"
#include "tests/engine/tiered_conversations.h"

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

}  // namespace
}  // namespace quire::testing
