// SPDX-License-Identifier: Apache-2.0
#include "base/lazy_array.h"

#include <cstdint>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

namespace quire {
namespace {

using Array = LazyArray<std::uint64_t>;

constexpr std::size_t kSizeMax = std::numeric_limits<std::size_t>::max();

TEST(LazyArray, ElementsAreZeroAtFirst) {
  Array array = *Array::create(100'000);
  EXPECT_EQ(array.size(), 100'000U);
  for (std::size_t i = 0; i < array.size(); ++i) ASSERT_EQ(array[i], 0U);
}

TEST(LazyArray, ElementsKeepWhatIsWritten) {
  Array array = *Array::create(100'000);
  for (std::size_t i = 0; i < array.size(); ++i) array[i] = i * i;
  const Array& same = array;
  for (std::size_t i = 0; i < array.size(); ++i) ASSERT_EQ(same[i], i * i);
  EXPECT_EQ(same.data(), array.data());
}

TEST(LazyArray, AnArrayOfNothingIsFine) {
  Array array = *Array::create(0);
  EXPECT_EQ(array.size(), 0U);
  ASSERT_TRUE(array.grow(3).has_value());
  array[2] = 7;
  EXPECT_EQ(array[2], 7U);
}

TEST(LazyArray, MuchMoreCanBeReservedThanIsEverWritten) {
  constexpr std::size_t kCount = std::size_t{1} << 33U;  // 64 GiB
  Array array = *Array::create(kCount);
  array[0] = 1;
  array[kCount - 1] = 2;
  EXPECT_EQ(array[kCount / 2], 0U);
}

TEST(LazyArray, GrowingKeepsTheContentsAndAppendsZeros) {
  Array array = *Array::create(1000);
  for (std::size_t i = 0; i < 1000; ++i) array[i] = i + 1;
  ASSERT_TRUE(array.grow(10'000'000).has_value());
  EXPECT_EQ(array.size(), 10'000'000U);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(array[i], i + 1);
  EXPECT_EQ(array[1000], 0U);
  EXPECT_EQ(array[9'999'999], 0U);
}

TEST(LazyArray, GrowingToLessChangesNothing) {
  Array array = *Array::create(10);
  array[9] = 5;
  ASSERT_TRUE(array.grow(3).has_value());
  EXPECT_EQ(array.size(), 10U);
  EXPECT_EQ(array[9], 5U);
}

TEST(LazyArray, MovingTakesTheElementsAlong) {
  Array source = *Array::create(10);
  source[3] = 33;
  Array moved = std::move(source);
  EXPECT_EQ(moved[3], 33U);
  Array target = *Array::create(5);
  target = std::move(moved);
  EXPECT_EQ(target.size(), 10U);
  EXPECT_EQ(target[3], 33U);
}

// What cannot be had is an error, and nothing has changed.

TEST(LazyArray, AReservationTheSystemRefusesIsAnError) {
  const Result<Array> array = Array::create(std::size_t{1} << 58U);
  ASSERT_FALSE(array.has_value());
  EXPECT_EQ(array.error().message.find("reserving 2305843009213693952 bytes of address space: "), 0U)
      << array.error().message;
}

TEST(LazyArray, ACountWhoseBytesDoNotFitASizeIsAnError) {
  for (const std::size_t count : {kSizeMax, (kSizeMax / 8) + 1, (kSizeMax / 8) + 2}) {
    const Result<Array> array = Array::create(count);
    ASSERT_FALSE(array.has_value());
    EXPECT_EQ(array.error().code, ErrorCode::InvalidArgument);
  }
}

TEST(LazyArray, AGrowthTheSystemRefusesIsAnErrorAndChangesNothing) {
  Array array = *Array::create(10);
  array[9] = 5;
  const Status status = array.grow(std::size_t{1} << 58U);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message.find("growing a reservation from 80 to 2305843009213693952 bytes: "), 0U)
      << status.error().message;
  EXPECT_EQ(array.size(), 10U);
  EXPECT_EQ(array[9], 5U);
}

TEST(LazyArray, AGrowthWhoseBytesDoNotFitASizeIsAnErrorAndChangesNothing) {
  Array array = *Array::create(10);
  array[9] = 5;
  const Status status = array.grow((kSizeMax / 8) + 2);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(array.size(), 10U);
  EXPECT_EQ(array[9], 5U);
}

}  // namespace
}  // namespace quire
