// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_url.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/redis_store.h"
#include "remote/redis_login.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

RedisUrl parsed_url(std::string_view url) {
  auto result = parse_redis_url(url);
  EXPECT_TRUE(result.has_value()) << url << ": " << (result.has_value() ? "" : result.error().message);
  return result.has_value() ? *std::move(result) : RedisUrl{};
}

TEST(RedisUrl, NamesAHostAPortAndAUser) {
  EXPECT_EQ(parsed_url("redis://cache.example").endpoint, (RedisEndpoint{.host = "cache.example", .port = 6379}));
  EXPECT_EQ(parsed_url("redis://cache.example:7000/").endpoint, (RedisEndpoint{.host = "cache.example", .port = 7000}));
  EXPECT_EQ(parsed_url("rediss://10.0.0.1:7000").endpoint,
            (RedisEndpoint{.host = "10.0.0.1", .port = 7000, .is_tls = true}));
  EXPECT_EQ(parsed_url("redis://engine@host:1").user, "engine");
  EXPECT_EQ(parsed_url("redis://engine@host:1").endpoint.host, "host");
}

TEST(RedisUrl, AnIpv6AddressStandsInBrackets) {
  EXPECT_EQ(parsed_url("redis://[::1]:7000").endpoint, (RedisEndpoint{.host = "::1", .port = 7000}));
  EXPECT_EQ(parsed_url("redis://[::1]").endpoint.port, 6379);
  EXPECT_EQ(to_string(parsed_url("redis://[::1]:7000").endpoint), "[::1]:7000");
  EXPECT_FALSE(parse_redis_url("redis://::1:7000").has_value());
}

TEST(RedisUrl, AUnixSocketIsAnAbsolutePath) {
  EXPECT_EQ(parsed_url("unix:///run/valkey.sock").endpoint,
            (RedisEndpoint{.host = "/run/valkey.sock", .is_unix = true}));
  EXPECT_FALSE(parse_redis_url("unix://run/valkey.sock").has_value());
  EXPECT_FALSE(parse_redis_url("unix:///" + std::string(200, 'x')).has_value());
}

TEST(RedisUrl, APasswordIsRefusedAndNotRepeated) {
  for (const char* const url :
       {"redis://user:hunter2@host:7000", "redis://:hunter2@host", "rediss://a:hunter2@[::1]", "nonsense:hunter2@host",
        "redis://a:hunter2@b@host", "unix://:hunter2@/run/valkey.sock"}) {
    const auto result = parse_redis_url(url);
    ASSERT_FALSE(result.has_value()) << url;
    EXPECT_EQ(result.error().code, ErrorCode::InvalidArgument);
    EXPECT_EQ(result.error().message.find("hunter2"), std::string::npos) << result.error().message;
    EXPECT_NE(result.error().message.find("password_file"), std::string::npos) << result.error().message;
  }
}

TEST(RedisUrl, WhatOthersTakeAPasswordFromIsNotRepeated) {
  for (const char* const url :
       {"redis://host:7000?password=hunter2", "redis://host/0?db=1&password=hunter2", "host?password=hunter2",
        "redis://a:b@host?password=hunter2", "unix:///run/valkey.sock?db=0&password=hunter2",
        "unix:///run/a@b?password=hunter2", "unix://hunter2@/run/a", "redis://host:6379?password=x@hunter2",
        "redis://host?hunter2", "redis://host?x@hunter2", "redis://hun?ter2:hunter2@host", "redis://hunter2@host:0",
        "redis://hunter2@host/3", "redis://hunter2@ho st", "hunter2@host", "host?password=hunter2://@"}) {
    const auto result = parse_redis_url(url);
    ASSERT_FALSE(result.has_value()) << url;
    EXPECT_EQ(result.error().message.find("hunter2"), std::string::npos) << result.error().message;
  }
  // A path may have all of these signs, unless they name something.
  EXPECT_EQ(parsed_url("unix:///run/a:b@c?d").endpoint.host, "/run/a:b@c?d");
  EXPECT_EQ(parsed_url("unix:///run/a=b?d").endpoint.host, "/run/a=b?d");
}

TEST(RedisUrl, AUserWithoutAPasswordIsNotRepeated) {
  for (const RedisConfig& config :
       {RedisConfig{.urls = {"redis://hunter2@host"}}, RedisConfig{.urls = {"redis://host"}, .user = "hunter2"},
        RedisConfig{.urls = {"redis://hunter2@host", "redis://host"}},
        RedisConfig{.urls = {"redis://hunter2@host"}, .user = "other", .password = "secret"},
        RedisConfig{.urls = {"redis://a@host", "redis://hunter2@host"}, .password = "secret"}}) {
    const auto login = make_redis_login(config);
    ASSERT_FALSE(login.has_value());
    EXPECT_EQ(login.error().message.find("hunter2"), std::string::npos) << login.error().message;
    EXPECT_NE(login.error().message.find("user"), std::string::npos) << login.error().message;
  }
}

// Urls of random parts, with a secret in some place where others look for one.
TEST(RedisUrl, ASecretInAnyPlaceIsInNoMessage) {
  testing::Random random(1);
  const auto one_of = [&](const std::vector<std::string>& texts) { return texts[random.next() % texts.size()]; };
  std::uint32_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<std::string> odd = {"", "a", ":", "@", "?", "/", "%40", "[", "]", "=", "&", "#", "://", " ", "é"};
    std::string user = one_of(odd) + one_of(odd) + "hunter2" + one_of(odd) + one_of(odd) + "@";
    std::string query = "?" + one_of({"password", "db=0&password", "a/b@c&auth", ""}) + "=" + one_of(odd) +
                        one_of(odd) + "hunter2" + one_of(odd) + one_of(odd);
    const std::uint64_t where = random.next() % 3;
    if (where == 0) query = one_of({"", "", "?", "?db=1", "?x"});
    if (where == 1) user = one_of({"", "", "user@", "user:word@"});
    const std::string scheme = one_of({"redis://", "rediss://", "unix://", "http://", ""});
    // Behind unix:// and a '/', all is path up to the query.
    if (scheme == "unix://" && user.starts_with('/')) continue;
    const std::string url = scheme + user +
                            one_of({"host", "host:7000", "[::1]", "[::1]:7", "/run/socket", "h o", ""}) +
                            one_of({"", "/", "/0", ":1:2"}) + query;
    const auto login = make_redis_login({.urls = {url}});
    if (login.has_value()) continue;
    ++refused;
    EXPECT_EQ(login.error().message.find("hunter2"), std::string::npos) << url << "\n" << login.error().message;
  }
  EXPECT_GT(refused, 10'000U);
}

TEST(RedisUrl, WhatIsNoUrlIsRefusedWithAnExample) {
  for (const char* const url : {"", "host:6379", "http://host", "redis://", "redis://host:0", "redis://host:65536",
                                "redis://host:", "redis://host:7x", "redis://host/3", "redis://ho st", "redis://[::1",
                                "redis://[::1]7000", "redis://host?db=1", "redis://ho\nst"}) {
    const auto result = parse_redis_url(url);
    ASSERT_FALSE(result.has_value()) << url;
    EXPECT_NE(result.error().message.find("redis://[user@]host[:port]"), std::string::npos) << result.error().message;
  }
}

}  // namespace
}  // namespace quire
