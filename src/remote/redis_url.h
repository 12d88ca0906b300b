// SPDX-License-Identifier: Apache-2.0
//
// RedisEndpoint: where a server listens, out of a url.
//
// immutable
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire {

struct RedisEndpoint {
  std::string host = {};  ///< name or address; of a socket in the file system, its path
  std::uint16_t port = 0;
  bool is_unix = false;
  bool is_tls = false;
  friend bool operator==(const RedisEndpoint&, const RedisEndpoint&) = default;
};

/// "host:port", "[::1]:6379" or the path.
[[nodiscard]] std::string to_string(const RedisEndpoint& endpoint);

struct RedisUrl {
  RedisEndpoint endpoint;
  std::string user = {};
};

/// The message of an error has nothing of a password that stands in the url: neither what stands before an '@', nor
/// what stands behind a '?'.
[[nodiscard]] Result<RedisUrl> parse_redis_url(std::string_view url);

/// A host as a server may name another: a name or an address.
[[nodiscard]] bool is_host(std::string_view text);

}  // namespace quire
