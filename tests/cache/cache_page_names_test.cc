// SPDX-License-Identifier: Apache-2.0
//
// page_names(): what pages are called on disk, told without one.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "disk_fixture.h"

namespace quire {
namespace {

class CachePageNames : public DiskTest {
 protected:
  [[nodiscard]] std::vector<PageName> names(const std::vector<TokenId>& tokens,
                                            const std::vector<ExtraKey>& extra_keys = {}) const {
    return cache_->page_names(space_, {.tokens = tokens, .extra_keys = extra_keys}).value();
  }
};

TEST_F(CachePageNames, TheyAreThoseOfTheRecordsOnDisk) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 70));
  const std::vector<PageName> found = names(token_range(0, 70));
  ASSERT_EQ(found.size(), 4U) << "whole pages only";
  const FileStore& store = CacheForTests::disk(*cache_).store();
  EXPECT_EQ(store.find(found), 4U);
  EXPECT_EQ(store.find(names(token_range(1, 70))), 0U);
  EXPECT_EQ(std::set<PageName>(found.begin(), found.end()).size(), 4U);
}

TEST_F(CachePageNames, TheyAreTheSameWithoutADiskAndInAnotherCache) {
  open_disk(disk_config());
  const std::vector<PageName> with_disk = names(token_range(0, 64));
  close();
  open(kPageTokens, 8);
  EXPECT_EQ(names(token_range(0, 64)), with_disk);
  EXPECT_TRUE(names(token_range(0, 15)).empty());
}

TEST_F(CachePageNames, TokensKeysAndKeySpacesAllCount) {
  open(kPageTokens, 8);
  const std::vector<PageName> plain = names(token_range(0, 64));
  std::vector<TokenId> other = token_range(0, 64);
  other[40] = 7;
  const std::vector<PageName> changed = names(other);
  EXPECT_EQ(changed[1], plain[1]) << "before the change";
  EXPECT_NE(changed[2], plain[2]);
  EXPECT_NE(changed[3], plain[3]) << "names are chained";
  EXPECT_NE(names(token_range(0, 64), {{.begin = 0, .end = 3, .item = {1}}})[0], plain[0]);
  space_ = cache_->key_space({.model = "test", .salt = "of a tenant"}).value();
  EXPECT_NE(names(token_range(0, 64))[0], plain[0]);
}

TEST_F(CachePageNames, WhatLooksAheadIsNamedAsItsRecordsAre) {
  // Draft layers depend on the next token, which is in the names of their pages.
  CacheConfig config = disk_config();
  CacheGroup group = config.layout.groups().front();
  group.lookahead_tokens = 1;
  config.layout = ModelLayout::create("drafts", {group}).value();
  open_disk(std::move(config));
  put_on_disk(token_range(0, 65));
  EXPECT_EQ(names(token_range(0, 64)).size(), 3U) << "the last row is not known yet";
  EXPECT_EQ(CacheForTests::disk(*cache_).store().find(names(token_range(0, 65))), 4U);
}

TEST_F(CachePageNames, BadInputIsRefused) {
  open(kPageTokens, 8);
  const std::vector<TokenId> tokens = token_range(0, 16);
  const std::vector<TokenId> negative(16, -1);
  expect_error(cache_->page_names({}, {.tokens = tokens}), ErrorCode::InvalidArgument, "key space");
  expect_error(cache_->page_names(space_, {}), ErrorCode::InvalidArgument, "empty");
  expect_error(cache_->page_names(space_, {.tokens = negative}), ErrorCode::InvalidArgument, "token 0 is -1");
}

}  // namespace
}  // namespace quire
