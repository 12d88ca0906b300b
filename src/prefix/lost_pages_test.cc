// SPDX-License-Identifier: Apache-2.0
#include "prefix/lost_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <utility>

namespace quire {
namespace {

TEST(LostPages, RememberTheLastLossOfAPage) {
  LostPages lost = LostPages::create(4).value();
  EXPECT_FALSE(lost.find(7));
  lost.set_time(100);
  lost.note(7, Tier::Device, /*was_bad=*/false);
  lost.set_time(250);
  lost.note(7, Tier::Host, /*was_bad=*/true);
  ASSERT_TRUE(lost.find(7).has_value());
  const auto loss = lost.find(7).value_or(LostPages::Loss{});
  EXPECT_EQ(loss.tier, Tier::Host);
  EXPECT_EQ(loss.time, 250);
  EXPECT_TRUE(loss.was_bad);
  EXPECT_FALSE(lost.has_forgotten());
}

TEST(LostPages, WithoutRoomNothingIsRemembered) {
  LostPages lost = LostPages::create(0).value();
  EXPECT_FALSE(lost.is_on());
  lost.note(7, Tier::Device, false);
  EXPECT_FALSE(lost.find(7));
}

// Beside a list of the last so many.
TEST(LostPages, HoldExactlyTheLastOnes) {
  for (const std::uint32_t capacity : {1U, 2U, 5U, 64U}) {
    LostPages lost = LostPages::create(capacity).value();
    std::deque<std::pair<PageFingerprint, TimeNs>> last;
    std::uint64_t state = capacity;
    for (TimeNs time = 0; time < 2'000; ++time) {
      state = mix64(state);
      const PageFingerprint page = state % 100;
      lost.set_time(time);
      lost.note(page, Tier::Host, false);
      last.emplace_front(page, time);
      if (last.size() > capacity) last.pop_back();
      EXPECT_EQ(lost.has_forgotten(), time >= capacity);
      for (PageFingerprint each = 0; each < 100; ++each) {
        const auto known = std::find_if(last.begin(), last.end(), [&](const auto& loss) { return loss.first == each; });
        const auto found = lost.find(each);
        ASSERT_EQ(found.has_value(), known != last.end()) << each;
        if (found && known != last.end()) {
          ASSERT_EQ(found->time, known->second);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
