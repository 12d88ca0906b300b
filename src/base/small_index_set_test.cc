// SPDX-License-Identifier: Apache-2.0
#include "base/small_index_set.h"

#include <cstdint>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

TEST(SmallIndexSet, AnEmptySetHasNoLowest) {
  SmallIndexSet set;
  EXPECT_EQ(set.lowest(), std::nullopt);
  set.insert(65'535);
  set.erase(65'535);
  EXPECT_EQ(set.lowest(), std::nullopt);
}

TEST(SmallIndexSet, KnowsTheLowestAcrossWordsAndGroups) {
  SmallIndexSet set;
  for (const std::uint32_t index : {65'535U, 4'096U, 64U, 63U, 0U}) {
    set.insert(index);
    EXPECT_EQ(set.lowest(), index);
  }
  for (const std::uint32_t index : {0U, 63U, 64U, 4'096U}) set.erase(index);
  EXPECT_EQ(set.lowest(), 65'535U);
}

TEST(SmallIndexSet, ErasingWhatIsNotThereChangesNothing) {
  SmallIndexSet set;
  set.insert(100);
  set.erase(5'000);
  set.erase(101);
  EXPECT_EQ(set.lowest(), 100U);
}

TEST(SmallIndexSet, AgreesWithAnOrderedSetOverRandomCalls) {
  SmallIndexSet set;
  std::set<std::uint32_t> twin;
  testing::Random random(1);
  for (int step = 0; step < 50'000; ++step) {
    const std::uint32_t index = random.below(2) == 0 ? random.below(200) : random.below(SmallIndexSet::kCapacity);
    if (random.below(2) == 0) {
      set.insert(index);
      twin.insert(index);
    } else {
      const std::uint32_t erased = twin.empty() ? index : *twin.begin();
      set.erase(erased);
      twin.erase(erased);
    }
    ASSERT_EQ(set.lowest(), twin.empty() ? std::nullopt : std::optional(*twin.begin()));
  }
}

}  // namespace
}  // namespace quire
