// SPDX-License-Identifier: Apache-2.0
//
// Many seeds of the simulation, those that once failed, and movers that must be noticed. Libraries that must be are in
// mutants_test.cc.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "sim_run.h"
#include "testing/sanitized.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kStepCount = 10'000;
constexpr std::uint64_t kSmallRun = 100'000;  // operations
constexpr std::uint64_t kSmallStepCount = 2'000;
constexpr std::array kAllOrNone = {SimSeeds::Never, SimSeeds::Always};

// Calls and events of the mover; QUIRE_SIM_OPERATIONS asks for another number.
std::uint64_t wanted_operations() {
  const char* const text = std::getenv("QUIRE_SIM_OPERATIONS");
  if (text != nullptr) return std::strtoull(text, nullptr, 10);
  constexpr std::uint64_t kOperations = 12'000'000;
  return kIsSanitized ? kOperations / 20 : kOperations;
}

TEST(Simulation, EveryByteIsRightAndEveryMissHasItsReason) {
  SimCounts counts;
  const std::string failure = run_simulation(
      {.seed_count = UINT64_MAX, .step_count = kStepCount, .operations_max = wanted_operations()}, counts);
  ASSERT_EQ(failure, "");
  // Besides, seeds in all of which sequences run ahead of their loads.
  ASSERT_EQ(run_simulation({.first_seed = kFirstAheadSeed,
                            .seed_count = UINT64_MAX,
                            .step_count = kSmallStepCount,
                            .operations_max = wanted_operations() / 10 * 11,
                            .shape = {.ahead = SimSeeds::Always}},
                           counts),
            "");
  // Nothing is checked by what was never drawn.
  for (std::size_t i = 0; i < kSimEventCount; ++i) {
    const auto event = static_cast<SimEvent>(i);
    const bool is_wrong = event == SimEvent::WrongChoice || event == SimEvent::WrongDiskChoice;
    // Come once in millions of operations; CacheGroupsAheadTest has both.
    const bool is_rare = event == SimEvent::LoadsAgain || event == SimEvent::AbortedUnapplied;
    if (is_wrong || is_rare || i >= kFirstRemoteEvent || kIsSanitized)
      continue;  // in a twentieth, the rarest may be missing
    EXPECT_GT(counts.events[i], 0U) << to_string(event);
  }
  const std::uint64_t choices = counts[SimEvent::RightChoice] + counts[SimEvent::WrongChoice];
  EXPECT_GT(choices, 0U);
  EXPECT_GE(counts[SimEvent::RightChoice] * 100, choices * 95) << "to load or to compute: the cheaper one";
  const std::uint64_t disk_choices = counts[SimEvent::RightDiskChoice] + counts[SimEvent::WrongDiskChoice];
  EXPECT_GT(disk_choices, 0U);
  EXPECT_GE(counts[SimEvent::RightDiskChoice] * 100, disk_choices * 95) << "to read from disk or to compute";
  const std::uint64_t misses = counts[SimEvent::MissExact] + counts[SimEvent::MissLoose];
  EXPECT_GE(counts[SimEvent::MissExact] * 10, misses * 8);
}

TEST(Simulation, SeedsThatOnceFailed) {
  // They say something as long as everything is drawn as it was then; each bug has a test of its own besides.
  constexpr std::array<std::uint64_t, 19> kSeeds = {4,   9,   13,   19,   21,    52,    56,    69,    96,   121,
                                                    167, 974, 1801, 6304, 18284, 23059, 24754, 58959, 61112};
  for (const std::uint64_t seed : kSeeds) {
    SimCounts counts;
    EXPECT_EQ(run_simulation({.first_seed = seed,
                              .seed_count = 1,
                              .step_count = kStepCount,
                              .shape = {.disk_tier = SimSeeds::Never, .groups = SimSeeds::Never}},
                             counts),
              "");
  }
  struct ShapedSeed {
    std::uint64_t seed;
    SimShape shape;
  };
  constexpr SimShape kGroupsInMemory = {.disk_tier = SimSeeds::Never, .groups = SimSeeds::Always};
  constexpr SimShape kGroupsOnDisk = {.disk_tier = SimSeeds::Always, .groups = SimSeeds::Always};
  constexpr SimShape kAllTogether = {.disk_tier = SimSeeds::Always,
                                     .has_disk_ranks = true,
                                     .ahead = SimSeeds::Always,
                                     .chunks = true,
                                     .has_remote = true};
  constexpr std::array kShapedSeeds = {ShapedSeed{646, {}},
                                       ShapedSeed{1'140'001'476, {}},
                                       ShapedSeed{2'300'000'001, {}},
                                       ShapedSeed{830'000'598, kGroupsInMemory},
                                       ShapedSeed{810'000'471, kGroupsOnDisk},
                                       ShapedSeed{2'311'000'071, kAllTogether}};
  for (const auto& [seed, shape] : kShapedSeeds) {
    SimCounts counts;
    EXPECT_EQ(run_simulation({.first_seed = seed, .seed_count = 1, .step_count = kStepCount, .shape = shape}, counts),
              "");
  }
}

TEST(Simulation, AMoverThatTrustsBytesOrPlacesIsNoticed) {
  for (const SimMutation& mutation : {SimMutation{.checks_checksums = false}, SimMutation{.checks_names = false}}) {
    for (const SimSeeds groups : kAllOrNone) {
      SimCounts counts;
      const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                                  .step_count = kSmallStepCount,
                                                  .operations_max = kSmallRun,
                                                  .shape = {.groups = groups, .mutation = mutation}},
                                                 counts);
      EXPECT_NE(failure.find("wrong bytes"), std::string::npos) << failure;
    }
  }
}

// Each rank has bytes of its own, in most seeds, and files of its own, in which anything happens at any time.
TEST(Simulation, RanksOnDiskFindWhatAllOfThemHaveAndNeverBytesOfAnother) {
  for (const SimSeeds groups : kAllOrNone) {
    SimCounts counts;
    const std::string failure =
        run_simulation({.seed_count = UINT64_MAX,
                        .step_count = kStepCount / 2,
                        .operations_max = kIsSanitized ? kSmallRun : 8 * kSmallRun,
                        .shape = {.disk_tier = SimSeeds::Always, .groups = groups, .has_disk_ranks = true}},
                       counts);
    ASSERT_EQ(failure, "");
    for (const SimEvent event : {SimEvent::DiskHit, SimEvent::HitAfterRestart, SimEvent::DurableFound,
                                 SimEvent::GotFromDisk, SimEvent::OtherRankLater, SimEvent::DiskReclaimed}) {
      if (kIsSanitized) continue;  // in an eighth, some may be missing
      EXPECT_GT(counts[event], 0U) << to_string(event);
    }
  }
}

// Disk and a server below the host, which loses values, breaks bytes, stops, and outlives the process.
TEST(Simulation, ARemoteTierGivesNoWrongByteWhateverItsServerDoes) {
  for (const SimSeeds groups : kAllOrNone) {
    SimCounts counts;
    ASSERT_EQ(run_simulation({.first_seed = 1'001,  // loads that are late come once in some hundred seeds
                              .seed_count = UINT64_MAX,
                              .step_count = kStepCount / 2,
                              .operations_max = kIsSanitized ? kSmallRun : 8 * kSmallRun,
                              .shape = {.disk_tier = SimSeeds::Always, .groups = groups, .has_remote = true}},
                             counts),
              "");
    for (std::size_t i = kFirstRemoteEvent; i < kSimEventCount && !kIsSanitized; ++i) {
      EXPECT_GT(counts.events[i], 0U) << to_string(static_cast<SimEvent>(i));
    }
  }
}

// The same server below the host alone, and with bytes of each rank's own under the names that all of them have.
TEST(Simulation, ARemoteTierServesShardsOfRanksAndCachesWithoutADisk) {
  std::uint64_t hits_after_restarts = 0;  // some in each form, but not so many that each has one
  for (const SimSeeds diskless : kAllOrNone) {
    for (const SimSeeds groups : kAllOrNone) {
      SimCounts counts;
      ASSERT_EQ(run_simulation({.seed_count = UINT64_MAX,
                                .step_count = kStepCount / 2,
                                .operations_max = kIsSanitized ? kSmallRun : 4 * kSmallRun,
                                .shape = {.disk_tier = SimSeeds::Always,
                                          .groups = groups,
                                          .has_disk_ranks = true,
                                          .has_remote = true,
                                          .diskless = diskless}},
                               counts),
                "");
      hits_after_restarts += counts[SimEvent::RemoteHitAfterRestart];
      for (const SimEvent event : {SimEvent::RemoteHit, SimEvent::RemoteStored}) {
        if (kIsSanitized) continue;  // in an eighth, some may be missing
        EXPECT_GT(counts[event], 0U) << to_string(event);
      }
    }
  }
  EXPECT_TRUE(kIsSanitized || hits_after_restarts > 0);
}

// Pages of one group in the places of another's.
TEST(Simulation, AMoverThatTakesOnePoolForAnotherIsNoticed) {
  SimCounts counts;
  const std::string failure =
      run_simulation({.seed_count = UINT64_MAX,
                      .step_count = kSmallStepCount,
                      .operations_max = kSmallRun,
                      .shape = {.groups = SimSeeds::Always, .mutation = {.confuses_pools = true}}},
                     counts);
  EXPECT_NE(failure.find("wrong bytes in the context of a step"), std::string::npos) << failure;
  EXPECT_NE(failure.find("group '"), std::string::npos) << failure;
}

TEST(Simulation, PinnedChunksKeepTheirBytesWhateverElseHappens) {
  for (const SimSeeds disk_tier : kAllOrNone) {
    SimCounts counts;
    EXPECT_EQ(run_simulation({.seed_count = UINT64_MAX,
                              .step_count = kSmallStepCount,
                              .operations_max = kSmallRun,
                              .shape = {.disk_tier = disk_tier, .groups = SimSeeds::Never, .chunks = true}},
                             counts),
              "");
    EXPECT_GT(counts.chunk_pages, 0U);
  }
}

TEST(Simulation, WhereNoBytesBreakPlansAloneKeepThemRight) {
  SimCounts counts;
  EXPECT_EQ(
      run_simulation({.seed_count = UINT64_MAX,
                      .step_count = kSmallStepCount,
                      .operations_max = kIsSanitized ? kSmallRun : 10 * kSmallRun,
                      .shape = {.mutation = {.checks_checksums = false, .checks_names = false, .breaks_bytes = false}}},
                     counts),
      "");
}

TEST(Simulation, TheSameSeedDoesTheSame) {
  for (const SimSeeds disk_tier : kAllOrNone) {
    for (const SimSeeds groups : kAllOrNone) {
      const SimRun run{
          .first_seed = 3, .seed_count = 3, .step_count = 2'000, .shape = {.disk_tier = disk_tier, .groups = groups}};
      SimCounts first;
      SimCounts second;
      EXPECT_EQ(run_simulation(run, first), "");
      EXPECT_EQ(run_simulation(run, second), "");
      EXPECT_EQ(to_string(first), to_string(second));
    }
  }
  const SimRun ranks{.first_seed = 3,
                     .seed_count = 3,
                     .step_count = 2'000,
                     .shape = {.disk_tier = SimSeeds::Always, .has_disk_ranks = true}};
  SimCounts first;
  SimCounts second;
  EXPECT_EQ(run_simulation(ranks, first), "");
  EXPECT_EQ(run_simulation(ranks, second), "");
  EXPECT_EQ(to_string(first), to_string(second));
}

}  // namespace
}  // namespace quire::testing
