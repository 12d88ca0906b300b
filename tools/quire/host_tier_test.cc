// SPDX-License-Identifier: Apache-2.0
#include "host_tier.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(HostTier, IsOffUnlessBytesAreGiven) {
  const auto settings = parse_host_tier({});
  ASSERT_TRUE(settings);
  EXPECT_FALSE(settings->is_on());
}

TEST(HostTier, HasTheSizeAndThePoliciesAskedFor) {
  const auto settings = parse_host_tier({.host_bytes = "2.5M", .write_policy = "selective", .host_policy = "arc"});
  ASSERT_TRUE(settings);
  EXPECT_TRUE(settings->is_on());
  EXPECT_EQ(settings->capacity_bytes, 2'500'000U);
  EXPECT_EQ(settings->write_policy, WritePolicy::Selective);
  EXPECT_EQ(settings->policy, "arc");
}

TEST(HostTier, EveryWritePolicyHasAName) {
  EXPECT_EQ(write_policy_names(), "write_back, write_through, selective");
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    const std::string name(write_policy_name(policy));
    EXPECT_EQ(parse_host_tier({.host_bytes = "1G", .write_policy = name, .host_policy = {}})->write_policy, policy);
  }
}

TEST(HostTier, NamesThatAreUnknownAreRefusedWithTheKnownOnes) {
  const auto write = parse_host_tier({.host_bytes = "1G", .write_policy = "never", .host_policy = {}});
  ASSERT_FALSE(write);
  EXPECT_EQ(write.error().message, "--write-policy: 'never' is unknown; known: write_back, write_through, selective");
  const auto host = parse_host_tier({.host_bytes = "1G", .write_policy = {}, .host_policy = "mru"});
  ASSERT_FALSE(host);
  EXPECT_NE(host.error().message.find("--host-policy: unknown policy 'mru'; known: lru"), std::string::npos);
}

TEST(HostTier, APolicyWithoutATierIsRefused) {
  EXPECT_FALSE(parse_host_tier({.host_bytes = "none", .write_policy = "write_back", .host_policy = {}}));
  EXPECT_FALSE(parse_host_tier({.host_bytes = "none", .write_policy = {}, .host_policy = "lru"}));
}

TEST(HostTier, SizesThatAreNoneAreRefused) {
  for (const char* text : {"", "0", "-1", "many", "1.5", "1,2", "99999999999999999999"}) {
    EXPECT_FALSE(parse_host_tier({.host_bytes = text, .write_policy = {}, .host_policy = {}})) << text;
  }
}

TEST(HostTier, TheRegionIsToldWithWhatWasRefused) {
  EXPECT_EQ(host_region_text({}), "pages of the usual size, not locked");
  EXPECT_EQ(host_region_text({.has_huge_pages = true, .is_locked = true}), "transparent huge pages, locked");
  EXPECT_EQ(host_region_text({.has_huge_pages = true, .has_reserved_huge_pages = true, .refusals = "lock: no"}),
            "reserved huge pages, not locked (lock: no)");
}

}  // namespace
}  // namespace quire
