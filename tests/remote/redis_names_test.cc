// SPDX-License-Identifier: Apache-2.0
//
// Names with several addresses, of which not all work.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "testing/temp_directory.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/loopback.h"
#include "tests/remote/open_store.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_client.h"
#include "tests/remote/test_certificates.h"

namespace quire::testing {
namespace {

constexpr const char* kName = "cache.test";
constexpr const char* kSecret = "hunter2-is-no-secret";

class RedisNames : public ::testing::Test {
 protected:
  [[nodiscard]] RedisServer::Options server_at(const std::string& host) const {
    return {.more = {"--port", std::to_string(port_), "--bind", host}};
  }
  [[nodiscard]] std::string where() const { return std::string(kName) + ":" + std::to_string(port_); }
  [[nodiscard]] std::string url() const { return "redis://" + where(); }
  [[nodiscard]] std::string refusal(const RedisConfig& config) {
    const auto store = names_.try_open(config);
    return store.has_value() ? "" : store.error().message;
  }

  const std::uint16_t port_ = free_port();
  NameTable names_;
};

TEST_F(RedisNames, AServerIsFoundAtAnyOfTheAddresses) {
  RedisServer server(server_at("127.0.0.1"));
  const std::vector<std::vector<std::string>> lists = {
      {"127.0.0.1"}, {"::1", "127.0.0.1"}, {"127.0.0.1", "::1"}, {"127.0.0.2", "127.0.0.3", "127.0.0.1", "::1"}};
  std::uint32_t looked_up = 0;
  for (const auto& list : lists) {
    names_.set(kName, list);
    const auto store = names_.open({.urls = {url()}});
    StoreClient client(*store);
    EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.get({"quire:a"}, 10).all(RemoteOutcome::Ok));
    EXPECT_EQ(store->status().last_error, "");
    EXPECT_EQ(store->status().node_count, 1U) << "the addresses of a name are one node";
    EXPECT_EQ(names_.count(), ++looked_up) << "the store goes on with what opening has found";

    const RedisConfig config{.urls = {url()}};
    const auto report = scan_redis_store(config, names_.login(config), "quire:", nullptr);
    ASSERT_TRUE(report.has_value()) << report.error().message;
    EXPECT_EQ(report->key_count, 1U);
    looked_up = names_.count();
  }
}

TEST_F(RedisNames, AnAddressWhereNothingAnswersTakesItsShareOfTheTime) {
  RedisServer server(server_at("127.0.0.1"));
  Listener full("127.0.0.2", port_, 0);
  full.fill();
  names_.set(kName, {"127.0.0.2", "127.0.0.1"});
  const auto store = names_.open({.urls = {url()}, .connect_timeout_ns = 600 * kMs});
  StoreClient client(*store);
  EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
}

TEST_F(RedisNames, WhereNoAddressWorksEachIsNamedWithTheReason) {
  names_.set(kName, {"127.0.0.2", "127.0.0.3"});
  const std::string refused = "127.0.0.2 (Connection refused), 127.0.0.3 (Connection refused)";
  const RedisConfig config{.urls = {"redis://engine@" + where()}, .password = kSecret};
  EXPECT_EQ(refusal(config),
            "no connection to the server at " + where() + ": " + refused + ": is it running, and is the url right?");
  const auto report = scan_redis_store(config, names_.login(config), "quire:", nullptr);
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().message.find(refused), std::string::npos) << report.error().message;

  // A store that opens all the same goes on trying, and says the same.
  RedisConfig patient = config;
  patient.pause_ns_min = kMs;
  patient.requires_server = false;
  const auto store = names_.open(patient);
  EXPECT_TRUE(comes_true([&] { return store->status().last_error == where() + ": " + refused; }))
      << store->status().last_error;

  Listener full("127.0.0.2", port_, 0);
  full.fill();
  const std::string late = refusal({.urls = {url()}, .connect_timeout_ns = 100 * kMs});
  EXPECT_NE(late.find("127.0.0.2 (it cannot be reached in time), 127.0.0.3 (Connection refused)"), std::string::npos)
      << late;
  EXPECT_NE(late.find("is there a firewall in between?"), std::string::npos) << late;

  names_.set(kName, {});
  EXPECT_NE(refusal({.urls = {url()}}).find("cannot be found"), std::string::npos);
}

TEST_F(RedisNames, TheAddressThatWorkedIsKeptForAllConnections) {
  RedisServer server(server_at("127.0.0.1"));
  server.kill();
  names_.set(kName, {"127.0.0.2", "127.0.0.1"});
  const auto store = names_.open({.urls = {url()},
                                  .cluster = RedisCluster::No,
                                  .pause_ns_min = kMs,
                                  .pause_ns_max = kMs,
                                  .requires_server = false});
  StoreClient client(*store);
  server.start();
  EXPECT_TRUE(comes_true([&] { return client.find({"quire:a"}).all(RemoteOutcome::Absent); }));
  Listener other("127.0.0.2", port_, 16);
  EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client
                  .run({.operation = RemoteOperation::Put,
                        .keys = {"quire:b"},
                        .bytes = 10,
                        .priority = RemotePriority::Background})
                  .all(RemoteOutcome::Ok));
  EXPECT_FALSE(other.has_visitor());
}

TEST_F(RedisNames, ARoundThatHasFailedIsOneFailure) {
  RedisServer server(server_at("127.0.0.1"));
  names_.set(kName, {"127.0.0.1", "127.0.0.2", "127.0.0.3"});
  const auto store = names_.open(
      {.urls = {url()}, .failures_in_a_row = 3, .pause_ns_min = 10'000 * kMs, .pause_ns_max = 10'000 * kMs});
  EXPECT_EQ(names_.count(), 1U);
  server.kill();
  StoreClient client(*store);
  EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Failed));
  EXPECT_EQ(store->status().failed_nodes, 1U);
  EXPECT_EQ(names_.count(), 3U) << "two more rounds, each of which looks the name up again";
  EXPECT_EQ(
      store->status().last_error,
      where() + ": 127.0.0.1 (Connection refused), 127.0.0.2 (Connection refused), 127.0.0.3 (Connection refused)");
}

TEST_F(RedisNames, WhatIsLateWhileAddressesAreLeftIsNoFailure) {
  names_.set(kName, {"127.0.0.1", "127.0.0.2"});
  auto server = std::make_unique<RedisServer>(server_at("127.0.0.1"));
  const auto store = names_.open({.urls = {url()}, .connect_timeout_ns = 2'000 * kMs, .failures_in_a_row = 1});
  // The address that worked takes no connections any more, and the other does.
  server = nullptr;
  Listener full("127.0.0.1", port_, 0);
  full.fill();
  server = std::make_unique<RedisServer>(server_at("127.0.0.2"));
  StoreClient client(*store);
  EXPECT_TRUE(client.run({.operation = RemoteOperation::Find, .keys = {"quire:a"}, .timeout_ns = 50 * kMs})
                  .all(RemoteOutcome::Late));
  EXPECT_EQ(store->status().failed_nodes, 0U);
  EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Absent));
  EXPECT_EQ(store->status().failed_nodes, 0U);
  EXPECT_EQ(store->status().last_error, "");
  EXPECT_EQ(names_.count(), 1U);
}

TEST_F(RedisNames, ARoundGoesOnWhenNobodyWaitsForIt) {
  names_.set(kName, {"127.0.0.1", "127.0.0.2"});
  auto server = std::make_unique<RedisServer>(server_at("127.0.0.1"));
  const auto store = names_.open({.urls = {url()}, .cluster = RedisCluster::No, .connect_timeout_ns = 400 * kMs});
  server = nullptr;
  Listener full("127.0.0.1", port_, 0);
  full.fill();
  Listener other("127.0.0.2", port_, 16);
  StoreClient client(*store);
  EXPECT_TRUE(client.run({.operation = RemoteOperation::Find, .keys = {"quire:a"}, .timeout_ns = 10 * kMs})
                  .all(RemoteOutcome::Late));
  EXPECT_TRUE(comes_true([&] { return other.has_visitor(); }));
}

TEST_F(RedisNames, ANameIsLookedUpAgainWhenNoneOfItsAddressesWorks) {
  names_.set(kName, {"127.0.0.1", "127.0.0.2"});
  auto server = std::make_unique<RedisServer>(server_at("127.0.0.1"));
  const auto store = names_.open({.urls = {url()}, .pause_ns_min = kMs, .pause_ns_max = 20 * kMs});
  StoreClient client(*store);
  EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
  server = nullptr;
  names_.set(kName, {"127.0.0.3", "127.0.0.4"});
  server = std::make_unique<RedisServer>(server_at("127.0.0.4"));
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:a"}, 10).all(RemoteOutcome::Ok); }));
  EXPECT_EQ(store->status().failed_nodes, 0U);
}

TEST_F(RedisNames, ANameIsLookedUpAgainWhenItsServerTakesNoValuesAnyMore) {
  names_.set(kName, {"127.0.0.1"});
  RedisServer first(server_at("127.0.0.1"));
  const auto store = names_.open({.urls = {url()}});
  StoreClient client(*store);
  EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
  // As when another takes over: the old one goes on to answer.
  RedisServer second(server_at("127.0.0.2"));
  EXPECT_EQ(first.call({"REPLICAOF", "127.0.0.2", std::to_string(port_)}).text, "OK");
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Failed));
  EXPECT_NE(store->status().last_error.find("READONLY"), std::string::npos) << store->status().last_error;
  EXPECT_LT(names_.count(), 15U) << "now and then is enough";
  names_.set(kName, {"127.0.0.2"});
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:b"}, 10).all(RemoteOutcome::Ok); }));
  EXPECT_EQ(second.call({"EXISTS", "quire:b"}).number, 1);
  EXPECT_EQ(store->status().failed_nodes, 0U);
}

TEST_F(RedisNames, ANodeOfAClusterIsLookedUpWhenAnotherAnswersAtItsAddress) {
  const auto node_at = [&](const std::string& host, const std::string& name) {
    RedisServer::Options options = server_at(host);
    options.is_cluster = true;
    for (const std::string& more : {std::string("--cluster-announce-hostname"), name,
                                    std::string("--cluster-preferred-endpoint-type"), std::string("hostname")}) {
      options.more.push_back(more);
    }
    return options;
  };
  RedisServer owner(node_at("127.0.0.1", kName));
  RedisServer other(node_at("127.0.0.2", "other.test"));
  EXPECT_EQ(owner.call({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"}).text, "OK");
  EXPECT_EQ(owner.call({"CLUSTER", "MEET", "127.0.0.2", std::to_string(port_)}).text, "OK");
  ASSERT_TRUE(comes_true([&] {
    return other.call({"CLUSTER", "INFO"}).text.find("cluster_state:ok") != std::string::npos &&
           other.call({"GET", "a"}).text.find(where()) != std::string::npos;
  })) << other.call({"CLUSTER", "INFO"}).text;

  // As when two nodes start anew, and one gets the address that the other had.
  names_.set(kName, {"127.0.0.2"});
  const auto store = names_.open({.urls = {url()}});
  StoreClient client(*store);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Failed));
  EXPECT_NE(store->status().last_error.find("MOVED"), std::string::npos) << store->status().last_error;
  EXPECT_LT(names_.count(), 15U) << "now and then is enough";
  names_.set(kName, {"127.0.0.1"});
  EXPECT_TRUE(comes_true([&] { return client.find({"quire:a"}).all(RemoteOutcome::Absent); }));
  const auto keys = numbered_keys("quire:a", 20);
  EXPECT_TRUE(comes_true([&] { return client.put(keys, 1'000).all(RemoteOutcome::Ok); }));
  EXPECT_TRUE(client.get(keys, 1'000).all(RemoteOutcome::Ok));
  EXPECT_EQ(client.wrong_values(), 0U);
  EXPECT_EQ(store->status().failed_nodes, 0U);
  EXPECT_EQ(store->status().node_count, 1U);
}

TEST_F(RedisNames, ANodeOfAClusterIsCheckedUnderTheNameThatItsCertificateIsFor) {
  TempDirectory directory;
  const TestCertificates of_name = make_certificates(directory.path(), "name", kName);
  names_.set(kName, {"127.0.0.1"});
  const std::string port = std::to_string(port_);
  RedisServer server({.has_port = true,
                      .is_cluster = true,
                      .more = {"--tls-port", port, "--tls-cluster", "yes", "--tls-cert-file", of_name.certificate_file,
                               "--tls-key-file", of_name.key_file, "--tls-ca-cert-file", of_name.ca_file,
                               "--tls-auth-clients", "no", "--cluster-announce-ip", "127.0.0.1"}});
  EXPECT_EQ(server.call({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"}).text, "OK");
  // The map has an address, which the certificate is not for.
  RedisConfig config{.urls = {"rediss://" + where()}, .ca_file = of_name.ca_file};
  const auto refused = names_.try_open(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  for (const std::string& part : {"127.0.0.1:" + port, std::string("certificate"), std::string("server_name")}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  config.server_name = kName;
  const auto store = names_.open(config);
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 10);
  EXPECT_TRUE(comes_true([&] { return client.put(keys, 100'000).all(RemoteOutcome::Ok); }));
  EXPECT_TRUE(client.get(keys, 100'000).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.find(keys).all(RemoteOutcome::Absent));
  EXPECT_EQ(client.wrong_values(), 0U);
}

TEST_F(RedisNames, CertificatesAreForTheNameAndNotForTheAddress) {
  TempDirectory directory;
  const TestCertificates of_name = make_certificates(directory.path(), "name", kName);
  const TestCertificates of_address = make_certificates(directory.path(), "address", "127.0.0.1");
  names_.set(kName, {"127.0.0.2", "127.0.0.1"});
  for (const TestCertificates& certificates : {of_name, of_address}) {
    RedisServer server({.more = {"--tls-port", std::to_string(port_), "--tls-cert-file", certificates.certificate_file,
                                 "--tls-key-file", certificates.key_file, "--tls-ca-cert-file", certificates.ca_file,
                                 "--tls-auth-clients", "no"}});
    const RedisConfig config{.urls = {"rediss://" + where()}, .ca_file = certificates.ca_file};
    if (certificates.ca_file == of_address.ca_file) {
      const std::string why = refusal(config);
      EXPECT_NE(why.find("127.0.0.2 (Connection refused), 127.0.0.1 ("), std::string::npos) << why;
      EXPECT_NE(why.find("certificate"), std::string::npos) << why;
      EXPECT_NE(why.find("ca_file"), std::string::npos) << why;
      continue;
    }
    const auto store = names_.open(config);
    StoreClient client(*store);
    EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.get({"quire:a"}, 10).all(RemoteOutcome::Ok));
  }
}

}  // namespace
}  // namespace quire::testing
