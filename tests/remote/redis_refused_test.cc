// SPDX-License-Identifier: Apache-2.0
//
// Servers that take nobody for a while: a thousand batches fail one after the other, few of them connect, and all is
// well again as soon as the server is.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "remote/monotonic_clock.h"
#include "remote/redis_session.h"
#include "testing/temp_directory.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/open_store.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_client.h"
#include "tests/remote/test_certificates.h"

namespace quire::testing {
namespace {

// Of this process, over TCP.
std::atomic<std::uint32_t> connect_count = 0;

}  // namespace
}  // namespace quire::testing

// Stands in front of the C library's: a server that is not there cannot count who asks for it.
extern "C" int connect(int socket, const sockaddr* address, socklen_t bytes) {
  if (address->sa_family == AF_INET) ++quire::testing::connect_count;
  return static_cast<int>(::syscall(SYS_connect, socket, address, bytes));
}

namespace quire::testing {
namespace {

constexpr std::uint32_t kBatches = 1'000;

// A thousand batches that fail. Gives how often they may have connected: a node has three connections, and is tried
// again after half of its pause at the soonest.
std::uint32_t fail_all(StoreClient& client, const RedisConfig& config) {
  const TimeNs begin = monotonic_now();
  for (std::uint32_t i = 0; i < kBatches; ++i) {
    const BatchRun run = client.find({"quire:a"});
    EXPECT_TRUE(run.all(RemoteOutcome::Failed)) << to_string(run.outcomes[0]);
  }
  const TimeNs pauses = (monotonic_now() - begin) / (config.pause_ns_min / 2);
  return static_cast<std::uint32_t>(3 * (pauses + 3));
}

TEST(RedisRefused, AServerThatIsFullIsTriedNowAndThenUntilItHasRoom) {
  constexpr std::uint32_t kClientsMax = 4;
  RedisServer server({.more = {"--maxclients", std::to_string(kClientsMax)}});
  const RedisEndpoint endpoint{.host = server.socket_path(), .is_unix = true};
  const RedisLogin login{.seeds = {endpoint}, .connect_timeout_ns = 20'000 * kMs, .command_timeout_ns = 20'000 * kMs};
  std::vector<std::unique_ptr<RedisSession>> others;
  // The server hears later of clients that have gone.
  EXPECT_TRUE(comes_true([&] {
    auto session = RedisSession::open(endpoint, login);
    if (!session.has_value()) return false;
    const auto answer = (*session)->call({"PING"});
    if (answer.has_value() && answer->kind != RespKind::Error) others.push_back(*std::move(session));
    return others.size() == kClientsMax;
  }));
  const auto rejected = [&] {
    const std::string info = others.front()->call({"INFO", "stats"}).value_or(RespValue{}).text;
    EXPECT_NE(info.find("rejected_connections:"), std::string::npos) << info;
    constexpr std::string_view kField = "rejected_connections:";
    return std::strtoul(info.c_str() + info.find(kField) + kField.size(), nullptr, 10);
  };
  RedisConfig config{.urls = {server.unix_url()}};
  const auto refused = open_redis_store(config);
  ASSERT_FALSE(refused.has_value());
  config.requires_server = false;
  const auto store = open_store(config);
  StoreClient client(*store);
  const std::uint64_t before = rejected();
  const std::uint32_t allowed = fail_all(client, config);
  EXPECT_LE(rejected() - before, allowed);
  EXPECT_LT(allowed, kBatches) << "or nothing was bounded";
  EXPECT_FALSE(store->status().is_usable);
  EXPECT_NE(store->status().last_error, "");
  others.clear();
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:a"}, 10).all(RemoteOutcome::Ok); }));
  EXPECT_TRUE(client.get({"quire:a"}, 10).all(RemoteOutcome::Ok));
  EXPECT_TRUE(store->status().is_usable);
  EXPECT_EQ(client.wrong_values(), 0U);
}

TEST(RedisRefused, AServerThatIsFullIsSaidToBeFullEachTime) {
  RedisServer server({.more = {"--maxclients", "1"}});
  const RedisEndpoint endpoint{.host = server.socket_path(), .is_unix = true};
  const RedisLogin login{.seeds = {endpoint}, .connect_timeout_ns = 20'000 * kMs, .command_timeout_ns = 20'000 * kMs};
  std::unique_ptr<RedisSession> other;
  EXPECT_TRUE(comes_true([&] {
    auto session = RedisSession::open(endpoint, login);
    if (!session.has_value()) return false;
    const auto answer = (*session)->call({"PING"});
    other = *std::move(session);
    return answer.has_value() && answer->kind != RespKind::Error;
  }));
  for (int i = 0; i < 100; ++i) {
    const auto refused = open_redis_store({.urls = {server.unix_url()}});
    ASSERT_FALSE(refused.has_value());
    ASSERT_NE(refused.error().message.find("too many clients"), std::string::npos) << refused.error().message;
  }
}

TEST(RedisRefused, APortWhereNobodyListensIsTriedNowAndThenUntilSomebodyDoes) {
  RedisServer server({.has_port = true});
  server.kill();
  const RedisConfig config{.urls = {server.url()}, .requires_server = false};
  const auto store = open_store(config);
  StoreClient client(*store);
  const std::uint32_t before = connect_count;
  const std::uint32_t allowed = fail_all(client, config);
  EXPECT_LE(connect_count - before, allowed);
  EXPECT_LT(allowed, kBatches) << "or nothing was bounded";
  EXPECT_NE(store->status().last_error.find("Connection refused"), std::string::npos) << store->status().last_error;
  server.start();
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:a"}, 10).all(RemoteOutcome::Ok); }));
  EXPECT_GT(connect_count, before);
  EXPECT_TRUE(client.get({"quire:a"}, 10).all(RemoteOutcome::Ok));
  EXPECT_EQ(client.wrong_values(), 0U);
}

TEST(RedisRefused, AServerThatReadsItsFileIsWaitedFor) {
  // A tenth of a second for each hundred keys, and it answers in between.
  RedisServer server({.more = {"--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"}});
  const auto store = open_store({.urls = {server.unix_url()}});
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 1'500);
  EXPECT_TRUE(client.put(keys, 2'000).all(RemoteOutcome::Ok));
  EXPECT_EQ(server.call({"SAVE"}).text, "OK");
  server.kill();
  server.start();
  const auto refused = open_redis_store({.urls = {server.unix_url()}});
  ASSERT_FALSE(refused.has_value()) << "it has read its file already";
  EXPECT_NE(refused.error().message.find("not ready yet"), std::string::npos) << refused.error().message;
  bool was_loading = false;
  EXPECT_TRUE(comes_true([&] {
    const BatchRun run = client.get({keys[0], keys[1'499]}, 2'000);
    EXPECT_EQ(run.count(RemoteOutcome::Absent), 0U) << "half of the file is no answer";
    was_loading = was_loading || store->status().last_error.find("LOADING") != std::string::npos;
    return run.all(RemoteOutcome::Ok);
  }));
  EXPECT_TRUE(was_loading) << store->status().last_error;
  EXPECT_TRUE(comes_true([&] { return client.get(keys, 2'000).all(RemoteOutcome::Ok); }));
  EXPECT_EQ(client.wrong_values(), 0U);
}

TEST(RedisRefused, AWrongPasswordIsTriedAgainUntilTheServerHasIt) {
  const std::string secret = "hunter2-is-no-secret";
  RedisServer server;
  const auto set_password = [&](const std::string& password) {
    const std::string added = ">" + password;
    EXPECT_EQ(server.call({"ACL", "SETUSER", "engine", "on", added, "~quire:*", "+@all"}).text, "OK");
  };
  set_password("another");
  const auto store =
      open_store({.urls = {server.unix_url()}, .user = "engine", .password = secret, .requires_server = false});
  StoreClient client(*store);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Failed));
  const RemoteStatus status = store->status();
  EXPECT_FALSE(status.is_usable);
  EXPECT_NE(status.last_error.find("password"), std::string::npos) << status.last_error;
  EXPECT_EQ(status.last_error.find(secret), std::string::npos) << status.last_error;
  set_password(secret);
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:a"}, 10).all(RemoteOutcome::Ok); }));
  EXPECT_TRUE(store->status().is_usable);
}

TEST(RedisRefused, AWrongCertificateIsTriedAgainUntilTheServerHasTheRightOne) {
  TempDirectory directory;
  const TestCertificates good = make_certificates(directory.path(), "good", "127.0.0.1");
  const TestCertificates other = make_certificates(directory.path(), "other", "127.0.0.1");
  const std::string port = std::to_string(free_port());
  const auto with = [&](const TestCertificates& own) {
    return RedisServer::Options{.more = {"--tls-port", port, "--tls-cert-file", own.certificate_file, "--tls-key-file",
                                         own.key_file, "--tls-ca-cert-file", own.ca_file, "--tls-auth-clients", "no"}};
  };
  auto server = std::make_unique<RedisServer>(with(other));
  const auto store =
      open_store({.urls = {"rediss://127.0.0.1:" + port}, .ca_file = good.ca_file, .requires_server = false});
  StoreClient client(*store);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Failed));
  EXPECT_FALSE(store->status().is_usable);
  EXPECT_NE(store->status().last_error.find("certificate"), std::string::npos) << store->status().last_error;
  server.reset();
  server = std::make_unique<RedisServer>(with(good));
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:a"}, 10).all(RemoteOutcome::Ok); }))
      << store->status().last_error;
  EXPECT_TRUE(store->status().is_usable);
}

}  // namespace
}  // namespace quire::testing
