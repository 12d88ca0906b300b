// SPDX-License-Identifier: Apache-2.0
//
// The table of policies by name.
#include <algorithm>
#include <array>
#include <string>

#include "policy/arc.h"
#include "policy/fifo.h"
#include "policy/lfu.h"
#include "policy/lru.h"
#include "policy/priority.h"
#include "policy/s3fifo.h"
#include "policy/slru.h"
#include "quire/policy.h"

namespace quire {

namespace {

template <typename P>
std::unique_ptr<Policy> make() {
  return std::make_unique<P>();
}

struct Named {
  std::string_view name;
  std::unique_ptr<Policy> (*make)();
};

constexpr std::array kPolicies = {
    Named{"lru", make<LruPolicy>},           Named{"fifo", make<FifoPolicy>},     Named{"lfu", make<LfuPolicy>},
    Named{"slru", make<SlruPolicy>},         Named{"s3fifo", make<S3FifoPolicy>}, Named{"arc", make<ArcPolicy>},
    Named{"priority", make<PriorityPolicy>},
};

}  // namespace

Result<std::unique_ptr<Policy>> make_policy(std::string_view name) {
  std::string known;
  for (const Named& policy : kPolicies) {
    if (policy.name == name) return policy.make();
    known += known.empty() ? "" : ", ";
    known += policy.name;
  }
  return fail(ErrorCode::InvalidArgument, "unknown policy '" + std::string(name) + "'; known: " + known);
}

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names(kPolicies.size());
  std::ranges::transform(kPolicies, names.begin(), &Named::name);
  return names;
}

}  // namespace quire
