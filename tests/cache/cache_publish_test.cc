// SPDX-License-Identifier: Apache-2.0
//
// What a sequence says about itself: which of its pages others may find, decided at its end, and how long it will get.
#include <gtest/gtest.h>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

class CachePublish : public SequenceChangesTest {
 protected:
  [[nodiscard]] std::uint32_t cached_tokens(const std::vector<TokenId>& tokens) const {
    return cache_->lookup(space_, {.tokens = tokens})->matched_tokens;
  }
};

TEST_F(CachePublish, WhatWasKeptBackCanBePublishedAtTheEnd) {
  Live live = computed(token_range(0, 10), {.publish = Publish::None});
  EXPECT_EQ(stats().private_pages, 2U);
  ASSERT_TRUE(cache_->end(live.sequence, Publish::All));
  EXPECT_EQ(cached_tokens(live.tokens), 8U);
  EXPECT_EQ(stats().sealed_pages, 2U);
  EXPECT_EQ(in_use(), 2U);
  Live again = computed(token_range(0, 10));  // the bytes are right
  end(again);
  expect_all_free();
}

TEST_F(CachePublish, PublishingThePromptAtTheEndLeavesTheOutputOut) {
  Live live = computed(token_range(0, 6), {.publish = Publish::None});
  for (TokenId token = 50; token < 58; ++token) {
    append(live, {token});
    run(live);
  }
  ASSERT_TRUE(cache_->end(live.sequence, Publish::Prompt));
  EXPECT_EQ(cached_tokens(live.tokens), 4U);  // the second page ends with output
  EXPECT_EQ(in_use(), 1U);
}

TEST_F(CachePublish, WhatIsCachedAlreadyStays) {
  Live live = computed(token_range(0, 9));
  ASSERT_TRUE(cache_->end(live.sequence, Publish::None));
  EXPECT_EQ(cached_tokens(live.tokens), 8U);
}

TEST_F(CachePublish, PagesThatAForkSharesStayPrivate) {
  Live live = computed(token_range(0, 17), {.publish = Publish::None});
  Live fork = forked(live, 6);  // shares the first page, and the second in part
  ASSERT_TRUE(cache_->end(live.sequence, Publish::All));
  EXPECT_EQ(cached_tokens(live.tokens), 0U);
  expect_good(fork);
  ASSERT_TRUE(cache_->end(fork.sequence, Publish::All));
  EXPECT_EQ(cached_tokens(fork.tokens), 8U);
  expect_all_free();
}

TEST_F(CachePublish, TwinsOfCachedPagesAreNotPublishedTwice) {
  Live first = computed(token_range(0, 8), {
                                               .publish = Publish::None,
                                           });
  Live second = computed(token_range(0, 8));
  ASSERT_TRUE(cache_->end(first.sequence, Publish::All));
  EXPECT_EQ(stats().sealed_pages, 2U);
  EXPECT_EQ(stats().duplicate_page_total, 2U);
  end(second);
  expect_all_free();
}

TEST_F(CachePublish, WithAStepInFlightItHappensWhenThatIsFinished) {
  Live live = computed(token_range(0, 7), {.publish = Publish::None});
  append(live, {7});
  const Step step = plan({{&live.sequence, 0}});
  compute(step, 0, live.tokens);
  ASSERT_TRUE(cache_->end(live.sequence, Publish::All));
  EXPECT_EQ(cached_tokens(live.tokens), 0U);
  finish(step, {{}});
  EXPECT_EQ(cached_tokens(live.tokens), 8U);
  expect_all_free();
}

TEST_F(CachePublish, TokensThatSawOnlyTheirWindowAreNeverPublished) {
  Live live = computed(token_range(0, 8), {.publish = Publish::None});
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 12, .sink_tokens = 4}));
  for (TokenId token = 8; token < 24; ++token) {
    append(live, {token});
    run(live);
  }
  ASSERT_TRUE(cache_->end(live.sequence, Publish::All));
  EXPECT_EQ(cached_tokens(live.tokens), 4U);  // the sink; what follows has left the window
  expect_all_free();
}

TEST_F(CachePublish, BehindAHoleInTheCachedPartNothingIsPublished) {
  Live live = computed(token_range(0, 12), {.publish = Publish::Prompt});
  append(live, token_range(12, 12));
  run(live);
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 24, .sink_tokens = 4}));
  for (TokenId token = 24; token < 40; ++token) {
    append(live, {token});
    run(live);
  }
  ASSERT_TRUE(cache_->end(live.sequence, Publish::All));
  EXPECT_EQ(cached_tokens(live.tokens), 12U);
  expect_all_free();
}

using CacheExpected = SequenceChangesTest;

TEST_F(CacheExpected, AdmitWaitsUntilThePagesForItAreThere) {
  open(changes_config(8));
  Live first =
      computed(token_range(0, 4), {.publish = Publish::None, .expected_tokens = 20});  // 5 pages, 1 of them held
  const std::vector<TokenId> prompt = token_range(100, 4);
  Sequence second = *cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 16});
  const std::vector<const Sequence*> sequences = {&first.sequence, &second};
  const std::string before = dump(*cache_, sequences);
  const auto refused = cache_->admit(second);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(
      refused.error().message,
      "sequence 1 expects 16 tokens, which need 4 pages more; 7 are free or can be evicted, and admitted sequences "
      "expect 4 of them");
  EXPECT_EQ(dump(*cache_, sequences), before);
  Sequence third = *cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 12});
  EXPECT_TRUE(cache_->admit(third));
  end(first);
  EXPECT_TRUE(cache_->admit(second));
}

TEST_F(CacheExpected, WhatIsCachedNeedsNoPages) {
  open(changes_config(8));
  Live cached = computed(token_range(0, 24));
  end(cached);
  Live other = computed(token_range(100, 4), {.publish = Publish::None});
  const std::vector<TokenId> prompt = token_range(0, 24);
  Sequence fits = *cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 28});
  EXPECT_TRUE(cache_->admit(fits));
  Sequence more = *cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 28});
  EXPECT_FALSE(cache_->admit(more));
}

// A prompt that begins like a cached document pins what it has in common with it, and not the rest.
TEST_F(CacheExpected, APartOfAPageHoldsThatPageOnly) {
  open(changes_config(8));
  Live document = computed(token_range(0, 24));
  end(document);
  std::vector<TokenId> prompt = token_range(0, 6);  // a page and half of the next one
  prompt.push_back(999);
  Sequence first = *cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 8});
  EXPECT_EQ(cache_->admit(first)->partial_tokens, 2U);
  EXPECT_EQ(stats().pinned_pages, 2U);
  EXPECT_EQ(stats().evictable_pages, 4U);
  const std::vector<TokenId> other = token_range(100, 20);  // 5 pages: one is expected by the first, 6 are to be had
  Sequence second = *cache_->begin(space_, {.tokens = other}, {.expected_tokens = 20});
  EXPECT_TRUE(cache_->admit(second));
}

TEST_F(CacheExpected, AWindowExpectsNoMoreThanItHolds) {
  open(changes_config(8));
  const std::vector<TokenId> prompt = token_range(0, 8);
  Sequence sequence = *cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 32});
  ASSERT_TRUE(cache_->set_window(sequence, {.visible_tokens = 12, .sink_tokens = 4}));
  Live other = computed(token_range(100, 12), {.publish = Publish::None});
  EXPECT_TRUE(cache_->admit(sequence));
}

TEST_F(CacheExpected, APreemptedSequenceWaitsLikeABegunOne) {
  open(changes_config(8));
  Live live = computed(token_range(0, 4), {.publish = Publish::None, .expected_tokens = 24});
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  Live other = computed(token_range(100, 12), {.publish = Publish::None});
  const auto refused = cache_->resume(live.sequence);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  end(other);
  EXPECT_TRUE(cache_->resume(live.sequence));
}

TEST_F(CacheExpected, LessThanThePromptOrMoreThanTheLimitIsRefused) {
  const std::vector<TokenId> prompt = token_range(0, 8);
  const auto less = cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 7});
  ASSERT_FALSE(less.has_value());
  EXPECT_EQ(less.error().message,
            "expected_tokens is 7, less than the prompt of 8 tokens; count prompt and output together");
  const auto more = cache_->begin(space_, {.tokens = prompt}, {.expected_tokens = 257});
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().message, "expected_tokens is 257; context_tokens_max is 256");
}

}  // namespace
}  // namespace quire
