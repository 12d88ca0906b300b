// SPDX-License-Identifier: Apache-2.0
//
// ScriptedServer: a port of the loopback where each command is answered with what a test makes of it: for what real
// servers say seldom, or never.
//
// thread-safe
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"

namespace quire::testing {

class ScriptedServer {
 public:
  using Command = std::vector<std::string>;
  /// What is said to a command, of any connection, one at a time. Nothing: nothing is said.
  using Script = std::function<std::string(const Command& command)>;
  struct Options {
    bool is_endless = false;  ///< each answer is said again and again, until nobody listens
    std::string early = {};   ///< is said, not empty, to a command of more than 100,000 bytes as soon as it has begun
  };
  ScriptedServer(Options options, Script script);
  explicit ScriptedServer(Script script) : ScriptedServer(Options{}, std::move(script)) {}
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string url() const { return "redis://" + where(); }
  [[nodiscard]] std::string where() const { return "127.0.0.1:" + std::to_string(port_); }
  /// Commands with this name so far.
  [[nodiscard]] std::uint32_t count(const std::string& name);

 private:
  void accept_all();
  void serve(int client);
  [[nodiscard]] bool answer(int client, const Command& command);

  const Options options_;
  const Script script_;
  std::uint16_t port_;
  Descriptor listener_;
  Mutex mutex_;  // guards what follows, and calls of the script
  std::vector<std::string> names_ QUIRE_GUARDED_BY(mutex_);
  std::vector<int> clients_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ QUIRE_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

/// Of a server without keys.
[[nodiscard]] std::string plain_answer(const ScriptedServer::Command& command);
/// The same of a node of a cluster; the slots are those of one node after the other, in equal parts.
[[nodiscard]] std::string cluster_answer(const ScriptedServer::Command& command,
                                         const std::vector<std::uint16_t>& ports);

}  // namespace quire::testing
