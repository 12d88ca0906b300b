// SPDX-License-Identifier: Apache-2.0
//
// The simulation of several groups: many seeds, and movers that must be noticed.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "sim_run.h"
#include "testing/sanitized.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kGroupSteps = 3'000;
constexpr std::uint64_t kGroupOperations = kIsSanitized ? 75'000 : 1'500'000;
constexpr std::uint64_t kGroupDiskOperations = kIsSanitized ? 50'000 : 1'000'000;
constexpr std::uint64_t kFewGroupOperations = 100'000;

TEST(SimulationOfGroups, EveryByteIsRightAndEveryHitIsTheLongest) {
  SimCounts counts;
  const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                              .step_count = kGroupSteps,
                                              .operations_max = kGroupOperations,
                                              .disk_tier = SimDiskTier::Never,
                                              .has_groups = true},
                                             counts);
  ASSERT_EQ(failure, "");
  if (kIsSanitized) return;  // in a twentieth, the rarest may be missing
  // Nothing is checked by what was never drawn.
  for (const SimEvent event : {SimEvent::AdmittedLoading,
                               SimEvent::AdmitShort,
                               SimEvent::Resumed,
                               SimEvent::PlannedAhead,
                               SimEvent::PlanShort,
                               SimEvent::Aborted,
                               SimEvent::Discarded,
                               SimEvent::Copied,
                               SimEvent::Drafted,
                               SimEvent::AppendedLoading,
                               SimEvent::Forked,
                               SimEvent::Rewound,
                               SimEvent::Preempted,
                               SimEvent::EndedInFlight,
                               SimEvent::EndedLoading,
                               SimEvent::HandleDropped,
                               SimEvent::Kept,
                               SimEvent::KeepExpired,
                               SimEvent::SpaceDropped,
                               SimEvent::StoppedLoading,
                               SimEvent::LookedUp,
                               SimEvent::PartialHit,
                               SimEvent::HostHit,
                               SimEvent::LoadOk,
                               SimEvent::LoadIo,
                               SimEvent::LoadChecksum,
                               SimEvent::LoadGeneration,
                               SimEvent::LoadNameTag,
                               SimEvent::StoreIo,
                               SimEvent::CancelAsked,
                               SimEvent::Duplicate,
                               SimEvent::UnknownTransfer,
                               SimEvent::StaleGeneration,
                               SimEvent::WrongRank,
                               SimEvent::Stuck,
                               SimEvent::Reordered,
                               SimEvent::OtherRankLater,
                               SimEvent::PausedInFlight,
                               SimEvent::Asleep,
                               SimEvent::LoneServed,
                               SimEvent::ResetInFlight}) {
    EXPECT_GT(counts[event], 0U) << to_string(event);
  }
  for (auto i = static_cast<std::size_t>(kFirstGroupEvent); i < static_cast<std::size_t>(kFirstGroupDiskEvent); ++i) {
    EXPECT_GT(counts.events[i], 0U) << to_string(static_cast<SimEvent>(i));
  }
  EXPECT_GT(counts[SimEvent::SidesLoaded], 300U);
  EXPECT_GT(counts[SimEvent::MissNotHeld], 1'000U);
}

TEST(SimulationOfGroups, WhatIsOnDiskIsFoundInEveryGroupInLaterLives) {
  SimCounts counts;
  const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                              .step_count = kGroupSteps,
                                              .operations_max = kGroupDiskOperations,
                                              .disk_tier = SimDiskTier::Always,
                                              .has_groups = true},
                                             counts);
  ASSERT_EQ(failure, "");
  if (kIsSanitized) return;
  for (const SimEvent event :
       {SimEvent::DiskLooked,     SimEvent::DiskHit,        SimEvent::DiskLaneStuck,    SimEvent::DiskReordered,
        SimEvent::Flushed,        SimEvent::FlushFailed,    SimEvent::DiskFull,         SimEvent::DiskBroken,
        SimEvent::DiskFlipped,    SimEvent::DiskForgedName, SimEvent::DiskForgedLayout, SimEvent::DiskReclaimed,
        SimEvent::Crashed,        SimEvent::Killed,         SimEvent::DurableFound,     SimEvent::SpaceDropped,
        SimEvent::SpaceRenamed,   SimEvent::OpeningFailed,  SimEvent::OpenedInPart,     SimEvent::LoadChecksum,
        SimEvent::StoppedLoading, SimEvent::EndedLoading,   SimEvent::PausedInFlight,   SimEvent::Asleep,
        SimEvent::ResetInFlight,  SimEvent::Replayed,       SimEvent::Endurance,        SimEvent::Compressed}) {
    EXPECT_GT(counts[event], 0U) << to_string(event);
  }
  for (auto i = static_cast<std::size_t>(kFirstGroupDiskEvent); i < kSimEventCount; ++i) {
    EXPECT_GT(counts.events[i], 0U) << to_string(static_cast<SimEvent>(i));
  }
  EXPECT_GT(counts[SimEvent::SidesOnDiskLoaded], 300U);
  EXPECT_GT(counts[SimEvent::HitAfterRestart], 50U);
}

TEST(SimulationOfGroups, AMoverThatTrustsBytesOrPlacesIsNoticed) {
  for (const SimMutation& mutation : {SimMutation{.checks_checksums = false}, SimMutation{.checks_names = false}}) {
    SimCounts counts;
    const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                                .step_count = kGroupSteps,
                                                .operations_max = kFewGroupOperations,
                                                .mutation = mutation,
                                                .disk_tier = SimDiskTier::Never,
                                                .has_groups = true},
                                               counts);
    EXPECT_NE(failure.find("wrong bytes"), std::string::npos) << failure;
  }
}

// Pages of one group in the places of another's.
TEST(SimulationOfGroups, AMoverThatTakesOnePoolForAnotherIsNoticed) {
  SimCounts counts;
  const std::string failure = run_simulation({.seed_count = UINT64_MAX,
                                              .step_count = kGroupSteps,
                                              .operations_max = kFewGroupOperations,
                                              .mutation = {.confuses_pools = true},
                                              .has_groups = true},
                                             counts);
  EXPECT_NE(failure.find("wrong bytes in the context of a step"), std::string::npos) << failure;
  EXPECT_NE(failure.find("group '"), std::string::npos) << failure;
}

TEST(SimulationOfGroups, TheSameSeedDoesTheSame) {
  const SimRun run{.first_seed = 3, .seed_count = 5, .step_count = 2'000, .has_groups = true};
  SimCounts first;
  SimCounts second;
  EXPECT_EQ(run_simulation(run, first), "");
  EXPECT_EQ(run_simulation(run, second), "");
  EXPECT_EQ(to_string(first), to_string(second));
}

}  // namespace
}  // namespace quire::testing
