// SPDX-License-Identifier: Apache-2.0
//
// Every figure is computed a second time by a twin that knows no segments: it gives each prefix a number and looks at
// single units. For the bound there is a third one, which tries every choice of victims.
#include "trace_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "test_traces.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

struct Ask {
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::uint32_t key_space = 0;
  std::uint32_t missing_tokens = 0;  // in the prompt's last unit
};

Trace trace_of(const std::vector<Ask>& asks, std::uint32_t unit_tokens = 1) {
  Trace trace{.name = "test", .unit_tokens = unit_tokens, .key_spaces = {"a", "b"}};
  for (const Ask& ask : asks) {
    trace.requests.push_back({.line = trace.requests.size() + 1,
                              .key_space = ask.key_space,
                              .first_unit = trace.units.size(),
                              .prompt_units = static_cast<std::uint32_t>(ask.prompt.size()),
                              .output_units = static_cast<std::uint32_t>(ask.output.size()),
                              .prompt_tokens = ask.prompt.size() * unit_tokens - ask.missing_tokens});
    trace.units.insert(trace.units.end(), ask.prompt.begin(), ask.prompt.end());
    trace.units.insert(trace.units.end(), ask.output.begin(), ask.output.end());
  }
  return trace;
}

/// Of the bins below a capacity that a bin begins with.
std::uint64_t tokens_below(const TraceFacts& facts, std::uint64_t capacity_tokens) {
  std::uint64_t tokens = 0;
  for (const ReuseBin& bin : facts.reuse_distances()) {
    if (bin.distance_tokens < capacity_tokens) tokens += bin.token_count;
  }
  return tokens;
}

std::vector<std::uint32_t> list(std::span<const std::uint32_t> values) {
  return {values.begin(), values.end()};
}
using Counts = std::vector<std::uint32_t>;

// ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(TraceFacts, ReuseIsWhatEarlierRequestsHadAsPromptOrOutput) {
  const auto facts = TraceFacts::of(trace_of({{.prompt = {1, 2}, .output = {3, 4}},
                                              {.prompt = {1, 2, 3, 5}},
                                              {.prompt = {1, 2, 3, 4}, .key_space = 1},
                                              {.prompt = {2}},
                                              {.prompt = {1, 2, 3, 4, 6}}}));
  EXPECT_EQ(facts.prompt_tokens(), 2U + 4 + 4 + 1 + 5);
  EXPECT_EQ(facts.distinct_tokens(), 4U + 1 + 4 + 1 + 1);
  EXPECT_EQ(list(facts.reusable_units()), (Counts{0, 3, 0, 0, 4}));
  EXPECT_EQ(facts.reusable_tokens(), 7U);
}

TEST(TraceFacts, AnUnitThatIsOnlyBegunHasFewerTokens) {
  const auto facts =
      TraceFacts::of(trace_of({{.prompt = {1, 2}}, {.prompt = {1, 2}, .missing_tokens = 3}, {.prompt = {1, 2}}}, 10));
  EXPECT_EQ(facts.prompt_tokens(), 57U);
  EXPECT_EQ(facts.distinct_tokens(), 20U);
  EXPECT_EQ(facts.reusable_tokens(), 37U);
  EXPECT_EQ(facts.belady(2).hit_tokens, 37U);
  EXPECT_EQ(tokens_below(facts, UINT64_MAX), 37U);
}

TEST(TraceFacts, TheHeadOfARequestIsItsMostRecentUse) {
  const auto facts = TraceFacts::of(trace_of({{.prompt = {1, 2, 3}}, {.prompt = {9}}, {.prompt = {1, 2, 3}}}));
  // At distances 1, 2 and 3.
  ASSERT_EQ(facts.reuse_distances().size(), 3U);
  EXPECT_EQ(facts.reuse_distances()[0].distance_tokens, 0U);
  EXPECT_EQ(facts.reuse_distances()[0].token_count, 0U);
  EXPECT_EQ(facts.reuse_distances()[1].distance_tokens, 1U);
  EXPECT_EQ(facts.reuse_distances()[1].token_count, 1U);
  EXPECT_EQ(facts.reuse_distances()[2].distance_tokens, 2U);
  EXPECT_EQ(facts.reuse_distances()[2].token_count, 2U);
}

TEST(TraceFacts, NoBinIsFinerThanAUnit) {
  const auto facts = TraceFacts::of(trace_of({{.prompt = {1, 2, 3}}, {.prompt = {1, 2, 3}}}, 512));
  ASSERT_EQ(facts.reuse_distances().size(), 3U);
  for (const std::size_t i : {0U, 1U, 2U}) {
    EXPECT_EQ(facts.reuse_distances()[i].distance_tokens, 512U * i);
    EXPECT_EQ(facts.reuse_distances()[i].token_count, 512U);
  }
}

TEST(TraceFacts, TheBoundKeepsWhatIsNeededFirst) {
  const auto facts =
      TraceFacts::of(trace_of({{.prompt = {1}}, {.prompt = {2}}, {.prompt = {3}}, {.prompt = {2}}, {.prompt = {1}}}));
  EXPECT_EQ(facts.belady(0).hit_tokens, 0U);
  EXPECT_EQ(facts.belady(1).hit_units, (Counts{0, 0, 0, 1, 0}));
  EXPECT_EQ(facts.belady(2).hit_units, (Counts{0, 0, 0, 1, 1}));
}

TEST(TraceFacts, TheBoundKeepsTheHeadOfAPromptThatIsTooLong) {
  const auto facts = TraceFacts::of(trace_of({{.prompt = {1, 2, 3, 4}}, {.prompt = {1, 2, 3, 4}}}));
  EXPECT_EQ(facts.belady(3).hit_units, (Counts{0, 3}));
}

TEST(TraceFacts, WhatIsWrittenAnewNeedsNoPlaceUntilThen) {
  // 6 behind 5 comes as output once more before a prompt needs it, so that 8 and 9 have its place in between.
  const auto facts = TraceFacts::of(trace_of({{.prompt = {5}, .output = {6}},
                                              {.prompt = {9}},
                                              {.prompt = {8}},
                                              {.prompt = {8}},
                                              {.prompt = {5}, .output = {6}},
                                              {.prompt = {5, 6}},
                                              {.prompt = {9}}}));
  EXPECT_EQ(facts.belady(3).hit_units, (Counts{0, 0, 0, 1, 1, 2, 1}));
}

TEST(TraceFacts, DeepAndWideTracesAreNoMatter) {
  // A chat of 2,000 turns, and 2,000 requests that part at their first unit.
  std::vector<Ask> asks;
  std::vector<TokenId> text;
  for (TokenId i = 0; i < 2'000; ++i) {
    text.push_back(i);
    asks.push_back({.prompt = text});
    asks.push_back({.prompt = {10'000 + i}});
  }
  const auto facts = TraceFacts::of(trace_of(asks));
  EXPECT_EQ(facts.distinct_tokens(), 4'000U);
  EXPECT_EQ(facts.reusable_tokens(), 1'999U * 2'000 / 2);
  EXPECT_EQ(facts.belady(2'000).hit_tokens, facts.reusable_tokens());
}

// ── beside the twin ─────────────────────────────────────────────────────────────────────────────────────────────────

struct NaiveRequest {
  std::vector<int> path;  // a number for each unit, which stands for the prefix that ends with it
  std::uint32_t prompt_units = 0;
};

std::vector<NaiveRequest> naive_requests(const Trace& trace) {
  std::map<std::pair<std::uint32_t, std::vector<TokenId>>, int> numbers;
  std::vector<NaiveRequest> requests;
  for (const TraceRequest& request : trace.requests) {
    NaiveRequest naive{.prompt_units = request.prompt_units};
    std::vector<TokenId> prefix;
    for (const TokenId unit : trace.path(request)) {
      prefix.push_back(unit);
      naive.path.push_back(
          numbers.try_emplace({request.key_space, prefix}, static_cast<int>(numbers.size())).first->second);
    }
    requests.push_back(std::move(naive));
  }
  return requests;
}

template <typename Contains>
std::uint32_t prefix_within(const NaiveRequest& request, Contains contains) {
  std::uint32_t units = 0;
  while (units < request.prompt_units && contains(request.path[units])) ++units;
  return units;
}

std::vector<std::uint32_t> naive_reusable(const std::vector<NaiveRequest>& requests) {
  std::set<int> seen;
  std::vector<std::uint32_t> reusable;
  for (const NaiveRequest& request : requests) {
    reusable.push_back(prefix_within(request, [&](int unit) { return seen.contains(unit); }));
    seen.insert(request.path.begin(), request.path.end());
  }
  return reusable;
}

/// The most recently used first; what lies beyond the capacity is gone.
std::vector<std::uint32_t> naive_lru(const std::vector<NaiveRequest>& requests, std::size_t capacity) {
  std::vector<int> stack;
  std::vector<std::uint32_t> hits;
  for (const NaiveRequest& request : requests) {
    hits.push_back(
        prefix_within(request, [&](int unit) { return std::find(stack.begin(), stack.end(), unit) != stack.end(); }));
    for (const int unit : std::ranges::reverse_view(request.path)) {
      std::erase(stack, unit);
      stack.insert(stack.begin(), unit);
    }
    stack.resize(std::min(stack.size(), capacity));
  }
  return hits;
}

std::vector<std::uint32_t> naive_belady(const std::vector<NaiveRequest>& requests, std::size_t capacity) {
  // When, and how deep in its path, a unit is needed next.
  const auto need_after = [&](std::size_t now, int unit) -> std::pair<std::size_t, std::size_t> {
    for (std::size_t i = now + 1; i < requests.size(); ++i) {
      const auto& path = requests[i].path;
      const auto depth = static_cast<std::size_t>(std::find(path.begin(), path.end(), unit) - path.begin());
      if (depth < requests[i].prompt_units) return {i, depth};
      if (depth < path.size()) break;
    }
    return {SIZE_MAX, SIZE_MAX};
  };
  std::set<int> cached;
  std::vector<std::uint32_t> hits;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    hits.push_back(prefix_within(requests[i], [&](int unit) { return cached.contains(unit); }));
    cached.insert(requests[i].path.begin(), requests[i].path.end());
    while (cached.size() > capacity) {
      cached.erase(*std::max_element(cached.begin(), cached.end(),
                                     [&](int a, int b) { return need_after(i, a) < need_after(i, b); }));
    }
  }
  return hits;
}

/// The most hits that any choice of victims can have: all reachable contents of the cache, each with its best score.
std::uint32_t best_hits(const std::vector<NaiveRequest>& requests, int capacity) {
  std::map<std::uint32_t, std::uint32_t> best = {{0, 0}};
  for (const NaiveRequest& request : requests) {
    std::uint32_t path = 0;
    for (const int unit : request.path) path |= 1U << static_cast<unsigned>(unit);
    std::map<std::uint32_t, std::uint32_t> next;
    for (const auto& [cached, hits] : best) {
      const std::uint32_t hit = prefix_within(
          request, [contents = cached](int unit) { return ((contents >> static_cast<unsigned>(unit)) & 1U) != 0; });
      const std::uint32_t offered = cached | path;
      const int kept = std::min(capacity, std::popcount(offered));
      // All subsets of what is offered, from the largest to the empty one.
      for (std::uint32_t subset = offered;; subset = (subset - 1) & offered) {
        if (std::popcount(subset) == kept) next[subset] = std::max(next[subset], hits + hit);
        if (subset == 0) break;
      }
    }
    best = std::move(next);
  }
  std::uint32_t most = 0;
  for (const auto& [cached, hits] : best) most = std::max(most, hits);
  return most;
}

std::uint64_t tokens_of(const Trace& trace, const std::vector<std::uint32_t>& units) {
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    tokens += std::min(std::uint64_t{units[i]} * trace.unit_tokens, trace.requests[i].prompt_tokens);
  }
  return tokens;
}

/// New requests often go on from old ones, or begin like them.
Trace draw_trace(testing::Random& random, std::uint32_t request_count, std::uint32_t units_max) {
  const std::uint32_t unit_tokens = random.below(2) == 0 ? 1 : 1 + random.below(6);
  const std::uint32_t alphabet = 1 + random.below(4);
  std::vector<Ask> asks;
  while (asks.size() < request_count) {
    Ask ask{.key_space = random.below(4) == 0 ? 1U : 0U, .missing_tokens = random.below(unit_tokens)};
    if (!asks.empty() && random.below(4) != 0) {
      const Ask& old = asks[random.below(static_cast<std::uint32_t>(asks.size()))];
      ask.prompt = old.prompt;
      ask.prompt.insert(ask.prompt.end(), old.output.begin(), old.output.end());
      if (random.below(2) == 0) ask.prompt.resize(random.below(static_cast<std::uint32_t>(ask.prompt.size()) + 1));
    }
    const auto extend = [&](std::vector<TokenId>& units, std::uint32_t count) {
      while (count-- > 0) units.push_back(static_cast<TokenId>(random.below(alphabet)));
    };
    extend(ask.prompt, random.below(4));
    if (ask.prompt.empty()) ask.prompt.push_back(0);
    if (ask.prompt.size() > units_max) ask.prompt.resize(units_max);
    extend(ask.output, random.below(3) == 0 ? random.below(4) : 0);
    asks.push_back(std::move(ask));
  }
  return trace_of(asks, unit_tokens);
}

class FactsModel {
 public:
  static std::string apply(const testing::Op& op) {
    testing::Random random((std::uint64_t{op.kind} << 40U) ^ (std::uint64_t{op.draws[0]} << 20U) ^ op.draws[1]);
    const Trace trace = draw_trace(random, 1 + random.below(24), 12);
    const auto requests = naive_requests(trace);
    const auto facts = TraceFacts::of(trace);

    std::set<int> distinct;
    for (const NaiveRequest& request : requests) distinct.insert(request.path.begin(), request.path.end());
    if (facts.distinct_tokens() != distinct.size() * trace.unit_tokens) return "distinct tokens differ";
    const auto reusable = naive_reusable(requests);
    if (list(facts.reusable_units()) != reusable) return "reusable units differ";
    if (facts.reusable_tokens() != tokens_of(trace, reusable)) return "reusable tokens differ";

    for (const ReuseBin& bin : facts.reuse_distances()) {
      // The units below the bin's first token, the last of them perhaps only in part.
      const std::size_t capacity = (bin.distance_tokens + trace.unit_tokens - 1) / trace.unit_tokens;
      if (tokens_below(facts, bin.distance_tokens) != tokens_of(trace, naive_lru(requests, capacity))) {
        return "LRU finds something else with " + std::to_string(capacity) + " units";
      }
    }
    if (tokens_below(facts, UINT64_MAX) != facts.reusable_tokens()) return "reuse distances do not add up";

    for (const std::size_t capacity :
         {std::size_t{0}, std::size_t{1 + random.below(8)}, distinct.size() / 2, distinct.size()}) {
      const BeladyBound bound = facts.belady(capacity);
      const auto expected = naive_belady(requests, capacity);
      if (bound.hit_units != expected) return "the bound differs with " + std::to_string(capacity) + " units";
      const std::uint64_t units = std::accumulate(expected.begin(), expected.end(), std::uint64_t{0});
      if (bound.hit_tokens != std::min(units * trace.unit_tokens, facts.reusable_tokens())) {
        return "the bound's tokens differ";
      }
    }
    return "";
  }
};

TEST(TraceFacts, AgreesWithATwinThatLooksAtSingleUnits) {
  EXPECT_EQ(
      testing::run_seeds(
          {.test = "bin/trace_facts_test --gtest_filter=TraceFacts.AgreesWith*", .seed_count = 20, .step_count = 50},
          [](testing::Random&) { return FactsModel(); }),
      "");
}

class BoundModel {
 public:
  static std::string apply(const testing::Op& op) {
    testing::Random random((std::uint64_t{op.kind} << 40U) ^ (std::uint64_t{op.draws[0]} << 20U) ^ op.draws[1]);
    const Trace trace = draw_trace(random, 2 + random.below(8), 4);
    const auto requests = naive_requests(trace);
    for (const NaiveRequest& request : requests) {
      if (*std::max_element(request.path.begin(), request.path.end()) >= 11) return "";  // too many to try all
    }
    const auto facts = TraceFacts::of(trace);
    for (int capacity = 1; capacity <= 5; ++capacity) {
      std::uint32_t hits = 0;
      for (const std::uint32_t units : facts.belady(static_cast<std::uint64_t>(capacity)).hit_units) hits += units;
      const std::uint32_t best = best_hits(requests, capacity);
      if (hits != best) {
        return "the bound is " + std::to_string(hits) + " units, the best choice of victims has " +
               std::to_string(best) + ", with a capacity of " + std::to_string(capacity);
      }
    }
    return "";
  }
};

TEST(TraceFacts, NoChoiceOfVictimsBeatsTheBound) {
  EXPECT_EQ(
      testing::run_seeds(
          {.test = "bin/trace_facts_test --gtest_filter=TraceFacts.NoChoice*", .seed_count = 10, .step_count = 30},
          [](testing::Random&) { return BoundModel(); }),
      "");
}

// ── on a published trace ────────────────────────────────────────────────────────────────────────────────────────────

TEST(ConversationTrace, HasItsPublishedFigures) {
  if (const std::string why = testing::why_no_conversation_trace(); !why.empty()) GTEST_SKIP() << why;
  const auto trace = read_trace(testing::conversation_trace_path(), {});
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  EXPECT_EQ(trace->requests.size(), 12'031U);
  EXPECT_EQ(trace->requests.back().line, 12'031U);
  const auto facts = TraceFacts::of(*trace);
  const auto share = [&](std::uint64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(facts.prompt_tokens());
  };
  EXPECT_NEAR(share(facts.reusable_tokens()), 0.3736, 0.0001);

  struct Published {
    std::uint64_t pages = 0;
    double lru = 0;
    double belady = 0;
  };
  constexpr std::array<Published, 9> kPublished = {{{195, .0427, .0915},
                                                    {1953, .0543, .2577},
                                                    {3906, .0865, .3266},
                                                    {5859, .1387, .3601},
                                                    {9766, .2112, .3736},
                                                    {19531, .2908, .3736},
                                                    {48828, .3609, .3736},
                                                    {97656, .3707, .3736},
                                                    {195312, .3736, .3736}}};
  for (const Published& row : kPublished) {
    EXPECT_NEAR(share(facts.belady(row.pages).hit_tokens), row.belady, 0.001) << row.pages << " pages";
  }
  // Bins begin at powers of two, so that LRU is known there; in between it can only rise.
  for (const Published& row : kPublished) {
    const std::uint64_t below_pages = std::bit_floor(row.pages);
    EXPECT_LE(share(tokens_below(facts, below_pages * 512)), row.lru + 0.0001) << below_pages << " pages";
    EXPECT_GE(share(tokens_below(facts, 2 * below_pages * 512)), row.lru - 0.0001) << 2 * below_pages << " pages";
  }
}

}  // namespace
}  // namespace quire
