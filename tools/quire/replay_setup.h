// SPDX-License-Identifier: Apache-2.0
//
// What a replay's cache is made of, worked out before anything runs: the model's groups, the units that the cache sees
// as tokens, and pages for each group. A model with one full group has as many pages as the capacity says. Several
// groups share bytes as solve_budget() does it for the trace's longest request; a capacity in tokens is that of the
// groups that keep everything, and the others get theirs in proportion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/layout.h"
#include "quire/result.h"
#include "replay.h"
#include "trace.h"

namespace quire {

/// A configuration of the cache for one replay.
struct Setup {
  ModelLayout layout;
  /// Tokens that a token of the cache stands for: a unit of the trace, or 1 where windows and states need every token.
  std::uint32_t unit_tokens = 1;
  std::uint32_t page_units = 0;
  std::uint32_t page_count = 0;                       ///< of the groups that keep everything
  std::uint32_t host_page_count = 0;                  ///< the same, on the host
  std::vector<std::uint32_t> host_group_page_counts;  ///< of all groups
  std::uint64_t host_bytes = 0;                       ///< of all groups
  std::uint64_t page_bytes = 0;                       ///< of the groups that keep everything
  std::uint64_t device_bytes = 0;                     ///< of all groups, null pages and state slots included
  std::vector<GroupOutcome> groups;                   ///< empty for a model with one full group
  std::uint32_t context_tokens_max = 0;               ///< of the trace, where groups share bytes by it
  std::uint32_t chunk_units = 0;                      ///< that one request computes in a step, at most

  [[nodiscard]] bool has_groups() const { return !groups.empty(); }
  [[nodiscard]] std::uint64_t pool_units() const { return std::uint64_t{page_count} * page_units; }
};

[[nodiscard]] Result<Setup> setup_of(const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings);

}  // namespace quire
