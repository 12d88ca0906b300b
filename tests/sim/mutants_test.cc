// SPDX-License-Identifier: Apache-2.0
//
// A library that leaves out one rule, of those in base/mutant.h: the simulation must notice each within so many
// operations, of seeds that have what it takes to show it, and find nothing wrong in them where no rule is left out.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>

#include "base/mutants.h"
#include "sim_run.h"

namespace quire {

Mutant mutant_on = Mutant::None;  // NOLINT(*-avoid-non-const-global-variables): what the library reads

namespace testing {
namespace {

constexpr std::uint64_t kOperationsMax = 100'000;
// For mutants that few seeds show: where draws or the library's choices change, other seeds show them.
constexpr std::uint64_t kRareOperationsMax = 600'000;

// What tells it, one of these.
constexpr const char* kBytes = "wrong bytes|tokens that nobody has computed";
// Where pages are used too early, no wrong byte comes of it: whatever has lost its page is not wanted any more. But a
// mover reads what an engine writes.
constexpr const char* kTransfers = "transfer";
constexpr const char* kLost = "flushed is not there";
constexpr const char* kAnything = ".";  // a rule of the library's own, as a rule

constexpr SimShape kOneGroup = {.groups = SimSeeds::Never};
constexpr SimShape kGroups = {.groups = SimSeeds::Always};
constexpr SimShape kDisk = {.disk_tier = SimSeeds::Always, .groups = SimSeeds::Never};
constexpr SimShape kGroupsOnDisk = {.disk_tier = SimSeeds::Always, .groups = SimSeeds::Always};
constexpr SimShape kRanksOnDisk = {.disk_tier = SimSeeds::Always, .groups = SimSeeds::Never, .has_disk_ranks = true};
constexpr SimShape kAhead = {.disk_tier = SimSeeds::Never, .groups = SimSeeds::Never, .ahead = SimSeeds::Always};
constexpr SimShape with(SimShape shape, const SimMutation& mutation) {
  shape.mutation = mutation;
  return shape;
}
constexpr SimShape kChunks = {.groups = SimSeeds::Never, .mutation = {.checks_invariants = false}, .chunks = true};
constexpr SimMutation kUnchecked = {.checks_invariants = false};  // so that check_invariants() is of no help
constexpr SimMutation kDamaged = {.damages_files = true};
constexpr SimMutation kShared = {.shares_pages = true};
constexpr SimMutation kSwapped = {.swaps_key_spaces = true};

struct MutantCase {
  const char* name;
  Mutant mutant;
  const char* signs;
  SimShape shape;
  std::uint64_t first_seed = 1;
  std::uint64_t operations_max = kOperationsMax;
};

constexpr std::array kCases = {
    MutantCase{"NoFence", Mutant::NoFence, kTransfers, with(kOneGroup, kUnchecked)},
    MutantCase{"NoAnchoredFence", Mutant::NoAnchoredFence, kTransfers, with(kGroups, kUnchecked)},
    MutantCase{"ShortFence", Mutant::ShortFence, kAnything, kOneGroup},
    MutantCase{"ShortFenceOfGroups", Mutant::ShortFence, kAnything, kGroups},
    MutantCase{"LateAnchoredNames", Mutant::LateAnchoredNames, kBytes, with(kGroupsOnDisk, kSwapped), 2'001,
               kRareOperationsMax},
    MutantCase{"NoHostCopies", Mutant::NoHostCopies, kBytes, with(kDisk, kShared)},
    MutantCase{"NoDeviceCopies", Mutant::NoDeviceCopies, kBytes, with(kDisk, kShared)},
    MutantCase{"KeySpacesFirst", Mutant::KeySpacesFirst, kBytes, with(kDisk, kSwapped)},
    MutantCase{"PlansAfterTheLog", Mutant::PlansAfterTheLog, kBytes, with(kDisk, kShared)},
    MutantCase{"PlansAfterTheLogOfGroups", Mutant::PlansAfterTheLog, kBytes, with(kGroupsOnDisk, kShared)},
    MutantCase{"NamesWithoutKeys", Mutant::NamesWithoutKeys, kBytes, kDisk, 3'001},
    MutantCase{"TrustsChecksums", Mutant::TrustsChecksums, kBytes, with(kDisk, kDamaged)},
    MutantCase{"TrustsNames", Mutant::TrustsNames, kBytes, with(kDisk, kDamaged)},
    MutantCase{"TrustsLayouts", Mutant::TrustsLayouts, kBytes, with(kDisk, kDamaged)},
    MutantCase{"TrustsHostPages", Mutant::TrustsHostPages, kBytes, kDisk, 5'001},
    MutantCase{"OneRankArrives", Mutant::OneRankArrives, kAnything, kRanksOnDisk},
    MutantCase{"FirstShardAnswers", Mutant::FirstShardAnswers, kAnything, kRanksOnDisk},
    MutantCase{"AnyGeneration", Mutant::AnyGeneration, kAnything, kOneGroup},
    MutantCase{"FlushWithoutSync", Mutant::FlushWithoutSync, kLost, kDisk, 3'001},
    MutantCase{"ForgetsDrops", Mutant::ForgetsDrops, kBytes, kDisk, 8'001},
    MutantCase{"ForgetsDropsOfGroups", Mutant::ForgetsDrops, kBytes, kGroupsOnDisk, 501, kRareOperationsMax},
    MutantCase{"ShortWindows", Mutant::ShortWindows, kBytes, kGroups},
    MutantCase{"AnchoredPagesStay", Mutant::AnchoredPagesStay, kAnything, kGroups},
    MutantCase{"UnorderedLoads", Mutant::UnorderedLoads, kAnything, kOneGroup},
    MutantCase{"StaleChunks", Mutant::StaleChunks, kBytes, kChunks},
    MutantCase{"KeysWithoutLookahead", Mutant::KeysWithoutLookahead, kAnything, kGroups, 1'001},
    MutantCase{"TrustsLoads", Mutant::TrustsLoads, kAnything, kAhead},
    MutantCase{"OtherPathsOfLoads", Mutant::OtherPathsOfLoads, kBytes, with(kAhead, kUnchecked)},
    MutantCase{"FinishBeforeLoads", Mutant::FinishBeforeLoads, "before the pages of a step have come", kAhead},
};

std::ostream& operator<<(std::ostream& out, const MutantCase& tried) {
  return out << tried.name;
}

SimRun run_of(const MutantCase& tried) {
  return {.first_seed = tried.first_seed,
          .seed_count = UINT64_MAX,
          .step_count = 2'000,
          .operations_max = tried.operations_max,
          .shape = tried.shape};
}

class MutantsTest : public ::testing::TestWithParam<MutantCase> {};

TEST_P(MutantsTest, IsNoticed) {
  // In a process of its own: where a rule of the library's own is broken, that aborts.
  const auto run_mutant = [] {
    mutant_on = GetParam().mutant;
    SimCounts counts;
    const std::string failure = run_simulation(run_of(GetParam()), counts);
    std::fprintf(stderr, "%llu operations\n%s", static_cast<unsigned long long>(counts.operations()), failure.c_str());
    std::_Exit(failure.empty() ? 0 : 1);
  };
  const auto has_failed = [](int status) { return !WIFEXITED(status) || WEXITSTATUS(status) == 1; };
  EXPECT_EXIT(run_mutant(), has_failed, GetParam().signs);
}

TEST_P(MutantsTest, NothingIsNoticedWithoutIt) {
  SimCounts counts;
  EXPECT_EQ(run_simulation(run_of(GetParam()), counts), "");
}

INSTANTIATE_TEST_SUITE_P(Each, MutantsTest, ::testing::ValuesIn(kCases),
                         [](const auto& tried) { return std::string(tried.param.name); });

}  // namespace
}  // namespace testing
}  // namespace quire
