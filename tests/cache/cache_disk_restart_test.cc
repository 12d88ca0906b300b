// SPDX-License-Identifier: Apache-2.0
//
// Chats through a cache that is closed and opened in their midst: the disk tier makes up for the memory that is lost.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "system_disk_fixture.h"
#include "testing/sanitized.h"
#include "testing/workloads.h"

namespace quire {
namespace {

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
