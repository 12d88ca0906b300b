// SPDX-License-Identifier: Apache-2.0
//
// The table of policies by name.
#include <string>

#include "policy/lru.h"
#include "quire/policy.h"

namespace quire {

Result<std::unique_ptr<Policy>> make_policy(std::string_view name) {
  if (name == "lru") return std::make_unique<LruPolicy>();
  std::string known;
  for (const std::string_view known_name : policy_names()) {
    known += known.empty() ? "" : ", ";
    known += known_name;
  }
  return fail(ErrorCode::InvalidArgument, "unknown policy '" + std::string(name) + "'; known: " + known);
}

std::vector<std::string_view> policy_names() {
  return {"lru"};
}

}  // namespace quire
