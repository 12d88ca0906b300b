// SPDX-License-Identifier: Apache-2.0
//
// Lower tiers that keep the history in extents: several consecutive pages, written and found as a whole. A MemoryTier
// checks that every store has whole extents of one path each.
#include <algorithm>
#include <vector>

#include "lower_tiers_fixture.h"

namespace quire {
namespace {

class ExtentsTest : public LowerTiersTest {
 protected:
  ExtentsTest() { extent_pages_ = 4; }
  [[nodiscard]] static CacheConfig extents_config(WritePolicy host_policy = WritePolicy::WriteThrough) {
    CacheConfig config = tiers_config(64, 64, host_policy);
    config.host.transfer_pages_max = 10;
    return config;
  }
  void open_extents(const LowerSettings& settings = {}) { open_lowers({settings}, extents_config()); }
  [[nodiscard]] static std::vector<TokenId> pages_of(std::uint32_t page_count, TokenId first = 0) {
    return token_range(first, page_count * kPageTokens);
  }
  /// Computed, cached in memory, and written as far as that goes.
  void cache_tokens(const std::vector<TokenId>& tokens) {
    Live live = admitted(tokens);
    settle_lowers();
    finish(live);
    settle_lowers();
  }
  /// The host gets none of it.
  void cache_without_copies(const std::vector<TokenId>& tokens) {
    Live live = admitted(tokens);
    settle_lowers();
    step(live.sequence, live.tokens);
    for (mover_->take(); !mover_->waiting.empty(); mover_->take()) {
      apply({mover_->fail_it(0, TransferOutcome::Failed)});
    }
    end(live);
  }
  void flush_lowers() {
    Result<bool> flushed = cache_->flush();
    for (int i = 0; i < 9 && flushed && !*flushed; ++i, flushed = cache_->flush()) settle_lowers();
    ASSERT_TRUE(flushed.has_value());
    EXPECT_TRUE(*flushed);
  }
};

TEST_F(ExtentsTest, AnExtentIsWrittenOnceItsLastPageIsThere) {
  open_extents();
  cache_tokens(pages_of(3));
  EXPECT_EQ(near().page_count(), 0U);
  EXPECT_EQ(stats().disk_waiting_pages, 0U);
  cache_tokens(pages_of(6));
  EXPECT_EQ(near().page_count(), 4U);
  cache_tokens(pages_of(8));
  EXPECT_EQ(near().page_count(), 8U);
  EXPECT_EQ(near().stored_page_count, 8U);
  EXPECT_EQ(stats().disk_stored_page_total, 8U);
}

TEST_F(ExtentsTest, AHitEndsWhereAnExtentEnds) {
  open_extents();
  std::vector<TokenId> tokens = pages_of(11);
  cache_tokens(tokens);
  forget_memory();
  EXPECT_EQ(serve_from_below(tokens), 8 * kPageTokens);
  tokens[6 * kPageTokens] += 1;  // the second extent ends with another page
  EXPECT_EQ(serve_from_below(tokens), 4 * kPageTokens);
  EXPECT_EQ(serve_from_below(pages_of(7)), 4 * kPageTokens);
}

TEST_F(ExtentsTest, PathsThatPartInsideAnExtentHaveAnExtentEach) {
  open_extents();
  std::vector<TokenId> first = pages_of(8);
  std::vector<TokenId> second = first;
  second[7 * kPageTokens] += 1;
  cache_tokens(first);
  cache_tokens(second);
  EXPECT_EQ(near().page_count(), 12U);  // three extents
  forget_memory();
  EXPECT_EQ(serve_from_below(first), 8 * kPageTokens);
  EXPECT_EQ(serve_from_below(second), 8 * kPageTokens);
}

// The host gets the last pages first, and the pages before them later, by a flush.
TEST_F(ExtentsTest, AnExtentWaitsForAPageThatTheHostLacks) {
  open_extents();
  cache_without_copies(pages_of(2));
  cache_tokens(pages_of(4));
  EXPECT_EQ(stats().host_copy_pages, 2U);
  EXPECT_EQ(near().page_count(), 0U);
  flush_lowers();
  EXPECT_EQ(stats().host_copy_pages, 4U);
  EXPECT_EQ(near().page_count(), 4U);
}

// Both branches of an extent wait for the same page.
TEST_F(ExtentsTest, APageThatComesLateCompletesAllExtentsThatHaveIt) {
  open_extents();
  cache_without_copies(pages_of(2));
  std::vector<TokenId> other = pages_of(4);
  other[3 * kPageTokens] += 1;
  cache_tokens(pages_of(4));
  cache_tokens(other);
  EXPECT_EQ(near().page_count(), 0U);
  flush_lowers();
  EXPECT_EQ(near().page_count(), 8U);
}

TEST_F(ExtentsTest, AnExtentThatLostAPageBeforeItsTurnIsLeft) {
  open_lowers({{.write_policy = WritePolicy::WriteBack}}, extents_config());
  cache_tokens(pages_of(4));
  ASSERT_EQ(stats().disk_waiting_pages, 4U);
  forget_memory();
  EXPECT_EQ(stats().disk_waiting_pages, 0U);
  flush_lowers();
  EXPECT_EQ(near().page_count(), 0U);
}

TEST_F(ExtentsTest, LoadsEndWithAnExtent) {
  open_extents();
  cache_tokens(pages_of(16));
  forget_memory();
  EXPECT_EQ(serve_from_below(token_range(0, (16 * kPageTokens) + 1)), 16 * kPageTokens);
  // Of ten pages at most: 8 and 8, and not 10 and 6.
  EXPECT_EQ(near().load_page_counts, (std::vector<std::size_t>{8, 8}));
}

TEST_F(ExtentsTest, ALoadBeginsInsideAnExtentWhereMemoryEnds) {
  open_extents();
  cache_tokens(pages_of(8));
  forget_memory();
  cache_tokens(pages_of(2));
  EXPECT_EQ(serve_from_below(token_range(0, (8 * kPageTokens) + 1)), 8 * kPageTokens);
  EXPECT_EQ(near().load_page_counts, (std::vector<std::size_t>{6}));
}

TEST_F(ExtentsTest, AFlushDoesNotWaitForAnExtentThatIsNotFull) {
  for (const WritePolicy policy : {WritePolicy::WriteThrough, WritePolicy::WriteBack}) {
    open_lowers({{.write_policy = policy}}, extents_config());
    cache_tokens(pages_of(7));
    flush_lowers();
    EXPECT_EQ(near().page_count(), 4U);
    EXPECT_EQ(near().flush_count, 1U);
  }
}

TEST_F(ExtentsTest, SelectiveTiersGetExtentsThatAreUsedAgain) {
  open_extents({.write_policy = WritePolicy::Selective, .write_hits_min = 2});
  for (const std::uint32_t written : {0U, 0U, 4U}) {
    cache_tokens(pages_of(5));
    EXPECT_EQ(near().page_count(), written);
  }
}

TEST_F(ExtentsTest, ABudgetIsSpentByWholeExtents) {
  // A share of an hour is 12 pages, of which new ones may take half: one extent.
  open_extents({.write_bytes_per_day = 24 * 12 * kPageCost});
  cache_tokens(pages_of(16));
  EXPECT_EQ(near().page_count(), 4U);
  cache_tokens(pages_of(16));
  cache_tokens(pages_of(16));  // used twice: the rest
  EXPECT_EQ(near().page_count(), 12U);
}

// What was written is read again for another extent that has it, and stays what it is.
TEST_F(ExtentsTest, AFailedExtentTakesNothingFromThoseThatAreThere) {
  open_extents();
  cache_tokens(pages_of(4));
  near().faults.failed_stores = 100;
  std::vector<TokenId> other = pages_of(4);
  other[3 * kPageTokens] += 1;
  cache_tokens(other);
  near().faults.failed_stores = 0;
  flush_lowers();  // tries it again
  EXPECT_EQ(near().page_count(), 8U);
  forget_memory();
  EXPECT_EQ(stats().lost_page_total, 0U);
  EXPECT_EQ(serve_from_below(token_range(0, (4 * kPageTokens) + 1)), 4 * kPageTokens);
}

// The near tier has pages in fours, the far one has them one by one.
TEST_F(ExtentsTest, WhatExtentsLeaveOutAnotherTierBrings) {
  extents_by_tier_ = {4, 1};
  open_lowers({{}, {}}, extents_config());
  const std::vector<TokenId> tokens = token_range(0, (7 * kPageTokens) + 1);
  cache_tokens(tokens);
  EXPECT_EQ(near().page_count(), 4U);
  EXPECT_EQ(far().page_count(), 7U);
  forget_memory();
  EXPECT_EQ(serve_from_below(tokens), 7 * kPageTokens);
  EXPECT_EQ(near().loaded_page_count, 4U);
  EXPECT_EQ(far().loaded_page_count, 3U);
}

}  // namespace
}  // namespace quire
