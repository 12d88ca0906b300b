// SPDX-License-Identifier: Apache-2.0
#include "remote/socket_address.h"

#include <netdb.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>

namespace quire {
namespace {

Result<std::vector<SocketAddress>> resolve(const RedisEndpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* answer = nullptr;
  const int status = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &answer);
  if (status != 0) {
    return fail(ErrorCode::Unavailable, "the host '" + endpoint.host + "' cannot be found: " + gai_strerror(status));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(answer, &freeaddrinfo);
  return list_addresses(found.get());
}

}  // namespace

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  return a.bytes == b.bytes && std::memcmp(&a.storage, &b.storage, a.bytes) == 0;
}

std::string to_string(const SocketAddress& address) {
  const auto* const any = reinterpret_cast<const sockaddr*>(&address.storage);
  if (any->sa_family == AF_UNIX) return reinterpret_cast<const sockaddr_un*>(any)->sun_path;
  std::array<char, NI_MAXHOST> text;
  if (getnameinfo(any, address.bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return text.data();
}

std::optional<SocketAddress> address_in_numbers(const RedisEndpoint& endpoint) {
  if (endpoint.is_unix) {
    SocketAddress address;
    auto* const path = reinterpret_cast<sockaddr_un*>(&address.storage);
    path->sun_family = AF_UNIX;
    if (endpoint.host.size() >= sizeof(path->sun_path)) return std::nullopt;
    std::ranges::copy(endpoint.host, std::begin(path->sun_path));
    address.bytes = sizeof(sockaddr_un);
    return address;
  }
  const auto addresses = resolve(endpoint, AI_NUMERICHOST);
  if (!addresses.has_value()) return std::nullopt;
  return addresses->front();
}

Result<std::vector<SocketAddress>> look_up_addresses(const RedisEndpoint& endpoint) {
  return resolve(endpoint, 0);
}

std::vector<SocketAddress> list_addresses(const addrinfo* found) {
  std::vector<SocketAddress> addresses;
  for (; found != nullptr && addresses.size() < kAddressesMax; found = found->ai_next) {
    SocketAddress address{.bytes = found->ai_addrlen};
    std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
    // A file of hosts may name an address in several lines.
    if (std::ranges::find(addresses, address) == addresses.end()) addresses.push_back(address);
  }
  return addresses;
}

}  // namespace quire
