// SPDX-License-Identifier: Apache-2.0
//
// A server for a remote tier that lives no longer than who started it: on a Unix socket in a temporary directory, in
// memory only. It ends with this object, and whatever becomes of the process, with that.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "disk_tier.h"
#include "quire/result.h"

namespace quire {

class LocalServer {
 public:
  struct Options {
    std::string program;  ///< as find() gives it
    std::uint64_t maxmemory_bytes = 0;
  };
  /// valkey-server or redis-server among the programs of PATH; empty: neither is installed.
  [[nodiscard]] static std::string find();
  /// Returns once it can be connected to.
  [[nodiscard]] static Result<LocalServer> start(const Options& options);

  LocalServer(LocalServer&& other) noexcept
      : directory_(std::move(other.directory_)), process_(std::exchange(other.process_, -1)) {}
  LocalServer& operator=(LocalServer&&) = delete;
  ~LocalServer();

  [[nodiscard]] std::string socket_path() const { return directory_.path() + "/kv.sock"; }
  [[nodiscard]] std::string url() const { return "unix://" + socket_path(); }
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  LocalServer(TemporaryDirectory directory, pid_t process) : directory_(std::move(directory)), process_(process) {}
  TemporaryDirectory directory_;
  pid_t process_ = -1;
};

}  // namespace quire
