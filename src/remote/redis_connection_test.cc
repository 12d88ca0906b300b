// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_connection.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace quire {
namespace {

int option_of(const RedisConnection& connection, int level, int option) {
  int value = 0;
  socklen_t bytes = sizeof(value);
  EXPECT_EQ(::getsockopt(connection.descriptor(), level, option, &value, &bytes), 0);
  return value;
}

TEST(RedisConnection, TheSystemGivesUpOnBytesThatNobodyAcknowledges) {
  for (const char* const host : {"127.0.0.1", "::1"}) {
    // Whether anybody listens does not matter.
    const auto connection =
        RedisConnection::begin(*address_in_numbers({.host = host, .port = 9}), {.unanswered_ns_max = 2'500'000'000});
    if (!connection.has_value()) continue;  // there is no such network here
    EXPECT_EQ(option_of(**connection, IPPROTO_TCP, TCP_USER_TIMEOUT), 2'500);
    EXPECT_NE(option_of(**connection, IPPROTO_TCP, TCP_NODELAY), 0);
    EXPECT_NE(option_of(**connection, SOL_SOCKET, SO_KEEPALIVE), 0);
  }
}

}  // namespace
}  // namespace quire
