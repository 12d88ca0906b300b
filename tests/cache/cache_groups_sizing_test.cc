// SPDX-License-Identifier: Apache-2.0
//
// How device.capacity_bytes is shared out among groups: what runs in a cache that was told nothing but its bytes and
// its longest context.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"

namespace quire {
namespace {

constexpr std::uint32_t kContextTokens = 131'072;

CacheConfig sized(std::string_view name, std::uint64_t capacity_bytes) {
  CacheConfig config{.layout = preset(name).value()};
  config.page.page_tokens = std::max(config.layout.page_multiple_tokens(), 16U);
  config.device = {.capacity_bytes = capacity_bytes, .memory = DeviceMemory::None};
  config.context_tokens_max = kContextTokens;
  return config;
}

class CacheSizing : public CacheTest {
 protected:
  void open_sized(CacheConfig config) {
    cache_ = open_cache(std::move(config));
    ASSERT_NE(cache_, nullptr);
    space_ = cache_->key_space({.model = "sized"}).value();
  }

  std::uint32_t group_pages(std::string_view name) {
    const std::span<const CacheGroup> groups = cache_->config().layout.groups();
    const auto group = std::ranges::find(groups, name, &CacheGroup::name);
    return cache_->group_stats(static_cast<std::uint32_t>(group - groups.begin()))->page_count;
  }

  Sequence admitted(std::uint32_t first_token, std::uint32_t token_count) {
    Sequence sequence = cache_->begin(space_, {.tokens = token_range(first_token, token_count)}).value();
    EXPECT_TRUE(cache_->admit(sequence).has_value());
    return sequence;
  }

  // Computes all of a prompt, `chunk_tokens` in a step; tells whether no step was short.
  bool prefill(Sequence& sequence, std::uint32_t chunk_tokens) {
    for (;;) {
      const std::uint32_t pending = cache_->view(sequence)->pending_tokens;
      if (pending == 0) return true;
      const StepEntry entry{.sequence = &sequence, .token_count = std::min(pending, chunk_tokens)};
      const Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
      EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
      if (!outcome || !outcome->step) return false;
      const StepResult result;
      EXPECT_TRUE(cache_->finish_step(*outcome->step, {&result, 1}).has_value());
    }
  }

  // How many of `count` requests of `token_count` tokens run at once.
  std::uint32_t running(std::uint32_t count, std::uint32_t token_count) {
    std::vector<Sequence> sequences;
    for (std::uint32_t i = 0; i < count; ++i) {
      Sequence sequence =
          cache_->begin(space_, {.tokens = token_range(1'000'000 + i * token_count, token_count)}).value();
      if (!cache_->admit(sequence)) break;
      sequences.push_back(std::move(sequence));
      if (!prefill(sequences.back(), cache_->config().step_tokens_max)) break;
    }
    std::uint32_t done = 0;
    for (Sequence& sequence : sequences) {
      done += cache_->view(sequence)->pending_tokens == 0 ? 1 : 0;
      EXPECT_TRUE(cache_->end(sequence).has_value());
    }
    return done;
  }

  // The most tokens of a prompt that one sequence alone computes in one step.
  std::uint32_t largest_chunk() {
    std::uint32_t low = 0;
    std::uint32_t high = cache_->config().step_tokens_max + 1;
    Sequence sequence = admitted(0, cache_->config().step_tokens_max);
    while (high - low > 1) {
      const std::uint32_t middle = low + ((high - low) / 2);
      const StepEntry entry{.sequence = &sequence, .token_count = middle};
      const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      (outcome.step ? low : high) = middle;
      if (outcome.step) {
        EXPECT_TRUE(cache_->abort_step(*outcome.step).has_value());
      }
    }
    EXPECT_TRUE(cache_->end(sequence).has_value());
    return low;
  }
};

TEST_F(CacheSizing, AsManyShortRequestsRunAsSequencesMay) {
  for (const char* const name : {"gpt-oss-120b", "deepseek-v4-flash"}) {
    open_sized(sized(name, 20ULL << 30U));
    EXPECT_EQ(largest_chunk(), 16'384U) << name;
    EXPECT_EQ(running(256, 512), 256U) << name;
    EXPECT_EQ(running(256, 2'048), 256U) << name;
  }
  // The history of one context and the windows of one step take most of these bytes; windows get the rest.
  open_sized(sized("gemma-3-27b", 20ULL << 30U));
  EXPECT_EQ(largest_chunk(), 16'384U);
  EXPECT_EQ(group_pages("full"), kContextTokens / 16);
  EXPECT_EQ(running(256, 512), 49U);
  EXPECT_EQ(running(256, 2'048), 23U);
}

TEST_F(CacheSizing, MoreSequencesNeverGetFewerPagesOfWindows) {
  for (const char* const name : {"gpt-oss-120b", "gemma-3-27b"}) {  // in others their state slots take bytes
    std::uint32_t pages = 0;
    std::uint32_t expected_tokens = kContextTokens;
    for (const std::uint32_t count : {1U, 4U, 16U, 64U, 256U, 1'024U}) {
      CacheConfig config = sized(name, 40ULL << 30U);
      config.sequence_count_max = count;
      open_sized(std::move(config));
      EXPECT_GE(group_pages("window"), pages) << name << ", " << count << " sequences";
      const std::uint32_t now_expected = cache_->config().expected_requests.at(0).context_tokens;
      EXPECT_LE(now_expected, expected_tokens) << name << ", " << count << " sequences";
      pages = group_pages("window");
      expected_tokens = now_expected;
      EXPECT_GE(expected_tokens, 2'048U);
    }
  }
}

TEST_F(CacheSizing, ExpectedRequestsSayWhatGroupsHaveInProportion) {
  std::uint32_t history_pages = 0;
  std::uint32_t window_pages = UINT32_MAX;
  for (const std::uint32_t tokens : {512U, 4'096U, 32'768U, kContextTokens}) {
    CacheConfig config = sized("gemma-3-27b", 80ULL << 30U);
    config.expected_requests = {{.context_tokens = tokens}};
    open_sized(std::move(config));
    EXPECT_GT(group_pages("full"), history_pages) << tokens;
    EXPECT_LT(group_pages("window"), window_pages) << tokens;
    history_pages = group_pages("full");
    window_pages = group_pages("window");
    // A step's pages aside, both groups run out after as many requests.
    const std::uint32_t step_pages = 16'384 / 16;
    const std::uint32_t request_pages = std::min((1'023U + 2 + 15) / 16 + 1, tokens / 16);
    const std::uint32_t requests = history_pages / (tokens / 16);
    EXPECT_NEAR((window_pages - step_pages) / request_pages, requests, 1) << tokens;
    EXPECT_GE(running(std::min(requests, 256U), tokens), std::min(requests, 256U)) << tokens;
  }
}

TEST_F(CacheSizing, AMixOfRequestsRunsTogether) {
  // Of five requests four are short, and one is long.
  const auto open_with = [this](std::vector<ExpectedRequest> requests) {
    CacheConfig config = sized("gemma-3-27b", 80ULL << 30U);
    config.expected_requests = std::move(requests);
    open_sized(std::move(config));
  };
  open_with({{.context_tokens = 256, .weight = 4}, {.context_tokens = 32'768, .weight = 1}});
  const std::uint32_t step_pages = 16'384 / 16;
  const std::uint32_t short_windows = 256 / 16;  // no longer than the request
  const std::uint32_t long_windows = ((1'023 + 2 + 15) / 16) + 1;
  const std::uint32_t by_history = group_pages("full") / ((4 * 256 + 32'768) / 16);
  const std::uint32_t by_windows = (group_pages("window") - step_pages) / ((4 * short_windows) + long_windows);
  EXPECT_NEAR(by_history, by_windows, 1);
  EXPECT_GT(by_history, 0U);
  // Each request of the mean length has a whole window.
  const std::uint32_t window_pages = group_pages("window");
  open_with({{.context_tokens = (4 * 256 + 32'768) / 5}});
  EXPECT_GT(group_pages("window"), window_pages);
}

TEST_F(CacheSizing, BytesThatDoNotHoldAStepOfOneSequenceShowTheArithmetic) {
  const Result<std::unique_ptr<Cache>> cache = Cache::open(sized("gemma-3-27b", 16ULL << 30U));
  ASSERT_FALSE(cache.has_value());
  EXPECT_EQ(cache.error().code, ErrorCode::InvalidArgument);
  for (const char* const words :
       {"one request of 131,072 tokens does not fit in the device's 17,179,869,184 bytes: it needs 18,167,889,920",
        "group 'full': 131,072 tokens / 16 rounded up = 8,192 pages",
        "group 'window': (1,023 + 16,384 in flight + 0 to rewind) / 16 rounded up + 1 = 1,089 pages",
        "smaller steps"}) {
    EXPECT_NE(cache.error().message.find(words), std::string::npos) << cache.error().message;
  }
  CacheConfig config = sized("gemma-3-27b", 16ULL << 30U);
  config.step_tokens_max = 8'192;
  EXPECT_TRUE(Cache::open(std::move(config)).has_value());
}

TEST_F(CacheSizing, NoRequestIsExpectedThatIsLongerThanTheContext) {
  CacheConfig config = sized("gpt-oss-120b", 20ULL << 30U);
  config.expected_requests = {{.context_tokens = 512}, {.context_tokens = kContextTokens + 1}};
  const Result<std::unique_ptr<Cache>> cache = Cache::open(std::move(config));
  ASSERT_FALSE(cache.has_value());
  EXPECT_NE(cache.error().message.find(
                "expected_requests[1].context_tokens is 131,073, but no request has more than 131,072"),
            std::string::npos)
      << cache.error().message;
}

class CachePresetSizing : public CacheSizing, public ::testing::WithParamInterface<std::string_view> {
 protected:
  // Runs sequences to the end of their context, one after the other, in steps as large as they may be.
  void expect_one_alone_fits() {
    for (std::uint32_t i = 0; i < 2; ++i) {
      Sequence sequence = admitted(i * kContextTokens, kContextTokens);
      EXPECT_TRUE(prefill(sequence, cache_->config().step_tokens_max))
          << "short at " << cache_->view(sequence)->pending_tokens << " tokens before the end";
      EXPECT_TRUE(cache_->end(sequence).has_value());
    }
  }
};

TEST_P(CachePresetSizing, OneSequenceAloneAlwaysFits) {
  open_sized(sized(GetParam(), 64ULL << 30U));
  expect_one_alone_fits();
}

TEST_P(CachePresetSizing, OneSequenceAloneFitsInTheFewestBytesThatOpen) {
  for (const std::uint32_t step_tokens_max : {1'000U, 16'384U, kContextTokens}) {
    const auto config_of = [&](std::uint64_t bytes) {
      CacheConfig config = sized(GetParam(), bytes);
      config.sequence_count_max = 2;
      config.step_tokens_max = step_tokens_max;
      return config;
    };
    std::uint64_t too_few = 0;
    std::uint64_t enough = 128ULL << 30U;
    while (enough - too_few > 1'024) {
      const std::uint64_t middle = too_few + ((enough - too_few) / 2);
      (Cache::open(config_of(middle)) ? enough : too_few) = middle;
    }
    open_sized(config_of(enough));
    expect_one_alone_fits();
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, CachePresetSizing, ::testing::ValuesIn(preset_names()), [](const auto& tested) {
  std::string name(tested.param);
  std::ranges::replace_if(name, [](char letter) { return letter == '-' || letter == '.'; }, '_');
  return name;
});

}  // namespace
}  // namespace quire
