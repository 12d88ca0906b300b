// SPDX-License-Identifier: Apache-2.0
//
// What a sweep of replays found, as JSON for programs and as one self-contained HTML page for people.
#pragma once

#include <string>
#include <vector>

#include "quire/result.h"
#include "replay.h"

namespace quire {

/// All replays of one command. Only what is finished is in it.
struct SweepOutcome {
  std::vector<ReplayOutcome> replays;  ///< by page size, then policy, then capacity, as they were asked for
  std::vector<BoundOutcome> bounds;    ///< one per capacity
  bool is_complete = true;             ///< false: ended early
};

struct ReportInput {
  std::string title;    ///< "quire demo", or the trace's name
  std::string command;  ///< that repeats it
  const Trace* trace = nullptr;
  const TraceFacts* facts = nullptr;
  const ReplaySettings* settings = nullptr;
  const SweepOutcome* sweep = nullptr;
  const SweepOutcome* tiers = nullptr;  ///< replays with lower tiers beside a sweep without; null: none
};

/// The same input gives the same text: no dates, no timings.
[[nodiscard]] std::string json_of(const ReportInput& input);
[[nodiscard]] std::string html_of(const ReportInput& input);

}  // namespace quire
