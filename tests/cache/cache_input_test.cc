// SPDX-License-Identifier: Apache-2.0
//
// Bad input: a clear error, nothing changed, no crash.
#include <gtest/gtest.h>

#include "cache_fixture.h"

namespace quire {
namespace {

class CacheInput : public CacheTest {
 protected:
  void SetUp() override { open(4, 8); }
};

TEST(CacheOpen, APageOfNoTokensIsRefused) {
  expect_error(Cache::open(test_config(0, 8)), ErrorCode::InvalidArgument, "page_tokens is 0");
}

TEST(CacheOpen, APoolOfNoPagesIsRefused) {
  expect_error(Cache::open(test_config(4, 0)), ErrorCode::InvalidArgument,
               "set device.page_count or device.capacity_bytes");
}

TEST(CacheOpen, TooFewBytesAreRefusedWithTheArithmetic) {
  CacheConfig config = test_config(4, 0);
  config.device.capacity_bytes = 63;
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument,
               "one page of 32 bytes (4 tokens of 8 bytes)");
}

TEST(CacheOpen, BytesBecomeAsManyPagesAsFitBesideTheNullPage) {
  CacheConfig config = test_config(4, 0);
  config.device.capacity_bytes = (32 * 10) + 31;
  EXPECT_EQ(open_cache(std::move(config))->stats()->page_count, 9U);
}

TEST(CacheOpen, BothSizesAreRefused) {
  CacheConfig config = test_config(4, 8);
  config.device.capacity_bytes = 1 << 20;
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "both set");
}

TEST(CacheOpen, AnUnknownPolicyIsRefusedWithTheKnownOnes) {
  CacheConfig config = test_config(4, 8);
  config.policy = "clairvoyant";
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "unknown policy 'clairvoyant'; known: lru");
}

TEST(CacheOpen, WindowsOfLayersAreAboveZeroFewAndNotForBlockTables) {
  CacheConfig config = test_config(4, 8);
  config.plan.layer_windows = {4, 0};
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "a window of plan.layer_windows is 0");
  config = test_config(4, 8);
  config.plan.layer_windows.assign(9, 4);
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument,
               "the number of plan.layer_windows is 9; the most is 8");
  config = test_config(4, 8);
  config.plan = {.page_tables = PageTables::Block, .layer_windows = {4}};
  expect_error(Cache::open(std::move(config)), ErrorCode::Unsupported, "needs page_tables Rows or Csr");
}

TEST(CacheOpen, AContextThatCannotFitIsRefusedWithTheArithmetic) {
  CacheConfig config = test_config(4, 8);
  config.context_tokens_max = 33;
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument,
               "context_tokens_max = 33 tokens needs 9 pages of 4 tokens");
}

TEST(CacheOpen, EverythingThatMustNotBeZeroIsNamed) {
  const auto refused = [](auto change, const std::string& name) {
    CacheConfig config = test_config(4, 8);
    change(config);
    expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, name + " is 0");
  };
  refused([](CacheConfig& config) { config.sequence_count_max = 0; }, "sequence_count_max");
  refused([](CacheConfig& config) { config.step_tokens_max = 0; }, "step_tokens_max");
  refused([](CacheConfig& config) { config.key_space_count_max = 0; }, "key_space_count_max");
  refused([](CacheConfig& config) { config.partial_reuse_min_tokens = 0; }, "partial_reuse_min_tokens");
}

TEST(CacheOpen, CachesOfDifferentPagesLiveSideBySide) {
  const std::unique_ptr<Cache> small = open_cache(test_config(4, 16));
  const std::unique_ptr<Cache> large = open_cache(test_config(16, 8));
  for (Cache* const cache : {small.get(), large.get(), small.get(), large.get()}) {
    const KeySpaceId space = cache->key_space({.model = "test"}).value();
    std::vector<TokenId> tokens = token_range(0, 40);
    const Sequence sequence = cache->begin(space, {.tokens = tokens}).value();
    const bool is_second = cache->stats()->sealed_pages > 0;
    const std::uint32_t whole = cache == small.get() ? 40 : 32;
    EXPECT_EQ(cache->admit(sequence)->matched_tokens, is_second ? whole : 0);
    const StepEntry entry{&sequence};
    const PlanOutcome outcome = cache->plan_step({&entry, 1}).value();
    ByteEngine(*cache).run(outcome.step->plan.entries[0], 0, tokens);
    const StepResult result;
    ASSERT_TRUE(cache->finish_step(*outcome.step, {&result, 1}));
    EXPECT_EQ(cache->stats()->sealed_pages, whole / cache->geometry().page().options().page_tokens);
    ASSERT_TRUE(cache->check_invariants());
  }
}

TEST(CacheOpen, AdoptedMemoryMustBeGivenAndOnlyThen) {
  CacheConfig config = test_config(4, 8);
  config.device.memory = DeviceMemory::Adopted;
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "adopted_memory is null");
  std::byte memory{};
  config = test_config(4, 8);
  config.device.adopted_memory = &memory;
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "memory is not Adopted");
}

TEST(CacheOpen, PagesOfAbsurdSizeAreRefused) {
  for (const std::uint32_t page_tokens : {(1U << 20U) + 1, 1U << 30U, 1U << 31U, 3U << 30U, UINT32_MAX}) {
    CacheConfig config = test_config(page_tokens, 1);
    config.context_tokens_max = 1;
    expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "a page holds 1 to 1048576 tokens");
  }
  CacheConfig config = test_config(1U << 20U, 2);
  config.sequence_count_max = 1;
  EXPECT_TRUE(Cache::open(std::move(config)).has_value());
}

TEST(CacheOpen, CountsThatWouldTakeGigabytesAreRefused) {
  const auto refused = [](auto change, const std::string& name) {
    CacheConfig config = test_config(4, 8);
    change(config);
    expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, name + " is 4,294,967,295; the most is");
  };
  refused([](CacheConfig& config) { config.sequence_count_max = UINT32_MAX; }, "sequence_count_max");
  refused([](CacheConfig& config) { config.step_tokens_max = UINT32_MAX; }, "step_tokens_max");
  refused([](CacheConfig& config) { config.key_space_count_max = UINT32_MAX; }, "key_space_count_max");
  refused([](CacheConfig& config) { config.keep_count_max = UINT32_MAX; }, "keep_count_max");
  refused([](CacheConfig& config) { config.residency_record_count_max = UINT32_MAX; }, "residency_record_count_max");
}

TEST(CacheOpen, AnExternalPoolHasNoMemoryToAdopt) {
  CacheConfig config = test_config(4, 8);
  std::byte memory{};
  config.device.pool = DevicePool::External;
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_memory = &memory;
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "for an owned pool");
}

TEST(CacheOpen, MemoryThatCannotBeReservedIsAnError) {
  CacheConfig config = test_config(4, 0);
  config.layout = ModelLayout::opaque(1U << 31U).value();
  config.device.page_count = 1U << 20U;  // 2^53 bytes
  config.context_tokens_max = 4;
  expect_error(Cache::open(std::move(config)), ErrorCode::Unavailable, "address space");
}

TEST_F(CacheInput, AnEmptyPromptIsRefused) {
  expect_error(cache_->begin(space_, {}), ErrorCode::InvalidArgument, "the prompt is empty");
  expect_error(cache_->lookup(space_, {}), ErrorCode::InvalidArgument, "the prompt is empty");
  expect_error(cache_->keep(space_, {}, 1), ErrorCode::InvalidArgument, "the prompt is empty");
}

TEST_F(CacheInput, APromptLongerThanThePoolIsRefusedWithTheArithmetic) {
  expect_error(cache_->begin(space_, {.tokens = token_range(1, 33)}), ErrorCode::InvalidArgument,
               "the prompt of 33 tokens needs 9 pages of 4 tokens; the device pool has 8");
}

TEST_F(CacheInput, APromptLongerThanTheContextIsRefused) {
  CacheConfig config = test_config(4, 8);
  config.context_tokens_max = 10;
  open(std::move(config));
  expect_error(cache_->begin(space_, {.tokens = token_range(1, 11)}), ErrorCode::InvalidArgument,
               "context_tokens_max is 10");
}

TEST_F(CacheInput, ANegativeTokenIsRefusedWhereverItStands) {
  run_request(token_range(1, 8));
  for (const std::size_t position : {0U, 3U, 8U, 11U}) {
    std::vector<TokenId> tokens = token_range(1, 12);
    tokens[position] = -5;
    const std::string text = "token " + std::to_string(position) + " is -5";
    expect_error(cache_->begin(space_, {.tokens = tokens}), ErrorCode::InvalidArgument, text);
    expect_error(cache_->lookup(space_, {.tokens = tokens}), ErrorCode::InvalidArgument, text);
    expect_error(cache_->keep(space_, {.tokens = tokens}, 1), ErrorCode::InvalidArgument, text);
  }
  EXPECT_EQ(stats().sequence_count, 0U);
}

TEST_F(CacheInput, ExtraKeysMustBeInOrderInsideAndApart) {
  const std::vector<TokenId> tokens = token_range(1, 8);
  const std::vector<std::vector<ExtraKey>> wrong{
      {{.begin = 3, .end = 3}},                          // empty
      {{.begin = 4, .end = 2}},                          // backwards
      {{.begin = 6, .end = 9}},                          // beyond the prompt
      {{.begin = 0, .end = 4}, {.begin = 3, .end = 5}},  // overlapping
      {{.begin = 4, .end = 6}, {.begin = 0, .end = 2}},  // unsorted
  };
  for (const std::vector<ExtraKey>& keys : wrong) {
    expect_error(cache_->begin(space_, {.tokens = tokens, .extra_keys = keys}), ErrorCode::InvalidArgument,
                 "extra key ");
  }
  const std::vector<ExtraKey> many(2000);
  expect_error(cache_->begin(space_, {.tokens = tokens, .extra_keys = many}), ErrorCode::InvalidArgument,
               "2,000 extra keys; extra_key_count_max is 1,024");
}

TEST_F(CacheInput, AnUnknownKeySpaceIsRefused) {
  expect_error(cache_->begin({}, {.tokens = token_range(1, 4)}), ErrorCode::InvalidArgument, "key space id is unknown");
  expect_error(cache_->lookup({.index = 0, .generation = 9}, {.tokens = token_range(1, 4)}), ErrorCode::InvalidArgument,
               "key space id is unknown");
  expect_error(cache_->drop({.index = 77}), ErrorCode::InvalidArgument, "key space id is unknown");
}

TEST_F(CacheInput, MoreSequencesThanTheMaximumAreRefused) {
  std::vector<Sequence> sequences(16);
  for (Sequence& each : sequences) each = cache_->begin(space_, {.tokens = token_range(1, 4)}).value();
  expect_error(cache_->begin(space_, {.tokens = token_range(1, 4)}), ErrorCode::Unavailable,
               "all 16 sequences are live");
  sequences.clear();
  EXPECT_TRUE(cache_->begin(space_, {.tokens = token_range(1, 4)}).has_value());
}

TEST_F(CacheInput, CallsForTheOtherKindOfPoolAreRefused) {
  expect_error(cache_->match(space_, {.tokens = token_range(1, 4)}), ErrorCode::Unsupported, "owns its device pool");
  expect_error(cache_->offer(space_, {}), ErrorCode::Unsupported, "owns its device pool");
  expect_error(cache_->take_released({}), ErrorCode::Unsupported, "owns its device pool");
  CacheConfig config = test_config(4, 8);
  config.device.pool = DevicePool::External;
  open(std::move(config));
  expect_error(cache_->begin(space_, {.tokens = token_range(1, 4)}), ErrorCode::Unsupported, "external");
  expect_error(cache_->plan_step({}), ErrorCode::Unsupported, "external");
  expect_error(cache_->resize(9), ErrorCode::Unsupported, "external");
}

}  // namespace
}  // namespace quire
