// SPDX-License-Identifier: Apache-2.0
//
// The remote tier of replays, and the servers of it, as a command line says them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host_tier.h"
#include "quire/cache.h"
#include "quire/config.h"
#include "quire/redis_store.h"
#include "quire/result.h"

namespace quire {

/// The values of --remote, a list, and of the options that say how to connect, where they were given.
struct RemoteServerOptions {
  std::optional<std::string> remote;
  std::optional<std::string> user;
  std::optional<std::string> password_file;
  std::optional<std::string> ca_file;
  std::optional<std::string> certificate_file;
  std::optional<std::string> key_file;
  std::optional<std::string> server_name;
  std::optional<std::string> key_prefix;
};

struct RemoteTierOptions {
  RemoteServerOptions server;
  std::optional<std::string> extent_bytes;
  std::optional<std::string> write_policy;
  std::optional<std::string> write_bytes_per_day;
  std::optional<std::uint32_t> max_age_s;
  bool keep = false;
};

/// The variable of the environment that has the password where no file is named.
inline constexpr const char* kRemotePasswordVariable = "QUIRE_REMOTE_PASSWORD";

/// What is wrong with servers, in terms of the command line instead of the library's. It names no option that there is
/// not: hints about fields that no option sets are left out.
[[nodiscard]] std::string in_options(const std::string& message);

/// Needs --remote. `password` is what the environment has, or null.
[[nodiscard]] Result<RedisConfig> parse_remote_servers(const RemoteServerOptions& options, const char* password);

/// The remote tier behind the host tier of a replay. Off without urls.
struct RemoteTierSettings {
  RedisConfig servers;
  std::string key_prefix;  ///< empty: one that nobody else has
  std::uint64_t extent_bytes = RemoteConfig{}.extent_bytes;
  WritePolicy write_policy = WritePolicy::WriteThrough;
  std::uint64_t write_bytes_per_day = 0;  ///< 0: no limit
  std::uint32_t max_age_s = 0;            ///< 0: none
  bool keep = false;                      ///< what was written stays there

  [[nodiscard]] bool is_on() const { return !servers.urls.empty(); }
  /// Of a cache whose keys begin so.
  [[nodiscard]] RemoteConfig config_for(const std::string& prefix) const;
};

/// Off when nothing was given. Needs --remote and a host tier.
[[nodiscard]] Result<RemoteTierSettings> parse_remote_tier(const RemoteTierOptions& options, const char* password,
                                                           const HostTierSettings& host);

/// "quire:replay-0f3a…": a new one with every call. Users of a server that may have the keys of caches, "quire:*", may
/// have these, and no cache looks for them.
[[nodiscard]] std::string own_key_prefix();
/// Drops every value whose key begins with a prefix that own_key_prefix() has made.
[[nodiscard]] Status drop_own_keys(const RedisConfig& servers, const std::string& prefix);

}  // namespace quire
