// SPDX-License-Identifier: Apache-2.0
//
// quire servers: how many servers a shared tier needs, by hand and by simulation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "amounts.h"
#include "commands.h"
#include "remote_sizing.h"
#include "table.h"
#include "terminal.h"

namespace quire {

namespace {

constexpr double kValuesMax = 20e6;  // that are simulated; each takes about a hundred bytes
constexpr std::uint32_t kShardsMax = 10'000;
constexpr TimeNs kMsNs = 1'000'000;
constexpr TimeNs kSecondNs = 1'000 * kMsNs;

tl::unexpected<Error> bad(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

Result<double> above_zero(const char* option, double value) {
  if (value > 0 && value <= 1e9) return value;
  return bad(fmt::format("{} is {}: use a number above 0, of 1,000,000,000 at most", option, value));
}

Result<std::uint64_t> amount_for(const char* option, const std::string& text) {
  const Result<std::uint64_t> amount = parse_amount(text);
  if (!amount) return fail(amount.error().code, fmt::format("{}: {}", option, amount.error().message));
  return *amount;
}

struct Job {
  RemoteSizing sizing;
  std::vector<std::uint64_t> shard_counts;
  bool has_default_deadline = false;
};

Result<Job> parse(const ServersOptions& options) {
  Job job;
  RemoteSizing& sizing = job.sizing;
  QUIRE_TRY_ASSIGN(sizing.loads_per_s, above_zero("--loads-per-second", options.loads_per_second));
  QUIRE_TRY_ASSIGN(sizing.value_bytes, amount_for("--value-bytes", options.value_bytes));
  if (sizing.value_bytes > (std::uint64_t{1} << 32U)) return bad("--value-bytes: a value has 4 GiB at most");
  QUIRE_TRY_ASSIGN(const std::uint64_t compute,
                   amount_for("--compute-bytes-per-second", options.compute_bytes_per_second));
  sizing.compute_bytes_per_s = static_cast<double>(compute);
  if (options.engines == 0 || options.values == 0) {
    return bad(fmt::format("--{} is 0: there is at least one", options.engines == 0 ? "engines" : "values"));
  }
  sizing.engine_count = options.engines;
  sizing.value_count = options.values;
  if (options.tls) {
    sizing.server_ns_per_byte *= kTlsFactor;
    sizing.engine_ns_per_byte *= kTlsFactor;
  }
  sizing.seed = options.seed;
  const double values = sizing.engine_count * sizing.loads_per_s * static_cast<double>(sizing.duration_ns) / 1e9 *
                        static_cast<double>(sizing.value_count);
  if (values > kValuesMax) {
    return bad(fmt::format(
        "{} engines with {} loads a second of {} values are {} values in {} s, and {} can be simulated: ask "
        "for a share of the engines, and scale the shards",
        with_commas(sizing.engine_count), sizing.loads_per_s, with_commas(sizing.value_count),
        amount_text(static_cast<std::uint64_t>(std::min(values, 1e18))), sizing.duration_ns / kSecondNs,
        amount_text(static_cast<std::uint64_t>(kValuesMax))));
  }
  if (options.shards) {
    const Result<std::vector<std::uint64_t>> counts = parse_amounts(*options.shards);
    if (!counts) return fail(counts.error().code, "--shards: " + counts.error().message);
    job.shard_counts = *counts;
  } else {
    for (const double factor : {2.0 / 3, 1.0, 1.5, 3.0}) {
      const auto count = static_cast<std::uint64_t>(std::max(1.0, std::ceil(factor * sizing.shards_by_hand())));
      if (std::ranges::find(job.shard_counts, count) == job.shard_counts.end()) job.shard_counts.push_back(count);
    }
  }
  for (const std::uint64_t count : job.shard_counts) {
    if (count > kShardsMax || count * sizing.engine_count > static_cast<std::uint64_t>(kValuesMax)) {
      return bad(
          fmt::format("--shards: {} for {} is too much", with_commas(count), counted(sizing.engine_count, "engine")));
    }
  }
  job.has_default_deadline = !options.deadline_ms.has_value();
  if (options.deadline_ms) {
    QUIRE_TRY_ASSIGN(const double deadline_ms, above_zero("--deadline-ms", *options.deadline_ms));
    sizing.deadline_ns = std::llround(deadline_ms * kMsNs);
  } else {
    sizing.deadline_ns = std::max<TimeNs>(1, sizing.compute_ns());
  }
  QUIRE_TRY_ASSIGN(const double hang_ms, above_zero("--hang-ms", options.hang_ms));
  sizing.hang_ns = std::min(std::llround(hang_ms * kMsNs), static_cast<long long>(sizing.duration_ns / 3));
  return job;
}

std::string rate_of(double bytes_per_s) {
  return fmt::format("{:.2f} GB/s", bytes_per_s / 1e9);
}

std::string ms_of(TimeNs time_ns) {
  return with_commas(static_cast<std::uint64_t>((time_ns + (kMsNs / 2)) / kMsNs));
}

std::string header_text(const Job& job) {
  const RemoteSizing& sizing = job.sizing;
  const auto line = [](std::string_view what, const std::string& amount, const std::string& note) {
    return fmt::format("  {:<16}{:>12}{}{}\n", what, amount, note.empty() ? "" : "  ", note);
  };
  const double load_bytes_per_s = 1e9 / sizing.engine_ns_per_byte;
  std::string text =
      fmt::format("{} with {:g} loads a second each, of {} of {}\n", counted(sizing.engine_count, "engine"),
                  sizing.loads_per_s, counted(sizing.value_count, "value"), bytes_text(sizing.value_bytes));
  text += line("read", rate_of(sizing.read_bytes_per_s()), "by all of them");
  text += line("a shard serves", rate_of(1e9 / sizing.server_ns_per_byte),
               fmt::format("{:.2f} s of CPU per GB", sizing.server_ns_per_byte));
  text += line("shards by hand", fmt::format("{:.0f}", std::ceil(sizing.shards_by_hand())),
               fmt::format("read x {:.2f} / {:.1f}, so that they are busy {:.0f} % of the time",
                           sizing.server_ns_per_byte, kShardBusyMax, 100 * kShardBusyMax));
  text += line("an engine loads", rate_of(load_bytes_per_s),
               fmt::format("at best, {:.2f} s of CPU per GB", sizing.engine_ns_per_byte));
  text += line("and computes", rate_of(sizing.compute_bytes_per_s),
               sizing.compute_bytes_per_s < load_bytes_per_s ? "so loading pays" : "so loading does not pay");
  text += line("deadline", ms_of(sizing.deadline_ns) + " ms",
               job.has_default_deadline ? "what computing a whole load takes" : "");
  return text;
}

}  // namespace

int run_servers(const ServersOptions& options) {
  const Result<Job> job = parse(options);
  if (!job) {
    fmt::print(stderr, "quire servers: {}\n", job.error().message);
    return kExitUsage;
  }
  fmt::print("{}", header_text(*job));
  std::fflush(stdout);
  Table table;
  std::vector<Cell> header;
  for (const char* const name :
       {"shards", "busy", "p50", "p99", "waiting, p99", "deadline, p99", "computed", "breaker, p99", "computed"}) {
    header.push_back({name, Ink::Bold});
  }
  table.add(std::move(header));
  for (const std::uint64_t shard_count : job->shard_counts) {
    RemoteSizing sizing = job->sizing;
    sizing.shard_count = static_cast<std::uint32_t>(shard_count);
    sizing.deadline_ns = 0;
    sizing.hang_ns = 0;
    const RemoteSizingOutcome usual = simulate_remote(sizing);
    sizing.hang_ns = job->sizing.hang_ns;
    const RemoteSizingOutcome waiting = simulate_remote(sizing);
    sizing.deadline_ns = job->sizing.deadline_ns;
    const RemoteSizingOutcome in_time = simulate_remote(sizing);
    sizing.has_breaker = true;
    const RemoteSizingOutcome breaking = simulate_remote(sizing);
    const auto share = [](double value) { return fmt::format("{:.1f} %", 100 * value); };
    table.add({{with_commas(shard_count)},
               {fmt::format("{:.0f} %", 100 * usual.busy_share)},
               {ms_of(usual.p50_ns)},
               {ms_of(usual.p99_ns)},
               {ms_of(waiting.p99_ns)},
               {ms_of(in_time.p99_ns)},
               {share(in_time.computed_share)},
               {ms_of(breaking.p99_ns)},
               {share(breaking.computed_share)}});
  }
  fmt::print(
      "\nMilliseconds until a prefix is there, loaded or computed, and the share that is computed. From the fifth "
      "column\n"
      "on, one shard hangs for {} ms of the {} s.\n\n{}",
      ms_of(job->sizing.hang_ns), job->sizing.duration_ns / kSecondNs,
      table.text({.paint = Painter(stdout), .width = page_width(stdout)}));
  return kExitDone;
}

}  // namespace quire
