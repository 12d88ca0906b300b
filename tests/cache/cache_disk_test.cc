// SPDX-License-Identifier: Apache-2.0
//
// The disk tier through the cache, with threads and files of the system: what was cached is found by the next process,
// and nothing that is not the same.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "system_disk_fixture.h"

namespace quire {
namespace {

class CacheDisk : public SystemDiskTest {};

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
  EXPECT_EQ(view_.host_tokens, 16U);
  EXPECT_EQ(view_.disk_tokens, 128U);
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
  EXPECT_GT(stats().evicted_page_total, 80U);
  EXPECT_EQ(stats().lost_page_total, 0U) << "all that memory gave up is on disk";
}

TEST_F(CacheDisk, PagesThatDidNotGoToDiskAreLostWhenMemoryGivesThemUp) {
  CacheConfig config = disk_config(16, 24);
  config.context_tokens_max = 128;
  config.disk.write_policy = WritePolicy::Selective;  // and nothing is used twice
  open(std::move(config));
  for (TokenId i = 0; i < 20; ++i) serve(token_range(1'000 * i, 65));
  EXPECT_EQ(stats().disk_stored_page_total, 0U);
  EXPECT_EQ(stats().lost_page_total, 80U - stats().host_only_pages - stats().sealed_pages);
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

TEST_F(CacheDisk, PagesThatAShrinkingPoolMovesKeepTheirNames) {
  CacheConfig config = disk_config(64, 24);
  config.context_tokens_max = 256;
  open(std::move(config));
  for (TokenId i = 0; i < 12; ++i) serve(token_range(1'000 * i, 64));
  EXPECT_EQ(cache_->reclaim(16).value(), 16U);
  ASSERT_EQ(stats().sealed_pages, 32U);
  ASSERT_TRUE(cache_->resize(40));
  for (TokenId i = 4; i < 12; ++i) {
    EXPECT_EQ(serve(token_range(1'000 * i, 96)), 64U) << i;  // goes on behind a page that has moved
  }
  restart(disk_config(64, 64));
  for (TokenId i = 4; i < 12; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 96)), 96U) << i;
}

TEST_F(CacheDisk, AResetReachesWhatThisProcessHasNeverNamed) {
  const std::vector<TokenId> tokens = token_range(0, 96);
  const KeySpace other{.model = "other", .salt = "tenant"};
  open(disk_config());
  serve(tokens);
  serve_in(cache_->key_space(other).value(), 1, tokens);
  CacheConfig larger = disk_config();
  larger.page.page_tokens = 32;
  restart(std::move(larger));
  serve(tokens);  // pages of another layout, for whoever opens the store next
  restart(disk_config());
  ASSERT_TRUE(cache_->reset());
  EXPECT_EQ(serve_in(cache_->key_space(other).value(), 1, tokens), 0U) << "at once";
  ASSERT_TRUE(cache_->reset());
  drain(*cache_);
  EXPECT_EQ(cache_->disk_status()->page_count, 0U);
  restart(disk_config());
  EXPECT_EQ(serve(tokens), 0U) << "and for good";
  EXPECT_EQ(serve_in(cache_->key_space(other).value(), 1, tokens), 0U);
  EXPECT_EQ(serve(tokens), 96U) << "what is computed since is cached";
  CacheConfig again = disk_config();
  again.page.page_tokens = 32;
  restart(std::move(again));
  EXPECT_EQ(serve(tokens), 0U) << "of other layouts too";
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

TEST_F(CacheDisk, WhatComesFromDiskHasRoomMadeOnTheDevice) {
  CacheConfig config = disk_config(10, 24);
  config.context_tokens_max = 128;
  config.host.write_policy = WritePolicy::WriteBack;
  open(std::move(config));
  for (int round = 0; round < 2; ++round) {
    for (TokenId i = 0; i < 8; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 113)), round == 0 ? 0U : 112U) << i;
  }
  EXPECT_EQ(stats().miss_requests[static_cast<std::size_t>(MissReason::LoadFailed)], 0U);
}

TEST_F(CacheDisk, ASecondCacheOnTheDirectoryIsRefused) {
  open(disk_config());
  const auto second = Cache::open(disk_config());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
}

TEST_F(CacheDisk, APutThatIsRepeatedWritesNothing) {
  open(disk_config());
  const std::vector<TokenId> tokens = token_range(0, 32);
  const std::vector<std::byte> pages(std::size_t{2} * kPageTokens * kTestTokenBytes);
  std::vector<DiskAnswer> answers;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(cache_->put_on_disk(space_, {.tokens = tokens}, pages,
                                    [&](const DiskAnswer& answer) { answers.push_back(answer); }));
    drain(*cache_);
  }
  EXPECT_EQ(answers[1].token_count, 32U);
  EXPECT_EQ(cache_->disk_status()->page_count, 2U);
}

TEST_F(CacheDisk, DirectCallsAreRefusedWithWhatIsWrong) {
  const auto expect_refused = [](const Status& status, ErrorCode code, const std::string& text) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, code);
    EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
  };
  const std::vector<TokenId> tokens = token_range(0, 33);
  std::vector<std::byte> pages(std::size_t{2} * kPageTokens * kTestTokenBytes);
  const auto nothing = [](const DiskAnswer&) { FAIL(); };
  open(test_config(16, 8));
  expect_refused(cache_->lookup_on_disk(space_, {.tokens = tokens}, nothing), ErrorCode::Unsupported, "no disk tier");
  EXPECT_FALSE(cache_->flush());
  EXPECT_FALSE(cache_->disk_status());
  open(disk_config());
  expect_refused(cache_->put_on_disk(space_, {.tokens = tokens}, std::span(pages).first(9), nothing),
                 ErrorCode::InvalidArgument, "9 bytes were given for the 2 whole pages");
  expect_refused(cache_->get_from_disk({}, {.tokens = tokens}, pages, nothing), ErrorCode::InvalidArgument,
                 "key space");
  std::vector<TokenId> bad = tokens;
  bad[3] = -1;
  expect_refused(cache_->get_from_disk(space_, {.tokens = bad}, pages, nothing), ErrorCode::InvalidArgument,
                 "token 3 is -1");
  ASSERT_TRUE(cache_->pause_transfers());
  expect_refused(cache_->get_from_disk(space_, {.tokens = tokens}, pages, nothing), ErrorCode::Unavailable, "paused");
}

TEST_F(CacheDisk, PutsOfTwoKeySpacesOnBranchingPathsAreEachTheirOwn) {
  open(disk_config());
  const std::array<KeySpaceId, 2> spaces = {space_, cache_->key_space({.model = "other"}).value()};
  const auto pages_of = [](std::uint64_t salt, const std::vector<TokenId>& tokens) {
    std::vector<std::byte> pages(tokens.size() * kTestTokenBytes);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::uint64_t value = ByteEngine::value_at(salt, tokens, {}, i);
      std::memcpy(pages.data() + (i * kTestTokenBytes), &value, sizeof(value));
    }
    return pages;
  };
  // Six pages, and a path that leaves them behind the second: the other key space has the branch first.
  const std::vector<TokenId> path = token_range(0, 96);
  std::vector<TokenId> branch = token_range(0, 96);
  for (std::size_t i = 32; i < 96; ++i) branch[i] += 1'000;
  std::uint32_t answer_count = 0;
  for (std::uint64_t salt = 0; salt < 2; ++salt) {
    for (const std::vector<TokenId>& tokens : {salt == 0 ? path : branch, salt == 0 ? branch : path}) {
      const std::vector<std::byte> pages = pages_of(salt, tokens);
      ASSERT_TRUE(cache_->put_on_disk(spaces[salt], {.tokens = tokens}, pages, [&](const DiskAnswer& answer) {
        EXPECT_EQ(answer.token_count, 96U);
        ++answer_count;
      }));
      drain(*cache_);
    }
  }
  EXPECT_EQ(answer_count, 4U);
  EXPECT_EQ(cache_->disk_status()->page_count, 2U * 10) << "what the paths share is there once for each key space";
  for (std::uint64_t salt = 0; salt < 2; ++salt) {
    for (const std::vector<TokenId>& tokens : {path, branch}) {
      std::vector<std::byte> got(tokens.size() * kTestTokenBytes);
      ASSERT_TRUE(cache_->get_from_disk(spaces[salt], {.tokens = tokens}, got, nullptr));
      drain(*cache_);
      EXPECT_EQ(got, pages_of(salt, tokens));
      EXPECT_EQ(serve_in(spaces[salt], salt, tokens), 96U);
    }
  }
}

TEST_F(CacheDisk, TwoThatComputeTheSamePagesWriteThemOnceAndTheyAreRightAfterARestart) {
  open(disk_config());
  std::vector<TokenId> tokens = token_range(0, 80);
  Sequence first = begin_admitted(tokens);
  Sequence second = begin_admitted(tokens);
  drain(*cache_);
  // Both compute before either has published anything.
  const std::array<StepEntry, 2> entries = {StepEntry{&first, 80}, StepEntry{&second, 80}};
  const PlanOutcome outcome = cache_->plan_step(entries).value();
  ASSERT_TRUE(outcome.step.has_value());
  for (const AttentionPlanEntry& entry : outcome.step->plan.entries) engine_->run(entry, 0, tokens);
  const std::array<StepResult, 2> results;
  ASSERT_TRUE(cache_->finish_step(*outcome.step, results));
  ASSERT_TRUE(cache_->end(first));
  ASSERT_TRUE(cache_->end(second));
  flush();
  EXPECT_EQ(cache_->disk_status()->page_count, 5U);
  EXPECT_EQ(stats().disk_stored_page_total, 5U);
  restart(disk_config());
  EXPECT_EQ(serve(tokens), 80U);
}

TEST_F(CacheDisk, CachesOfOneProcessHaveDisksAndPageSizesOfTheirOwn) {
  CacheConfig other = disk_config();
  other.page.page_tokens = 32;
  other.disk.directories = {directory_.path() + "/other"};
  const std::unique_ptr<Cache> second = open_cache(std::move(other));
  open(disk_config());
  serve(token_range(0, 64));
  flush();
  EXPECT_EQ(cache_->disk_status()->page_count, 4U);
  EXPECT_EQ(second->disk_status()->page_count, 0U);
  const std::vector<std::byte> pages(std::size_t{64} * kTestTokenBytes);
  ASSERT_TRUE(second->put_on_disk(second->key_space({.model = "test"}).value(), {.tokens = token_range(0, 64)}, pages,
                                  nullptr));
  drain(*second);
  EXPECT_EQ(second->disk_status()->page_count, 2U);
  restart(disk_config());
  EXPECT_EQ(serve(token_range(0, 64)), 64U);
}

TEST_F(CacheDisk, ADiskTierIsRefusedWithWhatIsWrong) {
  const auto refused = [&](const auto& change, const std::string& text) {
    CacheConfig config = disk_config();
    change(config);
    const auto cache = Cache::open(std::move(config));
    ASSERT_FALSE(cache.has_value());
    EXPECT_NE(cache.error().message.find(text), std::string::npos) << cache.error().message;
  };
  refused([](CacheConfig& c) { c.host.page_count = 0; }, "there is no host tier");
  refused([](CacheConfig& c) { c.page.page_tokens = 8; }, "pages of 16 tokens or more");
  refused([](CacheConfig& c) { c.disk.capacity_bytes = 0; }, "disk.capacity_bytes is 0");
  refused([](CacheConfig& c) { c.disk.capacity_bytes = 1; }, "capacity_bytes");
  refused([](CacheConfig& c) { c.disk.write_hits_min = 0; }, "disk.write_hits_min is 0");
  refused([](CacheConfig& c) { c.disk.write_policy = static_cast<WritePolicy>(9); }, "disk.write_policy is 9");
  refused([](CacheConfig& c) { c.disk.zstd_level = 99; }, "zstd");
  refused([](CacheConfig& c) { c.disk.queue_depth = 0; }, "queue_depth");
  refused([](CacheConfig& c) { c.host.external_mover = true; }, "give these by host.rank_movers");
  refused([](CacheConfig& c) { c.disk.directories = {"/proc/quire"}; }, "/proc/quire");
  refused([](CacheConfig& c) { c.disk.directories.push_back(c.disk.directories.front()); }, "twice");
  std::ofstream(directory_.path() + "/foreign.txt") << "not a page";
  refused([this](CacheConfig& c) { c.disk.directories = {directory_.path()}; }, directory_.path());
}

TEST_F(CacheDisk, CompressedPagesAndSeveralDirectoriesServeTheSame) {
  const auto config = [&] {
    CacheConfig made = disk_config();
    made.layout = ModelLayout::opaque(kTestTokenBytes).value();
    made.disk.directories = {directory_.path() + "/a", directory_.path() + "/b"};
    made.disk.zstd_level = 3;
    return made;
  };
  open(config());
  for (TokenId i = 0; i < 6; ++i) serve(token_range(1'000 * i, 100));
  restart(config());
  for (TokenId i = 0; i < 6; ++i) EXPECT_EQ(serve(token_range(1'000 * i, 100)), 96U) << i;
  EXPECT_EQ(cache_->disk_status()->directory_count, 2U);
}

TEST_F(CacheDisk, NoTokensAreInTheFiles) {
  open(disk_config());
  const std::vector<TokenId> tokens(64, 0x51525354);
  std::vector<std::byte> pages(std::size_t{4} * kPageTokens * kTestTokenBytes);
  ASSERT_TRUE(cache_->put_on_disk(space_, {.tokens = tokens}, pages, nullptr));
  drain(*cache_);
  flush();
  close();
  std::size_t file_count = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory_.path() + "/pages")) {
    std::ifstream stream(file.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    EXPECT_EQ(bytes.find("TSRQ"), std::string::npos) << file.path();
    EXPECT_EQ(std::filesystem::status(file.path()).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    ++file_count;
  }
  EXPECT_GE(file_count, 2U);
}

}  // namespace
}  // namespace quire
