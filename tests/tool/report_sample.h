// SPDX-License-Identifier: Apache-2.0
//
// Reports to try tools/quire/report.h with: made-up outcomes of made-up traces, plain ones and those at the edges of
// what a report can be about. The figures of one sample agree with each other, as those of a replay would.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "host_tier.h"
#include "replay.h"
#include "report.h"
#include "timeline.h"
#include "trace.h"
#include "trace_facts.h"

namespace quire::testing {

struct ReportSample {
  std::string name;
  std::string title = "made_up.jsonl";
  std::string command = "quire replay made_up.jsonl --policy all";
  Trace trace;
  TraceFacts facts;
  ReplaySettings settings;
  SweepOutcome sweep;

  [[nodiscard]] ReportInput input() const {
    return {
        .title = title, .command = command, .trace = &trace, .facts = &facts, .settings = &settings, .sweep = &sweep};
  }
};

/// A number from 0 to below `limit` that depends on `from` alone.
inline std::uint64_t drawn(std::uint64_t from, std::uint64_t limit) {
  from = (from ^ (from >> 30U)) * 0xBF58476D1CE4E5B9U;
  from = (from ^ (from >> 27U)) * 0x94D049BB133111EBU;
  return (from ^ (from >> 31U)) % limit;
}

struct SampleTraceOptions {
  std::uint32_t request_count = 1500;
  std::vector<std::string> key_spaces = {"default"};
  bool has_timestamps = true;
  bool has_reuse = true;
};

/// Conversations that grow with each request, behind a system prompt per key space, with a pause in the middle.
inline Trace sample_trace(const SampleTraceOptions& options) {
  constexpr std::uint32_t kSystemUnits = 12;
  constexpr std::uint32_t kTurnsMax = 8;
  Trace trace{.name = "made_up.jsonl", .unit_tokens = 64, .key_spaces = options.key_spaces};
  for (std::uint32_t i = 0; i < options.request_count; ++i) {
    const std::uint64_t newest = 1 + i / 5;
    const std::uint64_t age = drawn(2 * i + 1, 2) * drawn(3 * i + 1, newest);
    const auto conversation = static_cast<std::uint32_t>(options.has_reuse ? newest - 1 - age / (1 + i % 4) : i);
    const auto key_space = static_cast<std::uint32_t>(std::min(
        drawn(conversation, options.key_spaces.size()), drawn(conversation + 7'000'000U, options.key_spaces.size())));
    const auto turn = static_cast<std::uint32_t>(1 + (i + conversation) % kTurnsMax);
    TraceRequest request{.line = i + 1, .key_space = key_space, .first_unit = trace.units.size()};
    if (options.has_timestamps) {
      const std::uint64_t pause_ms = i > options.request_count / 2 ? 400'000 : 0;
      request.timestamp_ns = static_cast<TimeNs>((1000ULL * i + drawn(i, 900) + pause_ms) * 1'000'000);
    }
    request.prompt_units = kSystemUnits + turn * 6;
    for (std::uint32_t unit = 0; unit < request.prompt_units; ++unit) {
      const bool is_system = unit < kSystemUnits && options.has_reuse;
      trace.units.push_back(
          static_cast<TokenId>(is_system ? key_space * 100 + unit : 100'000 + conversation * 100 + unit));
    }
    request.prompt_tokens = std::uint64_t{request.prompt_units} * trace.unit_tokens;
    trace.requests.push_back(request);
  }
  return trace;
}

/// Adds what a replay with these hits would report: share_of(request index) of what can be reused is a hit.
template <typename Outcome, typename ShareOf>
void count_hits(Outcome& outcome, const ReportSample& sample, const ShareOf& share_of) {
  const Timeline timeline(sample.trace, sample.settings.bin_count);
  outcome.timeline = timeline.bins();
  for (std::size_t i = 0; i < sample.trace.requests.size(); ++i) {
    const TraceRequest& request = sample.trace.requests[i];
    const std::uint64_t reusable = std::uint64_t{sample.facts.reusable_units()[i]} * sample.trace.unit_tokens;
    const auto hit = static_cast<std::uint64_t>(static_cast<double>(reusable) * std::clamp(share_of(i), 0.0, 1.0));
    outcome.prompt_tokens += request.prompt_tokens;
    outcome.hit_tokens += hit;
    TimeBin& bin = outcome.timeline[timeline.bin_of(i)];
    bin.prompt_tokens += request.prompt_tokens;
    bin.hit_tokens += hit;
    if constexpr (requires { outcome.key_spaces; }) {
      ++outcome.request_count;
      outcome.hit_request_count += hit > 0 ? 1 : 0;
      outcome.key_spaces[request.key_space].prompt_tokens += request.prompt_tokens;
      outcome.key_spaces[request.key_space].hit_tokens += hit;
    }
  }
}

inline double share_that_fits(const ReportSample& sample, std::uint64_t capacity_tokens) {
  const auto all = static_cast<double>(std::max<std::uint64_t>(1, sample.facts.distinct_tokens()));
  return std::min(1.0, std::pow(static_cast<double>(capacity_tokens) / all, 0.4));
}

inline ReplayOutcome sample_replay(const ReportSample& sample, const ReplayConfig& config) {
  ReplayOutcome outcome{.config = config};
  outcome.page_count = static_cast<std::uint32_t>(config.capacity_tokens / config.page_tokens);
  outcome.page_bytes = std::uint64_t{config.page_tokens} << 17U;
  outcome.key_spaces.resize(sample.trace.key_spaces.size());
  std::uint64_t seed = 0;
  for (const char letter : config.policy) seed = seed * 31 + static_cast<unsigned char>(letter);
  const double skill = 0.5 + 0.04 * static_cast<double>(drawn(seed, 12));
  seed += config.capacity_tokens + config.page_tokens;
  const double fits = share_that_fits(sample, config.capacity_tokens);
  count_hits(outcome, sample, [&](std::size_t i) {
    const TraceRequest& request = sample.trace.requests[i];
    if (request.prompt_tokens > config.capacity_tokens) {
      ++outcome.over_pool_count;
      if (outcome.over_pool_lines.size() < 5) outcome.over_pool_lines.push_back(request.line);
      return 0.0;
    }
    const double wobble = 0.9 + 0.02 * static_cast<double>(drawn(seed + i / 16, 10));
    return std::pow(fits, 2 - skill) * wobble * (1 - 0.002 * config.page_tokens) * (1 - 0.05 * request.key_space);
  });
  outcome.partial_hit_tokens = outcome.hit_tokens / 40;
  outcome.sealed_pages = (outcome.prompt_tokens - outcome.hit_tokens) / config.page_tokens;
  std::uint64_t written = 0;
  for (TimeBin& bin : outcome.timeline) {
    written += (bin.prompt_tokens - bin.hit_tokens) / config.page_tokens;
    bin.cached_pages = static_cast<std::uint32_t>(std::min(
        written, outcome.page_count -
                     std::min<std::uint64_t>(outcome.page_count, drawn(written + seed, 1 + outcome.page_count / 12))));
  }
  outcome.evicted_pages = written - std::min(written, std::uint64_t{outcome.page_count});
  for (std::uint64_t left = outcome.page_count, i = 0; left > 0 && i < 12; ++i, left /= 2) {
    outcome.run_lengths.push_back(drawn(seed + i, 1 + (left >> i)));
  }
  if (sample.settings.bytes == BytesMode::Verify) outcome.verified_bytes = outcome.hit_tokens << 17U;
  return outcome;
}

inline BoundOutcome sample_bound(const ReportSample& sample, std::uint64_t capacity_tokens) {
  BoundOutcome bound{.capacity_tokens = capacity_tokens};
  count_hits(bound, sample, [&](std::size_t) { return std::pow(share_that_fits(sample, capacity_tokens), 0.85); });
  return bound;
}

struct SampleSweepOptions {
  std::vector<std::string> policies = {"lru", "fifo", "lfu", "slru", "s3fifo", "arc", "priority"};
  std::vector<std::uint64_t> capacities = {2'000,   8'000,   16'000,    32'000,   64'000,
                                           125'000, 250'000, 1'000'000, 4'000'000};
  std::vector<std::uint32_t> page_sizes = {16, 32, 64};
};

inline void sweep(ReportSample& sample, const SampleSweepOptions& options) {
  sample.facts = TraceFacts::of(sample.trace);
  for (const std::uint32_t page_tokens : options.page_sizes) {
    for (const std::string& policy : options.policies) {
      for (const std::uint64_t capacity_tokens : options.capacities) {
        sample.sweep.replays.push_back(
            sample_replay(sample, {.policy = policy, .page_tokens = page_tokens, .capacity_tokens = capacity_tokens}));
      }
    }
  }
  for (const std::uint64_t capacity : options.capacities) sample.sweep.bounds.push_back(sample_bound(sample, capacity));
}

/// Everything there is, as large as it gets in practice.
inline ReportSample full_sample() {
  ReportSample sample{.name = "full"};
  sample.trace = sample_trace({.key_spaces = {"acme / chat-70b", "borealis", "cobalt", "dune", "elm", "batch jobs"}});
  sample.settings = {.model = "llama-3-8b", .bytes = BytesMode::Verify, .running_max = 8};
  sweep(sample, {});
  return sample;
}

/// One replay of a trace without timestamps, and no bound.
inline ReportSample single_sample() {
  ReportSample sample{.name = "single"};
  sample.trace = sample_trace({.request_count = 200, .has_timestamps = false});
  sweep(sample, {.policies = {"lru"}, .capacities = {20'000}, .page_sizes = {16}});
  sample.sweep.bounds.clear();
  return sample;
}

/// The smallest trace.
inline ReportSample one_request_sample() {
  ReportSample sample{.name = "one_request"};
  sample.trace = {.name = "made_up.jsonl",
                  .key_spaces = {""},
                  .requests = {{.line = 1, .prompt_units = 1, .prompt_tokens = 1}},
                  .units = {0}};
  sweep(sample, {.policies = {"lru", "fifo"}, .capacities = {16}, .page_sizes = {16}});
  return sample;
}

inline ReportSample no_reuse_sample() {
  ReportSample sample{.name = "no_reuse"};
  sample.trace = sample_trace({.request_count = 300, .has_reuse = false});
  sweep(sample, {.policies = {"lru", "lfu"}, .capacities = {10'000, 50'000, 100'000}, .page_sizes = {16}});
  return sample;
}

/// Ended by hand: combinations and bounds are missing, and so are some lines of the trace.
inline ReportSample ended_early_sample() {
  ReportSample sample{.name = "ended_early"};
  sample.trace = sample_trace({.request_count = 600, .key_spaces = {"a", "b"}});
  sample.trace.bad_line_count = 3;
  sample.trace.first_bad_line = "made_up.jsonl:17: hash_ids is not an array";
  sweep(sample,
        {.policies = {"lru", "fifo", "lfu"}, .capacities = {10'000, 40'000, 160'000, 640'000}, .page_sizes = {16, 64}});
  sample.sweep.replays.resize(6);
  sample.sweep.replays.erase(sample.sweep.replays.begin() + 2);
  sample.sweep.bounds.resize(2);
  sample.sweep.is_complete = false;
  return sample;
}

inline ReportSample nothing_finished_sample() {
  ReportSample sample{.name = "nothing_finished"};
  sample.trace = sample_trace({.request_count = 100});
  sweep(sample, {.policies = {}, .capacities = {}, .page_sizes = {}});
  sample.sweep.is_complete = false;
  return sample;
}

/// A page came back with other bytes, and a key space found what another one had.
inline ReportSample corrupt_sample() {
  ReportSample sample{.name = "corrupt"};
  sample.trace = sample_trace({.request_count = 400, .key_spaces = {"a", "b"}});
  sample.settings.bytes = BytesMode::Verify;
  sweep(sample, {.policies = {"lru", "arc"}, .capacities = {10'000, 50'000}, .page_sizes = {16}});
  ReplayOutcome& broken = sample.sweep.replays[1];
  broken.corruption = {.line = 203, .page = 17, .offset = 40'961, .prefix = "key space a, tokens 0 to 767"};
  for (std::size_t i = broken.timeline.size() / 2; i < broken.timeline.size(); ++i) {
    broken.timeline[i] = {.begin = broken.timeline[i].begin};
  }
  sample.sweep.replays[2].shared_hit_tokens = 64;
  return sample;
}

/// Names that would do harm if anything took them for markup, script or well-formed text, and very many of them.
inline ReportSample hostile_sample() {
  ReportSample sample{.name = "hostile"};
  const std::array<std::string, 9> names = {"</script><script>document.documentElement.dataset.errors='ran'</script>",
                                            "<img src=x onerror=alert(1)>",
                                            "<!--<script>",
                                            "\"'`&lt;&amp;${1}",
                                            "\xFF\xFE not UTF-8 \xC3",
                                            "\u202Eright to left\u202C and \u2028 back",
                                            std::string(100'000, 'W'),
                                            std::string("nul\0byte\x1B[31m", 13),
                                            "名前空間 العربية 🙂🙂🙂"};
  std::vector<std::string> key_spaces(names.begin(), names.end());
  while (key_spaces.size() < 300)
    key_spaces.push_back(names[key_spaces.size() % 6] + std::to_string(key_spaces.size()));
  sample.trace = sample_trace({.request_count = 900, .key_spaces = key_spaces});
  sample.title = names[0];
  sample.trace.name = names[6];
  sample.trace.bad_line_count = 1;
  sample.trace.first_bad_line = names[2];
  sample.command = "quire replay '" + names[0] + "'";
  sample.settings.model = names[1];
  sweep(sample, {.policies = {"lru", names[1], names[6]}, .capacities = {10'000, 100'000}, .page_sizes = {16}});
  sample.sweep.replays[0].corruption = {.line = 1, .prefix = names[0]};
  return sample;
}

/// A host tier behind every pool.
inline ReportSample tiers_sample() {
  ReportSample sample{.name = "tiers"};
  sample.trace = sample_trace({.request_count = 400});
  sample.settings.host = {.capacity_bytes = 1ULL << 34U, .write_policy = WritePolicy::WriteThrough, .policy = "arc"};
  sweep(sample, {.policies = {"lru", "arc"}, .capacities = {10'000, 50'000}, .page_sizes = {16}});
  for (ReplayOutcome& replay : sample.sweep.replays) {
    HostTierOutcome host{.page_count = 8'192, .hit_tokens = replay.hit_tokens / 3};
    host.stored_bytes = replay.sealed_pages * replay.page_bytes;
    host.loaded_bytes = host.hit_tokens / replay.config.page_tokens * replay.page_bytes;
    const std::uint64_t missed = replay.prompt_tokens - replay.hit_tokens;
    host.misses[static_cast<std::size_t>(MissReason::NeverSeen)] = {300, missed - (missed / 4)};
    host.misses[static_cast<std::size_t>(MissReason::Evicted)] = {100, missed / 4};
    replay.host = host;
  }
  return sample;
}

/// A disk tier behind that.
inline ReportSample disk_sample() {
  ReportSample sample = tiers_sample();
  sample.name = "disk";
  sample.settings.disk = {.directories = {"kv"}, .capacity_bytes = 1ULL << 40U, .write_bytes_per_day = 1ULL << 38U};
  for (ReplayOutcome& replay : sample.sweep.replays) {
    replay.disk = DiskTierOutcome{.capacity_bytes = 1ULL << 40U,
                                  .hit_tokens = replay.hit_tokens / 4,
                                  .page_count = 5'000,
                                  .written_bytes = 5'000 * replay.page_bytes,
                                  .read_bytes = replay.hit_tokens / 4 / replay.config.page_tokens * replay.page_bytes};
  }
  return sample;
}

/// Four engines, each with tiers of its own.
inline ReportSample engines_sample() {
  ReportSample sample = disk_sample();
  sample.name = "engines";
  sample.settings.engine_count = 4;
  for (ReplayOutcome& replay : sample.sweep.replays) {
    for (std::uint32_t i = 0; i < sample.settings.engine_count; ++i) {
      replay.engines.push_back({.request_count = replay.request_count / 4,
                                .prompt_tokens = replay.prompt_tokens / 4,
                                .hit_tokens = replay.hit_tokens / 4,
                                .host_hit_tokens = replay.host->hit_tokens / 4,
                                .disk_hit_tokens = replay.disk->hit_tokens / 4});
    }
  }
  return sample;
}

/// Two engines with a host tier each, and servers that they share.
inline ReportSample remote_sample() {
  ReportSample sample = tiers_sample();
  sample.name = "remote";
  sample.settings.engine_count = 2;
  sample.settings.remote.servers.urls = {"redis://cache-1:6379"};
  sample.settings.remote.extent_bytes = 1U << 21U;
  sample.settings.remote.write_bytes_per_day = 1ULL << 38U;
  for (ReplayOutcome& replay : sample.sweep.replays) {
    const std::uint64_t hit_tokens = replay.hit_tokens / 2;
    replay.remote = RemoteTierOutcome{.hit_tokens = 2 * (hit_tokens / 4),
                                      .extent_pages = 16,
                                      .put_values = 900,
                                      .put_bytes = 900 * 16 * replay.page_bytes,
                                      .kept_values = 300,
                                      .got_bytes = hit_tokens / 2 / replay.config.page_tokens * replay.page_bytes,
                                      .absent_values = 7,
                                      .bad_values = 1,
                                      .late_objects = 12,
                                      .failed_objects = 3};
    for (std::uint32_t i = 0; i < sample.settings.engine_count; ++i) {
      replay.engines.push_back({.request_count = replay.request_count / 2,
                                .prompt_tokens = replay.prompt_tokens / 2,
                                .hit_tokens = hit_tokens,
                                .host_hit_tokens = replay.host->hit_tokens / 2,
                                .remote_hit_tokens = hit_tokens / 4,
                                .private_hit_tokens = hit_tokens / 2});
    }
  }
  return sample;
}

inline std::vector<ReportSample> report_samples() {
  std::vector<ReportSample> samples;
  samples.push_back(full_sample());
  samples.push_back(single_sample());
  samples.push_back(one_request_sample());
  samples.push_back(no_reuse_sample());
  samples.push_back(ended_early_sample());
  samples.push_back(nothing_finished_sample());
  samples.push_back(corrupt_sample());
  samples.push_back(hostile_sample());
  samples.push_back(tiers_sample());
  samples.push_back(disk_sample());
  samples.push_back(engines_sample());
  samples.push_back(remote_sample());
  return samples;
}

}  // namespace quire::testing
