// SPDX-License-Identifier: Apache-2.0
//
// Forks and rewinding, by example. What they leave in the pages is read back through plans.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

using CacheFork = SequenceChangesTest;

TEST_F(CacheFork, TakesNoPageUntilItWrites) {
  Live source = computed(token_range(0, 10));
  const std::uint32_t before = in_use();
  Live fork = forked(source, 10);
  EXPECT_EQ(in_use(), before);
  EXPECT_EQ(view(fork).pages().size(), 2U);
  append(fork, {70, 71});
  const Step step = plan({{&fork.sequence}});
  ASSERT_EQ(step.plan.copies.size(), 1U);
  EXPECT_EQ(step.plan.copies[0].source, view(source).pages()[2]);
  EXPECT_EQ(step.plan.copies[0].target, view(fork).pages()[2]);
  EXPECT_EQ(step.plan.copies[0].token_count, 2U);
  compute(step, 0, fork.tokens);
  finish(step, {{}});
  EXPECT_EQ(in_use(), before + 1);
  expect_good(source);
  expect_good(fork);
}

TEST_F(CacheFork, AtAPageBoundaryNothingIsCopied) {
  Live source = computed(token_range(0, 8));
  Live fork = forked(source, 8);
  append(fork, {70});
  const Step step = plan({{&fork.sequence}});
  EXPECT_TRUE(step.plan.copies.empty());
  compute(step, 0, fork.tokens);
  finish(step, {{}});
}

TEST_F(CacheFork, AsksAnewWhatComesAfterItsLastToken) {
  Live source = computed(token_range(0, 10));
  EXPECT_EQ(view(source).pending_tokens, 0U);
  Live fork = forked(source, 7);
  EXPECT_EQ(view(fork).pending_tokens, 1U);
  EXPECT_EQ(view(fork).computed_tokens, 7U);
  const Step step = plan({{&fork.sequence}});
  EXPECT_EQ(step.plan.append_slots[0], kNoSlot);
  compute(step, 0, fork.tokens);
  finish(step, {{}});
  EXPECT_EQ(view(fork).pending_tokens, 0U);
}

TEST_F(CacheFork, BeyondWhatIsComputedHasTheRestPending) {
  Live source = admitted(token_range(0, 10));
  run(source, {}, 6);
  Live fork = forked(source, 9);
  EXPECT_EQ(view(fork).computed_tokens, 6U);
  EXPECT_EQ(view(fork).pending_tokens, 3U);
  run(fork);
  run(source);
}

TEST_F(CacheFork, AtZeroIsAnEmptySequence) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 0);
  EXPECT_EQ(view(fork).token_count, 0U);
  EXPECT_EQ(view(fork).pending_tokens, 0U);
  append(fork, token_range(50, 5));
  run(fork);
}

TEST_F(CacheFork, OfAForkWhoseCopyIsPendingNamesTheOriginalSource) {
  Live source = computed(token_range(0, 10));
  const PageId original = view(source).pages()[2];
  Live child = forked(source, 10);
  Live grandchild = forked(child, 9);
  append(child, {70});
  append(grandchild, {80});
  const Step step = plan({{&grandchild.sequence}, {&child.sequence}, {&source.sequence, 0, 2}});
  ASSERT_EQ(step.plan.copies.size(), 2U);
  for (const PageCopy& copy : step.plan.copies) EXPECT_EQ(copy.source, original);
  EXPECT_EQ(step.plan.copies[0].token_count, 1U);
  EXPECT_EQ(step.plan.copies[1].token_count, 2U);
  compute(step, 0, grandchild.tokens);
  compute(step, 1, child.tokens);
  finish(step, {{}, {}, {}});
}

TEST_F(CacheFork, OfAForkWhoseCopyIsInFlightNamesTheOriginalSource) {
  Live source = computed(token_range(0, 10));
  const PageId original = view(source).pages()[2];
  Live child = forked(source, 10);
  append(child, {70});
  const Step first = plan({{&child.sequence}});
  Live grandchild = forked(child, 10);
  append(grandchild, {80});
  const Step second = plan({{&grandchild.sequence}});
  ASSERT_EQ(second.plan.copies.size(), 1U);
  EXPECT_EQ(second.plan.copies[0].source, original);
  compute(first, 0, child.tokens);
  compute(second, 0, grandchild.tokens);
  finish(first, {{}});
  finish(second, {{}});
}

TEST_F(CacheFork, TheLastOwnerOfAPageWritesItWithoutACopy) {
  Live source = computed(token_range(0, 10));
  const PageId original = view(source).pages()[2];
  Live fork = forked(source, 9);
  end(source);
  EXPECT_EQ(stats().private_pages, 1U);
  append(fork, {70});
  const std::uint32_t before = in_use();
  const Step step = plan({{&fork.sequence}});
  EXPECT_TRUE(step.plan.copies.empty());
  EXPECT_EQ(view(fork).pages()[2], original);
  EXPECT_EQ(in_use(), before);
  compute(step, 0, fork.tokens);
  finish(step, {{}});
  end(fork);
  expect_all_free();
}

TEST_F(CacheFork, AnAdoptedPageStaysWhenItsStepIsAborted) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  end(source);
  append(fork, token_range(70, 6));
  const Step step = plan({{&fork.sequence}});
  EXPECT_EQ(view(fork).pages().size(), 4U);
  ASSERT_TRUE(cache_->abort_step(step));
  EXPECT_EQ(view(fork).pages().size(), 3U);
  run(fork);
}

TEST_F(CacheFork, ASourceRewoundAndWrittenAgainBeforeTheForkRunsLeavesItsTokens) {
  Live source = computed(token_range(0, 11));
  Live fork = forked(source, 11);
  rewind(source, 2);
  append(source, {60, 61});
  run(source);
  expect_good(fork);
  expect_good(source);
}

TEST_F(CacheFork, ASourceRewoundAndWrittenAgainWhileTheForkRunsLeavesItsTokens) {
  Live source = computed(token_range(0, 11));
  Live fork = forked(source, 11);
  append(fork, {70});
  const Step copying = plan({{&fork.sequence}});
  rewind(source, 2);
  append(source, {60, 61});
  const Step writing = plan({{&source.sequence}});
  compute(copying, 0, fork.tokens);
  compute(writing, 0, source.tokens);
  finish(copying, {{}});
  finish(writing, {{}});
  expect_good(fork);
  expect_good(source);
  end(source);
  end(fork);
  expect_all_free();
}

TEST_F(CacheFork, ACopyRunsBeforeTheOwnerWritesOnInTheSameStep) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  append(source, token_range(60, 5));
  append(fork, token_range(70, 5));
  const Step step = plan({{&source.sequence}, {&fork.sequence}});
  compute(step, 0, source.tokens);
  compute(step, 1, fork.tokens);
  finish(step, {{}, {}});
  expect_good(source);
  expect_good(fork);
}

TEST_F(CacheFork, ASourceThatEndsWhileTheForkRunsKeepsItsPage) {
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  append(fork, {70});
  const Step step = plan({{&fork.sequence}});
  end(source);
  EXPECT_EQ(stats().private_pages, 1U);
  compute(step, 0, fork.tokens);
  finish(step, {{}});
  EXPECT_EQ(stats().private_pages, 0U);
  expect_good(fork);
}

TEST_F(CacheFork, ASourceThatEntersTheTreeStaysUnderPressure) {
  open(changes_config(8));
  Live source = computed(token_range(0, 10));
  Live fork = forked(source, 10);
  append(source, {60, 61});
  run(source);  // the page is in the tree now
  EXPECT_EQ(stats().sealed_pages, 3U);
  end(source);
  EXPECT_EQ(cache_->reclaim(8).value(), 0U);  // all pinned by the fork
  append(fork, {70});
  run(fork);
  EXPECT_EQ(stats().evictable_pages, 1U);
  expect_good(fork);
}

TEST_F(CacheFork, ASourceThatWasComputedInVainServesItsForkAllTheSame) {
  Live first = admitted(token_range(0, 12));
  Live second = admitted(token_range(0, 12));
  run(first, {}, 10);
  run(second, {}, 10);
  Live fork = forked(second, 10);
  run(first);
  run(second);  // its last page is a duplicate of first's
  EXPECT_EQ(stats().duplicate_page_total, 3U);
  EXPECT_EQ(view(first).pages()[2], view(second).pages()[2]);
  append(fork, {70});
  run(fork);
}

TEST_F(CacheFork, WhenPagesAreShortItsCachedTailIsComputedAgain) {
  open(changes_config(4));
  Live source = computed(token_range(0, 12));
  Live fork = forked(source, 11);
  end(source);
  EXPECT_EQ(stats().evictable_pages, 0U);
  append(fork, token_range(70, 5));
  run(fork);  // without the copy, whose source it would have to keep
  EXPECT_EQ(stats().evicted_page_total, 1U);
  EXPECT_EQ(view(fork).computed_tokens, 16U);
}

TEST_F(CacheFork, WhileItsSourceIsInAStepSeesWhatIsComputed) {
  Live source = admitted(token_range(0, 12));
  run(source, {}, 6);
  const Step step = plan({{&source.sequence}});
  Live fork = forked(source, 6);
  append(fork, {70, 71, 72});
  compute(step, 0, source.tokens);
  const Step other = plan({{&fork.sequence}});
  compute(other, 0, fork.tokens);
  finish(step, {{}});
  finish(other, {{}});
  expect_good(source);
  expect_good(fork);
}

TEST_F(CacheFork, PrivatePagesAreSharedAndGoWithTheirLastOwner) {
  Live source = computed(token_range(0, 10), {.publish = Publish::None});
  EXPECT_EQ(stats().private_pages, 2U);
  Live fork = forked(source, 10);
  Live short_fork = forked(source, 4);
  EXPECT_EQ(stats().private_pages, 2U);
  end(source);
  EXPECT_EQ(stats().private_pages, 3U);  // and what was the open page
  end(fork);
  EXPECT_EQ(stats().private_pages, 1U);
  expect_good(short_fork);
  end(short_fork);
  expect_all_free();
}

TEST_F(CacheFork, ManyForksInOneStepListTheirSharedPagesOncePerFork) {
  CacheConfig config = changes_config(24);
  config.sequence_count_max = 16;
  open(std::move(config));
  std::vector<Live> lives;
  lives.push_back(computed(token_range(0, 64)));
  while (lives.size() < 8) lives.push_back(forked(lives[0], 64));
  std::vector<StepEntry> entries;
  for (Live& live : lives) {
    append(live, {static_cast<TokenId>(500 + entries.size())});
    entries.push_back({&live.sequence});
  }
  const Step step = plan(entries);
  EXPECT_EQ(step.plan.groups[0].page_indices.size(), 8U * 17);
  for (std::uint32_t i = 0; i < lives.size(); ++i) compute(step, i, lives[i].tokens);
  finish(step, std::vector<StepResult>(8));
  EXPECT_EQ(in_use(), 16U + 8);
}

TEST_F(CacheFork, AnyOrderOfEndsLeavesNothing) {
  for (std::uint32_t first = 0; first < 4; ++first) {
    for (std::uint32_t second = 0; second < 3; ++second) {
      std::vector<Live> lives;
      lives.push_back(computed(token_range(0, 11), {.publish = Publish::Prompt}));
      lives.push_back(forked(lives[0], 10));
      lives.push_back(forked(lives[1], 7));
      lives.push_back(forked(lives[1], 10));
      append(lives[3], {70});
      run(lives[3]);
      end(lives[first]);
      lives.erase(lives.begin() + first);
      expect_invariants();
      end(lives[second]);
      lives.erase(lives.begin() + second);
      expect_invariants();
      for (Live& live : lives) expect_good(live);
      for (Live& live : lives) end(live);
      expect_all_free();
    }
  }
}

TEST_F(CacheFork, TokensBehindACutItemAreNotTheItems) {
  const std::vector<TokenId> tokens = token_range(0, 16);
  const ExtraKey item{.begin = 2, .end = 14, .item = {7}};
  Sequence sequence = cache_->begin(space_, {.tokens = tokens, .extra_keys = {&item, 1}}).value();
  ASSERT_TRUE(cache_->admit(sequence));
  finish(plan({{&sequence, 8}}), {{}});
  const Sequence fork = cache_->fork(sequence, 8).value();
  ASSERT_TRUE(cache_->end(sequence));
  ASSERT_TRUE(cache_->append(fork, {.tokens = std::span(tokens).subspan(8)}));
  finish(plan({{&fork}}), {{}});
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens, .extra_keys = {&item, 1}})->matched_tokens, 8U);
}

// Rewinding

using CacheRewind = SequenceChangesTest;

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
    open(changes_config());
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
