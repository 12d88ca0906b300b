// SPDX-License-Identifier: Apache-2.0
//
// Random calls on a Cache and on a SequenceTwin, with pages enough and with few, from seeds and from lists that shrink.
#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include "generated_ops.h"
#include "sequence_model.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

[[nodiscard]] ModelConfig draw_config(Random& random) {
  constexpr std::array<std::uint32_t, 5> kPageTokens = {1, 2, 3, 4, 16};
  return {.page_tokens = kPageTokens[random.below(5)],
          .steps_in_flight_max = 1 + random.below(4),
          .window_rewind_tokens = random.below(2) * random.below(6),
          .copies_partial_hits = random.below(2) == 0};
}

TEST(SequenceModel, WithPagesEnoughEveryPageIsWhereTheTwinHasIt) {
  EXPECT_EQ(run_seeds({.test = "bin/sequence_model_test "
                               "--gtest_filter=SequenceModel.WithPagesEnoughEveryPageIsWhereTheTwinHasIt",
                       .seed_count = kIsSanitized ? 30U : 400U,
                       .step_count = std::uint64_t{4} * kWindDownEvery},
                      [](Random& random) { return SequenceModel(draw_config(random)); }),
            "");
}

TEST(SequenceModel, WithFewPagesNothingInUseIsEvicted) {
  EXPECT_EQ(run_seeds({.test = "bin/sequence_model_test "
                               "--gtest_filter=SequenceModel.WithFewPagesNothingInUseIsEvicted",
                       .seed_count = kIsSanitized ? 30U : 400U,
                       .step_count = std::uint64_t{4} * kWindDownEvery},
                      [](Random& random) {
                        ModelConfig config = draw_config(random);
                        const std::uint32_t longest = (kContextTokensMax + config.page_tokens - 1) / config.page_tokens;
                        config.page_count = longest + random.below(longest);
                        return SequenceModel(config);
                      }),
            "");
}

TEST(SequenceModel, GeneratedCallsAgreeWithTheTwinAndShrink) {
  EXPECT_TRUE(check_generated([] { return SequenceModel({.page_tokens = 4, .copies_partial_hits = true}); }));
}

}  // namespace
}  // namespace quire::testing
