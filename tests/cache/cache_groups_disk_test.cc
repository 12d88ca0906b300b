// SPDX-License-Identifier: Apache-2.0
//
// Layouts of several groups on disk: what each group keeps there, and what requests find of it after a restart.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "groups_disk_fixture.h"
#include "testing/failing_calls.h"
#include "testing/sanitized.h"

namespace quire {
namespace {

class CacheGroupsDiskMixTest : public CacheGroupsDiskTest, public ::testing::WithParamInterface<GroupMix> {};

TEST_P(CacheGroupsDiskMixTest, AfterARestartEveryGroupIsFound) {
  open(disk_config(GetParam().groups));
  const std::vector<TokenId> prompt = token_range(0, 200);
  EXPECT_EQ(serve(prompt), 0U);
  const std::uint32_t before = serve(with_tail(prompt, 1, 30));
  EXPECT_EQ(before, 192U);
  restart(disk_config(GetParam().groups));
  EXPECT_EQ(serve(with_tail(prompt, 2, 30)), before);
  EXPECT_GT(view_.disk_tokens, 0U);
  EXPECT_GE(serve(with_tail(prompt, 3, 30)), before) << "from memory";
  EXPECT_EQ(view_.disk_tokens, 0U);
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsDiskMixTest, ::testing::ValuesIn(mixes()),
                         [](const auto& param) { return param.param.name; });

// Retention

TEST_F(CacheGroupsDiskTest, AWindowIsKeptWhereRequestsMayGoOn) {
  const auto config = [&] {
    CacheConfig made = disk_config({full_group(), window_group(20)});
    made.disk.group_retention = {{}, every(64)};
    return made;
  };
  open(config());
  serve(token_range(0, 200));
  flush();
  EXPECT_EQ(cache_->disk_status(0)->page_count, 12U);
  // Of 20 tokens before 64, 128 and 192: pages [2, 4), [6, 8), [10, 12).
  EXPECT_EQ(cache_->disk_status(1)->page_count, 6U);
  EXPECT_EQ(cache_->disk_status()->page_count, 18U);
  restart(config());
  EXPECT_EQ(serve(with_tail(token_range(0, 180), 1, 4)), 128U);
  EXPECT_EQ(view_.miss.reason, MissReason::NotHeld);
  EXPECT_EQ(view_.miss.group, 1U);
  EXPECT_EQ(serve(with_tail(token_range(0, 130), 2, 4)), 128U);
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 3, 4)), 192U);
}

TEST_F(CacheGroupsDiskTest, SnapshotsAreKeptAtMultiples) {
  const auto config = [&] {
    CacheConfig made = disk_config({full_group(), state_group(0, every(32))});
    made.disk.group_retention = {{}, every(96)};
    return made;
  };
  open(config());
  serve(token_range(0, 200));
  flush();
  EXPECT_EQ(cache_->disk_status(1)->page_count, 2U);
  restart(config());
  EXPECT_EQ(serve(with_tail(token_range(0, 180), 1, 4)), 96U);
}

TEST_F(CacheGroupsDiskTest, WhatIsNotOnDiskIsRebuilt) {
  const CacheGroup window = rebuilt(window_group(20), 24);
  const auto config = [&] {
    CacheConfig made = disk_config({full_group(), window});
    made.disk.group_retention = {{}, kNone};
    return made;
  };
  open(config());
  serve(token_range(0, 200));
  EXPECT_FALSE(std::filesystem::exists(directory_.path() + "/pages/group-window"));
  restart(config());
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 1, 30)), 192U - 24U);
  EXPECT_EQ(view_.replay_tokens, 24U);
  EXPECT_EQ(cache_->disk_status(1)->capacity_bytes, 0U);
}

// Windows have little room, and the history much: it outlives them, and what is left of them still serves.
TEST_F(CacheGroupsDiskTest, TheHistoryOutlivesTheWindowsThatWereWrittenWithIt) {
  const CacheGroup window = rebuilt(window_group(40), 48);
  const auto config = [&] {
    CacheConfig made = disk_config({full_group(), window});
    made.disk.group_capacity_bytes = {0, made.disk.capacity_bytes_min(8 * kGroupsDiskPageTokens)};
    return made;
  };
  open(config());
  for (TokenId i = 0; i < 60; ++i) serve(with_tail({}, i, 300));
  flush();
  EXPECT_EQ(cache_->disk_status(0)->page_count, 60U * 18);
  EXPECT_GT(cache_->disk_status(1)->evicted_page_total, 0U);
  restart(config());
  EXPECT_EQ(serve(with_tail(with_tail({}, 0, 300), 100, 5)), 288U - 48U) << "its windows are gone";
  EXPECT_EQ(view_.replay_tokens, 48U);
  EXPECT_EQ(serve(with_tail(with_tail({}, 59, 300), 100, 5)), 288U) << "those of the last are not";
}

// Memory

// The history is still on the device; its windows have gone from device and host.
TEST_F(CacheGroupsDiskTest, WhatMemoryHasOfTheHistoryIsMadeGoodFromDisk) {
  const auto config = [&] {
    CacheConfig made = disk_config({full_group(), window_group(20)}, 256);
    made.device.group_page_counts = {256, 24};
    made.host.group_page_counts = {512, 24};
    return made;
  };
  open(config());
  const std::vector<TokenId> prompt = token_range(0, 200);
  serve(prompt);
  flush();
  for (TokenId i = 1; i < 10; ++i) serve(with_tail({}, i, 300));
  EXPECT_EQ(lookup(with_tail(prompt, 1, 30)).matched_tokens, 0U);
  EXPECT_EQ(lookup(with_tail(prompt, 1, 30)).host_tokens, 0U);
  EXPECT_EQ(serve(with_tail(prompt, 1, 30)), 192U);
  EXPECT_EQ(group_stats(1).disk_loaded_page_total, 2U);
}

TEST_F(CacheGroupsDiskTest, WhatWasDroppedIsGoneInAllGroups) {
  open(disk_config({full_group(), window_group(20), state_group(0, every(64))}));
  serve(token_range(0, 200));
  flush();
  ASSERT_TRUE(cache_->drop(space_));
  drain(*cache_, now_);
  space_ = cache_->key_space({.model = "test"}).value();
  for (std::uint32_t g = 0; g < 3; ++g) EXPECT_EQ(cache_->disk_status(g)->page_count, 0U) << g;
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 1, 4)), 0U);
}

TEST_F(CacheGroupsDiskTest, AnotherFormOfAGroupFindsNothing) {
  open(disk_config({full_group(), window_group(20)}));
  serve(token_range(0, 200));
  restart(disk_config({full_group(), window_group(24)}));
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 1, 4)), 0U);
  EXPECT_EQ(cache_->disk_status(1)->other_layout_pages, 12U);
}

TEST_F(CacheGroupsDiskTest, AGroupThatIsNotThereHasNoStatus) {
  open(disk_config({full_group(), window_group(20)}));
  expect_error(cache_->disk_status(2), ErrorCode::InvalidArgument, "group_index is 2; the layout has 2 groups");
}

// Failures

// A byte of every record of the window's store is another one.
TEST_F(CacheGroupsDiskTest, ABrokenRecordOfAGroupIsAShorterHit) {
  const auto config = [&] { return disk_config({full_group(), window_group(20)}); };
  open(config());
  serve(token_range(0, 200));
  flush();
  close();
  ASSERT_GE(spoil("window"), 12U);
  open(config());
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 1, 30)), 0U);
  EXPECT_EQ(view_.miss.reason, MissReason::NotHeld);
  EXPECT_EQ(view_.miss.group, 1U);
  EXPECT_GT(cache_->disk_status(1)->corrupt_page_total, 0U);
  EXPECT_EQ(cache_->disk_status(0)->corrupt_page_total, 0U);
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 2, 30)), 200U) << "computed once more";
}

TEST_F(CacheGroupsFailingDiskTest, AFullDiskIsSaidAndWrittenLater) {
  const auto config = [&] { return disk_config({full_group(), window_group(20), state_group(0, every(64))}); };
  open_failing(config());
  testing::call_failures.reserve = ENOSPC;
  EXPECT_EQ(serve(token_range(0, 200)), 0U);
  Result<bool> flushed = false;
  while (flushed && !*flushed) {
    drain(*cache_, now_);
    flushed = cache_->flush();
  }
  EXPECT_FALSE(flushed.has_value());
  testing::call_failures.clear();
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 1, 30)), 192U) << "from memory";
  restart(config());
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 2, 30)), 192U) << "from disk";
}

TEST_F(CacheGroupsFailingDiskTest, WithoutADiskThatBreaksTheCacheGoesOn) {
  open_failing(disk_config({full_group(), window_group(20), state_group(0, every(64))}));
  EXPECT_EQ(serve(token_range(0, 200)), 0U);
  flush();
  testing::call_failures.write = EIO;
  testing::call_failures.read = EIO;
  for (TokenId i = 1; i < 20; ++i) {
    serve(with_tail({}, i, 200));
    EXPECT_EQ(serve(with_tail({}, i, 200)), 192U) << "from memory";
  }
  EXPECT_NE(cache_->disk_status()->last_error, "");
}

// The budget is enough for the history, and windows wait. Meanwhile the host page that they hang on becomes another
// path's, in the very call that begins to write them.
TEST_F(CacheGroupsDiskTest, WhatIsWrittenHasTheNameOfThePageThatItHungOn) {
  constexpr std::uint64_t kRecord = 4'096;
  constexpr TimeNs kHour = TimeNs{3'600} * 1'000'000'000;
  const auto config = [&](bool is_limited) {
    CacheConfig made = disk_config({full_group(), window_group(40)}, 24);
    made.host.page_count = 24;
    made.context_tokens_max = 384;
    made.host.group_page_counts = {24, 200};
    made.disk.write_bytes_per_day = is_limited ? 24 * 2 * 42 * kRecord : 0;
    return made;
  };
  open(config(true));
  const auto prompt = [](TokenId i) { return with_tail({}, i, 200); };
  for (TokenId i = 0; i < 40; ++i) {
    serve(prompt(i));
    while (!cache_->pause_transfers().value()) drain(*cache_, now_);
    serve(prompt(100 + i));
    now_ += kHour / 2;
    ASSERT_TRUE(cache_->apply({}, now_));
    ASSERT_TRUE(cache_->resume_transfers());
    drain(*cache_, now_);
  }
  EXPECT_GT(cache_->disk_status(1)->page_count, 0U);
  restart(config(false));
  std::uint32_t found = 0;
  for (TokenId i = 0; i < 40; ++i) {
    for (const TokenId each : {i, 100 + i}) found += serve(with_tail(prompt(each), 50, 30));
  }
  EXPECT_GT(found, 0U);
}

// Loads have all transfers of other groups: what they are to write comes after them, and a flush waits for both.
TEST_F(CacheGroupsDiskTest, AFlushWaitsForWritesThatWaitForLoads) {
  const auto flush_config = [&] {
    CacheConfig config = disk_config({full_group(), window_group(20)});
    config.host.transfer_count_max = 2;
    config.host.transfer_pages_max = 1;
    return config;
  };
  open(flush_config());
  (void)serve(token_range(0, 64));
  restart(flush_config());
  const std::uint64_t on_disk = cache_->disk_status(1)->page_count;

  // Loads from disk are applied when the test says so: a search and its load have both transfers until then.
  std::vector<Completion> held;
  const auto apply_others = [&] {
    const Result<std::span<const Completion>> polled = cache_->poll();
    ASSERT_TRUE(polled.has_value());
    std::vector<Completion> now;
    for (const Completion& each : *polled) (each.kind == TransferKind::LoadFromBelow ? held : now).push_back(each);
    ASSERT_TRUE(cache_->apply(now, now_));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  GroupsRequest other = start(token_range(1'000, 20));
  drain(*cache_, now_);
  GroupsRequest request = start(token_range(0, 70));
  while (held.empty()) apply_others();
  run_all(other);  // its pages find no transfer
  for (int i = 0; i < 100; ++i) {
    ASSERT_FALSE(cache_->flush().value());
    apply_others();
  }
  ASSERT_EQ(held.size(), 1U);
  ASSERT_TRUE(cache_->apply(std::exchange(held, {}), now_));
  flush();
  EXPECT_EQ(cache_->disk_status(1)->page_count, on_disk + 1);
  drain(*cache_, now_);
  run_all(request);
  end(request);
  end(other);
}

// Any groups, requests that share beginnings, small pools, and a restart now and then: every byte is checked.
TEST_F(CacheGroupsDiskTest, RequestsGoOnThroughRestarts) {
  constexpr std::uint32_t kRequests = testing::kIsSanitized ? 100 : 300;
  for (const GroupMix& mix : mixes()) {
    SCOPED_TRACE(mix.name);
    const auto config = [&] {
      CacheConfig made = disk_config(mix.groups, 96);
      made.disk.directories = {directory_.path() + "/" + mix.name};
      made.host.page_count = 60;
      made.host.write_policy = WritePolicy::WriteBack;
      if (mix.name == "Window") made.disk.write_policy = WritePolicy::WriteBack;
      if (mix.name == "State") made.disk.write_policy = WritePolicy::Selective;
      return made;
    };
    open(config());
    std::uint64_t seed = 7;
    const auto below = [&seed](std::uint32_t end) {
      seed = mix64(seed + 1);
      return static_cast<std::uint32_t>(seed % end);
    };
    std::uint64_t found = 0;
    std::uint64_t disk_pages = 0;
    for (std::uint32_t i = 0; i < kRequests && !HasFailure(); ++i) {
      if (i % 97 == 96) {
        for (std::uint32_t g = 0; g < group_count(); ++g) disk_pages += group_stats(g).disk_loaded_page_total;
        restart(config());
      }
      const std::vector<TokenId> head = with_tail({}, static_cast<TokenId>(below(12)), 32 + (16 * below(18)));
      found += serve(with_tail(head, static_cast<TokenId>(100 + below(8)), below(90)), below(3) == 0 ? 37 : UINT32_MAX);
    }
    EXPECT_GT(found, 0U);
    EXPECT_GT(disk_pages, 0U);
    EXPECT_EQ(cache_->disk_status()->last_error, "");
    close();
  }
}

}  // namespace
}  // namespace quire
