// SPDX-License-Identifier: Apache-2.0
#include "transfer/extent_value.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "testing/sample_extent.h"

namespace quire {
namespace {

using testing::sample_extent;

std::string fault_of(const std::string& key, std::span<const std::byte> value) {
  const auto parts = parse_extent_key(key, "quire");
  return parts ? extent_fault(*parts, value) : "no key";
}

TEST(ExtentValue, WhatACacheWritesIsWhatItsKeySays) {
  for (const std::uint32_t page_count : {1U, 4U, 14U}) {
    const auto extent = sample_extent({.page_count = page_count});
    const auto parts = parse_extent_key(extent.key, "quire");
    ASSERT_TRUE(parts) << extent.key;
    EXPECT_EQ(parts->page_count, page_count);
    EXPECT_EQ(parts->layout, 0x0123456789ABCDEFU);
    EXPECT_EQ(parts->key_space, "6363636363636363");
    EXPECT_EQ(parts->name.size(), 64U);
    EXPECT_EQ(extent_fault(*parts, extent.value), "");
  }
}

TEST(ExtentValue, OtherKeysAreNone) {
  const std::string key = sample_extent().key;
  EXPECT_FALSE(parse_extent_key(key, "quire2"));
  EXPECT_FALSE(parse_extent_key(key, ""));
  EXPECT_FALSE(parse_extent_key(key, std::string(200, 'q')));
  for (std::size_t i = 0; i < key.size(); ++i) EXPECT_FALSE(parse_extent_key(key.substr(0, i), "quire"));
  EXPECT_FALSE(parse_extent_key(key + "0", "quire"));
  const std::size_t count = std::string("quire:1:6363636363636363:0123456789abcdef:").size();
  ASSERT_EQ(key.substr(count, 2), "4:");
  for (const char* const other : {"0", "", "04", "-4", "4294967296", "1025", "x"}) {
    EXPECT_FALSE(parse_extent_key(key.substr(0, count) + other + key.substr(count + 1), "quire")) << other;
  }
  for (std::size_t i = 0; i < key.size(); ++i) {
    for (const char other : {'G', ':', '\0', ' '}) {
      std::string changed = key;
      changed[i] = other;
      EXPECT_EQ(parse_extent_key(changed, "quire").has_value(), changed == key) << changed;
    }
  }
}

TEST(ExtentValue, EveryBitOfAValueMatters) {
  const auto extent = sample_extent({.page_count = 2, .page_bytes = 512});
  std::vector<std::byte> value = extent.value;
  // Of a header some bits are nobody's business: none of these is what a key or a payload is compared with.
  for (std::size_t i = 0; i < value.size() * 8; i += 3) {
    value[i / 8] ^= std::byte{static_cast<unsigned char>(1U << (i % 8))};
    EXPECT_NE(fault_of(extent.key, value), "") << "bit " << i;
    value[i / 8] = extent.value[i / 8];
  }
  EXPECT_EQ(fault_of(extent.key, value), "");
}

TEST(ExtentValue, ItSaysWhatIsWrong) {
  const auto extent = sample_extent();
  std::vector<std::byte> value = extent.value;
  value.back() ^= std::byte{1};
  EXPECT_EQ(fault_of(extent.key, value), "its page 3 does not have its checksum");
  EXPECT_EQ(fault_of(sample_extent({.name = 1}).key, extent.value), "it has another name than its key");
  EXPECT_EQ(fault_of(sample_extent({.key_space = 7}).key, extent.value), "it has another key space than its key");
  EXPECT_EQ(fault_of(sample_extent({.layout = 7}).key, extent.value), "it has another layout than its key");
  EXPECT_EQ(fault_of(extent.key, std::span(extent.value).first(extent.value.size() - 1)),
            "it has another length than its headers say");
  EXPECT_EQ(fault_of(extent.key, std::span(extent.value).first(100)), "it is shorter than its headers");
  EXPECT_EQ(fault_of(extent.key, {}), "it is shorter than its headers");
}

TEST(ExtentValue, AnythingMayStandThere) {
  const auto extent = sample_extent();
  std::mt19937 draws(1);
  for (std::size_t i = 0; i < 2'000; ++i) {
    std::vector<std::byte> value(draws() % 2'000);
    for (std::byte& byte : value) byte = static_cast<std::byte>(draws());
    EXPECT_NE(fault_of(extent.key, value), "");
  }
}

}  // namespace
}  // namespace quire
