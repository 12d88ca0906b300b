// SPDX-License-Identifier: Apache-2.0
//
// What may happen while a sequence looks for its tokens on disk, step by step: others come, go, compute the same, the
// disk fails, time runs out.
#include <gtest/gtest.h>

#include "disk_fixture.h"

namespace quire {
namespace {

using Lane = DiskMover::Lane;

class CacheDiskEdges : public DiskTest {};

TEST_F(CacheDiskEdges, WhoeverMissesTheSamePageWaitsForTheSameFind) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  const std::uint64_t finds_before = stats().disk_find_count;
  Live first = admitted(token_range(0, 64));
  Live second = admitted(token_range(0, 64));
  std::vector<TokenId> other_tokens = token_range(0, 64);
  other_tokens[40] = 9;  // the same first page, not all of them
  Live third = admitted(other_tokens);
  EXPECT_EQ(stats().disk_find_count, finds_before + 1);
  EXPECT_TRUE(view(first).is_loading && view(second).is_loading && view(third).is_loading);
  settle_all();
  EXPECT_EQ(view(first).computed_tokens, 64U);
  EXPECT_EQ(view(second).computed_tokens, 64U);
  EXPECT_EQ(view(third).computed_tokens, 40U) << "two pages, and half of one";
  EXPECT_EQ(stats().disk_loaded_page_total, 4U);
  for (Live* const live : {&first, &second, &third}) {
    if (view(*live).pending_tokens > 0) step(live->sequence, live->tokens);
    end(*live);
  }
  settle_all();
}

TEST_F(CacheDiskEdges, OneThatJoinedLooksForItsOwnRest) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 96));
  const std::uint64_t finds_before = stats().disk_find_count;
  Live brief = admitted(token_range(0, 32));
  Live full = admitted(token_range(0, 96));
  EXPECT_EQ(stats().disk_find_count, finds_before + 1);
  settle_all();
  EXPECT_EQ(stats().disk_find_count, finds_before + 2);
  EXPECT_EQ(view(brief).computed_tokens, 32U);
  EXPECT_EQ(view(full).computed_tokens, 96U);
  EXPECT_EQ(view(full).disk_tokens, 96U) << "all of them, in two searches";
  end(brief);
  end(full);
}

TEST_F(CacheDiskEdges, WhatSomebodyComputesMeanwhileIsNotBroughtTwice) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  Live waiting = admitted(token_range(0, 64));
  EXPECT_EQ(stats().transfers_moving, stats().transfers_in_flight);
  ASSERT_TRUE(run_lane(Lane::Names));  // found: the load is on its way
  EXPECT_EQ(stats().transfers_moving + 1, stats().transfers_in_flight) << "the find waits for its load";
  Live hasty = admitted(token_range(0, 64), {.tier_max = Tier::Host});
  step(hasty.sequence, hasty.tokens);
  settle_all();
  EXPECT_EQ(view(waiting).computed_tokens, 64U);
  EXPECT_EQ(stats().disk_loaded_page_total, 0U);
  end(waiting);
  end(hasty);
  settle_all();
  expect_no_page_lost();
}

TEST_F(CacheDiskEdges, ASequenceThatEndsWhileItLooksLeavesNothing) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  for (const int lanes : {0, 1, 2}) {
    Live live = admitted(token_range(0, 64));
    if (lanes > 0) {
      ASSERT_TRUE(run_lane(Lane::Names));  // found
    }
    if (lanes > 1) {
      ASSERT_TRUE(run_lane(Lane::Names));
      ASSERT_TRUE(CacheForTests::disk(*cache_).run(Lane::Read));  // read, and the cache does not know
    }
    end(live);
    expect_invariants();
    settle_all();
    EXPECT_EQ(stats().transfers_in_flight, 0U);
    forget_memory();
  }
  expect_no_page_lost();
}

TEST_F(CacheDiskEdges, StopLoadingComputesAtOnce) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  Live live = admitted(token_range(0, 64));
  ASSERT_TRUE(cache_->stop_loading(live.sequence));
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadCancelled);
  settle_all();
  EXPECT_EQ(stats().disk_loaded_page_total, 0U);
  step(live.sequence, live.tokens);
  end(live);
  settle_all();
}

TEST_F(CacheDiskEdges, WhoWaitsNoLongerThanItsTimeTakesWhatThereIs) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  Live live = admitted(token_range(0, 64), {.prefetch = Prefetch::Timeout, .load_timeout_ns = 100});
  settle_all();  // what begin() asked for
  end(live);
  settle_all();
  forget_memory();
  now_ = 1'000;
  apply({});
  Live late = begun(token_range(0, 64), {.prefetch = Prefetch::Timeout, .load_timeout_ns = 100});
  ASSERT_TRUE(cache_->admit(late.sequence));
  now_ = 1'099;
  apply({});
  EXPECT_TRUE(view(late).is_loading);
  now_ = 1'100;
  apply({});
  EXPECT_FALSE(view(late).is_loading);
  EXPECT_EQ(view(late).miss.reason, MissReason::LoadTimedOut);
  step(late.sequence, late.tokens);
  end(late);
  settle_all();
}

TEST_F(CacheDiskEdges, PagesAreBroughtEarlyForOneThatHasBegun) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  Live live = begun(token_range(0, 64), {.prefetch = Prefetch::BestEffort});
  settle_all();
  EXPECT_EQ(stats().disk_loaded_page_total, 4U);
  EXPECT_EQ(lookup(token_range(0, 64)).matched_tokens, 64U);
  const Admission admission = cache_->admit(live.sequence).value();
  EXPECT_TRUE(admission.is_ready);
  EXPECT_EQ(admission.matched_tokens, 64U);
  EXPECT_EQ(admission.miss.reason, MissReason::None);
  end(live);
  settle_all();
}

TEST_F(CacheDiskEdges, WhatOthersHoldIsNotPushedOutByPagesThatAreBroughtEarly) {
  CacheConfig config = disk_config(8);
  config.context_tokens_max = 128;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 64));
  Live other = computed_all(token_range(1'000, 90), {.publish = Publish::None});  // 6 pages of 8
  Live live = begun(token_range(0, 64), {.prefetch = Prefetch::BestEffort});
  settle_all();
  EXPECT_EQ(lookup(token_range(0, 64)).host_tokens, 64U);
  end(other);
  end(live);
  settle_all();
}

TEST_F(CacheDiskEdges, APageThatWentBadOnDiskIsComputedAndForgotten) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  for (const std::string& name : disk_->file_names(kPath)) {
    if (!name.starts_with("segment")) continue;
    // The payload of the third page: behind the header of the segment, that of the key space, and two pages.
    disk_->flip_bit(kPath, name, (std::uint64_t{4096} * 4 + 200) * 8);
  }
  EXPECT_EQ(serve_all(token_range(0, 64)), 32U);
  EXPECT_EQ(cache_->disk_status()->corrupt_page_total, 1U);
  forget_memory();
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U) << "it was written again";
}

TEST_F(CacheDiskEdges, AFailedReadIsAMissWithAReason) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  disk_->fail_once(testing::SimOperation::Read, 1);
  Live live = admitted(token_range(0, 64));
  settle_all();
  EXPECT_LT(view(live).computed_tokens, 64U);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadFailed);
  step(live.sequence, live.tokens);
  end(live);
  settle_all();
  EXPECT_TRUE(stats().disk_is_on);
}

TEST_F(CacheDiskEdges, WithoutItsDiskTheCacheGoesOn) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  disk_->set_broken(kPath);
  for (TokenId i = 1; i < 8; ++i) EXPECT_EQ(serve_all(token_range(1'000 * i, 64)), 0U);
  EXPECT_TRUE(stats().disk_has_failed);
  EXPECT_FALSE(stats().disk_is_on);
  EXPECT_FALSE(cache_->disk_status()->last_error.empty());
  EXPECT_EQ(cache_->flush().error().code, ErrorCode::Io);
  EXPECT_EQ(serve_all(token_range(1'000, 64)), 64U) << "from memory";
}

TEST_F(CacheDiskEdges, WhatWasCachedBeforeAFlushSurvivesALossOfPower) {
  open_disk(disk_config());
  for (TokenId i = 0; i < 4; ++i) {
    (void)serve_all(token_range(1'000 * i, 64));
    flush();  // each covers what came since the last one
  }
  (void)serve_all(token_range(9'000, 64));  // not flushed: there or not, but never wrong
  std::unique_ptr<testing::SimDisk> next = disk_->crash(1);
  close();
  disk_ = std::move(next);
  open_disk(disk_config());
  for (TokenId i = 0; i < 4; ++i) EXPECT_EQ(serve_all(token_range(1'000 * i, 64)), 64U) << i;
  (void)serve_all(token_range(9'000, 64));
}

TEST_F(CacheDiskEdges, ReadingIsLeftWhereComputingIsFaster) {
  for (const TimeNs compute_ns : {1, 1'000'000'000}) {
    CacheConfig config = disk_config();
    config.host.compute_ns_per_token = compute_ns;
    close();
    disk_ = std::make_unique<testing::SimDisk>(1);
    open_disk(std::move(config));
    put_on_disk(token_range(0, 64));
    put_on_disk(token_range(1'000, 64));
    (void)serve_all(token_range(0, 64));  // from here on it is known how long it takes
    forget_memory();
    Live live = admitted(token_range(1'000, 64));
    settle_all();
    EXPECT_EQ(view(live).computed_tokens, compute_ns == 1 ? 0U : 64U);
    EXPECT_EQ(view(live).miss.reason, compute_ns == 1 ? MissReason::RecomputeCheaper : MissReason::None);
    end(live);
    settle_all();
  }
}

TEST_F(CacheDiskEdges, ALongPathComesInAsManyTransfersAsThereAre) {
  CacheConfig config = disk_config(32, 64);
  config.host.transfer_pages_max = 2;
  config.host.transfer_count_max = 3;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 320));
  EXPECT_EQ(serve_all(token_range(0, 320)), 320U);
}

TEST_F(CacheDiskEdges, WhatTheHostCannotHoldIsLeft) {
  open_disk(disk_config(32, 64));
  put_on_disk(token_range(0, 320));
  open_disk(disk_config(32, 8));
  EXPECT_EQ(serve_all(token_range(0, 320)), 128U);
}

TEST_F(CacheDiskEdges, NoMoreIsWrittenThanADaysBudget) {
  constexpr TimeNs kHour = TimeNs{3'600} * 1'000'000'000;
  constexpr std::uint64_t kBudget = std::uint64_t{24} * 8 * 4096;  // eight records an hour
  CacheConfig config = disk_config(32, 64);
  config.disk.write_bytes_per_day = kBudget;
  open_disk(std::move(config));
  const std::uint64_t written_before = cache_->disk_status()->written_bytes;
  for (int hour = 0; hour < 24; ++hour) {
    now_ = hour * kHour;
    apply({});
    for (TokenId i = 0; i < 4; ++i) {
      serve_all(token_range(100'000 * hour + 1'000 * i, 64));
      serve_all(token_range(100'000 * hour, 64));  // one of them is used again
    }
  }
  EXPECT_LE(stats().disk_stored_bytes, kBudget);
  EXPECT_GT(stats().disk_stored_bytes, kBudget / 2);
  EXPECT_EQ(stats().disk_stored_bytes, cache_->disk_status()->written_bytes - written_before);
  forget_memory();
  EXPECT_EQ(serve_all(token_range(100'000 * 23, 64)), 64U) << "what was used again came first";
}

TEST_F(CacheDiskEdges, ResetAndPauseWhileSomebodyLooks) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  Live live = admitted(token_range(0, 64));
  ASSERT_TRUE(run_lane(Lane::Names));
  (void)cache_->pause_transfers().value();
  settle_all();
  EXPECT_FALSE(view(live).is_loading);
  ASSERT_TRUE(cache_->resume_transfers());
  end(live);
  settle_all();
  ASSERT_TRUE(cache_->reset());
  settle_all();
  EXPECT_EQ(serve_all(token_range(0, 64)), 0U) << "the disk forgets too";
}

TEST_F(CacheDiskEdges, WhatSequencesOfADroppedKeySpaceUseDoesNotGoToDisk) {
  open_disk(disk_config());
  Live early = computed_all(token_range(0, 64));  // on the host, not yet on disk
  Live late = admitted(token_range(0, 128));
  ASSERT_TRUE(cache_->drop(space_));
  settle_all();
  step(late.sequence, late.tokens);  // computed when it was dropped already
  settle_all();
  end(early);
  end(late);
  settle_all();
  EXPECT_EQ(cache_->disk_status()->page_count, 0U);
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(serve_all(token_range(0, 128)), 0U) << "nothing of it will match again";
}

TEST_F(CacheDiskEdges, OneThatLooksGetsNothingOfAKeySpaceOfTheSameName) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  const std::vector<TokenId> tokens = token_range(0, 64);
  const std::vector<std::byte> other_bytes(tokens.size() * kTestTokenBytes, std::byte{1});
  std::vector<std::byte> bytes(other_bytes.size());
  std::optional<DiskAnswer> answer;
  Live live = admitted(tokens);
  ASSERT_TRUE(cache_->get_from_disk(space_, {.tokens = tokens}, bytes, [&](const DiskAnswer& told) { answer = told; }));
  ASSERT_TRUE(run_lane(Lane::Names));  // found
  ASSERT_TRUE(run_lane(Lane::Names));  // the load waits for its lane
  ASSERT_TRUE(cache_->drop(space_));
  const KeySpaceId anew = cache_->key_space({.model = "test"}).value();
  ASSERT_TRUE(cache_->put_on_disk(anew, {.tokens = tokens}, other_bytes, [](const DiskAnswer&) {}));
  while (run_lane(Lane::Names) || run_lane(Lane::Write)) continue;
  EXPECT_EQ(cache_->disk_status()->page_count, 4U) << "the new ones";
  settle_all();
  EXPECT_EQ(view(live).computed_tokens, 0U);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadCancelled);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->token_count, 0U);
  EXPECT_EQ(answer->outcome, TransferOutcome::Cancelled);
  end(live);
  settle_all();
  expect_no_page_lost();
}

TEST_F(CacheDiskEdges, APagesNameFollowsItThroughTheTiers) {
  CacheConfig config = disk_config(12, 16);
  config.context_tokens_max = 128;
  open_disk(std::move(config));
  for (int round = 0; round < 3; ++round) {
    for (TokenId i = 0; i < 12; ++i) {
      std::vector<TokenId> tokens = token_range(0, 33);  // shared by all
      tokens.push_back(500 + i);
      tokens.resize(81, 77);
      EXPECT_EQ(serve_all(tokens), round == 0 ? (i == 0 ? 0U : 32U) : 80U) << round << " " << i;
    }
  }
}

// A find names the page that its path goes on behind. That page may have moved to another tier by the time somebody
// computes names, and its host page may be another path's.
TEST_F(CacheDiskEdges, AFindGoesOnBehindThePageThatItWasAskedFor) {
  open_disk(disk_config());
  const std::vector<TokenId> first = token_range(0, 16);
  const std::vector<TokenId> rest = token_range(100, 16);
  std::vector<TokenId> wanted = first;
  std::vector<TokenId> stranger = token_range(500, 16);
  for (std::vector<TokenId>* const path : {&wanted, &stranger}) path->insert(path->end(), rest.begin(), rest.end());
  put_on_disk(first);
  put_on_disk(stranger);
  CacheConfig config = disk_config(12, 2);
  config.context_tokens_max = 128;
  config.disk.write_policy = WritePolicy::Selective;  // host pages are free to go
  config.disk.write_hits_min = 100;
  open_disk(std::move(config));
  Live early = begun(first, {.prefetch = Prefetch::BestEffort});
  settle_all();
  ASSERT_TRUE(cache_->reclaim(99));
  ASSERT_EQ(lookup(first).host_tokens, 16U);

  Live live = admitted(wanted);  // looks for what follows the host page
  Live second = admitted(first, {.tier_max = Tier::Host});
  settle();  // the page is on the device now, and on the host only a copy
  ASSERT_EQ(view(second).computed_tokens, 16U);
  for (const TokenId token : {900, 500}) {  // takes the free host page, and that one
    Live computed = admitted(token_range(token, 16), {.tier_max = Tier::Host});
    step(computed.sequence, computed.tokens);
    settle();
    end(computed);
  }
  settle_all();
  EXPECT_EQ(view(live).computed_tokens, 16U) << "nobody has computed the rest behind this page";
  step(live.sequence, live.tokens);
  for (Live* const each : {&early, &live, &second}) end(*each);
  settle_all();
  expect_no_page_lost();
}

}  // namespace
}  // namespace quire
