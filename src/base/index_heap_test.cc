// SPDX-License-Identifier: Apache-2.0
#include "base/index_heap.h"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

TEST(IndexHeap, TheLowestKeyIsOnTop) {
  IndexHeap<int> heap;
  ASSERT_TRUE(heap.reserve(10).has_value());
  heap.insert(3, 30);
  heap.insert(1, 10);
  heap.insert(2, 20);
  EXPECT_EQ(heap.top(), 1U);
  EXPECT_EQ(heap.top_key(), 10);
  heap.remove(1);
  EXPECT_EQ(heap.top(), 2U);
  EXPECT_FALSE(heap.contains(1));
  EXPECT_TRUE(heap.contains(3));
}

TEST(IndexHeap, AgreesWithAnOrderedSetOverRandomCalls) {
  constexpr std::uint32_t kCapacity = 60;
  IndexHeap<std::uint64_t> heap;
  ASSERT_TRUE(heap.reserve(kCapacity / 2).has_value());
  ASSERT_TRUE(heap.reserve(kCapacity).has_value());
  std::set<std::pair<std::uint64_t, std::uint32_t>> twin;
  std::vector<std::uint64_t> keys(kCapacity);
  testing::Random random(1);
  for (std::uint64_t step = 0; step < 50'000; ++step) {
    const std::uint32_t index = random.below(kCapacity);
    if (heap.contains(index)) {
      heap.remove(index);
      twin.erase({keys[index], index});
    } else {
      keys[index] = (std::uint64_t{random.below(1'000)} << 32U) + step;  // no two alike
      heap.insert(index, keys[index]);
      twin.insert({keys[index], index});
    }
    ASSERT_EQ(heap.size(), twin.size());
    if (!twin.empty()) {
      ASSERT_EQ(heap.top(), twin.begin()->second);
      ASSERT_EQ(heap.top_key(), twin.begin()->first);
    }
  }
}

TEST(IndexHeapDeathTest, WhatIsThereOnceIsNotThereTwice) {
  IndexHeap<int> heap;
  ASSERT_TRUE(heap.reserve(2).has_value());
  heap.insert(1, 5);
  EXPECT_DEATH(heap.insert(1, 6), "inserting what is already in the heap");
  EXPECT_DEATH(heap.remove(0), "removing what is not in the heap");
}

}  // namespace
}  // namespace quire
