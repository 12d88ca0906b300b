// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_refusal.h"

#include <array>
#include <charconv>
#include <utility>

#include "remote/cluster_slots.h"
#include "remote/redis_url.h"
#include "remote/resp.h"

namespace quire {
namespace {

constexpr std::array<std::pair<std::string_view, RedisRefusal>, 17> kBeginnings = {{
    {"MOVED ", RedisRefusal::Moved},
    {"ASK ", RedisRefusal::Ask},
    {"TRYAGAIN", RedisRefusal::TryAgain},
    {"CLUSTERDOWN", RedisRefusal::ClusterDown},
    {"LOADING", RedisRefusal::Loading},
    {"MASTERDOWN", RedisRefusal::Loading},
    {"BUSY", RedisRefusal::Loading},
    {"OOM", RedisRefusal::OutOfMemory},
    {"READONLY", RedisRefusal::ReadOnly},
    {"NOAUTH", RedisRefusal::NotLoggedIn},
    {"WRONGPASS", RedisRefusal::WrongPassword},
    {"NOPERM", RedisRefusal::NoPermission},
    {"WRONGTYPE", RedisRefusal::WrongType},
    {"ERR unknown ", RedisRefusal::UnknownCommand},
    {"ERR max number of clients", RedisRefusal::TooManyClients},
    {"DENIED", RedisRefusal::ProtectedMode},
    {"ERR This instance has cluster support disabled", RedisRefusal::NoCluster},
}};

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

RedisRefusal refusal_of(std::string_view error) {
  for (const auto& [beginning, refusal] : kBeginnings) {
    if (error.starts_with(beginning)) return refusal;
  }
  return RedisRefusal::Other;
}

std::string told_of(std::string_view error) {
  switch (refusal_of(error)) {
    case RedisRefusal::ProtectedMode:
      return std::string("it ") + kProtectedModeText;
    case RedisRefusal::TooManyClients:
      return std::string("it ") + kTooManyClientsText;
    default:
      return printable(error);
  }
}

std::optional<Redirection> parse_redirection(std::string_view error) {
  const std::size_t first = error.find(' ');
  const std::size_t second = first == std::string_view::npos ? first : error.find(' ', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto slot = parse_number<std::uint16_t>(error.substr(first + 1, second - first - 1));
  const std::string_view target = error.substr(second + 1);
  const std::size_t colon = target.rfind(':');  // IPv6 addresses have more of them
  if (!slot || *slot >= kClusterSlots || colon == std::string_view::npos) return std::nullopt;
  const std::string_view host = target.substr(0, colon);
  const auto port = parse_number<std::uint16_t>(target.substr(colon + 1));
  if (!port || *port == 0 || (!host.empty() && !is_host(host))) return std::nullopt;
  return Redirection{.slot = *slot, .host = std::string(host), .port = *port};
}

}  // namespace quire
