// SPDX-License-Identifier: Apache-2.0
//
// Fork, rewind, windows and token trees, by example. What each leaves in the pages is read back through plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "algebra_fixture.h"

namespace quire {
namespace {

// Forks

using CacheFork = AlgebraTest;

TEST_F(CacheFork, TakesNoPageUntilItWrites) {
  Live source = computed(token_range(0, 10));
  const std::uint32_t before = in_use();
  Live fork = forked(source, 10);
  EXPECT_EQ(in_use(), before);
  EXPECT_EQ(view(fork).pages.size(), 2U);
  append(fork, {70, 71});
  const Step step = plan({{&fork.sequence}});
  ASSERT_EQ(step.plan.copies.size(), 1U);
  EXPECT_EQ(step.plan.copies[0].source, view(source).pages[2]);
  EXPECT_EQ(step.plan.copies[0].target, view(fork).pages[2]);
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
  const PageId original = view(source).pages[2];
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
  const PageId original = view(source).pages[2];
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
  const PageId original = view(source).pages[2];
  Live fork = forked(source, 9);
  end(source);
  EXPECT_EQ(stats().private_pages, 1U);
  append(fork, {70});
  const std::uint32_t before = in_use();
  const Step step = plan({{&fork.sequence}});
  EXPECT_TRUE(step.plan.copies.empty());
  EXPECT_EQ(view(fork).pages[2], original);
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
  EXPECT_EQ(view(fork).pages.size(), 4U);
  ASSERT_TRUE(cache_->abort_step(step));
  EXPECT_EQ(view(fork).pages.size(), 3U);
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
  open(algebra_config(8));
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
  EXPECT_EQ(view(first).pages[2], view(second).pages[2]);
  append(fork, {70});
  run(fork);
}

TEST_F(CacheFork, WhenPagesAreShortItsCachedTailIsComputedAgain) {
  open(algebra_config(4));
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
  CacheConfig config = algebra_config(24);
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

// Rewinding

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

// Windows

class CacheWindow : public AlgebraTest {
 protected:
  [[nodiscard]] Live windowed(std::vector<TokenId> tokens, const Window& window) {
    Live live{.sequence = cache_->begin(space_, {.tokens = tokens}).value()};
    live.tokens = std::move(tokens);
    EXPECT_TRUE(cache_->set_window(live.sequence, window));
    EXPECT_TRUE(cache_->admit(live.sequence));
    return live;
  }
  [[nodiscard]] std::uint32_t held(const Live& live) const {
    std::uint32_t count = 0;
    for (const PageId page : view(live).pages) count += page == kNullPage ? 0 : 1;
    return count;
  }
};

TEST_F(CacheWindow, HoldsItsSinkAndItsWindow) {
  Live live = windowed(token_range(0, 40), {.window_tokens = 12, .sink_tokens = 2});
  while (view(live).pending_tokens > 0) run(live, {}, 1);
  // The last token saw 2 and [30, 40): pages 0, 7, 8 and 9.
  EXPECT_EQ(held(live), 4U);
  EXPECT_EQ(view(live).pages.size(), 10U);
  EXPECT_EQ(view(live).pages[6], kNullPage);
  EXPECT_EQ(stats().sealed_pages, 3U);  // those that saw all before them
  EXPECT_EQ(stats().pinned_pages, 1U);
  EXPECT_EQ(stats().private_pages, 3U);
  end(live);
  EXPECT_EQ(run_request(token_range(0, 16)), 12U);
  expect_all_free();
}

TEST_F(CacheWindow, ALongChunkStoresOnlyItsSinkAndItsWindow) {
  Live live = windowed(token_range(0, 50), {.window_tokens = 8, .sink_tokens = 2});
  const Step step = plan({{&live.sequence}});
  EXPECT_EQ(held(live), 3U);  // the sink, and tokens [44, 50)
  for (std::uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(step.plan.append_slots[i] == kNoSlot, i >= 4 && i < 44) << i;
  }
  compute(step, 0, live.tokens);
  finish(step, {{}});
  expect_good(live);
}

TEST_F(CacheWindow, SeveralChunksInFlightStoreWhatTheNextOneSees) {
  Live live = windowed(token_range(0, 60), {.window_tokens = 8, .sink_tokens = 3});
  const Step first = plan({{&live.sequence, 21}});
  const Step second = plan({{&live.sequence, 21}});
  const Step third = plan({{&live.sequence}});
  compute(first, 0, live.tokens);
  compute(second, 0, live.tokens);
  finish(first, {{}});
  compute(third, 0, live.tokens);
  finish(second, {{}});
  finish(third, {{}});
  expect_good(live);
  EXPECT_EQ(stats().fenced_pages, 0U);
}

TEST_F(CacheWindow, AForkInsideTheSinkOfASlidSequenceLeavesItsWindow) {
  for (const std::uint32_t page_tokens : {1U, 4U, 16U}) {
    CacheConfig config = algebra_config(160);
    config.page.page_tokens = page_tokens;
    open(std::move(config));
    Live live = windowed(token_range(0, 60), {.window_tokens = 40, .sink_tokens = 25});
    for (int i = 0; i < 4; ++i) run(live, {}, 15);
    Live fork = forked(live, 18);
    EXPECT_EQ(view(fork).window.window_tokens, 40U);
    for (int i = 0; i < 12; ++i) {
      expect_good(live);
      expect_good(fork);
    }
    end(live);
    for (int i = 0; i < 6; ++i) expect_good(fork);
    end(fork);
    expect_all_free();
  }
}

TEST_F(CacheWindow, AForkOfWhatTheWindowHoldsGoesOnSliding) {
  CacheConfig config = algebra_config();
  config.window_rewind_tokens = 3;
  open(std::move(config));
  Live live = windowed(token_range(0, 45), {.window_tokens = 20, .sink_tokens = 6});
  run(live, {}, 24);
  run(live);
  Live fork = forked(live, 43);
  for (int i = 0; i < 8; ++i) {
    expect_good(fork);
    expect_good(live);
  }
  end(live);
  expect_good(fork);
  end(fork);
  expect_all_free();
}

TEST_F(CacheWindow, ARewoundSlidSequenceHoldsThePagesItNeeds) {
  for (const std::uint32_t page_tokens : {1U, 4U, 16U}) {
    CacheConfig config = algebra_config(80);
    config.page.page_tokens = page_tokens;
    config.window_rewind_tokens = 1;
    open(std::move(config));
    Live live = windowed(token_range(0, 39), {.window_tokens = 20, .sink_tokens = 6});
    run(live, {}, 24);
    run(live, {}, 15);
    rewind(live, 1);
    const Step again = plan({{&live.sequence}});  // the last token that is left runs again
    compute(again, 0, live.tokens);
    EXPECT_EQ(again.plan.seq_lens[0], 20);
    finish(again, {{}});
    for (int i = 0; i < 9; ++i) expect_good(live);
    end(live);
    expect_all_free();
  }
}

TEST_F(CacheWindow, RewoundIntoItsSinkASlidSequenceGrowsAgain) {
  Live live = windowed(token_range(0, 40), {.window_tokens = 12, .sink_tokens = 6});
  while (view(live).pending_tokens > 0) run(live, {}, 4);
  rewind(live, 35);
  append(live, token_range(100, 30));
  while (view(live).pending_tokens > 0) run(live, {}, 3);
  EXPECT_EQ(run_request(token_range(0, 4)), 4U);
  end(live);
  expect_all_free();
}

TEST_F(CacheWindow, SetOnALongSequenceFreesWhatItLeaves) {
  Live live = computed(token_range(0, 40), {.publish = Publish::None});
  EXPECT_EQ(in_use(), 10U);
  ASSERT_TRUE(cache_->set_window(live.sequence, {.window_tokens = 12, .sink_tokens = 4}));
  EXPECT_EQ(in_use(), 3U);  // tokens [0, 4) and [32, 40)
  expect_good(live);
}

TEST_F(CacheWindow, OneThatSawAllPublishesWhatItHadBefore) {
  Live live = admitted(token_range(0, 22));
  run(live, {}, 18);
  ASSERT_TRUE(cache_->set_window(live.sequence, {.window_tokens = 8, .sink_tokens = 2}));
  run(live);
  end(live);
  EXPECT_EQ(run_request(token_range(0, 24)), 16U);
}

TEST_F(CacheWindow, WhatAWaitingSequenceFindsIsCutToTheWindow) {
  EXPECT_EQ(run_request(token_range(0, 40)), 0U);
  Live live{.sequence = cache_->begin(space_, {.tokens = token_range(0, 40)}).value(), .tokens = token_range(0, 40)};
  ASSERT_TRUE(cache_->set_window(live.sequence, {.window_tokens = 13, .sink_tokens = 2}));
  EXPECT_EQ(cache_->admit(live.sequence)->matched_tokens, 12U);
  run(live);
  expect_good(live);
}

// Token trees

class CacheTree : public AlgebraTest {
 protected:
  /// Known tokens {0 … 5}, then one step with this tree; node i has the token 100 + i.
  void grow(Live& live, std::vector<std::int32_t> parents) {
    const auto before = static_cast<std::uint32_t>(parents_.size());
    const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
    parents_.insert(parents_.end(), parents.begin(), parents.end());
    for (std::uint32_t i = before; i < parents_.size(); ++i) values_.push_back(static_cast<TokenId>(100 + i));
    compute_tree(step, 0, live, parents_, values_);
    const AttentionPlanEntry& entry = step.plan.entries[0];
    for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
      slots_.push_back(entry.append_slots[entry.token_count - entry.draft_count + i]);
    }
    finish(step, {{.tokens = std::span(values_).subspan(before)}});
  }
  void commit(Live& live, std::int32_t leaf) {
    const Status status = cache_->commit_tree(live.sequence, leaf);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    std::vector<TokenId> path;
    for (std::int32_t node = leaf; node >= 0; node = parents_[node]) path.insert(path.begin(), values_[node]);
    live.tokens.insert(live.tokens.end(), path.begin(), path.end());
    EXPECT_EQ(view(live).token_count, live.tokens.size());
    EXPECT_EQ(view(live).computed_tokens, live.tokens.size());
    EXPECT_EQ(view(live).tree_tokens, 0U);
    expect_invariants();
  }
  /// The moves of the next plan as node → place in the path.
  [[nodiscard]] std::vector<std::pair<int, int>> next_moves(Live& live) {
    append(live, {90});
    const Step step = plan({{&live.sequence}});
    compute(step, 0, live.tokens);
    finish(step, {{}});
    std::vector<std::pair<int, int>> moves;
    const auto node_of = [&](std::int64_t slot) {
      return static_cast<int>(std::find(slots_.begin(), slots_.end(), slot) - slots_.begin());
    };
    for (const TokenMove& move : step.plan.groups[0].moves) {
      moves.emplace_back(node_of(move.source_slot), node_of(move.target_slot));
    }
    return moves;
  }

  std::vector<std::int32_t> parents_;
  std::vector<TokenId> values_;
  std::vector<std::int64_t> slots_;
};

using Moves = std::vector<std::pair<int, int>>;

TEST_F(CacheTree, ACommitMovesTheAcceptedPathIntoPlace) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 0, 1, 1, 2, 2});
  EXPECT_EQ(view(live).tree_tokens, 7U);
  EXPECT_EQ(view(live).computed_tokens, 6U);
  commit(live, 6);
  EXPECT_EQ(next_moves(live), (Moves{{2, 1}, {6, 2}}));
}

TEST_F(CacheTree, OfADeepTreeOnlyThePathIsLeft) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6});
  const std::uint32_t before = in_use();
  commit(live, 11);
  EXPECT_EQ(next_moves(live), (Moves{{2, 1}, {5, 2}, {11, 3}}));
  EXPECT_EQ(in_use(), before - 3);
}

TEST_F(CacheTree, AChainMovesNothing) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  commit(live, 6);
  EXPECT_EQ(stats().fenced_pages, 0U);
  EXPECT_EQ(next_moves(live), Moves{});
}

TEST_F(CacheTree, OfTwoRootsTheSecondMovesToTheFront) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 0, 1, 1, 2, 2, -1, 7, 7, 8, 8, 9, 9});
  commit(live, 13);
  EXPECT_EQ(next_moves(live), (Moves{{7, 0}, {9, 1}, {13, 2}}));
}

TEST_F(CacheTree, KeepingNoneOfItGivesItsPagesBack) {
  Live live = computed(token_range(0, 6));
  const std::uint32_t before = in_use();
  grow(live, {-1, 0, 0, 1, 1, 2, 2});
  EXPECT_GT(in_use(), before);
  commit(live, -1);
  EXPECT_EQ(in_use(), before);
  EXPECT_EQ(view(live).pending_tokens, 0U);
  EXPECT_EQ(next_moves(live), Moves{});
}

TEST_F(CacheTree, SeveralRoundsCountOn) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  grow(live, {2, 3});
  EXPECT_EQ(view(live).tree_tokens, 5U);
  grow(live, {0, 4});
  commit(live, 6);  // 1, 2, 3, 4, 6
  EXPECT_EQ(live.tokens.size(), 11U);
  EXPECT_EQ(next_moves(live), (Moves{{1, 0}, {2, 1}, {3, 2}, {4, 3}, {6, 4}}));
}

TEST_F(CacheTree, AnEarlierRoundsLeafCanBeKept) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  grow(live, {2, 3});
  commit(live, 0);
  EXPECT_EQ(next_moves(live), Moves{});
}

TEST_F(CacheTree, ARoundThatIsAbortedLeavesTheRoundsBefore) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  const std::uint32_t before = in_use();
  const std::vector<std::int32_t> parents = {2, 3, 4, 5, 6};
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  EXPECT_EQ(view(live).tree_tokens, 8U);
  ASSERT_TRUE(cache_->abort_step(step));
  EXPECT_EQ(view(live).tree_tokens, 3U);
  EXPECT_EQ(in_use(), before);
  grow(live, {2});
  commit(live, 3);
  EXPECT_EQ(next_moves(live), (Moves{{1, 0}, {2, 1}, {3, 2}}));
}

TEST_F(CacheTree, SequencesAreCommittedInAnyOrderAndEachForItself) {
  const std::vector<std::int32_t> chain = {-1, 0, 1, 2};
  const std::vector<std::int32_t> fan = {-1, -1, -1, 2};
  const std::vector<TokenId> values = {100, 101, 102, 103};
  Live a = computed(token_range(0, 6));
  Live b = computed(token_range(20, 7));
  Live c = computed(token_range(40, 8));
  const Step step = plan({{.sequence = &a.sequence, .tree_parents = fan},
                          {.sequence = &b.sequence, .tree_parents = fan},
                          {.sequence = &c.sequence, .tree_parents = chain}});
  compute_tree(step, 0, a, fan, values);
  compute_tree(step, 1, b, fan, values);
  compute_tree(step, 2, c, chain, values);
  finish(step, {{.tokens = values}, {.tokens = values}, {.tokens = values}});
  ASSERT_TRUE(cache_->commit_tree(c.sequence, 1));
  c.tokens.insert(c.tokens.end(), {100, 101});
  ASSERT_TRUE(cache_->commit_tree(b.sequence, 3));
  b.tokens.insert(b.tokens.end(), {102, 103});
  // c goes on while a is undecided; b's moves come along, though b is not in the step.
  append(c, {90});
  const Step next = plan({{&c.sequence}});
  EXPECT_EQ(next.plan.groups[0].moves.size(), 2U);
  EXPECT_EQ(next.plan.groups[0].move_indptr.size(), 2U);
  compute(next, 0, c.tokens);
  finish(next, {{}});
  ASSERT_TRUE(cache_->commit_tree(a.sequence, 3));
  a.tokens.insert(a.tokens.end(), {102, 103});
  append(a, {90});
  append(b, {90});
  const Step last = plan({{&b.sequence}, {&a.sequence}});
  EXPECT_EQ(last.plan.groups[0].moves.size(), 2U);
  compute(last, 0, b.tokens);
  compute(last, 1, a.tokens);
  finish(last, {{}, {}});
}

TEST_F(CacheTree, PagesThatMovesReadComeBackWithThePlanThatMoves) {
  open(algebra_config(5));
  Live live = computed(token_range(0, 4));
  grow(live, {-1, -1, -1, -1, -1, -1, -1, -1});
  EXPECT_EQ(stats().free_pages, 2U);
  commit(live, 7);
  EXPECT_EQ(stats().free_pages, 2U);
  EXPECT_EQ(stats().fenced_pages, 1U);
  append(live, token_range(50, 15));  // 20 tokens in 5 pages: the one that is read is written in the same step
  run(live);
  EXPECT_EQ(stats().free_pages, 0U);
}

TEST_F(CacheTree, KnownTokensStandBeforeTheTreeInItsFirstStep) {
  Live live = computed(token_range(0, 6));
  append(live, {80, 81, 82});
  grow(live, {-1, 0, -1});
  EXPECT_EQ(view(live).computed_tokens, 9U);
  commit(live, 2);
  EXPECT_EQ(next_moves(live), (Moves{{2, 0}}));
}

TEST_F(CacheTree, WhatIsCommittedIsCachedAndMovedBeforeAnybodyReadsIt) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  commit(live, 2);  // 8 tokens: two full pages
  EXPECT_EQ(stats().sealed_pages, 2U);
  Live other = admitted(live.tokens);
  EXPECT_EQ(view(other).computed_tokens, 8U);
  run(other);
}

TEST_F(CacheTree, ACommittedSequenceMayEndBeforeItsMoves) {
  Live live = computed(token_range(0, 5));
  grow(live, {-1, -1, 1, 2, 3, 4, 5, 6});
  commit(live, 7);
  end(live);
  EXPECT_GT(stats().fenced_pages, 0U);
  Live other = computed(token_range(60, 40));  // takes the pages that the moves touch
  expect_good(other);
  EXPECT_EQ(stats().fenced_pages, 0U);
  end(other);
  expect_all_free();
}

TEST_F(CacheTree, AForkOfAnUndecidedSequenceHasWhatWasDecided) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  Live fork = forked(live, 6);
  commit(live, 2);
  expect_good(fork);
  expect_good(live);
}

TEST_F(CacheTree, MovesOfAnAbortedStepThatNobodyAppliedHappen) {
  Live live = computed(token_range(0, 6));
  const std::vector<std::int32_t> parents = {-1, -1, 1};
  const std::vector<TokenId> values = {10, 11, 12};
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  compute_tree(step, 0, live, parents, values);
  finish(step, {{.tokens = values}});
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 2));
  live.tokens.insert(live.tokens.end(), {11, 12});
  append(live, {20});
  const StepEntry entry{&live.sequence};
  const Step aborted = *cache_->plan_step({&entry, 1})->step;  // its moves are not applied
  ASSERT_EQ(aborted.plan.groups[0].moves.size(), 2U);
  ASSERT_TRUE(cache_->abort_step(aborted));
  run(live);
}

}  // namespace
}  // namespace quire
