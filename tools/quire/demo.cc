// SPDX-License-Identifier: Apache-2.0
//
// quire demo: an engine without a model serves a made-up workload of several tenants under every policy. It writes into
// each token's place bytes that only this token behind this history has, and compares all of them wherever the cache
// says that a prefix need not be computed. Then the same with a host tier behind the smallest pool, whose pages go
// there and come back by the cache's own mover, and with a disk tier behind that, which a restart in the middle finds
// again. Last, two engines with a server that they share, where one is installed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "amounts.h"
#include "commands.h"
#include "disk_tier.h"
#include "host_tier.h"
#include "local_server.h"
#include "output_file.h"
#include "progress.h"
#include "quire/policy.h"
#include "remote_tier.h"
#include "report.h"
#include "sweep.h"
#include "sweep_session.h"
#include "sweep_text.h"
#include "table.h"
#include "terminal.h"
#include "tools/tiny_engine/demo.h"
#include "trace_facts.h"
#include "workload.h"

namespace quire {

namespace {

constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kRunningMax = 16;
// From far too small for what is worth keeping to almost large enough.
constexpr std::array<std::uint64_t, 4> kCapacities = {32'000, 64'000, 128'000, 256'000};
constexpr std::uint64_t kShownCapacity = 128'000;         // by tenant
constexpr std::size_t kRestartWindow = 250;               // requests behind a restart
constexpr std::uint64_t kSharedExtentBytes = 72U << 10U;  // of prompts as short as these

SweepRequest demo_sweep(const DemoOptions& options) {
  SweepRequest request{.settings = {.bytes = BytesMode::Verify, .running_max = kRunningMax},
                       .available_bytes = usable_memory_bytes()};
  request.settings.flip_a_byte = options.flip_a_byte;
  request.bound_capacities.assign(kCapacities.begin(), kCapacities.end());
  for (const std::string_view policy : policy_names()) {
    for (const std::uint64_t capacity : kCapacities) {
      request.configs.push_back(
          {.policy = std::string(policy), .page_tokens = kPageTokens, .capacity_tokens = capacity});
    }
  }
  return request;
}

std::string command_of(const DemoOptions& options) {
  const DemoOptions defaults;
  std::string text = fmt::format("quire demo --seed {}", options.seed);
  if (options.host.host_bytes != defaults.host.host_bytes) text += " --host-bytes " + options.host.host_bytes;
  if (options.host.write_policy) text += " --write-policy " + *options.host.write_policy;
  if (options.disk.disk) text += " --disk " + *options.disk.disk;
  if (options.disk.disk_bytes != defaults.disk.disk_bytes) text += " --disk-bytes " + *options.disk.disk_bytes;
  if (options.disk.write_policy) text += " --disk-write-policy " + *options.disk.write_policy;
  if (options.disk.write_bytes_per_day) text += " --disk-write-bytes-per-day " + *options.disk.write_bytes_per_day;
  return text;
}

/// One replay with a host tier behind the smallest pool.
SweepRequest tier_sweep(const SweepRequest& sweep, const HostTierSettings& host) {
  SweepRequest request{.settings = sweep.settings, .available_bytes = sweep.available_bytes};
  request.settings.flip_a_byte = false;  // one damaged page is enough
  request.settings.host = host;
  request.settings.plans_while_loading = true;
  request.configs.push_back(sweep.configs.front());
  return request;
}

/// The disk tier as far as it can be told before there is a directory. Off with --disk-bytes none, and, if nothing
/// about it was said, without a host tier.
Result<DiskTierSettings> parse_disk(const DemoOptions& options, const HostTierSettings& host) {
  DiskTierOptions disk = options.disk;
  const bool is_asked_for =
      disk.disk || disk.write_policy || disk.write_bytes_per_day || disk.disk_bytes != DemoOptions{}.disk.disk_bytes;
  if (disk.disk_bytes == "none") {
    if (disk.disk) return fail(ErrorCode::InvalidArgument, "--disk with --disk-bytes none: say how much may be used");
    return DiskTierSettings{};
  }
  if (!host.is_on() && !is_asked_for) return DiskTierSettings{};
  if (!disk.disk) disk.disk = "(temporary)";
  return parse_disk_tier(disk, host);
}

enum class Restart : std::uint8_t { No, Yes };

/// The replay with a host tier once more, with a pause in the middle, and below it a disk tier if one is given.
SweepRequest disk_sweep(const SweepRequest& tiers, const Trace& trace, const DiskTierSettings& disk, Restart restart) {
  SweepRequest request = tiers;
  request.settings.disk = disk;
  request.settings.restart = {.request_index = trace.requests.size() / 2,
                              .window_count = kRestartWindow,
                              .has_new_cache = restart == Restart::Yes};
  request.configs.front().disk_folder = restart == Restart::Yes ? "restarted" : "through";
  return request;
}

/// What the part with a disk found.
struct DiskPart {
  SweepOutcome through;    ///< without a restart
  SweepOutcome restarted;  ///< with one
  SweepOutcome forgetful;  ///< with one, and without a disk

  [[nodiscard]] bool is_complete() const {
    return through.is_complete && restarted.is_complete && forgetful.is_complete;
  }
};

Result<DiskPart> run_disk_part(const Trace& trace, const TraceFacts& facts, const SweepRequest& tiers,
                               DiskTierSettings disk, bool is_temporary) {
  const InterruptGuard guard;  // from here on somebody has to clean up
  std::optional<TemporaryDirectory> directory;
  if (is_temporary) {
    QUIRE_TRY_ASSIGN(TemporaryDirectory made, TemporaryDirectory::make());
    directory.emplace(std::move(made));
    disk.directories = {directory->path()};
  }
  DiskPart part{
      .through = {.is_complete = false}, .restarted = {.is_complete = false}, .forgetful = {.is_complete = false}};
  const auto run = [&](const DiskTierSettings& settings, Restart restart, SweepOutcome& outcome) -> Status {
    if (InterruptGuard::is_interrupted()) return {};
    QUIRE_TRY_ASSIGN(outcome,
                     run_with_progress("quire demo", trace, facts, disk_sweep(tiers, trace, settings, restart)));
    return {};
  };
  QUIRE_TRY(run(disk, Restart::No, part.through));
  QUIRE_TRY(run(disk, Restart::Yes, part.restarted));
  QUIRE_TRY(run({}, Restart::Yes, part.forgetful));
  return part;
}

/// Two engines with a server of their own, which has room for everything; none of either when none is installed.
Result<SweepOutcome> run_shared_part(const Trace& trace, const TraceFacts& facts, const SweepRequest& tiers,
                                     const std::string& program) {
  SweepOutcome outcome;
  if (program.empty()) return outcome;
  const InterruptGuard guard;  // from here on somebody has to clean up
  QUIRE_TRY_ASSIGN(const LocalServer server,
                   LocalServer::start({.program = program, .maxmemory_bytes = std::uint64_t{1} << 30U}));
  SweepRequest request = tiers;
  request.settings.engine_count = 2;
  request.settings.plans_while_loading = false;
  request.settings.host.write_policy = WritePolicy::WriteThrough;
  request.settings.remote.servers.urls = {server.url()};
  request.settings.remote.extent_bytes = kSharedExtentBytes;
  request.configs.front().remote_prefix = own_key_prefix();
  return run_with_progress("quire demo", trace, facts, request);
}

void print_shared(const SweepOutcome& outcome, const std::string& program) {
  if (program.empty()) {
    fmt::print("Two engines share nothing here: neither valkey-server nor redis-server is installed.\n\n");
    return;
  }
  if (outcome.replays.empty() || outcome.replays.front().corruption) return;
  const ReplayOutcome& replay = outcome.replays.front();
  EngineOutcome both;
  for (const EngineOutcome& engine : replay.engines) both += engine;
  fmt::print(
      "Two engines share a {} that the demo has started: they find {} of their prompts, and {} without it.\n"
      "Through the server came {} tokens ({}) that an engine did not have itself: all bytes as written.\n\n",
      program.substr(program.rfind('/') + 1), rate_text(both.hit_rate()), rate_text(both.private_hit_rate()),
      with_commas(both.remote_hit_tokens), bytes_text(replay.remote->got_bytes));
}

/// One line, or nothing.
std::string early_text(const ReplayOutcome& replay) {
  if (!replay.host || replay.host->early_request_count == 0) return "";
  return fmt::format("Began before all their pages had arrived: {}, in {}.\n",
                     counted(replay.host->early_request_count, "request"),
                     counted(replay.host->early_step_count, "step"));
}

void print_disk(const SweepOutcome& tiers, const DiskPart& part) {
  if (part.through.replays.empty()) return;
  const ReplayOutcome& replay = part.through.replays.front();
  const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
  fmt::print("\nThe same with a disk tier behind the host, which found {} without it.\n\n{}",
             rate_text(tiers.replays.front().hit_rate()), tier_text(replay, place));
  if (replay.disk && !replay.corruption) {
    fmt::print("\nDisk files: {}\n", replay.disk->mode);
    if (replay.disk->found_pages > 0) {
      fmt::print("The disk had {} of an earlier run: they were found from the first request on.\n",
                 counted(replay.disk->found_pages, "page"));
    }
    fmt::print("Verified {} bytes ({}), those that came from disk among them: all as written.\n",
               with_commas(replay.verified_bytes), bytes_text(replay.verified_bytes));
    fmt::print("{}", early_text(replay));
  }
  if (!part.is_complete()) return;
  Table table;
  table.add({{fmt::format("the {} requests after it", kRestartWindow), Ink::Bold}, {"hit rate", Ink::Bold}});
  const auto add = [&](const char* name, const SweepOutcome& outcome) {
    const KeySpaceOutcome& window = outcome.replays.front().window;
    table.add({{name},
               {rate_text(window.prompt_tokens == 0
                              ? 0
                              : static_cast<double>(window.hit_tokens) / static_cast<double>(window.prompt_tokens))}});
  };
  add("without a restart", part.through);
  add("restarted, with the disk", part.restarted);
  add("restarted, without a disk", part.forgetful);
  fmt::print(
      "\nA restart half way: the cache is flushed and closed, and a new one is opened on the same files.\n\n{}\n",
      table.text(place));
}

void print_tiers(const SweepRequest& request, const SweepOutcome& plain, const SweepOutcome& outcome) {
  if (outcome.replays.empty()) return;
  const ReplayOutcome& replay = outcome.replays.front();
  const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
  fmt::print("\nThe same with a host tier behind {} tokens of {} ({}), which found {} without it.\n\n{}",
             amount_text(replay.config.capacity_tokens), replay.config.policy,
             write_policy_name(request.settings.host.write_policy), rate_text(plain.replays.front().hit_rate()),
             tier_text(replay, place));
  if (!replay.host->region.empty()) fmt::print("\nHost region: {}\n", replay.host->region);
  if (!replay.corruption) {
    fmt::print("Verified {} bytes ({}), those that came from the host among them: all as written.\n",
               with_commas(replay.verified_bytes), bytes_text(replay.verified_bytes));
    fmt::print("{}", early_text(replay));
  }
}

void print_findings(const Trace& trace, const TraceFacts& facts, const SweepRequest& request,
                    const SweepOutcome& outcome) {
  const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
  fmt::print("\nHit rates: prompt tokens found in the cache, of all.\n\n{}", sweep_table(request, outcome, place));
  const std::string tenants = key_space_table(trace, outcome, kShownCapacity, place);
  if (!tenants.empty()) {
    fmt::print("\nThe same by tenant, with {} tokens. Tenant dune pays for a higher priority.\n\n{}",
               amount_text(kShownCapacity), tenants);
  }
  const std::string notes = sweep_notes(trace, facts, request, outcome);
  if (!notes.empty()) fmt::print("\n{}", notes);
}

}  // namespace

int run_demo(const DemoOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto complain = [](std::string_view what) {
    std::fflush(stdout);
    fmt::print(stderr, "quire demo: {}\n", what);
    return kExitFailed;
  };

  if (!options.write_trace.empty()) {
    const Status status = write_file(options.write_trace, trace_text(demo_workload(options.seed)));
    return status ? kExitDone : complain(status.error().message);
  }
  const Result<HostTierSettings> host = parse_host_tier(options.host);
  if (!host) {
    complain(host.error().message);
    return kExitUsage;
  }
  const Result<DiskTierSettings> disk = parse_disk(options, *host);
  if (!disk) {
    complain(disk.error().message);
    return kExitUsage;
  }
  std::string report = options.report;
  if (const Status status = check_report_path(report); !status) {
    complain(status.error().message + "; there will be no report (--report chooses another place)");
    report.clear();
  }
  const Trace trace = demo_workload(options.seed);
  const TraceFacts facts = TraceFacts::of(trace);
  const SweepRequest request = demo_sweep(options);
  const SweepRequest tier_request = tier_sweep(request, *host);
  if (const Status status = check_sweep(trace, tier_request); !status) {
    complain(status.error().message);
    return kExitUsage;
  }
  if (const Status status = check_sweep(trace, disk_sweep(tier_request, trace, *disk, Restart::No)); !status) {
    complain(status.error().message);
    return kExitUsage;
  }
  fmt::print(
      "A made-up service with {} tenants runs on the cache, {} requests at a time, under each of {}\n"
      "policies. Only the model is missing: every byte that the cache hands out again is compared\n"
      "with what was written.\n\n{}",
      trace.key_spaces.size(), kRunningMax, policy_names().size(), trace_facts_text(trace, facts));
  const Result<SweepOutcome> outcome = run_with_progress("quire demo", trace, facts, request);
  if (!outcome) return complain(outcome.error().message);
  print_findings(trace, facts, request, *outcome);
  Result<SweepOutcome> tiers;
  if (host->is_on() && outcome->is_complete) {
    tiers = run_with_progress("quire demo", trace, facts, tier_request);
    if (!tiers) return complain(tiers.error().message);
    print_tiers(tier_request, *outcome, *tiers);
  }
  Result<DiskPart> part;
  const bool is_good =
      outcome->is_complete && tiers->is_complete && (sweep_faults(*outcome) + sweep_faults(*tiers)).empty();
  if (disk->is_on() && is_good) {
    part = run_disk_part(trace, facts, tier_request, *disk, !options.disk.disk);
    if (!part) return complain(part.error().message);
    print_disk(*tiers, *part);
    std::ranges::copy(part->through.replays, std::back_inserter(tiers->replays));
  }
  Result<SweepOutcome> shared;
  if (host->is_on() && is_good && part->is_complete()) {
    const std::string program = LocalServer::find();
    shared = run_shared_part(trace, facts, tier_request, program);
    if (!shared) return complain(shared.error().message);
    print_shared(*shared, program);
    std::ranges::copy(shared->replays, std::back_inserter(tiers->replays));
  }

  const bool is_complete = outcome->is_complete && tiers->is_complete && part->is_complete() && shared->is_complete;
  int exit_status = is_complete ? kExitDone : kExitInterrupted;
  if (!report.empty()) {
    const std::string page = html_of({.title = "quire demo",
                                      .command = command_of(options),
                                      .trace = &trace,
                                      .facts = &facts,
                                      .settings = &request.settings,
                                      .sweep = &*outcome,
                                      .tiers = host->is_on() ? &*tiers : nullptr});
    if (const Status status = write_file(report, page); !status) {
      exit_status = complain(status.error().message);
    } else {
      fmt::print("Report: {}\n", report);
    }
  }
  if (!is_complete) {
    const std::size_t count = request.configs.size() + (host->is_on() ? tier_request.configs.size() : 0) +
                              (disk->is_on() ? 3 : 0) + (host->is_on() && !LocalServer::find().empty() ? 1 : 0);
    complain(fmt::format("interrupted; {} of {} finished",
                         outcome->replays.size() + tiers->replays.size() + part->restarted.replays.size() +
                             part->forgetful.replays.size(),
                         counted(count, "replay")));
  }
  if (const std::string faults = sweep_faults(*outcome) + sweep_faults(*tiers) + sweep_faults(part->restarted) +
                                 sweep_faults(part->forgetful) + sweep_faults(*shared);
      !faults.empty()) {
    std::fflush(stdout);
    fmt::print(stderr, "quire demo: {}", faults);
    exit_status = kExitFailed;
  } else if (is_complete) {
    fmt::print(
        "\nA small transformer runs on the cache too: forks, drafts, token trees, a window. An oracle that knows\n"
        "no cache computes every text again.\n\n");
    std::fflush(stdout);
    if (tiny_engine::run_tiny_engine(stdout) != 0) exit_status = complain("the tiny engine and its oracle differ");
  }
  std::fflush(stdout);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  fmt::print(stderr,
             "{:.1f} seconds. 'quire replay' does the same with a trace of yours; 'quire tree' draws a cache.\n",
             elapsed.count());
  return exit_status;
}

}  // namespace quire
