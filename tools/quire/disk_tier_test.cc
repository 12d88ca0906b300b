// SPDX-License-Identifier: Apache-2.0
#include "disk_tier.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr std::uint64_t kHostBytes = 1'000'000;

DiskTierOptions options_of(const char* disk) {
  return {.disk = disk, .disk_bytes = "2G", .write_policy = std::nullopt, .write_bytes_per_day = std::nullopt};
}

TEST(DiskTier, IsOffUnlessItIsAskedFor) {
  const auto settings = parse_disk_tier({}, {});
  ASSERT_TRUE(settings.has_value());
  EXPECT_FALSE(settings->is_on());
}

TEST(DiskTier, TakesDirectoriesSizesAndPolicies) {
  DiskTierOptions options = options_of("a,b/c");
  options.write_policy = "selective";
  options.write_bytes_per_day = "1.5T";
  const auto settings = parse_disk_tier(options, {.capacity_bytes = kHostBytes});
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  EXPECT_EQ(settings->directories, (std::vector<std::string>{"a", "b/c"}));
  EXPECT_EQ(settings->capacity_bytes, 2'000'000'000U);
  EXPECT_EQ(settings->write_policy, WritePolicy::Selective);
  EXPECT_EQ(settings->write_bytes_per_day, 1'500'000'000'000U);
}

TEST(DiskTier, SaysWhatIsMissing) {
  const auto message = [](const DiskTierOptions& options, std::uint64_t host_bytes) {
    const auto settings = parse_disk_tier(options, {.capacity_bytes = host_bytes});
    return settings ? std::string("nothing") : settings.error().message;
  };
  EXPECT_NE(message(options_of("a"), 0).find("--host-bytes"), std::string::npos);
  DiskTierOptions options = options_of("a");
  options.disk_bytes.reset();
  EXPECT_NE(message(options, kHostBytes).find("--disk-bytes"), std::string::npos);
  options = options_of("a");
  options.disk.reset();
  EXPECT_NE(message(options, kHostBytes).find("--disk-bytes needs --disk"), std::string::npos);
  EXPECT_NE(message(options_of("a,,b"), kHostBytes).find("--disk:"), std::string::npos);
  EXPECT_NE(message(options_of("a,a"), kHostBytes).find("twice"), std::string::npos);
}

TEST(DiskTier, ATemporaryDirectoryGoesWithEverythingInIt) {
  std::string path;
  {
    const auto directory = TemporaryDirectory::make();
    ASSERT_TRUE(directory.has_value()) << directory.error().message;
    path = directory->path();
    std::filesystem::create_directories(path + "/a/b");
    std::ofstream(path + "/a/b/c") << "text";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace quire
