// SPDX-License-Identifier: Apache-2.0
//
// A sweep: one trace replayed in many configurations, and the offline bound for each capacity, on as many threads as
// there are to use. What it finds does not depend on the number of threads or on their pace.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "quire/result.h"
#include "replay.h"
#include "report.h"

namespace quire {

struct SweepRequest {
  std::vector<ReplayConfig> configs;
  std::vector<std::uint64_t> bound_capacities;  ///< in tokens
  ReplaySettings settings;
  std::uint32_t jobs = 0;             ///< threads; 0: one per core
  std::uint64_t available_bytes = 0;  ///< that the pools of all replays under way may take together
};

struct SweepProgress {
  std::uint64_t done_tokens = 0;  ///< prompt tokens, of all replays
  std::uint64_t all_tokens = 0;
  std::uint32_t done_count = 0;  ///< replays
  std::uint32_t count = 0;
};

/// Checks every configuration, and that each has the memory it needs by itself.
[[nodiscard]] Status check_sweep(const Trace& trace, const SweepRequest& request);

/// Outcomes are in the order asked for. As many replays run at once as there are jobs and as fit in memory.
/// `on_progress` is called on the calling thread, after each replay and about ten times a second; once it returns
/// false, the sweep ends with what is finished and is_complete false. A replay that fails ends the sweep with its
/// error; one that finds damaged bytes does not fail.
[[nodiscard]] Result<SweepOutcome> run_sweep(const Trace& trace, const TraceFacts& facts, const SweepRequest& request,
                                             const std::function<bool(const SweepProgress&)>& on_progress);

/// Memory for pools: what the system says is available, less a sixteenth for everything else. A very large number where
/// it does not say.
[[nodiscard]] std::uint64_t usable_memory_bytes();

}  // namespace quire
