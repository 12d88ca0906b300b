// SPDX-License-Identifier: Apache-2.0
//
// Rewinding, by example. What it leaves in the pages is read back through plans.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "algebra_fixture.h"

namespace quire {
namespace {

using CacheRewind = AlgebraTest;

TEST_F(CacheRewind, GivesPagesBackAndAsksAnew) {
  Live live = computed(token_range(0, 10), {.publish = Publish::None});
  rewind(live, 4);
  EXPECT_EQ(view(live).token_count, 6U);
  EXPECT_EQ(view(live).computed_tokens, 6U);
  EXPECT_EQ(view(live).pending_tokens, 1U);
  EXPECT_EQ(in_use(), 2U);
  EXPECT_EQ(stats().open_pages, 1U);  // a private page can be written again
  expect_good(live);
}

TEST_F(CacheRewind, IntoACachedPageLeavesThePageAndCopiesIt) {
  Live live = computed(token_range(0, 10));
  rewind(live, 3);
  EXPECT_EQ(stats().sealed_pages, 2U);
  append(live, {70, 71});
  const Step step = plan({{&live.sequence}});
  ASSERT_EQ(step.plan.copies.size(), 1U);
  EXPECT_EQ(step.plan.copies[0].token_count, 3U);
  compute(step, 0, live.tokens);
  finish(step, {{}});
  EXPECT_EQ(run_request(token_range(0, 8)), 8U);
  expect_good(live);
}

TEST_F(CacheRewind, OfPendingTokensTouchesNoPage) {
  Live live = computed(token_range(0, 6));
  append(live, token_range(50, 5));
  rewind(live, 3);
  EXPECT_EQ(view(live).pending_tokens, 2U);
  EXPECT_EQ(view(live).computed_tokens, 6U);
  expect_good(live);
}

TEST_F(CacheRewind, ToNothingLeavesAnEmptySequence) {
  Live live = computed(token_range(0, 10));
  rewind(live, 10);
  EXPECT_EQ(view(live).token_count, 0U);
  EXPECT_EQ(view(live).pending_tokens, 0U);
  EXPECT_EQ(stats().pinned_pages, 0U);
  expect_good(live);
}

TEST_F(CacheRewind, TwiceIntoTheSameCachedPageShortensTheCopy) {
  Live live = computed(token_range(0, 12));
  rewind(live, 1);
  rewind(live, 1);
  append(live, {70});
  const Step step = plan({{&live.sequence}});
  ASSERT_EQ(step.plan.copies.size(), 1U);
  EXPECT_EQ(step.plan.copies[0].token_count, 2U);
  compute(step, 0, live.tokens);
  finish(step, {{}});
}

TEST_F(CacheRewind, WhatReplacesAPartOfAPromptIsNotPublishedWithIt) {
  Live live = computed(token_range(0, 12), {.publish = Publish::Prompt});
  rewind(live, 6);
  append(live, token_range(50, 6));
  run(live);
  EXPECT_EQ(stats().sealed_pages, 3U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = live.tokens})->matched_tokens, 6U);  // four, and two of a page
}

// What was computed with an item and what was computed without it are told apart, though the tokens are the same: the
// item was cut by a rewind or a fork, and the run that holds its first part does not grow under it.
TEST_F(CacheRewind, TokensBehindACutItemAreNotTheItems) {
  const std::vector<TokenId> tokens = token_range(0, 16);
  const ExtraKey item{.begin = 2, .end = 14, .item = {7}};
  for (const std::uint32_t end : {8U, 10U}) {
    open(algebra_config());
    const Sequence sequence = cache_->begin(space_, {.tokens = tokens, .extra_keys = {&item, 1}}).value();
    ASSERT_TRUE(cache_->admit(sequence));
    finish(plan({{&sequence, 8}}), {{}});
    ASSERT_TRUE(cache_->rewind(sequence, 16 - end));
    ASSERT_TRUE(cache_->append(sequence, {.tokens = std::span(tokens).subspan(end)}));
    finish(plan({{&sequence}}), {{}});
    EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens, .extra_keys = {&item, 1}})->matched_tokens, 8U) << end;
    for (std::uint32_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(cache_->reclaim(1).has_value());
      expect_invariants();
    }
  }
}

TEST_F(CacheRewind, ForgetsExtraKeysBehindTheEnd) {
  const std::vector<TokenId> tokens = token_range(0, 8);
  const ExtraKey key{.begin = 4, .end = 8, .item = {7}};
  Sequence sequence = cache_->begin(space_, {.tokens = tokens, .extra_keys = {&key, 1}}).value();
  ASSERT_TRUE(cache_->admit(sequence));
  const StepEntry entry{&sequence};
  Step step = *cache_->plan_step({&entry, 1})->step;
  finish(step, {{}});
  ASSERT_TRUE(cache_->rewind(sequence, 4));
  ASSERT_TRUE(cache_->append(sequence, {.tokens = std::span(tokens).subspan(4)}));
  step = *cache_->plan_step({&entry, 1})->step;
  finish(step, {{}});
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 8U);
  EXPECT_EQ(stats().sealed_pages, 3U);
}

}  // namespace
}  // namespace quire
