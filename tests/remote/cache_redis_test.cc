// SPDX-License-Identifier: Apache-2.0
//
// Caches with a remote tier on a real server: of one rank and of several, that hold different heads or the same.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "tests/cache/rank_disk_fixture.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/redis_server.h"

namespace quire {
namespace {

class CacheRedis : public RankDiskTest {
 protected:
  ~CacheRedis() override { close(); }  // before its server goes

  [[nodiscard]] CacheConfig remote_config(std::uint32_t rank_count, std::uint32_t heads) const {
    CacheConfig config = rank_config(rank_count, heads);
    config.disk = {};
    config.host.transfer_pages_max = 4;  // and so an extent has four pages
    config.remote.urls = {server_.unix_url()};
    // Slower machines than any that tests run on.
    config.remote.find_timeout_ns = config.remote.load_timeout_ns = 60'000'000'000;
    return config;
  }
  void expect_found(const CacheConfig& config, std::uint32_t found) {
    CacheConfig made{.layout = config.layout, .page = config.page};
    made.device = {.page_count = config.device.page_count, .memory = DeviceMemory::None};
    made.host = config.host;
    made.remote = config.remote;
    made.sequence_count_max = config.sequence_count_max;
    open(std::move(made));
    EXPECT_EQ(serve(tokens_), found);
    EXPECT_EQ(stats().remote_hit_tokens, found);
    flush();
  }

  testing::RedisServer server_;
  std::vector<TokenId> tokens_ = token_range(0, 100);  // six pages, of which four are an extent
};

TEST_F(CacheRedis, WhatOneProcessComputedAnotherFinds) {
  expect_found(remote_config(1, 4), 0);
  EXPECT_EQ(cache_->remote_status()->put_values, 1U);
  expect_found(remote_config(1, 4), 64);
  EXPECT_EQ(cache_->remote_status()->got_values, 1U);
  EXPECT_EQ(cache_->remote_status()->node_count, 1U);
  EXPECT_TRUE(stats().remote_is_on);
}

TEST_F(CacheRedis, EveryShardOfRanksHasItsOwnValues) {
  expect_found(remote_config(2, 4), 0);
  EXPECT_EQ(cache_->remote_status()->put_values, 2U);
  expect_found(remote_config(2, 4), 64);
  // Other numbers of ranks hold other heads.
  expect_found(remote_config(4, 4), 0);
  expect_found(remote_config(4, 4), 64);
  expect_found(remote_config(2, 4), 64);
  // Ranks that hold the same bytes have one value, for any number of them.
  expect_found(remote_config(2, 0), 0);
  EXPECT_EQ(cache_->remote_status()->put_values, 1U);
  expect_found(remote_config(4, 0), 64);
}

TEST_F(CacheRedis, AValueThatOneShardLacksEndsTheHitOfAllRanks) {
  expect_found(remote_config(2, 4), 0);
  std::vector<std::string> keys;
  ASSERT_TRUE(scan_redis_store({.urls = {server_.unix_url()}}, "quire:", [&](const RedisScanPage& page) {
    for (const RedisScanPage::Key& key : page.keys) keys.push_back(key.key);
    return true;
  }));
  ASSERT_EQ(keys.size(), 2U);
  (void)server_.call({"DEL", keys.front()});
  expect_found(remote_config(2, 4), 0);  // and writes what was lacking
  expect_found(remote_config(2, 4), 64);
}

TEST_F(CacheRedis, AFlushBehindADropSaysWhetherItHasReachedTheServer) {
  expect_found(remote_config(2, 4), 0);
  ASSERT_TRUE(cache_->drop(space_));
  flush();
  expect_found(remote_config(2, 4), 0);
  expect_found(remote_config(2, 4), 64);
  // One that is away has not heard of it.
  server_.kill();
  ASSERT_TRUE(cache_->drop(space_));
  const auto try_flush = [this] {
    Result<bool> done = cache_->flush();
    for (; done && !*done; done = cache_->flush()) exchange();
    return done;
  };
  const Result<bool> flushed = try_flush();
  ASSERT_FALSE(flushed.has_value());
  EXPECT_NE(flushed.error().message.find("a drop has failed"), std::string::npos) << flushed.error().message;
  server_.start();
  // A node that has failed is left alone for a while.
  EXPECT_TRUE(testing::comes_true([&] { return try_flush().has_value(); }));
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(serve(tokens_), 0U);
  flush();
  expect_found(remote_config(2, 4), 64);
}

TEST_F(CacheRedis, AServerThatIsNotThereIsAnErrorUnlessItNeedNotBe) {
  server_.kill();
  const Status refused = try_open(remote_config(1, 4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("socket"), std::string::npos) << refused.error().message;
  CacheConfig config = remote_config(1, 4);
  config.remote.is_required = false;
  config.remote.password = "very secret";
  open(std::move(config));
  EXPECT_EQ(serve(tokens_), 0U);
  EXPECT_TRUE(stats().remote_has_failed);
  EXPECT_FALSE(stats().remote_is_on);
  EXPECT_NE(cache_->remote_status()->last_error, "");
  EXPECT_EQ(cache_->remote_status()->last_error.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace quire
