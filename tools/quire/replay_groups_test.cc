// SPDX-License-Identifier: Apache-2.0
//
// Replays of models with several groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/budget.h"
#include "quire/cache.h"
#include "quire/layout.h"
#include "replay.h"
#include "test_traces.h"
#include "trace.h"
#include "trace_facts.h"

namespace quire {
namespace {

using testing::counting;
using testing::TraceBuilder;

constexpr const char* kModels[] = {"deepseek-v4-flash", "gpt-oss-120b", "qwen3-next-80b"};

Result<ReplayOutcome> try_replay(const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings) {
  ReplayControl control;
  return replay(trace, TraceFacts::of(trace), config, settings, control);
}

ReplayOutcome replayed(const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings) {
  Result<ReplayOutcome> outcome = try_replay(trace, config, settings);
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? *std::move(outcome) : ReplayOutcome{};
}

std::uint32_t page_tokens_of(const std::string& model) {
  const Result<std::uint32_t> tokens = usual_page_tokens(TraceBuilder{}.trace(), model);
  EXPECT_TRUE(tokens);
  return tokens.value_or(0);
}

std::vector<std::string> models_with_groups() {
  std::vector<std::string> names;
  for (const std::string_view name : preset_names()) {
    const Result<bool> has_groups = has_several_groups(std::string(name));
    EXPECT_TRUE(has_groups);
    if (has_groups.value_or(false)) names.emplace_back(name);
  }
  return names;
}

/// Chats that take turns and share a document, in two key spaces.
Trace chats(std::uint32_t chat_count, std::uint32_t round_count, std::uint32_t turn_tokens = 300) {
  TraceBuilder builder;
  std::mt19937_64 draws(7);
  std::map<std::uint32_t, std::vector<TokenId>> texts;
  for (std::uint32_t round = 0; round < round_count; ++round) {
    for (std::uint32_t chat = 0; chat < chat_count; ++chat) {
      std::vector<TokenId>& text = texts[chat];
      if (text.empty()) text = counting(0, 400);
      const auto add = [&](std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) text.push_back(static_cast<TokenId>(1'000 + (draws() % 30'000)));
      };
      add(1 + (draws() % turn_tokens));
      const std::vector<TokenId> prompt = text;
      add(draws() % 90);
      builder.add({.key_space = chat % 3 == 0 ? "ann" : "bob",
                   .prompt = prompt,
                   .output = {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()}});
    }
  }
  return builder.trace();
}

std::uint64_t longest_tokens(const Trace& trace) {
  std::uint64_t longest = 0;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max<std::uint64_t>(longest, request.prompt_units + request.output_units);
  }
  return longest;
}

/// What no cache can exceed: the longest common beginning with a request before, less what a hit cannot have.
std::uint64_t most_hit_tokens(const Trace& trace, const ModelLayout& layout, std::uint32_t page_tokens) {
  const bool has_state = std::ranges::any_of(layout.groups(), [](const CacheGroup& group) { return has_slot(group); });
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const std::span<const TokenId> prompt = trace.prompt(trace.requests[i]);
    std::size_t most = 0;
    for (std::size_t j = 0; j < i; ++j) {
      if (trace.requests[j].key_space != trace.requests[i].key_space) continue;
      const std::span<const TokenId> path = trace.path(trace.requests[j]);
      const auto parted = std::ranges::mismatch(prompt, path).in1;
      most = std::max<std::size_t>(most, static_cast<std::size_t>(parted - prompt.begin()));
    }
    // A state counts every token once, so the last one of a prompt must not be in it; and it is kept at page ends.
    if (has_state) most = std::min(most, prompt.size() - 1) / page_tokens * page_tokens;
    sum += most / layout.hit_multiple_tokens() * layout.hit_multiple_tokens();
  }
  return sum;
}

void expect_rows_add_up(const ReplayOutcome& outcome, const std::string& model) {
  const ModelLayout layout = *preset(model);
  ASSERT_EQ(outcome.groups.size(), layout.groups().size());
  std::uint64_t bytes = 0;
  std::uint64_t limited = 0;
  for (std::size_t i = 0; i < outcome.groups.size(); ++i) {
    const GroupOutcome& group = outcome.groups[i];
    const GroupStats& stats = group.stats;
    SCOPED_TRACE(model + ", " + group.name);
    EXPECT_EQ(group.name, layout.groups()[i].name);
    EXPECT_EQ(stats.page_count,
              stats.free_pages + stats.open_pages + stats.sealed_pages + stats.private_pages + stats.fenced_pages);
    EXPECT_EQ(stats.pinned_pages, 0U);
    EXPECT_EQ(stats.open_pages, 0U);
    EXPECT_EQ(stats.used_slots, 0U);
    EXPECT_EQ(stats.sealed_pages, stats.sealed_page_total - stats.evicted_page_total - stats.dropped_page_total);
    if (group.page_bytes > 0) bytes += (stats.page_count + std::uint64_t{1}) * group.page_bytes;
    bytes += stats.slot_count * group.slot_bytes;
    limited += group.limited.request_count;
    EXPECT_LE(group.limited.token_count, outcome.prompt_tokens - outcome.hit_tokens);
    const bool is_history =
        layout.groups()[i].kind == GroupKind::Full || layout.groups()[i].kind == GroupKind::Compressed;
    if (!is_history) continue;
    EXPECT_EQ(stats.page_count, outcome.page_count);
    EXPECT_EQ(stats.sealed_page_total, outcome.sealed_pages);
    EXPECT_EQ(stats.evicted_page_total, outcome.evicted_pages);
    EXPECT_EQ(group.limited.request_count, 0U) << "it keeps everything";
  }
  EXPECT_EQ(bytes, outcome.device_bytes);
  EXPECT_LE(limited, outcome.request_count);
  EXPECT_EQ(outcome.shared_hit_tokens, 0U);
}

TEST(ReplayGroups, EveryModelIsReplayedAndItsRowsAddUp) {
  const Trace trace = chats(5, 8);
  for (const std::string& model : models_with_groups()) {
    const ModelLayout layout = *preset(model);
    const std::uint32_t page_tokens = page_tokens_of(model);
    const std::uint64_t most = most_hit_tokens(trace, layout, page_tokens);
    std::uint64_t last_hits = 0;
    for (const std::uint64_t capacity : {4'096U, 8'192U, 65'536U}) {
      for (const std::uint32_t running_max : {1U, 4U}) {
        SCOPED_TRACE(model + " " + std::to_string(capacity));
        const ReplayOutcome outcome = replayed(trace, {.page_tokens = page_tokens, .capacity_tokens = capacity},
                                               {.model = model, .running_max = running_max});
        expect_rows_add_up(outcome, model);
        EXPECT_LE(outcome.hit_tokens, most);
        if (running_max == 1) last_hits = outcome.hit_tokens;
      }
    }
    EXPECT_GT(last_hits, most / 2) << model << ": there was room for everything";
  }
}

TEST(ReplayGroups, BytesOfAllGroupsAreWhatWasWritten) {
  for (const char* const model : kModels) {
    SCOPED_TRACE(model);
    const bool is_large = std::string_view(model) == "qwen3-next-80b";
    const Trace trace = is_large ? chats(2, 2, 100) : chats(3, 4);
    const std::uint64_t capacity = (longest_tokens(trace) / 128 + 1) * 128 * 3;
    for (const std::uint32_t running_max : {1U, 2U}) {
      const ReplayOutcome outcome = replayed(trace, {.page_tokens = page_tokens_of(model), .capacity_tokens = capacity},
                                             {.model = model, .bytes = BytesMode::Verify, .running_max = running_max});
      EXPECT_FALSE(outcome.corruption);
      EXPECT_GT(outcome.hit_tokens, 0U);
      EXPECT_GT(outcome.verified_bytes, outcome.hit_tokens);
      expect_rows_add_up(outcome, model);
      if (is_large) break;
    }
  }
}

TEST(ReplayGroups, ADamagedByteEndsTheReplayWithItsGroup) {
  const ReplayOutcome outcome =
      replayed(chats(3, 4), {.page_tokens = 128, .capacity_tokens = 8'192},
               {.model = "deepseek-v4-flash", .bytes = BytesMode::Verify, .flip_a_byte = true});
  ASSERT_TRUE(outcome.corruption);
  EXPECT_EQ(outcome.corruption->group, "entries_4");
  EXPECT_FALSE(outcome.corruption->is_slot);
}

TEST(ReplayGroups, BytesChangeNothingInTheFigures) {
  const Trace trace = chats(3, 4);
  for (const char* const model : {"deepseek-v4-flash", "gpt-oss-120b"}) {
    const ReplayConfig config{.page_tokens = page_tokens_of(model), .capacity_tokens = 4'096};
    const ReplayOutcome without = replayed(trace, config, {.model = model});
    const ReplayOutcome with = replayed(trace, config, {.model = model, .bytes = BytesMode::Verify});
    EXPECT_EQ(without.hit_tokens, with.hit_tokens) << model;
    EXPECT_EQ(without.verified_bytes, 0U);
    for (std::size_t i = 0; i < without.groups.size(); ++i) {
      EXPECT_EQ(without.groups[i].stats.evicted_page_total, with.groups[i].stats.evicted_page_total);
      EXPECT_EQ(without.groups[i].limited.request_count, with.groups[i].limited.request_count);
    }
  }
}

TEST(ReplayGroups, WithRoomForEverythingAWindowCostsNoHits) {
  const Trace trace = chats(5, 8);
  const ReplayConfig config{.page_tokens = 16, .capacity_tokens = 1U << 20U};
  const ReplayOutcome window = replayed(trace, config, {.model = "gpt-oss-120b"});
  const ReplayOutcome full = replayed(trace, config, {.model = "llama-3-8b"});
  EXPECT_EQ(window.hit_tokens, full.hit_tokens);
  EXPECT_EQ(window.partial_hit_tokens, full.partial_hit_tokens);
  EXPECT_TRUE(full.groups.empty());
}

// Of all groups: what falls off a small device is found again, and no more than a pool as large as both tiers finds.
TEST(ReplayGroups, AHostTierMakesUpForASmallDevice) {
  const Trace trace = chats(24, 6);
  const TraceFacts facts = TraceFacts::of(trace);
  for (const char* model : {"gpt-oss-120b", "qwen3-next-80b", "deepseek-v4-flash"}) {
    SCOPED_TRACE(model);
    const std::uint32_t page_tokens = usual_page_tokens(trace, model).value();
    const ReplayConfig config{.page_tokens = page_tokens, .capacity_tokens = 4'096};
    ReplaySettings settings{.model = model};
    const ReplayOutcome alone = replayed(trace, config, settings);
    settings.host.capacity_bytes = std::uint64_t{400} << 30U;
    const ReplayOutcome both = replayed(trace, config, settings);
    EXPECT_GT(both.hit_tokens, alone.hit_tokens + (alone.hit_tokens / 4));
    ASSERT_TRUE(both.host.has_value());
    EXPECT_GT(both.host->hit_tokens, 0U);
    const ReplayPool pool = pool_of(trace, config, settings).value();
    EXPECT_GT(pool.host_page_count, 0U);
    EXPECT_LE(pool.host_bytes, settings.host.capacity_bytes);
    const std::uint64_t all_tokens = (std::uint64_t{pool.page_count} + pool.host_page_count) * page_tokens;
    EXPECT_LE(both.hit_tokens, facts.belady(all_tokens / trace.unit_tokens).hit_tokens);
  }
}

TEST(ReplayGroups, HitsOfStatesEndWhereSnapshotsAre) {
  // Twice the same prompt, then one that goes on: the end of the prompt has a snapshot, one token before it at least.
  TraceBuilder builder;
  builder.add({.prompt = counting(0, 1'000)});
  builder.add({.prompt = counting(0, 1'000)});
  builder.add({.prompt = counting(0, 1'500)});
  const ReplayOutcome outcome =
      replayed(builder.trace(), {.page_tokens = 16, .capacity_tokens = 1U << 16U}, {.model = "qwen3-next-80b"});
  EXPECT_EQ(outcome.hit_tokens, 992U + 992U);
  ASSERT_EQ(outcome.groups.size(), 2U);
  EXPECT_EQ(outcome.groups[1].stats.restored_snapshot_total, 2U);
  EXPECT_EQ(outcome.groups[1].stats.skipped_snapshot_total, 0U);
}

TEST(ReplayGroups, ARequestThatAGroupLimitedIsCountedThere) {
  // The second prompt leaves the first in the middle, where nobody has kept a state: it leaves one for the third.
  TraceBuilder builder;
  builder.add({.prompt = counting(0, 1'000)});
  for (const TokenId other : {5'000, 6'000}) {
    std::vector<TokenId> prompt = counting(0, 512);
    const std::vector<TokenId> rest = counting(other, 100);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    builder.add({.prompt = prompt});
  }
  const ReplayOutcome outcome =
      replayed(builder.trace(), {.page_tokens = 16, .capacity_tokens = 1U << 16U}, {.model = "qwen3-next-80b"});
  EXPECT_EQ(outcome.hit_tokens, 512U);
  EXPECT_EQ(outcome.groups[0].limited.request_count, 0U);
  EXPECT_EQ(outcome.groups[1].limited.request_count, 1U);
  EXPECT_EQ(outcome.groups[1].limited.token_count, 612U);
}

TEST(ReplayGroups, UnitsAreReplayedAsTokensWhateverThePageSize) {
  TraceBuilder builder(512);
  builder.add({.prompt = {1, 2, 3}, .prompt_tokens = 1'100});
  builder.add({.prompt = {1, 2, 4, 5}, .prompt_tokens = 1'600});
  builder.add({.prompt = {1, 2, 4, 6}, .prompt_tokens = 2'000});
  const Trace& trace = builder.trace();
  // What is shared ends with whole units, and there windows keep what they need.
  for (const std::uint32_t page_tokens : {16U, 64U, 512U}) {
    const ReplayOutcome outcome =
        replayed(trace, {.page_tokens = page_tokens, .capacity_tokens = 16'384}, {.model = "gpt-oss-120b"});
    EXPECT_EQ(outcome.hit_tokens, 1'024U + 1'536U) << page_tokens;
    EXPECT_EQ(outcome.prompt_tokens, 4'700U);
    EXPECT_EQ(outcome.shared_hit_tokens, 0U);
  }
}

TEST(ReplayGroups, ACapacityInTokensTakesTheFewestBytesThatHoldThem) {
  const Trace trace = chats(2, 2);
  for (const char* const model : kModels) {
    const std::uint32_t page_tokens = page_tokens_of(model);
    const ReplaySettings settings{.model = model};
    const std::uint64_t tokens = 64 * std::uint64_t{page_tokens} + 4'096;
    const Result<ReplayPool> pool = pool_of(trace, {.page_tokens = page_tokens, .capacity_tokens = tokens}, settings);
    ASSERT_TRUE(pool) << pool.error().message;
    EXPECT_EQ(pool->page_count, tokens / page_tokens);
    const auto pages_within = [&](std::uint64_t bytes) {
      const Result<ReplayPool> within = pool_of(trace, {.page_tokens = page_tokens, .capacity_bytes = bytes}, settings);
      EXPECT_TRUE(within);
      return within ? within->page_count : 0;
    };
    EXPECT_EQ(pages_within(pool->device_bytes), pool->page_count) << model;
    EXPECT_LT(pages_within(pool->device_bytes - 1), pool->page_count) << model;
    EXPECT_EQ(pool->bytes(), pool->device_bytes);
  }
}

TEST(ReplayGroups, TheLongestMixSharesBytesOutForTheLongestRequest) {
  const Trace trace = chats(3, 4);
  for (const char* const model : kModels) {
    const std::uint32_t page_tokens = page_tokens_of(model);
    constexpr std::uint64_t kBytes = std::uint64_t{3} << 30U;
    const Result<ReplayPool> pool = pool_of(trace, {.page_tokens = page_tokens, .capacity_bytes = kBytes},
                                            {.model = model, .mix = RequestMix::Longest});
    ASSERT_TRUE(pool) << pool.error().message;
    const auto longest = static_cast<std::uint32_t>(longest_tokens(trace));
    const Result<Budget> budget = solve_budget(*preset(model), {.page = {.page_tokens = page_tokens},
                                                                .device_bytes = kBytes,
                                                                .context_tokens_max = longest,
                                                                .sequence_count_max = 1,
                                                                .in_flight_tokens = std::min(longest, 2'048U)});
    ASSERT_TRUE(budget) << budget.error().message;
    for (const GroupBudget& group : budget->tiers.front().groups) {
      const GroupKind kind = preset(model)->groups()[group.group_index].kind;
      if (kind == GroupKind::Full || kind == GroupKind::Compressed) continue;  // these have as many as the fewest
      EXPECT_EQ(pool->groups[group.group_index].stats.page_count, group.page_count) << model;
    }
  }
}

TEST(ReplayGroups, WhatCannotWorkIsSaidBeforehand) {
  const Trace trace = chats(2, 2);
  const auto why_not = [&](const ReplayConfig& config, const ReplaySettings& settings) {
    const Status status = check_replay(trace, config, settings);
    const Result<ReplayOutcome> outcome = try_replay(trace, config, settings);
    EXPECT_FALSE(status);
    EXPECT_FALSE(outcome);
    if (status || outcome) return std::string();
    EXPECT_EQ(status.error().message, outcome.error().message);
    return status.error().message;
  };
  EXPECT_EQ(
      why_not({.page_tokens = 96, .capacity_tokens = 1U << 20U}, {.model = "deepseek-v4-flash"}),
      "group 'entries_128': a page of 96 tokens holds no whole number of entries of 128 tokens: use a multiple of "
      "128");
  EXPECT_EQ(why_not({.page_tokens = 0, .capacity_tokens = 1U << 20U}, {.model = "gpt-oss-120b"}),
            "--page-tokens is 0: a page holds at least one token");
  EXPECT_TRUE(why_not({.page_tokens = 16, .capacity_tokens = 64}, {.model = "gpt-oss-120b"})
                  .starts_with("--capacity-tokens 64: the longest request of the trace has "));
  EXPECT_TRUE(why_not({.page_tokens = 16, .capacity_bytes = 1'000'000}, {.model = "qwen3-next-80b"})
                  .starts_with("budget of layout 'qwen3-next-80b': one request of "));
  EXPECT_EQ(why_not({.page_tokens = 16, .capacity_tokens = 1U << 20U}, {.model = "gpt-oss-120b", .running_max = 0}),
            "--running-max is 0: use 1 to 4,096");
}

TEST(ReplayGroups, PagesHaveSixteenTokensOrAsManyAsMakeWholeEntries) {
  const Trace tokens = TraceBuilder{}.trace();
  const Trace units = TraceBuilder{512}.trace();
  EXPECT_EQ(usual_page_tokens(tokens, ""), 16U);
  EXPECT_EQ(usual_page_tokens(units, ""), 512U);
  EXPECT_EQ(usual_page_tokens(units, "llama-3-8b"), 512U);
  EXPECT_EQ(usual_page_tokens(units, "gpt-oss-120b"), 16U);
  EXPECT_EQ(usual_page_tokens(tokens, "deepseek-v4-pro"), 128U);
  EXPECT_FALSE(usual_page_tokens(tokens, "gpt-2"));
}

}  // namespace
}  // namespace quire
