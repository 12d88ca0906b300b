// SPDX-License-Identifier: Apache-2.0
#include "remote/breaker.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

constexpr TimeNs kMs = 1'000'000;

// Opens it at `now`, whatever it was.
void open(Breaker& breaker, TimeNs now) {
  while (!breaker.failed(now)) continue;
}

TEST(Breaker, OpensAtTheSecondFailureInARow) {
  Breaker breaker({}, 1);
  EXPECT_FALSE(breaker.failed(0));
  breaker.succeeded();
  EXPECT_FALSE(breaker.failed(1));
  EXPECT_TRUE(breaker.try_take());
  EXPECT_TRUE(breaker.failed(2));
  EXPECT_TRUE(breaker.is_shut());
  EXPECT_FALSE(breaker.try_take());
}

TEST(Breaker, ComesBackByOnePingAndOneObject) {
  Breaker breaker({}, 1);
  open(breaker, 0);
  EXPECT_FALSE(breaker.try_probe(breaker.probe_at_ns() - 1));
  EXPECT_TRUE(breaker.try_probe(breaker.probe_at_ns()));
  EXPECT_FALSE(breaker.try_probe(breaker.probe_at_ns())) << "one PING is enough";
  EXPECT_FALSE(breaker.try_take()) << "before the PING is answered";
  breaker.probe_answered();
  EXPECT_FALSE(breaker.is_shut());
  EXPECT_TRUE(breaker.try_take());
  EXPECT_FALSE(breaker.try_take()) << "one object at a time";
  breaker.succeeded();
  EXPECT_EQ(breaker.state(), Breaker::State::Closed);
  EXPECT_TRUE(breaker.try_take());
  EXPECT_TRUE(breaker.try_take());
}

TEST(Breaker, AnObjectThatWasNotSentLeavesTheTrialToAnother) {
  Breaker breaker({}, 1);
  open(breaker, 0);
  EXPECT_TRUE(breaker.try_probe(breaker.probe_at_ns()));
  breaker.probe_answered();
  EXPECT_TRUE(breaker.try_take());
  breaker.abandoned();
  EXPECT_EQ(breaker.state(), Breaker::State::Trial);
  EXPECT_TRUE(breaker.try_take());
}

TEST(Breaker, PausesDoubleUpToALimitAndBeginAnewAfterASuccess) {
  Breaker breaker({.pause_ns_min = 50 * kMs, .pause_ns_max = 300 * kMs}, 1);
  TimeNs now = 0;
  for (const TimeNs most : {50 * kMs, 100 * kMs, 200 * kMs, 300 * kMs, 300 * kMs}) {
    open(breaker, now);
    EXPECT_GE(breaker.probe_at_ns() - now, most / 2);
    EXPECT_LE(breaker.probe_at_ns() - now, most);
    now = breaker.probe_at_ns();
    EXPECT_TRUE(breaker.try_probe(now));  // which fails
  }
  breaker.probe_answered();
  EXPECT_TRUE(breaker.try_take());
  breaker.succeeded();
  open(breaker, now);
  EXPECT_LE(breaker.probe_at_ns() - now, 50 * kMs);
}

TEST(Breaker, PausesDifferFromSeedToSeed) {
  std::set<TimeNs> pauses;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Breaker breaker({}, seed);
    open(breaker, 0);
    pauses.insert(breaker.probe_at_ns());
  }
  EXPECT_GT(pauses.size(), 90U);
}

}  // namespace
}  // namespace quire
