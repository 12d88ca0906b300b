// SPDX-License-Identifier: Apache-2.0
//
// What a remote tier is worth on the conversation trace, against a real server that this program starts:
//
//   remote_shared_tier together TRACE [MS]
//   remote_shared_tier chains TRACE [MS]
//
// `together` compares the hit rate of two engines that share a server with that of one engine with as much memory.
// `chains` turns the server's memory over ten times, and counts how much of what is left can be used. A request begins
// every MS milliseconds, 4 if not said: the server tells times of use apart by the second.
//
// TRACE is the conversation trace published with Mooncake. Its units of 512 tokens become pages of 16 tokens of 256
// bytes, so that all of it is 750 MB. Needs redis-server or valkey-server; docs/performance.md has the figures.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "local_server.h"
#include "quire/redis_store.h"
#include "remote_tier.h"
#include "replay.h"
#include "trace.h"
#include "trace_facts.h"
#include "transfer/extent_value.h"
#include "wire/extent.h"

namespace quire {

namespace {

constexpr std::uint32_t kPageTokens = 512;  // of the trace
constexpr std::uint32_t kUnitTokens = 32;   // that a token of the cache stands for
constexpr std::uint32_t kTokenBytes = 8;    // of the trace: a page has 4 KiB
constexpr std::uint64_t kPageBytes = std::uint64_t{kPageTokens} * kTokenBytes;
constexpr std::uint64_t kServerPageBytes = 5'500;  // that a page in a value of its own takes of a server

// Servers tell times of use apart by the second, and names that were absent are not asked for again for one: a
// turn-over takes some seconds here, as it does where it is slow.
constexpr std::chrono::milliseconds kRequestInterval{4};

unsigned long long as_long(std::uint64_t number) {
  return number;
}

/// Every unit as so many of its own, in which prompts that share it are alike.
Trace with_finer_units(const Trace& trace) {
  const std::uint32_t factor = trace.unit_tokens / kUnitTokens;
  Trace finer = trace;
  finer.unit_tokens = kUnitTokens;
  finer.units.clear();
  for (const TokenId unit : trace.units) {
    for (std::uint32_t i = 0; i < factor; ++i) finer.units.push_back((unit * factor) + i);
  }
  for (TraceRequest& request : finer.requests) {
    request.first_unit *= factor;
    request.prompt_units = static_cast<std::uint32_t>((request.prompt_tokens + kUnitTokens - 1) / kUnitTokens);
    request.output_units = 0;
  }
  return finer;
}

struct Run {
  std::uint32_t engine_count = 1;
  std::uint64_t capacity_tokens = 0;
  std::uint64_t host_tokens = 0;
  const LocalServer* server = nullptr;
  std::uint32_t extent_pages = 1;
  std::string prefix;
  std::chrono::milliseconds request_interval{0};
};

Result<ReplayOutcome> replayed(const Trace& trace, const TraceFacts& facts, const Run& run) {
  ReplaySettings settings{.engine_count = run.engine_count, .token_bytes = kTokenBytes, .bytes = BytesMode::Verify};
  settings.host = {.capacity_bytes = run.host_tokens * kTokenBytes, .write_policy = WritePolicy::WriteThrough};
  if (run.server != nullptr) {
    settings.remote.servers.urls = {run.server->url()};
    settings.remote.extent_bytes = run.extent_pages * (kPageBytes + kRecordHeaderBytes);
  }
  ReplayControl control;
  if (run.request_interval.count() > 0) {
    control.before_request = [&] { std::this_thread::sleep_for(run.request_interval); };
  }
  const auto begin = std::chrono::steady_clock::now();
  QUIRE_TRY_ASSIGN(
      ReplayOutcome outcome,
      replay(trace, facts,
             {.page_tokens = kPageTokens, .capacity_tokens = run.capacity_tokens, .remote_prefix = run.prefix},
             settings, control));
  if (outcome.corruption) return fail(ErrorCode::Corrupt, "a page had wrong bytes");
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  std::printf("  %u x %.2fM tokens and %.2fM on the host%s: hit rate %.4f", run.engine_count,
              static_cast<double>(run.capacity_tokens) / 1e6, static_cast<double>(run.host_tokens) / 1e6,
              run.server == nullptr ? "" : ", with the server", outcome.hit_rate());
  if (outcome.remote) {
    EngineOutcome all;
    for (const EngineOutcome& engine : outcome.engines) all += engine;
    std::printf(
        " (%.4f without it), %llu tokens from it, %llu values put, %llu gone when asked for, %llu late or failed",
        all.private_hit_rate(), as_long(outcome.remote->hit_tokens), as_long(outcome.remote->put_values),
        as_long(outcome.remote->absent_values), as_long(outcome.remote->late_objects + outcome.remote->failed_objects));
  }
  std::printf("; %.0f s\n", elapsed.count());
  std::fflush(stdout);
  return outcome;
}

/// Both have room for as many pages: of values as small as these, the server needs a third of its memory for other
/// things. A page of 512 tokens is a value, as it is more than one of every model.
Status together(const Trace& trace, const TraceFacts& facts, std::chrono::milliseconds interval) {
  for (const std::uint64_t total_tokens : {25'000'000, 50'000'000, 75'000'000}) {
    constexpr std::uint64_t kEngineTokens = 400'000;
    constexpr std::uint64_t kHostTokens = 600'000;
    const std::uint64_t shared_tokens = total_tokens - (2 * (kEngineTokens + kHostTokens));
    std::printf("%.0fM tokens in all, %.0fM of them on a server\n", static_cast<double>(total_tokens) / 1e6,
                static_cast<double>(shared_tokens) / 1e6);
    QUIRE_TRY_ASSIGN(const LocalServer server,
                     LocalServer::start({.program = LocalServer::find(),
                                         .maxmemory_bytes = shared_tokens / kPageTokens * kServerPageBytes}));
    QUIRE_TRY_ASSIGN(const ReplayOutcome shared, replayed(trace, facts,
                                                          {.engine_count = 2,
                                                           .capacity_tokens = kEngineTokens,
                                                           .host_tokens = kHostTokens,
                                                           .server = &server,
                                                           .prefix = own_key_prefix(),
                                                           .request_interval = interval}));
    QUIRE_TRY_ASSIGN(const ReplayOutcome one, replayed(trace, facts, {.capacity_tokens = total_tokens}));
    std::printf("  difference %+.4f\n", shared.hit_rate() - one.hit_rate());
  }
  return {};
}

/// What lies behind a lost extent cannot be used.
Status count_usable(const LocalServer& server, const std::string& prefix) {
  struct Extent {
    std::uint32_t page_index = 0;
    std::uint32_t page_count = 0;
    std::string name;
    std::string parent;
  };
  const RedisConfig config{.urls = {server.url()}};
  QUIRE_TRY_ASSIGN(const std::unique_ptr<RemoteStore> store, open_redis_store(config));
  std::vector<Extent> extents;
  std::uint64_t batch_id = 0;
  const auto look = [&](const RedisScanPage& page) {
    for (const RedisScanPage::Key& key : page.keys) {
      const auto parts = parse_extent_key(key.key, prefix);
      std::vector<std::byte> value(key.value_bytes);
      const std::array<std::span<std::byte>, 1> target = {value};
      std::array<RemoteObject, 1> objects = {RemoteObject{.key = key.key, .target = target}};
      std::array<RemoteAnswer, 1> answers;
      if (!store->try_submit({.id = ++batch_id, .operation = RemoteOperation::Get, .objects = objects})) return false;
      while (store->poll(answers).empty()) {
      }
      if (!parts || objects[0].outcome != RemoteOutcome::Ok || !extent_fault(*parts, value).empty()) continue;
      std::vector<RecordHeader> pages(parts->page_count);
      if (!decode_extent(std::span(value).first(extent_headers_bytes(parts->page_count)), pages)) continue;
      extents.push_back({.page_index = pages.front().page_index,
                         .page_count = parts->page_count,
                         .name = to_hex(pages.back().name),
                         .parent = to_hex(pages.front().parent)});
    }
    return true;
  };
  QUIRE_TRY(scan_redis_store(config, prefix, look));
  std::ranges::sort(extents, {}, &Extent::page_index);
  std::set<std::string> usable;
  std::uint64_t resident_pages = 0;
  std::uint64_t usable_pages = 0;
  for (const Extent& extent : extents) {
    resident_pages += extent.page_count;
    if (extent.page_index > 0 && !usable.contains(extent.parent)) continue;
    usable.insert(extent.name);
    usable_pages += extent.page_count;
  }
  std::printf(
      "  %llu of %llu resident pages can be used: %.1f %%\n", as_long(usable_pages), as_long(resident_pages),
      100.0 * static_cast<double>(usable_pages) / static_cast<double>(std::max<std::uint64_t>(1, resident_pages)));
  return {};
}

Status chains(const Trace& trace, const TraceFacts& facts, std::chrono::milliseconds interval) {
  constexpr std::uint64_t kServerBytes = 64'000'000;
  for (const std::uint32_t extent_pages : {16U, 1U}) {
    std::printf("%u pages in a value, a request every %lld ms\n", extent_pages,
                static_cast<long long>(interval.count()));
    QUIRE_TRY_ASSIGN(const LocalServer server,
                     LocalServer::start({.program = LocalServer::find(), .maxmemory_bytes = kServerBytes}));
    const std::string prefix = own_key_prefix();
    QUIRE_TRY_ASSIGN(const ReplayOutcome outcome, replayed(trace, facts,
                                                           {.engine_count = 2,
                                                            .capacity_tokens = 400'000,
                                                            .host_tokens = 600'000,
                                                            .server = &server,
                                                            .extent_pages = extent_pages,
                                                            .prefix = prefix,
                                                            .request_interval = interval}));
    std::printf("  %.1f times the server's memory was written\n",
                static_cast<double>(outcome.remote->put_bytes) / static_cast<double>(kServerBytes));
    QUIRE_TRY(count_usable(server, prefix));
  }
  return {};
}

Status run(std::string_view what, const std::string& path, std::chrono::milliseconds interval) {
  if (LocalServer::find().empty()) {
    return fail(ErrorCode::Unavailable, "neither valkey-server nor redis-server is installed");
  }
  QUIRE_TRY_ASSIGN(const Trace coarse, read_trace(path, {.unit_tokens = kPageTokens}));
  const Trace trace = with_finer_units(coarse);
  const TraceFacts facts = TraceFacts::of(trace);
  if (what == "together") return together(trace, facts, interval);
  if (what == "chains") return chains(trace, facts, interval);
  return fail(ErrorCode::InvalidArgument, "say what: together or chains");
}

}  // namespace

}  // namespace quire

int main(int argc, char** argv) {
  std::uint32_t interval_ms = static_cast<std::uint32_t>(quire::kRequestInterval.count());
  bool is_understood = argc == 3;
  if (argc == 4) {
    const std::string_view text = argv[3];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), interval_ms);
    is_understood = error == std::errc{} && end == text.data() + text.size();
  }
  if (!is_understood) {
    std::fprintf(stderr, "usage: remote_shared_tier together|chains TRACE [MS]\n");
    return 2;
  }
  const quire::Status status = quire::run(argv[1], argv[2], std::chrono::milliseconds(interval_ms));
  if (status) return 0;
  std::fprintf(stderr, "remote_shared_tier: %s\n", status.error().message.c_str());
  return 1;
}
