// SPDX-License-Identifier: Apache-2.0
//
// What CacheConfig::remote says about values reaches a real server.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cache/rank_disk_fixture.h"
#include "tests/remote/redis_server.h"

namespace quire {
namespace {

class CacheRedisSettings : public RankDiskTest {
 protected:
  ~CacheRedisSettings() override { close(); }  // before its server goes

  [[nodiscard]] CacheConfig remote_config() const {
    CacheConfig config = rank_config(1, 4);
    config.disk = {};
    config.host.transfer_pages_max = 4;  // and so an extent has four pages
    config.remote.urls = {server_.unix_url()};
    // Slower machines than any that tests run on.
    config.remote.find_timeout_ns = config.remote.load_timeout_ns = 60'000'000'000;
    return config;
  }
  /// Opens a cache, and gives what a request finds. What the request computes is on the server afterwards.
  std::uint32_t serve_with(CacheConfig config) {
    open(std::move(config));
    if (HasFatalFailure()) return 0;
    const std::uint32_t found = serve(token_range(0, 100));  // six pages, of which four are an extent
    flush();
    return found;
  }
  [[nodiscard]] std::vector<RespValue> keys() { return server_.call({"KEYS", "*"}).parts; }

  testing::RedisServer server_;
};

TEST_F(CacheRedisSettings, ValuesLiveAsLongAsTheyMayAndNoLonger) {
  for (const std::uint32_t max_age_s : {0U, 1'000U, UINT32_MAX}) {
    (void)server_.call({"FLUSHALL"});
    CacheConfig config = remote_config();
    config.remote.max_age_s = max_age_s;
    EXPECT_EQ(serve_with(std::move(config)), 0U);
    const std::vector<RespValue> there = keys();
    ASSERT_EQ(there.size(), 1U);
    const std::int64_t left_ms = server_.call({"PTTL", there[0].text}).number;
    const std::int64_t max_age_ms = std::int64_t{max_age_s} * 1'000;
    if (max_age_s == 0) {
      EXPECT_EQ(left_ms, -1) << "as long as the server has room";
    } else {
      EXPECT_LE(left_ms, max_age_ms);
      EXPECT_GT(left_ms, max_age_ms - 900'000) << "this test takes less than a quarter of an hour";
    }
  }
  // Once a value is too old, it is computed and written anew.
  EXPECT_EQ(server_.call({"PEXPIRE", keys()[0].text, "0"}).number, 1);
  EXPECT_EQ(serve_with(remote_config()), 0U);
  EXPECT_EQ(serve_with(remote_config()), 64U);
}

}  // namespace
}  // namespace quire
