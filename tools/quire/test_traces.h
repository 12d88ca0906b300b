// SPDX-License-Identifier: Apache-2.0
//
// Small traces for tests, written by hand or drawn from a seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "replay.h"
#include "trace.h"

namespace quire::testing {

/// Where the conversation trace published with Mooncake would be: in $QUIRE_TRACES, or in a folder beside this
/// repository. It is not part of the project.
inline std::string conversation_trace_path() {
  const char* const folder = std::getenv("QUIRE_TRACES");
  const std::filesystem::path traces =
      folder != nullptr ? std::filesystem::path(folder) : std::filesystem::path(QUIRE_SOURCE_DIR) / "../shared/traces";
  return (traces / "mooncake_conversation.jsonl").lexically_normal().string();
}

/// Empty, or why tests that need the conversation trace cannot run: for them to say.
inline std::string why_no_conversation_trace() {
  constexpr std::uintmax_t kPublishedBytes = 3'029'533;
  const std::string path = conversation_trace_path();
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return "there is no " + path + ": set QUIRE_TRACES to its folder";
  if (bytes == kPublishedBytes) return "";
  return path + " has " + std::to_string(bytes) + " bytes, and the published trace " + std::to_string(kPublishedBytes);
}

/// `count` tokens from `first` on.
inline std::vector<TokenId> counting(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct AddedRequest {
  std::string key_space = "default";
  std::vector<TokenId> prompt;
  std::vector<TokenId> output;
  std::uint64_t prompt_tokens = 0;  ///< 0: all tokens of its units
  TimeNs timestamp_ns = 0;
  std::int8_t priority = 0;
};

class TraceBuilder {
 public:
  explicit TraceBuilder(std::uint32_t unit_tokens = 1) {
    trace_.name = "built";
    trace_.unit_tokens = unit_tokens;
  }

  void add(const AddedRequest& added) {
    auto space = std::ranges::find(trace_.key_spaces, added.key_space);
    if (space == trace_.key_spaces.end()) space = trace_.key_spaces.insert(space, added.key_space);
    const std::uint64_t prompt_tokens = added.prompt.size() * trace_.unit_tokens;
    trace_.requests.push_back({.line = trace_.requests.size() + 1,
                               .timestamp_ns = added.timestamp_ns,
                               .key_space = static_cast<std::uint32_t>(space - trace_.key_spaces.begin()),
                               .priority = added.priority,
                               .first_unit = trace_.units.size(),
                               .prompt_units = static_cast<std::uint32_t>(added.prompt.size()),
                               .output_units = static_cast<std::uint32_t>(added.output.size()),
                               .prompt_tokens = added.prompt_tokens != 0 ? added.prompt_tokens : prompt_tokens});
    trace_.units.insert(trace_.units.end(), added.prompt.begin(), added.prompt.end());
    trace_.units.insert(trace_.units.end(), added.output.begin(), added.output.end());
  }

  [[nodiscard]] const Trace& trace() const { return trace_; }

 private:
  Trace trace_;
};

struct RandomTraceOptions {
  std::uint64_t seed = 1;
  std::uint32_t unit_tokens = 1;
  std::uint32_t key_space_count = 1;
  std::uint32_t request_count = 300;
  std::uint32_t repeat_units = 1;  ///< each drawn unit stands so many times in a row
  bool has_output = true;
};

/// Requests that continue, repeat or branch off earlier ones, or are new. Tenants draw from the same prompts.
inline Trace random_trace(const RandomTraceOptions& options) {
  std::mt19937_64 draws(options.seed);
  const auto below = [&](std::uint64_t count) { return draws() % count; };
  const auto drawn = [&](std::size_t count) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < count; ++i) {
      tokens.insert(tokens.end(), options.repeat_units, static_cast<TokenId>(below(50)));
    }
    return tokens;
  };
  TraceBuilder builder(options.unit_tokens);
  std::vector<std::vector<TokenId>> known;
  TimeNs now = 0;
  for (std::uint32_t i = 0; i < options.request_count; ++i) {
    std::vector<TokenId> prompt;
    if (!known.empty() && below(4) != 0) {
      prompt = known[known.size() - 1 - below(std::min<std::size_t>(known.size(), 12))];
      if (below(3) == 0) prompt.resize(options.repeat_units * (1 + below(prompt.size() / options.repeat_units)));
    }
    const std::vector<TokenId> question = drawn(1 + below(prompt.empty() ? 20 : 5));
    prompt.insert(prompt.end(), question.begin(), question.end());
    if (prompt.size() > std::size_t{80} * options.repeat_units) prompt.resize(std::size_t{80} * options.repeat_units);
    const std::vector<TokenId> output = options.has_output ? drawn(below(6)) : std::vector<TokenId>{};
    now += static_cast<TimeNs>(below(2'000'000'000));
    builder.add({.key_space = "tenant " + std::to_string(below(options.key_space_count)),
                 .prompt = prompt,
                 .output = output,
                 .timestamp_ns = now});
    prompt.insert(prompt.end(), output.begin(), output.end());
    known.push_back(std::move(prompt));
  }
  return builder.trace();
}

/// Everything that two replays found is the same.
inline void expect_equal(const ReplayOutcome& one, const ReplayOutcome& other) {
  ASSERT_EQ(one.host.has_value(), other.host.has_value());
  if (one.host) {
    EXPECT_EQ(one.host->page_count, other.host->page_count);
    EXPECT_EQ(one.host->hit_tokens, other.host->hit_tokens);
    EXPECT_EQ(one.host->stored_bytes, other.host->stored_bytes);
    EXPECT_EQ(one.host->loaded_bytes, other.host->loaded_bytes);
    EXPECT_EQ(one.host->evicted_pages, other.host->evicted_pages);
    EXPECT_EQ(one.host->lost_pages, other.host->lost_pages);
    for (std::size_t i = 0; i < kMissReasonCount; ++i) {
      EXPECT_EQ(one.host->misses[i].request_count, other.host->misses[i].request_count);
      EXPECT_EQ(one.host->misses[i].token_count, other.host->misses[i].token_count);
    }
  }
  EXPECT_EQ(one.config.policy, other.config.policy);
  EXPECT_EQ(one.config.page_tokens, other.config.page_tokens);
  EXPECT_EQ(one.config.capacity_tokens, other.config.capacity_tokens);
  EXPECT_EQ(one.page_count, other.page_count);
  EXPECT_EQ(one.page_bytes, other.page_bytes);
  EXPECT_EQ(one.request_count, other.request_count);
  EXPECT_EQ(one.prompt_tokens, other.prompt_tokens);
  EXPECT_EQ(one.hit_tokens, other.hit_tokens);
  EXPECT_EQ(one.partial_hit_tokens, other.partial_hit_tokens);
  EXPECT_EQ(one.hit_request_count, other.hit_request_count);
  EXPECT_EQ(one.shared_hit_tokens, other.shared_hit_tokens);
  EXPECT_EQ(one.over_pool_count, other.over_pool_count);
  EXPECT_EQ(one.over_pool_lines, other.over_pool_lines);
  EXPECT_EQ(one.sealed_pages, other.sealed_pages);
  EXPECT_EQ(one.evicted_pages, other.evicted_pages);
  EXPECT_EQ(one.verified_bytes, other.verified_bytes);
  EXPECT_EQ(one.run_lengths, other.run_lengths);
  EXPECT_EQ(one.corruption.has_value(), other.corruption.has_value());
  ASSERT_EQ(one.timeline.size(), other.timeline.size());
  for (std::size_t i = 0; i < one.timeline.size(); ++i) {
    EXPECT_EQ(one.timeline[i].begin, other.timeline[i].begin);
    EXPECT_EQ(one.timeline[i].prompt_tokens, other.timeline[i].prompt_tokens);
    EXPECT_EQ(one.timeline[i].hit_tokens, other.timeline[i].hit_tokens);
    EXPECT_EQ(one.timeline[i].cached_pages, other.timeline[i].cached_pages);
  }
  ASSERT_EQ(one.key_spaces.size(), other.key_spaces.size());
  for (std::size_t i = 0; i < one.key_spaces.size(); ++i) {
    EXPECT_EQ(one.key_spaces[i].prompt_tokens, other.key_spaces[i].prompt_tokens);
    EXPECT_EQ(one.key_spaces[i].hit_tokens, other.key_spaces[i].hit_tokens);
  }
}

}  // namespace quire::testing
