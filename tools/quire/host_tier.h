// SPDX-License-Identifier: Apache-2.0
//
// The host tier of replays, as a command line says it and as people read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quire/config.h"
#include "quire/mover.h"
#include "quire/result.h"

namespace quire {

/// The host tier behind the device pool of a replay. Off without bytes.
struct HostTierSettings {
  std::uint64_t capacity_bytes = 0;
  WritePolicy write_policy = WritePolicy::WriteBack;
  std::string policy = "lru";  ///< one of policy_names()

  [[nodiscard]] bool is_on() const { return capacity_bytes > 0; }
};

/// The values of --host-bytes, --write-policy and --host-policy, the last two only if they were given.
struct HostTierOptions {
  std::string host_bytes = "none";
  std::optional<std::string> write_policy;
  std::optional<std::string> host_policy;
};

[[nodiscard]] Result<HostTierSettings> parse_host_tier(const HostTierOptions& options);
/// `option` is what the text is the value of.
[[nodiscard]] Result<WritePolicy> parse_write_policy(std::string_view option, std::string_view text);

/// "write_back", as on the command line.
[[nodiscard]] std::string_view write_policy_name(WritePolicy policy);
/// "write_back, write_through, selective"
[[nodiscard]] std::string write_policy_names();

/// "transparent huge pages, not locked", and what the system refused.
[[nodiscard]] std::string host_region_text(const HostRegionStatus& status);

}  // namespace quire
