// SPDX-License-Identifier: Apache-2.0
//
// What a RemoteMover makes of a real server whose answers are damaged on their way, and of values that a stranger has
// put under its keys: every page that it calls good has the bytes that were written.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
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

  /// Loads several prompts at once, so that the store always waits for more answers. Gives the pages that are said to
  /// be good, all of which are compared.
  std::uint32_t load_all(std::span<const RemotePrompt> prompts) {
    const auto count = static_cast<std::uint32_t>(prompts.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(end_of(engine_.submit_find(1 + i, prompts[i], {})).good_pages, kPages);
    }
    std::vector<TransferId> loads;
    for (std::uint32_t i = 0; i < count; ++i) {
      loads.push_back(engine_.submit_load(1 + count + i, 1 + i, 0, kPages, kLoadPlace + (i * kPages)));
    }
    std::uint32_t good_pages = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t good = end_of(loads[i]).good_pages;
      for (std::uint32_t page = 0; page < good; ++page) {
        EXPECT_EQ(engine_.history.bytes_of(engine_.host_page(kLoadPlace + (i * kPages), page)),
                  engine_.bytes_of(prompts[i], page));
      }
      good_pages += good;
    }
    return good_pages;
  }
  /// Everything that was asked of the store is answered.
  void settle() {
    EXPECT_TRUE(comes_true([&] {
      while (engine_.mover->run()) {
      }
      return store_->status().batch_count == 0;
    }));
  }

  static constexpr std::uint32_t kLoadPlace = 100;
  TimeNs now_ = 1'000'000'000;  // of the mover; the store has its own
  RedisServer server_;
  FaultProxy proxy_{server_.socket_path()};
  std::unique_ptr<RemoteStore> store_ =
      open_store({.urls = {proxy_.url()}, .pause_ns_min = kMs, .pause_ns_max = 2 * kMs});
  RemoteEngine engine_{*store_, {}, &now_};
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

// Many engines need what is there: what only came wrong has to stay. While a connection has more answers to wait for,
// one that comes twice shifts all behind it.
TEST_F(RemoteMoverFaults, WhatOnlyComesWrongStaysOnTheServerAndIsFoundAgain) {
  constexpr std::uint32_t kPrompts = 6;
  constexpr std::uint32_t kRounds = 4;
  constexpr std::array kFaults = {Fault::Extra, Fault::Swap, Fault::FlipBit, Fault::Garbage, Fault::Other, Fault::Cut};
  std::array<std::uint32_t, kFaults.size()> happened{};
  std::vector<RemotePrompt> prompts;
  for (std::uint32_t i = 0; i < kPrompts; ++i) prompts.push_back(remote_prompt(2'000 + i, kPages));
  for (const RemotePrompt& prompt : prompts) put(prompt);
  const std::int64_t value_count = server_.call({"DBSIZE"}).number;
  EXPECT_EQ(value_count, kPrompts * kPages / 4);
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kFaults.size(); ++i) {
      SCOPED_TRACE("fault " + std::to_string(i) + ", round " + std::to_string(round));
      proxy_.set(kFaults[i], true);
      const std::uint32_t good_pages = load_all(prompts);
      if (proxy_.has_happened()) ++happened[i];
      EXPECT_TRUE(!proxy_.has_happened() || good_pages < kPrompts * kPages);
      proxy_.set(Fault::None);
      settle();
      EXPECT_EQ(server_.call({"DBSIZE"}).number, value_count);
      now_ += 10'000'000'000;
      // A node that has failed is asked for one object at first.
      ASSERT_TRUE(comes_true([&] { return end_of(engine_.submit_find(1, prompts[0], {})).good_pages == kPages; }));
      EXPECT_EQ(load_all(prompts), kPrompts * kPages);
    }
  }
  for (std::size_t i = 0; i < kFaults.size(); ++i) EXPECT_GT(happened[i], 0U) << "fault " << i;
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
    EXPECT_EQ(engine_.mover->stats().foreign_values, (2 * round) + 1);
    settle();
    EXPECT_EQ(server_.call({"EXISTS", keys.parts[1].text}).number, 1) << "it may only have come wrong";
    // It comes wrong once more, by another connection perhaps. And so it is dropped.
    now_ += 10'000'000'000;
    ASSERT_EQ(end_of(engine_.submit_find(1, prompt, {})).good_pages, kPages);
    EXPECT_LT(load(prompt), kPages);
    EXPECT_EQ(engine_.mover->stats().foreign_values, (2 * round) + 2);
    settle();
    EXPECT_EQ(server_.call({"EXISTS", keys.parts[1].text}).number, 0);
    EXPECT_EQ(server_.call({"DBSIZE"}).number, (kPages / 4) - 1);
  }
}

}  // namespace
}  // namespace quire::testing
