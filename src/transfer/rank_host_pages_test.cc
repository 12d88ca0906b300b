// SPDX-License-Identifier: Apache-2.0
#include "transfer/rank_host_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "kernels/copy_checked.h"
#include "store/host_store.h"

namespace quire {
namespace {

constexpr std::uint32_t kPageBytes = 100;

class RankHostPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::unique_ptr<HostStore>& store : stores_) {
      store = HostStore::open({.parts = {{.layer_bytes = kPageBytes, .layer_count = 1}}, .page_count = 4}).value();
    }
    const std::array<HostPages*, 3> ranks = {stores_[0].get(), stores_[1].get(), stores_[2].get()};
    pages_ = RankHostPages::create(ranks, 4).value();
  }
  [[nodiscard]] static PageTransfer page(std::uint32_t id, std::uint32_t generation = 1) {
    return {.device_page = PageId{1}, .host_page = PageId{id}, .host_generation = generation, .name_tag = id};
  }
  [[nodiscard]] static std::uint64_t checksum_of(std::span<const std::byte> bytes) {
    return best_checked_copier().sum({.source = bytes.data(), .bytes = bytes.size()}).finish(bytes.size());
  }
  void write(const PageTransfer& page, std::byte value) {
    std::span<std::byte> bytes;
    ASSERT_EQ(pages_->begin_write(page, bytes), TransferFault::None);
    ASSERT_EQ(bytes.size(), kPageBytes);
    std::ranges::fill(bytes, value);
    pages_->end_write(page, checksum_of(bytes));
  }
  /// What a rank has in a page; nothing: it has no such page.
  [[nodiscard]] std::vector<std::byte> read(std::size_t rank, const PageTransfer& page) {
    HostPages::Record record;
    if (stores_[rank]->begin_read(page, record) != TransferFault::None) return {};
    EXPECT_EQ(record.checksum, checksum_of(record.bytes));
    stores_[rank]->end_read(page);
    return {record.bytes.begin(), record.bytes.end()};
  }

  std::array<std::unique_ptr<HostStore>, 3> stores_;
  std::unique_ptr<RankHostPages> pages_;
};

TEST_F(RankHostPagesTest, WhatIsWrittenIsOnEveryRank) {
  write(page(1), std::byte{5});
  write(page(4), std::byte{6});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(read(rank, page(1)), std::vector(kPageBytes, std::byte{5})) << rank;
    EXPECT_EQ(read(rank, page(4)), std::vector(kPageBytes, std::byte{6})) << rank;
  }
  HostPages::Record record;
  ASSERT_EQ(pages_->begin_read(page(4), record), TransferFault::None);
  EXPECT_EQ(record.bytes.front(), std::byte{6});
  pages_->end_read(page(4));
}

TEST_F(RankHostPagesTest, AWriteThatEndsWithoutAChecksumLeavesNoRankWithData) {
  write(page(2), std::byte{5});
  std::span<std::byte> bytes;
  ASSERT_EQ(pages_->begin_write(page(2, 2), bytes), TransferFault::None);
  pages_->end_write(page(2, 2), std::nullopt);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(read(rank, page(2)).empty()) << rank;
    EXPECT_TRUE(read(rank, page(2, 2)).empty()) << rank;
  }
}

TEST_F(RankHostPagesTest, AFaultOfOneRankIsEverybodysAndAllCanBeWrittenAfterwards) {
  write(page(3), std::byte{5});
  HostPages::Record record;
  ASSERT_EQ(stores_[1]->begin_read(page(3), record), TransferFault::None);  // somebody is at the page
  std::span<std::byte> bytes;
  EXPECT_NE(pages_->begin_write(page(3, 2), bytes), TransferFault::None);
  stores_[1]->end_read(page(3));
  EXPECT_TRUE(read(0, page(3)).empty());
  write(page(3, 2), std::byte{7});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(read(rank, page(3, 2)), std::vector(kPageBytes, std::byte{7})) << rank;
  }
}

}  // namespace
}  // namespace quire
