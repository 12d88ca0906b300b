// SPDX-License-Identifier: Apache-2.0
#include "host_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "amounts.h"
#include "quire/policy.h"

namespace quire {

namespace {

constexpr std::array<std::pair<WritePolicy, std::string_view>, 3> kWritePolicies = {
    {{WritePolicy::WriteBack, "write_back"},
     {WritePolicy::WriteThrough, "write_through"},
     {WritePolicy::Selective, "selective"}}};

}  // namespace

std::string_view write_policy_name(WritePolicy policy) {
  return std::ranges::find(kWritePolicies, policy, &std::pair<WritePolicy, std::string_view>::first)->second;
}

std::string write_policy_names() {
  std::vector<std::string_view> names;
  for (const auto& [policy, name] : kWritePolicies) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<WritePolicy> parse_write_policy(std::string_view option, std::string_view text) {
  const auto known = std::ranges::find(kWritePolicies, text, &std::pair<WritePolicy, std::string_view>::second);
  if (known != kWritePolicies.end()) return known->first;
  return fail(ErrorCode::InvalidArgument,
              fmt::format("{}: '{}' is unknown; known: {}", option, text, write_policy_names()));
}

Result<HostTierSettings> parse_host_tier(const HostTierOptions& options) {
  HostTierSettings settings;
  if (options.write_policy) {
    QUIRE_TRY_ASSIGN(settings.write_policy, parse_write_policy("--write-policy", *options.write_policy));
  }
  if (options.host_policy) {
    const auto policy = make_policy(*options.host_policy);
    if (!policy) return fail(policy.error().code, "--host-policy: " + policy.error().message);
    settings.policy = *options.host_policy;
  }
  if (options.host_bytes == "none") {
    if (!options.write_policy && !options.host_policy) return settings;
    return fail(ErrorCode::InvalidArgument, fmt::format("{} needs --host-bytes: without, there is no host tier",
                                                        options.write_policy ? "--write-policy" : "--host-policy"));
  }
  const Result<std::uint64_t> bytes = parse_amount(options.host_bytes);
  if (!bytes) {
    return fail(bytes.error().code, fmt::format("--host-bytes: {}; none for no host tier", bytes.error().message));
  }
  settings.capacity_bytes = *bytes;
  return settings;
}

std::string host_region_text(const HostRegionStatus& status) {
  std::string text = status.has_reserved_huge_pages ? "reserved huge pages"
                     : status.has_huge_pages        ? "transparent huge pages"
                                                    : "pages of the usual size";
  if (status.is_on_numa_node) text += ", on the node asked for";
  text += status.is_locked ? ", locked" : ", not locked";
  if (!status.refusals.empty()) text += " (" + status.refusals + ")";
  return text;
}

}  // namespace quire
