// SPDX-License-Identifier: Apache-2.0
#include "layout/text.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Text, ACommaStandsBeforeEveryThirdDigitFromTheRight) {
  EXPECT_EQ(with_separators(0), "0");
  EXPECT_EQ(with_separators(999), "999");
  EXPECT_EQ(with_separators(1'000), "1,000");
  EXPECT_EQ(with_separators(131'072), "131,072");
  EXPECT_EQ(with_separators(1'234'567), "1,234,567");
  EXPECT_EQ(with_separators(std::numeric_limits<std::uint64_t>::max()), "18,446,744,073,709,551,615");
}

TEST(Text, ExactBytesHaveNoDecimals) {
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(656), "656 B");
  EXPECT_EQ(readable_bytes(1'024), "1 KiB");
  EXPECT_EQ(readable_bytes(std::uint64_t{2} * 1'024 * 1'024), "2 MiB");
  EXPECT_EQ(readable_bytes(std::uint64_t{1} << 63), "8 EiB");
}

TEST(Text, OtherBytesHaveTwoDecimals) {
  EXPECT_EQ(readable_bytes(1'536), "1.50 KiB");
  EXPECT_EQ(readable_bytes(1'124'352), "1.07 MiB");
  EXPECT_EQ(readable_bytes(std::numeric_limits<std::uint64_t>::max()), "16.00 EiB");
}

}  // namespace
}  // namespace quire
