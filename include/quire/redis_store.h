// SPDX-License-Identifier: Apache-2.0
//
// A RemoteStore on Valkey or Redis: one server, or a cluster of them. Each node has three connections, so that a
// question never waits behind a value, and what somebody waits for not behind what nobody does. A node that is late or
// fails twice in a row is left alone for a while; all others go on. docs/remote.md says how to run the servers.
//
// A store has a thread of its own, which does all the work; names of machines are looked up by others, for which nobody
// waits who destroys a store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/remote_store.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

/// Auto asks the server. A user that may not call CLUSTER SLOTS has to say it.
enum class RedisCluster : std::uint8_t { Auto, Yes, No };

struct RedisConfig {
  /// redis://[user@]host[:port], rediss://… for TLS, unix:///path; an IPv6 address in brackets. Several are nodes of
  /// one cluster, any of them: the others are found. A password in a url is refused, because urls end up in logs. A
  /// name may have several addresses, up to eight of which are tried in turn; they are one node.
  std::vector<std::string> urls = {};
  RedisCluster cluster = RedisCluster::Auto;
  std::string user = {};           ///< empty: that of the url, or the server's default user
  std::string password = {};       ///< in no message; empty: that of the file, or none
  std::string password_file = {};  ///< its first line is the password

  // Of rediss://. The server's certificate is always checked, and the name that it is for.
  std::string ca_file = {};           ///< PEM; empty: those that the system trusts
  std::string certificate_file = {};  ///< PEM; empty: servers are not told who is asking
  std::string key_file = {};
  std::string server_name = {};  ///< in the certificates of all nodes; empty: the host of the url or of the cluster

  /// Keys begin with it; what opening tries is tried below it, as the server may allow nothing else.
  std::string key_prefix = "quire:";
  TimeNs connect_timeout_ns = 1'000'000'000;  ///< for all addresses of a name together; looking it up comes before
  /// A node that says nothing for so long although it was asked has failed. Also the limit of batches without one.
  TimeNs command_timeout_ns = 1'000'000'000;
  std::uint64_t window_bytes = std::uint64_t{8} << 20U;  ///< of values in flight, for each connection
  std::uint32_t batch_count_max = 256;                   ///< that were not polled yet
  std::uint32_t object_count_max = 65'536;               ///< of these batches together; no batch can have more
  TimeNs max_age_ns = 0;                                 ///< of values, then the server drops them; 0: none

  // When a node is left alone, and for how long. One that is well and refuses values is sent none for as long.
  std::uint32_t failures_in_a_row = 2;
  TimeNs pause_ns_min = 50'000'000;
  TimeNs pause_ns_max = 5'000'000'000;

  /// Nothing is ever written: Put and Drop fail without being sent, and opening tries only what reading needs. For
  /// users of the server that may only read.
  bool is_read_only = false;
  /// False: when no server can be used now, the store opens all the same, fails all batches, and tries again and again.
  /// status() says why. What is wrong with the configuration itself is an error in any case.
  bool requires_server = true;
};

/// Connects, and makes sure that what the store needs works: the error says what does not, and what to do about it.
[[nodiscard]] Result<std::unique_ptr<RemoteStore>> open_redis_store(const RedisConfig& config);

// ── what a server has ────────────────────────────────────────────────────────────────────────────────────────────────

struct RedisScanPage {
  struct Key {
    std::string key = {};
    std::uint64_t value_bytes = 0;
  };
  std::string node = {};  ///< "host:port" or the path of a socket
  std::vector<Key> keys = {};
  std::vector<std::string> foreign_keys = {};  ///< with values of another type
};

struct RedisScanReport {
  std::uint32_t node_count = 0;
  std::uint64_t key_count = 0;
  std::uint64_t value_bytes = 0;
  std::uint64_t foreign_count = 0;  ///< keys with values of another type, not among key_count
  bool is_complete = true;          ///< false: stopped by on_page
};

/// Every key that begins with the prefix and was there all the time, with the length of its value; others may be among
/// them, or be there twice. `on_page` is called by another thread while this one waits; once it returns false, nothing
/// more is asked. Nothing is written.
[[nodiscard]] Result<RedisScanReport> scan_redis_store(const RedisConfig& config, std::string_view key_prefix,
                                                       const std::function<bool(const RedisScanPage&)>& on_page);

}  // namespace quire
