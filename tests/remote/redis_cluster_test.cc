// SPDX-License-Identifier: Apache-2.0
//
// Clusters: every key at the node that has it, and what becomes of the others when a node is gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "remote/cluster_slots.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/fault_proxy.h"
#include "tests/remote/open_store.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_client.h"

namespace quire::testing {
namespace {

// Of a cluster's keys, those whose slot the primary had at the start, and the others.
std::vector<std::string> keys_at(const RedisClusterServers& cluster, std::uint32_t primary, bool is_there,
                                 const std::vector<std::string>& keys) {
  std::vector<std::string> chosen;
  for (const std::string& key : keys) {
    if ((cluster.owner_of(cluster_slot(key)) == primary) == is_there) chosen.push_back(key);
  }
  return chosen;
}

// A cluster of three takes two seconds to come together, so these tests share one, and leave it as it was.
class ClusterOfThree : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { shared_ = new RedisClusterServers(3); }
  static void TearDownTestSuite() { delete shared_; }
  ClusterOfThree() {
    EXPECT_TRUE(cluster.comes_together());
    for (std::uint32_t i = 0; i < 3; ++i) (void)cluster.primary(i).call({"FLUSHALL"});
  }

  static inline RedisClusterServers* shared_ = nullptr;
  RedisClusterServers& cluster = *shared_;
};

TEST_F(ClusterOfThree, KeysGoToTheNodesThatHaveThem) {
  // One of the nodes is enough to find the others.
  const auto store = open_store({.urls = {cluster.primary(1).url()}});
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 60);
  EXPECT_TRUE(client.put(keys, 50'000).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.find(keys).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.get(keys, 50'000).all(RemoteOutcome::Ok));
  EXPECT_EQ(store->status().node_count, 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cluster.primary(i).call({"DBSIZE"}).number,
              static_cast<std::int64_t>(keys_at(cluster, i, true, keys).size()));
  }
  const auto report = scan_redis_store({.urls = cluster.urls()}, "quire:", nullptr);
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_EQ(report->node_count, 3U);
  EXPECT_EQ(report->key_count, keys.size());
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:a"}}).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.find(keys).all(RemoteOutcome::Absent));
  EXPECT_EQ(client.wrong_values(), 0U);
}

TEST_F(ClusterOfThree, SlotsThatMoveDuringTrafficLoseNothing) {
  const auto store = open_store({.urls = cluster.urls()});
  StoreClient client(*store);
  // All of one slot, which wanders.
  const auto keys = numbered_keys("quire:{wanders}", 30);
  const std::uint16_t slot = cluster_slot(keys[0]);
  const std::uint32_t owner = cluster.owner_of(slot);
  EXPECT_TRUE(client.put(keys, 20'000).all(RemoteOutcome::Ok));
  for (std::uint32_t i = 0; i < 3; ++i) {
    RedisServer& from = cluster.primary((owner + i) % 3);
    RedisServer& to = cluster.primary((owner + i + 1) % 3);
    // Half of it at first: those keys are found by asking the other node.
    const std::string number = std::to_string(slot);
    (void)to.call({"CLUSTER", "SETSLOT", number, "IMPORTING", cluster.id_of(from)});
    (void)from.call({"CLUSTER", "SETSLOT", number, "MIGRATING", cluster.id_of(to)});
    for (std::size_t k = 0; k < keys.size() / 2; ++k) {
      (void)from.call({"MIGRATE", "127.0.0.1", std::to_string(to.port()), keys[k], "0", "10000"});
    }
    EXPECT_TRUE(client.get(keys, 20'000).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.find(keys).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.put(keys, 20'000).all(RemoteOutcome::Ok));
    const auto during = client.submit({.keys = keys, .bytes = 20'000});
    cluster.move_slot(slot, from, to);
    EXPECT_TRUE(client.wait(during).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.get(keys, 20'000).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.put(keys, 20'000).all(RemoteOutcome::Ok));
    EXPECT_EQ(to.call({"CLUSTER", "COUNTKEYSINSLOT", number}).number, 30);
  }
  EXPECT_EQ(client.wrong_values(), 0U);
  EXPECT_EQ(store->status().failed_nodes, 0U);
}

TEST_F(ClusterOfThree, ADropGoesOnAtAllNodesWhileOneOfThemHangs) {
  const auto store = open_store({.urls = cluster.urls(), .command_timeout_ns = 20'000 * kMs});
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 5000);
  EXPECT_TRUE(client.put(keys, 10).all(RemoteOutcome::Ok));
  cluster.primary(0).stop();
  const auto drop = client.submit({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}});
  for (std::uint32_t i = 1; i < 3; ++i) {
    EXPECT_TRUE(comes_true([&] { return cluster.primary(i).call({"DBSIZE"}).number == 0; }));
  }
  EXPECT_FALSE(client.has_answer(drop));
  cluster.primary(0).go_on();
  EXPECT_TRUE(client.wait(drop).all(RemoteOutcome::Ok));
  EXPECT_EQ(cluster.primary(0).call({"DBSIZE"}).number, 0);
}

// The third node is behind a proxy, which holds its answers while the others are swept.
class DropWhileSlotsMove : public ClusterOfThree {
 protected:
  DropWhileSlotsMove() : proxy_(cluster.primary(2).socket_path(), port_) {
    announce(port_);
    for (; slot_keys_.empty(); ++next_tag_) {
      const std::string tag = "quire:{" + std::to_string(next_tag_) + "}";
      if (cluster.owner_of(cluster_slot(tag)) == 2) slot_keys_ = numbered_keys(tag, 3);
    }
    for (; others_.empty(); ++next_tag_) {
      const std::string tag = "others:{" + std::to_string(next_tag_) + "}";
      if (cluster.owner_of(cluster_slot(tag)) == 2) others_ = numbered_keys(tag, 20'000);
    }
  }
  ~DropWhileSlotsMove() override {
    proxy_.set(FaultProxy::Fault::None);
    announce(0);
  }
  // Of the third node, to everybody.
  void announce(std::uint16_t port) {
    (void)source().call({"CONFIG", "SET", "cluster-announce-port", std::to_string(port)});
    const std::int64_t wanted = port > 0 ? port : source().port();
    for (std::uint32_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(comes_true([&] {
        const RespValue map = cluster.primary(i).call({"CLUSTER", "SLOTS"});
        return std::ranges::any_of(map.parts, [&](const RespValue& range) {
          return range.parts.size() > 2 && range.parts[2].parts.size() > 1 && range.parts[2].parts[1].number == wanted;
        });
      }));
    }
  }
  RedisServer& source() { return cluster.primary(2); }
  RedisServer& target() { return cluster.primary(0); }
  [[nodiscard]] std::uint16_t slot() const { return cluster_slot(slot_keys_[0]); }

  // Drops everything of ours. `move` happens when the first two nodes have nothing any more, and of the third one the
  // first of many pages is looked at.
  template <typename Move>
  BatchRun drop(Move move) {
    const auto store = open_store({.urls = cluster.urls(), .command_timeout_ns = 20'000 * kMs});
    StoreClient client(*store);
    EXPECT_TRUE(client.put(others_, 1).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.put(slot_keys_, 100).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.put(keys_at(cluster, 2, false, numbered_keys("quire:a", 50)), 100).all(RemoteOutcome::Ok));
    proxy_.set(FaultProxy::Fault::Hold);
    const auto id = client.submit({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}});
    for (std::uint32_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(comes_true([&] { return cluster.primary(i).call({"DBSIZE"}).number == 0; }));
    }
    move();
    proxy_.set(FaultProxy::Fault::None);
    return client.wait(id);
  }
  std::int64_t keys_left() {
    std::int64_t count = 0;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::string slot_number = std::to_string(slot());
      count += static_cast<std::int64_t>(
          cluster.primary(i).call({"CLUSTER", "GETKEYSINSLOT", slot_number, "1000"}).parts.size());
    }
    return count;
  }

  static inline int next_tag_ = 0;  // each test moves a slot of its own, and leaves it where it is
  const std::uint16_t port_ = free_port();
  FaultProxy proxy_;
  std::vector<std::string> slot_keys_;
  std::vector<std::string> others_;
};

TEST_F(DropWhileSlotsMove, ASlotThatGoesToANodeThatWasSweptIsSweptThere) {
  const BatchRun run = drop([&] { cluster.move_slot(slot(), source(), target()); });
  EXPECT_TRUE(run.all(RemoteOutcome::Ok));
  EXPECT_EQ(keys_left(), 0);
}

TEST_F(DropWhileSlotsMove, KeysOfASlotThatIsOnTheWayAreFoundWhereTheyAre) {
  const std::string number = std::to_string(slot());
  const BatchRun run = drop([&] {
    (void)target().call({"CLUSTER", "SETSLOT", number, "IMPORTING", cluster.id_of(source())});
    (void)source().call({"CLUSTER", "SETSLOT", number, "MIGRATING", cluster.id_of(target())});
    for (const std::string& key : slot_keys_) {
      (void)source().call({"MIGRATE", "127.0.0.1", std::to_string(target().port()), key, "0", "10000"});
    }
  });
  EXPECT_TRUE(run.all(RemoteOutcome::Ok));
  EXPECT_EQ(keys_left(), 0);
}

TEST_F(ClusterOfThree, ANodeThatIsGoneCostsItsOwnKeysAlone) {
  const auto store = open_store({.urls = cluster.urls()});
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 60);
  const auto lost = keys_at(cluster, 0, true, keys);
  const auto kept = keys_at(cluster, 0, false, keys);
  EXPECT_TRUE(client.put(keys, 50'000).all(RemoteOutcome::Ok));
  cluster.primary(0).stop();
  for (int i = 0; i < 10; ++i) {
    const BatchRun run = client.run({.keys = keys, .bytes = 50'000, .timeout_ns = 500 * kMs});
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const bool is_kept = cluster.owner_of(cluster_slot(keys[k])) != 0;
      EXPECT_EQ(run.outcomes[k] == RemoteOutcome::Ok, is_kept) << keys[k] << ": " << to_string(run.outcomes[k]);
    }
  }
  EXPECT_EQ(store->status().failed_nodes, 1U);
  EXPECT_TRUE(store->status().is_usable);
  // It fails at once now, and holds nobody.
  const BatchRun quick = client.run({.keys = kept, .bytes = 50'000});
  EXPECT_TRUE(quick.all(RemoteOutcome::Ok));
  EXPECT_EQ(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:none"}}).count(RemoteOutcome::Ok), 0U);
  cluster.primary(0).go_on();
  EXPECT_TRUE(comes_true([&] { return client.get(lost, 50'000).all(RemoteOutcome::Ok); }));
  cluster.primary(1).kill();
  EXPECT_TRUE(comes_true([&] {
    const BatchRun run = client.get(keys_at(cluster, 1, false, keys), 50'000);
    return run.all(RemoteOutcome::Ok);
  }));
  cluster.primary(1).start();
  EXPECT_EQ(client.wrong_values(), 0U);
}

TEST_F(ClusterOfThree, MissingSlotsAreRefusedOrLivedWith) {
  (void)cluster.primary(1).call({"CLUSTER", "DELSLOTSRANGE", "8192", "8291"});
  RedisConfig config{.urls = {cluster.primary(1).url()}};
  const auto refused = open_redis_store(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("has no node for 100 of its 16384 slots"), std::string::npos)
      << refused.error().message;
  config.requires_server = false;
  const auto store = open_store(config);
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 600);
  BatchRun run;
  // Nodes that could not be used come back one object at first.
  EXPECT_TRUE(comes_true([&] {
    run = client.put(keys, 10);
    return run.count(RemoteOutcome::Ok) > 550;
  }));
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const std::uint16_t slot = cluster_slot(keys[k]);
    EXPECT_EQ(run.outcomes[k] == RemoteOutcome::Failed, slot >= 8192 && slot < 8292);
  }
  EXPECT_GT(run.count(RemoteOutcome::Failed), 0U);
  (void)cluster.primary(1).call({"CLUSTER", "ADDSLOTSRANGE", "8192", "8291"});
}

TEST_F(ClusterOfThree, SlotsThatADropFindsWithoutANodeAreLookedForUntilTheyHaveOne) {
  const auto store = open_store({.urls = cluster.urls()});
  StoreClient client(*store);
  std::vector<std::string> keys;
  for (const std::string& key : numbered_keys("quire:a", 600)) {
    const std::uint16_t slot = cluster_slot(key);
    if (slot >= 8192 && slot < 8292) keys.push_back(key);
  }
  EXPECT_TRUE(client.put(keys, 10).all(RemoteOutcome::Ok));
  // The others go on to believe that the node has them: a node tells of slots that it gets, not of those it gives up.
  EXPECT_EQ(cluster.primary(1).call({"CLUSTER", "DELSLOTSRANGE", "8192", "8291"}).text, "OK");
  (void)client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:none"}});
  EXPECT_TRUE(client.put({keys[0]}, 10).all(RemoteOutcome::Failed));
  EXPECT_EQ(cluster.primary(1).call({"CLUSTER", "ADDSLOTSRANGE", "8192", "8291"}).text, "OK");
  EXPECT_TRUE(comes_true([&] { return client.put(keys, 10).all(RemoteOutcome::Ok); }));
  EXPECT_TRUE(client.get(keys, 10).all(RemoteOutcome::Ok));
}

TEST_F(ClusterOfThree, AClusterThatWantsAllItsSlotsIsDownAndComesBack) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cluster.primary(i).call({"CONFIG", "SET", "cluster-require-full-coverage", "yes"}).text, "OK");
  }
  const auto store = open_store({.urls = cluster.urls()});
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 60);
  EXPECT_TRUE(client.put(keys, 20'000).all(RemoteOutcome::Ok));
  const auto kept = keys_at(cluster, 0, false, keys);
  cluster.primary(0).kill();
  // The others notice that it is gone, and from then on they refuse what they have.
  EXPECT_TRUE(comes_true([&] {
    for (const std::string& key : kept) {
      const std::uint32_t owner = cluster.owner_of(cluster_slot(key));
      if (!cluster.primary(owner).call({"TOUCH", key}).text.starts_with("CLUSTERDOWN")) return false;
    }
    return true;
  }));
  for (const RemoteOperation operation : {RemoteOperation::Get, RemoteOperation::Find, RemoteOperation::Put}) {
    const BatchRun run = client.run({.operation = operation, .keys = kept, .bytes = 20'000});
    EXPECT_TRUE(run.all(RemoteOutcome::Failed)) << to_string(run.outcomes[0]);
    EXPECT_LT(run.waited_ns, 10'000 * kMs);
  }
  EXPECT_NE(store->status().last_error, "");
  cluster.primary(0).start();
  EXPECT_TRUE(comes_true([&] { return client.get(kept, 20'000).all(RemoteOutcome::Ok); }))
      << store->status().last_error;
  EXPECT_TRUE(comes_true([&] { return client.put(keys, 20'000).all(RemoteOutcome::Ok); }));
  EXPECT_TRUE(client.get(keys, 20'000).all(RemoteOutcome::Ok));
  EXPECT_EQ(client.wrong_values(), 0U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    (void)cluster.primary(i).call({"CONFIG", "SET", "cluster-require-full-coverage", "no"});
  }
}

TEST_F(ClusterOfThree, OpeningLooksAtAllNodesAndGoesOnWithoutADeadOne) {
  const std::string password = "hunter2-is-no-secret";
  const RedisConfig config{
      .urls = {cluster.primary(0).url()}, .user = "engine", .password = password, .command_timeout_ns = 300 * kMs};
  const auto add_user = [&](std::uint32_t node) {
    const std::string added = ">" + password;
    EXPECT_EQ(cluster.primary(node).call({"ACL", "SETUSER", "engine", "on", added, "~*", "+@all"}).text, "OK");
  };
  add_user(0);
  add_user(2);
  const auto refused = open_redis_store(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("127.0.0.1:" + std::to_string(cluster.primary(1).port())), std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("does not let the user 'engine' in"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(refused.error().message.find(password), std::string::npos) << refused.error().message;
  add_user(1);
  EXPECT_TRUE(open_redis_store(config).has_value());

  cluster.primary(1).stop();
  EXPECT_TRUE(open_redis_store(config).has_value());
  cluster.primary(1).go_on();
  cluster.primary(2).kill();
  EXPECT_TRUE(open_redis_store(config).has_value());
  cluster.primary(2).start();
  for (std::uint32_t i = 0; i < 3; ++i) (void)cluster.primary(i).call({"ACL", "DELUSER", "engine"});
}

// A fourth node, which has no slots. They take seconds to know each other, so these tests share them.
class ClusterWithAnEmptyNode : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new RedisClusterServers(3);
    // Otherwise it would follow the node that takes its last slot.
    shared_empty_ = new RedisServer({.is_cluster = true, .more = {"--cluster-allow-replica-migration", "no"}});
    (void)shared_->primary(0).call({"CLUSTER", "MEET", "127.0.0.1", std::to_string(shared_empty_->port())});
  }
  static void TearDownTestSuite() {
    delete shared_;
    delete shared_empty_;
  }
  ClusterWithAnEmptyNode() {
    for (RedisServer* const server : all_) {
      EXPECT_TRUE(comes_true([&] {
        const std::string info = server->call({"CLUSTER", "INFO"}).text;
        return info.find("cluster_state:ok") != std::string::npos &&
               info.find("cluster_known_nodes:4\r") != std::string::npos &&
               info.find("cluster_slots_ok:16384") != std::string::npos;
      }));
      (void)server->call({"FLUSHALL"});
    }
  }
  // Of the slot that moves.
  RedisServer& source() { return cluster_.primary(cluster_.owner_of(cluster_slot("{moves}"))); }
  std::int64_t key_count() {
    std::int64_t count = 0;
    for (RedisServer* const server : all_) count += server->call({"DBSIZE"}).number;
    return count;
  }
  // Half of the slot's keys are at the other node.
  void begin_move() {
    EXPECT_EQ(empty_.call({"CLUSTER", "SETSLOT", slot_, "IMPORTING", cluster_.id_of(source())}).text, "OK");
    EXPECT_EQ(source().call({"CLUSTER", "SETSLOT", slot_, "MIGRATING", cluster_.id_of(empty_)}).text, "OK");
    for (std::size_t i = 0; i < keys_.size() / 2; ++i) {
      EXPECT_EQ(source().call({"MIGRATE", "127.0.0.1", std::to_string(empty_.port()), keys_[i], "0", "10000"}).text,
                "OK");
    }
  }

  static inline RedisClusterServers* shared_ = nullptr;
  static inline RedisServer* shared_empty_ = nullptr;
  RedisClusterServers& cluster_ = *shared_;
  RedisServer& empty_ = *shared_empty_;
  const std::array<RedisServer*, 4> all_ = {&cluster_.primary(0), &cluster_.primary(1), &cluster_.primary(2), &empty_};
  const std::vector<std::string> keys_ = numbered_keys("quire:{moves}", 30);
  const std::string slot_ = std::to_string(cluster_slot("{moves}"));
};

TEST_F(ClusterWithAnEmptyNode, ADropReachesWhatIsThereAlready) {
  const auto store = open_store({.urls = {source().url()}, .command_timeout_ns = 300 * kMs});
  StoreClient client(*store);
  EXPECT_TRUE(client.put(keys_, 10).all(RemoteOutcome::Ok));
  begin_move();
  empty_.stop();
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Failed))
      << "half of the keys cannot be reached";
  empty_.go_on();
  EXPECT_TRUE(client.put(keys_, 10).all(RemoteOutcome::Ok));
  EXPECT_TRUE(comes_true([&] {
    return client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Ok);
  }));
  cluster_.move_slot(cluster_slot("{moves}"), source(), empty_);
  EXPECT_EQ(empty_.call({"CLUSTER", "COUNTKEYSINSLOT", slot_}).number, 0);
  EXPECT_EQ(key_count(), 0);
  EXPECT_TRUE(comes_true([&] { return client.put(keys_, 10).all(RemoteOutcome::Ok); }));
  cluster_.move_slot(cluster_slot("{moves}"), empty_, source());
}

TEST_F(ClusterWithAnEmptyNode, ADropDoesNotWaitForANodeThatHasFailedAndHasNothing) {
  const auto store = open_store({.urls = {source().url()}, .command_timeout_ns = 300 * kMs});
  StoreClient client(*store);
  EXPECT_TRUE(client.put(keys_, 10).all(RemoteOutcome::Ok));
  empty_.kill();
  EXPECT_TRUE(comes_true([&] {
    return client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Ok);
  })) << store->status().last_error;
  EXPECT_EQ(store->status().failed_nodes, 0U);
  EXPECT_NE(source().call({"CLUSTER", "NODES"}).text.find("master,fail "), std::string::npos);
  empty_.start();
  EXPECT_EQ(key_count(), 0);
}

TEST_F(ClusterWithAnEmptyNode, ADropSaysWhatItMayNotAsk) {
  for (RedisServer* const server : all_) {
    EXPECT_EQ(server->call({"ACL", "SETUSER", "engine", "on", ">secret", "~*", "+@all", "-cluster|nodes"}).text, "OK");
  }
  const auto store = open_store({.urls = {source().url()}, .user = "engine", .password = "secret"});
  StoreClient client(*store);
  EXPECT_TRUE(client.put(keys_, 10).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Failed));
  EXPECT_NE(store->status().last_error.find("cluster|nodes"), std::string::npos) << store->status().last_error;
}

TEST(ClusterOfOne, NodesThatAreNotWhereTheySayCannotBeUsed) {
  RedisServer server({.is_cluster = true, .more = {"--cluster-announce-ip", "127.0.0.9"}});
  EXPECT_EQ(server.call({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"}).text, "OK");
  std::string why;
  EXPECT_TRUE(comes_true([&] {
    const auto refused = open_redis_store({.urls = {server.url()}});
    if (refused.has_value()) return false;
    EXPECT_EQ(refused.error().code, ErrorCode::Unavailable);
    why = refused.error().message;
    return why.find("127.0.0.9:" + std::to_string(server.port())) != std::string::npos;
  }));
  EXPECT_NE(why.find("set cluster-announce-ip"), std::string::npos) << why;
  EXPECT_NE(why.find("Connection refused"), std::string::npos) << why;
  // Who looks into it is told the same.
  const auto report = scan_redis_store({.urls = {server.url()}}, "quire:", nullptr);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().message, why);
}

TEST(ClusterOfOne, ANodeThatKnowsNoAddressOfItsOwnIsNotReachedByASocket) {
  RedisServer server({.is_cluster = true});
  EXPECT_EQ(server.call({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"}).text, "OK");
  const auto refused = open_redis_store({.urls = {server.unix_url()}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("set cluster-announce-ip"), std::string::npos) << refused.error().message;
  RedisServer other({.is_cluster = true, .more = {"--cluster-announce-ip", "127.0.0.1"}});
  EXPECT_EQ(other.call({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"}).text, "OK");
  const auto store = open_store({.urls = {other.unix_url()}});
  StoreClient client(*store);
  // A node that has just got its slots refuses what is asked for a while.
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:a"}, 10).all(RemoteOutcome::Ok); }));
}

TEST(ClusterWithReplicas, AReplicaThatBecomesThePrimaryIsFound) {
  RedisClusterServers cluster(3, true);
  const auto store = open_store({.urls = cluster.urls()});
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 30);
  EXPECT_TRUE(client.put(keys, 10'000).all(RemoteOutcome::Ok));
  EXPECT_TRUE(comes_true([&] {
    std::int64_t copies = 0;
    for (std::uint32_t i = 0; i < 3; ++i) copies += cluster.replica(i).call({"DBSIZE"}).number;
    return copies == 30;
  }));
  cluster.primary(0).kill();
  EXPECT_TRUE(comes_true([&] {
    return client.run({.keys = keys, .bytes = 10'000, .timeout_ns = 200 * kMs}).all(RemoteOutcome::Ok);
  })) << store->status().last_error;
  EXPECT_TRUE(client.put(keys, 10'000).all(RemoteOutcome::Ok));
  EXPECT_TRUE(comes_true([&] { return store->status().failed_nodes == 0; })) << "the old one is forgotten";
  EXPECT_EQ(store->status().node_count, 3U);
  EXPECT_EQ(client.wrong_values(), 0U);
}

}  // namespace
}  // namespace quire::testing
