// SPDX-License-Identifier: Apache-2.0
//
// Is everything that a plan of several groups asks for needed, and looked at? A script that has sequences of all kinds
// of layers fork, rewind, share prefixes and come back from snapshots is replayed with one thing left out, and with one
// number changed, for each that there is. Something must then come out differently.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "hybrid_recording.h"
#include "hybrid_rig.h"
#include "seeded_text.h"
#include "testing/sanitized.h"

namespace quire::testing {
namespace {

using tiny_engine::HybridShape;
using tiny_engine::LayerKind;

std::vector<TokenId> text(std::uint64_t seed, std::size_t count) {
  std::vector<TokenId> tokens = seeded_text(seed, count);
  for (TokenId& token : tokens) token %= static_cast<TokenId>(HybridShape{}.vocabulary);
  return tokens;
}

struct Tally {
  std::uint64_t changed = 0;
  std::uint64_t seen = 0;
};

class HybridMutation : public ::testing::TestWithParam<PageTables> {
 protected:
  static HybridSetup setup() {
    return {.shape = {.layers = {{.kind = LayerKind::Recurrent},
                                 {.kind = LayerKind::Window, .window_tokens = 6},
                                 {.kind = LayerKind::Overlapped, .ratio = 2},
                                 {.kind = LayerKind::Full},
                                 {.kind = LayerKind::Ring, .window_tokens = 5},
                                 {.kind = LayerKind::Compressed, .ratio = 4}},
                      .rewind_tokens = 3,
                      .state_retention = {.rule = RetentionRule::Every, .interval_tokens = 8}},
            .adopts_memory = true,
            .page_tokens = 4,
            .page_count = 40,
            .group_page_counts = std::vector<std::uint32_t>(8, 40),
            .context_tokens_max = 48,
            .sequence_count_max = 8,
            .steps_in_flight_max = 1,
            .page_tables = GetParam()};
  }

  void SetUp() override {
    HybridLive* first = nullptr;
    HybridLive* second = nullptr;
    HybridLive* child = nullptr;
    HybridLive* again = nullptr;
    begin(text(1, 19), first);
    begin(text(2, 7), second);
    run({{.live = first, .token_count = 5}, {.live = second, .token_count = 2}}, {});
    run_all(second, text(3, 1));
    run_all(first, text(4, 1));
    // Drafts that are accepted in part, and tokens taken back.
    run({{.live = first, .drafts = text(5, 3)}, {.live = second}},
        {{.accepted_count = 1, .next = text(6, 1)}, {.next = text(7, 1)}});
    run({{.live = first}}, {{.next = text(8, 1)}});
    ASSERT_EQ(rig_.rewind(*first, 2), "");
    ASSERT_EQ(rig_.append(*first, text(9, 1)), "");
    ASSERT_EQ(rig_.fork(*first, static_cast<std::uint32_t>(first->texts.size()), child), "");
    ASSERT_NE(child, nullptr);
    ASSERT_EQ(rig_.append(*child, text(10, 2)), "");
    run({{.live = child}, {.live = first}}, {{.next = text(11, 1)}, {.next = text(12, 1)}});
    // What the first has left at its checkpoints.
    begin(join(text(1, 18), text(13, 3)), again);
    EXPECT_GT(again->texts.size(), 0U);
    run_all(again, text(14, 1));
    ASSERT_EQ(rig_.preempt(*first, Preempt::Drop), "");
    ASSERT_EQ(rig_.resume(*first), "");
    EXPECT_GT(first->texts.size(), 0U);
    run_all(first, text(15, 1));
    changed_count_ = rig_.recorded().size();
    // Everybody goes on for long enough that all they have is read; then everything that is cached is found once more.
    for (std::uint64_t i = 0; i < 4; ++i) {
      run({{.live = first}, {.live = second}, {.live = child}, {.live = again}},
          {{.next = text(20 + i, 1)}, {.next = text(30 + i, 1)}, {.next = text(40 + i, 1)}, {.next = text(50 + i, 1)}});
    }
    for (const HybridLive* live : {first, second, child, again}) {
      for (const std::size_t count : {9U, 13U, 17U, 21U, 25U}) {
        if (count > live->tokens.size()) break;
        HybridLive* probe = nullptr;
        std::vector<TokenId> prompt(live->tokens.begin(), live->tokens.begin() + static_cast<std::ptrdiff_t>(count));
        begin(join(std::move(prompt), text(60 + count, 2)), probe);
        run_all(probe, {});
        ASSERT_EQ(rig_.end(*probe), "");
      }
    }
    const auto mismatch = rig_.compare();
    ASSERT_FALSE(mismatch) << mismatch->text;
  }

  void begin(const std::vector<TokenId>& tokens, HybridLive*& live) {
    ASSERT_EQ(rig_.begin(tokens, {}, live), "");
    ASSERT_EQ(rig_.admit(*live), "");
  }
  void run(const std::vector<HybridAsk>& asks, const std::vector<HybridAnswer>& answers) {
    ASSERT_EQ(rig_.step(asks, answers), "");
  }
  /// Steps until everything is computed: chunks end at checkpoints.
  void run_all(HybridLive* live, std::vector<TokenId> next) {
    while (live->texts.size() + 1 < live->tokens.size()) {
      const std::size_t before = live->texts.size();
      const auto left = static_cast<std::uint32_t>(live->tokens.size() - before);
      ASSERT_EQ(rig_.step({{.live = live, .token_count = left - 1}}, {}), "");
    }
    run({{.live = live}}, {{.next = std::move(next)}});
  }

  ScheduleCounts counts_;
  HybridRig rig_{setup(), counts_};
  std::size_t changed_count_ = 0;
};

TEST_P(HybridMutation, NothingCanBeLeftOut) {
  HybridRecording recording(rig_, changed_count_);
  ASSERT_EQ(recording.replay(), "");
  std::map<std::string, Tally> tallies;
  for (const PlanChange& change : recording.omissions()) {
    Tally& tally = tallies[change.what];
    ++tally.changed;
    if (!recording.replay(change).empty()) ++tally.seen;
  }
  for (const auto& [what, tally] : tallies) {
    std::cout << "  " << what << ": " << tally.seen << " of " << tally.changed << " omissions seen\n";
    EXPECT_GT(tally.seen, 0U) << what;
  }
}

TEST_P(HybridMutation, NoNumberCanBeAnother) {
  HybridRecording recording(rig_, changed_count_);
  ASSERT_EQ(recording.replay(), "");
  std::map<std::string, Tally> tallies;
  std::uint64_t place = 0;
  for (PlanChange change : recording.places()) {
    if (kIsSanitized && place++ % 4 != 0) continue;
    Tally& tally = tallies[change.what];
    const std::int64_t value = change.numbers[0].value;
    ++tally.changed;
    // The next number may happen to mean the same.
    const bool is_seen = std::ranges::any_of(std::array{1, -1, 3, -3, 6, -6}, [&](int by) {
      change.numbers[0].value = value + by;
      return !recording.replay(change).empty();
    });
    if (is_seen) ++tally.seen;
  }
  for (const auto& [what, tally] : tallies) {
    std::cout << "  " << what << ": " << tally.seen << " of " << tally.changed << " changes seen\n";
    EXPECT_TRUE(kIsSanitized || tally.seen > 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, HybridMutation,
                         ::testing::Values(PageTables::Rows, PageTables::Csr, PageTables::Block),
                         [](const ::testing::TestParamInfo<PageTables>& at) {
                           return at.param == PageTables::Rows ? "Rows" : at.param == PageTables::Csr ? "Csr" : "Block";
                         });

}  // namespace
}  // namespace quire::testing
