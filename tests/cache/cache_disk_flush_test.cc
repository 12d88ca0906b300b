// SPDX-License-Identifier: Apache-2.0
//
// What flush() promises: everything that is, or some day would be, written is on disk and stays there, or flush() says
// that it is not.
#include <gtest/gtest.h>

#include "disk_fixture.h"

namespace quire {
namespace {

using Lane = DiskMover::Lane;

class CacheDiskFlush : public DiskTest {
 protected:
  /// A write_back host: nothing leaves the device before it must.
  [[nodiscard]] static CacheConfig back_config(std::uint32_t page_count, std::uint32_t host_page_count) {
    CacheConfig config = disk_config(page_count, host_page_count);
    config.host.write_policy = WritePolicy::WriteBack;
    return config;
  }
  [[nodiscard]] static CacheConfig selective_config(std::uint32_t page_count) {
    CacheConfig config = back_config(page_count, 32);
    config.disk.write_policy = WritePolicy::Selective;
    config.disk.write_hits_min = 2;
    return config;
  }
  /// Calls flush() until it fails or is done; false: it failed.
  [[nodiscard]] bool try_flush() {
    for (;;) {
      const Result<bool> done = cache_->flush();
      if (!done) return false;
      if (*done) return true;
      settle_all();
    }
  }
};

// Much is computed before the disk tier's threads get to work: names, reads and writes are all far behind.
TEST_F(CacheDiskFlush, AllThatIsCachedIsOnDiskHoweverFarBehindTheDiskTierIs) {
  constexpr TokenId kRequests = 30;
  const auto config = [](std::uint32_t host_page_count) {
    CacheConfig made = disk_config(3'100, host_page_count);
    made.context_tokens_max = 1'608;
    made.step_tokens_max = 1'608;
    return made;
  };
  open_disk(config(60));
  for (TokenId i = 0; i < kRequests; ++i) {
    Live live = admitted(token_range(10'000 * i, 1'600), {.tier_max = Tier::Host});  // asks the disk nothing
    step(live.sequence, live.tokens);
    settle();
    end(live);
  }
  EXPECT_EQ(stats().sealed_pages, 3'000U);
  flush();
  EXPECT_EQ(cache_->disk_status()->page_count, 3'000U);
  open_disk(config(200));
  for (TokenId i = 0; i < kRequests; ++i) EXPECT_EQ(serve_all(token_range(10'000 * i, 1'600)), 1'600U) << i;
}

TEST_F(CacheDiskFlush, MoreThanTheHostHoldsGoesThroughIt) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough}) {
    for (const std::uint32_t transfer_pages : {2U, 64U}) {
      close();
      disk_ = std::make_unique<testing::SimDisk>(1);
      CacheConfig config = disk_config(40, 8);
      config.host.write_policy = policy;
      config.host.transfer_pages_max = transfer_pages;
      open_disk(std::move(config));
      for (const std::vector<TokenId>& tokens : {token_range(0, 384), token_range(1'000, 96)}) {
        Live live = admitted(tokens);
        while (run_lane(Lane::Names)) continue;
        step(live.sequence, live.tokens);
        settle();  // the disk is slow: nothing has been written
        end(live);
      }
      flush();
      EXPECT_EQ(cache_->disk_status()->page_count, 30U);
      open_disk(back_config(40, 40));
      EXPECT_EQ(serve_all(token_range(0, 384)), 384U);
      EXPECT_EQ(serve_all(token_range(1'000, 96)), 96U);
    }
  }
}

TEST_F(CacheDiskFlush, PagesWhoseTreeWasCommittedAreCovered) {
  CacheConfig config = back_config(40, 32);
  config.tree_tokens_max = 16;
  open_disk(std::move(config));
  Live live = computed_all(token_range(0, 14));
  // Two branches of a tree, and the second one is taken: its tokens move to where the path goes on.
  const std::vector<TokenId> tokens = {501, 601, 602, 603};
  const std::vector<std::int32_t> parents = {-1, -1, 1, 2};
  const StepEntry entry{.sequence = &live.sequence, .tree_parents = parents};
  const Step planned = *cache_->plan_step({&entry, 1})->step;
  const StepResult result{.tokens = tokens};
  ASSERT_TRUE(cache_->finish_step(planned, {&result, 1}));
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 3));
  end(live);  // and no step comes that would make the moves
  flush();
  EXPECT_EQ(cache_->disk_status()->page_count, 1U);
}

TEST_F(CacheDiskFlush, PagesThatDidNotReachTheHostMakeItFail) {
  open_disk(back_config(40, 32));
  (void)serve_all(token_range(0, 64));
  ASSERT_FALSE(cache_->flush().value());
  mover_->take();
  apply({mover_->fail_it(0, TransferOutcome::Failed)});
  settle_all();
  Result<bool> done = cache_->flush();
  while (done && !*done) {
    settle_all();
    done = cache_->flush();
  }
  expect_error(done, ErrorCode::Io, "did not reach the host");
  EXPECT_TRUE(try_flush());
  EXPECT_EQ(cache_->disk_status()->page_count, 4U);
}

TEST_F(CacheDiskFlush, WhatTheBudgetDoesNotAllowIsLeftAndFlushEnds) {
  CacheConfig config = back_config(40, 8);
  config.disk.write_bytes_per_day = std::uint64_t{24} * 20 * 4096;
  open_disk(std::move(config));
  EXPECT_EQ(serve_all(token_range(0, 384)), 0U);
  flush();
  const std::uint64_t pages = cache_->disk_status()->page_count;
  EXPECT_GT(pages, 0U);
  EXPECT_LT(pages, 24U);
  open_disk(back_config(40, 40));
  EXPECT_EQ(serve_all(token_range(0, 384)), pages * kPageTokens) << "the first ones: others could not be found";
}

TEST_F(CacheDiskFlush, WhatWasUsedOftenIsSelectedWhereverItIs) {
  open_disk(selective_config(40));
  for (int i = 0; i < 4; ++i) (void)serve_all(token_range(0, 64));
  (void)serve_all(token_range(1'000, 64));
  EXPECT_EQ(stats().disk_stored_page_total, 0U) << "nothing has left the device";
  flush();
  EXPECT_EQ(stats().disk_stored_page_total, 4U);
  open_disk(selective_config(40));
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
  EXPECT_EQ(serve_all(token_range(1'000, 64)), 0U);
}

TEST_F(CacheDiskFlush, WhatWasUsedOftenIsSelectedWhenItLeavesTheDevice) {
  CacheConfig config = selective_config(10);
  config.context_tokens_max = 128;
  config.host.clean_reserve_pages = 5;
  open_disk(std::move(config));
  for (int i = 0; i < 4; ++i) (void)serve_all(token_range(0, 64));
  for (TokenId i = 1; i < 4; ++i) (void)serve_all(token_range(1'000 * i, 64));
  EXPECT_EQ(stats().disk_stored_page_total, 4U);
}

TEST_F(CacheDiskFlush, AWriteThatFailsMakesItFailAndTheNextOneIsDone) {
  open_disk(back_config(40, 32));
  (void)serve_all(token_range(0, 64));
  disk_->fail_once(testing::SimOperation::Write, 2);
  EXPECT_FALSE(try_flush());
  EXPECT_TRUE(stats().disk_is_on);
  EXPECT_TRUE(try_flush());
  EXPECT_EQ(cache_->disk_status()->page_count, 4U);
  open_disk(back_config(40, 32));
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
}

TEST_F(CacheDiskFlush, PagesThatASyncLostAreWrittenAnew) {
  open_disk(back_config(40, 32));
  (void)serve_all(token_range(0, 64));
  disk_->fail_once(testing::SimOperation::SyncFile);
  EXPECT_FALSE(try_flush());
  EXPECT_TRUE(try_flush());
  std::unique_ptr<testing::SimDisk> next = disk_->crash(1);
  close();
  disk_ = std::move(next);
  open_disk(back_config(40, 32));
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
}

TEST_F(CacheDiskFlush, ABadHostPageCostsNoOthers) {
  open_disk(disk_config());
  Live live = computed_all(token_range(0, 128));
  settle();  // on the host, and on the way to disk
  auto bad = mover_->host_pages.begin();
  std::advance(bad, 3);
  bad->second.is_bad = true;
  end(live);
  settle_all();
  EXPECT_TRUE(try_flush());
  EXPECT_EQ(cache_->disk_status()->page_count, 7U);
}

TEST_F(CacheDiskFlush, WhatIsDroppedMeanwhileIsCovered) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  ASSERT_FALSE(cache_->flush().value());
  while (run_lane(Lane::Names)) continue;
  ASSERT_TRUE(CacheForTests::disk(*cache_).run(Lane::Write));  // synced, and the cache has not heard of it
  ASSERT_TRUE(cache_->drop(space_));
  hear();
  flush();
  std::unique_ptr<testing::SimDisk> next = disk_->crash(1);
  close();
  disk_ = std::move(next);
  open_disk(disk_config());
  EXPECT_EQ(serve_all(token_range(0, 64)), 0U);
}

}  // namespace
}  // namespace quire
