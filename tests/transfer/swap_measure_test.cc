// SPDX-License-Identifier: Apache-2.0
//
// Which way pages go follows from what was measured: timings that are given, and a clock that lets each way win.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "quire/swap.h"
#include "swap_fixture.h"

namespace quire {
namespace {

using testing::SwapForm;
using testing::SwapRig;

constexpr TransferKind kLoadKind = TransferKind::Load;

// Of loads: seconds of Whole, Staged and Direct for 1, 2, 4, … pages. 0: not measured.
std::vector<SwapTiming> timings_of(const std::vector<std::array<double, 3>>& seconds) {
  std::vector<SwapTiming> timings;
  std::uint32_t page_count = 1;
  for (const auto& row : seconds) {
    for (std::size_t path = 0; path < 3; ++path) {
      if (row[path] == 0) continue;
      timings.push_back(
          {.kind = kLoadKind, .path = static_cast<SwapPath>(path), .page_count = page_count, .seconds = row[path]});
    }
    page_count *= 2;
  }
  // Of the other direction, which must not matter.
  timings.push_back({.kind = TransferKind::Store, .path = SwapPath::Staged, .page_count = 512, .seconds = 0.001});
  return timings;
}

TEST(SwapChoice, OneWayThatIsAlwaysTheFastestIsTaken) {
  for (std::size_t winner = 0; winner < 3; ++winner) {
    std::array<double, 3> row = {2, 2, 2};
    row[winner] = 1;
    const SwapPaths paths = choose_paths(timings_of({row, row, row}), kLoadKind);
    EXPECT_EQ(paths.few, static_cast<SwapPath>(winner));
    EXPECT_EQ(paths.many, static_cast<SwapPath>(winner));
  }
}

TEST(SwapChoice, FewPagesGoTheirWayAsLongAsItIsTheFaster) {
  const SwapPaths paths = choose_paths(timings_of({{9, 5, 1}, {9, 5, 2}, {9, 5, 4}, {9, 5, 8}, {9, 5, 16}}), kLoadKind);
  EXPECT_EQ(paths, (SwapPaths{.few = SwapPath::Direct, .few_pages_max = 4, .many = SwapPath::Staged}));
}

TEST(SwapChoice, WholeWinsWhereItIsNearlyTheFastest) {
  EXPECT_EQ(choose_paths(timings_of({{1.04, 1, 1.5}}), kLoadKind).many, SwapPath::Whole);
  EXPECT_EQ(choose_paths(timings_of({{1.06, 1, 1.5}}), kLoadKind).many, SwapPath::Staged);
  // By the same rule it is the way of few pages, though never the fastest.
  EXPECT_EQ(choose_paths(timings_of({{1.02, 2, 1}, {2.02, 3, 2}, {4.5, 5, 4}}), kLoadKind),
            (SwapPaths{.few = SwapPath::Whole, .few_pages_max = 2, .many = SwapPath::Direct}));
  // And that of many.
  EXPECT_EQ(choose_paths(timings_of({{2, 2, 1}, {2.02, 3, 2}, {4.02, 5, 4}}), kLoadKind),
            (SwapPaths{.few = SwapPath::Direct, .few_pages_max = 1, .many = SwapPath::Whole}));
}

TEST(SwapChoice, AWayThatWasNotMeasuredForSomeCountsIsNotTakenThere) {
  EXPECT_EQ(choose_paths(timings_of({{1, 2, 3}, {1, 2, 3}, {0, 2, 3}}), kLoadKind),
            (SwapPaths{.few = SwapPath::Whole, .few_pages_max = 2, .many = SwapPath::Staged}));
  EXPECT_EQ(choose_paths(timings_of({{0, 2, 3}, {9, 2, 3}, {1, 2, 3}}), kLoadKind),
            (SwapPaths{.few = SwapPath::Staged, .few_pages_max = 2, .many = SwapPath::Whole}));
}

TEST(SwapChoiceDeathTest, NothingToChooseFromStopsTheProgram) {
  EXPECT_DEATH((void)choose_paths({}, kLoadKind), "nothing was measured");
}

// Fragments that Whole is tried for, since they are long.
SwapRig& open_rig(std::unique_ptr<SwapRig>& rig, std::uint32_t component_bytes) {
  rig = std::make_unique<SwapRig>(testing::SwapShape{
      .form = SwapForm::LayerFirst, .layers = 2, .component_bytes = component_bytes, .device_pages = 3, .records = 3});
  return *rig;
}

// A clock on which a call takes as long as is wanted: trials come in a known order, each of them six swaps, of which
// five are timed, and a clock is read before and behind each of these.
class TrialClock {
 public:
  explicit TrialClock(std::vector<double> seconds_of_trials) : seconds_(std::move(seconds_of_trials)) {}
  double operator()() {
    const std::size_t trial = reads_++ / 10 % seconds_.size();
    return now_ += seconds_[trial];
  }

 private:
  std::vector<double> seconds_;
  std::size_t reads_ = 0;
  double now_ = 0;
};

TEST(SwapMeasure, EveryWayIsMeasuredForBothDirections) {
  std::unique_ptr<SwapRig> owned;
  SwapRig& rig = open_rig(owned, 140'000);
  SwapConfig config = rig.config();
  config.call_pages_max = 6;
  config.seconds = TrialClock({1, 2, 3});
  const std::size_t leaks = rig.device().leak_count();
  const std::vector<SwapTiming> timings = measure_swaps(config).value();
  // 1, 2, 4 and 6 pages.
  ASSERT_EQ(timings.size(), 2U * 4U * 3U);
  for (std::size_t i = 0; i < timings.size(); ++i) {
    EXPECT_EQ(timings[i].kind, i < 12 ? TransferKind::Load : TransferKind::Store);
    EXPECT_EQ(timings[i].path, static_cast<SwapPath>(i % 3));
    EXPECT_EQ(timings[i].page_count, (std::array<std::uint32_t, 4>{1, 2, 4, 6}[i / 3 % 4]));
    EXPECT_DOUBLE_EQ(timings[i].seconds, static_cast<double>((i % 3) + 1));
  }
  EXPECT_EQ(rig.device().leak_count(), leaks);
  EXPECT_EQ(rig.difference(), "") << "it has memory of its own";
}

TEST(SwapMeasure, CopiesOfTheirOwnAreNotTriedForSmallFragments) {
  std::unique_ptr<SwapRig> owned;
  SwapRig& rig = open_rig(owned, 100);
  const std::vector<SwapTiming> timings = measure_swaps(rig.config()).value();
  ASSERT_FALSE(timings.empty());
  for (const SwapTiming& timing : timings) {
    EXPECT_NE(timing.path, SwapPath::Whole);
    EXPECT_GE(timing.seconds, 0);
  }
}

TEST(SwapMeasure, AnEngineGoesTheWayThatWon) {
  for (std::size_t winner = 0; winner < 3; ++winner) {
    std::unique_ptr<SwapRig> owned;
    SwapRig& rig = open_rig(owned, 140'000);
    SwapConfig config = rig.config();
    config.load_paths = std::nullopt;
    config.store_paths = std::nullopt;
    std::vector<double> seconds(3, 5);
    seconds[winner] = 1;
    config.seconds = TrialClock(seconds);
    const SwapEngine& engine = rig.open(config);
    for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
      EXPECT_EQ(engine.paths(kind).few, static_cast<SwapPath>(winner));
      EXPECT_EQ(engine.paths(kind).many, static_cast<SwapPath>(winner));
    }
    EXPECT_EQ(rig.difference(), "");
  }
}

TEST(SwapMeasure, WhatIsGivenIsNotMeasured) {
  std::unique_ptr<SwapRig> owned;
  SwapRig& rig = open_rig(owned, 140'000);
  SwapConfig config = rig.config();
  bool was_asked = false;
  config.seconds = [&was_asked] {
    was_asked = true;
    return 0.0;
  };
  rig.open(config);
  EXPECT_FALSE(was_asked);
  const SwapPaths given{.few = SwapPath::Staged, .few_pages_max = 3, .many = SwapPath::Direct};
  config.store_paths = given;
  config.load_paths = std::nullopt;
  rig.open(config);
  EXPECT_TRUE(was_asked);
  EXPECT_EQ(rig.engine().paths(TransferKind::Store), given);
}

TEST(SwapMeasure, AConfigThatCannotBeIsRefused) {
  EXPECT_EQ(measure_swaps({}).error().message, "SwapConfig::device is missing");
  std::unique_ptr<SwapRig> owned;
  SwapConfig config = open_rig(owned, 100).config();
  config.call_pages_max = 0;
  EXPECT_EQ(measure_swaps(config).error().code, ErrorCode::InvalidArgument);
}

}  // namespace
}  // namespace quire
