// SPDX-License-Identifier: Apache-2.0
//
// What a RemoteMover makes of a real server whose answers are damaged on their way, and of values that a stranger has
// put under its keys: every page that it calls good has the bytes that were written.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/remote/comes_true.h"
#include "tests/remote/fault_proxy.h"
#include "tests/remote/open_store.h"
#include "tests/remote/redis_server.h"
#include "tests/transfer/remote_mover_fixture.h"

namespace quire::testing {
namespace {

using Fault = FaultProxy::Fault;

class RemoteMoverFaults : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kPages = 12;  // three values of four pages, all of one length

  Completion end_of(TransferId id) {
    std::optional<Completion> completion;
    EXPECT_TRUE(comes_true([&] {
      while (engine_.mover->run()) {
      }
      completion = engine_.heard(id);
      return completion.has_value();
    }));
    return completion.value_or(Completion{});
  }
  /// The prompt's values are on the server, and a question has found them all.
  void put(const RemotePrompt& prompt) {
    proxy_.set(Fault::None);
    engine_.put_on_host(prompt, 0);
    // Whatever the last fault has left: a node that has failed is asked for one object at first.
    ASSERT_TRUE(comes_true([&] { return end_of(engine_.submit_store(0, 0, kPages)).good_pages == kPages; }));
    ASSERT_TRUE(comes_true([&] { return end_of(engine_.submit_find(1, prompt, {})).good_pages == kPages; }));
  }
  /// Loads all of it. Gives the pages that are said to be good, which are compared.
  std::uint32_t load(const RemotePrompt& prompt) {
    const Completion loaded = end_of(engine_.submit_load(2, 1, 0, kPages, kLoadPlace));
    for (std::uint32_t i = 0; i < loaded.good_pages; ++i) {
      EXPECT_EQ(engine_.history.bytes_of(engine_.host_page(kLoadPlace, i)), engine_.bytes_of(prompt, i))
          << "page " << i;
    }
    return loaded.good_pages;
  }

  static constexpr std::uint32_t kLoadPlace = 100;
  RedisServer server_;
  FaultProxy proxy_{server_.socket_path()};
  std::unique_ptr<RemoteStore> store_ =
      open_store({.urls = {proxy_.url()}, .pause_ns_min = kMs, .pause_ns_max = 2 * kMs});
  RemoteEngine engine_{*store_, {}};
};

TEST_F(RemoteMoverFaults, AnswersThatWereChangedOnTheWayAreNeverTaken) {
  constexpr std::uint32_t kRounds = 8;
  struct Row {
    Fault fault;
    std::string_view name;
  };
  constexpr std::array kRows = {Row{Fault::FlipBit, "a flipped bit"},
                                Row{Fault::Swap, "answers that change places"},
                                Row{Fault::Extra, "an answer that comes twice"},
                                Row{Fault::Cut, "an end in a value"},
                                Row{Fault::Garbage, "another protocol"},
                                Row{Fault::Other, "another answer"}};
  std::array<std::uint32_t, kRows.size()> happened{};
  std::uint32_t number = 0;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    for (std::size_t row = 0; row < kRows.size(); ++row) {
      SCOPED_TRACE(std::string(kRows[row].name) + ", round " + std::to_string(round));
      const RemotePrompt prompt = remote_prompt(++number, kPages);
      put(prompt);
      const RemoteMoverStats before = engine_.mover->stats();
      proxy_.set(kRows[row].fault, true);
      const std::uint32_t good = load(prompt);
      if (!proxy_.has_happened()) continue;
      ++happened[row];
      const RemoteMoverStats after = engine_.mover->stats();
      EXPECT_LT(good, kPages);
      const std::uint64_t corrupt = after.corrupt_values - before.corrupt_values;
      const std::uint64_t foreign = after.foreign_values - before.foreign_values;
      EXPECT_TRUE(kRows[row].fault != Fault::FlipBit || corrupt > 0);
      // All of these have the length that was asked for: only the names in them tell.
      EXPECT_TRUE((kRows[row].fault != Fault::Swap && kRows[row].fault != Fault::Extra) || foreign > 0);
    }
  }
  for (std::size_t row = 0; row < kRows.size(); ++row) EXPECT_EQ(happened[row], kRounds) << kRows[row].name;
}

TEST_F(RemoteMoverFaults, AValueThatAStrangerPutUnderAnotherKeyIsNeverTaken) {
  constexpr std::uint32_t kRounds = 8;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const RemotePrompt prompt = remote_prompt(1'000 + round, kPages);
    (void)server_.call({"FLUSHALL"});
    put(prompt);
    const RespValue keys = server_.call({"KEYS", "*"});
    ASSERT_EQ(keys.parts.size(), kPages / 4);
    const RespValue value = server_.call({"GET", keys.parts[0].text});
    EXPECT_EQ(server_.call({"SET", keys.parts[1].text, value.text}).text, "OK");
    EXPECT_LT(load(prompt), kPages);
    EXPECT_EQ(engine_.mover->stats().foreign_values, round + 1);
  }
}

}  // namespace
}  // namespace quire::testing
