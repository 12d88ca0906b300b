// SPDX-License-Identifier: Apache-2.0
//
// Random schedules on caches of several groups, each with a mix of layers of its own: every logit the engine computes
// from pages, state slots and plans must be the oracle's, whichever tier they have come from.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include "hybrid_schedule.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kSeedCount = kIsSanitized ? 150 : 600;

/// Most schedules are short, so that there are many mixes; some are long, for what takes time to come about. To go down
/// to another tier and come back takes longer.
constexpr std::uint64_t call_count_of(std::uint64_t seed, HybridTier tier) {
  return (seed % 20 == 0 ? 1'000ULL : 200ULL) * (tier == HybridTier::Device ? 1 : 4);
}
constexpr std::uint64_t seed_count_of(HybridTier tier) {
  if (tier == HybridTier::Disk) return kIsSanitized ? 25 : 40;
  return kSeedCount / (tier == HybridTier::Device ? 1 : 4);
}

class HybridEngineTest : public ::testing::TestWithParam<HybridTier> {
 protected:
  static std::string run_seed(std::uint64_t seed, std::uint64_t call_count, ScheduleCounts& counts) {
    const auto repeat = [seed](std::uint64_t calls) {
      return "\nQUIRE_SEED=" + std::to_string(seed) + " QUIRE_STEPS=" + std::to_string(calls) +
             " bin/hybrid_engine_test --gtest_filter='*/" + std::string(to_string(GetParam())) + "'\n";
    };
    Random random(seed);
    HybridSetup setup = draw_hybrid_setup(random, GetParam());
    std::optional<TempDirectory> directory;
    if (GetParam() == HybridTier::Disk) setup.disk_directory = directory.emplace().path();
    setup.watches_keys = true;
    if (counts.log != nullptr) *counts.log << to_string(setup) << '\n';
    HybridSchedule schedule(setup, counts);
    std::string problem;
    std::uint64_t call = 0;
    while (problem.empty() && call < call_count) {
      ++call;
      if (counts.log != nullptr) *counts.log << "call " << call << '\n';
      problem = schedule.apply(random);
    }
    counts.add("keys compared with who wrote them", schedule.rig().compared_key_count());
    // Wrong logits come first: they may be why the rest went wrong.
    if (const auto mismatch = schedule.rig().compare()) {
      return repeat(mismatch->when) + "call " + std::to_string(mismatch->when) + ": " + mismatch->text + "\n" +
             to_string(setup) + "\n";
    }
    if (problem.empty()) problem = schedule.drain();
    if (problem.empty()) return "";
    return repeat(call) + "call " + std::to_string(call) + ": " + problem + "\n" + to_string(setup) + "\n";
  }
};

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST_P(HybridEngineTest, EveryLogitIsTheOraclesWhateverTheLayersAndTheSchedule) {
  const std::uint64_t only_seed = number_from("QUIRE_SEED", 0);
  ScheduleCounts counts;
  if (only_seed != 0) {
    counts.log = &std::cout;
    EXPECT_EQ(run_seed(only_seed, number_from("QUIRE_STEPS", call_count_of(only_seed, GetParam())), counts), "");
    return;
  }
  for (std::uint64_t seed = 1; seed <= number_from("QUIRE_SEEDS", seed_count_of(GetParam())); ++seed) {
    ASSERT_EQ(run_seed(seed, call_count_of(seed, GetParam()), counts), "");
  }
  for (const auto& [name, count] : counts.by_name) std::cout << "  " << name << ": " << count << "\n";
  // A schedule that never does what it is for would pass too.
  if (GetParam() == HybridTier::Disk) {
    for (const char* name :
         {"keys compared with who wrote them", "restart", "tokens found on disk", "pages read of a full",
          "pages read of a compressed", "pages read of a window", "pages read of a ring", "pages read of a snapshot"}) {
      EXPECT_GT(counts.by_name[name], 0U) << name;
    }
    return;
  }
  for (const char* name : {"logits compared",
                           "keys compared with who wrote them",
                           "admit with a hit",
                           "admit with a partial hit",
                           "admit with a replay",
                           "hit limited by a window",
                           "hit limited by a snapshot",
                           "pages evicted of a full",
                           "pages evicted of a compressed",
                           "pages evicted of a window",
                           "pages evicted of a ring",
                           "pages evicted of a snapshot",
                           "snapshots restored of a snapshot",
                           "snapshots restored of a ring",
                           "state reset",
                           "state forked",
                           "chunk cut at a checkpoint",
                           "rewind over a recurrent state",
                           "rewind over a ring",
                           "rewind over a compressor",
                           "rewind refused by a group",
                           "fork inside a page",
                           "fork of a sequence in flight",
                           "fork refused by a group",
                           "drafts accepted",
                           "drafts rejected",
                           "discard",
                           "abort",
                           "end in flight",
                           "preempt",
                           "resume with a hit",
                           "short plan",
                           "copies",
                           "list trimmed for layers",
                           "set_window",
                           "set_window while waiting",
                           "set_window refused",
                           "preempt with a window",
                           "chunk of a window that has moved",
                           "token of a window that has moved",
                           "pool grown below sequences",
                           "pool shrunk below sequences",
                           "resize refused",
                           "finish with steps in flight"}) {
    EXPECT_GT(counts.by_name[name], kIsSanitized ? 0U : 10U) << name;
  }
  constexpr std::array kOfHost = {"pages stored of the history",
                                  "pages stored of another group",
                                  "pages loaded of the history",
                                  "pages loaded of another group",
                                  "load of the history failed",
                                  "load of another group failed",
                                  "store of the history failed",
                                  "store of another group failed",
                                  "pages loaded of a full",
                                  "pages loaded of a compressed",
                                  "pages loaded of a window",
                                  "pages loaded of a ring",
                                  "pages loaded of a snapshot",
                                  "admit that loads",
                                  "resume that loads",
                                  "save",
                                  "save with a window",
                                  "load with a longer hit",
                                  "load in vain",
                                  "step planned while pages arrive",
                                  "bands brought between layers",
                                  "snapshot waited for",
                                  "pages came for steps in flight",
                                  "sequence lost with steps in flight",
                                  "abort while pages arrive"};
  for (const char* name : kOfHost) {
    if (GetParam() == HybridTier::Device) break;
    EXPECT_GT(counts.by_name[name], kIsSanitized ? 0U : 5U) << name;
  }
  if (GetParam() == HybridTier::Device || kIsSanitized) return;  // the few seeds of sanitized runs may have none
  EXPECT_GT(counts.by_name["discard while pages arrive"], 5U);
  EXPECT_GT(counts.by_name["load of the history cancelled"], 0U);
  EXPECT_GT(counts.by_name["load of another group cancelled"], 0U);
}

INSTANTIATE_TEST_SUITE_P(Tiers, HybridEngineTest, ::testing::ValuesIn(kHybridTiers),
                         [](const ::testing::TestParamInfo<HybridTier>& tier) {
                           return std::string(to_string(tier.param));
                         });

}  // namespace
}  // namespace quire::testing
