// SPDX-License-Identifier: Apache-2.0
#include "transfer/disk_stores.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace quire {
namespace {

/// Components of so many heads each; 0: one that every rank has whole.
PageGeometry page_of(const std::vector<std::uint32_t>& heads, std::uint32_t rank_count) {
  CacheGroup group{.name = "full", .layers = {0, 1}, .components = {}};
  for (const std::uint32_t count : heads) {
    Component& component = group.components.emplace_back(
        Component{.name = "c" + std::to_string(group.components.size()), .element = ElementType::Bf16, .dim = 8});
    if (count == 0) component.sharding = Sharding::Replicated;
    if (count > 0) component.heads = count;
  }
  return PageGeometry::create(group, {.page_tokens = 16, .rank_count = rank_count}).value();
}

std::uint32_t shards_of(const std::vector<std::uint32_t>& heads, std::uint32_t rank_count) {
  const PageGeometry page = page_of(heads, rank_count);
  const PageGeometry* const pages = &page;
  return rank_count / ranks_per_shard({&pages, 1});
}

TEST(DiskShards, RanksThatHoldTheSameHeadsAreAShard) {
  EXPECT_EQ(shards_of({8}, 1), 1U);
  EXPECT_EQ(shards_of({8}, 2), 2U);
  EXPECT_EQ(shards_of({8}, 8), 8U);
  EXPECT_EQ(shards_of({2}, 8), 2U);
  EXPECT_EQ(shards_of({1}, 8), 1U);
  EXPECT_EQ(shards_of({0}, 8), 1U);
  EXPECT_EQ(shards_of({0, 2}, 4), 2U);
  EXPECT_EQ(shards_of({2, 4}, 4), 4U);
  EXPECT_EQ(shards_of({4, 6}, 12), 12U);  // threes and twos: shards have one size
}

TEST(DiskShards, AllPagesHaveASay) {
  const PageGeometry whole = page_of({0}, 4);
  const PageGeometry halves = page_of({2}, 4);
  const std::array<const PageGeometry*, 2> pages = {&whole, &halves};
  EXPECT_EQ(ranks_per_shard(pages), 2U);
}

TEST(DiskShards, EachHasItsDirectoriesAndAnEqualShare) {
  const DiskConfig disk{
      .directories = {"/a", "/b"}, .capacity_bytes = 1'000, .group_capacity_bytes = std::vector<std::uint64_t>{0, 600}};
  const DiskConfig second = disk_of_shard(disk, 1, 4);
  EXPECT_EQ(second.directories, (std::vector<std::string>{"/a/shard-1-of-4", "/b/shard-1-of-4"}));
  EXPECT_EQ(second.capacity_bytes, 250U);
  EXPECT_EQ(second.group_capacity_bytes, (std::vector<std::uint64_t>{0, 150}));
  const DiskConfig alone = disk_of_shard(disk, 0, 1);
  EXPECT_EQ(alone.directories, disk.directories);
  EXPECT_EQ(alone.capacity_bytes, 1'000U);
}

TEST(DiskLayoutHash, OfOneRankIsWhatItAlwaysWas) {
  const ModelLayout layout = ModelLayout::opaque(1'024).value();
  const PageGeometry page = PageGeometry::create(layout.groups().front(), {.page_tokens = 16}).value();
  EXPECT_EQ(disk_layout_hash(page, 0), 0xa184fc98c50ee7e4U);  // as tests/tool/disk.console shows
}

TEST(DiskLayoutHash, WholePagesAreTheSameForAnyNumberOfRanks) {
  for (const std::uint32_t heads : {0U, 1U}) {
    const std::uint64_t alone = disk_layout_hash(page_of({heads}, 1), 0);
    for (const std::uint32_t rank_count : {2U, 4U}) {
      EXPECT_EQ(disk_layout_hash(page_of({heads}, rank_count), rank_count - 1), alone);
      EXPECT_TRUE(holds_all_heads(page_of({heads}, rank_count)));
    }
  }
}

TEST(DiskLayoutHash, SplitPagesAreToldApartByTheirHeads) {
  std::set<std::uint64_t> hashes;
  for (const std::uint32_t rank_count : {1U, 2U, 4U, 8U}) {
    const PageGeometry page = page_of({8, 0}, rank_count);
    for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
      EXPECT_TRUE(hashes.insert(disk_layout_hash(page, rank)).second) << rank << " of " << rank_count;
    }
    EXPECT_EQ(holds_all_heads(page), rank_count == 1);
  }
  // Ranks that hold the same heads, whatever their number is.
  EXPECT_EQ(disk_layout_hash(page_of({2}, 4), 1), disk_layout_hash(page_of({2}, 2), 0));
  EXPECT_EQ(disk_layout_hash(page_of({2}, 8), 4), disk_layout_hash(page_of({2}, 2), 1));
}

}  // namespace
}  // namespace quire
