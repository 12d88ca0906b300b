// SPDX-License-Identifier: Apache-2.0
//
// RedisLogin: what all connections of a store begin with, and how long they may take.
//
// immutable
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "quire/result.h"
#include "remote/redis_connection.h"
#include "remote/redis_tls.h"
#include "remote/redis_url.h"
#include "remote/socket_address.h"

namespace quire {

struct RedisLogin {
  std::vector<RedisEndpoint> seeds;  ///< those of the configuration
  std::string user = {};
  std::string password = {};  ///< empty: none is sent
  std::string server_name = {};
  std::unique_ptr<TlsContext> tls;  ///< none without TLS
  TimeNs connect_timeout_ns = 0;
  TimeNs command_timeout_ns = 0;
  NameLookUp look_up = look_up_addresses;  ///< tests have names of their own

  [[nodiscard]] RedisConnection::Options options_for(const RedisEndpoint& endpoint) const {
    return {.unanswered_ns_max = connect_timeout_ns + command_timeout_ns,
            .tls = endpoint.is_tls ? tls.get() : nullptr,
            .server_name = server_name.empty() ? endpoint.host : server_name};
  }
  /// Appends what logs in; false: nothing has to be sent.
  bool append_login(std::string& text) const;
};

/// Checks all of the configuration that can be checked without a server, and reads the files that it names.
[[nodiscard]] Result<RedisLogin> make_redis_login(const RedisConfig& config);

}  // namespace quire
