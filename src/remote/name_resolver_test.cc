// SPDX-License-Identifier: Apache-2.0
#include "remote/name_resolver.h"

#include <gtest/gtest.h>

#include <semaphore>
#include <string>
#include <vector>

namespace quire {
namespace {

TEST(NameResolver, AnswersEachNameWithAllItsAddressesOrWithTheError) {
  std::counting_semaphore<> answers(0);
  const NameLookUp look_up = [](const RedisEndpoint& endpoint) -> Result<std::vector<SocketAddress>> {
    if (endpoint.host == "nobody") return fail(ErrorCode::Unavailable, "nobody has this name");
    return std::vector{*address_in_numbers({.host = "::1", .port = endpoint.port}),
                       *address_in_numbers({.host = "127.0.0.1", .port = endpoint.port})};
  };
  NameResolver resolver(look_up, [&] { answers.release(); });
  EXPECT_TRUE(resolver.take_answers().empty());
  resolver.ask(3, {.host = "somebody", .port = 7101});
  resolver.ask(5, {.host = "nobody", .port = 7101});
  answers.acquire();
  answers.acquire();
  const auto taken = resolver.take_answers();
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].node_index, 3U);
  ASSERT_TRUE(taken[0].addresses.has_value());
  ASSERT_EQ(taken[0].addresses->size(), 2U);
  EXPECT_EQ(to_string((*taken[0].addresses)[1]), "127.0.0.1");
  EXPECT_EQ(taken[1].node_index, 5U);
  ASSERT_FALSE(taken[1].addresses.has_value());
  EXPECT_EQ(taken[1].addresses.error().message, "nobody has this name");
}

}  // namespace
}  // namespace quire
