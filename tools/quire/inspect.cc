// SPDX-License-Identifier: Apache-2.0
//
// quire inspect: what the files of a disk tier have. Beside a running process, too: nothing is locked or written.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "commands.h"
#include "quire/disk_store.h"
#include "store_text.h"
#include "table.h"
#include "terminal.h"

namespace quire {

int run_inspect(const InspectCommandOptions& options) {
  const TimeNs now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const Result<DiskStoreReport> report = inspect_disk_store(options.directories, {.now_ns = now_ns});
  if (!report) {
    fmt::print(stderr, "quire inspect: {}\n", printable(report.error().message));
    return kExitFailed;
  }
  const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
  fmt::print("{}", options.json ? store_json(*report) : store_text(*report, now_ns, place));
  return kExitDone;
}

}  // namespace quire
