// SPDX-License-Identifier: Apache-2.0
//
// RedisSession: a connection with calls that block, for opening a store and for looking at a server. Its errors say
// what to do.
//
// single-threaded; SIGPIPE has to be blocked, see redis_tls.h
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "remote/cluster_slots.h"
#include "remote/redis_connection.h"
#include "remote/redis_login.h"
#include "remote/resp.h"
#include "remote/socket_address.h"

namespace quire {

class RedisSession {
 public:
  static constexpr TimeNs kNoLimit = INT64_MAX;
  /// Connects, to whichever of the endpoint's addresses works first, and logs in. Nothing is waited for beyond the
  /// limit, here or later.
  [[nodiscard]] static Result<std::unique_ptr<RedisSession>> open(const RedisEndpoint& endpoint,
                                                                  const RedisLogin& login, TimeNs limit_ns = kNoLimit);

  /// Sends commands. Each is answered by one read_answer(), in order.
  [[nodiscard]] Status send(std::string_view commands);
  /// Of commands with one answer.
  [[nodiscard]] Result<RespValue> exchange(std::string_view commands);
  [[nodiscard]] Result<RespValue> read_answer();
  /// An error that the server answers is a value too.
  [[nodiscard]] Result<RespValue> call(std::span<const std::string_view> arguments);
  [[nodiscard]] Result<RespValue> call(std::initializer_list<std::string_view> arguments) {
    return call(std::span(arguments.begin(), arguments.size()));
  }

  /// An error, when the answer is one.
  [[nodiscard]] Status ping();

  [[nodiscard]] const RedisEndpoint& endpoint() const { return endpoint_; }
  /// All that the endpoint has, the one first that it is connected to.
  [[nodiscard]] const std::vector<SocketAddress>& addresses() const { return addresses_; }

 private:
  RedisSession(RedisEndpoint endpoint, std::vector<SocketAddress> addresses,
               std::unique_ptr<RedisConnection> connection, const RedisLogin& login, TimeNs limit_ns)
      : endpoint_(std::move(endpoint)),
        addresses_(std::move(addresses)),
        connection_(std::move(connection)),
        login_(login),
        limit_ns_(limit_ns) {}

  [[nodiscard]] Status log_in();
  /// Of one more command.
  [[nodiscard]] TimeNs command_deadline() const;
  [[nodiscard]] Status wait_for(IoCount::State state, TimeNs deadline, const char* what);
  [[nodiscard]] tl::unexpected<Error> lost(const std::string& why) const;
  [[nodiscard]] tl::unexpected<Error> late(const char* what) const;

  RedisEndpoint endpoint_;
  std::vector<SocketAddress> addresses_;
  std::unique_ptr<RedisConnection> connection_;
  const RedisLogin& login_;
  const TimeNs limit_ns_;
  RespCollector collector_;
  std::string input_;
  bool has_answered_ = false;
};

/// What a store has found out about the servers.
struct RedisTopology {
  bool is_cluster = false;
  ClusterMap map;                             ///< of a cluster
  RedisEndpoint seed = {};                    ///< that has told all this
  std::vector<SocketAddress> seed_addresses;  ///< the one first that worked
};

/// Whether the node can be used as the configuration says, and what it belongs to.
[[nodiscard]] Result<RedisTopology> probe_redis(RedisSession& session, const RedisConfig& config,
                                                const RedisLogin& login);

/// Asks the seeds one after the other, until one can be used.
[[nodiscard]] Result<RedisTopology> probe_redis_seeds(const RedisConfig& config, const RedisLogin& login);

/// The nodes that have the keys.
[[nodiscard]] std::vector<RedisEndpoint> nodes_of(const RedisTopology& topology, const RedisLogin& login);

}  // namespace quire
