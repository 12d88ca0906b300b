// SPDX-License-Identifier: Apache-2.0
//
// Is it noticed when the hybrid engine does not wait for pages that are still arriving? The schedules of
// hybrid_engine_test, with a host whose bands come when the engine waits for them, and not before.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "hybrid_schedule.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kSeedCount = 100;
constexpr std::uint64_t kCallCount = 600;

// Empty, or the first logits that are not the oracle's.
std::string run_seed(std::uint64_t seed, HybridWaits waits, ScheduleCounts& counts) {
  Random random(seed);
  HybridSetup setup = draw_hybrid_setup(random, HybridTier::Host);
  if (!setup.plans_while_loading) return "";
  setup.has_own_mover = false;
  setup.accelerator_path.reset();
  setup.transfer_chances = {.delay = 70, .fault = 5};
  setup.waits = waits;
  HybridSchedule schedule(setup, counts);
  std::string problem;
  for (std::uint64_t call = 0; call < kCallCount && problem.empty(); ++call) problem = schedule.apply(random);
  const auto mismatch = schedule.rig().compare();
  return mismatch ? mismatch->text : problem;
}

std::string run_seeds(HybridWaits waits, ScheduleCounts& counts) {
  std::string problem;
  for (std::uint64_t seed = 1; seed <= kSeedCount && problem.empty(); ++seed) problem = run_seed(seed, waits, counts);
  return problem;
}

TEST(HybridAhead, EveryLogitIsTheOraclesWhileBandsArriveBetweenLayers) {
  ScheduleCounts counts;
  EXPECT_EQ(run_seeds(HybridWaits::All, counts), "");
  for (const char* name :
       {"step planned while pages arrive", "bands brought between layers", "snapshot waited for",
        "pages came for steps in flight", "entry whose pages arrived under way", "sequence lost with steps in flight",
        "sequence lost without a step", "entry lost", "abort while pages arrive", "discard while pages arrive"}) {
    EXPECT_GT(counts.by_name[name], 0U) << name;
  }
}

TEST(HybridAhead, AnEngineThatDoesNotWaitForLayersIsNoticed) {
  ScheduleCounts counts;
  EXPECT_NE(run_seeds(HybridWaits::SnapshotsOnly, counts).find("logits"), std::string::npos);
}

TEST(HybridAhead, AnEngineThatFillsStatesBeforeTheirSnapshotsHaveComeIsNoticed) {
  ScheduleCounts counts;
  EXPECT_NE(run_seeds(HybridWaits::LayersOnly, counts).find("logits"), std::string::npos);
}

}  // namespace
}  // namespace quire::testing
