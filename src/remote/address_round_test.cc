// SPDX-License-Identifier: Apache-2.0
#include "remote/address_round.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire {
namespace {

std::vector<SocketAddress> addresses_of(const std::vector<std::string>& hosts) {
  std::vector<SocketAddress> addresses;
  for (const std::string& host : hosts) addresses.push_back(*address_in_numbers({.host = host, .port = 7101}));
  return addresses;
}

TEST(AddressRound, TriesAllInTheirOrder) {
  AddressRound round;
  EXPECT_FALSE(round.is_under_way());
  EXPECT_FALSE(round.has_next());
  round.begin(addresses_of({"::1", "127.0.0.1"}), 0, 1'000'000'000);
  EXPECT_TRUE(round.is_under_way());
  EXPECT_EQ(to_string(round.take_next(0)), "::1");
  EXPECT_TRUE(round.has_next());
  round.failed("Connection refused");
  EXPECT_EQ(to_string(round.take_next(0)), "127.0.0.1");
  EXPECT_FALSE(round.has_next());
  EXPECT_TRUE(round.is_under_way());
  round.end();
  EXPECT_FALSE(round.is_under_way());
}

TEST(AddressRound, SharesTheTimeAmongThoseThatAreLeft) {
  constexpr TimeNs kMs = 1'000'000;
  AddressRound round;
  round.begin(addresses_of({"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}), 100 * kMs, 400 * kMs);
  EXPECT_EQ(round.end_ns(), 500 * kMs);
  (void)round.take_next(100 * kMs);
  EXPECT_EQ(round.due_ns(), 200 * kMs);
  round.failed("it cannot be reached in time");
  (void)round.take_next(200 * kMs);
  EXPECT_EQ(round.due_ns(), 300 * kMs);
  round.failed("Connection refused");
  // What the second did not use is for the others.
  (void)round.take_next(220 * kMs);
  EXPECT_EQ(round.due_ns(), 360 * kMs);
  round.failed("it cannot be reached in time");
  // Whoever looks too late leaves the last a moment.
  (void)round.take_next(600 * kMs);
  EXPECT_EQ(round.due_ns(), 601 * kMs);
}

TEST(AddressRound, SaysWhatBecameOfEach) {
  AddressRound round;
  round.begin(addresses_of({"::1", "127.0.0.1"}), 0, 10);
  for (const char* const why : {"Connection refused", "it cannot be reached in time"}) {
    (void)round.take_next(0);
    round.failed(why);
  }
  EXPECT_EQ(round.failures("localhost"), "::1 (Connection refused), 127.0.0.1 (it cannot be reached in time)");
}

TEST(AddressRound, SaysNothingOfAnAddressThatIsTheHostItself) {
  AddressRound round;
  round.begin(addresses_of({"127.0.0.1"}), 0, 10);
  (void)round.take_next(0);
  round.failed("Connection refused");
  EXPECT_EQ(round.failures("127.0.0.1"), "Connection refused");
  EXPECT_EQ(round.failures("cache.example"), "127.0.0.1 (Connection refused)");
  round.begin(std::vector{*address_in_numbers({.host = "/run/kv.sock", .is_unix = true})}, 0, 10);
  (void)round.take_next(0);
  round.failed("No such file or directory");
  EXPECT_EQ(round.failures("/run/kv.sock"), "No such file or directory");
}

TEST(AddressRound, PutsTheOneThatWorkedFirstAndKeepsTheOrderOfTheOthers) {
  AddressRound round;
  const auto addresses = addresses_of({"127.0.0.1", "127.0.0.2", "127.0.0.3"});
  round.begin(addresses, 0, 10);
  (void)round.take_next(0);
  EXPECT_EQ(round.with_taken_first(), addresses);
  (void)round.take_next(0);
  (void)round.take_next(0);
  EXPECT_EQ(round.with_taken_first(), addresses_of({"127.0.0.3", "127.0.0.1", "127.0.0.2"}));
}

}  // namespace
}  // namespace quire
