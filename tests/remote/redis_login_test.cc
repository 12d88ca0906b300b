// SPDX-License-Identifier: Apache-2.0
//
// Opening: what works, and what is said about what does not, without ever saying a password.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "quire/redis_store.h"
#include "testing/temp_directory.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/open_store.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_client.h"
#include "tests/remote/test_certificates.h"

namespace quire::testing {
namespace {

constexpr const char* kPassword = "hunter2-is-no-secret";

// Why a store cannot be opened, of which the password is no part.
std::string refusal(const RedisConfig& config) {
  const auto store = open_redis_store(config);
  if (store.has_value()) return "";
  EXPECT_EQ(store.error().message.find(kPassword), std::string::npos) << store.error().message;
  return store.error().message;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Says the same to everybody who connects, after they have said something: once, or again and again; or says it before
// they could, and hangs up.
class Talker {
 public:
  enum class Says : std::uint8_t { Once, Always, Unasked };
  explicit Talker(std::string text, Says says = Says::Once)
      : text_(std::move(text)), says_(says), listener_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::ranges::copy(path(), std::begin(address.sun_path));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    acceptor_ = std::thread([this] {
      while (true) {
        const int client = ::accept(listener_.get(), nullptr, nullptr);
        if (client < 0) return;
        if (says_ != Says::Always) {
          talk(client);
        } else {
          talkers_.emplace_back([this, client] { talk(client); });
        }
      }
    });
  }
  /// Whoever connected has to be gone.
  ~Talker() {
    (void)::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (std::thread& talker : talkers_) talker.join();
  }
  [[nodiscard]] std::string path() const { return directory_.path() + "/talker"; }
  [[nodiscard]] std::string url() const { return "unix://" + path(); }
  [[nodiscard]] std::uint32_t count() const { return count_; }

 private:
  void talk(int socket) {
    const Descriptor client(socket);
    std::array<char, 4096> heard;
    if (says_ == Says::Unasked) {
      (void)::send(client.get(), text_.data(), text_.size(), MSG_NOSIGNAL);
      ++count_;
      return;
    }
    while (::read(client.get(), heard.data(), heard.size()) > 0) {
      (void)::send(client.get(), text_.data(), text_.size(), MSG_NOSIGNAL);
      ++count_;
      if (says_ == Says::Once) return;
    }
  }

  TempDirectory directory_;
  const std::string text_;
  const Says says_;
  Descriptor listener_;
  std::atomic<std::uint32_t> count_ = 0;
  std::thread acceptor_;
  std::vector<std::thread> talkers_;
};

TEST(RedisLogin, APasswordComesFromTheConfigurationOrAFile) {
  RedisServer server({.more = {"--requirepass", kPassword}});
  TempDirectory directory;
  const std::string file = directory.path() + "/password";
  std::ofstream(file) << kPassword << "\n";
  EXPECT_EQ(refusal({.urls = {server.unix_url()}, .password = kPassword}), "");
  const auto store = open_store({.urls = {server.unix_url()}, .password_file = file});
  StoreClient client(*store);
  EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));

  EXPECT_SAYS(refusal({.urls = {server.unix_url()}}), "wants a password");
  EXPECT_SAYS(refusal({.urls = {server.unix_url()}, .password = "wrong"}), "password is wrong");
  EXPECT_SAYS(refusal({.urls = {server.unix_url()}, .password_file = directory.path() + "/none"}), "cannot be opened");
  EXPECT_SAYS(refusal({.urls = {server.unix_url()}, .password = kPassword, .password_file = file}), "both set");
  EXPECT_SAYS(refusal({.urls = {"redis://user:" + std::string(kPassword) + "@localhost"}}), "password_file");
}

TEST(RedisLogin, AUserNeedsWhatTheAclAllows) {
  RedisServer server;
  const std::string secret = ">" + std::string(kPassword);
  EXPECT_EQ(server
                .call({"ACL", "SETUSER", "engine", "on", secret, "~quire:*", "-@all", "+ping", "+touch", "+get", "+set",
                       "+unlink", "+scan", "+cluster|slots", "+asking"})
                .text,
            "OK");
  EXPECT_EQ(server
                .call({"ACL", "SETUSER", "reader", "on", secret, "~quire:*", "-@all", "+ping", "+touch", "+get",
                       "+cluster|slots"})
                .text,
            "OK");
  const auto store = open_store({.urls = {server.unix_url()}, .user = "engine", .password = kPassword});
  StoreClient client(*store);
  EXPECT_TRUE(client.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.get({"quire:a"}, 10).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.put({"other:a"}, 10).all(RemoteOutcome::Failed)) << "not below its prefix";
  EXPECT_SAYS(store->status().last_error, "NOPERM");
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Ok));

  EXPECT_SAYS(refusal({.urls = {server.unix_url()}, .user = "reader", .password = kPassword}), "does not allow SET");
  EXPECT_EQ(refusal({.urls = {server.unix_url()}, .user = "reader", .password = kPassword, .is_read_only = true}), "");
  EXPECT_SAYS(refusal({.urls = {server.unix_url()},
                       .user = "reader",
                       .password = kPassword,
                       .key_prefix = "elsewhere:",
                       .is_read_only = true}),
              "needs the commands ping, touch and get");
  EXPECT_SAYS(refusal({.urls = {server.unix_url()}, .user = "nobody", .password = kPassword}), "password is wrong");
  EXPECT_SAYS(refusal({.urls = {server.unix_url()}, .user = "engine"}), "without a password");
  EXPECT_SAYS(
      refusal({.urls = {server.unix_url()}, .user = "engine", .password = kPassword, .key_prefix = "elsewhere:"}),
      "does not allow TOUCH");
}

TEST(RedisLogin, AStoreThatOnlyReadsWritesNothing) {
  RedisServer server;
  const auto writing = open_store({.urls = {server.unix_url()}});
  StoreClient writer(*writing);
  EXPECT_TRUE(writer.put({"quire:a"}, 10).all(RemoteOutcome::Ok));
  EXPECT_EQ(server.call({"CONFIG", "RESETSTAT"}).text, "OK");
  const auto store = open_store({.urls = {server.unix_url()}, .is_read_only = true});
  StoreClient reader(*store);
  EXPECT_TRUE(reader.find({"quire:a"}).all(RemoteOutcome::Ok));
  EXPECT_TRUE(reader.get({"quire:a"}, 10).all(RemoteOutcome::Ok));
  EXPECT_TRUE(reader.put({"quire:a", "quire:b"}, 10).all(RemoteOutcome::Failed));
  EXPECT_TRUE(reader.run({.operation = RemoteOperation::Drop, .keys = {"quire:a"}}).all(RemoteOutcome::Failed));
  EXPECT_TRUE(reader.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Failed));
  EXPECT_SAYS(store->status().last_error, "RedisConfig::is_read_only");
  EXPECT_TRUE(store->status().is_usable);
  const std::string commands = server.call({"INFO", "commandstats"}).text;
  for (const char* const command : {"cmdstat_set:", "cmdstat_unlink:", "cmdstat_scan:"}) {
    EXPECT_EQ(commands.find(command), std::string::npos) << commands;
  }
}

TEST(RedisLogin, WhatIsWrongWithTheConfigurationIsSaid) {
  EXPECT_SAYS(refusal({}), "urls is empty");
  EXPECT_SAYS(refusal({.urls = {"localhost:6379"}}), "begins with none of");
  EXPECT_SAYS(refusal({.urls = {"redis://localhost"}, .window_bytes = 0}), "window_bytes");
  EXPECT_SAYS(refusal({.urls = {"redis://localhost"}, .ca_file = "/some/file"}), "rediss://");
  EXPECT_SAYS(refusal({.urls = {"rediss://localhost"}, .ca_file = "/no/such/file"}),
              "ca_file is '/no/such/file', which cannot be used: No such file or directory");
  EXPECT_SAYS(refusal({.urls = {"rediss://localhost"}, .certificate_file = "/some/file"}), "needs the key");
  EXPECT_SAYS(refusal({.urls = {"rediss://localhost", "redis://localhost"}}), "everywhere or nowhere");
  EXPECT_SAYS(refusal({.urls = {"redis://localhost"}, .key_prefix = std::string(130, 'q')}), "key_prefix");
  // Such things are wrong without any server.
  EXPECT_SAYS(refusal({.urls = {"localhost"}, .requires_server = false}), "begins with none of");
}

TEST(RedisLogin, AServerThatCannotBeUsedIsToldApart) {
  TempDirectory directory;
  EXPECT_SAYS(refusal({.urls = {"unix://" + directory.path() + "/none"}}), "is it running");
  EXPECT_SAYS(refusal({.urls = {"redis://127.0.0.1:" + std::to_string(free_port())}}), "Connection refused");
  EXPECT_SAYS(refusal({.urls = {"redis://no-such-host.invalid"}}), "cannot be found");
  EXPECT_SAYS(refusal({.urls = {Talker("HTTP/1.1 400 Bad Request\r\n\r\n").url()}}), "does not speak the protocol");
  EXPECT_SAYS(refusal({.urls = {Talker("-ERR unknown command 'TOUCH'\r\n").url()}}), "Redis 4 or newer");
  EXPECT_SAYS(refusal({.urls = {Talker("-LOADING Redis is loading\r\n").url()}}), "not ready yet");
  EXPECT_SAYS(refusal({.urls = {Talker("").url()}}), "closed the connection");
  // Servers repeat what they do not know.
  EXPECT_SAYS(
      refusal({.urls = {Talker("-ERR unknown command 'AUTH', with args: '" + std::string(kPassword) + "'\r\n").url()},
               .password = kPassword}),
      "password is wrong");

  RedisServer server({.has_port = true});
  EXPECT_SAYS(refusal({.urls = {server.unix_url()}, .cluster = RedisCluster::Yes}), "not part of a cluster");
  EXPECT_SAYS(refusal({.urls = {server.url(), server.unix_url()}}), "not part of a cluster");
  server.stop();
  EXPECT_SAYS(refusal({.urls = {server.url()}, .command_timeout_ns = 50 * kMs}), "does not answer");
  server.go_on();

  RedisServer replica({.more = {"--replicaof", "127.0.0.1 " + std::to_string(server.port())}});
  EXPECT_TRUE(
      comes_true([&] { return refusal({.urls = {replica.unix_url()}}).find("is a replica") != std::string::npos; }));
}

// What servers without a password say to whoever comes from another machine, before they have asked for anything.
TEST(RedisLogin, AServerInProtectedModeIsToldApart) {
  for (const char* const server : {"Redis is running", "Running"}) {
    for (const Talker::Says says : {Talker::Says::Once, Talker::Says::Unasked}) {
      Talker talker("-DENIED " + std::string(server) + " in protected mode because it has no password\r\n", says);
      for (const char* const password : {"", kPassword}) {
        const std::string why = refusal({.urls = {talker.url()}, .password = password});
        EXPECT_SAYS(why, "protected mode");
        EXPECT_SAYS(why, "RedisConfig::password_file");
        EXPECT_EQ(why.find("password is wrong"), std::string::npos) << why;
        const auto store = open_store(
            {.urls = {talker.url()}, .cluster = RedisCluster::No, .password = password, .requires_server = false});
        EXPECT_TRUE(comes_true([&] { return store->status().last_error.find("talker: ") != std::string::npos; }));
        EXPECT_SAYS(store->status().last_error, "protected mode");
      }
    }
  }
}

TEST(RedisLogin, WithoutAServerAStoreMayOpenAllTheSame) {
  RedisServer server;
  server.kill();
  const auto store = open_store({.urls = {server.unix_url()}, .requires_server = false});
  ASSERT_NE(store, nullptr);
  EXPECT_FALSE(store->status().is_usable);
  EXPECT_SAYS(store->status().last_error, "is it running");
  StoreClient client(*store);
  const BatchRun failed = client.put({"quire:a"}, 10);
  EXPECT_TRUE(failed.all(RemoteOutcome::Failed));
  EXPECT_TRUE(client.run({.operation = RemoteOperation::DropBelow, .keys = {"quire:"}}).all(RemoteOutcome::Failed));
  server.start();
  EXPECT_TRUE(comes_true([&] { return client.put({"quire:a"}, 10).all(RemoteOutcome::Ok); }));
  EXPECT_TRUE(store->status().is_usable);
}

TEST(RedisLogin, AThousandRefusedConnectionsAreSpreadOverTime) {
  Talker talker("-ERR max number of clients reached\r\n");
  EXPECT_SAYS(refusal({.urls = {talker.url()}}), "too many clients");
  const auto store = open_store({.urls = {talker.url()}, .requires_server = false});
  StoreClient client(*store);
  const std::uint32_t before = talker.count();
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(client.find({"quire:a"}).all(RemoteOutcome::Failed));
  EXPECT_LT(talker.count(), before + 100) << "a node that refuses is left alone";
}

TEST(RedisLogin, AnAnswerThatComesBeforeTheValueWasSentIsNone) {
  Talker talker("+OK\r\n", Talker::Says::Always);
  const auto store = open_store({.urls = {talker.url()}, .cluster = RedisCluster::No, .requires_server = false});
  StoreClient client(*store);
  EXPECT_TRUE(comes_true([&] { return store->status().is_usable; }));
  const BatchRun run = client.put({"quire:a"}, 20'000'000);
  EXPECT_TRUE(run.all(RemoteOutcome::Failed)) << to_string(run.outcomes[0]);
}

TEST(RedisLogin, TlsChecksTheServerAndShowsACertificate) {
  TempDirectory directory;
  const TestCertificates good = make_certificates(directory.path(), "good", "127.0.0.1");
  const TestCertificates other = make_certificates(directory.path(), "other", "elsewhere.example");
  const std::string port = std::to_string(free_port());
  const auto arguments = [&](const TestCertificates& server) {
    return std::vector<std::string>{"--tls-port",         port,
                                    "--tls-cert-file",    server.certificate_file,
                                    "--tls-key-file",     server.key_file,
                                    "--tls-ca-cert-file", good.ca_file};
  };
  const RedisConfig config{.urls = {"rediss://127.0.0.1:" + port},
                           .ca_file = good.ca_file,
                           .certificate_file = good.certificate_file,
                           .key_file = good.key_file};
  {
    RedisServer server({.more = arguments(good)});
    const auto store = open_store(config);
    StoreClient client(*store);
    const auto keys = numbered_keys("quire:a", 10);
    for (const std::size_t bytes : {10U, 100'000U, 2'000'000U}) {
      EXPECT_TRUE(client.put(keys, bytes).all(RemoteOutcome::Ok));
      EXPECT_TRUE(client.get(keys, bytes).all(RemoteOutcome::Ok));
    }
    EXPECT_TRUE(client.find(numbered_keys("quire:a", 5000)).outcomes[9] == RemoteOutcome::Ok);
    EXPECT_EQ(client.wrong_values(), 0U);
    server.stop();
    // Some may become values all the same, so they have keys of their own.
    const BatchRun late = client.run({.operation = RemoteOperation::Put,
                                      .keys = numbered_keys("quire:late", 10),
                                      .bytes = 4'000'000,
                                      .timeout_ns = 40 * kMs});
    EXPECT_EQ(late.count(RemoteOutcome::Ok), 0U);
    server.go_on();
    EXPECT_TRUE(comes_true([&] { return client.get(keys, 2'000'000).all(RemoteOutcome::Ok); }));
    EXPECT_EQ(client.wrong_values(), 0U);

    RedisConfig wrong = config;
    wrong.ca_file = other.ca_file;
    EXPECT_SAYS(refusal(wrong), "certificate");
    wrong = config;
    wrong.server_name = "elsewhere.example";
    EXPECT_SAYS(refusal(wrong), "certificate");
    wrong = config;
    wrong.certificate_file = wrong.key_file = "";
    EXPECT_SAYS(refusal(wrong), "RedisConfig::certificate_file") << "this server wants to know who asks";
    wrong = config;
    wrong.key_file = other.key_file;
    EXPECT_SAYS(refusal(wrong), "key_file");
    EXPECT_SAYS(refusal(wrong), "mismatch");
    EXPECT_SAYS(refusal({.urls = {"redis://127.0.0.1:" + port}}), "rediss://");
  }
  RedisServer server({.more = arguments(other)});
  EXPECT_SAYS(refusal(config), "certificate");
}

TEST(RedisLogin, AServerWithoutTlsThatIsAskedWithItIsSuspected) {
  RedisServer server({.has_port = true});
  EXPECT_SAYS(refusal({.urls = {"rediss://127.0.0.1:" + std::to_string(server.port())}}), "server without TLS");
}

}  // namespace
}  // namespace quire::testing
