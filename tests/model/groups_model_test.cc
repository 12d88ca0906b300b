// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "testing/sanitized.h"
#include "tests/model/groups_model.h"

namespace quire {
namespace {

TEST(GroupsModelTest, EveryHitAndEveryByteIsRight) {
  const std::uint64_t seeds = testing::kIsSanitized ? 200 : 2000;
  GroupsCounts sum;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    GroupsModel model(seed);
    ASSERT_EQ(model.run(500), "") << "seed " << seed;
    sum += model.counts();
  }
  EXPECT_EQ(sum.steps, seeds * 500);
  const std::uint64_t least = seeds / 20;  // everything happens again and again
  EXPECT_GT(sum.sure_hits, least);
  EXPECT_GT(sum.limited_hits, least);
  EXPECT_GT(sum.replays, least);
  EXPECT_GT(sum.partial_hits, least);
  EXPECT_GT(sum.forks, least);
  EXPECT_GT(sum.rewinds, least);
  EXPECT_GT(sum.refused_rewinds, least);
  EXPECT_GT(sum.rejected_drafts, least);
  EXPECT_GT(sum.aborts, least);
  EXPECT_GT(sum.discards, least);
  EXPECT_GT(sum.overlaps, least);
  EXPECT_GT(sum.unknown_tokens, least);
  EXPECT_GT(sum.busy_forks, least);
  EXPECT_GT(sum.keeps, least);
  EXPECT_GT(sum.preemptions, least);
  EXPECT_GT(sum.shortages, least);
  EXPECT_GT(sum.side_evictions, least);
  EXPECT_GT(sum.snapshots, least);
  EXPECT_GT(sum.restores, least);
  EXPECT_GT(sum.cut_chunks, least);
  EXPECT_GT(sum.loads, least);
  EXPECT_GT(sum.waits, least);
}

}  // namespace
}  // namespace quire
