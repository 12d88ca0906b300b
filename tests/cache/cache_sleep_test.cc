// SPDX-License-Identifier: Apache-2.0
//
// A cache that stands still: transfers held back, and the device's memory given up for a while.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheSleep : public TiersTest {
 protected:
  void SetUp() override { open_tiers(tiers_config(16, 32)); }

  /// Sleeps, with everything moved on the way.
  void sleep(Sleep how) {
    for (int i = 0; i < 20; ++i) {
      const Result<bool> is_done = cache_->sleep(how);
      ASSERT_TRUE(is_done.has_value()) << is_done.error().message;
      expect_invariants();
      if (*is_done) return;
      ASSERT_GT(stats().transfers_in_flight, 0U) << "nothing is on its way";
      settle();
    }
    FAIL() << "never asleep";
  }
  /// The call is refused with this text, and nothing has changed.
  template <typename Call>
  void expect_refused(const Call& call, ErrorCode code, const std::string& text,
                      std::span<const Sequence* const> sequences = {}) {
    const std::string before = dump_tiers(*cache_, sequences);
    expect_error(call(), code, text);
    EXPECT_EQ(dump_tiers(*cache_, sequences), before);
  }
};

// Pausing

TEST_F(CacheSleep, NothingNewStartsWhileTransfersArePaused) {
  open_tiers(tiers_config(24, 32, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 16));
  Live live = computed(token_range(100, 16));
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 1U);
  EXPECT_FALSE(cache_->pause_transfers().value());
  EXPECT_FALSE(cache_->pause_transfers().value());
  apply({mover_->move(0)});
  EXPECT_TRUE(cache_->pause_transfers().value());
  Live other = computed(token_range(200, 16));
  Live missing = admitted(token_range(0, 16), {.prefetch = Prefetch::Wait});
  EXPECT_FALSE(view(missing).is_loading);
  EXPECT_EQ(view(missing).miss.reason, MissReason::LoadCancelled);
  mover_->take();
  EXPECT_TRUE(mover_->waiting.empty());
  EXPECT_TRUE(cache_->pause_transfers().value());
  expect_invariants();
  ASSERT_TRUE(cache_->resume_transfers());
  mover_->take();
  EXPECT_EQ(mover_->waiting.size(), 1U);  // what was computed meanwhile
  settle();
  EXPECT_EQ(stats().stored_page_total, 12U);
  for (Live* const each : {&live, &other, &missing}) end(*each);
}

TEST_F(CacheSleep, APauseEndsTheWaitForWhatHasNotStarted) {
  CacheConfig config = tiers_config(24, 32, WritePolicy::WriteThrough);
  config.host.transfer_count_max = 1;
  config.host.transfer_pages_max = 2;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 16));
  mover_->take();
  EXPECT_FALSE(cache_->pause_transfers().value());
  apply({mover_->move(0)});
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 8U);
  EXPECT_TRUE(cache_->pause_transfers().value());
  ASSERT_TRUE(cache_->resume_transfers());
  finish(live);
  settle();
}

TEST_F(CacheSleep, WriteBackGivesUpNothingThatIsNotCopiedWhilePaused) {
  serve(token_range(0, 16));
  ASSERT_TRUE(cache_->pause_transfers().value());
  for (TokenId i = 1; i < 4; ++i) {
    Live live = computed(token_range(100 * i, 16));
    end(live);
  }
  EXPECT_EQ(stats().free_pages, 0U);
  Live live = admitted(token_range(900, 16));
  const StepEntry entry{&live.sequence};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  EXPECT_FALSE(outcome.step.has_value());
  EXPECT_EQ(outcome.shortage.pages_leaving, 0U);
  ASSERT_TRUE(cache_->resume_transfers());
  for (int i = 0; i < 4 && view(live).computed_tokens == 0; ++i) {
    settle();
    const PlanOutcome again = cache_->plan_step({&entry, 1}).value();
    if (!again.step) continue;
    const StepResult result;
    ASSERT_TRUE(cache_->finish_step(*again.step, {&result, 1}));
  }
  EXPECT_EQ(view(live).computed_tokens, 16U);
  EXPECT_EQ(stats().lost_page_total, 0U);
  end(live);
}

// Sleeping

TEST_F(CacheSleep, WhatTheHostHasRoomForIsThereAfterwards) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    open_tiers(tiers_config(16, 32, policy));
    for (TokenId i = 0; i < 3; ++i) serve(token_range(100 * i, 16));
    EXPECT_EQ(stats().sealed_pages, 12U);
    sleep(Sleep::KeepHost);
    EXPECT_EQ(stats().free_pages, 16U);
    EXPECT_EQ(stats().host_only_pages, 12U);
    ASSERT_TRUE(cache_->wake());
    const std::span memory(cache_->device_memory(), cache_->geometry().pool_bytes());
    EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0}; }));
    for (TokenId i = 0; i < 3; ++i) EXPECT_EQ(serve(token_range(100 * i, 16)), 16U);
    expect_all_free();
  }
}

TEST_F(CacheSleep, ASmallHostKeepsWhatItCan) {
  open_tiers(tiers_config(16, 5));
  for (TokenId i = 0; i < 3; ++i) serve(token_range(100 * i, 16));
  sleep(Sleep::KeepHost);
  EXPECT_EQ(stats().free_pages, 16U);
  EXPECT_GT(stats().host_only_pages, 0U);
  EXPECT_LE(stats().host_only_pages, 5U);
  ASSERT_TRUE(cache_->wake());
  serve(token_range(0, 16));
  expect_all_free();
}

TEST_F(CacheSleep, DropAllLeavesNothing) {
  open_tiers(tiers_config(16, 32, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 16));
  Live live = computed(token_range(100, 16));
  mover_->take();  // a store is on its way
  end(live);
  Live waiting = begun(token_range(0, 16), {.prefetch = Prefetch::Wait});
  mover_->take();  // and a load
  ASSERT_EQ(mover_->waiting.size(), 2U);
  EXPECT_FALSE(cache_->sleep(Sleep::DropAll).value());
  std::array<TransferId, 4> cancelled;
  EXPECT_EQ(cache_->take_cancellations(cancelled)->size(), 2U);
  expect_refused([&] { return cache_->admit(waiting.sequence); }, ErrorCode::Unavailable, "wake() comes first");
  while (!mover_->waiting.empty()) apply({mover_->move(0)});
  EXPECT_TRUE(cache_->sleep(Sleep::DropAll).value());
  EXPECT_EQ(stats().free_pages, 16U);
  EXPECT_EQ(stats().host_free_pages, 32U);
  ASSERT_TRUE(cache_->wake());
  EXPECT_EQ(cache_->admit(waiting.sequence)->matched_tokens, 0U);
  finish(waiting);
  settle();
}

TEST_F(CacheSleep, TheOwnMoverSleepsToo) {
  for (const Sleep how : {Sleep::KeepHost, Sleep::DropAll}) {
    CacheConfig config = tiers_config(16, 32);
    config.host.external_mover = false;
    open(std::move(config));
    for (TokenId i = 0; i < 3; ++i) run_request(token_range(100 * i, 16));
    while (!cache_->sleep(how).value()) drain(*cache_);
    expect_invariants();
    EXPECT_EQ(stats().free_pages, 16U);
    EXPECT_EQ(stats().host_free_pages, how == Sleep::KeepHost ? 20U : 32U);
    ASSERT_TRUE(cache_->wake());
    std::vector<TokenId> tokens = token_range(0, 16);
    Sequence sequence = begin_admitted(tokens);
    drain(*cache_);
    EXPECT_EQ(cache_->view(sequence)->computed_tokens, how == Sleep::KeepHost ? 16U : 0U);
    step(sequence, tokens);
    ASSERT_TRUE(cache_->end(sequence));
    drain(*cache_);
  }
}

TEST_F(CacheSleep, ACacheWithoutAHostSleepsAtOnce) {
  open(test_config(4, 8));
  run_request(token_range(0, 16));
  EXPECT_TRUE(cache_->sleep(Sleep::KeepHost).value());
  EXPECT_EQ(stats().free_pages, 8U);
  ASSERT_TRUE(cache_->wake());
  EXPECT_EQ(run_request(token_range(0, 16)), 0U);
  expect_refused([&] { return cache_->pause_transfers(); }, ErrorCode::Unsupported, "the cache has no host tier");
}

TEST_F(CacheSleep, AdmittedSequencesKeepItAwake) {
  Live live = computed(token_range(0, 16), {.publish = Publish::None});
  const std::array<const Sequence*, 1> sequences = {&live.sequence};
  for (const Sleep how : {Sleep::KeepHost, Sleep::DropAll}) {
    expect_refused([&] { return cache_->sleep(how); }, ErrorCode::Unavailable, "is admitted; end every sequence",
                   sequences);
  }
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  EXPECT_FALSE(cache_->sleep(Sleep::KeepHost).has_value());  // being saved
  settle();
  expect_refused([&] { return cache_->sleep(Sleep::DropAll); }, ErrorCode::Unavailable, "has pages on the host",
                 sequences);
  sleep(Sleep::KeepHost);
  expect_refused([&] { return cache_->resume(live.sequence); }, ErrorCode::Unavailable, "wake() comes first",
                 sequences);
  ASSERT_TRUE(cache_->wake());
  ASSERT_TRUE(cache_->resume(live.sequence));
  EXPECT_FALSE(cache_->sleep(Sleep::KeepHost).has_value());  // being restored
  settle();
  ASSERT_TRUE(cache_->append(live.sequence, {.tokens = token_range(900, 3)}));
  for (TokenId i = 0; i < 3; ++i) live.tokens.push_back(900 + i);
  finish(live);  // all bytes are right
}

TEST_F(CacheSleep, ASequenceThatLoadsKeepsItAwake) {
  open_tiers(tiers_config(16, 32, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 16));
  expect_refused([&] { return cache_->sleep(Sleep::DropAll); }, ErrorCode::Unavailable, "is admitted");
  settle();
  finish(live);
}

TEST_F(CacheSleep, WhileItSleepsSequencesMayBeginAndEnd) {
  serve(token_range(0, 16));
  sleep(Sleep::KeepHost);
  EXPECT_TRUE(cache_->sleep(Sleep::KeepHost).value());
  Live live = begun(token_range(0, 16), {.prefetch = Prefetch::Wait});
  Live other = begun(token_range(0, 16));
  EXPECT_EQ(stats().transfers_in_flight, 0U);
  expect_refused([&] { return cache_->admit(live.sequence); }, ErrorCode::Unavailable, "wake() comes first");
  end(other);
  settle();
  EXPECT_EQ(stats().free_pages, 16U);
  ASSERT_TRUE(cache_->wake());
  ASSERT_TRUE(cache_->wake());
  EXPECT_EQ(cache_->admit(live.sequence)->loading_tokens, 16U);
  settle();
  finish(live);
}

TEST_F(CacheSleep, KeptPrefixesAreLetGo) {
  serve(token_range(0, 16));
  const Kept kept = cache_->keep(space_, {.tokens = token_range(0, 16)}).value();
  EXPECT_EQ(stats().kept_pages, 4U);
  sleep(Sleep::KeepHost);
  EXPECT_EQ(stats().kept_pages, 0U);
  EXPECT_FALSE(cache_->unkeep(kept.id).has_value());
  ASSERT_TRUE(cache_->wake());
  EXPECT_EQ(serve(token_range(0, 16)), 16U);
}

TEST_F(CacheSleep, OneThatWakesBeforeItSleptGoesOn) {
  for (TokenId i = 0; i < 3; ++i) serve(token_range(100 * i, 16));
  EXPECT_FALSE(cache_->sleep(Sleep::KeepHost).value());
  mover_->take();
  ASSERT_TRUE(cache_->wake());
  expect_invariants();
  for (TokenId i = 0; i < 3; ++i) EXPECT_EQ(serve(token_range(100 * i, 16)), 16U);
  EXPECT_EQ(stats().lost_page_total, 0U);
  settle();
  expect_all_free();
}

}  // namespace
}  // namespace quire
