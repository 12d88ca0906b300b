// SPDX-License-Identifier: Apache-2.0
//
// quire inspect: what the files of a disk tier have, or the servers of a remote one. Beside running processes, too:
// nothing is locked or written.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "commands.h"
#include "progress.h"
#include "quire/disk_store.h"
#include "quire/redis_inspect.h"
#include "remote_text.h"
#include "remote_tier.h"
#include "store_text.h"
#include "table.h"
#include "terminal.h"

namespace quire {

namespace {

int inspect_remote(const InspectCommandOptions& options) {
  const auto complain = [](const Error& error, int status) {
    fmt::print(stderr, "quire inspect: {}\n", escaped(in_options(error.message)));
    return status;
  };
  const Result<RedisConfig> servers = parse_remote_servers(options.server, std::getenv(kRemotePasswordVariable));
  if (!servers) return complain(servers.error(), kExitUsage);
  const InterruptGuard guard;
  RedisInspectOptions inspect;
  if (options.server.key_prefix) inspect.key_prefix = *options.server.key_prefix;
  const Result<RedisInspectReport> report = [&] {
    ProgressLine line("quire inspect");
    inspect.on_progress = [&line](const RedisInspectProgress& progress) {
      line.show(remote_progress_text(progress, line.elapsed_s()));
      return !InterruptGuard::is_interrupted();
    };
    return inspect_redis_store(*servers, inspect);
  }();
  if (!report) {
    return complain(report.error(), report.error().code == ErrorCode::InvalidArgument ? kExitUsage : kExitFailed);
  }
  const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
  fmt::print("{}", options.json ? remote_json(*report) : remote_text(*report, place));
  if (report->is_complete) return kExitDone;
  std::fflush(stdout);
  fmt::print(stderr, "quire inspect: interrupted; the rest was not looked at\n");
  return kExitInterrupted;
}

}  // namespace

int run_inspect(const InspectCommandOptions& options) {
  if (options.directories.empty()) return inspect_remote(options);
  const TimeNs now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const Result<DiskStoreReport> report = inspect_disk_store(options.directories, {.now_ns = now_ns});
  if (!report) {
    fmt::print(stderr, "quire inspect: {}\n", escaped(report.error().message));
    return kExitFailed;
  }
  const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
  fmt::print("{}", options.json ? store_json(*report) : store_text(*report, now_ns, place));
  return kExitDone;
}

}  // namespace quire
