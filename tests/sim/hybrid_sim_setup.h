// SPDX-License-Identifier: Apache-2.0
//
// What a seed of the simulation of several groups draws once: time, mover and faults as for one group, and the groups.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/config.h"
#include "sim_setup.h"
#include "testing/seeded_run.h"

namespace quire::testing {

struct HybridSimSetup {
  SimSetup sim;
  std::vector<CacheGroup> groups;
  std::vector<std::uint32_t> group_page_counts;
  std::vector<std::uint32_t> host_group_page_counts;
  std::uint32_t state_slot_count = 0;
  std::uint32_t draft_tokens_max = 0;  ///< that every group can take back
};

[[nodiscard]] HybridSimSetup draw_hybrid_sim_setup(Random& random);
[[nodiscard]] std::string to_string(const HybridSimSetup& setup);
[[nodiscard]] CacheConfig make_config(const HybridSimSetup& setup);

}  // namespace quire::testing
