// SPDX-License-Identifier: Apache-2.0
//
// What the simulation found of sequences that are saved, each in as few calls as it takes.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiers_fixture.h"

namespace quire {
namespace {

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
  ASSERT_TRUE(cache_->set_window(windowed, {.window_tokens = 9, .sink_tokens = 1}));
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
