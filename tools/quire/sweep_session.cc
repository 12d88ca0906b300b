// SPDX-License-Identifier: Apache-2.0
#include "sweep_session.h"

#include <fmt/format.h>

#include <cstdio>

#include "amounts.h"
#include "progress.h"
#include "terminal.h"

namespace quire {

Result<SweepOutcome> run_with_progress(std::string_view command, const Trace& trace, const TraceFacts& facts,
                                       const SweepRequest& request) {
  std::fflush(stdout);
  const InterruptGuard guard;
  ProgressLine line(command);
  return run_sweep(trace, facts, request, [&line](const SweepProgress& progress) {
    line.show(progress_text(progress, line.elapsed_s()));
    return !InterruptGuard::is_interrupted();
  });
}

std::string progress_text(const SweepProgress& progress, double elapsed_s) {
  const double share = progress.all_tokens == 0
                           ? 0
                           : static_cast<double>(progress.done_tokens) / static_cast<double>(progress.all_tokens);
  std::string text =
      fmt::format("{:.0f} % ({} of {})", 100 * share, progress.done_count, counted(progress.count, "replay"));
  if (progress.done_tokens > 0 && elapsed_s > 0) {
    const auto rate = static_cast<std::uint64_t>(static_cast<double>(progress.done_tokens) / elapsed_s);
    text += fmt::format(", {} tokens/s, {}", amount_text(rate), time_left_text(elapsed_s, share));
  }
  return text;
}

}  // namespace quire
