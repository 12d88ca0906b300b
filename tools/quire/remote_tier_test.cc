// SPDX-License-Identifier: Apache-2.0
#include "remote_tier.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr HostTierSettings kSomeHost = {.capacity_bytes = 1'000'000};

RemoteTierOptions urls_of(const char* urls) {
  RemoteTierOptions options;
  options.server.remote = urls;
  return options;
}

TEST(RemoteTier, IsOffUnlessItIsAskedFor) {
  const auto settings = parse_remote_tier({}, "secret", {});
  ASSERT_TRUE(settings.has_value());
  EXPECT_FALSE(settings->is_on());
}

TEST(RemoteTier, TakesUrlsSizesAndPolicies) {
  RemoteTierOptions options = urls_of("redis://a:1,redis://b:2");
  options.extent_bytes = "512k";
  options.write_policy = "selective";
  options.write_bytes_per_day = "1.5T";
  options.max_age_s = 60;
  options.server.user = "quire";
  const auto settings = parse_remote_tier(options, "secret", kSomeHost);
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  EXPECT_FALSE(settings->keep);
  const RemoteConfig config = settings->config_for("mine");
  EXPECT_EQ(config.urls, (std::vector<std::string>{"redis://a:1", "redis://b:2"}));
  EXPECT_EQ(config.extent_bytes, 512'000U);
  EXPECT_EQ(config.write_policy, WritePolicy::Selective);
  EXPECT_EQ(config.write_bytes_per_day, 1'500'000'000'000U);
  EXPECT_EQ(config.max_age_s, 60U);
  EXPECT_EQ(config.user, "quire");
  EXPECT_EQ(config.password, "secret");
  EXPECT_EQ(config.key_prefix, "mine");
}

TEST(RemoteTier, AFileOfThePasswordGoesBeforeTheEnvironment) {
  RemoteTierOptions options = urls_of("redis://a");
  options.server.password_file = "pw";
  const auto settings = parse_remote_tier(options, "secret", kSomeHost);
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(settings->servers.password, "");
  EXPECT_EQ(settings->servers.password_file, "pw");
}

TEST(RemoteTier, WhatIsUnderAGivenPrefixStays) {
  RemoteTierOptions options = urls_of("redis://a");
  options.server.key_prefix = "team-7";
  const auto settings = parse_remote_tier(options, nullptr, kSomeHost);
  ASSERT_TRUE(settings.has_value());
  EXPECT_TRUE(settings->keep);
  EXPECT_EQ(settings->key_prefix, "team-7");
  EXPECT_NE(own_key_prefix(), own_key_prefix());
}

TEST(RemoteTier, ErrorsOfTheLibraryNameOptions) {
  EXPECT_EQ(in_options("RedisConfig::ca_file is 'x', or RemoteConfig::key_file; give RedisConfig::password."),
            "--remote-ca-file is 'x', or --remote-key-file; give QUIRE_REMOTE_PASSWORD.");
  EXPECT_EQ(in_options("no such host"), "no such host");
}

TEST(RemoteTier, SaysWhatIsMissing) {
  const auto message = [](const RemoteTierOptions& options, const HostTierSettings& host) {
    const auto settings = parse_remote_tier(options, nullptr, host);
    return settings ? std::string("nothing") : settings.error().message;
  };
  EXPECT_NE(message(urls_of("redis://a"), {}).find("--host-bytes"), std::string::npos);
  RemoteTierOptions options;
  options.extent_bytes = "1M";
  EXPECT_NE(message(options, kSomeHost).find("--remote-extent-bytes needs --remote"), std::string::npos);
  options = {};
  options.server.ca_file = "ca";
  EXPECT_NE(message(options, kSomeHost).find("--remote-ca-file needs --remote"), std::string::npos);
  options = urls_of("redis://a,,redis://b");
  EXPECT_NE(message(options, kSomeHost).find("--remote:"), std::string::npos);
  options = urls_of("redis://a");
  options.extent_bytes = "lots";
  EXPECT_NE(message(options, kSomeHost).find("--remote-extent-bytes: 'lots'"), std::string::npos);
  options = urls_of("redis://a");
  options.write_policy = "never";
  EXPECT_NE(message(options, kSomeHost).find("--remote-write-policy: 'never'"), std::string::npos);
}

}  // namespace
}  // namespace quire
