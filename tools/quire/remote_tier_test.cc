// SPDX-License-Identifier: Apache-2.0
#include "remote_tier.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
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
  EXPECT_EQ(settings->servers.key_prefix, "team-7:") << "opening tries what its keys begin with";
  EXPECT_NE(own_key_prefix(), own_key_prefix());
  EXPECT_TRUE(own_key_prefix().starts_with(RedisConfig{}.key_prefix)) << "whoever may have a cache's keys may have it";
}

TEST(RemoteTier, ErrorsOfTheLibraryNameOptions) {
  EXPECT_EQ(in_options("RedisConfig::ca_file is 'x', or RemoteConfig::key_file; give RedisConfig::password."),
            "--remote-ca-file is 'x', or --remote-key-file; give QUIRE_REMOTE_PASSWORD.");
  EXPECT_EQ(in_options("remote.key_prefix has a space"), "--remote-key-prefix has a space");
  EXPECT_EQ(in_options("no such host"), "no such host");
  EXPECT_EQ(in_options(""), "");
  EXPECT_EQ(in_options("no connection to remote.user.example, remote.user:6379; is it 'remote.key_file'?"),
            "no connection to remote.user.example, remote.user:6379; is it '--remote-key-file'?")
      << "a host is no field";
}

TEST(RemoteTier, HintsAboutWhatNoOptionSetsAreLeftOut) {
  EXPECT_EQ(in_options("slots are missing: start the nodes; with RedisConfig::requires_server = false it opens; "
                       "none of the 2 other nodes can be used either"),
            "slots are missing: start the nodes; none of the 2 other nodes can be used either");
  EXPECT_EQ(in_options("no slots; without a cluster, remote.cluster can say so"), "no slots");
  EXPECT_EQ(in_options("it is part of a cluster, which RedisConfig::cluster denies"),
            "it is part of a cluster, which cluster denies");
}

// Every field that the library names in a message about servers is an option here, or not named.
TEST(RemoteTier, EveryFieldThatMessagesNameIsAnOptionOrLeftOut) {
  std::set<std::string> fields;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/src/remote")) {
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const std::regex mention("RedisConfig::([a-z_]+)|wrong_config\\(\\s*\"([a-z_]+)|wrong_file\\(\"([a-z_]+)");
    for (std::sregex_iterator match(text.begin(), text.end(), mention), end; match != end; ++match) {
      for (std::size_t group = 1; group < match->size(); ++group) fields.insert((*match)[group].str());
    }
  }
  fields.erase("");
  EXPECT_GT(fields.size(), 15U);
  const std::set<std::string> of_the_library = {"batch_count_max",   "command_timeout_ns", "connect_timeout_ns",
                                                "failures_in_a_row", "object_count_max",   "pause_ns_min",
                                                "window_bytes"};  // which the tool never sets
  for (const std::string& field : fields) {
    if (of_the_library.contains(field)) continue;
    const std::string told = in_options("a; b RedisConfig::" + field + "; c");
    if (told == "a; c") continue;
    EXPECT_TRUE(told.starts_with("a; b --remote") || told == "a; b QUIRE_REMOTE_PASSWORD; c") << told;
    EXPECT_EQ(told.find('_', told.find("--")), std::string::npos) << told;
  }
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
