// SPDX-License-Identifier: Apache-2.0
//
// What a sweep found, as text for people: tables of a terminal's width and a few notes. Lines end with '\n'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "replay.h"
#include "report.h"
#include "sweep.h"
#include "table.h"
#include "trace.h"
#include "trace_facts.h"

namespace quire {

/// ".2112"
[[nodiscard]] std::string rate_text(double rate);

/// How large the trace is, and how much of it can be reused at all.
[[nodiscard]] std::string trace_facts_text(const Trace& trace, const TraceFacts& facts);
/// One line per policy and one column per capacity, with the best of each column in colour; the bound stands last.
/// With a single capacity, columns tell more about each policy instead. What is not finished is a dash.
[[nodiscard]] std::string sweep_table(const SweepRequest& request, const SweepOutcome& outcome, const TextPlace& place);
/// One line per key space and one column per policy, of the replays with this capacity.
[[nodiscard]] std::string key_space_table(const Trace& trace, const SweepOutcome& outcome,
                                          std::uint64_t capacity_tokens, const TextPlace& place);
/// Of a model with several groups: the pages of each for every capacity, and what became of them in each replay. Of
/// many replays, only those of the first policy are shown. Empty for other models.
[[nodiscard]] std::string group_text(const SweepRequest& request, const SweepOutcome& outcome, const TextPlace& place);
/// What the host tier did in each replay: hit tokens by tier, bytes moved, misses by reason. Empty without one.
[[nodiscard]] std::string tier_text(const SweepRequest& request, const SweepOutcome& outcome, const TextPlace& place);
/// The same of a single replay, with a line per tier and per reason.
[[nodiscard]] std::string tier_text(const ReplayOutcome& replay, const TextPlace& place);
/// What each engine of the replays found, where there are several. Empty for one.
[[nodiscard]] std::string engine_text(const SweepOutcome& outcome, const TextPlace& place);
/// What the table does not show: requests over the pool, lines left out, bytes verified, hits across key spaces.
[[nodiscard]] std::string sweep_notes(const Trace& trace, const TraceFacts& facts, const SweepRequest& request,
                                      const SweepOutcome& outcome);

/// What is wrong with what was found, one line each; empty when all is well.
[[nodiscard]] std::string sweep_faults(const SweepOutcome& outcome);

}  // namespace quire
