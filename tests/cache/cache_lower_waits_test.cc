// SPDX-License-Identifier: Apache-2.0
//
// How long requests wait for lower tiers, which of them they ask, and in which order: by what was measured, and never
// longer than computing takes.
#include <vector>

#include "lower_tiers_fixture.h"

namespace quire {
namespace {

constexpr TimeNs kComputeNs = 10;  // for a token
constexpr TimeNs kPageNs = kComputeNs * 16;

class LowerWaitsTest : public LowerTiersTest {
 protected:
  void open_waits(const std::vector<LowerSettings>& rows, TimeNs load_timeout_ns = 0, TimeNs compute_ns = kComputeNs) {
    CacheConfig config = tiers_config(64, 64, WritePolicy::WriteThrough);
    config.host.transfer_pages_max = 3;
    config.host.compute_ns_per_token = compute_ns;
    config.host.load_timeout_ns = load_timeout_ns;
    open_lowers(rows, std::move(config));
    // What is loaded to the device takes no time that counts.
    for (const auto& tier : tiers_) tier->ns_per_byte = 1e-6;
    set_time(1'000);
  }
  void set_time(TimeNs now) {
    now_ = now;
    apply({});
    settle();
  }
  [[nodiscard]] static std::vector<TokenId> prompt_of(std::uint32_t page_count, TokenId first = 0) {
    return token_range(first, (page_count * kPageTokens) + 1);
  }
  /// The tiers below have these tokens, and nobody else.
  void put_below(const std::vector<TokenId>& tokens) {
    Live live = admitted(tokens);
    settle_lowers();
    finish(live);
    settle_lowers();
    forget_memory();
  }
  /// One plan of a tier is done, and heard of.
  void run_one(MemoryTier& tier) {
    ASSERT_TRUE(tier.run_one(random_));
    (void)hear_lowers();
    settle();
  }
};

TEST_F(LowerWaitsTest, ARequestWaitsNoLongerThanComputingTakes) {
  open_waits({{}});
  put_below(prompt_of(4));
  Live live = admitted(prompt_of(4));
  set_time(1'000 + (4 * kPageNs) - 1);
  EXPECT_TRUE(view(live).is_loading);
  set_time(1'000 + (4 * kPageNs));
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 0U);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadTimedOut);
  finish(live);
  settle_lowers();
}

TEST_F(LowerWaitsTest, TheSmallestLimitCounts) {
  open_waits({{}}, /*load_timeout_ns=*/100);
  put_below(prompt_of(4));
  Live live = admitted(prompt_of(4));
  set_time(1'099);
  EXPECT_TRUE(view(live).is_loading);
  set_time(1'100);
  EXPECT_FALSE(view(live).is_loading);
  finish(live);
  settle_lowers();
}

// Computing what was found may take less time than computing all that was asked for.
TEST_F(LowerWaitsTest, WhatWasFoundIsWaitedForAsLongAsComputingItTakes) {
  open_waits({{}});
  put_below(prompt_of(2));
  Live live = admitted(prompt_of(20));
  set_time(1'500);
  run_one(near());  // the answer
  EXPECT_TRUE(view(live).is_loading);
  set_time(1'500 + (2 * kPageNs) - 1);
  EXPECT_TRUE(view(live).is_loading);
  set_time(1'500 + (2 * kPageNs));
  EXPECT_FALSE(view(live).is_loading);
  finish(live);
  settle_lowers();
}

TEST_F(LowerWaitsTest, WhatHasArrivedInOrderByThenIsUsed) {
  open_waits({{}});
  put_below(prompt_of(6));
  Live live = admitted(prompt_of(6));
  run_one(near());
  const std::uint64_t before = near().loaded_page_count;
  while (near().loaded_page_count == before) run_one(near());
  EXPECT_EQ(near().loaded_page_count, before + 3);  // perhaps those behind
  run_one(near());
  EXPECT_EQ(view(live).computed_tokens, 6 * kPageTokens);
  end(live);
  forget_memory();
  near().load_pages_max = 2;  // late with the third page of each load
  Live late = admitted(prompt_of(6));
  run_one(near());
  settle_lowers();
  EXPECT_FALSE(view(late).is_loading);
  EXPECT_EQ(view(late).computed_tokens, 2 * kPageTokens);
  EXPECT_EQ(view(late).miss.reason, MissReason::LoadTimedOut);
  finish(late);
  settle_lowers();
}

TEST_F(LowerWaitsTest, TiersAreToldHowLongTheyHave) {
  open_waits({{.find_timeout_ns = 320, .load_timeout_ns = 160, .store_timeout_ns = 7'000}});
  put_below(prompt_of(4));
  EXPECT_EQ(near().store_timeouts, (std::vector<TimeNs>{7'000, 7'000}));
  Live live = admitted(prompt_of(4));
  EXPECT_EQ(near().find_timeouts.back(), 300);  // a sixteenth is for the answer's way
  set_time(1'100);
  run_one(near());
  EXPECT_EQ(near().load_timeouts, (std::vector<TimeNs>{150, 150}));
  settle_lowers();
  EXPECT_EQ(view(live).computed_tokens, 4 * kPageTokens);
  end(live);
}

TEST_F(LowerWaitsTest, WhenATierTakesLongerThanItMayTheNextIsAsked) {
  for (const bool has_answered : {false, true}) {
    open_waits({{.find_timeout_ns = 50, .load_timeout_ns = 50}, {}});
    put_below(prompt_of(4));
    Live live = admitted(prompt_of(4));
    if (has_answered) run_one(near());
    EXPECT_EQ(question_counts(), (Counts{has_answered ? 2U : 1U, 1}));
    set_time(1'050);
    EXPECT_TRUE(view(live).is_loading);
    EXPECT_TRUE(far().run_one(random_));
    EXPECT_EQ(question_counts()[1], 2U);
    settle_lowers();
    EXPECT_EQ(view(live).computed_tokens, 4 * kPageTokens);
    EXPECT_EQ(far().loaded_page_count, 4U);
    end(live);
    settle_lowers();
  }
}

// All tiers together have as long as computing takes.
TEST_F(LowerWaitsTest, SeveralTiersDoNotHoldARequestLonger) {
  open_waits({{.find_timeout_ns = 400}, {}});
  put_below(prompt_of(4));
  Live live = admitted(prompt_of(4));
  set_time(1'400);
  EXPECT_TRUE(view(live).is_loading);
  set_time(1'000 + (4 * kPageNs));
  EXPECT_FALSE(view(live).is_loading);
  finish(live);
  settle_lowers();
}

TEST_F(LowerWaitsTest, DropsThatATierDoesNotEndHoldNoOtherKeySpace) {
  open_lowers({{}, {.tier = Tier::Remote}});
  put_below(prompt_of(4));
  for (int i = 0; i < 20; ++i) {
    const KeySpaceId other = cache_->key_space({.model = "other " + std::to_string(i)}).value();
    ASSERT_TRUE(cache_->drop(other));
    settle();
    while (near().run_one(random_)) {
    }
    (void)hear_lowers();
  }
  Live live = admitted(prompt_of(4));
  for (int i = 0; i < 8; ++i) {
    while (near().run_one(random_)) {
    }
    (void)hear_lowers();
    settle();
  }
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 4 * kPageTokens);
  settle_lowers();
  end(live);
  settle_lowers();
}

TEST_F(LowerWaitsTest, AHeldPrefixWaitsThoughComputingIsFaster) {
  open_waits({{}});
  put_below(prompt_of(4));
  const HoldId hold = cache_->hold_on_host(space_, {.tokens = prompt_of(4)}).value().id;
  set_time(1'000'000);
  EXPECT_TRUE(cache_->held_prefix(hold)->is_arriving);
  settle_lowers();
  EXPECT_EQ(cache_->held_prefix(hold)->token_count, 4 * kPageTokens);
  EXPECT_TRUE(cache_->release_hold(hold));
}

TEST_F(LowerWaitsTest, ATierThatAnswersSlowerThanComputingIsAskedNowAndThen) {
  open_waits({{}});
  near().question_ns = 1'000'000;
  std::uint32_t asked = 0;
  for (TokenId i = 0; i < 100; ++i) {
    const std::uint64_t before = near().question_count;
    Live live = admitted(prompt_of(4, 1'000 * i));
    settle_lowers();
    asked += near().question_count > before ? 1 : 0;
    if (near().question_count == before) {
      EXPECT_EQ(view(live).miss.reason, MissReason::RecomputeCheaper);
    }
    finish(live);
    settle_lowers();
  }
  EXPECT_EQ(asked, 1U + 3U);  // and every 32nd
  near().question_ns = 1;     // it is fast again
  for (TokenId i = 0; i < 1'000; ++i) {
    Live live = admitted(prompt_of(4, 1'000 * i));
    settle_lowers();
    finish(live);
    settle_lowers();
    forget_memory();
  }
  EXPECT_GT(near().question_count, 200U);
}

// A tier that does not answer is not waited for by every request until its deadline.
TEST_F(LowerWaitsTest, ATierThatHangsIsSoonNotAskedByMost) {
  open_waits({{.find_timeout_ns = 100'000}});
  std::uint32_t waited = 0;
  for (TokenId i = 0; i < 100; ++i) {
    Live live = admitted(prompt_of(4, 1'000 * i));
    waited += view(live).is_loading ? 1 : 0;
    if (view(live).is_loading) set_time(now_ + (8 * kPageNs));
    EXPECT_FALSE(view(live).is_loading);
    finish(live);
    settle();
  }
  EXPECT_LT(waited, 8U);
  settle_lowers();
}

// What never comes in time is not measured by what has come.
TEST_F(LowerWaitsTest, ATierThatAnswersAndBringsNothingInTimeIsSoonNotRead) {
  for (const bool was_fast : {false, true}) {
    open_waits({{}});
    put_below(prompt_of(4));
    if (was_fast) {
      EXPECT_EQ(serve_from_below(prompt_of(4)), 4 * kPageTokens);
    }
    near().load_pages_max = 0;
    std::uint32_t waited = 0;
    for (int i = 0; i < 100; ++i) {
      const std::size_t before = near().load_timeouts.size();
      EXPECT_EQ(serve_from_below(prompt_of(4)), 0U);
      waited += near().load_timeouts.size() > before ? 1 : 0;
    }
    EXPECT_GT(waited, 0U);
    EXPECT_LT(waited, 40U);
    near().load_pages_max = UINT32_MAX;  // it is fast again
    std::uint32_t served = 0;
    for (int i = 0; i < 1'000; ++i) served += serve_from_below(prompt_of(4)) > 0 ? 1 : 0;
    EXPECT_GT(served, 200U);
  }
}

TEST_F(LowerWaitsTest, TheTierThatIsFasterIsAskedFirst) {
  open_waits({{}, {.tier = Tier::Remote}}, 0, 100 * kComputeNs);
  put_below(prompt_of(4));
  const auto serve_and_tell_who = [&] {
    const std::uint64_t of_near = near().loaded_page_count;
    const std::uint64_t of_far = far().loaded_page_count;
    EXPECT_EQ(serve_from_below(prompt_of(4)), 4 * kPageTokens);
    return near().loaded_page_count > of_near ? Tier::Disk
           : far().loaded_page_count > of_far ? Tier::Remote
                                              : Tier::Host;
  };
  EXPECT_EQ(serve_and_tell_who(), Tier::Disk);
  // Nobody knows yet how fast the far tier is.
  near().question_ns = 3'000;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(serve_and_tell_who(), Tier::Disk);
  near().faults.failed_loads = 100;
  EXPECT_EQ(serve_and_tell_who(), Tier::Remote);
  near().faults.failed_loads = 0;
  EXPECT_EQ(serve_and_tell_who(), Tier::Remote);
  EXPECT_EQ(stats().remote_hit_tokens, 2U * 4 * kPageTokens);
  EXPECT_EQ(stats().disk_hit_tokens, 21U * 4 * kPageTokens);
  // It stays first unless the other one is faster by some margin.
  far().question_ns = 3'300;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(serve_and_tell_who(), Tier::Remote);
  far().question_ns = 5'000;
  for (int i = 0; i < 100; ++i) (void)serve_and_tell_who();
  EXPECT_EQ(serve_and_tell_who(), Tier::Disk);
}

// Random times and tiers: nobody looks longer than it would take to compute what was asked for.
TEST_F(LowerWaitsTest, NobodyLooksLongerThanComputingTakes) {
  struct Request {
    Live live;
    TimeNs deadline = 0;
  };
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = testing::Random(seed);
    open_waits({{.find_timeout_ns = static_cast<TimeNs>(random_.below(400)), .load_timeout_ns = 300}, {}});
    for (const auto& tier : tiers_) {
      tier->faults = {.failed_questions = random_.below(10), .failed_loads = random_.below(20)};
    }
    std::vector<Request> requests;
    std::uint32_t looked = 0;
    for (int step_number = 0; step_number < 600; ++step_number) {
      const std::uint32_t draw = random_.below(10);
      if (draw < 3 && requests.size() < 6) {
        const std::uint32_t page_count = 1 + random_.below(6);
        Request request{.live = admitted(prompt_of(page_count, static_cast<TokenId>(1'000 * random_.below(4))))};
        request.deadline = now_ + (page_count * kPageNs);
        looked += view(request.live).is_loading ? 1 : 0;
        requests.push_back(std::move(request));
      } else if (draw < 6) {
        (void)tiers_[random_.below(2)]->run_one(random_);
        (void)hear_lowers();
        settle();
      } else if (draw < 9) {
        set_time(now_ + random_.below(120));
      } else if (!requests.empty()) {
        const std::size_t place = random_.below(static_cast<std::uint32_t>(requests.size()));
        if (view(requests[place].live).is_loading) continue;
        finish(requests[place].live);
        settle();
        requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(place));
        ASSERT_TRUE(cache_->reclaim(random_.below(9)));
      }
      for (const Request& request : requests) {
        ASSERT_TRUE(now_ < request.deadline || !view(request.live).is_loading) << "step " << step_number;
      }
    }
    EXPECT_GT(looked, 20U);
    settle_lowers();
    for (Request& request : requests) end(request.live);
    settle_lowers();
  }
}

}  // namespace
}  // namespace quire
