// SPDX-License-Identifier: Apache-2.0
#include "base/checked.h"

#include <cstdint>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kTwoTo32 = std::uint64_t{1} << 32;

TEST(Checked, ProductsThatFitAreExact) {
  EXPECT_EQ(checked_multiply(0, kMax), 0U);
  EXPECT_EQ(checked_multiply(kMax, 1), kMax);
  EXPECT_EQ(checked_multiply(kTwoTo32, kTwoTo32 - 1), kTwoTo32 * (kTwoTo32 - 1));
  EXPECT_EQ(checked_multiply(kTwoTo32 - 1, kTwoTo32 + 1), kMax);
}

TEST(Checked, TheFirstProductThatDoesNotFitIsNothing) {
  EXPECT_EQ(checked_multiply(kTwoTo32, kTwoTo32), std::nullopt);
  EXPECT_EQ(checked_multiply(kMax, 2), std::nullopt);
  EXPECT_EQ(checked_multiply(2, kMax / 2 + 1), std::nullopt);
}

TEST(Checked, SumsThatFitAreExact) {
  EXPECT_EQ(checked_add(0, 0), 0U);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax - 7, 7), kMax);
}

TEST(Checked, TheFirstSumThatDoesNotFitIsNothing) {
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_add(kMax - 7, 8), std::nullopt);
}

TEST(Checked, WorksInConstantExpressions) {
  static_assert(checked_multiply(6, 7) == 42U);
  static_assert(!checked_add(kMax, kMax).has_value());
}

}  // namespace
}  // namespace quire
