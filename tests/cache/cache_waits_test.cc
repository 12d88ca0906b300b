// SPDX-License-Identifier: Apache-2.0
//
// Sequences that wait for pages from the host: how long, who is told, and what they do without.
#include <gtest/gtest.h>

#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheWaits : public TiersTest {
 protected:
  /// Pages of 4 tokens, written as soon as they are full.
  void SetUp() override { open_tiers(tiers_config(24, 48, WritePolicy::WriteThrough)); }
  [[nodiscard]] std::uint64_t load_count(TransferOutcome outcome) const {
    return stats().load_outcomes[static_cast<std::size_t>(outcome)];
  }
};

TEST_F(CacheWaits, BestEffortTakesWhatHasArrived) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.transfer_pages_max = 2;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 17));
  Live live = begun(token_range(0, 17), {.prefetch = Prefetch::BestEffort});
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 2U);
  apply({mover_->move(0)});
  const Admission admission = cache_->admit(live.sequence).value();
  EXPECT_EQ(admission.matched_tokens, 8U);
  EXPECT_EQ(admission.loading_tokens, 0U);
  EXPECT_EQ(admission.miss.reason, MissReason::LoadTimedOut);
  step(live.sequence, live.tokens);  // computes what is still on its way
  apply({mover_->move(0)});
  EXPECT_EQ(lookup(live.tokens).matched_tokens, 16U);
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheWaits, WaitWaitsForWhatBeganEarlier) {
  put_on_host(token_range(0, 17));
  Live live = begun(token_range(0, 17), {.prefetch = Prefetch::Wait});
  mover_->take();
  const Admission admission = cache_->admit(live.sequence).value();
  EXPECT_EQ(admission.loading_tokens, 16U);
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 1U);  // the one that began with it
  ASSERT_TRUE(cache_->advance(INT64_MAX / 2));
  now_ = INT64_MAX / 2;
  apply({});
  EXPECT_TRUE(view(live).is_loading);
  apply({mover_->move(0)});
  EXPECT_EQ(view(live).computed_tokens, 16U);
  EXPECT_EQ(stats().host_hit_tokens, 16U);
  finish(live);
}

TEST_F(CacheWaits, SomebodyWhoWaitsHurriesALoadInTheBackground) {
  put_on_host(token_range(0, 16));
  put_on_host(token_range(100, 16));
  Live early = begun(token_range(0, 16), {.prefetch = Prefetch::Wait});
  Live other = begun(token_range(100, 16), {.prefetch = Prefetch::Wait});
  ASSERT_TRUE(cache_->admit(other.sequence));
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 2U);
  EXPECT_EQ(mover_->waiting[0].plan.priority, TransferPriority::Waiting);
  EXPECT_EQ(mover_->waiting[1].plan.priority, TransferPriority::Background);
  settle();
  end(early);
  end(other);
}

TEST_F(CacheWaits, ATimeoutOfTheSequenceEndsItsWait) {
  put_on_host(token_range(0, 17));
  now_ = 100;
  apply({});
  Live live = begun(token_range(0, 17), {.prefetch = Prefetch::Timeout, .load_timeout_ns = 50});
  Live patient = admitted(token_range(0, 17));
  ASSERT_EQ(cache_->admit(live.sequence)->loading_tokens, 16U);
  mover_->take();
  now_ = 149;
  apply({});
  EXPECT_TRUE(view(live).is_loading);
  now_ = 150;
  apply({});
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 0U);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadTimedOut);
  EXPECT_TRUE(view(patient).is_loading);
  std::array<TransferId, 4> cancelled;
  EXPECT_EQ(cache_->take_cancellations(cancelled)->size(), 0U);  // somebody needs it
  apply({mover_->move(0)});
  EXPECT_EQ(view(patient).computed_tokens, 16U);
  finish(live);
  finish(patient);
  settle();
  expect_all_free();
}

TEST_F(CacheWaits, ALoadThatIsLateHasFailedForThoseWhoWait) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.load_timeout_ns = 1'000;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 17));
  Live live = admitted(token_range(0, 17));
  mover_->take();
  now_ = 999;
  apply({});
  EXPECT_TRUE(view(live).is_loading);
  now_ = 1'000;
  apply({});
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadTimedOut);
  EXPECT_EQ(load_count(TransferOutcome::TimedOut), 1U);
  std::array<TransferId, 4> cancelled;
  ASSERT_EQ(cache_->take_cancellations(cancelled)->size(), 1U);
  EXPECT_EQ(cancelled[0], mover_->waiting[0].plan.id);
  EXPECT_EQ(cache_->take_cancellations(cancelled)->size(), 0U);  // told once
  // What nobody has taken is over at once.
  Live second = admitted(token_range(0, 17));
  now_ = 2'000;
  apply({});
  EXPECT_EQ(stats().transfers_in_flight, 1U);
  EXPECT_EQ(view(second).miss.reason, MissReason::LoadTimedOut);
  // The late completion gives its pages back, and nothing else.
  EXPECT_EQ(stats().open_pages, 4U);
  apply({mover_->move(0)});
  EXPECT_EQ(stats().open_pages, 0U);
  EXPECT_EQ(stats().loaded_page_total, 0U);
  EXPECT_EQ(load_count(TransferOutcome::Ok), 0U);
  EXPECT_EQ(stats().unknown_completion_count, 0U);
  EXPECT_EQ(lookup(token_range(0, 17)).host_tokens, 16U);
  finish(live);
  finish(second);
  settle();
  expect_all_free();
}

TEST_F(CacheWaits, OneThatIsStoppedComputesAndOthersGoOn) {
  put_on_host(token_range(0, 17));
  Live live = admitted(token_range(0, 17));
  Live other = admitted(token_range(0, 17));
  mover_->take();
  ASSERT_TRUE(cache_->stop_loading(live.sequence));
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadCancelled);
  EXPECT_TRUE(view(other).is_loading);
  step(live.sequence, live.tokens);  // the tree has its pages before the load brings them
  apply({mover_->move(0)});
  EXPECT_EQ(view(other).computed_tokens, 16U);
  finish(other);
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheWaits, ALoadCancelledTooLateIsOverAsIfItWereNot) {
  put_on_host(token_range(0, 17));
  Live live = admitted(token_range(0, 17));
  mover_->take();
  const Completion done = mover_->move(0);  // all of it has arrived, and the cache does not know
  ASSERT_TRUE(cache_->stop_loading(live.sequence));
  std::array<TransferId, 4> cancelled;
  ASSERT_EQ(cache_->take_cancellations(cancelled)->size(), 1U);
  step(live.sequence, live.tokens);
  apply({done});
  EXPECT_EQ(stats().transfers_in_flight, 0U);
  EXPECT_EQ(stats().loaded_page_total, 0U);  // nobody wanted it any more
  EXPECT_EQ(stats().unknown_completion_count, 0U);
  apply({done});
  EXPECT_EQ(stats().unknown_completion_count, 1U);
  end(live);
  settle();
  expect_all_free();
}

TEST_F(CacheWaits, ALoadTheMoverCancelledIsComputed) {
  put_on_host(token_range(0, 17));
  Live live = admitted(token_range(0, 17));
  mover_->take();
  apply({mover_->fail_it(0, TransferOutcome::Cancelled)});
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadCancelled);
  EXPECT_EQ(load_count(TransferOutcome::Cancelled), 1U);
  EXPECT_EQ(lookup(token_range(0, 17)).host_tokens, 16U);
  finish(live);
  settle();
}

TEST_F(CacheWaits, ALongPathIsLoadedInAsManyTransfersAsThereAre) {
  CacheConfig config = tiers_config(24, 48, WritePolicy::WriteThrough);
  config.host.transfer_pages_max = 2;
  config.host.transfer_count_max = 2;
  open_tiers(std::move(config));
  put_on_host(token_range(0, 40));
  Live live = admitted(token_range(0, 40));
  for (std::uint32_t arrived = 0; arrived < 10; arrived += 2) {
    EXPECT_TRUE(view(live).is_loading);
    mover_->take();
    EXPECT_EQ(stats().transfers_in_flight, std::min(2U, (10 - arrived) / 2));
    apply({mover_->move(0)});
  }
  EXPECT_EQ(view(live).computed_tokens, 40U);
  finish(live);
}

// Who is told

TEST_F(CacheWaits, TheCallbackNamesEachSequenceThatIsReady) {
  put_on_host(token_range(0, 16));
  put_on_host(token_range(100, 16));
  std::vector<SequenceId> ready;
  ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId id) { ready.push_back(id); }));
  Live first = admitted(token_range(0, 16));
  Live second = admitted(token_range(0, 12));
  Live other = admitted(token_range(100, 16));
  Live stopped = admitted(token_range(100, 16));
  Live ended = admitted(token_range(100, 16));
  mover_->take();
  ASSERT_TRUE(cache_->stop_loading(stopped.sequence));  // who calls it knows
  end(ended);
  EXPECT_TRUE(ready.empty());
  apply({mover_->move(0)});
  std::ranges::sort(ready);
  EXPECT_EQ(ready, (std::vector<SequenceId>{first.sequence.id(), second.sequence.id()}));
  ready.clear();
  apply({mover_->fail_it(0, TransferOutcome::Failed)});  // it can go on, if with less
  EXPECT_EQ(ready, std::vector<SequenceId>{other.sequence.id()});
  ready.clear();
  apply({});
  EXPECT_TRUE(ready.empty());
  ASSERT_TRUE(cache_->set_ready_callback(nullptr));
  for (Live* const live : {&first, &second, &other, &stopped}) finish(*live);
}

TEST_F(CacheWaits, ACallbackMayCallTheCache) {
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 16));
  Live other = admitted(token_range(0, 16));
  int calls = 0;
  ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId id) {
    ++calls;
    ASSERT_TRUE(cache_->check_invariants());
    ASSERT_LE(calls, 2) << "told again";
    ASSERT_TRUE(cache_->apply({}, now_));  // nobody is named twice
    Live& ready = id == live.sequence.id() ? live : other;
    ASSERT_FALSE(view(ready).is_loading);
    step(ready.sequence, ready.tokens);
    ASSERT_TRUE(cache_->end(ready.sequence));
  }));
  mover_->take();
  apply({mover_->move(0)});
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(stats().sequence_count, 0U);
}

TEST_F(CacheWaits, ACallbackMayReplaceItself) {
  put_on_host(token_range(0, 16));
  put_on_host(token_range(100, 16));
  std::vector<int> calls;
  const auto kept = std::make_shared<int>(7);
  ASSERT_TRUE(cache_->set_ready_callback([&, kept](SequenceId) {
    ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId) { calls.push_back(2); }));
    calls.push_back(*kept);  // what it holds is there until it returns
  }));
  Live live = admitted(token_range(0, 16));
  mover_->take();
  apply({mover_->move(0)});
  Live other = admitted(token_range(100, 16));
  mover_->take();
  apply({mover_->move(0)});
  EXPECT_EQ(calls, (std::vector<int>{7, 2}));
  finish(live);
  finish(other);
}

TEST_F(CacheWaits, OneThatIsRestoredIsNamedToo) {
  std::vector<SequenceId> ready;
  ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId id) { ready.push_back(id); }));
  Live live = computed(token_range(0, 11), {.publish = Publish::None});
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  settle();
  EXPECT_TRUE(ready.empty());  // it waits now
  ASSERT_TRUE(cache_->resume(live.sequence));
  EXPECT_TRUE(ready.empty());
  settle();
  EXPECT_EQ(ready, std::vector<SequenceId>{live.sequence.id()});
  finish(live);
}

}  // namespace
}  // namespace quire
