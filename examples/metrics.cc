// SPDX-License-Identifier: Apache-2.0
//
// A cache that Prometheus can watch: an engine's loop with a MetricsServer, and what a scrape then gets.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/metrics.h"
#include "quire/quire.h"

namespace {

quire::TimeNs now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

void print_lines(std::string_view text, std::string_view name) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.find(name) != std::string_view::npos) std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
    begin = end + 1;
  }
}

}  // namespace

int main() {
  quire::CacheConfig config{.layout = *quire::preset("llama-3-8b"), .device = {.page_count = 256}};
  config.device.memory = quire::DeviceMemory::None;
  const auto cache = *quire::Cache::open(std::move(config));
  const quire::KeySpaceId space = *cache->key_space({.model = "llama-3-8b"});
  std::vector<quire::TokenId> prompt(1024);
  std::iota(prompt.begin(), prompt.end(), 0);

  // [docs]
  const auto server = quire::MetricsServer::open({.port = 0});  // on a free port; server->port() tells which
  if (!server.has_value()) {
    std::fprintf(stderr, "%s\n", server.error().message.c_str());
    return 1;
  }
  quire::MetricsServer& metrics = **server;
  metrics.describe(*cache);

  for (int request = 0; request < 4; ++request) {
    const quire::TimeNs began = now_ns();
    quire::Sequence sequence = *cache->begin(space, {prompt});
    const quire::Admission hit = *cache->admit(sequence);
    metrics.observe(hit, static_cast<std::uint32_t>(prompt.size()));
    if (hit.is_ready) metrics.observe_ready(now_ns() - began);

    const quire::StepEntry entry{&sequence};
    const quire::TimeNs planned = now_ns();
    const quire::PlanOutcome outcome = *cache->plan_step({&entry, 1});
    metrics.observe(quire::TimedCall::PlanStep, now_ns() - planned);
    if (!outcome.step) return 1;
    const quire::TokenId sampled = 7;  // here the model runs
    const quire::StepResult result{{&sampled, 1}};
    if (!cache->finish_step(*outcome.step, {&result, 1})) return 1;
    if (!cache->end(sequence)) return 1;
  }
  metrics.update(*cache->stats());  // once a second, say; with lower tiers also disk_status(), remote_status()
  // [docs]

  // What `curl http://127.0.0.1:<port>/metrics` prints, some of it.
  const std::string text = metrics.text();
  for (const char* name : {"quire_prompt_tokens_total", "quire_hit_tokens_total", "quire_pages",
                           "quire_tier_used_bytes", "quire_matched_ratio_bucket{le=\"0.9\"}",
                           "quire_matched_ratio_bucket{le=\"1\"}", "quire_matched_ratio_count"}) {
    print_lines(text, name);
  }
  return 0;
}
