// SPDX-License-Identifier: Apache-2.0
#include "page_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace quire {
namespace {

/// A pool of a few pages in memory of its own.
struct Pool {
  explicit Pool(const ModelLayout& layout, std::uint32_t page_tokens = 4, HeadOrder order = HeadOrder::Nhd)
      : geometry(*PoolGeometry::create(
            *PageGeometry::create(layout.groups().front(), {.page_tokens = page_tokens, .head_order = order}),
            {.page_count = 3})),
        bytes(geometry.pool_bytes()),
        pattern(geometry, bytes.data()) {}

  PoolGeometry geometry;
  std::vector<std::byte> bytes;
  PagePattern pattern;
};

ModelLayout two_layers() {
  return *ModelLayout::simple({.layers = 2, .kv_heads = 2, .head_dim = 8});
}

TEST(PagePattern, WhatWasWrittenIsFound) {
  Pool pool(two_layers());
  for (std::uint32_t i = 0; i < 4; ++i) pool.pattern.write({PageId{1}, i}, 100 + i);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(pool.pattern.first_wrong_byte({PageId{1}, i}, 100 + i), std::nullopt) << i;
    EXPECT_NE(pool.pattern.first_wrong_byte({PageId{1}, i}, 101 + i), std::nullopt) << i;
  }
}

TEST(PagePattern, ATokenFillsItsOwnBytesAndNoOthers) {
  for (const HeadOrder order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
    Pool pool(two_layers(), 4, order);
    pool.pattern.write({PageId{1}, 2}, 7);
    const auto changed = static_cast<std::uint64_t>(
        std::ranges::count_if(pool.bytes, [](std::byte byte) { return byte != std::byte{0}; }));
    EXPECT_LE(changed, pool.pattern.token_bytes());
    EXPECT_GE(changed, pool.pattern.token_bytes() * 9 / 10);  // a few of the pattern's bytes are zero
    const std::uint64_t page_bytes = pool.geometry.page().page_bytes();
    EXPECT_TRUE(std::all_of(pool.bytes.begin(), pool.bytes.begin() + static_cast<std::ptrdiff_t>(page_bytes),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST(PagePattern, EveryFlippedBitIsFoundAtItsOffset) {
  // Rows of 13 bytes: a word and a rest.
  for (const ModelLayout& layout : {two_layers(), *ModelLayout::opaque(13), *ModelLayout::opaque(3)}) {
    Pool pool(layout);
    for (std::uint32_t i = 0; i < 4; ++i) pool.pattern.write({PageId{2}, i}, 50 + i);
    const std::uint64_t page_bytes = pool.geometry.page().page_bytes();
    ASSERT_EQ(pool.pattern.token_bytes() * 4, page_bytes);
    for (std::uint64_t offset = 0; offset < page_bytes; ++offset) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        std::byte& byte = pool.bytes[(2 * page_bytes) + offset];
        byte ^= std::byte{1} << bit;
        std::vector<std::uint64_t> wrong;
        for (std::uint32_t i = 0; i < 4; ++i) {
          if (const auto at = pool.pattern.first_wrong_byte({PageId{2}, i}, 50 + i)) wrong.push_back(*at);
        }
        EXPECT_EQ(wrong, std::vector<std::uint64_t>{offset});
        byte ^= std::byte{1} << bit;
      }
    }
  }
}

TEST(PagePattern, TheFirstOfSeveralWrongBytesIsNamed) {
  Pool pool(two_layers());
  pool.pattern.write({PageId{1}, 0}, 9);
  const std::uint64_t page = pool.geometry.page().page_bytes();
  const std::uint64_t second_layer = pool.geometry.page().layer_bytes();
  pool.bytes[page + second_layer + 3] ^= std::byte{4};
  pool.bytes[page + 11] ^= std::byte{4};
  EXPECT_EQ(pool.pattern.first_wrong_byte({PageId{1}, 0}, 9), 11U);
}

TEST(PagePattern, AByteOfATokenIsOneOfItsOwn) {
  Pool pool(two_layers());
  for (std::uint32_t i = 0; i < 4; ++i) pool.pattern.write({PageId{1}, i}, 20 + i);
  pool.pattern.byte_of({PageId{1}, 3}) ^= std::byte{1};
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(pool.pattern.first_wrong_byte({PageId{1}, i}, 20 + i).has_value(), i == 3);
  }
}

TEST(PagePattern, HistoriesTellKeySpacesPrefixesAndPositionsApart) {
  std::set<std::uint64_t> histories;
  std::size_t count = 0;
  for (const std::string key_space : {"", "a", "b", "ab"}) {
    std::uint64_t same = PagePattern::root(key_space);
    std::uint64_t counting = same;
    for (TokenId token = 1; token <= 100; ++token) {
      same = PagePattern::next(same, 0);  // a position more, though the token is the same
      counting = PagePattern::next(counting, token);
      histories.insert({same, counting});
      count += 2;
    }
  }
  EXPECT_EQ(histories.size(), count);
}

TEST(PagePattern, ARowMovedToAnotherPlaceIsWrongThere) {
  Pool pool(two_layers());
  for (std::uint32_t i = 0; i < 4; ++i) pool.pattern.write({PageId{1}, i}, 30 + i);
  const PageGeometry& page = pool.geometry.page();
  const std::uint64_t row_bytes = page.components().front().head_bytes;
  // Within the page: the first row over any other of the same length.
  for (std::uint64_t offset = row_bytes; offset < page.page_bytes(); offset += row_bytes) {
    Pool other = pool;
    other.pattern = PagePattern(other.geometry, other.bytes.data());
    const auto source = other.bytes.begin() + static_cast<std::ptrdiff_t>(page.page_bytes());
    std::copy_n(source, row_bytes, source + static_cast<std::ptrdiff_t>(offset));
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      wrong += other.pattern.first_wrong_byte({PageId{1}, i}, 30 + i).has_value() ? 1 : 0;
    }
    EXPECT_EQ(wrong, 1U) << offset;
  }
}

}  // namespace
}  // namespace quire
