// SPDX-License-Identifier: Apache-2.0
#include "remote_tier.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "amounts.h"
#include "quire/remote_store.h"

namespace quire {

namespace {

// Replays wait for their bytes, so that what they find does not depend on how fast a machine is.
constexpr TimeNs kPatienceNs = 60'000'000'000;

const char* given_without_urls(const RemoteServerOptions& options) {
  return options.user               ? "--remote-user"
         : options.password_file    ? "--remote-password-file"
         : options.ca_file          ? "--remote-ca-file"
         : options.certificate_file ? "--remote-certificate-file"
         : options.key_file         ? "--remote-key-file"
         : options.server_name      ? "--remote-server-name"
         : options.key_prefix       ? "--remote-key-prefix"
                                    : nullptr;
}

const char* given_without_urls(const RemoteTierOptions& options) {
  return options.extent_bytes          ? "--remote-extent-bytes"
         : options.write_policy        ? "--remote-write-policy"
         : options.write_bytes_per_day ? "--remote-write-bytes-per-day"
         : options.max_age_s           ? "--remote-max-age-s"
         : options.keep                ? "--remote-keep"
                                       : given_without_urls(options.server);
}

// How a command line says a field of RedisConfig or RemoteConfig; null: it cannot.
struct FieldOption {
  std::string_view field;
  const char* option;
};
constexpr std::array<FieldOption, 20> kFieldOptions = {{
    {"urls", "--remote"},
    {"user", "--remote-user"},
    {"password", kRemotePasswordVariable},
    {"password_file", "--remote-password-file"},
    {"ca_file", "--remote-ca-file"},
    {"certificate_file", "--remote-certificate-file"},
    {"key_file", "--remote-key-file"},
    {"server_name", "--remote-server-name"},
    {"key_prefix", "--remote-key-prefix"},
    {"extent_bytes", "--remote-extent-bytes"},
    {"write_policy", "--remote-write-policy"},
    {"write_bytes_per_day", "--remote-write-bytes-per-day"},
    {"max_age_s", "--remote-max-age-s"},
    {"access", nullptr},
    {"cluster", nullptr},
    {"is_read_only", nullptr},
    {"is_required", nullptr},
    {"requires_server", nullptr},
    {"max_age_ns", "--remote-max-age-s"},
    {"store", nullptr},
}};
// Messages have hints, one after the other, behind what is wrong.
constexpr std::string_view kBetweenHints = "; ";

// Behind a name: of remote.user.example or remote.user:6379, not of the end of a sentence.
bool goes_on_as_host(std::string_view rest) {
  const auto is_in_host = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return rest.size() > 1 && (rest.starts_with('.') || rest.starts_with(':')) && is_in_host(rest[1]);
}

// `has_options` becomes false when the part is about a field that no option sets.
std::string part_in_options(std::string_view part, bool& has_options) {
  constexpr std::array<std::string_view, 3> kOwners = {"RedisConfig::", "RemoteConfig::", "remote."};
  const auto is_in_name = [](char c) { return c == '_' || (c >= 'a' && c <= 'z'); };
  std::string told;
  while (!part.empty()) {
    const auto owner = std::ranges::find_if(kOwners, [&](std::string_view each) { return part.starts_with(each); });
    // Not of a host that is called remote.example.
    const bool is_inside = !told.empty() && (is_in_name(told.back()) ||
                                             std::string_view(".-/@:").find(told.back()) != std::string_view::npos);
    if (owner == kOwners.end() || is_inside) {
      told += part.front();
      part.remove_prefix(1);
      continue;
    }
    const std::string_view rest = part.substr(owner->size());
    const std::string_view name(rest.begin(), std::ranges::find_if_not(rest, is_in_name));
    const auto* const known = std::ranges::find(kFieldOptions, name, &FieldOption::field);
    if (*owner == "remote." && (known == kFieldOptions.end() || goes_on_as_host(rest.substr(name.size())))) {
      told += *owner;
      part = rest;
      continue;
    }
    const bool is_option = known != kFieldOptions.end() && known->option != nullptr;
    told += is_option ? std::string_view(known->option) : name;
    has_options = has_options && is_option;
    part = rest.substr(name.size());
  }
  return told;
}

Result<std::uint64_t> amount_for(const char* option, const std::string& text) {
  const Result<std::uint64_t> amount = parse_amount(text);
  if (!amount) return fail(amount.error().code, fmt::format("{}: {}", option, amount.error().message));
  return *amount;
}

}  // namespace

std::string in_options(const std::string& message) {
  std::string told;
  for (std::size_t begin = 0; begin <= message.size();) {
    const std::size_t end = std::min(message.find(kBetweenHints, begin), message.size());
    bool has_options = true;
    const std::string part = part_in_options(std::string_view(message).substr(begin, end - begin), has_options);
    // A hint about a field that no option sets is none here. What is wrong is said in any case.
    if (begin == 0) told = part;
    if (begin > 0 && has_options) told.append(kBetweenHints).append(part);
    begin = end + kBetweenHints.size();
  }
  return told;
}

Result<RedisConfig> parse_remote_servers(const RemoteServerOptions& options, const char* password) {
  if (!options.remote) {
    const char* const given = given_without_urls(options);
    return fail(ErrorCode::InvalidArgument,
                fmt::format("{} needs --remote, the url of a server, such as redis://127.0.0.1:6379 or unix:///path",
                            given == nullptr ? "this" : given));
  }
  const Result<std::vector<std::string>> urls = parse_names(*options.remote);
  if (!urls) return fail(urls.error().code, "--remote: " + urls.error().message);
  RedisConfig config{.urls = *urls,
                     .user = options.user.value_or(""),
                     .password_file = options.password_file.value_or(""),
                     .ca_file = options.ca_file.value_or(""),
                     .certificate_file = options.certificate_file.value_or(""),
                     .key_file = options.key_file.value_or(""),
                     .server_name = options.server_name.value_or("")};
  if (config.password_file.empty() && password != nullptr) config.password = password;
  return config;
}

RemoteConfig RemoteTierSettings::config_for(const std::string& prefix) const {
  return {.urls = servers.urls,
          .user = servers.user,
          .password = servers.password,
          .password_file = servers.password_file,
          .ca_file = servers.ca_file,
          .certificate_file = servers.certificate_file,
          .key_file = servers.key_file,
          .server_name = servers.server_name,
          .max_age_s = max_age_s,
          .key_prefix = prefix,
          .extent_bytes = extent_bytes,
          .find_timeout_ns = kPatienceNs,
          .load_timeout_ns = kPatienceNs,
          .store_timeout_ns = kPatienceNs,
          .write_policy = write_policy,
          .write_bytes_per_day = write_bytes_per_day};
}

Result<RemoteTierSettings> parse_remote_tier(const RemoteTierOptions& options, const char* password,
                                             const HostTierSettings& host) {
  RemoteTierSettings settings;
  if (!options.server.remote) {
    const char* const given = given_without_urls(options);
    if (given == nullptr) return settings;
    return fail(ErrorCode::InvalidArgument,
                fmt::format("{} needs --remote, the url of a server: without, there is no remote tier", given));
  }
  QUIRE_TRY_ASSIGN(settings.servers, parse_remote_servers(options.server, password));
  if (!host.is_on()) {
    return fail(ErrorCode::InvalidArgument,
                "--remote needs --host-bytes: pages go to servers, and come back, through a host tier");
  }
  if (options.server.key_prefix) {
    settings.key_prefix = *options.server.key_prefix;
    if (settings.key_prefix.empty()) return fail(ErrorCode::InvalidArgument, "--remote-key-prefix is empty");
    settings.servers.key_prefix = settings.key_prefix + ":";
  }
  if (options.extent_bytes) {
    QUIRE_TRY_ASSIGN(settings.extent_bytes, amount_for("--remote-extent-bytes", *options.extent_bytes));
  }
  if (options.write_policy) {
    QUIRE_TRY_ASSIGN(settings.write_policy, parse_write_policy("--remote-write-policy", *options.write_policy));
  }
  if (options.write_bytes_per_day) {
    QUIRE_TRY_ASSIGN(settings.write_bytes_per_day,
                     amount_for("--remote-write-bytes-per-day", *options.write_bytes_per_day));
  }
  settings.max_age_s = options.max_age_s.value_or(0);
  settings.keep = options.keep || options.server.key_prefix;
  return settings;
}

std::string own_key_prefix() {
  std::random_device draws;
  return fmt::format("quire:replay-{:08x}{:08x}", draws(), draws());
}

Status drop_own_keys(const RedisConfig& servers, const std::string& prefix) {
  const auto may_stay = [&](const std::string& why) {
    return fail(
        ErrorCode::Unavailable,
        fmt::format("the values of the replay could not be dropped: {}. Some may be left, under keys that begin "
                    "with {}: servers give them up when they need room",
                    why, prefix));
  };
  RedisConfig own = servers;
  own.key_prefix = prefix + ":";
  const auto store = open_redis_store(own);
  if (!store) return may_stay(store.error().message);
  std::array<RemoteObject, 1> objects = {RemoteObject{.key = prefix}};
  const RemoteBatch batch{
      .id = 1, .operation = RemoteOperation::DropBelow, .timeout_ns = kPatienceNs, .objects = objects};
  const bool is_taken = (*store)->try_submit(batch);
  std::array<RemoteAnswer, 1> answers;
  while (is_taken && (*store)->poll(answers).empty()) {
    pollfd event{.fd = (*store)->event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&event, 1, 100);
  }
  if (objects[0].outcome == RemoteOutcome::Ok) return {};
  return may_stay((*store)->status().last_error);
}

}  // namespace quire
