// SPDX-License-Identifier: Apache-2.0
//
// What the commands that sweep have in common besides their tables: progress on standard error, an end at Ctrl-C, and a
// report whose place is known to be good before the work begins.
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

/// Whether a file can be written at `path`. Leaves everything as it was: no file is made, none is changed.
[[nodiscard]] Status check_writable(const std::string& path);
/// The same for a report, which replaces nothing but an earlier report or an empty file: a name that was mistyped
/// should not cost somebody a trace.
[[nodiscard]] Status check_report_path(const std::string& path);
/// A file that is there stays as it is until all of the new one is written, where its folder allows that.
[[nodiscard]] Status write_file(const std::string& path, std::string_view text);

}  // namespace quire
