// SPDX-License-Identifier: Apache-2.0
#include "amounts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire {
namespace {

TEST(Amounts, SuffixesAreDecimal) {
  EXPECT_EQ(parse_amount("1"), 1U);
  EXPECT_EQ(parse_amount("4096"), 4'096U);
  EXPECT_EQ(parse_amount("100k"), 100'000U);
  EXPECT_EQ(parse_amount("2.5M"), 2'500'000U);
  EXPECT_EQ(parse_amount("1.000001M"), 1'000'001U);
  EXPECT_EQ(parse_amount("3G"), 3'000'000'000U);
  EXPECT_EQ(parse_amount("1.5T"), 1'500'000'000'000U);
  EXPECT_EQ(parse_amount("18446744073G"), 18'446'744'073'000'000'000U);
}

TEST(Amounts, WhatIsNoAmountIsRefusedByName) {
  for (const std::string text : {"", "0", "0k", "-1", "+1", "k", "1.5", "1.", "1.k", ".5k", "1.0005k", "1kk", "1 k",
                                 "ten", "0x10", "1e6", "1,0"}) {
    const auto amount = parse_amount(text);
    ASSERT_FALSE(amount) << text << " gave " << *amount;
    EXPECT_TRUE(amount.error().message.starts_with("'" + text + "' is no amount")) << amount.error().message;
  }
  for (const std::string text : {"99999999999999999999", "18446744074G", "18446744073.8G", "100000000T"}) {
    const auto amount = parse_amount(text);
    ASSERT_FALSE(amount) << text << " gave " << *amount;
    EXPECT_TRUE(amount.error().message.starts_with("'" + text + "' is too large")) << amount.error().message;
  }
}

TEST(Amounts, ListsKeepTheirOrderAndDropRepetitions) {
  EXPECT_EQ(parse_amounts("2k,1k,2000,3"), (std::vector<std::uint64_t>{2'000, 1'000, 3}));
  EXPECT_EQ(parse_names("lru,arc"), (std::vector<std::string>{"lru", "arc"}));
  for (const std::string text : {"", ",", "1,", ",1", "1,,2"}) EXPECT_FALSE(parse_amounts(text)) << text;
}

TEST(Amounts, TextHasThreeDigits) {
  EXPECT_EQ(amount_text(0), "0");
  EXPECT_EQ(amount_text(999), "999");
  EXPECT_EQ(amount_text(1'000), "1k");
  EXPECT_EQ(amount_text(1'234), "1.23k");
  EXPECT_EQ(amount_text(93'780'992), "93.8M");
  EXPECT_EQ(amount_text(100'000'000), "100M");
  EXPECT_EQ(amount_text(999'499), "999k");
  EXPECT_EQ(amount_text(999'500), "1M");
  EXPECT_EQ(amount_text(2'000'000'000), "2G");
  EXPECT_EQ(bytes_text(1'023), "1023 bytes");
  EXPECT_EQ(bytes_text(1'024), "1 KiB");
  EXPECT_EQ(bytes_text(524'288), "512 KiB");
  EXPECT_EQ(bytes_text(102'400'000), "97.7 MiB");
  EXPECT_EQ(bytes_text(102'400'000'000), "95.4 GiB");
  EXPECT_EQ(bytes_text(std::uint64_t{5} << 50U), "5120 TiB");
}

}  // namespace
}  // namespace quire
