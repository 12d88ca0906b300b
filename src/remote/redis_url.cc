// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_url.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace quire {
namespace {

constexpr std::uint16_t kDefaultPort = 6379;
constexpr std::size_t kHostBytesMax = 255;
// What the system has room for in the address of a socket.
constexpr std::size_t kPathBytesMax = 107;

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

constexpr std::array<std::string_view, 3> kSchemes = {"redis://", "rediss://", "unix://"};

// What a message may repeat of a url: nothing that a password may be part of. That is what stands before an '@', as in
// redis://user:password@host, even without a ':', and what stands behind a '?', as in redis://host?password=…. With
// both it cannot be told which of them ends where.
std::string shown(std::string_view url) {
  const auto scheme = std::ranges::find_if(kSchemes, [&](std::string_view each) { return url.starts_with(each); });
  std::string out(scheme == kSchemes.end() ? "" : *scheme);
  std::string_view rest = url.substr(out.size());
  const std::size_t query = rest.find('?');
  // The path of a socket may have an '@'.
  const bool is_path = out == "unix://" && rest.starts_with('/');
  const std::size_t at = is_path ? std::string_view::npos : rest.rfind('@');
  if (at != std::string_view::npos && query != std::string_view::npos) return out + "…";
  if (at != std::string_view::npos) return out + "…" + std::string(rest.substr(at));
  out += rest.substr(0, query);
  return query == std::string_view::npos ? out : out + "?…";
}

tl::unexpected<Error> wrong_url(std::string_view url, const std::string& why) {
  return fail(ErrorCode::InvalidArgument,
              "the url '" + shown(url) + "' " + why +
                  ": urls of servers are redis://[user@]host[:port], rediss://… for TLS, or unix:///path");
}

tl::unexpected<Error> has_password(std::string_view url, const std::string& where) {
  return wrong_url(url, where +
                            ", and urls end up in logs: put the password into a file and its path into "
                            "RedisConfig::password_file, or give it as RedisConfig::password");
}

}  // namespace

std::string to_string(const RedisEndpoint& endpoint) {
  if (endpoint.is_unix) return endpoint.host;
  const bool has_colon = endpoint.host.find(':') != std::string::npos;
  return (has_colon ? "[" + endpoint.host + "]" : endpoint.host) + ":" + std::to_string(endpoint.port);
}

bool is_host(std::string_view text) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_' || c == ':' || c == '%';
  };
  return !text.empty() && text.size() <= kHostBytesMax && std::ranges::all_of(text, is_allowed);
}

Result<RedisUrl> parse_redis_url(std::string_view url) {
  // First of all: a password may stand anywhere before the last '@' or behind a '?', even where everything else is
  // wrong.
  std::string_view rest = url;
  const std::size_t scheme_end = rest.find("://");
  const std::size_t query = rest.find('?');
  const std::size_t at = rest.rfind('@');
  const bool is_path = rest.starts_with("unix:///");
  if (query != std::string_view::npos && rest.find('=', query) != std::string_view::npos) {
    return has_password(url, "has a '?name=value', where others have a password");
  }
  if (at != std::string_view::npos && !is_path) {
    const std::size_t begin = scheme_end == std::string_view::npos || scheme_end > at ? 0 : scheme_end + 3;
    if (rest.substr(begin, at - begin).find(':') != std::string_view::npos)
      return has_password(url, "has a password in it");
  }

  RedisUrl out;
  if (take_prefix(rest, "unix://")) {
    if (!rest.starts_with('/')) return wrong_url(url, "has no absolute path");
    if (rest.size() > kPathBytesMax)
      return wrong_url(url, "has a path of more than 107 bytes, which no socket can have");
    out.endpoint = {.host = std::string(rest), .is_unix = true};
    return out;
  }
  out.endpoint.is_tls = rest.starts_with("rediss://");
  if (!take_prefix(rest, "rediss://") && !take_prefix(rest, "redis://")) {
    return wrong_url(url, "begins with none of redis://, rediss:// and unix://");
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find('/') != std::string_view::npos || rest.find('?') != std::string_view::npos) {
    return wrong_url(url, "has something behind the port, such as the number of a database, which quire does not use");
  }
  if (const std::size_t user_end = rest.rfind('@'); user_end != std::string_view::npos) {
    out.user = std::string(rest.substr(0, user_end));
    rest.remove_prefix(user_end + 1);
  }
  std::string_view host = rest;
  std::string_view port;
  bool has_port = false;
  if (rest.starts_with('[')) {
    const std::size_t close = rest.find(']');
    if (close == std::string_view::npos) return wrong_url(url, "has a '[' without a ']'");
    host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    has_port = take_prefix(rest, ":");
    if (!has_port && !rest.empty()) return wrong_url(url, "has something else than a port behind the ']'");
    port = rest;
  } else if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) {
    host = rest.substr(0, colon);
    port = rest.substr(colon + 1);
    has_port = true;
    if (port.find(':') != std::string_view::npos)
      return wrong_url(url, "has more than one ':': put IPv6 addresses in []");
  }
  if (!is_host(host)) return wrong_url(url, "has no host, or one that no host is called");
  const std::optional<std::uint16_t> number = has_port ? parse_port(port) : kDefaultPort;
  if (!number) return wrong_url(url, "has a port that is not one of 1 to 65535");
  out.endpoint.host = std::string(host);
  out.endpoint.port = *number;
  return out;
}

}  // namespace quire
