// SPDX-License-Identifier: Apache-2.0
//
// A lower tier is an implementation of LowerTier and a row of settings: caches with a tier in memory, and with two of
// them, one behind the other.
#include <algorithm>
#include <array>
#include <vector>

#include "lower_tiers_fixture.h"

namespace quire {
namespace {

TEST_F(LowerTiersTest, PagesGoToAllTiersAndTheNearestServesThem) {
  for (const std::size_t count : {1U, 2U, 3U}) {
    open_lowers(std::vector<LowerSettings>(count));
    const std::vector<TokenId> tokens = token_range(0, (5 * kPageTokens) + 1);
    EXPECT_EQ(serve_from_below(tokens), 0U);
    EXPECT_EQ(question_counts(), Counts(count, 1));  // each was asked, and had nothing
    for (const auto& tier : tiers_) EXPECT_EQ(tier->page_count(), 5U);
    EXPECT_EQ(serve_from_below(tokens), 5 * kPageTokens);
    Counts asked(count, 1);
    asked[0] = 2;
    EXPECT_EQ(question_counts(), asked);
    EXPECT_EQ(near().loaded_page_count, 5U);
    close();
  }
}

TEST_F(LowerTiersTest, MoreTiersThanADropHasTransfersForAreRefused) {
  CacheConfig config = tiers_config(8, 8, WritePolicy::WriteThrough);
  config.page.page_tokens = kPageTokens;
  config.host.transfer_count_max = 1;
  cache_ = open_cache(std::move(config));
  MemoryTier tier({.names = {.page_tokens = kPageTokens},
                   .log = {.page_tokens = kPageTokens},
                   .hosts = {&host_pages_},
                   .page_bytes = kPageCost});
  const std::vector<CacheForTests::LowerRow> rows(2, {.tier = tier, .settings = {}});
  const Status status = CacheForTests::add_lowers(*cache_, rows, {.page_tokens = kPageTokens});
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
}

TEST_F(LowerTiersTest, ARequestThatDoesNotReachSoFarDownDoesNotAskThere) {
  open_lowers({{}, {.tier = Tier::Remote}});
  Live live = admitted(token_range(0, 2 * kPageTokens), {.tier_max = Tier::Disk});
  settle_lowers();
  EXPECT_EQ(question_counts(), (Counts{1, 0}));
  finish(live);
}

TEST_F(LowerTiersTest, ATierThatIsOnlyReadGetsNoPagesAndOneThatIsOnlyWrittenIsNotAsked) {
  const std::vector<TokenId> tokens = token_range(0, (3 * kPageTokens) + 1);
  open_lowers({{.access = TierAccess::WriteOnly}, {.access = TierAccess::ReadOnly}, {}});
  EXPECT_EQ(serve_from_below(tokens), 0U);
  EXPECT_EQ(question_counts(), (Counts{0, 1, 1}));
  EXPECT_EQ(tiers_[0]->page_count(), 3U);
  EXPECT_EQ(tiers_[1]->page_count(), 0U);
  EXPECT_EQ(tiers_[2]->page_count(), 3U);
  EXPECT_EQ(serve_from_below(tokens), 3 * kPageTokens);
  EXPECT_EQ(tiers_[2]->loaded_page_count, 3U);
  EXPECT_EQ(question_counts(), (Counts{0, 2, 2}));
  // Pages that came from another tier are not written to it, either.
  EXPECT_EQ(tiers_[1]->stored_page_count, 0U);
  close();
}

TEST_F(LowerTiersTest, WhatOneTierCannotBringTheNextDoes) {
  const std::vector<TokenId> tokens = token_range(0, (4 * kPageTokens) + 1);
  struct Case {
    MemoryTier::Faults faults;
    bool fails = false;
  };
  for (const Case& each : {Case{.faults = {.failed_questions = 100}}, Case{.faults = {.failed_loads = 100}},
                           Case{.faults = {}, .fails = true}}) {
    open_two();
    (void)serve_from_below(tokens);
    near().faults = each.faults;
    if (each.fails) near().fail();
    EXPECT_EQ(serve_from_below(tokens), 4 * kPageTokens);
    EXPECT_EQ(far().loaded_page_count, 4U);
    // And goes on taking what is new.
    (void)serve_from_below(token_range(500, 3 * kPageTokens));
    EXPECT_EQ(far().page_count(), 7U);
    EXPECT_EQ(near().page_count(), each.fails ? 4U : 7U);
    close();
  }
}

// The second tier is asked for what follows pages that the first one brought, and learns their names from the log.
TEST_F(LowerTiersTest, WhereOneTierEndsTheNextGoesOn) {
  open_two();
  const std::vector<TokenId> tokens = token_range(0, (6 * kPageTokens) + 1);
  (void)serve_from_below({tokens.begin(), tokens.begin() + (3 * kPageTokens)});
  near().faults.failed_stores = 100;
  (void)serve_from_below(tokens);
  EXPECT_EQ(near().page_count(), 3U);
  EXPECT_EQ(far().page_count(), 6U);
  // Host pages get other places, and what they were called before is not what they are.
  (void)serve_from_below(token_range(1'000, 2 * kPageTokens));
  EXPECT_EQ(serve_from_below(tokens), 6 * kPageTokens);
  EXPECT_EQ(near().loaded_page_count, 3U + 3U);
  EXPECT_EQ(far().loaded_page_count, 3U);
}

TEST_F(LowerTiersTest, EveryTierHasItsOwnBudgetAndPolicy) {
  open_lowers({{.write_bytes_per_day = 24 * 6 * kPageCost}, {}, {.write_policy = WritePolicy::Selective}});
  (void)serve_from_below(token_range(0, 9 * kPageTokens));
  EXPECT_EQ(tiers_[0]->page_count(), 3U);  // half of an hour's share
  EXPECT_EQ(tiers_[1]->page_count(), 9U);
  EXPECT_EQ(tiers_[2]->page_count(), 0U);  // nobody came back for them
}

// Pages that are used again before they are on the host: how often they must be is each tier's own.
TEST_F(LowerTiersTest, EveryTierSaysHowOftenPagesAreUsedBeforeItTakesThem) {
  const auto selective = [](std::uint32_t hits_min) {
    return LowerSettings{.write_policy = WritePolicy::Selective, .write_hits_min = hits_min};
  };
  open_lowers({selective(2), selective(9)});
  const std::vector<TokenId> tokens = token_range(0, (2 * kPageTokens) + 1);
  std::vector<Live> lives;
  for (int i = 0; i < 3; ++i) {
    lives.push_back(admitted(tokens));
    while (run_tiers()) {  // they have nothing; and nothing is copied to the host
    }
    step(lives.back().sequence, lives.back().tokens);
  }
  settle_lowers();
  EXPECT_EQ(near().page_count(), 2U);
  EXPECT_EQ(far().page_count(), 0U);
  for (Live& live : lives) end(live);
}

TEST_F(LowerTiersTest, AFlushReachesTheTiersThatWorkAndTellsOfTheOthers) {
  for (const bool fails : {false, true}) {
    open_two();
    (void)serve_from_below(token_range(0, 3 * kPageTokens));
    if (fails) near().fail();
    (void)serve_from_below(token_range(500, 3 * kPageTokens));
    Result<bool> flushed = cache_->flush();
    for (int i = 0; i < 9 && flushed && !*flushed; ++i, flushed = cache_->flush()) settle_lowers();
    EXPECT_EQ(flushed.has_value(), !fails);
    EXPECT_EQ(near().flush_count, fails ? 0U : 1U);
    EXPECT_EQ(far().flush_count, 1U);
    close();
  }
}

TEST_F(LowerTiersTest, AFlushGoesOnAsLongAsDropsMayKeepPagesFromBeingWritten) {
  for (const std::uint32_t extent_pages : {1U, 3U}) {
    extent_pages_ = extent_pages;
    open_lowers({{}});
    const auto flush = [&] {
      Result<bool> flushed = false;
      for (int i = 0; i < 30 && flushed && !*flushed; ++i) {
        flushed = cache_->flush();
        settle_lowers();
      }
      return flushed;
    };
    near().faults.cancelled_stores = 100;
    Live live = admitted(token_range(0, 6 * kPageTokens));
    settle_lowers();
    finish(live);
    settle_lowers();
    // The tier says that all drops are done, and goes on as if they were not.
    const Result<bool> refused = flush();
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
    EXPECT_NE(refused.error().message.find("drops go on"), std::string::npos) << refused.error().message;
    EXPECT_EQ(near().flush_count, 4U);
    near().faults.cancelled_stores = 0;
    const Result<bool> flushed = flush();
    ASSERT_TRUE(flushed.has_value()) << flushed.error().message;
    EXPECT_TRUE(*flushed);
    EXPECT_EQ(near().page_count(), 6U);
    EXPECT_EQ(near().flush_count, 5U);
    close();
  }
}

// What the near tier has is still there: only what the far tier lost is written again.
TEST_F(LowerTiersTest, AFailedTierDoesNotCostTheOthersTheirPages) {
  open_two();
  Live live = admitted(token_range(0, (5 * kPageTokens) + 1));
  settle_lowers();
  finish(live);
  settle_lowers();
  ASSERT_EQ(near().stored_page_count, 5U);
  ASSERT_EQ(far().stored_page_count, 5U);
  far().fail();
  Result<bool> flushed = false;
  while (flushed && !*flushed) {
    flushed = cache_->flush();
    settle_lowers();
  }
  EXPECT_FALSE(flushed.has_value());
  EXPECT_EQ(near().stored_page_count, 5U);
  (void)cache_->flush();
  settle_lowers();
  EXPECT_EQ(near().stored_page_count, 5U) << "pages were written twice";
}

TEST_F(LowerTiersTest, ADiskAndATierBehindItServeTheSamePages) {
  open_disk(disk_config());
  add_tiers({{}}, 1'000);
  space_ = cache_->key_space({.model = "of both"}).value();
  const std::vector<TokenId> tokens = token_range(0, (4 * kPageTokens) + 1);
  const auto serve_from_both = [&] {
    Live live = admitted(tokens);
    do {
      settle_all();
    } while (run_tiers());
    const std::uint32_t computed_tokens = view(live).computed_tokens;
    finish(live);
    do {
      settle_all();
    } while (run_tiers());
    forget_memory();
    return computed_tokens;
  };
  EXPECT_EQ(serve_from_both(), 0U);
  EXPECT_EQ(far().page_count(), 4U);
  EXPECT_EQ(serve_from_both(), 4 * kPageTokens);
  EXPECT_EQ(far().question_count, 1U);  // the first time, when the disk had nothing
  disk_->set_broken(kPath);
  EXPECT_EQ(serve_from_both(), 4 * kPageTokens);
  EXPECT_EQ(far().loaded_page_count, 4U);
}

// Requests of a few families of prompts, in two key spaces that are dropped and made anew with other bytes, while both
// tiers are late, lose pages, fail, answer twice and bring bytes that have changed.
class LowerTiersRun {
 public:
  explicit LowerTiersRun(std::uint64_t seed) : random(seed) {}
  struct Request {
    Live live;
    std::uint64_t salt = 0;
  };
  struct Space {
    KeySpaceId id;
    std::uint64_t salt = 0;
  };
  testing::Random random;
  std::vector<Request> requests;
  std::array<Space, 2> spaces{};
  std::uint64_t last_salt = 0;
};

class RandomLowerTiersTest : public LowerTiersTest {
 protected:
  void make_space(LowerTiersRun& run, std::size_t index) {
    const KeySpace key_space{.model = index == 0 ? "a" : "b"};
    run.spaces[index] = {.id = cache_->key_space(key_space).value(), .salt = ++run.last_salt};
  }

  void admit_one(LowerTiersRun& run) {
    const LowerTiersRun::Space& space = run.spaces[run.random.below(2)];
    const std::uint32_t family = run.random.below(4);
    const std::uint32_t length = 1 + run.random.below(7 * kPageTokens);
    const std::uint32_t fork = run.random.below(3) == 0 ? run.random.below(length) : length;
    std::vector<TokenId> tokens = token_range(static_cast<TokenId>(1'000 * family), length);
    for (std::uint32_t i = fork; i < length; ++i) tokens[i] += 100 * static_cast<TokenId>(1 + run.random.below(2));
    Live live{.sequence = cache_->begin(space.id, {.tokens = tokens}).value(), .tokens = tokens};
    if (cache_->admit(live.sequence)) {
      run.requests.push_back({.live = std::move(live), .salt = space.salt});
    } else {
      end(live);
    }
  }

  void step_one(LowerTiersRun& run) {
    if (run.requests.empty()) return;
    const std::size_t place = run.random.below(static_cast<std::uint32_t>(run.requests.size()));
    LowerTiersRun::Request& request = run.requests[place];
    if (view(request.live).is_loading) return;
    if (view(request.live).pending_tokens > 0) {
      const StepEntry entry{&request.live.sequence};
      const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      if (outcome.step) {
        ASSERT_TRUE(cache_->apply_copies(*outcome.step));
        engine_->run(outcome.step->plan.entries[0], request.salt, request.live.tokens);
        const StepResult result;
        ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
      }
    }
    end(request.live);
    run.requests.erase(run.requests.begin() + static_cast<std::ptrdiff_t>(place));
  }

  void move_one(LowerTiersRun& run) {
    mover_->take();
    if (mover_->waiting.empty()) return;
    const std::size_t place = run.random.below(static_cast<std::uint32_t>(mover_->waiting.size()));
    apply({run.random.below(50) == 0 ? mover_->fail_it(place, TransferOutcome::Failed) : mover_->move(place)});
  }

  void do_one(LowerTiersRun& run) {
    const std::uint32_t draw = run.random.below(100);
    if (draw < 15) {
      if (run.requests.size() < 4) admit_one(run);
    } else if (draw < 30) {
      step_one(run);
    } else if (draw < 55) {
      move_one(run);
    } else if (draw < 80) {
      (void)tiers_[run.random.below(static_cast<std::uint32_t>(tiers_.size()))]->run_one(run.random);
    } else if (draw < 95) {
      (void)hear_lowers();
    } else if (draw < 97) {
      now_ += TimeNs{1'000'000'000} * run.random.below(600);
      apply({});
    } else if (draw < 98) {
      (void)cache_->flush();
    } else if (draw < 99 && run.random.below(4) == 0) {
      const std::size_t index = run.random.below(2);
      ASSERT_TRUE(cache_->drop(run.spaces[index].id));
      make_space(run, index);
    } else {
      ASSERT_TRUE(cache_->reclaim(run.random.below(8)));
    }
  }

  void run_seed(std::uint64_t seed, bool has_extents = false) {
    LowerTiersRun run(seed);
    const std::uint64_t budget = seed % 3 == 0 ? 24 * 40 * kPageCost : 0;
    std::vector<LowerSettings> rows(1 + (seed % 5 != 0 ? 1 : 0));
    rows.back().write_bytes_per_day = budget;
    now_ = 0;
    const std::uint32_t page_count = 10 + run.random.below(9);
    const std::uint32_t host_page_count = 8 + run.random.below(9);
    const std::uint32_t lower_page_count = 10 + run.random.below(60);
    if (has_extents) {
      CacheConfig config = tiers_config(page_count, host_page_count, static_cast<WritePolicy>(run.random.below(3)));
      config.host.transfer_pages_max = 4 + run.random.below(3);
      extents_by_tier_ = {1U << run.random.below(3), 1U << run.random.below(3)};
      for (LowerSettings& row : rows) row.write_policy = static_cast<WritePolicy>(run.random.below(3));
      open_lowers(rows, std::move(config), lower_page_count);
    } else {
      open_lowers(rows, page_count, host_page_count, lower_page_count);
    }
    for (std::size_t i = 0; i < run.spaces.size(); ++i) make_space(run, i);
    for (const auto& tier : tiers_) {
      if (run.random.below(3) == 0) continue;
      tier->faults = {.failed_questions = run.random.below(20),
                      .promised_pages = run.random.below(20),
                      .failed_loads = run.random.below(20),
                      .changed_bytes = run.random.below(20),
                      .failed_stores = run.random.below(20),
                      .cancelled_stores = run.random.below(20),
                      .repeated_answers = run.random.below(20)};
    }
    const std::uint32_t failing = run.random.below(4);  // 0, 1: a tier, half way
    for (int step = 0; step < 3'000 && !HasFatalFailure() && !HasNonfatalFailure(); ++step) {
      if (step == 1'500 && failing < tiers_.size()) tiers_[failing]->fail();
      if (step == 1'500) far_loads_before_ = far().loaded_page_count;
      do_one(run);
      if (budget == 0) continue;
      const auto refilled = static_cast<std::uint64_t>(static_cast<double>(now_) / 86'400e9 * 23 * 40 * kPageCost);
      ASSERT_LE(far().stored_page_count * kPageCost, (40 * kPageCost) + refilled + 1);
    }
    if (failing == 0 && tiers_.size() == 2) served_by_far_ += far().loaded_page_count - far_loads_before_;
    near_loads_ += near().loaded_page_count;
    // Nothing waits for ever: who waits for room that others have notices after a while that nobody does anything.
    for (int i = 0; i < 20; ++i) settle_lowers();
    for (LowerTiersRun::Request& request : run.requests) {
      EXPECT_FALSE(view(request.live).is_loading);
      end(request.live);
    }
    expect_all_free_below();
  }

  void expect_all_free_below() {
    ASSERT_TRUE(cache_->reset());
    settle_lowers();
    EXPECT_EQ(stats().transfers_in_flight, 0U);
    EXPECT_EQ(stats().free_pages, stats().page_count);
    EXPECT_EQ(stats().host_free_pages, stats().host_page_count);
  }

  std::uint64_t far_loads_before_ = 0;
  std::uint64_t served_by_far_ = 0;  // while the near one has failed
  std::uint64_t near_loads_ = 0;
};

TEST_F(RandomLowerTiersTest, NoWrongByteIsServedWhateverTiersDo) {
  for (std::uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_seed(seed);
  }
  EXPECT_GT(near_loads_, 1'000U);
  EXPECT_GT(served_by_far_, 100U);
}

TEST_F(RandomLowerTiersTest, NoWrongByteIsServedWhereTiersHaveExtents) {
  for (std::uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_seed(seed, /*has_extents=*/true);
  }
  EXPECT_GT(near_loads_, 300U);
  EXPECT_GT(served_by_far_, 20U);
}

}  // namespace
}  // namespace quire
