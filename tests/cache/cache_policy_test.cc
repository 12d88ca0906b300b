// SPDX-License-Identifier: Apache-2.0
//
// Policies through the public calls: priorities and times of sequences, and every policy under load with real bytes.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/cache/cache_fixture.h"

namespace quire {
namespace {

class CachePriority : public CacheTest {
 protected:
  CachePriority() {
    CacheConfig config = test_config(4, 4);
    config.policy = "priority";
    open(std::move(config));
  }
};

TEST_F(CachePriority, WhatLowerPrioritiesUsedGoesFirst) {
  run_request(token_range(100, 8), {.priority = 1});
  run_request(token_range(200, 8));
  run_request(token_range(300, 8));  // needs two pages
  EXPECT_EQ(run_request(token_range(100, 8)), 8U);
  EXPECT_EQ(run_request(token_range(200, 8)), 0U);
}

TEST_F(CachePriority, AfterItsTimeWhatWasImportantGoesFirst) {
  run_request(token_range(100, 8), {.priority = 5, .ttl_ns = 10});
  run_request(token_range(200, 8));
  ASSERT_TRUE(cache_->advance(10).has_value());
  run_request(token_range(300, 8));
  EXPECT_EQ(run_request(token_range(200, 8)), 8U);
  EXPECT_EQ(run_request(token_range(100, 8)), 0U);
}

TEST_F(CachePriority, TheTimeCountsFromTheLastUse) {
  run_request(token_range(100, 8), {.priority = 5, .ttl_ns = 10});
  run_request(token_range(200, 8));
  ASSERT_TRUE(cache_->advance(9).has_value());
  run_request(token_range(100, 8), {.priority = 5, .ttl_ns = 10});
  ASSERT_TRUE(cache_->advance(18).has_value());
  run_request(token_range(300, 8));
  EXPECT_EQ(run_request(token_range(100, 8)), 8U);
}

TEST_F(CachePriority, TheLongestTimeLastsForEver) {
  ASSERT_TRUE(cache_->advance(1'000).has_value());
  run_request(token_range(100, 8), {.ttl_ns = INT64_MAX});
  run_request(token_range(200, 8), {.ttl_ns = INT64_MAX - 5});
  ASSERT_TRUE(cache_->advance(INT64_MAX - 1).has_value());
  run_request(token_range(300, 8));
  EXPECT_EQ(run_request(token_range(200, 8)), 8U) << "neither had expired, so the least recent went";
}

TEST_F(CachePriority, ATimeOfNothingIsRefused) {
  for (const TimeNs ttl_ns : {TimeNs{0}, TimeNs{-1}}) {
    const std::vector<TokenId> tokens = token_range(1, 4);
    expect_error(cache_->begin(space_, {.tokens = tokens}, {.ttl_ns = ttl_ns}), ErrorCode::InvalidArgument,
                 "ttl_ns is " + std::to_string(ttl_ns));
  }
}

TEST_F(CachePriority, WhatIsComputedTwiceAtOnceHasTheHigherPriority) {
  CacheConfig config = test_config(4, 6);
  config.policy = "priority";
  open(std::move(config));
  run_request(token_range(300, 8), {.priority = 5});
  // Two with one prompt, in flight together: the low one is done first, and the other finds its own pages in vain.
  std::vector<TokenId> tokens = token_range(100, 8);
  Sequence low = begin_admitted(tokens);
  Sequence high = begin_admitted(tokens, {.priority = 10});
  step(low, tokens);
  step(high, tokens);
  ASSERT_TRUE(cache_->end(high).has_value());
  ASSERT_TRUE(cache_->end(low).has_value());
  EXPECT_EQ(stats().duplicate_page_total, 2U);
  ASSERT_EQ(cache_->reclaim(2), 2U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 8U);
}

TEST_F(CachePriority, WhatIsAddedLaterRenewsWhatItStandsBehind) {
  CacheConfig config = test_config(4, 6);
  config.policy = "priority";
  open(std::move(config));
  run_request(token_range(300, 8), {.priority = 5});
  std::vector<TokenId> tokens = token_range(100, 4);
  Sequence sequence = begin_admitted(tokens, {.priority = 10, .ttl_ns = 100});
  step(sequence, tokens, {50, 51, 52, 53});
  ASSERT_TRUE(cache_->advance(60).has_value());
  step(sequence, tokens);  // the second page, which lasts until 160
  ASSERT_TRUE(cache_->end(sequence).has_value());
  ASSERT_TRUE(cache_->advance(110).has_value());
  ASSERT_EQ(cache_->reclaim(2), 2U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 8U);
}

TEST_F(CachePriority, BeingKeptLeavesNoPriorityBehind) {
  const std::vector<TokenId> tokens = token_range(100, 8);
  run_request(tokens, {.priority = -5});
  run_request(token_range(200, 8), {.priority = -1});
  ASSERT_TRUE(cache_->keep(space_, {.tokens = tokens}, 10).has_value());
  ASSERT_TRUE(cache_->advance(10).has_value());
  ASSERT_EQ(cache_->reclaim(2), 2U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens})->matched_tokens, 0U);
}

class CacheUnderEachPolicy : public CacheTest, public ::testing::WithParamInterface<std::string_view> {};

// The engine checks every byte it reads.
TEST_P(CacheUnderEachPolicy, ServesOverlappingRequestsFromASmallPool) {
  CacheConfig config = test_config(4, 24);
  config.policy = GetParam();
  open(std::move(config));
  std::uint32_t matched = 0;
  for (int i = 0; i < 600; ++i) {
    std::vector<TokenId> tokens = token_range(static_cast<TokenId>(mix64(i % 7) % 3) * 100, 12);
    const std::vector<TokenId> own = token_range(static_cast<TokenId>(mix64(i) % 20) * 1'000 + 1'000, 5 + (i % 40));
    tokens.insert(tokens.end(), own.begin(), own.end());
    matched += run_request(tokens, {.priority = static_cast<std::int8_t>(i % 3)});
  }
  EXPECT_GT(matched, 600U);
  EXPECT_GT(stats().evicted_page_total, 1'000U);
}

// A pool that shrinks and grows tells the policy, whose shares depend on it.
TEST_P(CacheUnderEachPolicy, OutlivesAResize) {
  CacheConfig config = test_config(1, 60);
  config.policy = GetParam();
  config.context_tokens_max = 20;
  open(std::move(config));
  for (const std::uint32_t page_count : {200U, 30U, 90U}) {
    for (int i = 0; i < 60; ++i) run_request(token_range(static_cast<TokenId>(mix64(i) % 9) * 50, 15 + (i % 5)));
    ASSERT_TRUE(cache_->reclaim(1'000).has_value());
    const Status status = cache_->resize(page_count);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  for (int i = 0; i < 60; ++i) run_request(token_range(static_cast<TokenId>(mix64(i) % 9) * 50, 15 + (i % 5)));
}

INSTANTIATE_TEST_SUITE_P(Each, CacheUnderEachPolicy, ::testing::ValuesIn(policy_names()),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace quire
