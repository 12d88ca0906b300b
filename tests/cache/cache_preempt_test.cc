// SPDX-License-Identifier: Apache-2.0
//
// Sequences that give up their pages for a while.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

using CachePreempt = SequenceChangesTest;

TEST_F(CachePreempt, SavedPagesComeBackAsTheyWere) {
  Live live = computed(token_range(0, 11), {.publish = Publish::None});
  ASSERT_TRUE(save(live.sequence));
  expect_invariants();
  EXPECT_EQ(stats().saved_pages, 3U);
  EXPECT_EQ(in_use(), 0U);
  EXPECT_TRUE(view(live).is_waiting);
  Live other = computed(token_range(40, 240));  // overwrites what it had
  end(other);
  EXPECT_EQ(resume(live.sequence)->matched_tokens, 11U);
  expect_invariants();
  EXPECT_EQ(stats().saved_pages, 0U);
  EXPECT_EQ(stats().private_pages, 2U);
  expect_good(live);
}

TEST_F(CachePreempt, WhatIsCachedIsSavedTooAndMayBeEvicted) {
  for (const std::uint32_t reclaimed : {0U, 1U, 2U}) {
    Live live = computed(token_range(0, 11));
    ASSERT_TRUE(save(live.sequence));
    EXPECT_EQ(stats().saved_pages, 3U);
    EXPECT_EQ(stats().pinned_pages, 0U);
    EXPECT_EQ(cache_->reclaim(reclaimed).value(), reclaimed);
    const std::uint32_t free_pages = stats().free_pages;
    EXPECT_EQ(resume(live.sequence)->matched_tokens, 11U);
    EXPECT_EQ(stats().free_pages, free_pages - 1 - reclaimed);
    EXPECT_EQ(stats().sealed_pages, 2U);  // cached again
    EXPECT_EQ(stats().pinned_pages, 2U);
    expect_good(live);
    end(live);
    expect_all_free();
  }
}

TEST_F(CachePreempt, AMoveThatIsPendingComesBeforeThePageIsSaved) {
  Live live = computed(token_range(0, 4));
  const std::vector<std::int32_t> parents = {-1, -1, 1};
  const std::vector<TokenId> values = {100, 101, 102};
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  compute_tree(step, 0, live, parents, values);
  finish(step, {{.tokens = values}});
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 2));
  live.tokens.insert(live.tokens.end(), {101, 102});
  ASSERT_TRUE(save(live.sequence));
  ASSERT_TRUE(resume(live.sequence));
  expect_good(live);
}

TEST_F(CachePreempt, AForksPendingCopyOutlivesItsPreemption) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  ASSERT_TRUE(save(fork.sequence));
  append(source, {60, 61});
  run(source);
  end(source);
  ASSERT_TRUE(resume(fork.sequence));
  expect_good(fork);
}

TEST_F(CachePreempt, PagesSharedWithAForkStayWithTheFork) {
  Live live = computed(token_range(0, 10), {.publish = Publish::None});
  Live fork = forked(live, 10);
  ASSERT_TRUE(save(live.sequence));
  EXPECT_EQ(stats().saved_pages, 3U);
  EXPECT_EQ(stats().private_pages, 3U);
  expect_good(fork);
  ASSERT_TRUE(resume(live.sequence));
  expect_good(live);
  end(live);
  end(fork);
  expect_all_free();
}

TEST_F(CachePreempt, ASlidSequenceIsSavedWithItsHole) {
  Live live{.sequence = cache_->begin(space_, {.tokens = token_range(0, 40)}).value(), .tokens = token_range(0, 40)};
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 12, .sink_tokens = 5}));
  ASSERT_TRUE(cache_->admit(live.sequence));
  while (view(live).pending_tokens > 0) run(live, {}, 8);
  ASSERT_TRUE(save(live.sequence));
  EXPECT_EQ(stats().saved_pages, 4U);  // tokens [0, 8) and [32, 40)
  ASSERT_TRUE(resume(live.sequence));
  for (int i = 0; i < 6; ++i) expect_good(live);
}

TEST_F(CachePreempt, WhatWasDroppedIsFoundAgainWhereItIsCached) {
  Live live = computed(token_range(0, 11));
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  expect_invariants();
  EXPECT_EQ(in_use(), 2U);
  EXPECT_EQ(stats().soft_pinned_pages, 2U);
  EXPECT_EQ(stats().pinned_pages, 0U);
  EXPECT_EQ(view(live).computed_tokens, 0U);
  const Admission again = resume(live.sequence).value();
  EXPECT_EQ(again.matched_tokens, 8U);
  EXPECT_EQ(view(live).pending_tokens, 3U);
  run(live);
  expect_good(live);
}

TEST_F(CachePreempt, EndedWhileSavedASequenceLeavesNothing) {
  Live live = computed(token_range(0, 11));
  Live fork = forked(live, 10);
  ASSERT_TRUE(save(live.sequence));
  ASSERT_TRUE(save(fork.sequence));
  end(live);
  expect_invariants();
  end(fork);
  EXPECT_EQ(stats().saved_pages, 0U);
  expect_all_free();
}

TEST_F(CachePreempt, OneThatWasSavedHasNothingMoreToAsk) {
  Live live = computed(token_range(0, 6));
  ASSERT_TRUE(save(live.sequence));
  ASSERT_TRUE(resume(live.sequence));
  EXPECT_EQ(view(live).pending_tokens, 0U);
}

TEST_F(CachePreempt, OneThatPublishesNothingFindsItsPrefixInTheTreeAgain) {
  EXPECT_EQ(run_request(token_range(0, 8)), 0U);
  Live live = computed(token_range(0, 12), {.publish = Publish::None});
  ASSERT_TRUE(save(live.sequence));
  ASSERT_TRUE(resume(live.sequence));
  EXPECT_EQ(stats().sealed_pages, 2U);
  EXPECT_EQ(stats().private_pages, 1U);
  append(live, {90});
  run(live);
}

}  // namespace
}  // namespace quire
