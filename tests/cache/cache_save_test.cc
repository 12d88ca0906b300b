// SPDX-License-Identifier: Apache-2.0
//
// Sequences that are saved on the host and brought back, when that does not go well: the mover is driven by hand.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheSave : public TiersTest {
 protected:
  void SetUp() override { open_tiers(tiers_config(16, 16, WritePolicy::WriteThrough)); }

  [[nodiscard]] Live own(std::vector<TokenId> tokens) {
    return computed(std::move(tokens), {.publish = Publish::None});
  }
  void preempt(const Live& live) {
    const Status status = cache_->preempt(live.sequence, Preempt::Save);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    expect_invariants();
  }
  /// All it has computed is right, and it goes on.
  void expect_good(Live& live) {
    const std::vector<TokenId> added = token_range(900, 3);
    ASSERT_TRUE(cache_->append(live.sequence, {.tokens = added}));
    live.tokens.insert(live.tokens.end(), added.begin(), added.end());
    step(live.sequence, live.tokens);
  }
  template <typename Call>
  void expect_refused(const Live& live, const Call& call, ErrorCode code, const std::string& text) {
    const std::array<const Sequence*, 1> sequences = {&live.sequence};
    const std::string before = dump_tiers(*cache_, sequences);
    expect_error(call(), code, text);
    EXPECT_EQ(dump_tiers(*cache_, sequences), before);
  }
};

TEST_F(CacheSave, AStoreThatFailsLeavesTheSequenceRunning) {
  CacheConfig config = tiers_config(16, 16, WritePolicy::WriteThrough);
  config.host.transfer_pages_max = 2;
  open_tiers(std::move(config));
  for (const std::uint32_t good_pages : {0U, 1U}) {
    Live live = own(token_range(0, 15));
    std::vector<SequenceId> ready;
    ASSERT_TRUE(cache_->set_ready_callback([&](SequenceId id) { ready.push_back(id); }));
    preempt(live);
    mover_->take();
    ASSERT_EQ(mover_->waiting.size(), 2U);
    apply({mover_->fail_it(0, TransferOutcome::Failed, good_pages)});
    EXPECT_TRUE(view(live).is_waiting);  // the rest is still being read
    apply({mover_->move(0)});
    EXPECT_FALSE(view(live).is_waiting);
    EXPECT_EQ(ready, std::vector<SequenceId>{live.sequence.id()});
    EXPECT_EQ(stats().saved_pages, 0U);
    EXPECT_EQ(stats().host_free_pages, 16U);
    EXPECT_EQ(view(live).computed_tokens, 15U);
    expect_refused(live, [&] { return cache_->resume(live.sequence); }, ErrorCode::InvalidArgument, "not preempted");
    expect_good(live);
    end(live);
    expect_all_free();
  }
}

TEST_F(CacheSave, OneThatIsBeingSavedCanOnlyBeEnded) {
  Live live = own(token_range(0, 15));
  preempt(live);
  for (const bool is_taken : {false, true}) {
    if (is_taken) mover_->take();
    expect_refused(live, [&] { return cache_->resume(live.sequence); }, ErrorCode::Unavailable, "is being saved");
    expect_refused(live, [&] { return cache_->admit(live.sequence); }, ErrorCode::InvalidArgument, "is preempted");
    expect_refused(
        live, [&] { return cache_->preempt(live.sequence, Preempt::Save); }, ErrorCode::InvalidArgument,
        "is preempted");
    expect_refused(live, [&] { return cache_->fork(live.sequence, 4); }, ErrorCode::InvalidArgument, "is preempted");
    const StepEntry entry{&live.sequence};
    expect_refused(live, [&] { return cache_->plan_step({&entry, 1}); }, ErrorCode::InvalidArgument, "is preempted");
    expect_refused(
        live, [&] { return cache_->stop_loading(live.sequence); }, ErrorCode::InvalidArgument, "is not loading");
  }
  apply({mover_->move(0)});
  EXPECT_EQ(stats().saved_pages, 4U);
  EXPECT_EQ(stats().free_pages, 16U);
  const Result<Admission> admission = cache_->resume(live.sequence);
  ASSERT_TRUE(admission);
  EXPECT_FALSE(admission->is_ready);
  expect_refused(live, [&] { return cache_->resume(live.sequence); }, ErrorCode::InvalidArgument, "is loading");
  const StepEntry entry{&live.sequence};
  expect_refused(live, [&] { return cache_->plan_step({&entry, 1}); }, ErrorCode::InvalidArgument, "is loading");
  expect_refused(live, [&] { return cache_->rewind(live.sequence, 1); }, ErrorCode::InvalidArgument, "is loading");
  settle();
  expect_good(live);
}

TEST_F(CacheSave, OneThatWasDroppedAndLoadsIsNotResumedTwice) {
  Live live = computed(token_range(0, 16));
  settle();
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  ASSERT_TRUE(cache_->reclaim(99));
  ASSERT_EQ(cache_->resume(live.sequence)->loading_tokens, 16U);
  expect_refused(live, [&] { return cache_->resume(live.sequence); }, ErrorCode::InvalidArgument, "is loading");
  settle();
  EXPECT_EQ(view(live).computed_tokens, 16U);
  expect_good(live);
}

TEST_F(CacheSave, EndedWhileItIsSavedItLeavesNothing) {
  for (const bool is_taken : {false, true}) {
    for (const bool is_dropped : {false, true}) {
      Live live = own(token_range(0, 15));
      preempt(live);
      if (is_taken) mover_->take();
      if (is_dropped) {
        live.sequence = Sequence();
      } else {
        end(live);
      }
      EXPECT_EQ(stats().sequence_count, 0U);
      expect_invariants();
      EXPECT_EQ(stats().free_pages, 12U);  // its pages are still to be read
      EXPECT_EQ(stats().fenced_pages, 4U);
      settle();
      EXPECT_EQ(stats().free_pages, 16U);
      EXPECT_EQ(stats().host_free_pages, 16U);
      EXPECT_EQ(stats().saved_pages, 0U);
    }
  }
}

TEST_F(CacheSave, EndedWhileItIsRestoredItLeavesNothing) {
  for (const bool is_taken : {false, true}) {
    for (const bool is_dropped : {false, true}) {
      Live live = own(token_range(0, 15));
      preempt(live);
      settle();
      ASSERT_EQ(cache_->resume(live.sequence)->loading_tokens, 15U);
      if (is_taken) mover_->take();
      if (is_dropped) {
        live.sequence = Sequence();
      } else {
        end(live);
      }
      EXPECT_EQ(stats().sequence_count, 0U);
      expect_invariants();
      EXPECT_EQ(stats().transfers_in_flight, is_taken ? 1U : 0U);
      std::array<TransferId, 4> cancelled;
      EXPECT_EQ(cache_->take_cancellations(cancelled)->size(), is_taken ? 1U : 0U);
      settle();
      EXPECT_EQ(stats().free_pages, 16U);
      EXPECT_EQ(stats().host_free_pages, 16U);
    }
  }
}

TEST_F(CacheSave, ABadPageIsComputedAgain) {
  for (const TransferOutcome outcome : {TransferOutcome::Failed, TransferOutcome::Cancelled}) {
    Live live = computed(token_range(0, 15));
    settle();
    preempt(live);
    settle();
    ASSERT_TRUE(cache_->reclaim(1));  // page 2 has to come from the host
    ASSERT_EQ(cache_->resume(live.sequence)->loading_tokens, 7U);
    mover_->take();
    ASSERT_EQ(mover_->waiting.size(), 1U);
    apply({mover_->fail_it(0, outcome, 1)});
    EXPECT_FALSE(view(live).is_loading);
    EXPECT_FALSE(view(live).is_waiting);
    EXPECT_EQ(view(live).miss.reason, MissReason::LoadFailed);
    EXPECT_EQ(view(live).computed_tokens, 8U);  // what is still cached counts
    EXPECT_EQ(view(live).pending_tokens, 7U);
    EXPECT_EQ(stats().saved_pages, 0U);
    step(live.sequence, live.tokens);
    expect_good(live);
    end(live);
    settle();
    expect_all_free();
  }
}

TEST_F(CacheSave, AForkThatIsComputedAgainHasNoHitsOnDisk) {
  Live live = computed(token_range(0, 15));
  settle();
  Live fork{cache_->fork(live.sequence, 15).value(), live.tokens};
  end(live);
  preempt(fork);
  settle();
  ASSERT_TRUE(cache_->reclaim(1));
  ASSERT_GT(cache_->resume(fork.sequence)->loading_tokens, 0U);
  mover_->take();
  apply({mover_->fail_it(0, TransferOutcome::Failed, 0)});
  EXPECT_EQ(view(fork).computed_tokens, 8U);
  EXPECT_EQ(stats().disk_hit_tokens, 0U);
  end(fork);
  settle();
}

TEST_F(CacheSave, ABadPageOfASlidWindowIsCorrupt) {
  Live live = own(token_range(0, 40));
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 12, .sink_tokens = 5}));
  expect_refused(
      live, [&] { return cache_->preempt(live.sequence, Preempt::Drop); }, ErrorCode::Unsupported,
      "cannot be computed again");
  preempt(live);
  settle();
  for (auto& [id, page] : mover_->host_pages) page.is_bad = true;
  ASSERT_TRUE(cache_->resume(live.sequence));
  settle();
  EXPECT_TRUE(view(live).is_waiting);
  expect_refused(live, [&] { return cache_->resume(live.sequence); }, ErrorCode::Corrupt, "has lost pages");
  EXPECT_EQ(stats().free_pages, 16U);
  EXPECT_EQ(stats().host_free_pages, 16U);
  end(live);
  expect_all_free();
}

TEST_F(CacheSave, WhatIsCachedOnTheHostMakesRoom) {
  open_tiers(tiers_config(16, 6, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 24));
  EXPECT_EQ(stats().host_free_pages, 0U);
  Live live = own(token_range(100, 15));
  preempt(live);
  EXPECT_EQ(stats().host_evicted_page_total, 4U);
  settle();
  EXPECT_EQ(stats().saved_pages, 4U);
  EXPECT_EQ(lookup(token_range(0, 24)).host_tokens, 8U);
  ASSERT_TRUE(cache_->resume(live.sequence));
  settle();
  expect_good(live);
}

TEST_F(CacheSave, WithoutRoomItIsRefused) {
  open_tiers(tiers_config(16, 6, WritePolicy::WriteThrough));
  Live first = own(token_range(0, 15));
  preempt(first);
  settle();
  Live second = own(token_range(100, 15));
  expect_refused(
      second, [&] { return cache_->preempt(second.sequence, Preempt::Save); }, ErrorCode::Unavailable,
      "has 4 pages to save; the host has room for 2");
  expect_good(second);
  // Pages that a load reads are not room.
  end(first);
  end(second);
  settle();
  expect_all_free();
  put_on_host(token_range(0, 24));
  Live loading = begun(token_range(0, 24), {.prefetch = Prefetch::Wait});
  mover_->take();
  second = own(token_range(100, 15));
  expect_refused(
      second, [&] { return cache_->preempt(second.sequence, Preempt::Save); }, ErrorCode::Unavailable,
      "the host has room for 0");
  settle();
  preempt(second);
  settle();
  end(loading);
  end(second);
}

TEST_F(CacheSave, TransfersThatAreMissingRefuseIt) {
  CacheConfig config = tiers_config(24, 32, WritePolicy::WriteThrough);
  config.host.transfer_count_max = 2;
  config.host.transfer_pages_max = 2;
  open_tiers(std::move(config));
  Live large = own(token_range(0, 20));
  expect_refused(
      large, [&] { return cache_->preempt(large.sequence, Preempt::Save); }, ErrorCode::Unsupported,
      "host.transfer_count_max is 2");
  end(large);
  Live first = own(token_range(0, 16));
  Live second = own(token_range(100, 8));
  preempt(first);
  expect_refused(
      second, [&] { return cache_->preempt(second.sequence, Preempt::Save); }, ErrorCode::Unavailable,
      "needs 1 transfers; 0 are free");
  settle();
  ASSERT_TRUE(cache_->pause_transfers().value());
  expect_refused(
      second, [&] { return cache_->preempt(second.sequence, Preempt::Save); }, ErrorCode::Unavailable,
      "they are paused");
  expect_refused(first, [&] { return cache_->resume(first.sequence); }, ErrorCode::Unavailable, "they are paused");
  ASSERT_TRUE(cache_->resume_transfers());
  preempt(second);
  expect_refused(first, [&] { return cache_->resume(first.sequence); }, ErrorCode::Unavailable, "needs 2 transfers");
  settle();
  for (Live* const live : {&first, &second}) {
    ASSERT_TRUE(cache_->resume(live->sequence));
    settle();
    expect_good(*live);
    end(*live);
  }
  expect_all_free();
}

TEST_F(CacheSave, AResumeWithoutDevicePagesIsRefused) {
  Live live = own(token_range(0, 15));
  preempt(live);
  settle();
  Live other = own(token_range(100, 56));
  expect_refused(
      live, [&] { return cache_->resume(live.sequence); }, ErrorCode::Unavailable,
      "has 4 saved pages to bring back; 2 device pages are free or can be evicted");
  end(other);
  ASSERT_TRUE(cache_->resume(live.sequence));
  settle();
  expect_good(live);
}

TEST_F(CacheSave, AForkGoesOnWhileTheOtherIsSaved) {
  Live live = own(token_range(0, 10));
  Live fork{.sequence = cache_->fork(live.sequence, 10).value()};
  fork.tokens = live.tokens;
  preempt(live);
  mover_->take();
  expect_good(fork);  // writes where both had begun a page
  apply({mover_->move(0)});
  EXPECT_EQ(stats().saved_pages, 3U);
  expect_good(fork);
  ASSERT_TRUE(cache_->resume(live.sequence));
  settle();
  expect_good(live);
  end(live);
  end(fork);
  expect_all_free();
}

TEST_F(CacheSave, OneThatIsBroughtBackIsReadyWhenItsPagesAreThere) {
  Live live = own(token_range(0, 15));
  preempt(live);
  settle();
  const Admission admission = cache_->resume(live.sequence).value();
  EXPECT_FALSE(admission.is_ready);
  EXPECT_EQ(admission.loading_tokens, 15U);
  EXPECT_TRUE(view(live).is_loading);
  settle();
  expect_good(live);
  end(live);
}

TEST_F(CacheSave, TokensMayBeAddedWhileItIsAway) {
  Live live = own(token_range(0, 15));
  preempt(live);
  const auto add = [&](TokenId token) {
    ASSERT_TRUE(cache_->append(live.sequence, {.tokens = {&token, 1}}));
    live.tokens.push_back(token);
    expect_invariants();
  };
  add(501);
  settle();
  add(502);
  ASSERT_TRUE(cache_->resume(live.sequence));
  add(503);
  settle();
  EXPECT_EQ(view(live).computed_tokens, 15U);
  EXPECT_EQ(view(live).pending_tokens, 3U);
  step(live.sequence, live.tokens);
  expect_good(live);
}

TEST_F(CacheSave, AKeySpaceDroppedMeanwhileTakesNothingFromIt) {
  Live live = computed(token_range(0, 15));
  settle();
  preempt(live);
  settle();
  ASSERT_TRUE(cache_->drop(space_));
  expect_invariants();
  ASSERT_TRUE(cache_->resume(live.sequence));
  settle();
  EXPECT_EQ(view(live).computed_tokens, 15U);
  expect_good(live);
  end(live);
  expect_all_free();
}

TEST_F(CacheSave, WhatTheSaveOfAnEndedSequenceReadsIsNotAvailable) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough}) {
    open_tiers(tiers_config(4, 16, policy));
    Live live = computed(token_range(0, 16));
    settle();
    preempt(live);
    mover_->take();
    end(live);
    mover_->take();
    while (mover_->waiting.size() > 1) apply({mover_->move(1)});  // all but the save
    EXPECT_EQ(stats().evictable_pages, 4U);                       // cached, idle, copied, and being read
    Live next = admitted(token_range(100, 16));
    const StepEntry entry{&next.sequence};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    EXPECT_FALSE(outcome.step.has_value());
    EXPECT_EQ(outcome.shortage.pages_available, 0U);
    EXPECT_EQ(outcome.shortage.pages_leaving, 4U);
    settle();
    finish(next);
    settle();
    expect_all_free();
  }
}

TEST_F(CacheSave, APageToBeCopiedStaysWhileItIsSaved) {
  open_tiers(tiers_config(4, 16, WritePolicy::WriteThrough));
  serve(token_range(0, 8));
  std::vector<TokenId> tokens = token_range(0, 6);
  tokens.push_back(999);
  Live live = admitted(tokens);
  EXPECT_EQ(view(live).computed_tokens, 6U);  // two of them are to be copied from a cached page
  preempt(live);
  mover_->take();
  Live other = admitted(token_range(100, 12));
  const StepEntry entry{&other.sequence};
  const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
  EXPECT_FALSE(outcome.step.has_value());  // that page is not to be had by giving up the copy
  EXPECT_EQ(outcome.shortage.pages_available, 2U);
  EXPECT_EQ(outcome.shortage.pages_leaving, 2U);
  expect_invariants();
  settle();
  finish(other);
  settle();
  ASSERT_TRUE(cache_->resume(live.sequence));
  settle();
  EXPECT_EQ(view(live).computed_tokens, 6U);
  finish(live);
  settle();
  expect_all_free();
}

// What the simulation found, each in as few calls as it takes

class CacheSaveSim : public TiersTest {
 protected:
  /// Four pages of four tokens; nothing but saved pages goes to the host.
  void SetUp() override {
    CacheConfig config = tiers_config(4, 8);
    config.host = host_for_saving(8);
    config.host.external_mover = true;
    open_tiers(std::move(config));
  }
  [[nodiscard]] std::optional<Step> plan(const Sequence& sequence) {
    const StepEntry entry{&sequence};
    return cache_->plan_step({&entry, 1}).value().step;
  }
  void finish(const Step& step, std::span<const TokenId> tokens) {
    ASSERT_TRUE(cache_->apply_copies(step));
    engine_->run(step.plan.entries[0], 0, tokens);
    const StepResult result;
    ASSERT_TRUE(cache_->finish_step(step, {&result, 1}));
    expect_invariants();
  }
};

TEST_F(CacheSaveSim, PagesOfOneThatEndedWhileBeingSavedAreNotThereYet) {
  const std::vector<TokenId> tokens = token_range(0, 8);
  Sequence saved = begin_admitted(tokens);
  finish(plan(saved).value(), tokens);
  ASSERT_TRUE(cache_->preempt(saved, Preempt::Save));
  mover_->take();
  ASSERT_TRUE(cache_->end(saved));  // its two pages are idle, but they are being read
  const std::vector<TokenId> others = token_range(40, 16);
  Sequence other = begin_admitted(others);
  EXPECT_FALSE(plan(other));
  settle();
  const std::optional<Step> step = plan(other);
  ASSERT_TRUE(step);
  finish(*step, others);
  EXPECT_EQ(stats().saved_pages, 0U);
  EXPECT_EQ(stats().host_free_pages, 8U);
}

TEST_F(CacheSaveSim, ATailThatIsBeingSavedIsNotGivenUp) {
  EXPECT_EQ(serve(token_range(0, 8)), 0U);
  const std::vector<TokenId> tokens = token_range(0, 6);
  Sequence saved = begin_admitted(tokens);  // one page, and a part of one that is to be copied
  ASSERT_EQ(cache_->view(saved).value().computed_tokens, 6U);
  ASSERT_TRUE(cache_->preempt(saved, Preempt::Save));
  mover_->take();
  const std::vector<TokenId> others = token_range(40, 12);
  Sequence other = begin_admitted(others);
  EXPECT_FALSE(plan(other));
  EXPECT_EQ(cache_->view(saved).value().computed_tokens, 6U);
  settle();
  const std::optional<Step> step = plan(other);
  ASSERT_TRUE(step);
  finish(*step, others);
  ASSERT_TRUE(cache_->end(other));
  ASSERT_TRUE(cache_->resume(saved));
  settle();
  EXPECT_EQ(cache_->view(saved).value().computed_tokens, 6U);
  finish(plan(saved).value(), tokens);
}

// Not of saved pages, but found with them.
TEST_F(CacheSaveSim, ABadPageOfAKeySpaceThatWasDroppedGoesOnce) {
  CacheConfig config = tiers_config(4, 8);
  config.host.transfer_pages_max = 1;
  open_tiers(std::move(config));
  const std::vector<TokenId> tokens = token_range(0, 8);
  EXPECT_EQ(serve(tokens), 0U);
  EXPECT_EQ(serve(token_range(40, 16)), 0U);
  ASSERT_EQ(cache_->lookup(space_, {.tokens = tokens}).value().host_tokens, 8U);
  Sequence sequence = cache_->begin(space_, {.tokens = tokens}, {.prefetch = Prefetch::Wait}).value();
  ASSERT_EQ(stats().transfers_in_flight, 2U);
  std::array<TransferPlan, 1> plans;
  const TransferId load = cache_->take_transfers(plans).value().front().id;  // nobody takes the other one
  ASSERT_TRUE(cache_->drop(space_));
  apply({{.id = load, .outcome = TransferOutcome::Failed, .fault = TransferFault::Checksum}});
  ASSERT_TRUE(cache_->end(sequence));
  settle();
  EXPECT_EQ(stats().transfers_in_flight, 0U);
  EXPECT_EQ(stats().host_free_pages, 8U);
  EXPECT_EQ(stats().free_pages, 4U);
}

TEST_F(CacheSaveSim, AShortageTellsOfEntriesWithoutTheCopiesThatWereGivenUp) {
  CacheConfig config = tiers_config(6, 8);
  config.host.clean_reserve_pages = 0;
  open_tiers(std::move(config));
  EXPECT_EQ(serve(token_range(0, 12)), 0U);  // three pages, none of them on the host
  std::vector<TokenId> tokens = token_range(0, 2);
  tokens.resize(16, 70);
  Sequence windowed = cache_->begin(space_, {.tokens = tokens}).value();
  ASSERT_TRUE(cache_->set_window(windowed, {.visible_tokens = 9, .sink_tokens = 1}));
  ASSERT_EQ(cache_->admit(windowed).value().partial_tokens, 2U);
  const Sequence other = begin_admitted(token_range(40, 8));
  // Tokens [2, 16) need the sink's page and two; without the copy, tokens [0, 14) need one more.
  const std::array<StepEntry, 2> entries = {{{&windowed, 14}, {&other}}};
  const PlanOutcome outcome = cache_->plan_step(entries).value();
  ASSERT_FALSE(outcome.step);
  ASSERT_EQ(cache_->view(windowed).value().computed_tokens, 0U);
  EXPECT_EQ(outcome.shortage.pages_available, 3U);
  EXPECT_EQ(outcome.shortage.pages_needed, 6U);
  EXPECT_EQ(outcome.shortage.entries_that_fit, 0U);
}

}  // namespace
}  // namespace quire
