// SPDX-License-Identifier: Apache-2.0
//
// Random schedules on caches of several groups, each with a mix of layers of its own: every logit the engine computes
// from pages, state slots and plans must be the oracle's.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "hybrid_schedule.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kSeedCount = kIsSanitized ? 150 : 900;

/// Most schedules are short, so that there are many mixes; some are long, for what takes time to come about.
constexpr std::uint64_t call_count_of(std::uint64_t seed) {
  return seed % 20 == 0 ? 1'000 : 200;
}

std::string run_seed(std::uint64_t seed, std::uint64_t call_count, ScheduleCounts& counts) {
  const auto repeat = [seed](std::uint64_t calls) {
    return "\nQUIRE_SEED=" + std::to_string(seed) + " QUIRE_STEPS=" + std::to_string(calls) +
           " bin/hybrid_engine_test\n";
  };
  Random random(seed);
  const HybridSetup setup = draw_hybrid_setup(random);
  if (counts.log != nullptr) *counts.log << to_string(setup) << '\n';
  HybridSchedule schedule(setup, counts);
  std::string problem;
  std::uint64_t call = 0;
  while (problem.empty() && call < call_count) {
    ++call;
    if (counts.log != nullptr) *counts.log << "call " << call << '\n';
    problem = schedule.apply(random);
  }
  // Wrong logits come first: they may be why the rest went wrong.
  if (const auto mismatch = schedule.rig().compare()) {
    return repeat(mismatch->when) + "call " + std::to_string(mismatch->when) + ": " + mismatch->text + "\n" +
           to_string(setup) + "\n";
  }
  if (problem.empty()) problem = schedule.drain();
  schedule.rig().count_groups();
  if (problem.empty()) return "";
  return repeat(call) + "call " + std::to_string(call) + ": " + problem + "\n" + to_string(setup) + "\n";
}

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(HybridEngine, EveryLogitIsTheOraclesWhateverTheLayersAndTheSchedule) {
  const std::uint64_t only_seed = number_from("QUIRE_SEED", 0);
  ScheduleCounts counts;
  if (only_seed != 0) {
    counts.log = &std::cout;
    EXPECT_EQ(run_seed(only_seed, number_from("QUIRE_STEPS", call_count_of(only_seed)), counts), "");
    return;
  }
  for (std::uint64_t seed = 1; seed <= number_from("QUIRE_SEEDS", kSeedCount); ++seed) {
    ASSERT_EQ(run_seed(seed, call_count_of(seed), counts), "");
  }
  // A schedule that never does what it is for would pass too.
  for (const char* name : {"logits compared",
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
                           "finish with steps in flight"}) {
    EXPECT_GT(counts.by_name[name], kIsSanitized ? 0U : 10U) << name;
  }
  for (const auto& [name, count] : counts.by_name) std::cout << "  " << name << ": " << count << "\n";
}

}  // namespace
}  // namespace quire::testing
