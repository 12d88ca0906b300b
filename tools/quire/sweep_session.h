// SPDX-License-Identifier: Apache-2.0
//
// What the commands that sweep have in common besides their tables: progress on standard error, and an end at Ctrl-C.
#pragma once

#include <string>
#include <string_view>

#include "quire/result.h"
#include "sweep.h"

namespace quire {

/// Runs a sweep and shows how far it is: on a terminal in one line that is redrawn and in the end removed, elsewhere in
/// a line every few seconds. The first Ctrl-C ends the sweep, with what is finished; the second one ends the program.
[[nodiscard]] Result<SweepOutcome> run_with_progress(std::string_view command, const Trace& trace,
                                                     const TraceFacts& facts, const SweepRequest& request);

/// "38 % (24 of 63 replays), 1.25M tokens/s, 12 s left"
[[nodiscard]] std::string progress_text(const SweepProgress& progress, double elapsed_s);

}  // namespace quire
