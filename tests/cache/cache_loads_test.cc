// SPDX-License-Identifier: Apache-2.0
//
// Pages that come back from the host: who waits for them, who joins, and what happens when they do not arrive.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheTiers : public TiersTest {
 protected:
  /// Pages of 4 tokens, written as soon as they are full.
  void SetUp() override { open_tiers(tiers_config(24, 48, WritePolicy::WriteThrough)); }
  [[nodiscard]] std::uint64_t load_count(TransferOutcome outcome) const {
    return stats().load_outcomes[static_cast<std::size_t>(outcome)];
  }
};

TEST_F(CacheTiers, WhatWasLoadedAndIsHeldByNobodyCanBeEvicted) {
  put_on_host(token_range(0, 16));
  EXPECT_EQ(serve(token_range(0, 16)), 16U);
  EXPECT_EQ(stats().evictable_pages, 4U);
  EXPECT_EQ(cache_->reclaim(99).value(), 4U);
  EXPECT_EQ(stats().free_pages, 24U);

  // The load of one that ends before it is admitted goes on.
  Live live = begun(token_range(0, 16), {.prefetch = Prefetch::Wait});
  mover_->take();
  end(live);
  apply({mover_->move(0)});
  EXPECT_EQ(stats().evictable_pages, 4U);
  EXPECT_EQ(stats().pinned_pages, 0U);
  EXPECT_EQ(lookup(token_range(0, 16)).matched_tokens, 16U);
  EXPECT_EQ(cache_->reclaim(99).value(), 4U);
  expect_all_free();
}

TEST_F(CacheTiers, TransfersOutliveTheSequencesTheyWereStartedFor) {
  for (TokenId i = 0; i < 4; ++i) put_on_host(token_range(100 * i, 16));
  Live ended = admitted(token_range(0, 16));
  Live dropped = admitted(token_range(100, 16));
  Live stopped = admitted(token_range(200, 16));
  Live stays = admitted(token_range(300, 16));
  Live other = computed(token_range(900, 8));  // others go on meanwhile
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 5U);  // four loads and a store
  end(ended);
  dropped.sequence = Sequence();
  ASSERT_TRUE(cache_->stop_loading(stopped.sequence));
  end(other);
  std::array<TransferId, 8> cancelled;
  EXPECT_EQ(cache_->take_cancellations(cancelled)->size(), 3U);
  EXPECT_EQ(stats().transfers_in_flight, 5U);
  EXPECT_EQ(stats().sequence_count, 2U);
  while (!mover_->waiting.empty()) apply({mover_->move(mover_->waiting.size() - 1)});
  EXPECT_EQ(stats().transfers_in_flight, 0U);
  EXPECT_EQ(stats().loaded_page_total, 4U);  // of the one that waited
  EXPECT_EQ(view(stays).computed_tokens, 16U);
  EXPECT_EQ(view(stopped).computed_tokens, 0U);
  finish(stays);
  finish(stopped);
  settle();
  expect_all_free();
}

TEST_F(CacheTiers, WhoeverMatchesWhatIsOnItsWayJoinsTheLoad) {
  put_on_host(token_range(0, 32));
  std::vector<TokenId> shorter = token_range(0, 18);
  shorter.back() = 999;
  Live first = admitted(token_range(0, 17));
  Live second = admitted(shorter);
  Live longer = admitted(token_range(0, 32));
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 2U);  // pages [0, 4) for all, [4, 8) for the last
  EXPECT_EQ(mover_->waiting[0].pages.size(), 4U);
  EXPECT_EQ(mover_->waiting[1].pages.size(), 4U);
  Live late = admitted(token_range(0, 32));
  mover_->take();
  EXPECT_EQ(mover_->waiting.size(), 2U);
  apply({mover_->move(1)});  // what comes behind waits for what is before it
  EXPECT_TRUE(view(longer).is_loading);
  EXPECT_EQ(lookup(token_range(0, 32)).matched_tokens, 0U);
  apply({mover_->move(0)});
  EXPECT_EQ(stats().loading_sequence_count, 0U);
  EXPECT_EQ(stats().loaded_page_total, 8U);
  for (Live* const live : {&first, &second}) EXPECT_EQ(view(*live).computed_tokens, 16U);
  for (Live* const live : {&longer, &late}) EXPECT_EQ(view(*live).computed_tokens, 32U);
  for (Live* const live : {&first, &second, &longer, &late}) finish(*live);
  settle();
  expect_all_free();
}

TEST_F(CacheTiers, WhatIsLeavingIsStillFound) {
  open_tiers(tiers_config(8, 16, WritePolicy::WriteBack));
  Live first = computed(token_range(0, 16));
  end(first);
  Live second = computed(token_range(100, 16));
  end(second);
  EXPECT_GT(stats().leaving_pages, 0U);
  mover_->take();
  EXPECT_EQ(lookup(token_range(0, 16)).matched_tokens, 16U);
  EXPECT_EQ(lookup(token_range(100, 16)).matched_tokens, 16U);
  Live again = admitted(token_range(0, 16));
  EXPECT_EQ(view(again).computed_tokens, 16U);
  while (!mover_->waiting.empty()) apply({mover_->move(0)});
  finish(again);
  settle();
  expect_all_free();
}

TEST_F(CacheTiers, ASequenceThatEndsWhileItLoadsLeavesNothing) {
  for (const bool is_taken : {false, true}) {
    for (const bool is_dropped : {false, true}) {
      put_on_host(token_range(0, 16));
      Live live = admitted(token_range(0, 16));
      if (is_taken) mover_->take();
      if (is_dropped) {
        live.sequence = Sequence();
      } else {
        end(live);
      }
      EXPECT_EQ(stats().sequence_count, 0U);
      expect_invariants();
      EXPECT_EQ(stats().transfers_in_flight, is_taken ? 1U : 0U);
      if (is_taken) {
        EXPECT_EQ(stats().open_pages, 4U);  // the mover may still write them
        apply({mover_->move(0)});
      }
      EXPECT_EQ(stats().pinned_pages, 0U);
      EXPECT_EQ(stats().free_pages, 24U);
      EXPECT_EQ(lookup(token_range(0, 16)).host_tokens, 16U);
      EXPECT_EQ(serve(token_range(0, 16)), 16U);  // another one is not disturbed
      expect_all_free();
    }
  }
}

TEST_F(CacheTiers, APageIsGoodWhenEveryRankSaysSo) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.rank_count = 3;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 16));
  mover_->take();
  Completion completion = mover_->move(0);
  completion.rank = 2;
  apply({completion});
  EXPECT_EQ(stats().transfers_in_flight, 1U);
  apply({completion});  // once more
  EXPECT_EQ(stats().unknown_completion_count, 1U);
  completion.rank = 3;  // there is no such rank
  apply({completion});
  EXPECT_EQ(stats().unknown_completion_count, 2U);
  EXPECT_TRUE(view(live).is_loading);
  completion.outcome = TransferOutcome::Failed;
  completion.fault = TransferFault::Io;
  completion.good_pages = 2;
  completion.rank = 0;
  apply({completion});
  EXPECT_TRUE(view(live).is_loading);
  completion.good_pages = 3;
  completion.rank = 1;
  apply({completion});
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 8U);
  EXPECT_EQ(load_count(TransferOutcome::Failed), 1U);
  EXPECT_EQ(load_count(TransferOutcome::Ok), 0U);
  apply({completion});  // it is over
  EXPECT_EQ(stats().unknown_completion_count, 3U);
  finish(live);

  // A store that one rank has not made is none.
  Live stored = computed(token_range(100, 16));
  mover_->take();
  for (completion = mover_->move(0); completion.rank < 3; ++completion.rank) {
    completion.outcome = completion.rank == 1 ? TransferOutcome::Failed : TransferOutcome::Ok;
    completion.good_pages = completion.rank == 1 ? 1 : 4;
    apply({completion});
  }
  end(stored);
  ASSERT_TRUE(cache_->reclaim(99));
  EXPECT_EQ(lookup(token_range(100, 16)).host_tokens, 4U);
}

TEST_F(CacheTiers, AFailedLoadIsComputedAndNotCounted) {
  for (const TransferFault fault :
       {TransferFault::Io, TransferFault::Checksum, TransferFault::Generation, TransferFault::NameTag}) {
    SCOPED_TRACE(to_string(fault));
    open_tiers(tiers_config(24, 48, WritePolicy::WriteThrough));
    put_on_host(token_range(0, 17));
    Live live = admitted(token_range(0, 17));
    Live other = admitted(token_range(0, 13));  // waits for the same
    mover_->take();
    HandMover::HostPage& third = mover_->host_pages[{0, mover_->waiting[0].pages[2].host_page.value}];
    if (fault == TransferFault::Checksum) third.is_bad = true;
    if (fault == TransferFault::Generation) ++third.generation;
    if (fault == TransferFault::NameTag) ++third.name_tag;
    Completion completion = mover_->move(0);
    if (fault == TransferFault::Io) {
      completion.outcome = TransferOutcome::Failed;
      completion.fault = fault;
      completion.good_pages = 2;
    }
    ASSERT_EQ(completion.good_pages, 2U);
    apply({completion});
    EXPECT_EQ(stats().loaded_page_total, 2U);
    EXPECT_EQ(load_count(TransferOutcome::Failed), 1U);
    EXPECT_EQ(stats().load_faults[static_cast<std::size_t>(fault)], 1U);
    for (const Live* const each : {&live, &other}) {
      EXPECT_FALSE(view(*each).is_loading);
      EXPECT_EQ(view(*each).computed_tokens, 8U);
      EXPECT_EQ(view(*each).pending_tokens, view(*each).token_count - 8);
      EXPECT_EQ(view(*each).miss.reason, MissReason::LoadFailed);
    }
    EXPECT_EQ(stats().host_hit_tokens, 16U);
    const bool stays = fault == TransferFault::Io;
    EXPECT_EQ(lookup(token_range(0, 17)).host_tokens, stays ? 8U : 0U);
    EXPECT_EQ(stats().lost_page_total, stays ? 0U : 2U);
    finish(live);
    finish(other);
    settle();
    EXPECT_EQ(serve(token_range(0, 17)), 16U);
    expect_all_free();
  }
}

TEST_F(CacheTiers, PrefetchContinuesTheMatchedPathAndMakesRoom) {
  open_tiers(tiers_config(8, 48, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 32));
  EXPECT_EQ(serve(token_range(0, 8)), 8U);
  EXPECT_EQ(lookup(token_range(0, 32)).matched_tokens, 8U);
  Live live = begun(token_range(0, 32), {.prefetch = Prefetch::Wait});
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 1U);
  EXPECT_EQ(mover_->waiting[0].pages.size(), 6U);
  EXPECT_EQ(mover_->waiting[0].plan.priority, TransferPriority::Background);
  apply({mover_->move(0)});
  const Admission admission = cache_->admit(live.sequence).value();
  EXPECT_EQ(admission.matched_tokens, 32U);
  EXPECT_EQ(admission.loading_tokens, 0U);
  finish(live);

  // Every device page is somebody's past: some of it leaves.
  put_on_host(token_range(0, 32));
  serve(token_range(100, 32));
  EXPECT_EQ(stats().free_pages, 0U);
  Live wanted = begun(token_range(0, 16), {.prefetch = Prefetch::BestEffort});
  EXPECT_EQ(stats().open_pages, 4U);
  settle();
  EXPECT_EQ(cache_->admit(wanted.sequence)->matched_tokens, 16U);

  // Nothing leaves that somebody uses.
  Live holder = admitted(token_range(100, 32), {.tier_max = Tier::Device});
  EXPECT_EQ(view(holder).computed_tokens, 16U);
  EXPECT_EQ(stats().pinned_pages, 8U);
  EXPECT_EQ(lookup(token_range(0, 32)).host_tokens, 16U);
  Live late = begun(token_range(0, 32), {.prefetch = Prefetch::BestEffort});
  EXPECT_EQ(stats().transfers_in_flight, 0U);
  for (Live* const each : {&late, &holder, &wanted}) end(*each);
  expect_all_free();
}

TEST_F(CacheTiers, PrefetchMakesRoomUnderWriteBack) {
  CacheConfig config = tiers_config(8, 48);
  config.host.clean_reserve_pages = 0;
  open_tiers(std::move(config));
  serve(token_range(0, 16));
  serve(token_range(100, 32));  // takes all pages of the device, and the host has none of these
  EXPECT_EQ(lookup(token_range(0, 16)).host_tokens, 16U);
  EXPECT_EQ(stats().free_pages, 0U);
  Live live = begun(token_range(0, 16), {.prefetch = Prefetch::BestEffort});
  settle();
  const Admission admission = cache_->admit(live.sequence).value();
  EXPECT_EQ(admission.matched_tokens, 16U);
  EXPECT_EQ(lookup(token_range(100, 32)).host_tokens, 16U) << "nothing is lost";
  end(live);
  expect_all_free();
}

TEST_F(CacheTiers, TheMissOfALoadingSequenceIsRight) {
  put_on_host(token_range(0, 32));
  std::vector<TokenId> tokens = token_range(0, 32);
  for (std::size_t i = 18; i < tokens.size(); ++i) tokens[i] += 500;  // the match ends inside the run
  Live live = begun(tokens);
  const Admission admission = cache_->admit(live.sequence).value();
  EXPECT_EQ(admission.loading_tokens, 16U);
  EXPECT_EQ(admission.miss.reason, MissReason::NeverSeen);
  settle();
  EXPECT_EQ(view(live).miss.reason, MissReason::NeverSeen);
  finish(live);

  // The same with an end that was cached once.
  open_tiers(tiers_config(24, 48, WritePolicy::WriteThrough));
  serve(token_range(0, 16));
  now_ = 1'000;
  Live longer = computed(token_range(0, 24));
  end(longer);
  ASSERT_TRUE(cache_->reclaim(2));  // pages [4, 6), before anything copied them
  settle();
  ASSERT_TRUE(cache_->reclaim(4));
  now_ = 3'000;
  apply({});
  Live again = begun(token_range(0, 24));
  const Admission second = cache_->admit(again.sequence).value();
  EXPECT_EQ(second.loading_tokens, 16U);
  EXPECT_EQ(second.miss.reason, MissReason::Evicted);
  EXPECT_EQ(second.miss.tier, Tier::Device);
  settle();
  EXPECT_EQ(view(again).miss.reason, MissReason::Evicted);
  EXPECT_EQ(view(again).miss.tier, Tier::Device);
  finish(again);
}

TEST_F(CacheTiers, LookupTellsWhatIsOnTheHost) {
  put_on_host(token_range(0, 32));
  serve(token_range(0, 8));
  std::vector<std::vector<TokenId>> prompts = {token_range(0, 32), token_range(0, 8),  token_range(0, 7),
                                               token_range(0, 19), token_range(50, 9), token_range(0, 40)};
  prompts.push_back(token_range(0, 32));
  prompts.back()[21] = 999;
  for (const SequenceOptions& options :
       {SequenceOptions{}, SequenceOptions{.match_tokens_max = 18}, SequenceOptions{.use_cache = false},
        SequenceOptions{.tier_max = Tier::Device}, SequenceOptions{.prefetch = Prefetch::Timeout}}) {
    for (const std::vector<TokenId>& prompt : prompts) {
      const Lookup found = lookup(prompt, options);
      Live live = begun(prompt, options);
      const Admission admission = cache_->admit(live.sequence).value();
      EXPECT_EQ(found.host_tokens, admission.loading_tokens) << prompt.size();
      if (found.host_tokens == 0) {
        EXPECT_EQ(found.matched_tokens, admission.matched_tokens);
      }
      end(live);  // before anything has moved
      settle();
    }
  }
}

TEST_F(CacheTiers, AdmitTriesAgainAfterMakingRoomWithoutATransfer) {
  open_tiers(tiers_config(10, 64, WritePolicy::WriteBack));
  for (int round = 0; round < 12; ++round) {
    for (TokenId chat = 0; chat < 4; ++chat) {
      const std::vector<TokenId> tokens = token_range(1'000 * chat, 16 + (4 * static_cast<std::size_t>(chat)));
      Live live = begun(tokens);
      Result<Admission> admission = cache_->admit(live.sequence);
      for (int tries = 0; !admission && tries < 8; ++tries) {
        ASSERT_EQ(admission.error().code, ErrorCode::Unavailable);
        ASSERT_GT(stats().transfers_in_flight, 0U) << "nothing is on its way that could make room";
        settle();
        admission = cache_->admit(live.sequence);
      }
      ASSERT_TRUE(admission.has_value()) << admission.error().message;
      settle();
      end(live);
      serve(tokens);
    }
  }
  EXPECT_GT(stats().host_hit_tokens, 0U);
}

}  // namespace
}  // namespace quire
