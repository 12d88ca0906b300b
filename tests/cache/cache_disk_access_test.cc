// SPDX-License-Identifier: Apache-2.0
//
// A disk tier that is only read, and one that is only written. The simulated disk stops the program when somebody
// changes a directory that is only read.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "disk_fixture.h"
#include "wire/segment.h"

namespace quire {
namespace {

class CacheDiskAccess : public DiskTest {
 protected:
  using Files = std::map<std::string, std::vector<std::byte>>;

  [[nodiscard]] static CacheConfig config_of(TierAccess access) {
    CacheConfig config = disk_config();
    config.disk.access = access;
    if (access == TierAccess::ReadOnly) config.disk.capacity_bytes = 0;  // not asked for
    return config;
  }
  /// Written by a process that has ended.
  void write_library(const std::vector<TokenId>& tokens) {
    open_disk(disk_config());
    put_on_disk(tokens);
    close();
  }
  [[nodiscard]] Files files() const {
    Files all;
    for (const std::string& name : disk_->file_names(kPath)) all[name] = disk_->file_bytes(kPath, name);
    return all;
  }
  [[nodiscard]] std::uint32_t found_on_disk(const std::vector<TokenId>& tokens) {
    std::uint32_t found = UINT32_MAX;
    EXPECT_TRUE(cache_->lookup_on_disk(space_, {.tokens = tokens},
                                       [&](const DiskAnswer& answer) { found = answer.token_count; }));
    settle_all();
    return found;
  }
};

TEST_F(CacheDiskAccess, WhatIsOnlyReadServesAndIsLeftAsItWas) {
  write_library(token_range(0, 64));
  const Files before = files();
  open_disk(config_of(TierAccess::ReadOnly));
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
  EXPECT_EQ(serve_all(token_range(1'000, 64)), 0U) << "computed, and not written";
  EXPECT_EQ(stats().disk_waiting_pages, 0U);
  EXPECT_EQ(stats().disk_stored_page_total, 0U);
  for (const std::uint64_t count : stats().disk_store_outcomes) EXPECT_EQ(count, 0U) << "nor was it tried";
  forget_memory();
  EXPECT_EQ(serve_all(token_range(1'000, 64)), 0U);
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
  close();
  EXPECT_EQ(files(), before);
}

TEST_F(CacheDiskAccess, WhatAProcessLeftOpenIsReadAndNotMended) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  auto remains = disk_->kill(3);  // no footer was written
  close();
  disk_ = std::move(remains);
  const Files before = files();
  open_disk(config_of(TierAccess::ReadOnly));
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
  close();
  EXPECT_EQ(files(), before);
}

TEST_F(CacheDiskAccess, WhatIsDroppedIsNotFoundAgainBeforeTheNextOpening) {
  write_library(token_range(0, 64));
  const Files before = files();
  open_disk(config_of(TierAccess::ReadOnly));
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
  ASSERT_TRUE(cache_->drop(space_));
  settle_all();
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(found_on_disk(token_range(0, 64)), 0U);
  EXPECT_EQ(serve_all(token_range(0, 64)), 0U);
  ASSERT_TRUE(cache_->reset());
  settle_all();
  open_disk(config_of(TierAccess::ReadOnly));
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U);
  close();
  EXPECT_EQ(files(), before);
}

TEST_F(CacheDiskAccess, ABadPageIsNotServedAndNotBuried) {
  write_library(token_range(0, 64));
  const std::string segment = [&] {
    for (const std::string& name : disk_->file_names(kPath)) {
      if (name.starts_with("segment-")) return name;
    }
    return std::string();
  }();
  // Behind the segment's header: what the key space is called, and the pages.
  for (std::uint64_t block = 1; block < 6; ++block) {
    disk_->flip_bit(kPath, segment, ((block * kSegmentBlockBytes) + kRecordHeaderBytes + 5) * 8);
  }
  const Files before = files();
  open_disk(config_of(TierAccess::ReadOnly));
  EXPECT_LT(serve_all(token_range(0, 64)), 64U);
  close();
  EXPECT_EQ(files(), before);
}

TEST_F(CacheDiskAccess, PutsAndFlushesToWhatIsOnlyReadAreRefused) {
  write_library(token_range(0, 64));
  open_disk(config_of(TierAccess::ReadOnly));
  const std::vector<TokenId> tokens = token_range(2'000, 16);
  const std::vector<std::byte> bytes(cache_->direct_bytes(16)->byte_count);
  expect_error(cache_->put_on_disk(space_, {.tokens = tokens}, bytes, nullptr), ErrorCode::Unsupported, "only read");
  expect_error(cache_->flush(), ErrorCode::Unsupported, "only read");
  std::vector<std::byte> target(cache_->direct_bytes(64)->byte_count);
  std::uint32_t read = 0;
  const std::vector<TokenId> library = token_range(0, 64);
  ASSERT_TRUE(cache_->get_from_disk(space_, {.tokens = library}, target,
                                    [&](const DiskAnswer& answer) { read = answer.token_count; }));
  settle_all();
  EXPECT_EQ(read, 64U);
}

TEST_F(CacheDiskAccess, SeveralReadAtOnceAndNobodyWritesMeanwhile) {
  write_library(token_range(0, 64));
  open_disk(config_of(TierAccess::ReadOnly));
  HandHostPages other_pages{std::uint64_t{kPageTokens} * kTestTokenBytes};
  {
    const auto second = CacheForTests::open(config_of(TierAccess::ReadOnly), *disk_, other_pages);
    ASSERT_TRUE(second.has_value()) << second.error().message;
    expect_error(CacheForTests::open(disk_config(), *disk_, other_pages), ErrorCode::Unavailable, "pages");
  }
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U) << "the other one's end changes nothing";
  close();
  open_disk(disk_config());
  expect_error(CacheForTests::open(config_of(TierAccess::ReadOnly), *disk_, other_pages), ErrorCode::Unavailable,
               "pages");
}

TEST_F(CacheDiskAccess, ALibraryThatIsNotThereIsRefusedAndNotMade) {
  HandHostPages pages{std::uint64_t{kPageTokens} * kTestTokenBytes};
  expect_error(CacheForTests::open(config_of(TierAccess::ReadOnly), *disk_, pages), ErrorCode::Io, kPath);
  (void)disk_->open_directory(kPath).value();  // made, and empty
  expect_error(CacheForTests::open(config_of(TierAccess::ReadOnly), *disk_, pages), ErrorCode::InvalidArgument,
               "no file store");
  EXPECT_TRUE(files().empty());
}

TEST_F(CacheDiskAccess, WhatIsOnlyWrittenIsNeverLookedFor) {
  write_library(token_range(0, 64));
  open_disk(config_of(TierAccess::WriteOnly));
  Live live = begun(token_range(0, 64), {.prefetch = Prefetch::Wait});
  EXPECT_TRUE(cache_->admit(live.sequence).value().is_ready) << "nobody waits for the disk";
  EXPECT_EQ(view(live).computed_tokens, 0U);
  finish(live);
  EXPECT_EQ(serve_all(token_range(1'000, 64)), 0U);
  EXPECT_EQ(stats().disk_find_count, 0U);
  flush();
  EXPECT_EQ(found_on_disk(token_range(1'000, 64)), 64U) << "direct calls read";
  open_disk(disk_config());
  EXPECT_EQ(serve_all(token_range(1'000, 64)), 64U) << "the next process has it";
}

TEST_F(CacheDiskAccess, ValuesThatAreNoneAreRefused) {
  CacheConfig config = disk_config();
  config.disk.access = static_cast<TierAccess>(9);
  expect_error(config.validate(), ErrorCode::InvalidArgument, "disk.access is 9");
  config.disk.access = TierAccess::WriteOnly;
  config.disk.capacity_bytes = 0;
  expect_error(config.validate(), ErrorCode::InvalidArgument, "disk.capacity_bytes");
  config.disk.access = TierAccess::ReadOnly;
  EXPECT_TRUE(config.validate());
}

}  // namespace
}  // namespace quire
