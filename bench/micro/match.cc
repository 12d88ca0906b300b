// SPDX-License-Identifier: Apache-2.0
//
// One fully cached prompt of 100,000 tokens: match beside memcmp of the same bytes, and insert beside memcpy
// of them. No tree that compares every token can be faster than those. And lookup on a hybrid layout, where windows and
// snapshots have their say, beside the same on a layout of one full group.
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
#include "prefix/anchored_pages.h"
#include "prefix/hit_rule.h"
#include "prefix/prefix_tree.h"
#include "quire/cache.h"
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

// Hybrid layouts

constexpr std::uint32_t kSnapshotTokens = 4'096;
constexpr std::uint32_t kWindowTokens = 1'024;

std::vector<Component> opaque_bytes(std::uint32_t bytes) {
  return {{.name = "bytes", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = bytes}};
}

// A cache without bytes that has been through one prompt.
class CachedPrompt {
 public:
  CachedPrompt(const Prompt& prompt, std::vector<CacheGroup> groups, std::uint32_t page_tokens)
      : tokens_(prompt.tokens),
        cache_(std::move(Cache::open({.layout = ModelLayout::create("bench", std::move(groups)).value(),
                                      .page = {.page_tokens = page_tokens},
                                      .device = {.page_count = prompt.token_count() / page_tokens * 2,
                                                 .memory = DeviceMemory::None},
                                      .sequence_count_max = 8,
                                      .context_tokens_max = prompt.token_count() + page_tokens}))
                   .value()),
        space_(cache_->key_space({.model = "bench"}).value()) {
    tokens_.push_back(1);  // one to compute, behind all that is cached
    Sequence sequence = cache_->begin(space_, {.tokens = tokens_}).value();
    QUIRE_CHECK(cache_->admit(sequence).has_value(), "nothing else runs");
    while (cache_->view(sequence)->pending_tokens > 0) {
      const StepEntry entry{&sequence, std::min(cache_->view(sequence)->pending_tokens, 8'192U)};
      const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      const StepResult result;
      QUIRE_CHECK(cache_->finish_step(outcome.step.value(), {&result, 1}).has_value(), "a step in flight");
    }
    QUIRE_CHECK(cache_->end(sequence).has_value(), "a live sequence");
  }

  /// Looks for the first tokens of it, and finds so many.
  void run(std::uint32_t token_count, std::uint32_t found) const {
    const Lookup lookup = cache_->lookup(space_, {.tokens = std::span(tokens_).first(token_count)}).value();
    QUIRE_CHECK(lookup.matched_tokens == found, "another hit than expected");
  }

  /// A request for all of it that comes and goes.
  void begin_and_end() const {
    Sequence sequence = cache_->begin(space_, {.tokens = std::span(tokens_).first(tokens_.size() - 1)}).value();
    QUIRE_CHECK(cache_->end(sequence).has_value(), "a live sequence");
  }

 private:
  std::vector<TokenId> tokens_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
};

std::vector<CacheGroup> full_layout() {
  return {{.name = "full", .layers = {0}, .components = opaque_bytes(8)}};
}
std::vector<CacheGroup> hybrid_layout() {
  std::vector<CacheGroup> groups = full_layout();
  groups.push_back({.name = "window",
                    .kind = GroupKind::Window,
                    .layers = {1},
                    .components = opaque_bytes(8),
                    .window_tokens = kWindowTokens});
  groups.push_back({.name = "state",
                    .kind = GroupKind::Snapshot,
                    .layers = {2},
                    .components = opaque_bytes(64),
                    .retention = {.rule = RetentionRule::Every, .interval_tokens = kSnapshotTokens},
                    .slot_entries = 1});
  return groups;
}

// The prompt and one token more, found whole; or without its last 1,000, found up to the last snapshot inside.
void match_hybrid(benchmark::State& state, std::uint32_t page_tokens, bool is_warm) {
  const Prompt prompt(page_tokens);
  const CachedPrompt hybrid(prompt, hybrid_layout(), page_tokens);
  const CachedPrompt full(prompt, full_layout(), page_tokens);
  const std::uint32_t length = prompt.token_count();
  const std::uint32_t shorter = length - 1'000;
  const auto at_end = [&] { hybrid.run(length + 1, length); };
  const auto inside = [&] { hybrid.run(shorter, shorter / kSnapshotTokens * kSnapshotTokens); };
  const auto of_full = [&] { full.run(length + 1, length); };
  OtherTraffic other;
  Samples at_end_us;
  Samples inside_us;
  Samples full_us;
  const auto time = [&](Samples& samples, auto& call) {
    if (is_warm) {
      samples.time_warm(kCallsPerTurn, call);
    } else {
      other.pass();
      samples.time(call);
    }
  };
  for (auto _ : state) {
    time(at_end_us, at_end);
    time(inside_us, inside);
    time(full_us, of_full);
    state.SetIterationTime(at_end_us.median() * 1e-6);
  }
  state.counters["quire_us"] = at_end_us.median();
  state.counters["inside_us"] = inside_us.median();
  state.counters["full_us"] = full_us.median();
  state.counters["to_full"] = at_end_us.median() / full_us.median();
  state.counters["inside_to_full"] = inside_us.median() / full_us.median();
}
void match_hybrid_warm(benchmark::State& state, std::uint32_t page_tokens) {
  match_hybrid(state, page_tokens, /*is_warm=*/true);
}
void match_hybrid_cold(benchmark::State& state, std::uint32_t page_tokens) {
  match_hybrid(state, page_tokens, /*is_warm=*/false);
}

// What bench/python/begin_end.py has beside it.
void begin_end_warm(benchmark::State& state, std::uint32_t page_tokens) {
  const Prompt prompt(page_tokens);
  const CachedPrompt cached(prompt, full_layout(), page_tokens);
  Samples us;
  for (auto _ : state) {
    us.time_warm(kCallsPerTurn, [&] { cached.begin_and_end(); });
    state.SetIterationTime(us.median() * 1e-6);
  }
  state.counters["quire_us"] = us.median();
}

// The rule alone, on a path that the tree has matched, and the worst there is for it: the only snapshot lies at its
// very beginning, so that all of it is looked at.
void find_hit_warm(benchmark::State& state, std::uint32_t page_tokens) {
  const std::uint32_t page_count = kPromptTokens / page_tokens;
  const AnchoredPagesConfig config{.tree_page_end = page_count + 1, .page_end = page_count + 1};
  AnchoredPages window = AnchoredPages::create(config).value();
  AnchoredPages dense = AnchoredPages::create(config).value();
  AnchoredPages sparse = AnchoredPages::create(config).value();
  std::vector<PageId> path(page_count);
  for (std::uint32_t i = 0; i < page_count; ++i) {
    path[i] = PageId{i + 1};
    window.attach(path[i], path[i]);
    if ((i + 1) * page_tokens % kSnapshotTokens == 0) dense.attach(path[i], path[i]);
  }
  sparse.attach(path[kSnapshotTokens / page_tokens - 1], PageId{1});
  const HitPath match{.pages = path, .prompt_tokens = kPromptTokens + 1};
  const HitLimits limits{.page_tokens = page_tokens, .partial_tokens_min = page_tokens};
  const std::vector<HitGroup> usual = {{.pages = &window, .window_tokens = kWindowTokens}, {.pages = &dense}};
  const std::vector<HitGroup> worst = {{.pages = &window, .window_tokens = kWindowTokens}, {.pages = &sparse}};
  Samples usual_us;
  Samples worst_us;
  for (auto _ : state) {
    usual_us.time_warm(kCallsPerTurn, [&] { keep(find_hit(usual, match, limits)); });
    worst_us.time_warm(kCallsPerTurn, [&] { keep(find_hit(worst, match, limits)); });
    state.SetIterationTime(usual_us.median() * 1e-6);
  }
  QUIRE_CHECK(find_hit(worst, match, limits).tokens == kSnapshotTokens, "another hit than expected");
  state.counters["quire_us"] = usual_us.median();
  state.counters["worst_us"] = worst_us.median();
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
    add("begin_end/warm", begin_end_warm, 20);
    if (page_tokens == 1) continue;  // snapshots hang on pages
    add("match_hybrid/warm", match_hybrid_warm, 20);
    add("match_hybrid/cold", match_hybrid_cold, 10);
    add("find_hit/warm", find_hit_warm, 20);
  }
}

}  // namespace quire::bench
