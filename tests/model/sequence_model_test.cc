// SPDX-License-Identifier: Apache-2.0
//
// Random calls on a Cache and on a SequenceTwin, with pages enough and with few, from seeds and from lists that shrink.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <gtest/gtest.h>

#include "generated_ops.h"
#include "sequence_model.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

[[nodiscard]] ModelConfig draw_config(Random& random, CallCounts& counts) {
  constexpr std::array<std::uint32_t, 5> kPageTokens = {1, 2, 3, 4, 16};
  return {.page_tokens = kPageTokens[random.below(5)],
          .steps_in_flight_max = 1 + random.below(4),
          .window_rewind_tokens = random.below(2) * random.below(6),
          .copies_partial_hits = random.below(2) == 0,
          .dedup = random.below(4) != 0,
          .counts = &counts};
}

// Nothing is checked by calls that were never made.
void expect_calls(CallCounts& counts, std::span<const char* const> more = {}) {
  constexpr std::array kNames = {"abort of a step that is over",
                                 "abort_receive of an ended one",
                                 "abort_receive of nothing",
                                 "admit of a preempted one",
                                 "admit of an admitted one",
                                 "admit of an ended one",
                                 "advance into the past",
                                 "append in flight",
                                 "append of a negative token",
                                 "append of too many tokens",
                                 "append to an ended one",
                                 "append to an undecided one",
                                 "begin of one too many",
                                 "begin with a negative token",
                                 "begin with too many tokens",
                                 "begin without tokens",
                                 "commit of a leaf that is none",
                                 "commit of a tree in flight",
                                 "commit without a tree",
                                 "commit_tree of an ended one",
                                 "copies of a step that is over",
                                 "drafts beyond the context",
                                 "drafts of a sender",
                                 "end of an ended one",
                                 "finish of a step that is over",
                                 "finish out of order",
                                 "finish with another number of results",
                                 "finish_receive of an ended one",
                                 "finish_receive of nothing",
                                 "fork beyond the end",
                                 "fork beyond what is computed",
                                 "fork of a waiting one",
                                 "fork of an ended one",
                                 "mark_send of an ended one",
                                 "more drafts accepted than there are",
                                 "page kept without dedup",
                                 "plan of a receiving one",
                                 "plan of a sequence twice",
                                 "plan of a shape that does not fit",
                                 "plan of a tree with a wrong parent",
                                 "plan of a waiting one",
                                 "plan of an undecided one",
                                 "plan of an undecided one in flight",
                                 "plan of more than is pending",
                                 "plan of more than steps in flight bring",
                                 "plan of nothing",
                                 "plan of one step too many",
                                 "plan of too large a tree",
                                 "preempt of a busy one",
                                 "preempt of a waiting one",
                                 "preempt of an ended one",
                                 "prepare_receive of an ended one",
                                 "receive beyond a window",
                                 "receive inside a page to be copied",
                                 "receive of a busy one",
                                 "receive of a waiting one",
                                 "receive of what is not missing",
                                 "reset while sequences live",
                                 "resize in flight",
                                 "resize to too few pages",
                                 "result with a negative token",
                                 "result with too many tokens",
                                 "resume of an ended one",
                                 "resume of one that was not preempted",
                                 "rewind of a busy one",
                                 "rewind of a waiting one",
                                 "rewind of an ended one",
                                 "rewind past the start",
                                 "second window",
                                 "send of a busy one",
                                 "send of a waiting one",
                                 "send of a windowed one",
                                 "send to nowhere",
                                 "set_window of an ended one",
                                 "tokens of what is discarded",
                                 "unkeep of nothing",
                                 "view of an ended one",
                                 "window of a busy one",
                                 "window of a saved one",
                                 "window of a sender",
                                 "window of nothing",
                                 "window that is all sink"};
  if (std::getenv("QUIRE_SEED") != nullptr) return;
  if (kIsSanitized) {  // with a few seeds, most of them
    EXPECT_GT(counts.size(), kNames.size() / 2);
    return;
  }
  for (const char* name : kNames) EXPECT_GT(counts[name], 3U) << name;
  for (const char* name : more) EXPECT_GT(counts[name], 3U) << name;
}

TEST(SequenceModel, WithPagesEnoughEveryPageIsWhereTheTwinHasIt) {
  CallCounts counts;
  EXPECT_EQ(run_seeds({.test = "bin/sequence_model_test "
                               "--gtest_filter=SequenceModel.WithPagesEnoughEveryPageIsWhereTheTwinHasIt",
                       .seed_count = kIsSanitized ? 30U : 400U,
                       .step_count = std::uint64_t{4} * kWindDownEvery},
                      [&](Random& random) { return SequenceModel(draw_config(random, counts)); }),
            "");
  expect_calls(counts);
}

TEST(SequenceModel, WithFewPagesNothingInUseIsEvicted) {
  CallCounts counts;
  EXPECT_EQ(run_seeds({.test = "bin/sequence_model_test "
                               "--gtest_filter=SequenceModel.WithFewPagesNothingInUseIsEvicted",
                       .seed_count = kIsSanitized ? 30U : 400U,
                       .step_count = std::uint64_t{4} * kWindDownEvery},
                      [&](Random& random) {
                        ModelConfig config = draw_config(random, counts);
                        const std::uint32_t longest = (kContextTokensMax + config.page_tokens - 1) / config.page_tokens;
                        config.page_count = longest + random.below(longest);
                        return SequenceModel(config);
                      }),
            "");
  constexpr std::array kMore = {"plan without pages"};
  expect_calls(counts, kMore);
}

TEST(SequenceModel, GeneratedCallsAgreeWithTheTwinAndShrink) {
  EXPECT_TRUE(check_generated([] { return SequenceModel({.page_tokens = 4, .copies_partial_hits = true}); }));
}

}  // namespace
}  // namespace quire::testing
