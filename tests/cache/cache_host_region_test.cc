// SPDX-License-Identifier: Apache-2.0
//
// What the host tier's memory lies in, as a cache tells it. What each refusal looks like is tested beside HostRegion.
#include <gtest/gtest.h>

#include "cache_fixture.h"

namespace quire {
namespace {

class CacheHostRegion : public CacheTest {
 protected:
  void open_with(const HostRegionConfig& region) {
    CacheConfig config = test_config(4, 8);
    config.host = {.page_count = 8, .region = region};
    open(std::move(config));
  }
};

TEST_F(CacheHostRegion, WhatWasNotAskedForIsNotInUse) {
  open_with({.huge_pages = false});
  EXPECT_FALSE(stats().host_has_huge_pages);
  EXPECT_FALSE(stats().host_is_on_numa_node);
  EXPECT_FALSE(stats().host_is_locked);
  EXPECT_EQ(cache_->host_region()->refusals, "");
}

TEST_F(CacheHostRegion, ANodeThatDoesNotExistIsDoneWithoutAndSaid) {
  open_with({.huge_pages = false, .numa_node = 1'000});
  EXPECT_FALSE(stats().host_is_on_numa_node);
  EXPECT_NE(cache_->host_region()->refusals.find("1000"), std::string::npos) << cache_->host_region()->refusals;
  Sequence sequence = begin_admitted(token_range(0, 4));  // it works all the same
}

TEST_F(CacheHostRegion, StatsSayWhatTheRegionSays) {
  open_with({.lock_memory = true});
  const HostRegionStatus region = cache_->host_region().value();
  EXPECT_EQ(stats().host_has_huge_pages, region.has_huge_pages);
  EXPECT_EQ(stats().host_is_locked, region.is_locked);
  EXPECT_EQ(region.is_locked, region.refusals.find("lock") == std::string::npos) << region.refusals;
}

TEST_F(CacheHostRegion, WithoutMemoryOfItsOwnThereIsNothingToTell) {
  open(4, 8);
  expect_error(cache_->host_region(), ErrorCode::Unsupported, "the cache has no host tier");
}

}  // namespace
}  // namespace quire
