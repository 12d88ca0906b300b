// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_login.h"

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/system_error.h"
#include "remote/resp.h"

namespace quire {
namespace {

tl::unexpected<Error> wrong_config(const std::string& what) {
  return fail(ErrorCode::InvalidArgument, "RedisConfig::" + what);
}

Result<std::string> read_password(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::string password;
  if (!file.is_open()) {
    return wrong_config("password_file is '" + path + "', which cannot be opened: " + errno_text(errno));
  }
  std::getline(file, password);
  if (password.ends_with('\r')) password.pop_back();
  if (password.empty())
    return wrong_config("password_file is '" + path + "', whose first line is empty or cannot be read");
  return password;
}

Status check_numbers(const RedisConfig& config) {
  if (config.connect_timeout_ns <= 0) return wrong_config("connect_timeout_ns is not positive");
  if (config.command_timeout_ns <= 0) return wrong_config("command_timeout_ns is not positive");
  if (config.window_bytes == 0) return wrong_config("window_bytes is 0: nothing could be in flight");
  if (config.batch_count_max == 0 || config.batch_count_max > 65'536) {
    return wrong_config("batch_count_max is not one of 1 to 65536");
  }
  if (config.object_count_max == 0 || config.object_count_max > (1U << 24U)) {
    return wrong_config("object_count_max is not one of 1 to 16777216");
  }
  if (config.max_age_ns != 0 && config.max_age_ns < 1'000'000) {
    return wrong_config("max_age_ns is less than a millisecond; 0 is no limit");
  }
  if (config.failures_in_a_row == 0) return wrong_config("failures_in_a_row is 0: no node would ever be asked");
  if (config.pause_ns_min <= 0 || config.pause_ns_max < config.pause_ns_min) {
    return wrong_config("pause_ns_min is not positive, or more than pause_ns_max");
  }
  // Of a cache, with the ':' behind it.
  if (config.key_prefix.size() > (kRemoteKeyBytesMax / 2) + 1) {
    return wrong_config("key_prefix is longer than 129 bytes");
  }
  return {};
}

}  // namespace

bool RedisLogin::append_login(std::string& text) const {
  if (password.empty()) return false;
  if (user.empty()) {
    append_command(text, {"AUTH", password});
  } else {
    append_command(text, {"AUTH", user, password});
  }
  return true;
}

Result<RedisLogin> make_redis_login(const RedisConfig& config) {
  QUIRE_TRY(check_numbers(config));
  if (config.urls.empty()) return wrong_config("urls is empty: name a server, such as redis://cache.example:6379");
  RedisLogin login{.user = config.user,
                   .password = config.password,
                   .server_name = config.server_name,
                   .connect_timeout_ns = config.connect_timeout_ns,
                   .command_timeout_ns = config.command_timeout_ns};
  for (const std::string& url : config.urls) {
    QUIRE_TRY_ASSIGN(RedisUrl parsed, parse_redis_url(url));
    if (!parsed.user.empty() && !login.user.empty() && parsed.user != login.user) {
      return wrong_config("urls and RedisConfig::user name two users, which differ");
    }
    if (!parsed.user.empty()) login.user = std::move(parsed.user);
    login.seeds.push_back(std::move(parsed.endpoint));
    if (login.seeds.back().is_tls != login.seeds.front().is_tls) {
      return wrong_config("urls has nodes with TLS and without: a cluster has it everywhere or nowhere");
    }
  }
  if (config.cluster == RedisCluster::No && login.seeds.size() > 1) {
    return wrong_config(
        "urls has several, and RedisConfig::cluster says that there is no cluster: several urls are nodes of one");
  }
  if (!config.password.empty() && !config.password_file.empty()) {
    return wrong_config("password and RedisConfig::password_file are both set: one of them is the password");
  }
  if (!config.password_file.empty()) {
    QUIRE_TRY_ASSIGN(login.password, read_password(config.password_file));
  }
  if (!login.user.empty() && login.password.empty()) {
    // It is not repeated: redis://password@host names a user, for us, and its author may have meant something else.
    return wrong_config(
        "user, or the part of a url before the '@', names a user without a password: set RedisConfig::password_file or "
        "RedisConfig::password");
  }
  if (login.seeds.front().is_tls) {
    QUIRE_TRY_ASSIGN(login.tls, TlsContext::load(config));
  } else if (!config.ca_file.empty() || !config.certificate_file.empty() || !config.key_file.empty()) {
    return wrong_config("urls has redis:// or unix://, and files for TLS are set: rediss:// is TLS");
  }
  return login;
}

}  // namespace quire
