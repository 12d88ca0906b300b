// SPDX-License-Identifier: Apache-2.0
//
// Why a request had to compute: one test for each reason, with what the statistics make of it.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheMisses : public TiersTest {
 protected:
  void SetUp() override { open_tiers(tiers_config(24, 48, WritePolicy::WriteThrough)); }

  /// Admits a request, lets everything move, and tells what its miss was when it began to run. The statistics count
  /// it once, with the tokens that it computes.
  [[nodiscard]] Miss miss_of(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    const Stats before = stats();
    Live live = admitted(tokens, options);
    settle();
    const Miss miss = view(live).miss;
    expect_counted(before, miss.reason, static_cast<std::uint32_t>(tokens.size()) - view(live).computed_tokens);
    finish(live);
    settle();
    return miss;
  }
  void expect_counted(const Stats& before, MissReason reason, std::uint64_t token_count) const {
    for (std::size_t i = 0; i < kMissReasonCount; ++i) {
      const bool is_it = i == static_cast<std::size_t>(reason);
      EXPECT_EQ(stats().miss_requests[i] - before.miss_requests[i], is_it ? 1U : 0U) << i;
      EXPECT_EQ(stats().miss_tokens[i] - before.miss_tokens[i], is_it ? token_count : 0U) << i;
    }
  }
};

TEST_F(CacheMisses, NoneWhenEveryWholePageWasFound) {
  serve(token_range(0, 17));
  EXPECT_EQ(miss_of(token_range(0, 17)).reason, MissReason::None);
  EXPECT_EQ(stats().miss_tokens[static_cast<std::size_t>(MissReason::None)], 1U);
  ASSERT_TRUE(cache_->reclaim(99));
  EXPECT_EQ(miss_of(token_range(0, 18)).reason, MissReason::None);  // loaded
}

TEST_F(CacheMisses, NeverSeenWhenNobodyHasComputedIt) {
  EXPECT_EQ(miss_of(token_range(0, 17)).reason, MissReason::NeverSeen);
  EXPECT_EQ(miss_of(token_range(0, 24)).reason, MissReason::NeverSeen);  // behind what is known
}

TEST_F(CacheMisses, EvictedTellsTheTierAndTheAge) {
  open_tiers(tiers_config(24, 48, WritePolicy::Selective));  // nothing is copied after one use
  serve(token_range(0, 16));
  ASSERT_TRUE(cache_->advance(1'000));
  ASSERT_TRUE(cache_->reclaim(99));
  now_ = 5'000;
  apply({});
  const Miss miss = miss_of(token_range(0, 16));
  EXPECT_EQ(miss.reason, MissReason::Evicted);
  EXPECT_EQ(miss.tier, Tier::Device);
  EXPECT_EQ(miss.age_ns, 4'000);
}

TEST_F(CacheMisses, EvictedTellsThatTheHostWasTheLast) {
  open_tiers(tiers_config(24, 4, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 16));
  now_ = 100;
  apply({});
  put_on_host(token_range(100, 16));
  now_ = 107;
  apply({});
  const Miss miss = miss_of(token_range(0, 16));
  EXPECT_EQ(miss.reason, MissReason::Evicted);
  EXPECT_EQ(miss.tier, Tier::Host);
  EXPECT_EQ(miss.age_ns, 7);
}

TEST_F(CacheMisses, LoadFailedWhenItDidNotArrive) {
  put_on_host(token_range(0, 16));
  const Stats before = stats();
  Live live = admitted(token_range(0, 16));
  EXPECT_EQ(view(live).miss.reason, MissReason::None);  // as far as can be told
  mover_->take();
  apply({mover_->fail_it(0, TransferOutcome::Failed)});
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadFailed);
  expect_counted(before, MissReason::LoadFailed, 16);
  end(live);
  EXPECT_EQ(miss_of(token_range(0, 16)).reason, MissReason::None);  // a second try
}

TEST_F(CacheMisses, LoadFailedForThoseWhoComeAfterABadPage) {
  put_on_host(token_range(0, 16));
  for (auto& [id, page] : mover_->host_pages) page.is_bad = true;
  Live live = admitted(token_range(0, 16));
  settle();
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadFailed);
  end(live);
  EXPECT_EQ(stats().host_only_pages, 0U);
  const Stats before = stats();
  live = admitted(token_range(0, 16));
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadFailed);
  expect_counted(before, MissReason::LoadFailed, 16);
  end(live);
}

TEST_F(CacheMisses, LoadTimedOutWhenItWasLate) {
  put_on_host(token_range(0, 16));
  const Stats before = stats();
  Live live = admitted(token_range(0, 16), {.prefetch = Prefetch::Timeout, .load_timeout_ns = 10});
  now_ = 10;
  apply({});
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadTimedOut);
  expect_counted(before, MissReason::LoadTimedOut, 16);
  end(live);
}

TEST_F(CacheMisses, LoadCancelledWhenSomebodyCalledItOff) {
  put_on_host(token_range(0, 16));
  const Stats before = stats();
  Live live = admitted(token_range(0, 16));
  ASSERT_TRUE(cache_->stop_loading(live.sequence));
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadCancelled);
  expect_counted(before, MissReason::LoadCancelled, 16);
  end(live);
  ASSERT_TRUE(cache_->pause_transfers().value());
  EXPECT_EQ(miss_of(token_range(0, 16)).reason, MissReason::LoadCancelled);
  ASSERT_TRUE(cache_->resume_transfers());
}

TEST_F(CacheMisses, RecomputeCheaperWhenALoadWouldTakeLonger) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.compute_ns_per_token = 7;  // loading takes 8, as this mover measures it
  open_tiers(std::move(config));
  put_on_host(token_range(0, 16));
  put_on_host(token_range(100, 16));
  EXPECT_EQ(miss_of(token_range(0, 16)).reason, MissReason::None);  // nothing was measured before
  EXPECT_DOUBLE_EQ(stats().load_bytes_per_ns, 1.0);
  EXPECT_EQ(lookup(token_range(100, 16)).host_tokens, 16U);
  EXPECT_EQ(miss_of(token_range(100, 16)).reason, MissReason::RecomputeCheaper);
}

TEST_F(CacheMisses, WhatIsQueuedCountsAgainstALoad) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.compute_ns_per_token = 12;  // one load is worth it, two at once are not
  open_tiers(std::move(config));
  for (TokenId i = 0; i < 3; ++i) put_on_host(token_range(100 * i, 16));
  EXPECT_EQ(miss_of(token_range(0, 16)).reason, MissReason::None);
  Live first = admitted(token_range(100, 16));
  Live second = admitted(token_range(200, 16));
  EXPECT_TRUE(view(first).is_loading);
  EXPECT_FALSE(view(second).is_loading);
  EXPECT_EQ(view(second).miss.reason, MissReason::RecomputeCheaper);
  settle();
  EXPECT_EQ(view(first).computed_tokens, 16U);
  finish(first);
  finish(second);
}

TEST_F(CacheMisses, KeySpaceDiffersWhenAnotherHasTheFirstPage) {
  for (const bool is_on_host : {false, true}) {
    serve(token_range(0, 16));
    ASSERT_TRUE(cache_->reclaim(is_on_host ? 99 : 0));
    const KeySpaceId other = cache_->key_space({.model = is_on_host ? "second" : "first"}).value();
    const std::vector<TokenId> tokens = token_range(0, 16);
    const Stats before = stats();
    Sequence sequence = cache_->begin(other, {.tokens = tokens}).value();
    EXPECT_EQ(cache_->admit(sequence)->miss.reason, MissReason::KeySpaceDiffers);
    expect_counted(before, MissReason::KeySpaceDiffers, 16);
    ASSERT_TRUE(cache_->end(sequence));
  }
}

TEST_F(CacheMisses, PartialPageWhenTooLittleOfItIsTheSame) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.partial_reuse_min_tokens = 3;
  open_tiers(std::move(config));
  serve(token_range(0, 8));
  std::vector<TokenId> tokens = token_range(0, 8);
  tokens[6] = 999;
  EXPECT_EQ(miss_of(tokens).reason, MissReason::PartialPage);
  tokens.resize(6);
  Live live = admitted(tokens);
  EXPECT_EQ(view(live).miss.reason, MissReason::PartialPage);
  end(live);
}

TEST_F(CacheMisses, NotAskedWhenTheOptionsExcludeIt) {
  serve(token_range(0, 16));
  EXPECT_EQ(miss_of(token_range(0, 16), {.use_cache = false}).reason, MissReason::NotAsked);
  EXPECT_EQ(miss_of(token_range(0, 16), {.match_tokens_max = 8}).reason, MissReason::NotAsked);
  ASSERT_TRUE(cache_->reclaim(99));
  EXPECT_EQ(miss_of(token_range(0, 16), {.tier_max = Tier::Device}).reason, MissReason::NotAsked);
}

TEST_F(CacheMisses, UnknownBeyondWhatIsRemembered) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::Selective);
  config.lost_page_count_max = 2;
  open_tiers(std::move(config));
  EXPECT_EQ(miss_of(token_range(500, 16)).reason, MissReason::NeverSeen);
  serve(token_range(0, 16));
  ASSERT_TRUE(cache_->reclaim(99));  // eight pages are lost, two remembered
  EXPECT_EQ(miss_of(token_range(700, 16)).reason, MissReason::Unknown);

  open_tiers([] {
    CacheConfig alone = test_config(4, 24);
    alone.lost_page_count_max = 0;
    alone.host.page_count = 4;
    alone.host.external_mover = true;
    return alone;
  }());
  EXPECT_EQ(miss_of(token_range(0, 16)).reason, MissReason::Unknown);  // nothing is remembered at all
}

}  // namespace
}  // namespace quire
