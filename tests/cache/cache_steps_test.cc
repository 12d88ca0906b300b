// SPDX-License-Identifier: Apache-2.0
//
// Sequences and steps: what is matched, computed, cached and freed.
#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>

#include "cache_fixture.h"

namespace quire {
namespace {

using CacheSteps = CacheTest;

TEST_F(CacheSteps, ASecondEqualPromptIsFoundWholeAndItsLastTokenRunsAgainWithoutWriting) {
  open(4, 16);
  const std::vector<TokenId> prompt = token_range(1, 12);
  EXPECT_EQ(run_request(prompt), 0U);

  const Sequence sequence = cache_->begin(space_, {.tokens = prompt}).value();
  EXPECT_EQ(cache_->admit(sequence)->matched_tokens, 12U);
  EXPECT_EQ(cache_->view(sequence)->pending_tokens, 1U);
  const StepEntry entry{&sequence, 1};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  const AttentionPlanEntry& planned = outcome.step->plan.entries[0];
  EXPECT_EQ(planned.position, 11U);
  EXPECT_EQ(planned.context_tokens, 12U);
  EXPECT_EQ(planned.append_slots[0], kNoSlot);
  EXPECT_EQ(stats().free_pages, 13U);  // no page was taken
  engine_->run(planned, 0, prompt);
  ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
}

TEST_F(CacheSteps, APromptThatIsWrittenWhereItWouldBeCopiedToIsAsGoodAsAnother) {
  open(4, 16);
  const std::vector<TokenId> prompt = token_range(1, 12);
  EXPECT_EQ(run_request(prompt), 0U);
  const std::vector<TokenId> other = token_range(50, 6);
  Sequence dropped = cache_->begin(space_, {.tokens = other}).value();
  for (const std::size_t first : {0U, 3U}) {  // from the buffer's beginning, or not
    const std::span<TokenId> buffer = cache_->prompt_buffer().value();
    ASSERT_EQ(buffer.size(), cache_->config().context_tokens_max);
    const std::span<TokenId> written = buffer.subspan(first, prompt.size());
    std::ranges::copy(prompt, written.begin());
    // Neither a refused call nor a row that became free last takes them away.
    EXPECT_FALSE(cache_->begin(space_, {.tokens = written}, {.expected_tokens = 1}));
    if (first != 0) dropped = Sequence();
    Sequence sequence = cache_->begin(space_, {.tokens = written}).value();
    EXPECT_EQ(cache_->admit(sequence)->matched_tokens, 12U);
    const StepEntry entry{&sequence, 1};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    EXPECT_TRUE(std::ranges::equal(outcome.step->plan.entries[0].tokens, prompt | std::views::drop(11)));
    ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
    ASSERT_TRUE(cache_->end(sequence));
  }
  EXPECT_TRUE(cache_->check_invariants());
}

TEST_F(CacheSteps, ThereIsNoBufferForAPromptWhenAllSequencesAreLive) {
  open(4, 16);
  const std::vector<TokenId> prompt = token_range(1, 4);
  std::vector<Sequence> live;
  while (!cache_->prompt_buffer()->empty()) live.push_back(cache_->begin(space_, {.tokens = prompt}).value());
  EXPECT_EQ(live.size(), cache_->config().sequence_count_max);
  live.pop_back();
  EXPECT_FALSE(cache_->prompt_buffer()->empty());
}

TEST_F(CacheSteps, AMatchInsideAPageIsCopiedWhenItSavesHalfAPage) {
  open(8, 16);
  std::vector<TokenId> prompt = token_range(1, 24);
  run_request(prompt);
  prompt[13] = 99;  // five tokens of the second page agree

  Sequence sequence = cache_->begin(space_, {.tokens = prompt}).value();
  const Admission admission = cache_->admit(sequence).value();
  EXPECT_EQ(admission.matched_tokens, 13U);
  EXPECT_EQ(admission.partial_tokens, 5U);
  const StepEntry entry{&sequence, 11};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  ASSERT_EQ(outcome.step->plan.copies.size(), 1U);
  EXPECT_EQ(outcome.step->plan.copies[0].token_count, 5U);
  EXPECT_EQ(outcome.step->plan.copies[0].target, outcome.step->plan.entries[0].pages[1]);
  ASSERT_TRUE(cache_->apply_copies(*outcome.step));
  engine_->run(outcome.step->plan.entries[0], 0, prompt);
  ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
  EXPECT_EQ(stats().partial_hit_tokens, 5U);
}

TEST_F(CacheSteps, AMatchThatSavesLessThanTheMinimumIsNotCopied) {
  open(8, 16);
  std::vector<TokenId> prompt = token_range(1, 24);
  run_request(prompt);
  prompt[11] = 99;  // three tokens of the second page agree
  EXPECT_EQ(cache_->lookup(space_, {.tokens = prompt})->matched_tokens, 8U);
  EXPECT_EQ(run_request(prompt), 8U);
}

TEST_F(CacheSteps, TheSourceOfACopyIsNotEvictedWhileThereAreOtherPages) {
  open(4, 6);
  run_request(token_range(1, 4));  // the source, least recently used
  run_request(token_range(50, 8));
  std::vector<TokenId> prompt = token_range(1, 3);
  Sequence copying = begin_admitted(prompt);
  std::vector<TokenId> large = token_range(100, 20);
  Sequence greedy = begin_admitted(large);
  step(greedy, large);  // takes all but the source
  ASSERT_TRUE(cache_->end(greedy));
  step(copying, prompt, {7});  // checks the bytes that were copied
  EXPECT_EQ(stats().partial_hit_tokens, 3U);
}

TEST_F(CacheSteps, ACopyIsGivenUpWhenItsSourceIsWhatIsMissing) {
  open(4, 6);
  run_request(token_range(1, 4));
  std::vector<TokenId> prompt = token_range(1, 3);
  Sequence copying = begin_admitted(prompt);
  EXPECT_EQ(cache_->view(copying)->computed_tokens, 3U);
  std::vector<TokenId> large = token_range(100, 24);
  Sequence greedy = begin_admitted(large);
  step(greedy, large);  // the whole pool
  EXPECT_EQ(cache_->view(copying)->computed_tokens, 0U);
  EXPECT_EQ(cache_->view(copying)->pending_tokens, 3U);
  EXPECT_EQ(stats().hit_tokens, 0U);
  ASSERT_TRUE(cache_->end(greedy));
  step(copying, prompt, {7});  // computes what it would have copied
}

TEST_F(CacheSteps, ACopyIsNotGivenUpWhenThatWouldNotHelp) {
  open(4, 6);
  run_request(token_range(1, 4));
  std::vector<TokenId> prompt = token_range(1, 3);
  Sequence copying = begin_admitted(prompt);
  std::vector<TokenId> held = token_range(50, 8);
  Sequence holder = begin_admitted(held);
  step(holder, held);
  const Sequence greedy = begin_admitted(token_range(100, 24));
  const StepEntry entry{&greedy};
  EXPECT_FALSE(cache_->plan_step({&entry, 1})->step.has_value());
  EXPECT_EQ(cache_->view(copying)->computed_tokens, 3U);
  step(copying, prompt, {7});
  EXPECT_EQ(stats().partial_hit_tokens, 3U);
}

TEST_F(CacheSteps, ALoneRequestOfAnyLengthCanAlwaysBePlanned) {
  // Whatever is cached, and wherever the match ends in it.
  for (std::size_t shared = 0; shared <= 16; ++shared) {
    for (std::size_t length = std::max<std::size_t>(1, shared); length <= 16; ++length) {
      open(4, 4);
      run_request(token_range(1, 16));
      std::vector<TokenId> prompt = token_range(1, length);
      for (std::size_t i = shared; i < length; ++i) prompt[i] += 100;
      run_request(prompt);
    }
  }
}

TEST_F(CacheSteps, DecodingFillsPagesAndSealsThemOneByOne) {
  open(4, 16);
  std::vector<TokenId> tokens = token_range(1, 6);
  Sequence sequence = begin_admitted(tokens);
  step(sequence, tokens, {50});
  EXPECT_EQ(stats().sealed_pages, 1U);
  step(sequence, tokens, {51});
  step(sequence, tokens, {52});  // position 7: the second page is full
  EXPECT_EQ(stats().sealed_pages, 2U);
  EXPECT_EQ(stats().open_pages, 0U);
  step(sequence, tokens);
  EXPECT_EQ(stats().open_pages, 1U);
  ASSERT_TRUE(cache_->end(sequence));
  EXPECT_EQ(stats().open_pages, 0U);
  // The output is cached as well.
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 8U);
}

TEST_F(CacheSteps, ChunkedPrefillPublishesEachChunkAtOnce) {
  open(4, 16);
  const std::vector<TokenId> prompt = token_range(1, 13);
  Sequence sequence = begin_admitted(prompt);
  for (const std::uint32_t chunk : {5U, 5U, 3U}) {
    const StepEntry entry{&sequence, chunk};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    engine_->run(outcome.step->plan.entries[0], 0, prompt);
    ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
    const std::uint32_t computed = cache_->view(sequence)->computed_tokens;
    EXPECT_EQ(cache_->lookup(space_, {.tokens = prompt})->matched_tokens, computed / 4 * 4);
  }
}

TEST_F(CacheSteps, TwoSequencesThatComputeTheSamePagesEndUpSharingThem) {
  open(4, 16);
  std::vector<TokenId> first_tokens = token_range(1, 8);
  std::vector<TokenId> second_tokens = first_tokens;
  Sequence first = begin_admitted(first_tokens);
  Sequence second = begin_admitted(second_tokens);
  step(first, first_tokens, {9});
  step(second, second_tokens, {9});
  EXPECT_EQ(stats().duplicate_page_total, 2U);
  EXPECT_EQ(stats().sealed_pages, 2U);
  EXPECT_TRUE(std::ranges::equal(cache_->view(first)->pages().first(2), cache_->view(second)->pages().first(2)));
  // Both go on reading the pages they now share.
  step(first, first_tokens, {10});
  step(second, second_tokens, {11});
}

TEST_F(CacheSteps, ABatchIsPlannedTogetherWithSlotsOneAfterTheOther) {
  open(4, 16);
  const std::vector<TokenId> first_tokens = token_range(1, 3);
  const std::vector<TokenId> second_tokens = token_range(20, 5);
  Sequence first = begin_admitted(first_tokens);
  Sequence second = begin_admitted(second_tokens);
  const std::vector<StepEntry> entries{{&first, 3}, {&second, 5}};
  const PlanOutcome outcome = cache_->plan_step(entries).value();
  const AttentionPlan& plan = outcome.step->plan;
  ASSERT_EQ(plan.entries.size(), 2U);
  // Page 0 is the null page; the first sequence gets page 1, the second 2 and 3.
  const std::vector<std::int64_t> slots{4, 5, 6, 8, 9, 10, 11, 12};
  EXPECT_TRUE(std::ranges::equal(plan.append_slots, slots));
  EXPECT_TRUE(std::ranges::equal(plan.entries[1].append_slots, std::span(slots).subspan(3)));
  EXPECT_EQ(plan.entries[1].last_page_tokens, 1U);
  EXPECT_TRUE(std::ranges::equal(plan.entries[1].tokens, second_tokens));
  engine_->run(plan.entries[0], 0, first_tokens);
  engine_->run(plan.entries[1], 0, second_tokens);
  ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(2)));
}

TEST_F(CacheSteps, AShortPoolPlansNothingAndSaysHowManyEntriesFit) {
  open(4, 5);
  const std::vector<TokenId> small = token_range(1, 8);
  const std::vector<TokenId> large = token_range(50, 16);
  Sequence first = begin_admitted(small);
  Sequence second = begin_admitted(large);
  const std::vector<StepEntry> entries{{&first, 8}, {&second, 16}};
  const PlanOutcome outcome = cache_->plan_step(entries).value();
  EXPECT_FALSE(outcome.step.has_value());
  EXPECT_EQ(outcome.shortage.pages_needed, 6U);
  EXPECT_EQ(outcome.shortage.pages_available, 5U);
  EXPECT_EQ(outcome.shortage.entries_that_fit, 1U);
  EXPECT_EQ(stats().free_pages, 5U);
  EXPECT_FALSE(cache_->view(first)->is_planned);
  EXPECT_TRUE(cache_->plan_step(std::span(entries).first(1))->step.has_value());
}

TEST_F(CacheSteps, PlanningEvictsOnlyTheShortfall) {
  open(4, 4);
  run_request(token_range(1, 16));
  EXPECT_EQ(stats().free_pages, 0U);
  run_request(token_range(100, 5));  // two pages, one of them is freed again at the end
  EXPECT_EQ(stats().evicted_page_total, 2U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = token_range(1, 16)})->matched_tokens, 8U);
}

TEST_F(CacheSteps, AnAbortedStepGivesItsPagesBackAndCanBePlannedAgain) {
  open(4, 8);
  run_request(token_range(1, 4));
  std::vector<TokenId> prompt = token_range(1, 3);
  Sequence sequence = begin_admitted(prompt);  // a copy is pending
  const StepEntry entry{&sequence, 1};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  ASSERT_EQ(outcome.step->plan.copies.size(), 1U);
  ASSERT_TRUE(cache_->abort_step(*outcome.step));
  expect_invariants();
  EXPECT_EQ(stats().open_pages, 0U);
  EXPECT_EQ(stats().aborted_step_count, 1U);
  step(sequence, prompt, {42});  // the copy is planned anew: the bytes are right
}

TEST_F(CacheSteps, PublishNoneCachesNothingAndPublishPromptNotTheOutput) {
  open(4, 16);
  std::vector<TokenId> secret = token_range(1, 8);
  run_request(secret, {.publish = Publish::None});
  EXPECT_EQ(cache_->lookup(space_, {.tokens = secret})->matched_tokens, 0U);
  EXPECT_EQ(stats().free_pages, 16U);

  std::vector<TokenId> tokens = token_range(100, 6);
  Sequence sequence = begin_admitted(tokens, {.publish = Publish::Prompt});
  step(sequence, tokens, {1});
  for (const TokenId token : {2, 3, 4, 5, 6, 7}) step(sequence, tokens, {token});
  EXPECT_EQ(stats().sealed_pages, 1U);  // the second page of the prompt was finished by the output
  EXPECT_EQ(stats().private_pages, 2U);
  ASSERT_TRUE(cache_->end(sequence));
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 4U);
  EXPECT_EQ(stats().private_pages, 0U);
}

TEST_F(CacheSteps, OptionsLimitWhatIsReused) {
  open(4, 32);
  const std::vector<TokenId> prompt = token_range(1, 16);
  run_request(prompt);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = prompt}, {.match_tokens_max = 9})->matched_tokens, 8U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = prompt}, {.use_cache = false})->matched_tokens, 0U);
  EXPECT_EQ(run_request(prompt, {.match_tokens_max = 9}), 8U);
  EXPECT_EQ(run_request(prompt, {.match_tokens_max = 11}), 11U);  // three tokens of the third page
  EXPECT_EQ(run_request(prompt, {.use_cache = false}), 0U);
  EXPECT_EQ(run_request(prompt), 16U);
}

TEST_F(CacheSteps, WhatAWaitingSequenceMatchedIsEvictedLast) {
  open(4, 4);
  run_request(token_range(1, 8));   // older
  run_request(token_range(50, 8));  // newer
  const Sequence waiting = cache_->begin(space_, {.tokens = token_range(1, 8)}).value();
  EXPECT_EQ(stats().soft_pinned_pages, 2U);
  run_request(token_range(100, 8));
  EXPECT_EQ(cache_->lookup(space_, {.tokens = token_range(50, 8)})->matched_tokens, 0U);
  EXPECT_EQ(cache_->admit(waiting)->matched_tokens, 8U);
}

TEST_F(CacheSteps, AWaitingSequencesPagesCanStillBeEvicted) {
  open(4, 4);
  run_request(token_range(1, 8));
  const Sequence waiting = cache_->begin(space_, {.tokens = token_range(1, 8)}).value();
  run_request(token_range(100, 16));
  EXPECT_EQ(cache_->admit(waiting)->matched_tokens, 0U);
}

TEST_F(CacheSteps, ThePromptIsCopiedSoTheCallersBufferMayChange) {
  open(4, 16);
  std::vector<TokenId> buffer = token_range(1, 8);
  std::vector<TokenId> tokens = buffer;
  Sequence sequence = cache_->begin(space_, {.tokens = buffer}).value();
  std::ranges::fill(buffer, 0);
  ASSERT_TRUE(cache_->admit(sequence));
  step(sequence, tokens);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 8U);
}

TEST_F(CacheSteps, AppendedTokensAreComputedByTheNextStep) {
  open(4, 8);
  std::vector<TokenId> tokens = token_range(1, 6);
  Sequence sequence = begin_admitted(tokens);
  step(sequence, tokens);
  const StepEntry entry{&sequence};
  expect_error(cache_->plan_step({&entry, 1}), ErrorCode::InvalidArgument, "no pending tokens");
  const std::vector<TokenId> turn = token_range(50, 3);
  ASSERT_TRUE(cache_->append(sequence, {.tokens = turn}));
  tokens.insert(tokens.end(), turn.begin(), turn.end());
  EXPECT_EQ(cache_->view(sequence)->pending_tokens, 3U);
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();  // 0: all that are pending
  EXPECT_EQ(outcome.step->plan.entries[0].token_count, 3U);
  expect_error(cache_->append(sequence, {.tokens = turn}), ErrorCode::Unavailable, "is part of a step in flight");
  engine_->run(outcome.step->plan.entries[0], 0, tokens);
  ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
  EXPECT_EQ(stats().sealed_pages, 2U);
  const std::vector<TokenId> negative{-3};
  expect_error(cache_->append(sequence, {.tokens = negative}), ErrorCode::InvalidArgument, "token 9 is -3");
  expect_error(cache_->append(sequence, {.tokens = token_range(1, 24)}), ErrorCode::InvalidArgument,
               "context_tokens_max is 32");
}

TEST_F(CacheSteps, AppendedTokensBringTheirExtraKeys) {
  open(4, 16);
  const std::vector<TokenId> prompt(4, 7);
  const std::vector<TokenId> all(8, 7);
  const auto run_with = [&](std::uint8_t image) {
    Sequence sequence = begin_admitted(prompt);
    const std::vector<ExtraKey> keys{{.begin = 5, .end = 7, .item = {image}}};
    EXPECT_TRUE(cache_->append(sequence, {.tokens = std::span(all).subspan(4), .extra_keys = keys}));
    const StepEntry entry{&sequence};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    engine_->run(outcome.step->plan.entries[0], 0, all, keys);
    EXPECT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
    EXPECT_TRUE(cache_->end(sequence));
    return cache_->lookup(space_, {.tokens = all, .extra_keys = keys})->matched_tokens;
  };
  EXPECT_EQ(run_with(1), 8U);
  EXPECT_EQ(run_with(2), 8U);
  EXPECT_EQ(stats().sealed_pages, 3U);  // the images share the first page only

  const Sequence sequence = begin_admitted(prompt);
  const std::vector<ExtraKey> early{{.begin = 3, .end = 5, .item = {1}}};
  expect_error(cache_->append(sequence, {.tokens = prompt, .extra_keys = early}), ErrorCode::InvalidArgument,
               "within the tokens [4, 8)");
  const std::vector<ExtraKey> many(2000, {.begin = 4, .end = 5});
  expect_error(cache_->append(sequence, {.tokens = prompt, .extra_keys = many}), ErrorCode::InvalidArgument,
               "extra key");
}

TEST_F(CacheSteps, TokensAppendedToAFullHitAreComputedInsteadOfRunningTheLastAgain) {
  open(4, 8);
  run_request(token_range(1, 8));
  std::vector<TokenId> tokens = token_range(1, 8);
  Sequence sequence = begin_admitted(tokens);
  ASSERT_TRUE(cache_->append(sequence, {.tokens = token_range(9, 1)}));
  tokens.push_back(9);
  EXPECT_EQ(cache_->view(sequence)->pending_tokens, 1U);
  const StepEntry entry{&sequence};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  EXPECT_EQ(outcome.step->plan.entries[0].position, 8U);
  EXPECT_NE(outcome.step->plan.append_slots[0], kNoSlot);
  engine_->run(outcome.step->plan.entries[0], 0, tokens);
  ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
}

TEST_F(CacheSteps, ADroppedHandleEndsItsSequenceAtTheNextCall) {
  open(4, 8);
  std::vector<TokenId> tokens = token_range(1, 6);
  {
    Sequence sequence = begin_admitted(tokens);
    step(sequence, tokens);
  }
  EXPECT_EQ(stats().sequence_count, 0U);
  EXPECT_EQ(stats().open_pages, 0U);
}

TEST_F(CacheSteps, AHandleDroppedDuringItsStepEndsWhenTheStepDoes) {
  open(4, 8);
  const std::vector<TokenId> tokens = token_range(1, 6);
  Step step_in_flight;
  {
    Sequence sequence = begin_admitted(tokens);
    const StepEntry entry{&sequence, 6};
    step_in_flight = *cache_->plan_step({&entry, 1})->step;
  }
  ASSERT_TRUE(cache_->advance(1));
  EXPECT_EQ(stats().sequence_count, 1U);
  engine_->run(step_in_flight.plan.entries[0], 0, tokens);
  ASSERT_TRUE(cache_->finish_step(step_in_flight, std::vector<StepResult>(1)));
  EXPECT_EQ(stats().sequence_count, 0U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 4U);
}

TEST_F(CacheSteps, AssigningToAHandleEndsWhatItHeld) {
  open(4, 8);
  Sequence first = begin_admitted(token_range(1, 4));
  Sequence second = begin_admitted(token_range(50, 4));
  first = std::move(second);
  EXPECT_EQ(stats().sequence_count, 1U);
}

TEST_F(CacheSteps, HandlesMayOutliveTheCache) {
  open(4, 8);
  const Sequence sequence = begin_admitted(token_range(1, 6));
  engine_.reset();
  cache_.reset();
}

TEST_F(CacheSteps, ExtraKeysKeepEqualTokensApart) {
  open(4, 16);
  const std::vector<TokenId> tokens(12, 7);  // an image's placeholder tokens are all the same
  const auto run_with = [&](std::uint8_t image) {
    const std::vector<ExtraKey> keys{{.begin = 4, .end = 10, .item = {image}}};
    Sequence sequence = cache_->begin(space_, {.tokens = tokens, .extra_keys = keys}).value();
    const std::uint32_t matched = cache_->admit(sequence)->matched_tokens;
    const StepEntry entry{&sequence, cache_->view(sequence)->pending_tokens};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    EXPECT_TRUE(cache_->apply_copies(*outcome.step));
    engine_->run(outcome.step->plan.entries[0], 0, tokens, keys);
    EXPECT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
    EXPECT_TRUE(cache_->end(sequence));
    return matched;
  };
  EXPECT_EQ(run_with(1), 0U);
  EXPECT_EQ(run_with(2), 4U);  // the page before the image is shared
  EXPECT_EQ(run_with(1), 12U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 4U);
}

TEST_F(CacheSteps, PagesBeyondARunsLengthAreMatchedAcrossRuns) {
  open(1, 6000);
  const std::vector<TokenId> tokens = token_range(1, 5000);  // more than one run holds
  run_request(tokens);
  EXPECT_GT(stats().run_count, 1U);
  EXPECT_EQ(run_request(tokens), 5000U);
}

TEST_F(CacheSteps, EveryByteLayoutCopiesPartsOfPagesRight) {
  for (const HeadOrder order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
    for (const ByteLayout bytes : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
      CacheConfig config = test_config(4, 8);
      config.layout = ModelLayout::simple({.layers = 3, .kv_heads = 2, .head_dim = 3}).value();
      config.page.head_order = order;
      config.device.byte_layout = bytes;
      open(std::move(config));
      const PoolGeometry& pool = cache_->geometry();
      // Each row of the source holds its own place; the copy must hold the source's places, and nothing else.
      std::vector<TokenId> cached = token_range(1, 4);
      Sequence first = cache_->begin(space_, {.tokens = cached}).value();
      ASSERT_TRUE(cache_->admit(first));
      StepEntry entry{&first, 4};
      PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      const PageId source = outcome.step->plan.entries[0].pages[0];
      const auto for_each_row = [&](PageId page, const auto& visit) {
        for (std::uint32_t layer = 0; layer < 3; ++layer) {
          for (std::uint32_t component = 0; component < 2; ++component) {
            for (std::uint32_t token = 0; token < 4; ++token) {
              for (std::uint32_t head = 0; head < 2; ++head) {
                const auto mark = static_cast<int>((((layer * 2 + component) * 4 + token) * 2) + head + 1);
                visit(cache_->device_memory() + pool.offset_of({page, layer, component, token, head}), token, mark);
              }
            }
          }
        }
      };
      constexpr std::size_t kRowBytes = 6;
      for_each_row(source, [&](std::byte* row, std::uint32_t, int mark) { std::memset(row, mark, kRowBytes); });
      ASSERT_TRUE(cache_->finish_step(*outcome.step, std::vector<StepResult>(1)));
      ASSERT_TRUE(cache_->end(first));

      Sequence second = cache_->begin(space_, {.tokens = std::span(cached).first(3)}).value();
      ASSERT_EQ(cache_->admit(second)->partial_tokens, 3U);
      entry = {&second, 1};
      outcome = cache_->plan_step({&entry, 1}).value();
      ASSERT_TRUE(cache_->apply_copies(*outcome.step));
      for_each_row(outcome.step->plan.copies[0].target, [&](const std::byte* row, std::uint32_t token, int mark) {
        for (std::size_t i = 0; i < kRowBytes; ++i) EXPECT_EQ(static_cast<int>(row[i]), token < 3 ? mark : 0);
      });
      ASSERT_TRUE(cache_->abort_step(*outcome.step));
    }
  }
}

}  // namespace
}  // namespace quire
