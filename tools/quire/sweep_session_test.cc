// SPDX-License-Identifier: Apache-2.0
#include "sweep_session.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(SweepSession, ProgressSaysHowMuchHowFastAndHowLong) {
  EXPECT_EQ(progress_text({.done_tokens = 0, .all_tokens = 4'000, .done_count = 0, .count = 8}, 0.1),
            "0 % (0 of 8 replays)");
  EXPECT_EQ(progress_text({.done_tokens = 1'000'000, .all_tokens = 4'000'000, .done_count = 2, .count = 8}, 0.5),
            "25 % (2 of 8 replays), 2M tokens/s, 2 s left");
  EXPECT_EQ(progress_text({.done_tokens = 4'000, .all_tokens = 4'000, .done_count = 1, .count = 1}, 1),
            "100 % (1 of 1 replay), 4k tokens/s, 0 s left");
  EXPECT_EQ(progress_text({.done_tokens = 1'000, .all_tokens = 4'000, .done_count = 0, .count = 1}, 100),
            "25 % (0 of 1 replay), 10 tokens/s, 5 min left");
}

}  // namespace
}  // namespace quire
