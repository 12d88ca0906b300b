// SPDX-License-Identifier: Apache-2.0
//
// What tools see of a remote tier, on real servers.
#include "quire/redis_inspect.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "testing/sample_extent.h"
#include "tests/remote/redis_server.h"

namespace quire::testing {
namespace {

void put(RedisServer& server, const std::string& key, std::span<const std::byte> value) {
  server.call({"SET", key, std::string_view(reinterpret_cast<const char*>(value.data()), value.size())});
}

RedisInspectReport inspected(const RedisConfig& config, const RedisInspectOptions& options = {}) {
  Result<RedisInspectReport> report = inspect_redis_store(config, options);
  EXPECT_TRUE(report) << report.error().message;
  return report ? *std::move(report) : RedisInspectReport{};
}

TEST(RedisInspect, CountsValuesByKeySpaceAndLayout) {
  RedisServer server;
  for (std::uint8_t name = 0; name < 3; ++name) {
    const SampleExtent extent = sample_extent({.key_space = 7, .page_count = 8, .name = name});
    put(server, extent.key, extent.value);
  }
  const SampleExtent other = sample_extent({.layout = 5, .page_count = 1});
  put(server, other.key, other.value);
  const SampleExtent elsewhere = sample_extent({.prefix = "quire2"});
  put(server, elsewhere.key, elsewhere.value);
  server.call({"SET", "quirements", "of somebody else"});
  const RedisInspectReport report = inspected({.urls = {server.unix_url()}});
  EXPECT_EQ(report.node_count, 1U);
  EXPECT_EQ(report.value_count, 4U);
  EXPECT_EQ(report.page_count, 25U);
  EXPECT_EQ(report.foreign_count, 0U);
  EXPECT_EQ(report.checked_count, 0U);
  ASSERT_EQ(report.parts.size(), 2U);
  EXPECT_EQ(report.parts[0].key_space, "0707070707070707");
  EXPECT_EQ(report.parts[0].value_count, 3U);
  EXPECT_EQ(report.parts[0].bytes, 3 * extent_bytes(8, 4'096));
  EXPECT_EQ(report.parts[1].layout, 5U);
  EXPECT_TRUE(report.is_complete);
}

TEST(RedisInspect, FindsAndDropsWhatNoCacheWrote) {
  RedisServer server;
  for (std::uint8_t name = 0; name < 4; ++name) {
    SampleExtent extent = sample_extent({.name = name});
    if (name == 1) extent.value[extent.value.size() / 2] ^= std::byte{4};
    if (name == 2) extent.value.resize(1'000);
    put(server, extent.key, extent.value);
  }
  server.call({"SET", "quire:1:letters", "dear"});
  server.call({"RPUSH", "quire:1:list", "a", "b"});
  server.call({"SET", "other", "untouched"});
  const RedisConfig config{.urls = {server.unix_url()}};
  const RedisInspectReport found = inspected(config, {.verify = true});
  EXPECT_EQ(found.value_count, 4U);
  EXPECT_EQ(found.checked_count, 4U);
  EXPECT_EQ(found.fault_count, 4U);
  EXPECT_EQ(found.foreign_count, 2U);
  EXPECT_EQ(found.faults.size(), 4U);
  EXPECT_FALSE(found.is_clean());
  const RedisInspectReport repaired = inspected(config, {.verify = true, .repair = true});
  EXPECT_EQ(repaired.dropped_count, 4U);
  EXPECT_TRUE(repaired.is_clean());
  for (const RedisFault& fault : repaired.faults) EXPECT_TRUE(fault.is_dropped) << fault.key;
  const RedisInspectReport after = inspected(config, {.verify = true});
  EXPECT_EQ(after.value_count, 2U);
  EXPECT_EQ(after.fault_count, 0U);
  EXPECT_EQ(server.call({"GET", "other"}).text, "untouched");
}

TEST(RedisInspect, ReadsManyValuesInPartsAndEndsWhenAsked) {
  RedisServer server;
  // More than is read at once.
  for (std::uint8_t key_space = 1; key_space <= 60; ++key_space) {
    const SampleExtent extent = sample_extent({.key_space = key_space, .page_count = 2, .page_bytes = 1U << 19U});
    put(server, extent.key, extent.value);
  }
  const RedisConfig config{.urls = {server.unix_url()}};
  std::uint64_t read_bytes = 0;
  const RedisInspectReport all =
      inspected(config, {.verify = true, .on_progress = [&](const RedisInspectProgress& progress) {
                           EXPECT_GE(progress.read_bytes, read_bytes);
                           read_bytes = progress.read_bytes;
                           return true;
                         }});
  EXPECT_EQ(all.checked_count, 60U);
  EXPECT_EQ(all.fault_count, 0U);
  EXPECT_EQ(read_bytes, all.bytes);
  const RedisInspectReport part = inspected(
      config,
      {.verify = true, .on_progress = [](const RedisInspectProgress& progress) { return progress.read_bytes == 0; }});
  EXPECT_FALSE(part.is_complete);
  EXPECT_LT(part.checked_count, 60U);
}

TEST(RedisInspect, LooksAtAllNodesOfACluster) {
  RedisClusterServers cluster(3);
  for (std::uint8_t key_space = 1; key_space <= 30; ++key_space) {
    const SampleExtent extent = sample_extent({.key_space = key_space});
    for (std::uint32_t i = 0; i < 3; ++i) put(cluster.primary(i), extent.key, extent.value);  // one of them takes it
  }
  const RedisInspectReport report = inspected({.urls = cluster.urls()}, {.verify = true});
  EXPECT_EQ(report.node_count, 3U);
  EXPECT_EQ(report.value_count, 30U);
  EXPECT_EQ(report.checked_count, 30U);
  EXPECT_EQ(report.parts.size(), 30U);
  EXPECT_TRUE(report.is_clean());
}

TEST(RedisInspect, AWrongPasswordIsSaidAndNotPrinted) {
  RedisServer server({.more = {"--requirepass", "the right one"}});
  for (const char* const password : {"", "a wrong one"}) {
    const auto report = inspect_redis_store({.urls = {server.unix_url()}, .password = password});
    ASSERT_FALSE(report);
    EXPECT_NE(report.error().message.find("password"), std::string::npos) << report.error().message;
    EXPECT_EQ(report.error().message.find("wrong one"), std::string::npos) << report.error().message;
  }
  EXPECT_TRUE(inspect_redis_store({.urls = {server.unix_url()}, .password = "the right one"}));
}

TEST(RedisInspect, LookingNeedsAUserThatMayOnlyRead) {
  RedisServer server;
  const SampleExtent extent = sample_extent({});
  put(server, extent.key, extent.value);
  EXPECT_EQ(
      server
          .call({"ACL", "SETUSER", "reader", "on", ">secret", "~quire:*", "-@all", "+@read", "+ping", "+cluster|slots"})
          .text,
      "OK");
  const RedisConfig config{.urls = {server.unix_url()}, .user = "reader", .password = "secret"};
  (void)server.call({"CONFIG", "RESETSTAT"});
  EXPECT_EQ(inspected(config).value_count, 1U);
  EXPECT_EQ(inspected(config, {.verify = true}).checked_count, 1U);
  const std::string commands = server.call({"INFO", "commandstats"}).text;
  EXPECT_EQ(commands.find("cmdstat_set:"), std::string::npos) << commands;
  EXPECT_EQ(commands.find("cmdstat_unlink:"), std::string::npos) << commands;
  const auto refused = inspect_redis_store(config, {.verify = true, .repair = true});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("does not allow SET"), std::string::npos) << refused.error().message;
}

TEST(RedisInspect, LooksBelowItsOwnPrefixOnly) {
  RedisServer server;
  const SampleExtent extent = sample_extent({.prefix = "team"});
  put(server, extent.key, extent.value);
  EXPECT_EQ(server.call({"ACL", "SETUSER", "reader", "on", ">secret", "~team:*", "+@all"}).text, "OK");
  const RedisConfig config{.urls = {server.unix_url()}, .user = "reader", .password = "secret"};
  for (const bool repair : {false, true}) {
    EXPECT_EQ(inspected(config, {.key_prefix = "team", .verify = true, .repair = repair}).checked_count, 1U);
  }
}

TEST(RedisInspect, WithoutAServerItSaysSo) {
  const Result<RedisInspectReport> report = inspect_redis_store({.urls = {"unix:///no/such/socket"}});
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message.find("/no/such/socket"), std::string::npos) << report.error().message;
}

}  // namespace
}  // namespace quire::testing
