// SPDX-License-Identifier: Apache-2.0
//
// From bytes to pages. A model with several groups needs a number of pages for each of them: too few in one, and the
// others' lie idle. solve_budget() takes the bytes of every tier, the longest context and the requests that are
// expected, and gives each group its pages, so that all run out at the same time.
//
// Every group gets what one request of the longest context needs, computed in steps of step_tokens; if that does not
// fit, the error shows the sum. Whatever is left goes, page by page, to the group that would run out first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/layout.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

/// One kind of request in the mix: so many tokens, prompt and answer, and how often it occurs beside the others.
struct ExpectedRequest {
  std::uint32_t context_tokens = 0;
  std::uint32_t weight = 1;
};

struct BudgetRequest {
  PageOptions page = {};  ///< with several ranks, all bytes are those of one of them
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;  ///< 0: no such tier
  std::uint64_t disk_bytes = 0;  ///< 0: no such tier
  std::uint32_t context_tokens_max = 0;
  std::uint32_t sequence_count_max = 1;  ///< sequences that run at once: each has a state slot
  std::uint32_t in_flight_tokens = 0;    ///< of one sequence, in steps that are planned and not finished
  /// Tokens of the largest step, which one sequence may have alone or many share: windows have pages for them once,
  /// beside those of the mix. 0: no step has more than the in_flight_tokens of its sequences.
  std::uint32_t step_tokens = 0;
  std::uint32_t rewind_tokens = 0;  ///< that one sequence may take back
  /// Instead of the intervals of groups with RetentionRule::Every; 0 leaves them.
  std::uint32_t snapshot_interval_tokens = 0;
  std::vector<ExpectedRequest> mix = {};  ///< empty: every request has context_tokens_max
};

struct GroupBudget {
  std::uint32_t group_index = 0;      ///< in ModelLayout::groups()
  std::uint64_t page_bytes = 0;       ///< on one rank
  std::uint64_t request_pages = 0;    ///< that one request of context_tokens_max needs here, in steps of step_tokens
  std::uint64_t page_count = 0;       ///< without the device's null page
  std::uint64_t capacity_tokens = 0;  ///< of the mix that these pages hold
};

struct TierBudget {
  Tier tier = Tier::Device;
  std::uint64_t bytes = 0;
  std::uint64_t used_bytes = 0;          ///< pages, null pages, state slots
  std::vector<GroupBudget> groups = {};  ///< those that have pages
  std::uint32_t limiting_index = 0;      ///< in `groups`: the one that runs out first, and whose next page did not fit
  std::uint64_t capacity_tokens = 0;
  std::uint64_t request_count = 0;  ///< requests of the mix that fit at once, as far as pages go
};

struct Budget {
  std::uint64_t slot_bytes = 0;
  std::uint32_t slot_count = 0;        ///< 0 where sequences have no state
  std::vector<TierBudget> tiers = {};  ///< the device, then those below it that have bytes
};

/// Pages of the group that one request of so many tokens needs on the device:
///
///     full, compressed   ceil(context / P)
///     window             ceil((W - 1 + in_flight + rewind) / P) + 1 and those of the sink; at most ceil(context / P)
///     snapshots, rings   Every N: floor(context / N) + 1, for the end of the prompt;  Last: 1;  None: 0
///
/// Tiers below hold what nobody is writing: there, in_flight_tokens and rewind_tokens count as 0.
[[nodiscard]] std::uint64_t pages_of_request(const CacheGroup& group, const BudgetRequest& request,
                                             std::uint64_t context_tokens);

/// Fails on what PageGeometry refuses, on contexts and mixes that make no sense, and on tiers that are too small: the
/// device must hold one request of context_tokens_max, computed in steps of step_tokens, and all state slots, a tier
/// below it a page of each group. More bytes never give any group fewer pages.
[[nodiscard]] Result<Budget> solve_budget(const ModelLayout& layout, const BudgetRequest& request);

/// A small table for each tier. Lines end with '\n'.
[[nodiscard]] std::string describe(const Budget& budget, const ModelLayout& layout);

}  // namespace quire
