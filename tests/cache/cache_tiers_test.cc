// SPDX-License-Identifier: Apache-2.0
//
// The host tier, one behaviour at a time: what is written, when, what comes back, and what happens when it does not.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

using CacheTiers = TiersTest;

TEST_F(CacheTiers, WhatTheDeviceHasNoRoomForComesBackFromTheHost) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough}) {
    open_tiers(tiers_config(8, 32, policy));
    for (TokenId i = 0; i < 6; ++i) EXPECT_EQ(serve(token_range(100 * i, 17)), 0U);
    EXPECT_GT(stats().host_only_pages, 10U);
    EXPECT_EQ(serve(token_range(0, 17)), 16U);
    EXPECT_EQ(serve(token_range(100, 17)), 16U);
    EXPECT_EQ(stats().host_hit_tokens, 32U);
    EXPECT_EQ(stats().lost_page_total, 0U);
  }
}

TEST_F(CacheTiers, RandomRequestsFindRightBytes) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    open_tiers(tiers_config(12, 24, policy));
    std::uint64_t state = 7;
    for (int i = 0; i < 600; ++i) {
      state = mix64(state);
      std::vector<TokenId> tokens;
      for (std::uint32_t k = 0; k < 1 + (state % 5); ++k) {
        const auto part = token_range(static_cast<TokenId>(10 * ((state >> (8 * (k + 1))) % 3)), 4 + (state >> 50) % 5);
        tokens.insert(tokens.end(), part.begin(), part.end());
      }
      serve(tokens);
    }
    EXPECT_GT(stats().host_hit_tokens, 100U);
    EXPECT_TRUE(cache_->reset());
    EXPECT_EQ(stats().free_pages, 12U);
    EXPECT_EQ(stats().host_free_pages, 24U);
  }
}

// What the simulation found

TEST_F(CacheTiers, LookupTellsWhatTheHostHas) {
  open_tiers(tiers_config(8, 32));
  for (TokenId i = 0; i < 4; ++i) serve(token_range(100 * i, 17));
  const std::vector<TokenId> tokens = token_range(0, 17);
  const Lookup found = cache_->lookup(space_, {.tokens = tokens}).value();
  EXPECT_GT(found.host_tokens, 0U);
  EXPECT_EQ(found.matched_tokens + found.host_tokens, 16U);
  EXPECT_EQ(cache_->lookup(space_, {.tokens = tokens}, {.tier_max = Tier::Device})->host_tokens, 0U);
}

}  // namespace
}  // namespace quire
