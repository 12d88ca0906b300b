// SPDX-License-Identifier: Apache-2.0
#include "remote/socket_address.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>

namespace quire {
namespace {

// What a resolver answers: addresses that end in these numbers.
template <std::size_t Count>
struct Found {
  explicit Found(const std::array<std::uint8_t, Count>& numbers) {
    for (std::size_t i = 0; i < Count; ++i) {
      addresses[i].sin_family = AF_INET;
      addresses[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK + numbers[i] - 1);
      list[i].ai_addr = reinterpret_cast<sockaddr*>(&addresses[i]);
      list[i].ai_addrlen = sizeof(sockaddr_in);
      list[i].ai_next = i + 1 < Count ? &list[i + 1] : nullptr;
    }
  }
  std::array<sockaddr_in, Count> addresses{};
  std::array<addrinfo, Count> list{};
};

TEST(SocketAddress, NumbersAndPathsNeedNoLookUp) {
  EXPECT_EQ(to_string(*address_in_numbers({.host = "127.0.0.1", .port = 1})), "127.0.0.1");
  EXPECT_EQ(to_string(*address_in_numbers({.host = "0:0::1", .port = 1})), "::1");
  EXPECT_EQ(to_string(*address_in_numbers({.host = "/run/kv.sock", .is_unix = true})), "/run/kv.sock");
  EXPECT_FALSE(address_in_numbers({.host = "localhost", .port = 1}).has_value());
}

TEST(SocketAddress, AListKeepsItsOrderAndHasNothingTwice) {
  const Found<4> found({2, 1, 2, 3});
  const auto addresses = list_addresses(found.list.data());
  ASSERT_EQ(addresses.size(), 3U);
  EXPECT_EQ(to_string(addresses[0]), "127.0.0.2");
  EXPECT_EQ(to_string(addresses[1]), "127.0.0.1");
  EXPECT_EQ(to_string(addresses[2]), "127.0.0.3");
}

TEST(SocketAddress, AListIsBounded) {
  const Found<12> found({1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const auto addresses = list_addresses(found.list.data());
  ASSERT_EQ(addresses.size(), kAddressesMax);
  EXPECT_EQ(to_string(addresses.back()), "127.0.0.8");
}

TEST(SocketAddress, ANameThatNobodyHasIsAnError) {
  const auto addresses = look_up_addresses({.host = "no-such-host.invalid", .port = 7101});
  ASSERT_FALSE(addresses.has_value());
  EXPECT_NE(addresses.error().message.find("'no-such-host.invalid' cannot be found"), std::string::npos)
      << addresses.error().message;
}

}  // namespace
}  // namespace quire
