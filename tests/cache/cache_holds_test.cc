// SPDX-License-Identifier: Apache-2.0
//
// hold_on_host(): what is on disk comes to the host and stays there, so that requests find it in memory.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "disk_fixture.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using Lane = DiskMover::Lane;

class CacheHolds : public DiskTest {
 protected:
  /// On disk and nowhere else.
  void open_with_prefix_on_disk(std::uint32_t page_count = 32, std::uint32_t host_page_count = 16) {
    CacheConfig config = disk_config(page_count, host_page_count);
    open_disk(std::move(config));
    put_on_disk(prefix_);
  }
  [[nodiscard]] HeldPrefix held(const HoldOptions& options = {}) {
    const Result<HeldPrefix> hold = cache_->hold_on_host(space_, {.tokens = prefix_}, options);
    EXPECT_TRUE(hold.has_value()) << hold.error().message;
    return hold.value_or(HeldPrefix{});
  }
  /// Others fill the host as often as it has pages.
  void fill_host() {
    for (std::uint32_t i = 0; i < 2 * stats().host_page_count; ++i) {
      (void)serve_all(token_range(next_token_ += 100, 32));
    }
  }
  [[nodiscard]] std::uint64_t disk_loads() const { return stats().disk_loaded_page_total; }

  const std::vector<TokenId> prefix_ = token_range(0, 64);
  TokenId next_token_ = 10'000;
};

TEST_F(CacheHolds, WhatIsOnDiskComesToTheHostAndStays) {
  open_with_prefix_on_disk();
  const HeldPrefix hold = held();
  EXPECT_TRUE(hold.is_arriving);
  EXPECT_EQ(hold.token_count, 0U);
  settle_all();
  const HeldPrefix now = cache_->held_prefix(hold.id).value();
  EXPECT_FALSE(now.is_arriving);
  EXPECT_EQ(now.token_count, 64U);
  EXPECT_EQ(now.miss.reason, MissReason::None);
  EXPECT_EQ(lookup(prefix_).matched_tokens, 0U) << "nothing went to the device";
  EXPECT_EQ(lookup(prefix_).host_tokens, 64U);
  EXPECT_EQ(stats().sequence_count, 0U);
  EXPECT_EQ(stats().held_pages, 4U);

  fill_host();
  EXPECT_EQ(lookup(prefix_).host_tokens, 64U) << "and others do not push it out";
  const std::uint64_t loads = disk_loads();
  EXPECT_EQ(serve_all(prefix_), 64U);
  EXPECT_EQ(disk_loads(), loads) << "from memory";
  ASSERT_TRUE(cache_->release_hold(hold.id));
  EXPECT_EQ(stats().held_pages, 0U);
  expect_no_page_lost();
}

TEST_F(CacheHolds, ItStaysHeldWhenARequestHasLoadedIt) {
  open_with_prefix_on_disk(8, 16);
  const HeldPrefix hold = held();
  settle_all();
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t loads = disk_loads();
    EXPECT_EQ(serve_all(prefix_), 64U);
    EXPECT_EQ(disk_loads(), loads);
    fill_host();  // and the device, which has eight pages
    EXPECT_EQ(lookup(prefix_).matched_tokens, 0U) << "the device holds nothing for it";
    EXPECT_EQ(lookup(prefix_).host_tokens, 64U);
  }
  EXPECT_TRUE(cache_->release_hold(hold.id));
  fill_host();
  EXPECT_EQ(lookup(prefix_).host_tokens, 0U) << "let go, it is one like others";
  expect_no_page_lost();
}

TEST_F(CacheHolds, WhatTheDeviceHasIsCopiedAndHeld) {
  CacheConfig config = disk_config(8, 16);
  config.host.write_policy = WritePolicy::Selective;  // by itself it would not copy
  config.host.write_hits_min = 100;
  open_disk(std::move(config));
  EXPECT_EQ(serve_all(prefix_), 0U);
  const HeldPrefix hold = held();
  settle_all();
  EXPECT_EQ(cache_->held_prefix(hold.id)->token_count, 64U);
  EXPECT_EQ(stats().host_copy_pages, 4U);
  fill_host();
  EXPECT_EQ(lookup(prefix_).host_tokens, 64U);
  ASSERT_TRUE(cache_->release_hold(hold.id));
  expect_no_page_lost();
}

TEST_F(CacheHolds, ACallbackComesOnceWhenNothingMoreWillCome) {
  open_with_prefix_on_disk(32, 24);
  std::vector<HeldPrefix> told;
  const auto note = [&](const HeldPrefix& hold) { told.push_back(hold); };
  const HoldId first = cache_->hold_on_host(space_, {.tokens = prefix_}, {}, note)->id;
  EXPECT_TRUE(told.empty());
  settle_all();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].id, first);
  EXPECT_EQ(told[0].token_count, 64U);
  const HoldId second = cache_->hold_on_host(space_, {.tokens = prefix_}, {}, note)->id;
  ASSERT_EQ(told.size(), 2U) << "before the call returns: memory has all";
  EXPECT_EQ(told[1].id, second);
  apply({});
  EXPECT_EQ(told.size(), 2U);

  // A callback may let it go.
  const Result<HeldPrefix> third = cache_->hold_on_host(
      space_, {.tokens = prefix_}, {}, [&](const HeldPrefix& hold) { EXPECT_TRUE(cache_->release_hold(hold.id)); });
  EXPECT_EQ(third->token_count, 0U);
  EXPECT_FALSE(cache_->held_prefix(third->id));
  ASSERT_TRUE(cache_->release_hold(first));
  EXPECT_EQ(lookup(prefix_).host_tokens, 64U);
  fill_host();
  EXPECT_EQ(lookup(prefix_).host_tokens, 64U) << "the second one holds it";
  ASSERT_TRUE(cache_->release_hold(second));
  expect_no_page_lost();
}

TEST_F(CacheHolds, ReleasingCallsOffWhatIsOnItsWay) {
  for (int steps = 0; steps < 3; ++steps) {
    open_with_prefix_on_disk();
    bool is_told = false;
    const HoldId hold =
        cache_->hold_on_host(space_, {.tokens = prefix_}, {}, [&](const HeldPrefix&) { is_told = true; })->id;
    if (steps > 0) {
      EXPECT_TRUE(run_lane(Lane::Names));  // found
    }
    if (steps > 1) {
      EXPECT_TRUE(run_lane(Lane::Names));  // its pages are being read
    }
    ASSERT_TRUE(cache_->release_hold(hold));
    EXPECT_EQ(stats().sequence_count, 0U);
    expect_invariants();
    settle_all();
    EXPECT_FALSE(is_told);
    expect_error(cache_->release_hold(hold), ErrorCode::InvalidArgument, "not held");
    expect_no_page_lost();
  }
}

TEST_F(CacheHolds, AHoldEndsWithItsTime) {
  open_with_prefix_on_disk();
  const HeldPrefix arrived = held({.ttl_ns = 100});
  settle_all();
  const HeldPrefix arriving = held({.ttl_ns = 100});
  now_ = 99;
  apply({});
  EXPECT_TRUE(cache_->held_prefix(arrived.id));
  now_ = 100;
  apply({});
  EXPECT_FALSE(cache_->held_prefix(arrived.id));
  EXPECT_FALSE(cache_->held_prefix(arriving.id));
  EXPECT_EQ(stats().held_pages, 0U);
  settle_all();
  expect_no_page_lost();
}

TEST_F(CacheHolds, ADiskThatHangsIsWaitedForNoLongerThanAsked) {
  open_with_prefix_on_disk();
  const HeldPrefix hold = held({.timeout_ns = 50});
  now_ = 50;
  apply({});
  const HeldPrefix now = cache_->held_prefix(hold.id).value();
  EXPECT_FALSE(now.is_arriving);
  EXPECT_EQ(now.token_count, 0U);
  EXPECT_EQ(now.miss.reason, MissReason::LoadTimedOut);
  EXPECT_EQ(stats().held_pages, 0U) << "what did not come is not counted";
  settle_all();
  ASSERT_TRUE(cache_->release_hold(hold.id));
}

TEST_F(CacheHolds, PagesThatCannotBeReadAreTold) {
  open_with_prefix_on_disk();
  disk_->set_broken(kPath);
  const HeldPrefix hold = held();
  settle_all();
  const HeldPrefix now = cache_->held_prefix(hold.id).value();
  EXPECT_EQ(now.token_count, 0U);
  EXPECT_EQ(now.miss.reason, MissReason::LoadFailed);
  ASSERT_TRUE(cache_->release_hold(hold.id));
}

TEST_F(CacheHolds, WhatNobodyHasIsTold) {
  open_disk(disk_config());
  const HeldPrefix hold = held();
  settle_all();
  EXPECT_EQ(cache_->held_prefix(hold.id)->miss.reason, MissReason::NeverSeen);
  EXPECT_EQ(cache_->held_prefix(hold.id)->token_count, 0U);
  const HeldPrefix shallow = held({.tier_max = Tier::Host});
  EXPECT_FALSE(shallow.is_arriving) << "the disk is not asked";
  ASSERT_TRUE(cache_->release_hold(hold.id));
  ASSERT_TRUE(cache_->release_hold(shallow.id));
}

TEST_F(CacheHolds, BudgetsHold) {
  CacheConfig config = disk_config(32, 16);
  config.host.hold_pages_max = 6;
  config.host.hold_count_max = 2;
  open_disk(std::move(config));
  const HeldPrefix first = held();
  expect_error(cache_->hold_on_host(space_, {.tokens = prefix_}), ErrorCode::Unavailable, "hold_pages_max = 6");
  settle_all();  // nothing was there, so that nothing is held
  const HeldPrefix second = held();
  settle_all();
  expect_error(cache_->hold_on_host(space_, {.tokens = prefix_}), ErrorCode::Unavailable, "hold_count_max");
  ASSERT_TRUE(cache_->release_hold(first.id));
  ASSERT_TRUE(cache_->release_hold(second.id));
  config = disk_config(32, 16);
  config.sequence_count_max = 1;
  open_disk(std::move(config));
  Live live = begun(token_range(500, 16));
  expect_error(cache_->hold_on_host(space_, {.tokens = prefix_}), ErrorCode::Unavailable, "sequence_count_max");
  EXPECT_EQ(stats().held_pages, 0U);
  end(live);
}

TEST_F(CacheHolds, DropsResetsAndSleepLetGo) {
  for (const int how : {0, 1, 2, 3}) {
    for (const bool is_arriving : {false, true}) {
      open_with_prefix_on_disk();
      const HeldPrefix hold = held();
      if (!is_arriving) settle_all();
      if (how == 0) {
        EXPECT_TRUE(cache_->drop(space_));
      } else if (how == 1) {
        EXPECT_TRUE(cache_->reset());
      } else {
        const Sleep sleep = how == 2 ? Sleep::KeepHost : Sleep::DropAll;
        for (int tries = 0; tries < 10 && !cache_->sleep(sleep).value(); ++tries) settle_all();
        EXPECT_TRUE(cache_->wake());
      }
      EXPECT_FALSE(cache_->held_prefix(hold.id));
      EXPECT_EQ(stats().held_pages, 0U);
      settle_all();
      expect_no_page_lost();
    }
  }
}

TEST_F(CacheHolds, ASequenceThatLivesKeepsResetFromLettingGo) {
  open_with_prefix_on_disk();
  const HeldPrefix hold = held();
  Live live = begun(token_range(500, 16));
  expect_error(cache_->reset(), ErrorCode::Unavailable, "live sequences: 1");
  EXPECT_TRUE(cache_->held_prefix(hold.id));
  end(live);
  settle_all();
  ASSERT_TRUE(cache_->release_hold(hold.id));
}

TEST_F(CacheHolds, BadInputIsRefused) {
  open(kPageTokens, 8);
  expect_error(cache_->hold_on_host(space_, {.tokens = prefix_}), ErrorCode::Unsupported, "no host tier");
  open_with_prefix_on_disk();
  const std::vector<TokenId> negative(16, -1);
  expect_error(cache_->hold_on_host({}, {.tokens = prefix_}), ErrorCode::InvalidArgument, "key space");
  expect_error(cache_->hold_on_host(space_, {}), ErrorCode::InvalidArgument, "empty");
  expect_error(cache_->hold_on_host(space_, {.tokens = negative}), ErrorCode::InvalidArgument, "token 0");
  expect_error(cache_->hold_on_host(space_, {.tokens = prefix_}, {.ttl_ns = 0}), ErrorCode::InvalidArgument, "ttl_ns");
  expect_error(cache_->hold_on_host(space_, {.tokens = prefix_}, {.timeout_ns = -1}), ErrorCode::InvalidArgument,
               "timeout_ns");
  expect_error(cache_->hold_on_host(space_, {.tokens = prefix_}, {.tier_max = Tier::Device}),
               ErrorCode::InvalidArgument, "tier_max");
  expect_error(cache_->held_prefix({7, 7}), ErrorCode::InvalidArgument, "not held");
  EXPECT_EQ(stats().held_pages, 0U);
  EXPECT_EQ(stats().sequence_count, 0U);
}

// Requests, holds and releases in any order, with a host that is always too small.
TEST_F(CacheHolds, InAnyOrderEveryByteIsRightAndEveryPageComesBack) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    testing::Random random(seed);
    open_disk(disk_config(8, 12));
    std::vector<HoldId> holds;
    for (int i = 0; i < 60; ++i) {
      const std::vector<TokenId> tokens =
          token_range(static_cast<TokenId>(1'000 * random.below(4)), 16U << random.below(3));
      switch (random.below(5)) {
        case 0:
        case 1:
          (void)serve_all(tokens);
          break;
        case 2:
          if (const auto hold = cache_->hold_on_host(space_, {.tokens = tokens})) holds.push_back(hold->id);
          break;
        case 3:
          if (!holds.empty()) {
            const auto place =
                holds.begin() + static_cast<std::ptrdiff_t>(random.below(static_cast<std::uint32_t>(holds.size())));
            (void)cache_->release_hold(*place);
            holds.erase(place);
          }
          break;
        default:
          (void)run_lane(random.below(2) == 0 ? Lane::Names : Lane::Read);
          break;
      }
      expect_invariants();
    }
    settle_all();
    expect_no_page_lost();
  }
}

}  // namespace
}  // namespace quire
