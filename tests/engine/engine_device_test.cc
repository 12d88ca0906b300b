// SPDX-License-Identifier: Apache-2.0
//
// The engine with its pool on a device that does things late and in any order, and whose memory nobody else may touch:
// what it computes is what it computes in plain memory, bit for bit, and the oracle's. gpu_test has the same schedules
// on a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>

#include "fake_step_kernels.h"
#include "schedule_model.h"
#include "testing/fake_device.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"
#include "tiered_conversations.h"
#include "tools/tiny_engine/portable_exp.h"

namespace quire::testing {
namespace {

TEST(PortableExp, IsTheLibrarysButForTheLastBits) {
  for (double x = -746.0; x < 709.0; x += 0.37) {
    EXPECT_DOUBLE_EQ(tiny_engine::portable_exp(x), std::exp(x)) << x;  // four units in the last place
  }
  EXPECT_EQ(tiny_engine::portable_exp(0.0), 1.0);
  EXPECT_EQ(tiny_engine::portable_exp(-1e300), 0.0);
}

TEST(EngineDevice, EveryLogitIsTheOraclesWhateverTheSchedule) {
  constexpr std::uint64_t kSeedCount = kIsSanitized ? 50 : 300;
  ScheduleCounts counts;
  for (std::uint64_t seed = 1; seed <= kSeedCount; ++seed) {
    FakeDevice device({.seed = seed, .guards_memory = true});
    FakeStepKernels kernels(device);
    {
      Random random(seed);
      const ScheduleSetup setup = draw_setup(random);
      ScheduleModel model(setup, counts, {.device = &device, .kernels = &kernels});
      for (int call = 1; call <= 220; ++call) {
        ASSERT_EQ(model.apply(random), "") << "seed " << seed << ", call " << call << ": " << to_string(setup);
      }
      const auto mismatch = model.compare();
      ASSERT_FALSE(mismatch.has_value()) << "seed " << seed << ", call " << mismatch->when << ": " << mismatch->text
                                         << "\n"
                                         << to_string(setup);
    }
    ASSERT_EQ(device.leak_count(), 0U) << seed;
  }
  for (const char* name :
       {"logits compared", "admit with a partial hit", "fork inside a page", "tree committed with moves",
        "preempt with save", "resume with all that was saved", "bytes loaded from the host", "pages evicted", "copies",
        "moves", "set_window with a sink", "steps with three and more levels", "list trimmed for layers",
        "tokens sent after their step", "tokens sent by their step", "abort before later steps"}) {
    EXPECT_GT(counts.by_name[name], 0U) << name;
  }
}

TEST(EngineDevice, ConversationsThroughAllTiersAreTheOraclesAndThoseOfPlainMemory) {
  constexpr std::uint64_t kSeedCount = kIsSanitized ? 2 : 8;
  ConversationsResult sum;
  for (std::uint64_t seed = 0; seed < kSeedCount; ++seed) {
    const TempDirectory plain_directory;
    const ConversationsResult plain = run_conversations({}, seed, plain_directory.path());
    ASSERT_EQ(plain.problem, "");
    FakeDevice device({.seed = seed, .guards_memory = true});
    FakeStepKernels kernels(device);
    const TempDirectory directory;
    const ConversationsResult result =
        run_conversations({.device = &device, .kernels = &kernels}, seed, directory.path());
    ASSERT_EQ(result.problem, "");
    EXPECT_EQ(compare_outputs(result.outputs, plain.outputs), "") << "seed " << seed;
    EXPECT_GT(result.restarted_disk_loaded_pages, 0U) << "seed " << seed;
    EXPECT_EQ(device.leak_count(), 0U) << "seed " << seed;
    add_counts(sum, result);
  }
  EXPECT_GT(sum.loaded_pages - sum.restarted_loaded_pages, 0U);  // from the host, before there was anything else
  EXPECT_GT(sum.fork_count, 0U);
  EXPECT_GT(sum.preempt_count, 0U);
  EXPECT_GT(sum.copied_pages, 0U);
  std::cout << to_string(sum);
}

// How many of them do depends on the mover's threads; EngineAhead has bands that arrive when the test says so.
TEST(EngineDevice, ConversationsWhoseStepsBeginBeforeTheirPagesHaveArrivedAreTheOraclesToo) {
  constexpr std::uint64_t kSeedCount = kIsSanitized ? 1 : 4;
  for (std::uint64_t seed = kFirstEarlySeed; seed < kFirstEarlySeed + kSeedCount; ++seed) {
    const TempDirectory plain_directory;
    const ConversationsResult plain = run_conversations({}, seed, plain_directory.path());
    ASSERT_EQ(plain.problem, "");
    FakeDevice device({.seed = seed, .guards_memory = true});
    FakeStepKernels kernels(device);
    const TempDirectory directory;
    const ConversationsResult result =
        run_conversations({.device = &device, .kernels = &kernels}, seed, directory.path());
    ASSERT_EQ(result.problem, "");
    EXPECT_EQ(compare_outputs(result.outputs, plain.outputs), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace quire::testing
