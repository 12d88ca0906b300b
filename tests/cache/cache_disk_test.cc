// SPDX-License-Identifier: Apache-2.0
//
// The disk tier through the cache, with threads and files of the system: what was cached is found by the next process,
// and nothing that is not the same.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "cache_fixture.h"
#include "testing/temp_directory.h"

namespace quire {
namespace {

constexpr std::uint32_t kPageTokens = 16;

class CacheDisk : public CacheTest {
 protected:
  [[nodiscard]] CacheConfig disk_config(std::uint32_t page_count = 64, std::uint32_t host_page_count = 128) const {
    CacheConfig config = test_config(kPageTokens, page_count);
    config.host.page_count = host_page_count;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.disk.directories = {directory_.path() + "/pages"};
    config.disk.capacity_bytes = 64 << 20U;
    config.disk.segment_bytes = 1 << 20U;
    return config;
  }
  void close() {
    engine_.reset();
    cache_.reset();
  }
  void flush() {
    for (;;) {
      const Result<bool> done = cache_->flush();
      ASSERT_TRUE(done.has_value()) << done.error().message;
      if (*done) return;
      drain(*cache_, now_);
    }
  }
  void restart(CacheConfig config) {
    flush();
    close();
    open(std::move(config));
  }
  /// A whole request; gives the tokens that it did not have to compute.
  std::uint32_t serve(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    return serve_in(space_, 0, tokens, options);
  }
  std::uint32_t serve_in(KeySpaceId space, std::uint64_t salt, const std::vector<TokenId>& tokens,
                         const SequenceOptions& options = {}) {
    Sequence sequence = cache_->begin(space, {.tokens = tokens}, options).value();
    const Result<Admission> admission = cache_->admit(sequence);
    EXPECT_TRUE(admission.has_value()) << admission.error().message;
    drain(*cache_, now_);
    const SequenceView view = cache_->view(sequence).value();
    EXPECT_FALSE(view.is_loading);
    miss_ = view.miss;
    const StepEntry entry{&sequence};
    for (;;) {
      const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
      if (!outcome.step) {
        EXPECT_GT(outcome.shortage.pages_leaving, 0U);
        drain(*cache_, now_);
        continue;
      }
      EXPECT_TRUE(cache_->apply_copies(*outcome.step));
      engine_->run(outcome.step->plan.entries[0], salt, tokens);
      const StepResult result;
      EXPECT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
      break;
    }
    EXPECT_TRUE(cache_->end(sequence));
    drain(*cache_, now_);
    expect_invariants();
    return view.computed_tokens;
  }

  testing::TempDirectory directory_;
  TimeNs now_ = 0;
  Miss miss_;
};

TEST_F(CacheDisk, TheNextProcessFindsWhatThisOneHad) {
  open(disk_config());
  for (TokenId i = 0; i < 6; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 100)), 0U);
  restart(disk_config());
  EXPECT_EQ(stats().sealed_pages, 0U);
  for (TokenId i = 0; i < 6; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 100)), 96U) << i;
  EXPECT_EQ(stats().disk_hit_tokens, 6U * 96);
  EXPECT_EQ(stats().host_hit_tokens, 0U);
  EXPECT_EQ(stats().disk_loaded_page_total, 36U);
  EXPECT_TRUE(stats().disk_is_on);
  EXPECT_EQ(cache_->disk_status()->page_count, 36U);
}

TEST_F(CacheDisk, ARequestGoesOnFromEveryTier) {
  open(disk_config());
  serve(token_range(0, 160));  // ten pages
  restart(disk_config());
  EXPECT_EQ(serve(token_range(0, 32)), 32U);  // two of them are on the device from here on
  EXPECT_TRUE(cache_->reclaim(UINT32_MAX));   // or only on the host
  EXPECT_EQ(serve(token_range(0, 16)), 16U);
  EXPECT_EQ(serve(token_range(0, 160)), 160U);  // one on the device, one on the host, eight on disk
  EXPECT_EQ(stats().disk_hit_tokens, 32U + 128);
  EXPECT_EQ(stats().host_hit_tokens, 16U + 16);
  std::vector<TokenId> other = token_range(0, 160);
  other[100] = 7;
  EXPECT_TRUE(cache_->reset().has_value());
  drain(*cache_);
}

TEST_F(CacheDisk, WhatTheHostHasNoRoomForComesBackFromDisk) {
  CacheConfig config = disk_config(16, 24);
  config.context_tokens_max = 128;
  open(std::move(config));
  for (int round = 0; round < 3; ++round) {
    for (TokenId i = 0; i < 20; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 65)), round == 0 ? 0U : 64U) << i;
  }
  EXPECT_GT(stats().disk_hit_tokens, 0U);
  EXPECT_EQ(stats().disk_stored_page_total, 80U) << "what is on disk is written once";
}

TEST_F(CacheDisk, PagesOfOtherKeySpacesLayoutsAndPageSizesAreNeverServed) {
  open(disk_config());
  const std::vector<TokenId> tokens = token_range(0, 96);
  serve(tokens);
  restart(disk_config());
  std::uint64_t salt = 0;
  for (const KeySpace& other :
       {KeySpace{.model = "other"}, KeySpace{.model = "test", .revision = "2"},
        KeySpace{.model = "test", .adapter = "a"}, KeySpace{.model = "test", .salt = "tenant"}}) {
    EXPECT_EQ(serve_in(cache_->key_space(other).value(), ++salt, tokens), 0U);
  }
  EXPECT_EQ(serve(tokens), 96U);
  CacheConfig larger = disk_config();
  larger.page.page_tokens = 32;
  restart(std::move(larger));
  EXPECT_EQ(serve(tokens), 0U);
  EXPECT_GT(cache_->disk_status()->other_layout_pages, 0U);
  CacheConfig named = disk_config();  // as many bytes, another layout
  named.layout = ModelLayout::create("other", {{.name = "full",
                                                .layers = {0},
                                                .components = {{.name = "k", .element = ElementType::Int8, .dim = 4},
                                                               {.name = "v", .element = ElementType::Int8, .dim = 4}}}})
                     .value();
  restart(std::move(named));
  EXPECT_EQ(serve(tokens), 0U);
}

TEST_F(CacheDisk, WhatWasDroppedStaysSo) {
  open(disk_config());
  const std::vector<TokenId> tokens = token_range(0, 96);
  const KeySpaceId other = cache_->key_space({.model = "other"}).value();
  serve(tokens);
  serve_in(other, 1, tokens);
  ASSERT_TRUE(cache_->drop(space_));
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(serve(tokens), 0U) << "at once";
  ASSERT_TRUE(cache_->drop(space_));
  restart(disk_config());
  EXPECT_EQ(serve(tokens), 0U) << "and for good";
  EXPECT_EQ(serve_in(cache_->key_space({.model = "other"}).value(), 1, tokens), 96U);
}

TEST_F(CacheDisk, WritePoliciesSayWhatGoesToDisk) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    const auto config = [&] {
      CacheConfig made = disk_config();
      made.disk.directories = {directory_.path() + "/" + std::to_string(static_cast<int>(policy))};
      made.disk.write_policy = policy;
      return made;
    };
    open(config());
    serve(token_range(0, 64));
    serve(token_range(1'000, 64));
    serve(token_range(1'000, 64));  // a hit
    serve(token_range(1'000, 64));
    EXPECT_EQ(stats().disk_stored_page_total, policy == WritePolicy::WriteBack   ? 0U
                                              : policy == WritePolicy::Selective ? 4U
                                                                                 : 8U);
    restart(config());  // flush() writes what waits for its time
    EXPECT_EQ(serve(token_range(0, 64)), policy == WritePolicy::Selective ? 0U : 64U);
    EXPECT_EQ(serve(token_range(1'000, 64)), 64U);
  }
}

TEST_F(CacheDisk, FlushBringsDevicePagesToDisk) {
  CacheConfig config = disk_config();
  config.host.write_policy = WritePolicy::WriteBack;
  open(std::move(config));
  serve(token_range(0, 64));
  EXPECT_EQ(stats().stored_page_total, 0U);
  restart(disk_config());
  EXPECT_EQ(serve(token_range(0, 64)), 64U);
}

TEST_F(CacheDisk, ASecondCacheOnTheDirectoryIsRefused) {
  open(disk_config());
  const auto second = Cache::open(disk_config());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
}

}  // namespace
}  // namespace quire
