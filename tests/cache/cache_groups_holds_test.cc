// SPDX-License-Identifier: Apache-2.0
//
// hold_on_host() of layouts with windows and snapshots: what a request needs to go on at the end of a held prefix comes
// to the host, from disk or from the device, and stays there.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "groups_disk_fixture.h"
#include "groups_tiers_fixture.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

class CacheGroupsHoldsTest : public CacheGroupsDiskTest {
 protected:
  [[nodiscard]] HeldPrefix hold(const std::vector<TokenId>& tokens, const HoldOptions& options = {}) {
    const Result<HeldPrefix> held = cache_->hold_on_host(space_, {.tokens = tokens}, options);
    EXPECT_TRUE(held.has_value()) << held.error().message;
    return held.value_or(HeldPrefix{});
  }
  [[nodiscard]] HeldPrefix settled(const HeldPrefix& hold) {
    drain(*cache_, now_);
    expect_invariants();
    return cache_->held_prefix(hold.id).value_or(HeldPrefix{});
  }
  void forget_memory() {
    ASSERT_TRUE(cache_->sleep(Sleep::DropAll).value());
    ASSERT_TRUE(cache_->wake());
  }
  /// The tokens are on disk and nowhere else.
  void put_on_disk(const std::vector<TokenId>& tokens) {
    serve(tokens);
    flush();
    forget_memory();
  }
  /// Others use all pages of device and host, in all groups.
  void fill_memory() {
    for (int i = 0; i < 9; ++i) serve(with_tail({}, ++next_tail_, 300));
  }
  /// The device gives up all that nobody uses, so that the host's pages are all that memory has.
  void clear_device() {
    drain(*cache_, now_);
    for (std::uint32_t i = 0; i < group_count(); ++i) {
      if (group_stats(i).page_count > 0) (void)cache_->reclaim(UINT32_MAX, i);
    }
  }
  [[nodiscard]] std::uint64_t disk_loads() const {
    std::uint64_t pages = 0;
    for (std::uint32_t i = 0; i < group_count(); ++i) pages += group_stats(i).disk_loaded_page_total;
    return pages;
  }
  [[nodiscard]] std::uint32_t held_pages() const { return cache_->stats()->held_pages; }
  /// A request that goes on behind the tokens, without the disk; gives what it found.
  [[nodiscard]] std::uint32_t serve_from_memory(const std::vector<TokenId>& tokens) {
    GroupsRequest request = start(with_tail(tokens, ++next_tail_, 20), {.tier_max = Tier::Host});
    drain(*cache_, now_);
    const SequenceView seen = view(request);
    run_all(request);
    end(request);
    drain(*cache_, now_);
    return seen.token_count - seen.pending_tokens;
  }

  const std::vector<TokenId> prefix_ = token_range(0, 200);
  TokenId next_tail_ = 100;
};

class CacheGroupsHoldsMixTest : public CacheGroupsHoldsTest, public ::testing::WithParamInterface<GroupMix> {};

TEST_P(CacheGroupsHoldsMixTest, WhatIsOnDiskComesToTheHostAndStays) {
  open(disk_config(GetParam().groups));
  put_on_disk(prefix_);
  const HeldPrefix now = settled(hold(prefix_));
  EXPECT_FALSE(now.is_arriving);
  EXPECT_EQ(now.token_count, 192U);
  EXPECT_EQ(now.miss.reason, MissReason::None);
  EXPECT_EQ(held_pages(), 12U);
  for (std::uint32_t i = 0; i < group_count(); ++i) EXPECT_EQ(group_stats(i).sealed_pages, 0U) << "on the device";
  fill_memory();
  EXPECT_EQ(cache_->held_prefix(now.id)->token_count, 192U);
  const std::uint64_t loads = disk_loads();
  EXPECT_EQ(serve(with_tail(prefix_, 1, 30)), 192U);
  EXPECT_EQ(view_.disk_tokens, 0U);
  EXPECT_EQ(disk_loads(), loads) << "from memory";
  fill_memory();  // what the request has brought to the device goes
  EXPECT_EQ(serve_from_memory(prefix_), 192U) << "it stays held";
  ASSERT_TRUE(cache_->release_hold(now.id));
  EXPECT_EQ(held_pages(), 0U);
  expect_invariants();
  fill_memory();
  EXPECT_EQ(serve_from_memory(prefix_), 0U) << "let go, it is one like others";
  expect_empty_after_reset();
}

TEST_P(CacheGroupsHoldsMixTest, WhatTheDeviceHasIsCopiedAndHeld) {
  CacheConfig config = disk_config(GetParam().groups);
  config.disk = {};
  config.host.write_policy = WritePolicy::Selective;  // the history would not be copied by itself
  config.host.write_hits_min = 100;
  open(std::move(config));
  serve(prefix_);
  const HeldPrefix now = settled(hold(prefix_));
  EXPECT_EQ(now.token_count, 192U);
  clear_device();
  EXPECT_EQ(cache_->held_prefix(now.id)->token_count, 192U);
  fill_memory();
  EXPECT_EQ(serve_from_memory(prefix_), 192U);
  ASSERT_TRUE(cache_->release_hold(now.id));
  expect_empty_after_reset();
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsHoldsMixTest, ::testing::ValuesIn(mixes()),
                         [](const auto& param) { return param.param.name; });

// The host gives up copies of windows that the device still has: they are made again.
TEST_F(CacheGroupsHoldsTest, AWindowThatOnlyTheDeviceHasIsCopiedAgain) {
  CacheConfig config = disk_config({full_group(), window_group(40)});
  config.disk = {};
  config.device.group_page_counts = {64, 40};
  config.host.group_page_counts = {128, 8};
  open(std::move(config));
  serve(prefix_);
  serve(with_tail({}, 1, 100));  // its windows are all that the host has room for
  const HeldPrefix now = settled(hold(prefix_));
  EXPECT_EQ(now.token_count, 192U);
  clear_device();
  EXPECT_EQ(cache_->held_prefix(now.id)->token_count, 192U);
  EXPECT_EQ(serve_from_memory(prefix_), 192U);
  ASSERT_TRUE(cache_->release_hold(now.id));
}

TEST_F(CacheGroupsHoldsTest, WhatNobodyCanGoOnFromIsNotHeld) {
  const auto config = [&] {
    CacheConfig made = disk_config({full_group(), state_group(0, every(32))});
    made.disk.group_retention = {{}, every(96)};
    return made;
  };
  open(config());
  put_on_disk(token_range(0, 180));
  const HeldPrefix now = settled(hold(token_range(0, 180)));
  EXPECT_EQ(now.token_count, 96U) << "the last state on disk";
  EXPECT_EQ(now.miss.reason, MissReason::NotHeld);
  EXPECT_EQ(now.miss.group, 1U);
  EXPECT_EQ(held_pages(), 6U) << "nor is the history behind it";
  EXPECT_EQ(serve_from_memory(token_range(0, 96)), 96U);
  ASSERT_TRUE(cache_->release_hold(now.id));
}

TEST_F(CacheGroupsHoldsTest, EveryGroupHasItsShareOfTheBudget) {
  CacheConfig config = disk_config({full_group(), window_group(40)});
  config.host.hold_pages_max = 32;  // a quarter of the history's
  config.host.group_page_counts = {128, 28};
  open(std::move(config));
  serve(prefix_);
  serve(with_tail({}, 1, 200));
  serve(with_tail({}, 2, 200));
  // Of a window of 40 tokens 3 pages, twice.
  const HeldPrefix first = settled(hold(prefix_));
  const HeldPrefix second = settled(hold(with_tail({}, 1, 200)));
  EXPECT_EQ(first.token_count + second.token_count, 2 * 192U);
  const Result<HeldPrefix> third = cache_->hold_on_host(space_, {.tokens = with_tail({}, 2, 80)});
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, ErrorCode::Unavailable);
  EXPECT_NE(third.error().message.find("3 pages of group 'window' more than the 6 held now exceed 7"),
            std::string::npos)
      << third.error().message;
  EXPECT_EQ(held_pages(), 24U);
  ASSERT_TRUE(cache_->release_hold(first.id));
  EXPECT_EQ(settled(hold(with_tail({}, 2, 80))).token_count, 80U);
  expect_invariants();
}

// Its window is read from disk while the tokens before it are in memory, and a request asks for the same path.
TEST_F(CacheGroupsHoldsTest, ARequestForTheSamePathTakesNothingFromIt) {
  open(disk_config({full_group(), window_group(40), state_group(0, every(64))}));
  put_on_disk(prefix_);
  GroupsRequest request = start(prefix_);  // needs what comes before its last token
  const HeldPrefix held = hold(prefix_);
  GroupsRequest other = start(prefix_);
  EXPECT_EQ(settled(held).token_count, 192U);
  for (GroupsRequest* each : {&request, &other}) {
    run_all(*each);
    end(*each);
  }
  fill_memory();
  EXPECT_EQ(serve_from_memory(prefix_), 192U);
  ASSERT_TRUE(cache_->release_hold(held.id));
}

TEST_F(CacheGroupsHoldsTest, ReleasingCallsOffWhatIsOnItsWay) {
  for (int polls = 0; polls < 6; ++polls) {
    close();
    open(disk_config({full_group(), with_sink(window_group(40), 5), state_group(0, every(64))}));
    put_on_disk(prefix_);
    const HeldPrefix held = hold(prefix_);
    for (int i = 0; i < polls; ++i) {
      const auto ended = cache_->poll();
      ASSERT_TRUE(ended.has_value());
      ASSERT_TRUE(cache_->apply(*ended, now_));
    }
    ASSERT_TRUE(cache_->release_hold(held.id));
    expect_invariants();
    drain(*cache_, now_);
    EXPECT_EQ(held_pages(), 0U);
    expect_empty_after_reset();
  }
}

TEST_F(CacheGroupsHoldsTest, DropsResetsAndSleepLetGo) {
  for (const int how : {0, 1, 2, 3}) {
    for (const bool is_arriving : {false, true}) {
      close();
      open(disk_config({full_group(), with_sink(window_group(40), 5), state_group(0, every(64))}));
      put_on_disk(prefix_);
      const HeldPrefix held = hold(prefix_);
      EXPECT_TRUE(is_arriving || settled(held).token_count == 192U);
      if (how == 0) {
        EXPECT_TRUE(cache_->drop(space_));
      } else if (how == 1) {
        EXPECT_TRUE(cache_->reset());
      } else {
        const Sleep sleep = how == 2 ? Sleep::KeepHost : Sleep::DropAll;
        for (int tries = 0; tries < 10 && !cache_->sleep(sleep).value(); ++tries) drain(*cache_, now_);
        EXPECT_TRUE(cache_->wake());
      }
      EXPECT_FALSE(cache_->held_prefix(held.id));
      EXPECT_EQ(held_pages(), 0U);
      expect_invariants();
      drain(*cache_, now_);
    }
  }
}

// The test moves the pages.
class CacheGroupsHoldsByHand : public CacheGroupsTiersTest {
 protected:
  /// A prefix of ten pages is held, and the host alone has it.
  void hold_on_host_alone() {
    open_tiers(two_groups(with_sink(window_group(6), 3)));
    run_request(prompt_);
    settle();
    hold_ = cache_->hold_on_host(space_, {.tokens = prompt_})->id;
    push_out();
    put_history_on_host();
    EXPECT_EQ(held_tokens(), 40U);
    EXPECT_EQ(cache_->stats()->held_pages, 10U);
  }
  [[nodiscard]] std::uint32_t held_tokens() const { return cache_->held_prefix(hold_)->token_count; }

  HoldId hold_;
};

TEST_F(CacheGroupsHoldsByHand, AWindowsPageThatTurnsOutToBeBadGoesAlone) {
  hold_on_host_alone();
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  move(take_loads());  // the history
  report_failed(take_loads(), TransferFault::Checksum);
  expect_invariants();
  EXPECT_LT(held_tokens(), 40U);
  EXPECT_EQ(cache_->stats()->held_pages, 10U);
  run_all(request);
  end(request);
  settle();
  ASSERT_TRUE(cache_->release_hold(hold_));
  expect_invariants();
}

TEST_F(CacheGroupsHoldsByHand, HistoryThatTurnsOutToBeBadEndsIt) {
  hold_on_host_alone();
  GroupsRequest request = start(with_tail(prompt_, 1, 4));
  for (const Taken& load : take_loads()) {
    report(load, {.outcome = TransferOutcome::Failed, .fault = TransferFault::Checksum, .good_pages = 5});
  }
  expect_invariants();
  EXPECT_EQ(held_tokens(), 0U);
  EXPECT_EQ(cache_->stats()->held_pages, 0U);
  settle();
  expect_invariants();
  run_all(request);
  end(request);
  settle();
  ASSERT_TRUE(cache_->release_hold(hold_));
}

TEST_F(CacheGroupsHoldsByHand, ACopyThatFailsIsMadeAgainAsLongAsTheDeviceHasThePage) {
  open_tiers(two_groups(window_group(6)));
  GroupsRequest request = start(prompt_);
  run_all(request);
  end(request);
  hold_ = cache_->hold_on_host(space_, {.tokens = prompt_})->id;  // nothing is copied yet
  for (const Taken& each : take()) {
    if (each.plan.pool_index == 0) {
      move(each);
    } else {
      report(each, {.outcome = TransferOutcome::Failed, .fault = TransferFault::Io});
    }
  }
  settle();
  push_out();
  put_history_on_host();
  EXPECT_EQ(held_tokens(), 40U);
  ASSERT_TRUE(cache_->release_hold(hold_));
}

/// What a hold was found to have on the host alone.
struct NaiveHold {
  HoldId id;
  std::vector<TokenId> tokens;
  std::uint32_t host_tokens = 0;
};

// Requests, holds and releases in any order, with a host that is always too small. The twin remembers what the host
// alone had of each hold when it had settled. Until it is released, that is found, from memory, and its bytes are
// right.
TEST_P(CacheGroupsHoldsMixTest, InAnyOrderWhatIsHeldIsFound) {
  std::uint64_t found_total = 0;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    testing::Random random(seed);
    CacheConfig config = disk_config(GetParam().groups);
    config.host.hold_count_max = 4;
    close();
    open(std::move(config));
    std::vector<NaiveHold> holds;
    for (int i = 0; i < 40 && !HasFailure(); ++i) {
      const std::vector<TokenId> tokens =
          token_range(static_cast<TokenId>(1'000 * random.below(8)), 40 + (40 * random.below(8)));
      switch (random.below(6)) {
        case 0:
        case 1:
        case 2:
          serve(with_tail(tokens, ++next_tail_, 1 + random.below(40)));
          break;
        case 3:
          if (const auto held = cache_->hold_on_host(space_, {.tokens = tokens})) {
            clear_device();
            holds.push_back({held->id, tokens, cache_->held_prefix(held->id)->token_count});
          } else {
            EXPECT_EQ(held.error().code, ErrorCode::Unavailable);
          }
          break;
        case 4:
          if (!holds.empty()) {
            const auto place =
                holds.begin() + static_cast<std::ptrdiff_t>(random.below(static_cast<std::uint32_t>(holds.size())));
            EXPECT_TRUE(cache_->release_hold(place->id));
            holds.erase(place);
          }
          break;
        default:
          if (!holds.empty()) {
            const NaiveHold& held = holds[random.below(static_cast<std::uint32_t>(holds.size()))];
            if (random.below(2) == 0) clear_device();
            EXPECT_GE(serve_from_memory(held.tokens), held.host_tokens);
            found_total += held.host_tokens;
          }
          break;
      }
      expect_invariants();
      for (const NaiveHold& held : holds) {
        ASSERT_GE(cache_->held_prefix(held.id)->token_count, held.host_tokens) << "operation " << i;
      }
    }
    for (const NaiveHold& held : holds) EXPECT_TRUE(cache_->release_hold(held.id));
    EXPECT_EQ(held_pages(), 0U);
    drain(*cache_, now_);
    expect_empty_after_reset();
  }
  EXPECT_GT(found_total, 0U) << "nothing was ever held";
}

}  // namespace
}  // namespace quire
