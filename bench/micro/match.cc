// SPDX-License-Identifier: Apache-2.0
//
// One fully cached prompt of 100,000 tokens: match beside memcmp of the same bytes, and insert beside memcpy
// of them. No tree that compares every token can be faster than those.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "benchmarks.h"
#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/chat_driver.h"
#include "testing/naive_radix.h"
#include "testing/workloads.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kPromptTokens = 100'000;
constexpr std::size_t kCallsPerTurn = 20;

struct Prompt {
  explicit Prompt(std::uint32_t page_tokens) : tokens(kPromptTokens - (kPromptTokens % page_tokens)) {
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = testing::workload_token(6, 0, i);
    copy = tokens;
  }
  [[nodiscard]] std::uint32_t token_count() const { return static_cast<std::uint32_t>(tokens.size()); }
  [[nodiscard]] std::size_t bytes() const { return tokens.size() * sizeof(TokenId); }

  std::vector<TokenId> tokens;
  std::vector<TokenId> copy;
};

// The three ways to compare a prompt with what is cached.
class MatchContest {
 public:
  explicit MatchContest(std::uint32_t page_tokens)
      : prompt_(page_tokens),
        page_count_(prompt_.token_count() / page_tokens),
        driver_({.page_tokens = page_tokens, .page_count = page_count_, .request_tokens_max = prompt_.token_count()}),
        naive_({.page_tokens = page_tokens, .page_count = page_count_}) {
    driver_.run_request(prompt_.tokens);
    run_request_on_naive(naive_, prompt_.tokens);
  }

  void run_quire() const {
    const PrefixTree::Match match = driver_.tree().match(driver_.root(), {.tokens = prompt_.tokens, .extra_keys = {}});
    QUIRE_CHECK(match.page_count == page_count_, "the whole prompt is cached");
  }
  void run_memcmp() const {
    const int order = std::memcmp(prompt_.tokens.data(), prompt_.copy.data(), prompt_.bytes());
    QUIRE_CHECK(order == 0, "a copy is the same");
  }
  void run_naive() {
    QUIRE_CHECK(naive_.match(prompt_.tokens).pages.size() == page_count_, "the whole prompt is cached");
  }

 private:
  Prompt prompt_;
  std::uint32_t page_count_;
  testing::TreeDriver driver_;
  testing::NaiveRadix naive_;
};

void report(benchmark::State& state, const Samples& quire, const Samples& limit, const Samples& naive) {
  state.counters["quire_us"] = quire.median();
  state.counters["memcmp_us"] = limit.median();
  state.counters["naive_us"] = naive.median();
  state.counters["to_memcmp"] = quire.median() / limit.median();
  state.counters["naive_to_quire"] = naive.median() / quire.median();
}

void match_warm(benchmark::State& state, std::uint32_t page_tokens) {
  MatchContest contest(page_tokens);
  Samples quire;
  Samples limit;
  Samples naive;
  for (auto _ : state) {
    quire.time_warm(kCallsPerTurn, [&] { contest.run_quire(); });
    limit.time_warm(kCallsPerTurn, [&] { contest.run_memcmp(); });
    naive.time_warm(kCallsPerTurn, [&] { contest.run_naive(); });
    state.SetIterationTime(quire.median() * 1e-6);
  }
  report(state, quire, limit, naive);
}

void match_cold(benchmark::State& state, std::uint32_t page_tokens) {
  MatchContest contest(page_tokens);
  OtherTraffic other;
  Samples quire;
  Samples limit;
  Samples naive;
  for (auto _ : state) {
    other.pass();
    quire.time([&] { contest.run_quire(); });
    other.pass();
    limit.time([&] { contest.run_memcmp(); });
    other.pass();
    naive.time([&] { contest.run_naive(); });
    state.SetIterationTime(quire.median() * 1e-6);
  }
  report(state, quire, limit, naive);
}

// Cold, and in a tree that has been through W1, of which the prompt grew up in the last quarter: its runs lie where
// chats were evicted before, not one behind the other.
void match_aged_cold(benchmark::State& state, std::uint32_t page_tokens) {
  const Prompt prompt(page_tokens);
  const testing::ChatWorkload workload;
  testing::TreeDriverConfig config = testing::chat_driver_config(workload, page_tokens);
  config.request_tokens_max = prompt.token_count();
  testing::TreeDriver driver(config);
  const std::size_t begin = workload.requests().size() / 4 * 3;
  const std::size_t tokens_per_request = prompt.tokens.size() / (workload.requests().size() - begin) + 1;
  for (std::size_t i = 0; i < workload.requests().size(); ++i) {
    driver.run_request(workload.requests()[i].tokens);
    const std::size_t length = i < begin ? 0 : (i - begin + 1) * tokens_per_request;
    driver.run_request(std::span(prompt.tokens).first(std::min(length, prompt.tokens.size())));
  }

  OtherTraffic other;
  Samples quire;
  Samples limit;
  for (auto _ : state) {
    other.pass();
    quire.time([&] {
      const PrefixTree::Match match = driver.tree().match(driver.root(), {.tokens = prompt.tokens, .extra_keys = {}});
      QUIRE_CHECK(match.page_count == prompt.token_count() / page_tokens, "the whole prompt is cached");
    });
    other.pass();
    limit.time([&] { keep(std::memcmp(prompt.tokens.data(), prompt.copy.data(), prompt.bytes())); });
    state.SetIterationTime(quire.median() * 1e-6);
  }
  state.counters["quire_us"] = quire.median();
  state.counters["memcmp_us"] = limit.median();
  state.counters["to_memcmp"] = quire.median() / limit.median();
}

// Into a tree that has held the prompt before, so that its memory has been touched, as memcpy's target has.
void insert_warm(benchmark::State& state, std::uint32_t page_tokens) {
  Prompt prompt(page_tokens);
  const PrefixTree::Key key{.tokens = prompt.tokens, .extra_keys = {}};
  const std::uint32_t page_count = prompt.token_count() / page_tokens;
  const std::unique_ptr<Policy> policy = make_policy("lru").value();
  const std::unique_ptr<PrefixTree> tree =
      PrefixTree::create({.page_tokens = page_tokens, .page_count_max = page_count}, *policy, nullptr).value();
  const RunId root = tree->add_root();
  std::vector<PageId> pages(page_count);
  for (std::uint32_t i = 0; i < page_count; ++i) pages[i] = PageId{i};
  std::vector<PageId> duplicates(page_count);
  testing::NaiveRadix naive_tree({.page_tokens = page_tokens, .page_count = page_count});

  Samples quire;
  Samples limit;
  Samples naive;
  for (auto _ : state) {
    for (std::size_t i = 0; i < kCallsPerTurn; ++i) {
      PrefixTree::Pin pin = tree->pin(tree->match(root, {}));
      quire.time([&] { keep(tree->insert(pin, key, pages, duplicates)); });
      pin.reset();
      tree->evict(page_count, [](std::span<const PageId> /*pages*/) {});
    }
    limit.time_warm(kCallsPerTurn, [&] {
      std::memcpy(prompt.copy.data(), prompt.tokens.data(), prompt.bytes());
      keep(prompt.copy);
    });
    for (std::size_t i = 0; i < kCallsPerTurn; ++i) {
      const std::vector<PageId> taken = naive_tree.allocate(page_count);
      naive.time([&] { naive_tree.insert(prompt.tokens, taken); });
      naive_tree.free_pages(naive_tree.evict(page_count));
    }
    state.SetIterationTime(quire.median() * 1e-6);
  }
  state.counters["quire_us"] = quire.median();
  state.counters["memcpy_us"] = limit.median();
  state.counters["naive_us"] = naive.median();
  state.counters["to_memcpy"] = quire.median() / limit.median();
  state.counters["naive_to_quire"] = naive.median() / quire.median();
}

}  // namespace

void register_match_benchmarks(const Effort& effort) {
  for (const std::uint32_t page_tokens : {16U, 1U, 64U}) {
    const std::string suffix = "/P:" + std::to_string(page_tokens);
    const auto add = [&](const char* name, auto* function, std::size_t iterations) {
      benchmark::RegisterBenchmark((name + suffix).c_str(), function, page_tokens)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(static_cast<benchmark::IterationCount>(effort.samples(iterations)));
    };
    add("match/warm", match_warm, 20);
    add("match/cold", match_cold, 10);
    add("match/aged_cold", match_aged_cold, 10);
    add("insert/warm", insert_warm, 20);
  }
}

}  // namespace quire::bench
