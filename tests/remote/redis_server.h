// SPDX-License-Identifier: Apache-2.0
//
// RedisServer: a server of its own for a test, on a Unix socket and perhaps on a port of the loopback, in a directory
// that goes with it. It is killed at the end, and also when this process ends before.
//
// single-threaded
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/redis_store.h"
#include "remote/redis_login.h"
#include "remote/redis_session.h"
#include "remote/resp.h"
#include "testing/temp_directory.h"

namespace quire::testing {

/// The program that servers are started with; empty: there is none, and tests are skipped.
[[nodiscard]] std::string& server_program();

/// A port of the loopback that nobody listens on.
[[nodiscard]] std::uint16_t free_port();

class RedisServer {
 public:
  struct Options {
    bool has_port = false;
    bool is_cluster = false;             ///< which needs the port
    std::vector<std::string> more = {};  ///< arguments of the program
  };
  explicit RedisServer(Options options);
  RedisServer() : RedisServer(Options{}) {}
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  /// Starts the program, and waits until it answers, whatever it answers.
  void start();
  /// With SIGKILL: nothing is tidied up.
  void kill();
  void stop();  ///< SIGSTOP: it goes on to accept connections, and says nothing
  void go_on();

  /// On a connection of its own. An error of the connection is an answer too.
  RespValue call(std::initializer_list<std::string_view> arguments);

  [[nodiscard]] std::string socket_path() const { return directory_.path() + "/socket"; }
  [[nodiscard]] std::string unix_url() const { return "unix://" + socket_path(); }
  [[nodiscard]] std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] const std::string& directory() const { return directory_.path(); }

 private:
  TempDirectory directory_;
  Options options_;
  std::uint16_t port_ = 0;
  pid_t pid_ = 0;
};

/// Primaries, each with its part of the slots, and a replica of each where that is asked for.
class RedisClusterServers {
 public:
  explicit RedisClusterServers(std::uint32_t primary_count, bool has_replicas = false);

  [[nodiscard]] RedisServer& primary(std::uint32_t index) { return *servers_[index]; }
  [[nodiscard]] RedisServer& replica(std::uint32_t index) { return *servers_[primary_count_ + index]; }
  [[nodiscard]] std::uint32_t primary_count() const { return primary_count_; }
  /// All nodes agree that all slots have a node, and that all nodes are there.
  [[nodiscard]] bool comes_together();
  /// The primary that had the slot at the start.
  [[nodiscard]] std::uint32_t owner_of(std::uint16_t slot) const;
  [[nodiscard]] std::vector<std::string> urls() const;
  [[nodiscard]] std::string id_of(RedisServer& server);
  /// With all its keys, as redis-cli does it: key by key, while others ask for them.
  void move_slot(std::uint16_t slot, RedisServer& from, RedisServer& to);

 private:
  std::uint32_t primary_count_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
};

}  // namespace quire::testing
