// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_url.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

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
  for (const char* const url : {"redis://host:7000?password=hunter2", "redis://host/0?db=1&password=hunter2",
                                "host?password=hunter2", "redis://a:b@host?password=hunter2"}) {
    const auto result = parse_redis_url(url);
    ASSERT_FALSE(result.has_value()) << url;
    EXPECT_EQ(result.error().message.find("hunter2"), std::string::npos) << result.error().message;
  }
  // A path may have all of these signs.
  EXPECT_EQ(parsed_url("unix:///run/a:b@c?d").endpoint.host, "/run/a:b@c?d");
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
