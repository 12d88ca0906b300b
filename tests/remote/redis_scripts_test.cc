// SPDX-License-Identifier: Apache-2.0
//
// What servers may say, and real ones say seldom.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/redis_store.h"
#include "remote/cluster_slots.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/open_store.h"
#include "tests/remote/scripted_server.h"
#include "tests/remote/store_client.h"

namespace quire::testing {
namespace {

using Command = ScriptedServer::Command;

bool is_about(const Command& command, const char* name, const std::string& key) {
  return command.size() > 1 && command[0] == name && command[1] == key;
}

TEST(RedisScripts, WhatIsToBeTriedAgainIsTriedAFewTimes) {
  std::atomic<std::uint16_t> port = 0;
  std::atomic<std::uint32_t> refusals = UINT32_MAX;  // left
  ScriptedServer server([&](const Command& command) -> std::string {
    if (is_about(command, "TOUCH", "quire:a") && refusals > 0) {
      --refusals;
      return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
    }
    return cluster_answer(command, {port});
  });
  port = server.port();
  const auto store = open_store({.urls = {server.url()}});
  StoreClient client(*store);
  EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Failed));
  EXPECT_EQ(UINT32_MAX - refusals, 9U) << "once, and eight times more";
  EXPECT_NE(store->status().last_error.find("TRYAGAIN"), std::string::npos) << store->status().last_error;
  refusals = 8;
  EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Absent));
  EXPECT_EQ(store->status().failed_nodes, 0U);
}

TEST(RedisScripts, ADropTriesAgainWhatIsToBeTriedAgain) {
  std::atomic<std::uint16_t> port = 0;
  std::set<std::string> keys = {"quire:a", "quire:b"};
  bool is_asking = false;
  bool is_patient = false;
  ScriptedServer server([&](const Command& command) -> std::string {
    const bool was_asking = std::exchange(is_asking, command[0] == "ASKING");
    if (command[0] == "SCAN") {
      std::string page = "*2\r\n$1\r\n0\r\n*" + std::to_string(keys.size()) + "\r\n";
      for (const std::string& key : keys) page += "$7\r\n" + key + "\r\n";
      return page;
    }
    if (is_about(command, "UNLINK", "quire:b") && (!was_asking || is_patient)) {
      return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
    }
    if (command[0] == "UNLINK") return ":" + std::to_string(keys.erase(command[1])) + "\r\n";
    return cluster_answer(command, {port});
  });
  port = server.port();
  const auto store = open_store({.urls = {server.url()}});
  StoreClient client(*store);
  // As the slot is on its way to this node, it has to be asked for.
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Ok));
  EXPECT_TRUE(keys.empty());
  // What never comes to rest is not tried for ever.
  keys = {"quire:b"};
  is_patient = true;
  const std::uint32_t before = server.count("UNLINK");
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Failed));
  EXPECT_EQ(server.count("UNLINK") - before, 10U);
}

TEST(RedisScripts, NodesThatSendToEachOtherAreAskedAFewTimes) {
  std::vector<std::uint16_t> ports(2);
  std::atomic<bool> is_open = false;
  const auto script = [&](std::size_t own) {
    return [&, own](const Command& command) -> std::string {
      for (const char* const name : {"TOUCH", "GET", "SET"}) {
        if (!is_about(command, name, "quire:a")) continue;
        return (own == 0 && is_open ? "-ASK " : "-MOVED ") + std::to_string(cluster_slot("quire:a")) +
               " 127.0.0.1:" + std::to_string(ports[1 - own]) + "\r\n";
      }
      return cluster_answer(command, ports);
    };
  };
  ScriptedServer first(script(0));
  ScriptedServer second(script(1));
  ports = {first.port(), second.port()};
  const auto store = open_store({.urls = {first.url()}});
  StoreClient client(*store);
  const auto count = [&](const char* name) { return first.count(name) + second.count(name); };
  for (const bool asks : {false, true}) {
    is_open = asks;
    for (const auto& [operation, name] :
         {std::pair{RemoteOperation::Find, "TOUCH"}, std::pair{RemoteOperation::Get, "GET"},
          std::pair{RemoteOperation::Put, "SET"}}) {
      const std::uint32_t before = count(name);
      const BatchRun run = client.run({.operation = operation, .keys = {"quire:a"}, .bytes = 10});
      EXPECT_TRUE(run.all(RemoteOutcome::Failed)) << name;
      EXPECT_EQ(count(name) - before, 9U) << name << ": once, and eight redirections";
    }
  }
  EXPECT_NE(store->status().last_error.find("send on to each other"), std::string::npos) << store->status().last_error;
  EXPECT_EQ(store->status().failed_nodes, 0U);
}

TEST(RedisScripts, NoMoreIsAskedForThanTheWindowHas) {
  ScriptedServer server([](const Command& command) -> std::string {
    return command[0] == "GET" && command[1].starts_with("quire:a") ? "" : plain_answer(command);
  });
  const auto store =
      open_store({.urls = {server.url()}, .command_timeout_ns = 60'000 * kMs, .window_bytes = 1'000'000});
  StoreClient client(*store);
  const auto before = server.count("GET");
  const auto get = client.submit({.keys = numbered_keys("quire:a", 20), .bytes = 300'000});
  EXPECT_TRUE(comes_true([&] { return server.count("GET") >= before + 3; }));
  // What would be too much is sent with the others, and so before the server has answered all this.
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(client.find({"quire:b"}).all(RemoteOutcome::Absent));
  EXPECT_EQ(server.count("GET"), before + 3);
  EXPECT_EQ(store->status().waiting_bytes, 17U * 300'000U);
  store->cancel(get);
  EXPECT_TRUE(client.wait(get).all(RemoteOutcome::Late));
  // One that is larger than the window goes alone.
  const auto large = client.submit({.keys = {"quire:a-large", "quire:a-next"}, .bytes = 5'000'000});
  store->cancel(large);
  EXPECT_TRUE(client.wait(large).all(RemoteOutcome::Late));
}

TEST(RedisScripts, WhatAServerSaysBeforeItHasAllOfAValueIsTold) {
  ScriptedServer server({.early = "-OOM command not allowed when used memory > 'maxmemory'.\r\n"}, plain_answer);
  const auto store = open_store({.urls = {server.url()}});
  StoreClient client(*store);
  const BatchRun run = client.put({"quire:a"}, 20'000'000);
  EXPECT_TRUE(run.all(RemoteOutcome::Failed)) << to_string(run.outcomes[0]);
  EXPECT_NE(store->status().last_error.find("OOM command not allowed"), std::string::npos)
      << store->status().last_error;
}

TEST(RedisScripts, AServerThatNeverEndsItsTalkIsNotListenedToForEver) {
  std::string pushes;
  while (pushes.size() < 100'000) pushes += ">2\r\n+a\r\n+b\r\n";
  ScriptedServer server({.is_endless = true}, [&](const Command&) { return pushes; });
  const auto store = open_redis_store({.urls = {server.url()}, .command_timeout_ns = 50 * kMs});
  ASSERT_FALSE(store.has_value());
  EXPECT_NE(store.error().message.find("does not answer"), std::string::npos) << store.error().message;
}

}  // namespace
}  // namespace quire::testing
