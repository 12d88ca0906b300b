// SPDX-License-Identifier: Apache-2.0
//
// Caches with a disk tier in processes of their own, which are killed at any moment: what a flush covered is served by
// the next one, and every byte that is served is right. And two of them on one directory. Then chats through a cache
// that is closed and opened in their midst: the disk tier makes up for the memory that is lost.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "system_disk_fixture.h"
#include "testing/child_process.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/workloads.h"

namespace quire {
namespace {

using testing::ChildProcess;

class CacheDiskKilled : public SystemDiskTest {
 protected:
  static constexpr std::uint64_t kFlushed = std::uint64_t{1} << 56U;  ///< all requests below the number
  static constexpr std::uint64_t kWrong = std::uint64_t{2} << 56U;

  [[nodiscard]] CacheConfig config() const {
    CacheConfig made = disk_config(32, 48);
    made.context_tokens_max = 256;
    made.disk.segment_bytes = 128 << 10U;
    return made;
  }
  /// Four pages of its own behind two that it shares.
  [[nodiscard]] static std::vector<TokenId> request(std::uint64_t number) {
    std::vector<TokenId> tokens = token_range(static_cast<TokenId>(10 * (number % 3)), 32);
    const std::vector<TokenId> own = token_range(static_cast<TokenId>(1'000 * (number + 1)), 65);
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  }

  void serve_for_ever(const ChildProcess::Reporter& report, std::uint64_t first, std::uint64_t seed) {
    testing::Random random(seed);
    open(config());
    for (std::uint64_t number = first;; ++number) {
      (void)serve(request(number));
      (void)serve(request(random.next() % (number + 1)));
      if (random.below(3) == 0) {
        flush();
        report(kFlushed | (number + 1));
      }
      report(number + 1);
      if (HasFailure()) report(kWrong);
    }
  }
};

TEST_F(CacheDiskKilled, WhatWasFlushedIsServedByTheNextProcess) {
  constexpr std::uint32_t kKillCount = testing::kIsSanitized ? 12 : 60;
  testing::Random random(1);
  std::uint64_t served_end = 0;
  std::vector<std::uint64_t> flushed;
  for (std::uint32_t round = 0; round < kKillCount && !HasFailure(); ++round) {
    const std::uint64_t first = served_end;
    std::uint64_t flushed_end = first;
    const auto note = [&](std::uint64_t report) {
      EXPECT_LT(report, kWrong) << "a child served wrong bytes, or could not serve";
      if ((report & kFlushed) != 0) flushed_end = report & ~kFlushed;
      served_end = report & ~kFlushed;
    };
    ChildProcess child([&](const ChildProcess::Reporter& report) { serve_for_ever(report, first, random.next()); });
    random.next();
    for (std::uint32_t wanted = random.below(16); wanted > 0; --wanted) {
      const std::optional<std::uint64_t> report = child.hear();
      if (!report) break;
      note(*report);
    }
    testing::idle_work(random.below(300'000));
    child.kill();
    EXPECT_TRUE(child.was_well());
    while (const std::optional<std::uint64_t> report = child.hear()) note(*report);
    for (std::uint64_t number = first; number < flushed_end; ++number) flushed.push_back(number);
    // The one that was being served may be there in part.
    ++served_end;
    if (round % 3 != 2) continue;  // the next child finds what this one left
    open(config());
    EXPECT_EQ(cache_->disk_status()->last_error, "");
    EXPECT_EQ(cache_->disk_status()->corrupt_page_total, 0U);
    const std::size_t newest = flushed.size() - std::min<std::size_t>(flushed.size(), 30);
    for (std::size_t i = 0; i < flushed.size(); ++i) {
      if (i < newest && random.below(4) != 0) continue;
      EXPECT_EQ(serve(request(flushed[i])), 96U) << flushed[i];
    }
    for (std::uint64_t number = first; number < served_end; ++number) (void)serve(request(number));
    close();
  }
  EXPECT_GT(flushed.size(), kKillCount);
}

TEST_F(CacheDiskKilled, ASecondProcessIsRefusedAndToldWhichHasTheDirectory) {
  ChildProcess child([&](const ChildProcess::Reporter& report) {
    open(config());
    report(1);
    (void)::pause();
  });
  ASSERT_EQ(child.hear(), 1U);
  const auto refused = Cache::open(config());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
  EXPECT_NE(refused.error().message.find("the process " + std::to_string(child.pid()) + " has the directory"),
            std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find(directory_.path()), std::string::npos);
  child.kill();
  open(config());
  EXPECT_EQ(serve(request(1)), 0U);
}

// Restarts

class CacheDiskRestart : public SystemDiskTest {
 protected:
  static constexpr std::size_t kBefore = testing::kIsSanitized ? 400 : 2'000;
  static constexpr std::size_t kAfter = testing::kIsSanitized ? 300 : 1'000;

  [[nodiscard]] CacheConfig config(const std::string& name) const {
    CacheConfig made = disk_config(64, 128);
    made.context_tokens_max = 512;
    made.disk.directories = {directory_.path() + "/" + name};
    made.disk.capacity_bytes = 256 << 20U;
    made.disk.segment_bytes = 8 << 20U;
    return made;
  }
  /// Of the tokens of the requests behind the first ones, those that were not computed.
  double hit_rate(const testing::ChatWorkload& workload, const std::string& name, bool has_restart) {
    open(config(name));
    std::uint64_t asked_tokens = 0;
    std::uint64_t hit_tokens = 0;
    for (std::size_t i = 0; i < kBefore + kAfter; ++i) {
      if (i == kBefore && has_restart) {
        restart(config(name));
        EXPECT_EQ(stats().sealed_pages, 0U);
      }
      const std::span<const TokenId> tokens = workload.requests()[i].tokens;
      const std::uint32_t found = serve({tokens.begin(), tokens.end()});
      if (i < kBefore) continue;
      asked_tokens += tokens.size();
      hit_tokens += found;
    }
    EXPECT_EQ(cache_->disk_status()->last_error, "");
    EXPECT_GT(stats().disk_hit_tokens, 0U);
    close();
    return static_cast<double>(hit_tokens) / static_cast<double>(asked_tokens);
  }
};

TEST_F(CacheDiskRestart, HitsGoOnAsIfNothingHadHappened) {
  const testing::ChatWorkload workload({.session_count = 600,
                                        .turn_count = 6,
                                        .prompt_count = 8,
                                        .prompt_tokens = 100,
                                        .turn_tokens_min = 20,
                                        .turn_tokens_max = 50});
  ASSERT_GE(workload.requests().size(), kBefore + kAfter);
  const double without = hit_rate(workload, "without", false);
  const double with = hit_rate(workload, "with", true);
  RecordProperty("without_restart", std::to_string(without));
  RecordProperty("with_restart", std::to_string(with));
  EXPECT_GT(without, 0.5);
  EXPECT_NEAR(with, without, 0.01);
}

}  // namespace
}  // namespace quire
