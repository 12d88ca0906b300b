// SPDX-License-Identifier: Apache-2.0
//
// Nothing allocates after create(): texts come, are looked up, used and erased, and the counter stays where it was.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>

#include "base/hash.h"
#include "quire/chunk_index.h"
#include "tests/cache/allocation_counter.h"

namespace quire {
namespace {

TEST(ChunkIndexNoAllocation, HoldsForEveryCall) {
  constexpr KeySpaceId kSpace{.index = 3, .generation = 1};
  const auto index = *ChunkIndex::create({.page_tokens = 16, .page_count_max = 1'000});
  std::array<TokenId, 128> tokens{};
  std::array<PageHandle, 8> handles{};
  std::array<ChunkPage, 8> out{};
  const std::array keys{ExtraKey{.begin = 20, .end = 40, .item = {7}}};
  std::uint64_t found_pages = 0;
  const std::uint64_t before = allocation_count;
  for (std::uint64_t round = 0; round < 20'000; ++round) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<TokenId>(mix64(round * 8 + (i / 16)) % 400);
    }
    for (std::size_t i = 0; i < handles.size(); ++i) handles[i] = {mix64(round * 8 + i) % 3'000};
    const Chunk text{.tokens = tokens, .extra_keys = round % 3 == 0 ? std::span(keys) : std::span<const ExtraKey>()};
    const std::array chunks{text};
    found_pages += index->lookup(kSpace, chunks, out)->partial_pages;
    ASSERT_TRUE(index->insert(kSpace, text, handles).has_value());
    index->touch(handles[2]);
    index->erase(handles[round % 8]);
    if (round % 5'000 == 0) index->drop(kSpace);
    if (round % 7'000 == 0) index->clear();
  }
  EXPECT_EQ(allocation_count - before, 0U);
  EXPECT_GT(found_pages, 1'000U);
}

}  // namespace
}  // namespace quire
