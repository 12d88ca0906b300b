// SPDX-License-Identifier: Apache-2.0
#include "layout/text.h"

#include <cstdint>
#include <limits>
#include <string>

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

TEST(Text, OneThingIsNotPlural) {
  EXPECT_EQ(count_of(0, "page"), "0 pages");
  EXPECT_EQ(count_of(1, "page"), "1 page");
  EXPECT_EQ(count_of(7'813, "page"), "7,813 pages");
}

TEST(Text, AMessageHasItsCountsWithSeparators) {
  EXPECT_EQ(message_of("sequence ", plain(1'234), " has ", 5'678U, " tokens", std::string(" more")),
            "sequence 1234 has 5,678 tokens more");
  EXPECT_EQ(plain(-1), "-1");
}

TEST(Text, AFailedCallHasItsCodeAndItsMessage) {
  EXPECT_EQ(invalid("at is ", 2'000U).value().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(unsupported("at is ", 2'000U).value().code, ErrorCode::Unsupported);
  EXPECT_EQ(unavailable("at is ", 2'000U).value().code, ErrorCode::Unavailable);
  EXPECT_EQ(invalid("at is ", 2'000U).value().message, "at is 2,000");
}

TEST(Text, AProductThatDoesNotFitShowsItsFactors) {
  EXPECT_EQ(*product("a pool", {{3, "pages"}, {7, "bytes"}}), 21U);
  const auto result = product("a pool", {{std::uint64_t{1} << 40, "pages"}, {1U << 30, "bytes"}});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().message,
            "a pool does not fit in 64 bits (1,099,511,627,776 pages x 1,073,741,824 bytes): make it smaller");
}

}  // namespace
}  // namespace quire
