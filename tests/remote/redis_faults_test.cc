// SPDX-License-Identifier: Apache-2.0
//
// What networks and broken servers do to answers: none of it becomes a value that is Ok and wrong, unless its bytes
// were changed on the way or it was put in the place of another of its length, which the caller verifies (see
// remote_mover_faults_test.cc); and no batch is held beyond its time.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/fault_proxy.h"
#include "tests/remote/open_store.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_client.h"

namespace quire::testing {
namespace {

using Fault = FaultProxy::Fault;

class RedisFaults : public ::testing::Test {
 protected:
  RedisFaults()
      : proxy_(server_.socket_path()),
        store_(open_store({.urls = {proxy_.url()}, .pause_ns_min = kMs, .pause_ns_max = 20 * kMs})),
        client_(std::make_unique<StoreClient>(*store_)) {
    EXPECT_TRUE(client_->put(keys_, kBytes).all(RemoteOutcome::Ok));
  }
  bool gets_all() {
    return comes_true([&] { return client_->get(keys_, kBytes).all(RemoteOutcome::Ok); });
  }
  bool gets_all_right() {
    return comes_true([&] {
      const BatchRun run = client_->get(keys_, kBytes);
      return run.all(RemoteOutcome::Ok) && run.wrong_keys.empty();
    });
  }

  static constexpr std::size_t kBytes = 300'000;
  const std::vector<std::string> keys_ = numbered_keys("quire:a", 6);
  RedisServer server_;
  FaultProxy proxy_;
  std::unique_ptr<RemoteStore> store_;
  std::unique_ptr<StoreClient> client_;
};

TEST_F(RedisFaults, AnswersThatComeTooLateAreDropped) {
  proxy_.set(Fault::Hold);
  const BatchRun get = client_->run({.keys = keys_, .bytes = kBytes, .timeout_ns = 30 * kMs});
  EXPECT_TRUE(get.all(RemoteOutcome::Late));
  EXPECT_LT(get.waited_ns, 30 * kMs + kSlackNs);
  EXPECT_EQ(get.answer.first_byte_ns, 0);
  // The memory of the late batch is watched; the answers for it come first.
  const auto next = client_->submit({.keys = keys_, .bytes = kBytes});
  const std::uint32_t connections = proxy_.connection_count();
  proxy_.set(Fault::None);
  EXPECT_TRUE(client_->wait(next).all(RemoteOutcome::Ok));
  EXPECT_EQ(proxy_.connection_count(), connections) << "being late is no reason to connect anew";
  EXPECT_EQ(client_->wrong_values(), 0U);
  EXPECT_EQ(client_->touched_after_answer(), 0U);
}

TEST_F(RedisFaults, AValueThatArrivesWhenItsTimeIsOverIsDroppedInTheMiddle) {
  proxy_.set(Fault::Throttle);
  const std::uint64_t before = proxy_.answered_bytes();
  const auto id = client_->submit({.keys = keys_, .bytes = kBytes});
  EXPECT_TRUE(comes_true([&] { return proxy_.answered_bytes() > before + 20'000; }));
  store_->cancel(id);
  const BatchRun run = client_->wait(id);
  EXPECT_GT(run.count(RemoteOutcome::Late), 0U);
  EXPECT_GT(run.answer.first_byte_ns, 0);
  proxy_.set(Fault::None);
  EXPECT_TRUE(gets_all());
  EXPECT_EQ(client_->wrong_values(), 0U);
  EXPECT_EQ(client_->touched_after_answer(), 0U);
}

TEST_F(RedisFaults, ASlowNetworkKeepsDeadlines) {
  proxy_.set(Fault::Throttle);
  for (int i = 0; i < 5; ++i) {
    const BatchRun run = client_->run({.keys = keys_, .bytes = kBytes, .timeout_ns = 30 * kMs});
    EXPECT_LT(run.waited_ns, 30 * kMs + kSlackNs);
  }
  proxy_.set(Fault::None);
  EXPECT_TRUE(gets_all());
  EXPECT_EQ(client_->wrong_values(), 0U);
}

// The socket tells of large pieces only, and this network takes longer for one than a node may be silent.
TEST_F(RedisFaults, AValueThatComesSlowlyIsNoSilenceOfTheNode) {
  FaultProxy proxy(server_.socket_path(), free_port());
  const auto store = open_store({.urls = {proxy.url()}, .command_timeout_ns = 300 * kMs});
  StoreClient client(*store);
  proxy.set_pace(250);
  proxy.set(Fault::Throttle);
  EXPECT_TRUE(comes_true([&] {
    return client.run({.keys = {keys_[0]}, .bytes = kBytes, .timeout_ns = 60'000 * kMs}).all(RemoteOutcome::Ok);
  }));
  EXPECT_EQ(client.wrong_values(), 0U);
}

TEST_F(RedisFaults, ANodeWhoseValuesKeepComingIsNotLate) {
  const std::vector<std::string> large = {"quire:large"};
  EXPECT_TRUE(client_->put(large, 4'000'000).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client_->find(large).all(RemoteOutcome::Ok)) << "so that there is a connection for questions";
  const std::uint64_t before = proxy_.answered_bytes();
  proxy_.set(Fault::HoldShort);
  const auto get = client_->submit({.keys = large, .bytes = 4'000'000, .timeout_ns = 10'000 * kMs});
  EXPECT_TRUE(comes_true([&] { return proxy_.answered_bytes() > before + 20'000; }));
  for (int i = 0; i < 2; ++i) {
    // Answers come too late for both, which are over at the same moment.
    const auto first = client_->submit({.operation = RemoteOperation::Find, .keys = large, .timeout_ns = 200 * kMs});
    const auto second = client_->submit({.operation = RemoteOperation::Find, .keys = large, .timeout_ns = 200 * kMs});
    EXPECT_TRUE(client_->wait(first).all(RemoteOutcome::Late));
    EXPECT_TRUE(client_->wait(second).all(RemoteOutcome::Late));
    EXPECT_EQ(store_->status().failed_nodes, 0U);
  }
  proxy_.set(Fault::None);
  EXPECT_TRUE(client_->wait(get).all(RemoteOutcome::Ok));
  EXPECT_EQ(store_->status().failed_nodes, 0U);
}

TEST_F(RedisFaults, BatchesThatAreLateTogetherAreOneFailure) {
  EXPECT_TRUE(client_->find(keys_).all(RemoteOutcome::Ok));
  proxy_.set(Fault::Hold);
  std::vector<std::uint64_t> finds;
  for (int i = 0; i < 5; ++i) {
    finds.push_back(client_->submit({.operation = RemoteOperation::Find, .keys = keys_, .timeout_ns = 200 * kMs}));
  }
  for (const std::uint64_t find : finds) EXPECT_TRUE(client_->wait(find).all(RemoteOutcome::Late));
  EXPECT_EQ(store_->status().failed_nodes, 0U);
  EXPECT_TRUE(client_->run({.operation = RemoteOperation::Find, .keys = keys_, .timeout_ns = 200 * kMs})
                  .all(RemoteOutcome::Late));
  EXPECT_EQ(store_->status().failed_nodes, 1U) << "nothing was heard of it between two that were asked one by one";
  proxy_.set(Fault::None);
  EXPECT_TRUE(gets_all());
}

TEST_F(RedisFaults, AnswersThatNobodyWaitsForAnyMoreAreSignsOfLife) {
  EXPECT_TRUE(client_->find(keys_).all(RemoteOutcome::Ok));
  for (const RemoteOperation operation : {RemoteOperation::Find, RemoteOperation::Get, RemoteOperation::Find}) {
    const std::uint64_t before = proxy_.answered_bytes();
    proxy_.set(Fault::Hold);
    EXPECT_TRUE(client_->run({.operation = operation, .keys = keys_, .bytes = kBytes, .timeout_ns = 20 * kMs})
                    .all(RemoteOutcome::Late));
    proxy_.set(Fault::None);
    const std::uint64_t answer_bytes = operation == RemoteOperation::Get ? keys_.size() * kBytes : keys_.size() * 4;
    EXPECT_TRUE(comes_true([&] { return proxy_.answered_bytes() >= before + answer_bytes; }));
  }
  EXPECT_EQ(store_->status().failed_nodes, 0U);
}

// What is asked can be sent for long to a node that hangs, as the system keeps it.
TEST_F(RedisFaults, WhatIsAskedIsNoSignOfLifeOfWhoIsAsked) {
  const auto store =
      open_store({.urls = {proxy_.url()}, .command_timeout_ns = 200 * kMs, .failures_in_a_row = 1'000'000});
  StoreClient client(*store);
  EXPECT_TRUE(client.find(keys_).all(RemoteOutcome::Ok));
  proxy_.set(Fault::Hold);
  EXPECT_TRUE(comes_true([&] {
    (void)client.run({.operation = RemoteOperation::Find, .keys = keys_, .timeout_ns = 5 * kMs});
    return store->status().last_error.find("as a command may take") != std::string::npos;
  })) << store->status().last_error;
  proxy_.set(Fault::None);
}

TEST_F(RedisFaults, AConnectionThatEndsInAValueFailsWhatWasOnIt) {
  for (int i = 0; i < 5; ++i) {
    proxy_.set(Fault::Cut);
    const BatchRun run = client_->get(keys_, kBytes);
    EXPECT_GT(run.count(RemoteOutcome::Failed), 0U);
    EXPECT_EQ(run.count(RemoteOutcome::Ok) + run.count(RemoteOutcome::Failed), keys_.size());
    EXPECT_TRUE(proxy_.has_happened());
    proxy_.set(Fault::None);
    EXPECT_TRUE(gets_all());
  }
  EXPECT_EQ(client_->wrong_values(), 0U);
}

TEST_F(RedisFaults, ABitThatWasFlippedIsForTheCallersChecksum) {
  const std::uint32_t connections = proxy_.connection_count();
  proxy_.set(Fault::FlipBit);
  // It lies in the first value, whose length and those of the others are what they should be.
  const BatchRun run = client_->get(keys_, kBytes);
  EXPECT_TRUE(proxy_.has_happened());
  EXPECT_TRUE(run.all(RemoteOutcome::Ok));
  EXPECT_EQ(run.wrong_keys, std::vector<std::string>{keys_[0]});
  proxy_.set(Fault::None);
  EXPECT_TRUE(client_->get(keys_, kBytes).wrong_keys.empty());
  EXPECT_EQ(client_->wrong_values(), 1U);
  EXPECT_EQ(proxy_.connection_count(), connections) << "nothing is known about it here";
}

TEST_F(RedisFaults, AnswersOfOneLengthThatChangePlacesAreForTheCallersNames) {
  const std::uint32_t connections = proxy_.connection_count();
  proxy_.set(Fault::Swap);
  const BatchRun run = client_->get(keys_, kBytes);
  EXPECT_TRUE(proxy_.has_happened());
  EXPECT_TRUE(run.all(RemoteOutcome::Ok));
  EXPECT_EQ(run.wrong_keys, (std::vector<std::string>{keys_[0], keys_[1]}));
  proxy_.set(Fault::None);
  EXPECT_TRUE(client_->get(keys_, kBytes).wrong_keys.empty());
  EXPECT_EQ(client_->wrong_values(), 2U);
  EXPECT_EQ(proxy_.connection_count(), connections);
}

TEST_F(RedisFaults, AValueThatComesTwiceIsForTheCallersNamesAndEndsTheConnection) {
  const std::uint32_t connections = proxy_.connection_count();
  proxy_.set(Fault::Extra);
  const BatchRun run = client_->get(keys_, kBytes);
  EXPECT_TRUE(proxy_.has_happened());
  EXPECT_TRUE(run.all(RemoteOutcome::Ok));
  EXPECT_EQ(run.wrong_keys, std::vector<std::string>(keys_.begin() + 1, keys_.end()));
  proxy_.set(Fault::None);
  // The one that is left over belongs to nobody, and ends its connection.
  EXPECT_TRUE(gets_all_right());
  EXPECT_GT(proxy_.connection_count(), connections);
}

TEST_F(RedisFaults, AnswersOfDifferentLengthsThatChangePlacesAreNotTaken) {
  const auto others = numbered_keys("quire:b", 1);
  EXPECT_TRUE(client_->put(others, kBytes).all(RemoteOutcome::Ok));
  (void)server_.call({"APPEND", others[0], "x"});
  proxy_.set(Fault::Swap);
  // The second is longer than what is asked for, so both are seen to be wrong.
  const BatchRun run = client_->get({keys_[0], others[0]}, kBytes);
  EXPECT_TRUE(proxy_.has_happened());
  EXPECT_EQ(run.outcomes[0], RemoteOutcome::Corrupt);
  proxy_.set(Fault::None);
  EXPECT_TRUE(gets_all());
}

TEST_F(RedisFaults, SomethingElseThanAnAnswerEndsTheConnection) {
  for (const RemoteOperation operation :
       {RemoteOperation::Get, RemoteOperation::Find, RemoteOperation::Put, RemoteOperation::Drop}) {
    EXPECT_TRUE(gets_all());
    proxy_.set(Fault::Garbage);
    const BatchRun run = client_->run({.operation = operation, .keys = keys_, .bytes = kBytes});
    // What was not sent yet goes by another connection.
    EXPECT_EQ(run.outcomes[0], operation == RemoteOperation::Get ? RemoteOutcome::Corrupt : RemoteOutcome::Failed);
    EXPECT_TRUE(proxy_.has_happened());
    proxy_.set(Fault::None);
    EXPECT_TRUE(comes_true([&] { return client_->put(keys_, kBytes).all(RemoteOutcome::Ok); }));
  }
  EXPECT_NE(store_->status().last_error.find("protocol"), std::string::npos) << store_->status().last_error;
}

TEST_F(RedisFaults, AnAnswerThatNobodyAskedForEndsTheConnection) {
  // Of a question, since one to a Get could belong to the next.
  EXPECT_TRUE(client_->find(keys_).all(RemoteOutcome::Ok));
  const std::uint32_t connections = proxy_.connection_count();
  proxy_.set(Fault::Extra);
  (void)client_->find({keys_[0]});
  EXPECT_TRUE(proxy_.has_happened());
  proxy_.set(Fault::None);
  EXPECT_TRUE(comes_true([&] {
    return client_->find({keys_[0], "quire:none"}).outcomes ==
           std::vector<RemoteOutcome>{RemoteOutcome::Ok, RemoteOutcome::Absent};
  }));
  EXPECT_GT(proxy_.connection_count(), connections);
}

TEST_F(RedisFaults, ANodeThatAnswersSomethingElseToItsTrialIsTriedAgain) {
  proxy_.set(Fault::Hold);
  for (int i = 0; i < 2; ++i) (void)client_->run({.keys = {keys_[0]}, .bytes = kBytes, .timeout_ns = 200 * kMs});
  EXPECT_EQ(store_->status().failed_nodes, 1U);
  proxy_.set(Fault::None);
  // Its PING is answered. The one object that is sent next decides.
  EXPECT_TRUE(comes_true([&] { return store_->status().failed_nodes == 0; }));
  proxy_.set(Fault::Other);
  EXPECT_TRUE(client_->find({keys_[0]}).all(RemoteOutcome::Corrupt));
  EXPECT_TRUE(proxy_.has_happened());
  proxy_.set(Fault::None);
  EXPECT_TRUE(gets_all());
}

TEST_F(RedisFaults, ConnectionsThatEndWhileNothingIsAskedAreNoFailure) {
  EXPECT_TRUE(gets_all());
  proxy_.cut_all();
  EXPECT_TRUE(gets_all());
  EXPECT_TRUE(store_->status().is_usable);
}

// Three of them change values to others of the same length: these are wrong in their own turn at most.
TEST_F(RedisFaults, FaultsOfAllKindsByTurnsLeaveNothingWrong) {
  constexpr std::uint32_t kTurns = 27;
  constexpr std::array kFaults = {Fault::None, Fault::Hold,    Fault::Throttle, Fault::Cut,  Fault::FlipBit,
                                  Fault::Swap, Fault::Garbage, Fault::Extra,    Fault::Other};
  std::array<std::uint32_t, kFaults.size()> changed{};  // values, by fault
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    const std::size_t kind = (turn * 7) % kFaults.size();
    const Fault fault = kFaults[kind];
    SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + ", turn " + std::to_string(turn));
    const bool changes_values = fault == Fault::FlipBit || fault == Fault::Swap || fault == Fault::Extra;
    // What is left over from the turn before is not what they are to happen to, nor is a deadline to come between.
    if (changes_values) {
      proxy_.set(Fault::None);
      EXPECT_TRUE(gets_all_right());
    }
    const TimeNs timeout_ns = changes_values ? 20'000 * kMs : 20 * kMs;
    proxy_.set(fault);
    const auto get = client_->submit({.keys = keys_, .bytes = kBytes, .timeout_ns = timeout_ns});
    const auto put = client_->submit({.operation = RemoteOperation::Put,
                                      .keys = keys_,
                                      .bytes = kBytes,
                                      .timeout_ns = timeout_ns,
                                      .priority = RemotePriority::Background});
    const auto find = client_->submit({.operation = RemoteOperation::Find, .keys = keys_, .timeout_ns = timeout_ns});
    for (const std::uint64_t id : {get, put, find}) {
      const BatchRun run = client_->wait(id);
      EXPECT_LT(run.waited_ns, timeout_ns + kSlackNs);
      EXPECT_TRUE(changes_values || run.wrong_keys.empty());
      changed[kind] += static_cast<std::uint32_t>(run.wrong_keys.size());
    }
    if (!changes_values) continue;
    proxy_.set(Fault::None);
    // Until then an answer that came twice may be taken for the next.
    EXPECT_TRUE(comes_true([&] {
      const BatchRun run = client_->get(keys_, kBytes);
      changed[kind] += static_cast<std::uint32_t>(run.wrong_keys.size());
      return run.all(RemoteOutcome::Ok) && run.wrong_keys.empty();
    }));
  }
  proxy_.set(Fault::None);
  EXPECT_TRUE(gets_all());
  std::uint64_t changed_total = 0;
  for (std::size_t kind = 0; kind < kFaults.size(); ++kind) {
    const Fault fault = kFaults[kind];
    changed_total += changed[kind];
    const bool happens_to_values = fault == Fault::FlipBit || fault == Fault::Swap;
    EXPECT_TRUE(!happens_to_values || changed[kind] > 0) << static_cast<int>(fault);
  }
  EXPECT_EQ(client_->wrong_values(), changed_total);
  EXPECT_EQ(client_->touched_after_answer(), 0U);
}

}  // namespace
}  // namespace quire::testing
