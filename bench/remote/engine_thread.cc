// SPDX-License-Identifier: Apache-2.0
//
// What a remote tier costs the thread that an engine's steps run on, beside a cache without one, in turns:
//
//   remote_engine_thread [--server=redis-server] [--requests=768] [--repetitions=3]
//
//   calls    64 sequences run at a time, in steps of 10 ms, and nothing is ever found: what each call takes, and all
//            calls of a step together
//   nodes    half of every prompt is shared. Two nodes of a cluster are stopped, then killed: hit rate and step time
//            beside those of a cache without the tier
//   late     how long after its deadline a question is answered that a stopped server never answers
//
// A step sleeps instead of computing, as a thread does that waits for a GPU. A table for people, and a JSON document as
// the last line.
#include <poll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/micro/timing.h"
#include "quire/quire.h"
#include "tests/remote/redis_server.h"

namespace quire::bench {
namespace {

using testing::RedisServer;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kTokenBytes = 64;
constexpr std::uint32_t kPromptTokens = 1024;
constexpr std::uint32_t kOutputTokens = 32;
constexpr std::uint32_t kRunningMax = 64;
constexpr std::chrono::milliseconds kStep{10};

struct Options {
  std::string server = "redis-server";
  std::uint32_t requests = 768;
  std::uint32_t repetitions = 3;
};

template <typename T>
T value_of(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "remote_engine_thread: %s\n", result.error().message.c_str());
    std::exit(1);
  }
  return *std::move(result);
}

void check(const Status& status) {
  QUIRE_CHECK(status.has_value(), status.error().message.c_str());
}

TimeNs now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// What one run of the engine has seen.
struct Seen {
  std::map<std::string, Samples> calls;  // microseconds of each
  Samples step_us;                       // of all calls of a step together
  double hit_rate = 0;
  double seconds = 0;
  std::uint64_t steps = 0;
};

/// An engine with everything but a model.
class Engine {
 public:
  /// `urls` empty: without the tier.
  explicit Engine(std::vector<std::string> urls) : prompt_(kPromptTokens) {
    CacheConfig config{.layout = value_of(ModelLayout::opaque(kTokenBytes)), .page = {.page_tokens = kPageTokens}};
    config.device.page_count = kRunningMax * (kPromptTokens + kOutputTokens) / kPageTokens * 5 / 4;
    config.host.page_count = config.device.page_count;
    config.host.write_policy = WritePolicy::WriteThrough;  // everything that is computed goes on to the servers
    config.host.compute_ns_per_token = 50'000;
    config.host.transfer_count_max = 256;
    config.context_tokens_max = kPromptTokens + kOutputTokens;
    if (!urls.empty()) {
      config.remote.urls = std::move(urls);
      config.remote.is_required = false;
      config.remote.extent_bytes = std::uint64_t{16} * kPageTokens * kTokenBytes * 5 / 4;
    }
    cache_ = value_of(Cache::open(std::move(config)));
    space_ = value_of(cache_->key_space({.model = "engine thread"}));
  }

  /// `shared_tokens` of each prompt are one of 16 that many begin with; the rest nobody has had before.
  Seen run(std::uint32_t requests, std::uint32_t shared_tokens, std::uint64_t seed) {
    Seen seen;
    const Clock::time_point begin = Clock::now();
    std::uint32_t begun = 0;
    while (begun < requests || !running_.empty()) {
      double calls_us = 0;
      const auto timed = [&](const char* name, auto&& call) {
        const double us = time_us(call);
        seen.calls[name].add(us);
        calls_us += us;
      };
      timed("poll and apply", [&] { apply(); });
      while (begun < requests && running_.size() < kRunningMax) {
        make_prompt(seed, begun, shared_tokens);
        Running& next = running_.emplace_back();
        timed("begin", [&] { next.sequence = value_of(cache_->begin(space_, {.tokens = prompt_})); });
        bool is_admitted = false;
        timed("admit", [&] { is_admitted = cache_->admit(next.sequence).has_value(); });
        if (!is_admitted) {
          running_.pop_back();
          break;
        }
        ++begun;
      }
      const std::size_t entry_count = choose_entries();
      if (entry_count == 0) {
        wait();
        continue;
      }
      PlanOutcome outcome;
      timed("plan_step", [&] { outcome = value_of(cache_->plan_step(std::span(entries_).first(entry_count))); });
      if (!outcome.step && outcome.shortage.entries_that_fit > 0) {
        const std::size_t fitting = outcome.shortage.entries_that_fit;
        timed("plan_step", [&] { outcome = value_of(cache_->plan_step(std::span(entries_).first(fitting))); });
      }
      if (!outcome.step) {
        wait();
        continue;
      }
      std::this_thread::sleep_for(kStep);
      timed("finish_step", [&] {
        check(cache_->finish_step(*outcome.step, std::span(results_).first(outcome.step->plan.entries.size())));
      });
      timed("end", [&] { end_those_that_are_done(outcome.step->plan.entries.size()); });
      seen.step_us.add(calls_us);
      ++seen.steps;
    }
    seen.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const Stats stats = value_of(cache_->stats());
    seen.hit_rate = static_cast<double>(stats.hit_tokens) / static_cast<double>(stats.prompt_tokens);
    return seen;
  }

 private:
  struct Running {
    Sequence sequence;
    std::uint32_t output_tokens = 0;
  };

  void make_prompt(std::uint64_t seed, std::uint32_t request, std::uint32_t shared_tokens) {
    for (std::uint32_t i = 0; i < kPromptTokens; ++i) {
      const std::uint64_t owner = i < shared_tokens ? request % 16 : (seed << 32U) + 1000 + request;
      prompt_[i] = static_cast<TokenId>(((owner * 1'000'003 + i) * 0x9e3779b97f4a7c15ULL) >> 33U);
    }
  }

  void apply() {
    const auto ended = value_of(cache_->poll());
    check(cache_->apply(ended, now_ns()));
  }

  void wait() {
    pollfd event{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&event, 1, 1);
  }

  /// Sequences that are ready come first, in the order of running_.
  std::size_t choose_entries() {
    entries_.clear();
    std::ranges::stable_partition(running_, [&](const Running& one) { return cache_->view(one.sequence)->is_ready; });
    std::uint32_t tokens = 0;
    for (const Running& one : running_) {
      const auto view = cache_->view(one.sequence);
      if (!view->is_ready || tokens + view->pending_tokens > 8'192) break;
      tokens += view->pending_tokens;
      entries_.push_back({.sequence = &one.sequence});
    }
    results_.assign(entries_.size(), StepResult{.tokens = next_token_});
    return entries_.size();
  }

  void end_those_that_are_done(std::size_t entry_count) {
    for (std::size_t i = 0; i < entry_count; ++i) {
      Running& one = running_[i];
      if (++one.output_tokens == kOutputTokens - 1) check(cache_->end(one.sequence));
    }
    std::erase_if(running_, [](const Running& one) { return one.output_tokens == kOutputTokens - 1; });
  }

  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<TokenId> prompt_;
  std::array<TokenId, 1> next_token_ = {7};
  std::vector<Running> running_;
  std::vector<StepEntry> entries_;
  std::vector<StepResult> results_;
};

// ── what the calls take ──────────────────────────────────────────────────────────────────────────────────────────────

nlohmann::json calls(const Options& options) {
  std::map<std::string, std::array<Samples, 2>> by_name;
  std::array<Samples, 2> steps;
  for (std::uint32_t i = 0; i < options.repetitions; ++i) {
    for (const bool has_tier : {false, true}) {
      RedisServer server;
      const Seen seen = Engine(has_tier ? std::vector{server.unix_url()} : std::vector<std::string>{})
                            .run(options.requests, /*shared_tokens=*/0, i);
      QUIRE_CHECK(seen.hit_rate == 0, "something was found");
      for (const auto& [name, samples] : seen.calls) {
        for (const double part : {0.5, 0.99})
          by_name[name + (part > 0.9 ? ", p99" : "")][has_tier].add(samples.quantile(part));
      }
      steps[has_tier].add(seen.step_us.mean());
    }
  }
  std::printf("microseconds on the engine's thread, 64 sequences, nothing found\n");
  std::printf("  %-22s %10s %10s\n", "", "without", "with");
  nlohmann::json report;
  for (const auto& [name, ways] : by_name) {
    std::printf("  %-22s %10.2f %10.2f\n", name.c_str(), ways[0].median(), ways[1].median());
    report[name] = {ways[0].median(), ways[1].median()};
  }
  const double step_us = std::chrono::duration<double, std::micro>(kStep).count();
  std::printf("  %-22s %10.2f %10.2f  the tier takes %.2f %% of a step of 10 ms\n", "all calls of a step",
              steps[0].median(), steps[1].median(), 100 * (steps[1].median() - steps[0].median()) / step_us);
  report["step"] = {steps[0].median(), steps[1].median()};
  return report;
}

// ── servers that are not there ───────────────────────────────────────────────────────────────────────────────────────

nlohmann::json nodes(const Options& options) {
  constexpr std::array<const char*, 3> kNames = {"without the tier", "all nodes stopped", "all nodes killed"};
  std::array<Samples, 3> seconds;
  std::array<Samples, 3> hit_rates;
  std::array<Samples, 3> ms_per_step;
  for (std::uint32_t i = 0; i < options.repetitions; ++i) {
    for (std::size_t way = 0; way < kNames.size(); ++way) {
      std::unique_ptr<testing::RedisClusterServers> servers;
      if (way > 0) {
        servers = std::make_unique<testing::RedisClusterServers>(2);
        QUIRE_CHECK(servers->comes_together(), "the cluster does not come together");
      }
      Engine engine(servers == nullptr ? std::vector<std::string>{} : servers->urls());
      for (std::uint32_t node = 0; servers != nullptr && node < 2; ++node) {
        if (way == 1) servers->primary(node).stop();
        if (way == 2) servers->primary(node).kill();
      }
      const Seen seen = engine.run(options.requests, kPromptTokens / 2, 0);
      seconds[way].add(seen.seconds);
      hit_rates[way].add(seen.hit_rate);
      ms_per_step[way].add(1e3 * seen.seconds / static_cast<double>(seen.steps));
    }
  }
  std::printf("servers that are not there, half of every prompt shared; in brackets, of those without the tier\n");
  std::printf("  %-22s %10s %20s %22s\n", "", "hit rate", "all requests", "a step");
  nlohmann::json report = nlohmann::json::array();
  for (std::size_t way = 0; way < kNames.size(); ++way) {
    std::printf("  %-22s %10.4f %10.2f s (%.3f) %11.3f ms (%.3f)\n", kNames[way], hit_rates[way].median(),
                seconds[way].median(), seconds[way].median() / seconds[0].median(), ms_per_step[way].median(),
                ms_per_step[way].median() / ms_per_step[0].median());
    report.push_back({{"name", kNames[way]},
                      {"hit_rate", hit_rates[way].median()},
                      {"seconds", seconds[way].median()},
                      {"step_ms", ms_per_step[way].median()}});
  }
  return report;
}

// ── deadlines ────────────────────────────────────────────────────────────────────────────────────────────────────────

nlohmann::json late(const Options& options) {
  RedisServer server;
  const auto store = value_of(open_redis_store({.urls = {server.unix_url()}, .failures_in_a_row = 1'000'000}));
  server.stop();
  std::array<RemoteObject, 1> objects = {RemoteObject{.key = "quire:late"}};
  Samples late_ms;
  for (std::uint32_t i = 0; i < 100 * options.repetitions; ++i) {
    constexpr TimeNs kTimeout = 20'000'000;
    const Clock::time_point begin = Clock::now();
    objects[0].outcome = RemoteOutcome::NotTried;
    QUIRE_CHECK(store->try_submit(
                    {.id = i + 1, .operation = RemoteOperation::Find, .timeout_ns = kTimeout, .objects = objects}),
                "no room");
    std::array<RemoteAnswer, 1> answers;
    while (store->poll(answers).empty()) {
      pollfd event{.fd = store->event_fd(), .events = POLLIN, .revents = 0};
      (void)::poll(&event, 1, -1);
    }
    late_ms.add((std::chrono::duration<double, std::milli>(Clock::now() - begin).count()) - (kTimeout / 1e6));
  }
  server.go_on();
  std::printf(
      "a question that a stopped server never answers, ms after its deadline: median %.3f, p99 %.3f, last %.3f\n",
      late_ms.median(), late_ms.quantile(0.99), late_ms.quantile(1));
  return {{"median_ms", late_ms.median()}, {"p99_ms", late_ms.quantile(0.99)}, {"greatest_ms", late_ms.quantile(1)}};
}

bool read_option(std::string_view argument, Options& options) {
  const auto number = [](std::string_view text, auto& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size() && out > 0;
  };
  const std::size_t equals = argument.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = argument.substr(0, equals);
  const std::string_view text = argument.substr(equals + 1);
  if (name == "--requests") return number(text, options.requests);
  if (name == "--repetitions") return number(text, options.repetitions);
  if (name != "--server") return false;
  options.server = text;
  return !text.empty();
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  for (const std::string_view argument : std::span(argv + 1, static_cast<std::size_t>(argc - 1))) {
    if (quire::bench::read_option(argument, options)) continue;
    std::fprintf(stderr, "usage: remote_engine_thread [--server=redis-server] [--requests=N] [--repetitions=N]\n");
    return 2;
  }
  quire::testing::server_program() = options.server;
  nlohmann::json report = {{"server", options.server}};
  report["calls"] = quire::bench::calls(options);
  report["nodes"] = quire::bench::nodes(options);
  report["late"] = quire::bench::late(options);
  std::printf("%s\n", report.dump().c_str());
  return 0;
}
