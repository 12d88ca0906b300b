// SPDX-License-Identifier: Apache-2.0
#include "remote/put_pause.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr TimeNs kOneMs = 1'000'000;

PutPause new_pause(std::uint64_t seed = 1) {
  return PutPause(GrowingPause(50 * kOneMs, 400 * kOneMs, seed));
}

// Until one more may be sent, in milliseconds from then on.
TimeNs pause_ms(PutPause& pause, TimeNs now) {
  for (TimeNs after = 0; after < 10'000; ++after) {
    if (pause.try_take(now + (after * kOneMs))) return after;
  }
  return -1;
}

TEST(PutPause, OneValueIsTriedAfterEachPauseAndPausesGrow) {
  PutPause pause = new_pause();
  EXPECT_TRUE(pause.try_take(0));
  EXPECT_TRUE(pause.try_take(0));
  EXPECT_TRUE(pause.refused(0));
  TimeNs now = 0;
  for (const TimeNs longest : {50, 100, 200, 400, 400, 400}) {
    const TimeNs after = pause_ms(pause, now);
    EXPECT_GE(after, longest / 2);
    EXPECT_LE(after, longest);
    now += after * kOneMs;
    EXPECT_FALSE(pause.try_take(now)) << "one at a time";
    EXPECT_TRUE(pause.refused(now));
  }
}

TEST(PutPause, OneValueThatIsTakenOpensIt) {
  PutPause pause = new_pause();
  EXPECT_TRUE(pause.refused(0));
  EXPECT_TRUE(pause.try_take(50 * kOneMs));
  pause.taken();
  EXPECT_TRUE(pause.try_take(50 * kOneMs));
  EXPECT_TRUE(pause.try_take(50 * kOneMs));
}

TEST(PutPause, WhatWasOnItsWaySaysNothingNew) {
  PutPause pause = new_pause();
  EXPECT_TRUE(pause.refused(0));
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(pause.refused(kOneMs));
  pause.taken();
  EXPECT_FALSE(pause.try_take(kOneMs));
  EXPECT_TRUE(pause.try_take(50 * kOneMs)) << "the pause has not grown";
}

TEST(PutPause, OneThatSaysNothingIsTriedAgain) {
  PutPause pause = new_pause();
  EXPECT_TRUE(pause.refused(0));
  EXPECT_TRUE(pause.try_take(50 * kOneMs));
  EXPECT_FALSE(pause.try_take(60 * kOneMs));
  EXPECT_TRUE(pause.try_take(200 * kOneMs));
}

TEST(PutPause, ANodeThatIsFullNowAndThenIsLeftAloneForLonger) {
  PutPause pause = new_pause();
  TimeNs now = 0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pause.refused(now));
    now += pause_ms(pause, now) * kOneMs;
  }
  pause.taken();
  EXPECT_TRUE(pause.refused(now));
  EXPECT_GE(pause_ms(pause, now), 200);
}

TEST(PutPause, PausesDiffer) {
  PutPause first = new_pause(1);
  PutPause second = new_pause(2);
  EXPECT_TRUE(first.refused(0));
  EXPECT_TRUE(second.refused(0));
  EXPECT_NE(pause_ms(first, 0), pause_ms(second, 0));
}

}  // namespace
}  // namespace quire
