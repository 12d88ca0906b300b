// SPDX-License-Identifier: Apache-2.0
//
// quire verify: reads every record of a disk tier's files, or every value of a remote tier's servers, and says which
// are not as they were written; drops them when asked to.
#include <fmt/format.h>

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

int verify_remote(const VerifyCommandOptions& options) {
  const auto complain = [](const Error& error, int status) {
    fmt::print(stderr, "quire verify: {}\n", escaped(in_options(error.message)));
    return status;
  };
  const Result<RedisConfig> servers = parse_remote_servers(options.server, std::getenv(kRemotePasswordVariable));
  if (!servers) return complain(servers.error(), kExitUsage);
  const InterruptGuard guard;
  RedisInspectOptions verify{.verify = true, .repair = options.repair};
  if (options.server.key_prefix) verify.key_prefix = *options.server.key_prefix;
  const Result<RedisInspectReport> report = [&] {
    ProgressLine line("quire verify");
    verify.on_progress = [&line](const RedisInspectProgress& progress) {
      line.show(remote_progress_text(progress, line.elapsed_s()));
      return !InterruptGuard::is_interrupted();
    };
    return inspect_redis_store(*servers, verify);
  }();
  if (!report) {
    return complain(report.error(), report.error().code == ErrorCode::InvalidArgument ? kExitUsage : kExitFailed);
  }
  const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
  fmt::print("{}", remote_verify_text(*report, options.repair, place));
  if (report->is_complete) return report->is_clean() ? kExitDone : kExitFailed;
  std::fflush(stdout);
  fmt::print(stderr, "quire verify: interrupted; the rest was not read\n");
  return kExitInterrupted;
}

}  // namespace

int run_verify(const VerifyCommandOptions& options) {
  if (options.directories.empty()) return verify_remote(options);
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
    fmt::print(stderr, "quire verify: {}\n", escaped(report.error().message));
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
