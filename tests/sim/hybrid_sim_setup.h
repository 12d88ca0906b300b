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
  // With a disk tier.
  std::vector<GroupRetention> disk_group_retention;
  std::vector<std::uint64_t> disk_group_capacity_bytes;  ///< empty: in proportion
};

/// With a disk tier, if that has something to draw from: apart, so that the other seeds stay what they are.
[[nodiscard]] HybridSimSetup draw_hybrid_sim_setup(Random& random, Random* disk_random, const SimMutation& mutation);
/// The directories of all stores.
[[nodiscard]] std::vector<std::string> disk_paths(const HybridSimSetup& setup);
/// As DiskPlan::store_index counts them; the history's first.
[[nodiscard]] std::vector<std::uint32_t> disk_stores(const HybridSimSetup& setup);
[[nodiscard]] std::string to_string(const HybridSimSetup& setup);
[[nodiscard]] CacheConfig make_config(const HybridSimSetup& setup);

}  // namespace quire::testing
