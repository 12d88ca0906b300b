// SPDX-License-Identifier: Apache-2.0
#include "policy/ghosts.h"

#include <algorithm>
#include <ranges>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using Prints = std::vector<PageFingerprint>;

TEST(Ghosts, AreFoundOnce) {
  Ghosts ghosts;
  ASSERT_TRUE(ghosts.reserve(4).has_value());
  ghosts.add(Prints{7});
  EXPECT_FALSE(ghosts.remove(8));
  EXPECT_TRUE(ghosts.remove(7));
  EXPECT_FALSE(ghosts.remove(7));
  EXPECT_EQ(ghosts.size(), 0U);
}

TEST(Ghosts, TheOldestIsForgottenWhenThereIsNoRoom) {
  Ghosts ghosts;
  ASSERT_TRUE(ghosts.reserve(2).has_value());
  for (const PageFingerprint each : {1U, 2U, 3U}) ghosts.add(Prints{each});
  EXPECT_FALSE(ghosts.remove(1));
  EXPECT_TRUE(ghosts.remove(2));
  EXPECT_TRUE(ghosts.remove(3));
}

TEST(Ghosts, OfSeveralTheFirstIsTheNewest) {
  Ghosts ghosts;
  ASSERT_TRUE(ghosts.reserve(2).has_value());
  ghosts.add(Prints{1, 2, 3});
  EXPECT_TRUE(ghosts.remove(1));
  EXPECT_TRUE(ghosts.remove(2));
  EXPECT_FALSE(ghosts.remove(3));
}

TEST(Ghosts, WithoutRoomNothingIsRemembered) {
  Ghosts ghosts;
  ASSERT_TRUE(ghosts.reserve(0).has_value());
  ghosts.add(Prints{1});
  EXPECT_FALSE(ghosts.remove(1));
}

TEST(Ghosts, AgreeWithAPlainListOverRandomCallsAndGrowth) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    testing::Random random(seed);
    std::uint32_t capacity = 1 + random.below(40);
    Ghosts ghosts;
    Prints twin;
    ASSERT_TRUE(ghosts.reserve(capacity).has_value());
    for (int step = 0; step < 5'000; ++step) {
      const PageFingerprint fingerprint = std::uint64_t{random.below(100)} << 8U;  // many share a bucket
      const std::uint32_t kind = random.below(20);
      if (kind < 12) {
        Prints prints;
        for (std::uint64_t i = 0; i <= random.below(4); ++i) prints.push_back(fingerprint + i);
        std::erase_if(prints, [&](PageFingerprint each) { return std::ranges::find(twin, each) != twin.end(); });
        ghosts.add(prints);
        for (const PageFingerprint each : std::views::reverse(prints)) {
          twin.push_back(each);
          if (twin.size() > capacity) twin.erase(twin.begin());
        }
      } else if (kind < 18) {
        ASSERT_EQ(ghosts.remove(fingerprint), std::erase(twin, fingerprint) == 1) << "seed " << seed;
      } else if (kind == 18 && !twin.empty()) {
        ghosts.remove_oldest();
        twin.erase(twin.begin());
      } else if (kind == 19 && capacity < 200 && random.below(50) == 0) {
        capacity += 1 + random.below(40);
        ASSERT_TRUE(ghosts.reserve(capacity).has_value());
      }
      ASSERT_EQ(ghosts.size(), twin.size()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace quire
