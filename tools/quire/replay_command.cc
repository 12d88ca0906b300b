// SPDX-License-Identifier: Apache-2.0
//
// quire replay: a trace through the real cache, in every combination of policies, capacities and page sizes asked for.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "amounts.h"
#include "commands.h"
#include "output_file.h"
#include "quire/layout.h"
#include "quire/policy.h"
#include "remote_tier.h"
#include "report.h"
#include "sweep.h"
#include "sweep_session.h"
#include "sweep_text.h"
#include "terminal.h"
#include "trace.h"
#include "trace_facts.h"
#include "workload.h"

namespace quire {

namespace {

constexpr std::uint32_t kDefaultCapacities = 8;
constexpr std::uint64_t kWorkloadSeed = 1;  // that of quire demo

template <typename T>
Result<T> for_option(std::string_view option, Result<T> result) {
  if (result) return result;
  return fail(result.error().code, fmt::format("{}: {}", option, result.error().message));
}

Result<std::vector<std::string>> parse_policies(const std::string& text) {
  QUIRE_TRY_ASSIGN(std::vector<std::string> names, for_option("--policy", parse_names(text)));
  std::vector<std::string> policies;
  for (std::string& name : names) {
    if (name == "all") {
      const std::vector<std::string_view> known = policy_names();
      return std::vector<std::string>(known.begin(), known.end());
    }
    const auto policy = make_policy(name);
    if (!policy) return fail(policy.error().code, policy.error().message + "; or all");
    if (std::ranges::find(policies, name) == policies.end()) policies.push_back(std::move(name));
  }
  return policies;
}

Result<std::vector<std::uint32_t>> parse_page_sizes(const std::string& text) {
  QUIRE_TRY_ASSIGN(const std::vector<std::uint64_t> amounts, for_option("--page-tokens", parse_amounts(text)));
  std::vector<std::uint32_t> sizes;
  for (const std::uint64_t amount : amounts) {
    if (amount > std::numeric_limits<std::uint32_t>::max()) {
      return fail(ErrorCode::InvalidArgument, fmt::format("--page-tokens: {} is too much", with_commas(amount)));
    }
    sizes.push_back(static_cast<std::uint32_t>(amount));
  }
  return sizes;
}

Result<BytesMode> parse_bytes_mode(const std::string& text) {
  if (text == "none") return BytesMode::None;
  if (text == "verify") return BytesMode::Verify;
  return fail(ErrorCode::InvalidArgument, fmt::format("--bytes: '{}' is unknown; known: verify, none", text));
}

Result<RequestMix> parse_mix(const std::string& text) {
  if (text == "trace") return RequestMix::Trace;
  if (text == "longest") return RequestMix::Longest;
  return fail(ErrorCode::InvalidArgument, fmt::format("--mix: '{}' is unknown; known: trace, longest", text));
}

/// All distinct tokens, a half of them, a quarter, and so on, in whole pages, as long as every prompt fits; with
/// several groups every request as a whole, which they need.
std::vector<std::uint64_t> default_capacities(const Trace& trace, const TraceFacts& facts, std::uint32_t page_tokens,
                                              bool has_groups) {
  std::uint64_t longest_tokens = 0;
  for (const TraceRequest& request : trace.requests) {
    const std::uint64_t units = std::uint64_t{request.prompt_units} + (has_groups ? request.output_units : 0);
    longest_tokens = std::max(longest_tokens, units * trace.unit_tokens);
  }
  const std::uint64_t pages = (facts.distinct_tokens() + page_tokens - 1) / page_tokens;
  std::vector<std::uint64_t> capacities;
  for (std::uint32_t i = 0; i < kDefaultCapacities; ++i) {
    const std::uint64_t share = ((pages + (1ULL << i) - 1) >> i) * page_tokens;
    if (i > 0 && (share < longest_tokens || share == capacities.back())) break;
    capacities.push_back(share);
  }
  std::ranges::reverse(capacities);
  return capacities;
}

/// What repeats the command, with its options as far as they matter for what it finds.
std::string command_of(const ReplayOptions& options) {
  const ReplayOptions defaults;
  const auto quoted = [](const std::string& text) {
    const bool is_plain = !text.empty() && text.find_first_of(" \t\"'\\$`&|;<>()*?[]#~!{}") == std::string::npos;
    if (is_plain) return text;
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
    return result + "'";
  };
  std::string text = options.trace.empty() ? "quire replay" : "quire replay " + quoted(options.trace);
  const auto add = [&](const char* name, const auto& value, const auto& default_value) {
    if (value != default_value) text += fmt::format(" {} {}", name, value);
  };
  add("--policy", options.policy, defaults.policy);
  add("--capacity-tokens", options.capacity_tokens.value_or(""), "");
  add("--capacity-bytes", options.capacity_bytes.value_or(""), "");
  add("--page-tokens", options.page_tokens.value_or(""), "");
  add("--unit-tokens", options.unit_tokens, defaults.unit_tokens);
  add("--model", options.model, defaults.model);
  add("--mix", options.mix, defaults.mix);
  add("--bytes", options.bytes, defaults.bytes);
  add("--running-max", options.running_max, defaults.running_max);
  add("--engines", options.engines, defaults.engines);
  add("--host-bytes", options.host.host_bytes, defaults.host.host_bytes);
  add("--write-policy", options.host.write_policy.value_or(""), "");
  add("--host-policy", options.host.host_policy.value_or(""), "");
  add("--disk", quoted(options.disk.disk.value_or("")), quoted(""));
  add("--disk-bytes", options.disk.disk_bytes.value_or(""), "");
  add("--disk-write-policy", options.disk.write_policy.value_or(""), "");
  add("--disk-write-bytes-per-day", options.disk.write_bytes_per_day.value_or(""), "");
  add("--remote", quoted(options.remote.server.remote.value_or("")), quoted(""));
  add("--remote-key-prefix", quoted(options.remote.server.key_prefix.value_or("")), quoted(""));
  add("--remote-extent-bytes", options.remote.extent_bytes.value_or(""), "");
  add("--remote-write-policy", options.remote.write_policy.value_or(""), "");
  add("--remote-write-bytes-per-day", options.remote.write_bytes_per_day.value_or(""), "");
  add("--remote-max-age-s", options.remote.max_age_s.value_or(0), 0U);
  if (options.skip_bad) text += " --skip-bad";
  if (options.flip_a_byte) text += " --flip-a-byte";
  return text;
}

/// The options as the replays need them. What depends on the trace is filled in later.
struct Job {
  std::vector<std::string> policies;
  std::vector<std::uint64_t> capacities;
  std::vector<std::uint64_t> capacity_bytes;  // instead, if any
  std::vector<std::uint32_t> page_sizes;
  bool has_default_capacities = false;
  std::string remote_prefix;  // of all keys of the remote tier
  SweepRequest sweep;
};

Result<Job> parse(const ReplayOptions& options) {
  Job job;
  QUIRE_TRY_ASSIGN(job.policies, parse_policies(options.policy));
  job.has_default_capacities = !options.capacity_tokens && !options.capacity_bytes;
  if (options.trace.empty() && options.model.empty()) {
    return fail(ErrorCode::InvalidArgument, "TRACE is required; see quire replay --help");
  }
  if (options.capacity_tokens && options.capacity_bytes) {
    return fail(ErrorCode::InvalidArgument,
                "--capacity-tokens and --capacity-bytes both say how large pools are: use "
                "one of them");
  }
  if (options.capacity_bytes) {
    QUIRE_TRY_ASSIGN(job.capacity_bytes, for_option("--capacity-bytes", parse_amounts(*options.capacity_bytes)));
  }
  if (options.capacity_tokens) {
    QUIRE_TRY_ASSIGN(job.capacities, for_option("--capacity-tokens", parse_amounts(*options.capacity_tokens)));
  }
  if (options.page_tokens) {
    QUIRE_TRY_ASSIGN(job.page_sizes, parse_page_sizes(*options.page_tokens));
  }
  ReplaySettings& settings = job.sweep.settings;
  QUIRE_TRY_ASSIGN(settings.bytes, parse_bytes_mode(options.bytes));
  if (const auto known = preset_names();
      !options.model.empty() && std::ranges::find(known, options.model) == known.end()) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--model: unknown model '{}'; known: {}", options.model, fmt::join(known, ", ")));
  }
  settings.model = options.model;
  QUIRE_TRY_ASSIGN(settings.mix, parse_mix(options.mix));
  QUIRE_TRY_ASSIGN(const bool shares_bytes, has_several_groups(options.model));
  if (settings.mix != RequestMix::Trace && !shares_bytes) {
    return fail(ErrorCode::InvalidArgument, "--mix says how groups share bytes: give a --model with several of them");
  }
  settings.running_max = options.running_max;
  settings.engine_count = options.engines;
  QUIRE_TRY_ASSIGN(settings.host, parse_host_tier(options.host));
  QUIRE_TRY_ASSIGN(settings.disk, parse_disk_tier(options.disk, settings.host));
  if (settings.disk.is_on() && settings.bytes == BytesMode::None) {
    return fail(ErrorCode::InvalidArgument, "--disk needs --bytes verify: without, pages have no bytes to write");
  }
  QUIRE_TRY_ASSIGN(settings.remote,
                   parse_remote_tier(options.remote, std::getenv(kRemotePasswordVariable), settings.host));
  if (settings.remote.is_on() && settings.bytes == BytesMode::None) {
    return fail(ErrorCode::InvalidArgument, "--remote needs --bytes verify: without, pages have no bytes to write");
  }
  // What another engine is to find has to be on its way as soon as it is there.
  if (settings.remote.is_on() && !options.host.write_policy) settings.host.write_policy = WritePolicy::WriteThrough;
  settings.flip_a_byte = options.flip_a_byte;
  if (options.flip_a_byte && settings.bytes == BytesMode::None) {
    return fail(ErrorCode::InvalidArgument, "--flip-a-byte needs --bytes verify: without, pages have no bytes");
  }
  if (options.unit_tokens == 0) {
    return fail(ErrorCode::InvalidArgument, "--unit-tokens is 0: a unit stands for at least one token; 512 is usual");
  }
  if (options.report) QUIRE_TRY(for_option("--report", check_report_path(*options.report)));
  job.sweep.jobs = options.jobs;
  job.sweep.available_bytes = usable_memory_bytes();
  return job;
}

/// Bytes become the tokens that they hold, in pages of one size, by which replays and bounds are told apart.
Status add_byte_capacities(Job& job, const Trace& trace) {
  if (job.page_sizes.size() > 1) {
    return fail(ErrorCode::InvalidArgument,
                "--capacity-bytes holds other numbers of tokens for each of --page-tokens: "
                "use one page size, or --capacity-tokens");
  }
  for (const std::string& policy : job.policies) {
    job.capacities.clear();
    for (const std::uint64_t bytes : job.capacity_bytes) {
      ReplayConfig config{.policy = policy, .page_tokens = job.page_sizes.front(), .capacity_bytes = bytes};
      QUIRE_TRY_ASSIGN(const ReplayPool pool, pool_of(trace, config, job.sweep.settings));
      config.capacity_tokens = std::uint64_t{pool.page_count} * config.page_tokens;
      if (std::ranges::find(job.capacities, config.capacity_tokens) != job.capacities.end()) continue;
      job.capacities.push_back(config.capacity_tokens);
      job.sweep.configs.push_back(std::move(config));
    }
  }
  return {};
}

Status complete(Job& job, const Trace& trace, const TraceFacts& facts) {
  const std::string& model = job.sweep.settings.model;
  if (job.page_sizes.empty()) {
    QUIRE_TRY_ASSIGN(const std::uint32_t page_tokens, usual_page_tokens(trace, model));
    job.page_sizes.push_back(page_tokens);
  }
  if (job.has_default_capacities) {
    QUIRE_TRY_ASSIGN(const bool has_groups, has_several_groups(model));
    job.capacities = default_capacities(trace, facts, *std::ranges::max_element(job.page_sizes), has_groups);
  }
  if (!job.capacity_bytes.empty()) QUIRE_TRY(add_byte_capacities(job, trace));
  for (const std::uint32_t page_tokens : job.page_sizes) {
    if (!job.capacity_bytes.empty()) break;
    for (const std::string& policy : job.policies) {
      for (const std::uint64_t capacity : job.capacities) {
        job.sweep.configs.push_back({.policy = policy, .page_tokens = page_tokens, .capacity_tokens = capacity});
      }
    }
  }
  // A directory is one process's store at a time, and replays are to find nothing of each other: several have one each.
  const std::string& given = job.sweep.settings.remote.key_prefix;
  job.remote_prefix = given.empty() ? own_key_prefix() : given;
  for (ReplayConfig& config : job.sweep.configs) {
    const std::string folder = fmt::format("{}-{}-{}", config.policy, config.page_tokens, config.capacity_tokens);
    config.remote_prefix = job.remote_prefix;
    if (job.sweep.configs.size() == 1) continue;
    if (job.sweep.settings.disk.is_on()) config.disk_folder = folder;
    config.remote_prefix += ":" + folder;
  }
  job.sweep.bound_capacities = job.capacities;
  return {};
}

Result<std::string> header_text(const Job& job, const Trace& trace, const TraceFacts& facts) {
  std::string text = trace.name + "\n" + trace_facts_text(trace, facts);
  for (const ReplayConfig& config : job.sweep.configs) {
    if (config.policy != job.policies.front() || config.capacity_tokens != job.capacities.front()) continue;
    QUIRE_TRY_ASSIGN(const ReplayPool pool, pool_of(trace, config, job.sweep.settings));
    const std::string& model = job.sweep.settings.model;
    const std::string what = model.empty() ? "at 1 KiB per token" : "of " + model;
    text +=
        fmt::format("  {:<16}{:>14}  {} each, {}\n", config.page_tokens == job.page_sizes.front() ? "page tokens" : "",
                    with_commas(config.page_tokens), bytes_text(pool.page_bytes),
                    pool.groups.empty() ? what : what + ", in the groups that keep everything");
  }
  if (job.capacities.size() == 1) {
    const ReplayConfig& config = job.sweep.configs.front();
    QUIRE_TRY_ASSIGN(const ReplayPool pool, pool_of(trace, config, job.sweep.settings));
    text += fmt::format("  {:<16}{:>14}  {}, {}\n", "capacity tokens", with_commas(config.capacity_tokens),
                        counted(pool.page_count, "page"), bytes_text(pool.bytes()));
  }
  if (job.sweep.settings.host.is_on()) {
    for (const std::uint32_t page_tokens : job.page_sizes) {
      const auto config = std::ranges::find(job.sweep.configs, page_tokens, &ReplayConfig::page_tokens);
      QUIRE_TRY_ASSIGN(const ReplayPool pool, pool_of(trace, *config, job.sweep.settings));
      text += fmt::format("  {:<16}{:>14}  {}\n", page_tokens == job.page_sizes.front() ? "host bytes" : "",
                          with_commas(pool.host_bytes),
                          pool.groups.empty()
                              ? counted(pool.host_page_count, "page")
                              : counted(pool.host_page_count, "page") + " in the groups that keep everything");
    }
  }
  if (const DiskTierSettings& disk = job.sweep.settings.disk; disk.is_on()) {
    const bool has_folders = job.sweep.configs.size() > 1;
    text += fmt::format(
        "  {:<16}{:>14}  in {}{}\n", "disk bytes", with_commas(disk.capacity_bytes), fmt::join(disk.directories, ", "),
        has_folders ? ", a folder for each replay, such as " + job.sweep.configs.front().disk_folder : "");
  }
  if (const RemoteTierSettings& remote = job.sweep.settings.remote; remote.is_on()) {
    text += fmt::format("  {:<16}{:>14}  of pages in a value, at {}\n", "remote bytes",
                        with_commas(remote.extent_bytes), fmt::join(remote.servers.urls, ", "));
  }
  if (job.sweep.settings.engine_count > 1) {
    text += fmt::format("  {:<16}{:>14}  each with tiers of these sizes\n", "engines",
                        with_commas(job.sweep.settings.engine_count));
  }
  QUIRE_TRY_ASSIGN(const bool has_groups, has_several_groups(job.sweep.settings.model));
  if (has_groups && trace.unit_tokens > 1) {
    text += fmt::format("Units are replayed as {} of their own, so that every group has its tokens.\n",
                        counted(trace.unit_tokens, "token"));
  }
  if (job.has_default_capacities) {
    text += "Capacities go down from the distinct tokens by halves; --capacity-tokens chooses others.\n";
  }
  return text;
}

/// Prints what was found, and says how the command ends.
Result<int> show(const ReplayOptions& options, const Job& job, const ReportInput& report) {
  const SweepOutcome& outcome = *report.sweep;
  if (options.json) {
    fmt::print("{}", json_of(report));
  } else {
    const TextPlace place{.paint = Painter(stdout), .width = page_width(stdout)};
    fmt::print("\n{}", sweep_table(job.sweep, outcome, place));
    const std::string groups = group_text(job.sweep, outcome, place);
    if (!groups.empty()) fmt::print("\n{}", groups);
    const std::string tiers = tier_text(job.sweep, outcome, place);
    if (!tiers.empty()) fmt::print("\n{}", tiers);
    const std::string engines = engine_text(outcome, place);
    if (!engines.empty()) fmt::print("\n{}", engines);
    const std::string notes = sweep_notes(*report.trace, *report.facts, job.sweep, outcome);
    if (!notes.empty()) fmt::print("\n{}", notes);
  }
  if (options.report) {
    QUIRE_TRY(write_file(*options.report, html_of(report)));
    if (!options.json) fmt::print("\nReport: {}\n", *options.report);
  }
  if (job.sweep.settings.remote.is_on() && options.remote.keep && !options.json) {
    fmt::print("\nThe values stay, under keys that begin with {}.\n", job.remote_prefix);
  }
  std::fflush(stdout);
  const std::string faults = sweep_faults(outcome);
  if (!faults.empty()) fmt::print(stderr, "quire replay: {}", faults);
  if (!outcome.is_complete) {
    fmt::print(stderr, "quire replay: interrupted; {} of {} finished\n", outcome.replays.size(),
               counted(job.sweep.configs.size(), "replay"));
  }
  return !faults.empty() ? kExitFailed : outcome.is_complete ? kExitDone : kExitInterrupted;
}

}  // namespace

int run_replay(const ReplayOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto complain = [](const Error& error, int status) {
    std::fflush(stdout);
    fmt::print(stderr, "quire replay: {}\n", in_options(error.message));
    return status;
  };

  // Everything that can be wrong with the command is found before the work, and a url with a password in it before
  // anything is printed.
  Result<Job> job = parse(options);
  if (!job) return complain(job.error(), kExitUsage);
  if (job->sweep.settings.remote.is_on()) {
    const auto store = open_redis_store(job->sweep.settings.remote.servers);
    if (!store) {
      const bool is_usage = store.error().code == ErrorCode::InvalidArgument;
      return complain(store.error(), is_usage ? kExitUsage : kExitFailed);
    }
  }
  const Result<Trace> trace =
      options.trace.empty()
          ? demo_workload(kWorkloadSeed)
          : read_trace(options.trace, {.unit_tokens = options.unit_tokens, .skip_bad = options.skip_bad});
  if (!trace) return complain(trace.error(), kExitUsage);
  const TraceFacts facts = TraceFacts::of(*trace);
  const Status completed = complete(*job, *trace, facts);
  if (!completed) return complain(completed.error(), kExitUsage);
  const Status checked = check_sweep(*trace, job->sweep);
  if (!checked) return complain(checked.error(), kExitUsage);
  const Result<std::string> header = header_text(*job, *trace, facts);
  if (!header) return complain(header.error(), kExitUsage);
  if (!options.json) fmt::print("{}", *header);

  const Result<SweepOutcome> outcome = run_with_progress("quire replay", *trace, facts, job->sweep);
  const RemoteTierSettings& remote = job->sweep.settings.remote;
  Status dropped;
  if (remote.is_on() && !remote.keep) dropped = drop_own_keys(remote.servers, job->remote_prefix);
  if (!outcome) return complain(outcome.error(), kExitFailed);
  const Result<int> status = show(options, *job,
                                  {.title = trace->name,
                                   .command = command_of(options),
                                   .trace = &*trace,
                                   .facts = &facts,
                                   .settings = &job->sweep.settings,
                                   .sweep = &*outcome});
  if (!status) return complain(status.error(), kExitFailed);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  fmt::print(stderr, "{:.1f} seconds.\n", elapsed.count());
  // What was found is worth showing also where a server that has failed keeps what the replay wrote.
  if (!dropped) return complain(dropped.error(), *status == kExitDone ? kExitFailed : *status);
  return *status;
}

}  // namespace quire
