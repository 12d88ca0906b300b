// SPDX-License-Identifier: Apache-2.0
//
// Hundreds of random schedules, each on a cache of its own shape: every logit the engine computes from pages and plans
// must be the oracle's.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "schedule_model.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kSeedCount = kIsSanitized ? 150 : 1'700;

/// Most schedules are short, so that there are many shapes of caches; some are long, for what takes time to come about.
constexpr std::uint64_t call_count_of(std::uint64_t seed) {
  return seed % 25 == 0 ? 1'500 : 220;
}

std::string run_seed(std::uint64_t seed, std::uint64_t call_count, ScheduleCounts& counts) {
  const auto repeat = [seed](std::uint64_t calls) {
    return "\nQUIRE_SEED=" + std::to_string(seed) + " QUIRE_STEPS=" + std::to_string(calls) +
           " bin/engine_random_test\n";
  };
  Random random(seed);
  const ScheduleSetup setup = draw_setup(random);
  ScheduleModel model(setup, counts);
  std::string problem;
  std::uint64_t call = 0;
  while (problem.empty() && call < call_count) {
    ++call;
    if (counts.log != nullptr) *counts.log << "call " << call << '\n';
    problem = model.apply(random);
  }
  // Wrong logits come first: they may be why the rest went wrong.
  if (const auto mismatch = model.compare()) {
    return repeat(mismatch->when) + "call " + std::to_string(mismatch->when) + ": " + mismatch->text + "\n" +
           to_string(setup) + "\n";
  }
  if (problem.empty()) return "";
  return repeat(call) + "call " + std::to_string(call) + ": " + problem + "\n" + to_string(setup) + "\n";
}

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(EngineRandom, EveryLogitIsTheOraclesWhateverTheSchedule) {
  const std::uint64_t only_seed = number_from("QUIRE_SEED", 0);
  ScheduleCounts counts;
  if (only_seed != 0) {
    counts.log = &std::cout;
    EXPECT_EQ(run_seed(only_seed, number_from("QUIRE_STEPS", call_count_of(only_seed)), counts), "");
    return;
  }
  for (std::uint64_t seed = 1; seed <= kSeedCount; ++seed) {
    ASSERT_EQ(run_seed(seed, call_count_of(seed), counts), "");
  }
  // A schedule that never does what it is for would pass too.
  for (const char* name : {"logits compared",
                           "admit with a hit",
                           "admit with a partial hit",
                           "fork inside a page",
                           "fork of a sequence in flight",
                           "fork of a windowed sequence",
                           "fork at the start",
                           "rewind across pages",
                           "rewind of a windowed sequence",
                           "rewind to nothing",
                           "fork refused by a window",
                           "rewind refused by a window",
                           "set_window with a sink",
                           "set_window while waiting",
                           "tree committed with moves",
                           "tree rejected",
                           "tree grown by a later round",
                           "drafts accepted",
                           "drafts behind nothing",
                           "discard",
                           "abort before later steps",
                           "end in flight",
                           "preempt with save",
                           "preempt with drop",
                           "resume with all that was saved",
                           "resume after drop",
                           "short plan",
                           "copies",
                           "moves",
                           "finish with steps in flight",
                           "steps with three and more levels",
                           "list trimmed for layers",
                           "tree in layers with a window",
                           "window and window of layers",
                           "schedule without dedup",
                           "page held twice without dedup",
                           "receive inside a page",
                           "receive refused",
                           "received page kept",
                           "finish_receive",
                           "finish_receive of a sender",
                           "abort_receive",
                           "end while receiving",
                           "append while receiving",
                           "fork of a receiving sequence",
                           "mark of computed tokens",
                           "mark replaced",
                           "mark taken back",
                           "tokens sent after their step",
                           "tokens sent by their step",
                           "window of a sender",
                           "rewind of a sender",
                           "preempt of a sender",
                           "end of a sender"}) {
    EXPECT_GT(counts.by_name[name], kIsSanitized ? 0U : 10U) << name;
  }
  for (const auto& [name, count] : counts.by_name) std::cout << "  " << name << ": " << count << "\n";
}

}  // namespace
}  // namespace quire::testing
