// SPDX-License-Identifier: Apache-2.0
//
// What a server means by an error.
//
// immutable
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

enum class RedisRefusal : std::uint8_t {
  Moved,           ///< another node has the slot
  Ask,             ///< another node has the key, for this once
  TryAgain,        ///< keys are on their way to another node
  ClusterDown,     ///< nobody has the slot
  Loading,         ///< the node is not ready yet
  OutOfMemory,     ///< of the server; other keys may have to go first
  ReadOnly,        ///< a replica
  NotLoggedIn,     ///< without the password
  WrongPassword,   ///< or no such user
  NoPermission,    ///< the user may not
  WrongType,       ///< the value is none of ours
  UnknownCommand,  ///< the server is too old, or no Redis
  TooManyClients,
  ProtectedMode,  ///< it has no password, and serves its own machine only
  NoCluster,      ///< a question about a cluster to a server without one
  Other,
};

[[nodiscard]] RedisRefusal refusal_of(std::string_view error);

/// Behind the name of the server. With ProtectedMode, a password that an engine has is not even looked at.
inline constexpr const char* kTooManyClientsText = "has too many clients already: raise its maxclients";
inline constexpr const char* kProtectedModeText =
    "is in protected mode: it has no password, so it takes nobody from another machine. Give it users with passwords "
    "(aclfile, or requirepass), and engines theirs (RedisConfig::password_file); or, where a firewall lets nobody else "
    "reach it, start it with protected-mode no";

/// What can be told of an error behind the name of the node, with what to do where that is known.
[[nodiscard]] std::string told_of(std::string_view error);

/// Of Moved and Ask: where to.
struct Redirection {
  std::uint16_t slot = 0;
  std::string host = {};  ///< empty: the host of the node that says so
  std::uint16_t port = 0;
};

/// None when it is not one, or its parts cannot be.
[[nodiscard]] std::optional<Redirection> parse_redirection(std::string_view error);

}  // namespace quire
