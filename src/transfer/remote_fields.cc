// SPDX-License-Identifier: Apache-2.0
#include "transfer/remote_fields.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace quire {
namespace {

// All others have the same name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kOtherNames = {{
    {"is_read_only", "access"},
    {"max_age_ns", "max_age_s"},
    {"requires_server", "is_required"},
}};

}  // namespace

std::string in_remote_fields(std::string message) {
  constexpr std::string_view kOwner = "RedisConfig::";
  constexpr std::string_view kOwnOwner = "remote.";
  for (std::size_t at = message.find(kOwner); at != std::string::npos; at = message.find(kOwner, at)) {
    message.replace(at, kOwner.size(), kOwnOwner);
    at += kOwnOwner.size();
    const std::size_t end = std::min(message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at), message.size());
    const std::string_view name = std::string_view(message).substr(at, end - at);
    const auto* const other =
        std::ranges::find(kOtherNames, name, &std::pair<std::string_view, std::string_view>::first);
    if (other != kOtherNames.end()) message.replace(at, end - at, other->second);
  }
  return message;
}

}  // namespace quire
