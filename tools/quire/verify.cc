// SPDX-License-Identifier: Apache-2.0
//
// quire verify: reads every record of a disk tier's files and says which are not as they were written; drops them when
// asked to.
#include <fmt/format.h>

#include <cstdio>

#include "commands.h"
#include "progress.h"
#include "quire/disk_store.h"
#include "store_text.h"
#include "table.h"
#include "terminal.h"

namespace quire {

int run_verify(const VerifyCommandOptions& options) {
  const InterruptGuard guard;
  VerifyOptions verify{.repair = options.repair, .on_progress = {}};
  Result<VerifyReport> report = [&] {
    ProgressLine line("quire verify");
    verify.on_progress = [&line](const VerifyProgress& progress) {
      line.show(verify_progress_text(progress, line.elapsed_s()));
      return !InterruptGuard::is_interrupted();
    };
    return verify_disk_store(options.directories, verify);
  }();
  if (!report) {
    fmt::print(stderr, "quire verify: {}\n", printable(report.error().message));
    return kExitFailed;
  }
  fmt::print("{}", verify_text(*report, {.paint = Painter(stdout), .width = page_width(stdout)}));
  std::fflush(stdout);
  if (!report->is_complete) {
    fmt::print(stderr, "quire verify: interrupted; the rest was not read\n");
    return kExitInterrupted;
  }
  return report->is_clean() ? kExitDone : kExitFailed;
}

}  // namespace quire
