// SPDX-License-Identifier: Apache-2.0
#include "remote/name_resolver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <system_error>
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
  auto taken = resolver.take_answers();
  ASSERT_EQ(taken.size(), 2U);
  std::ranges::sort(taken, {}, &NameResolver::Answer::node_index);  // two threads have looked them up
  EXPECT_EQ(taken[0].node_index, 3U);
  ASSERT_TRUE(taken[0].addresses.has_value());
  ASSERT_EQ(taken[0].addresses->size(), 2U);
  EXPECT_EQ(to_string((*taken[0].addresses)[1]), "127.0.0.1");
  EXPECT_EQ(taken[1].node_index, 5U);
  ASSERT_FALSE(taken[1].addresses.has_value());
  EXPECT_EQ(taken[1].addresses.error().message, "nobody has this name");
}

/// Names of which those that begin with "slow" take until they are let go. Whoever is in the middle of one may outlive
/// the test's resolver, so this is shared.
struct SlowNames {
  static std::shared_ptr<SlowNames> make() { return std::make_shared<SlowNames>(); }
  static NameLookUp look_up(const std::shared_ptr<SlowNames>& names) {
    return [names](const RedisEndpoint& endpoint) -> Result<std::vector<SocketAddress>> {
      if (!endpoint.host.starts_with("slow")) return std::vector{*address_in_numbers({.host = "127.0.0.1"})};
      ++names->count;
      names->begun.release();
      names->go_on.acquire();
      names->ended.release();
      return fail(ErrorCode::Unavailable, "it took too long");
    };
  }
  std::counting_semaphore<> begun{0};
  std::counting_semaphore<> go_on{0};
  std::counting_semaphore<> ended{0};
  std::atomic<std::uint32_t> count = 0;
};

TEST(NameResolver, OthersDoNotWaitForANameThatTakesLong) {
  const auto names = SlowNames::make();
  std::counting_semaphore<> answers(0);
  NameResolver resolver(SlowNames::look_up(names), [&] { answers.release(); });
  resolver.ask(1, {.host = "slow", .port = 1});
  names->begun.acquire();
  resolver.ask(2, {.host = "quick", .port = 1});
  answers.acquire();
  auto taken = resolver.take_answers();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].node_index, 2U);
  names->go_on.release();
  answers.acquire();
  taken = resolver.take_answers();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].node_index, 1U);
}

TEST(NameResolver, NobodyWaitsForItsEnd) {
  const auto names = SlowNames::make();
  {
    NameResolver resolver(SlowNames::look_up(names), [] {});
    resolver.ask(1, {.host = "slow", .port = 1});
    names->begun.acquire();
  }
  names->go_on.release();
  names->ended.acquire();
}

TEST(NameResolver, AFewNamesAreLookedUpAtATime) {
  const auto names = SlowNames::make();
  constexpr std::uint32_t kNames = 3 * NameResolver::kThreadsMax;
  std::counting_semaphore<> answers(0);
  NameResolver resolver(SlowNames::look_up(names), [&] { answers.release(); });
  for (std::uint32_t i = 0; i < kNames; ++i) resolver.ask(i, {.host = "slow" + std::to_string(i), .port = 1});
  for (std::uint32_t i = 0; i < NameResolver::kThreadsMax; ++i) names->begun.acquire();
  for (std::uint32_t i = 0; i < kNames; ++i) {
    EXPECT_LE(names->count, i + NameResolver::kThreadsMax);
    names->go_on.release();
    answers.acquire();
  }
  EXPECT_EQ(resolver.take_answers().size(), kNames);
}

TEST(NameResolver, WithoutAThreadEachNameIsAnErrorAtOnce) {
  std::uint32_t wakes = 0;
  NameResolver resolver(
      look_up_addresses, [&] { ++wakes; },
      [](std::function<void()>) {
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      });
  for (std::uint32_t i = 0; i < 2; ++i) {
    resolver.ask(i, {.host = "somebody", .port = 7101});
    EXPECT_EQ(wakes, i + 1);
    const auto taken = resolver.take_answers();
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_EQ(taken[0].node_index, i);
    ASSERT_FALSE(taken[0].addresses.has_value());
    EXPECT_NE(taken[0].addresses.error().message.find("'somebody' cannot be looked up"), std::string::npos)
        << taken[0].addresses.error().message;
  }
}

}  // namespace
}  // namespace quire
