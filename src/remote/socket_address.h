// SPDX-License-Identifier: Apache-2.0
//
// SocketAddress: where a socket connects to, and how a name becomes such addresses.
//
// immutable
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "quire/result.h"
#include "remote/redis_url.h"

struct addrinfo;

namespace quire {

/// Of one name; the others are not tried.
inline constexpr std::size_t kAddressesMax = 8;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  friend bool operator==(const SocketAddress& a, const SocketAddress& b);
};

/// Without the port: "127.0.0.1", "::1", or the path.
[[nodiscard]] std::string to_string(const SocketAddress& address);

/// Of a path or of a host in numbers, at once; none for a name, which has to be looked up.
[[nodiscard]] std::optional<SocketAddress> address_in_numbers(const RedisEndpoint& endpoint);

/// Where a name leads: at least one address, at most kAddressesMax, none of them twice, those first that are to be
/// tried first. May take seconds.
using NameLookUp = std::function<Result<std::vector<SocketAddress>>(const RedisEndpoint&)>;
/// Asks the system's resolver, and keeps its order.
[[nodiscard]] Result<std::vector<SocketAddress>> look_up_addresses(const RedisEndpoint& endpoint);
/// The same of what the resolver has answered.
[[nodiscard]] std::vector<SocketAddress> list_addresses(const addrinfo* found);

}  // namespace quire
