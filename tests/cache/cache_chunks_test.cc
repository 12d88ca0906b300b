// SPDX-License-Identifier: Apache-2.0
//
// Pages that a cache finds by their own tokens: whatever becomes of a page, a match never names one that holds the
// bytes of another request, and what is pinned stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "quire/chunk_index.h"
#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheChunksTest : public TiersTest {
 protected:
  [[nodiscard]] static CacheConfig with_chunks(CacheConfig config) {
    config.chunks.page_count_max = 100;
    return config;
  }
  void open_chunks(std::uint32_t page_count) { open(with_chunks(test_config(4, page_count))); }

  ChunkInsertion add(std::span<const TokenId> tokens) {
    const Result<ChunkInsertion> added = cache_->add_chunks(space_, {.tokens = tokens});
    EXPECT_TRUE(added.has_value()) << added.error().message;
    expect_invariants();
    return added.value_or(ChunkInsertion{});
  }
  /// Looks for a text that is one chunk.
  [[nodiscard]] ChunkMatch find(std::span<const TokenId> tokens) {
    const Chunk chunk{.tokens = tokens};
    return cache_->lookup_chunks(space_, {&chunk, 1}, pages_).value();
  }
  [[nodiscard]] Result<PinnedChunks> pin(std::span<const TokenId> tokens) {
    const Chunk chunk{.tokens = tokens};
    Result<PinnedChunks> pinned = cache_->pin_chunks(space_, {&chunk, 1}, pages_);
    expect_invariants();
    return pinned;
  }
  /// What the engine wrote for the first token of a page.
  [[nodiscard]] std::uint64_t bytes_of(PageHandle handle) const {
    std::uint64_t value = 0;
    std::memcpy(&value, cache_->device_memory() + (handle.value * 4 * kTestTokenBytes), sizeof(value));
    return value;
  }

  std::array<ChunkPage, 64> pages_;
};

std::span<const TokenId> part(const std::vector<TokenId>& tokens, std::size_t first, std::size_t count) {
  return std::span(tokens).subspan(first, count);
}

TEST_F(CacheChunksTest, ADocumentIsFoundWhereverItStands) {
  open_chunks(16);
  const std::vector<TokenId> text = token_range(100, 18);
  run_request(text);
  EXPECT_EQ(find(text).exact_pages, 0U);  // nobody has asked for it to be found
  EXPECT_EQ(add(text).inserted_pages, 4U);
  EXPECT_EQ(add(text).known_pages, 4U);
  EXPECT_EQ(find(text).exact_pages, 4U);
  const ChunkMatch match = find(part(text, 8, 8));
  EXPECT_EQ(match.partial_pages, 2U);
  EXPECT_EQ(bytes_of(match.pages[0].handle), ByteEngine::value_at(0, text, {}, 8));
  EXPECT_EQ(stats().chunk_pages, 4U);
  EXPECT_EQ(stats().hit_tokens, 0U);
}

TEST_F(CacheChunksTest, AnEvictedPageIsNotFoundFromThatCallOn) {
  open_chunks(8);
  const std::vector<TokenId> first = token_range(100, 32);
  run_request(first);
  add(first);
  EXPECT_EQ(find(part(first, 8, 4)).partial_pages, 1U);
  run_request(token_range(500, 32));  // takes all pages
  EXPECT_EQ(find(part(first, 8, 4)).partial_pages, 0U);
  EXPECT_EQ(stats().chunk_pages, 0U);
}

TEST_F(CacheChunksTest, ReclaimedAndResetPagesAreNotFound) {
  open_chunks(8);
  const std::vector<TokenId> text = token_range(100, 32);
  run_request(text);
  add(text);
  ASSERT_EQ(cache_->reclaim(3).value(), 3U);
  EXPECT_EQ(find(text).exact_pages, 5U);
  EXPECT_EQ(find(part(text, 20, 4)).partial_pages, 0U);
  ASSERT_TRUE(cache_->reset());
  EXPECT_EQ(find(text).exact_pages, 0U);
}

TEST_F(CacheChunksTest, ADroppedKeySpaceIsNotFoundThoughASequenceStillHasItsPages) {
  open_chunks(8);
  std::vector<TokenId> text = token_range(100, 16);
  Sequence sequence = begin_admitted(text);
  step(sequence, text);
  add(text);
  ASSERT_TRUE(cache_->drop(space_));
  const Chunk chunk{.tokens = text};
  expect_error(cache_->lookup_chunks(space_, {&chunk, 1}, pages_), ErrorCode::InvalidArgument, "dropped");
  expect_error(cache_->pin_chunks(space_, {&chunk, 1}, pages_), ErrorCode::InvalidArgument, "dropped");
  expect_error(cache_->add_chunks(space_, {.tokens = text}), ErrorCode::InvalidArgument, "dropped");
  EXPECT_EQ(stats().chunk_pages, 0U);
  space_ = cache_->key_space({.model = "test"}).value();  // the same words, another key space
  EXPECT_EQ(find(text).exact_pages, 0U);
  ASSERT_TRUE(cache_->end(sequence));
}

TEST_F(CacheChunksTest, SaltsAndImagesKeepTenantsApart) {
  open_chunks(32);
  const std::vector<TokenId> text = token_range(100, 16);
  run_request(text);
  add(text);
  const KeySpaceId other = cache_->key_space({.model = "test", .salt = "another tenant"}).value();
  const Chunk chunk{.tokens = part(text, 4, 8)};
  EXPECT_EQ(cache_->lookup_chunks(space_, {&chunk, 1}, pages_)->partial_pages, 2U);
  EXPECT_EQ(cache_->lookup_chunks(other, {&chunk, 1}, pages_)->partial_pages, 0U);
  EXPECT_EQ(cache_->add_chunks(other, {.tokens = text})->inserted_pages, 0U);  // nothing is cached there
  const std::array image{ExtraKey{.begin = 1, .end = 3, .item = {7}}};
  const Chunk with_image{.tokens = part(text, 4, 8), .extra_keys = image};
  EXPECT_EQ(cache_->lookup_chunks(space_, {&with_image, 1}, pages_)->partial_pages, 1U);  // the second page has none
}

TEST_F(CacheChunksTest, APinnedPageStaysWhileOthersAreEvicted) {
  open_chunks(8);
  const std::vector<TokenId> first = token_range(100, 16);
  run_request(first);
  add(first);
  std::optional<PinnedChunks> pinned = pin(part(first, 8, 8)).value();
  ASSERT_EQ(pinned->match.partial_pages, 2U);
  EXPECT_EQ(stats().chunk_pinned_pages, 4U);  // the whole path stays
  const PageHandle handle = pages_[0].handle;
  const std::uint64_t bytes = bytes_of(handle);
  for (TokenId i = 1; i < 20; ++i) run_request(token_range(1000 * i, 16));
  EXPECT_EQ(bytes_of(handle), bytes);
  EXPECT_EQ(find(part(first, 8, 8)).partial_pages, 2U);
  EXPECT_EQ(cache_->reclaim(100).value(), 4U);
  EXPECT_EQ(find(first).exact_pages, 4U);
  pinned.reset();
  EXPECT_EQ(stats().chunk_pinned_pages, 0U);
  EXPECT_EQ(cache_->reclaim(100).value(), 4U);
  EXPECT_EQ(find(first).exact_pages, 0U);
}

TEST_F(CacheChunksTest, APinHoldsPagesOfSeveralPathsAndOfSplitRuns) {
  open_chunks(16);
  const std::vector<TokenId> first = token_range(100, 16);
  std::vector<TokenId> branch = token_range(100, 8);  // splits the run of the first
  const std::vector<TokenId> end = token_range(700, 8);
  branch.insert(branch.end(), end.begin(), end.end());
  run_request(first);
  add(first);
  run_request(branch);
  add(branch);
  const std::array chunks{Chunk{.tokens = part(branch, 8, 8)}, Chunk{.tokens = part(first, 4, 12)}};
  std::optional<PinnedChunks> pinned = cache_->pin_chunks(space_, chunks, pages_).value();
  EXPECT_EQ(pinned->match.partial_pages, 5U);
  EXPECT_EQ(cache_->reclaim(100).value(), 0U);
  expect_invariants();
  pinned.reset();
  EXPECT_EQ(cache_->reclaim(100).value(), 6U);
}

TEST_F(CacheChunksTest, PinsAreBoundedAndSayByWhat) {
  CacheConfig config = with_chunks(test_config(4, 16));
  config.chunks.pinned_pages_max = 6;
  config.chunks.pin_count_max = 2;
  open(std::move(config));
  const std::vector<TokenId> text = token_range(100, 16);
  run_request(text);
  add(text);
  std::optional<PinnedChunks> four = pin(text).value();
  expect_error(pin(text), ErrorCode::Unavailable, "chunks.pinned_pages_max = 6");
  EXPECT_EQ(stats().chunk_pinned_pages, 4U);
  const std::vector<TokenId> small = token_range(500, 4);
  run_request(small);
  add(small);
  const PinnedChunks one = pin(small).value();
  expect_error(pin(small), ErrorCode::Unavailable, "all 2 ChunkPins live");
  const PinnedChunks none = pin(token_range(900, 4)).value();  // nothing is found, and nothing is held
  EXPECT_FALSE(none.pin);
  four.reset();
  EXPECT_TRUE(pin(small).has_value());
}

TEST_F(CacheChunksTest, ResetAndSleepWaitForPins) {
  open_chunks(8);
  const std::vector<TokenId> text = token_range(100, 16);
  run_request(text);
  add(text);
  PinnedChunks pinned = pin(text).value();
  expect_error(cache_->reset(), ErrorCode::Unavailable, "1 ChunkPins live");
  expect_error(cache_->sleep(Sleep::DropAll), ErrorCode::Unavailable, "1 ChunkPins live");
  EXPECT_EQ(find(text).exact_pages, 4U);
  pinned.pin.reset();
  EXPECT_TRUE(cache_->sleep(Sleep::DropAll).value());
  EXPECT_EQ(find(text).exact_pages, 0U);
  ASSERT_TRUE(cache_->wake());
  run_request(text);
  EXPECT_EQ(find(text).exact_pages, 0U);
}

TEST_F(CacheChunksTest, ADroppedKeySpaceGivesItsPagesUpWithItsLastPin) {
  open_chunks(8);
  const std::vector<TokenId> text = token_range(100, 16);
  run_request(text);
  add(text);
  std::optional<PinnedChunks> pinned = pin(text).value();
  const std::uint64_t bytes = bytes_of(pages_[3].handle);
  EXPECT_EQ(cache_->drop(space_).value(), 0U);
  EXPECT_EQ(bytes_of(pages_[3].handle), bytes);
  EXPECT_EQ(stats().pinned_pages, 4U);
  pinned.reset();
  EXPECT_EQ(stats().free_pages, 8U);
  EXPECT_EQ(stats().key_space_count, 0U);
}

TEST_F(CacheChunksTest, AHandleMayBeDroppedElsewhereAndLaterThanTheCache) {
  open_chunks(8);
  const std::vector<TokenId> text = token_range(100, 16);
  run_request(text);
  add(text);
  std::optional<PinnedChunks> pinned = pin(text).value();
  std::thread([&] { pinned.reset(); }).join();
  EXPECT_EQ(stats().chunk_pinned_pages, 0U);
  pinned = pin(text).value();
  cache_.reset();
  pinned.reset();
}

TEST_F(CacheChunksTest, APageThatGoesToTheHostIsNotFoundUntilItIsBackAndAddedAgain) {
  open_tiers(with_chunks(tiers_config(8, 16)));
  const std::vector<TokenId> first = token_range(100, 32);
  serve(first);
  add(first);
  serve(token_range(500, 32));
  EXPECT_EQ(lookup(first).host_tokens, 32U);
  EXPECT_EQ(find(part(first, 8, 4)).partial_pages, 0U);
  EXPECT_EQ(add(first).inserted_pages, 0U);  // the device has nothing of it
  serve(first);
  EXPECT_GT(stats().loaded_page_total, 0U);
  EXPECT_EQ(find(part(first, 8, 4)).partial_pages, 0U);
  EXPECT_EQ(add(first).inserted_pages, 8U);
  EXPECT_EQ(bytes_of(find(part(first, 8, 4)).pages[0].handle), ByteEngine::value_at(0, first, {}, 8));
}

TEST_F(CacheChunksTest, APinStopsAPageThatIsLeavingForTheHost) {
  open_tiers(with_chunks(tiers_config(8, 16)));
  const std::vector<TokenId> first = token_range(100, 16);
  serve(first);
  add(first);
  std::vector<TokenId> second = token_range(500, 28);
  Sequence waiting = cache_->begin(space_, {.tokens = second}).value();
  (void)cache_->admit(waiting);  // short of pages: some begin to leave
  mover_->take();
  const PinnedChunks pinned = pin(part(first, 12, 4)).value();
  settle();
  EXPECT_EQ(bytes_of(pages_[0].handle), ByteEngine::value_at(0, first, {}, 12));
  EXPECT_EQ(find(first).exact_pages, 4U);
}

TEST_F(CacheChunksTest, ResizeKeepsWhatStays) {
  open_chunks(16);
  const std::vector<TokenId> text = token_range(100, 16);
  run_request(text);
  add(text);
  CacheConfig config = with_chunks(test_config(4, 16));
  config.context_tokens_max = 32;
  open(std::move(config));
  run_request(text);
  add(text);
  ASSERT_TRUE(cache_->resize(40));
  for (TokenId i = 1; i < 8; ++i) {
    const std::vector<TokenId> more = token_range(1000 * i, 16);
    run_request(more);
    EXPECT_EQ(add(more).inserted_pages, 4U);
  }
  EXPECT_EQ(find(part(text, 4, 12)).partial_pages, 3U);
  ASSERT_EQ(cache_->reclaim(100).value(), 32U);
  ASSERT_TRUE(cache_->resize(16));
  EXPECT_EQ(stats().chunk_pages, 0U);
}

TEST_F(CacheChunksTest, PagesOfACommittedTreeWaitForTheStepThatMovesThem) {
  CacheConfig config = with_chunks(test_config(4, 16));
  config.device.memory = DeviceMemory::None;
  cache_ = open_cache(std::move(config));
  space_ = cache_->key_space({.model = "test"}).value();
  const std::vector<TokenId> text = token_range(100, 4);
  Sequence sequence = begin_admitted(text);
  const std::array parents{-1, -1, 1, 2, 3, 4};
  const StepEntry entry{.sequence = &sequence, .tree_parents = parents};
  const Step planned = *cache_->plan_step({&entry, 1})->step;
  const std::vector<TokenId> drafts = token_range(900, 6);
  const StepResult result{.tokens = drafts};
  ASSERT_TRUE(cache_->finish_step(planned, {&result, 1}));
  ASSERT_TRUE(cache_->commit_tree(sequence, 5));
  expect_error(cache_->add_chunks(space_, {.tokens = text}), ErrorCode::Unavailable, "finish the step");
  const std::array<TokenId, 1> added{7};
  ASSERT_TRUE(cache_->append(sequence, {.tokens = added}));
  const StepEntry next{&sequence};
  const PlanOutcome moving = cache_->plan_step({&next, 1}).value();
  ASSERT_TRUE(moving.step.has_value());
  expect_error(cache_->add_chunks(space_, {.tokens = text}), ErrorCode::Unavailable, "finish the step");
  ASSERT_TRUE(cache_->finish_step(*moving.step, std::array{StepResult{}}));
  EXPECT_EQ(add(text).inserted_pages, 1U);
}

TEST_F(CacheChunksTest, TheEnginesOwnPagesAreFoundAsLongAsTheyAreHeld) {
  CacheConfig config = with_chunks(test_config(4, 8));
  config.device.pool = DevicePool::External;
  cache_ = open_cache(std::move(config));
  space_ = cache_->key_space({.model = "test"}).value();
  const std::vector<TokenId> text = token_range(100, 16);
  const std::array ids{PageId{0}, PageId{5}, PageId{2}, PageId{7}};
  ASSERT_TRUE(cache_->offer(space_, {.prompt = {.tokens = text}, .page_ids = ids}).has_value());
  EXPECT_EQ(add(text).inserted_pages, 4U);
  EXPECT_EQ(find(part(text, 4, 4)).pages[0].handle, PageHandle{5});
  std::optional<PinnedChunks> pinned = pin(part(text, 4, 4)).value();
  EXPECT_EQ(cache_->reclaim(8).value(), 0U);  // one run: all of it stays
  pinned.reset();
  EXPECT_EQ(cache_->reclaim(8).value(), 4U);
  EXPECT_EQ(find(text).exact_pages, 0U);
}

TEST_F(CacheChunksTest, WhatMakesNoSenseIsRefused) {
  open(test_config(4, 8));
  const std::vector<TokenId> text = token_range(100, 16);
  const Chunk chunk{.tokens = text};
  expect_error(cache_->add_chunks(space_, {.tokens = text}), ErrorCode::Unsupported, "chunks.page_count_max");
  expect_error(cache_->lookup_chunks(space_, {&chunk, 1}, pages_), ErrorCode::Unsupported, "chunks.page_count_max");
  expect_error(cache_->pin_chunks(space_, {&chunk, 1}, pages_), ErrorCode::Unsupported, "chunks.page_count_max");
  const auto refused = [](auto change) {
    CacheConfig config = with_chunks(test_config(4, 8));
    change(config);
    return Cache::open(std::move(config));
  };
  const auto ratio = [&](double value) { return refused([=](CacheConfig& c) { c.chunks.recompute_ratio = value; }); };
  expect_error(ratio(1.5), ErrorCode::InvalidArgument, "chunks.recompute_ratio is 1.5");
  expect_error(ratio(std::nan("")), ErrorCode::InvalidArgument, "chunks.recompute_ratio");
  expect_error(refused([](CacheConfig& c) { c.chunks.pin_count_max = 0; }), ErrorCode::InvalidArgument,
               "chunks.pin_count_max is 0");
  expect_error(refused([](CacheConfig& c) { c.chunks.pin_count_max = 1U << 21U; }), ErrorCode::InvalidArgument,
               "chunks.pin_count_max");
  expect_error(refused([](CacheConfig& c) { c.chunks.page_count_max = 1U << 31U; }), ErrorCode::InvalidArgument,
               "chunks.page_count_max");
  open_chunks(8);
  expect_error(pin(std::span(text).first(3)), ErrorCode::InvalidArgument, "only whole pages are indexed");
  expect_error(cache_->add_chunks(space_, {}), ErrorCode::InvalidArgument, "the prompt is empty");
  const std::vector<TokenId> bad{1, 2, 3, -4};
  expect_error(cache_->add_chunks(space_, {.tokens = bad}), ErrorCode::InvalidArgument, "not negative");
  EXPECT_EQ(add(std::span(text).first(2)).inserted_pages, 0U);
}

TEST_F(CacheChunksTest, LayoutsWhosePagesDoNotStandAloneAreRefused) {
  CacheConfig config{.layout = preset("gemma-3-27b").value(),
                     .device = {.page_count = 64, .memory = DeviceMemory::None},
                     .chunks = {.page_count_max = 10}};
  expect_error(config.validate(), ErrorCode::Unsupported, "group 'window' does not keep everything");
  config.layout = preset("jamba-1.5-mini").value();
  expect_error(config.validate(), ErrorCode::Unsupported, "group 'state' does not keep everything");
  CacheGroup draft = ModelLayout::opaque(8)->groups().front();
  draft.lookahead_tokens = 1;
  config.layout = ModelLayout::create("draft", {draft}).value();
  expect_error(config.validate(), ErrorCode::Unsupported, "depend on 1 tokens behind them");
  config.chunks = {};
  EXPECT_TRUE(config.validate().has_value());
}

}  // namespace
}  // namespace quire
