// SPDX-License-Identifier: Apache-2.0
//
// Copies of pages, moves of tokens and resets in pools of drawn shapes, beside the host twins. Pools start as random
// bytes and are compared whole.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/device_kernels.h"
#include "quire/host_kernels.h"
#include "quire/plan.h"
#include "testing/seeded_run.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/geometries.h"

namespace quire {
namespace {

using testing::DeviceArray;
using testing::DeviceBytes;
using testing::draw_pool;
using testing::DrawnPool;
using testing::kLaunchings;
using testing::Launching;
using testing::Random;
using testing::random_bytes;
using testing::run_on_gpu;

// Page ids in random order.
std::vector<std::uint32_t> shuffled_pages(Random& random, std::uint32_t page_count) {
  std::vector<std::uint32_t> pages(page_count);
  for (std::uint32_t i = 0; i < page_count; ++i) pages[i] = i;
  for (std::uint32_t i = page_count; i > 1; --i) std::swap(pages[i - 1], pages[random.below(i)]);
  return pages;
}

// Copies in any order: no target is a source, and each is written once.
std::vector<PageCopy> draw_copies(Random& random, const PoolGeometry& geometry) {
  const std::vector<std::uint32_t> pages = shuffled_pages(random, geometry.page_count());
  const std::uint32_t target_count = random.below(geometry.page_count());
  const std::uint32_t page_tokens = geometry.page().options().page_tokens;
  std::vector<PageCopy> copies;
  for (std::uint32_t i = 0; i < target_count; ++i) {
    const std::uint32_t source = pages[target_count + random.below(geometry.page_count() - target_count)];
    const std::uint32_t token_count = random.below(2) == 0 ? page_tokens : random.below(page_tokens + 1);
    copies.push_back({.source = PageId{source}, .target = PageId{pages[i]}, .token_count = token_count});
  }
  return copies;
}

TEST(GpuCopyPages, CopiesWhatTheHostCopies) {
  Random random(1);
  for (int turn = 0; turn < 200; ++turn) {
    const DrawnPool drawn = draw_pool(random);
    const PoolGeometry& geometry = drawn.geometry;
    const std::vector<PageCopy> copies = draw_copies(random, geometry);
    const std::vector<std::byte> before = random_bytes(random, geometry.pool_bytes());
    std::vector<std::byte> expected = before;
    copy_pages_on_host({.geometry = &geometry, .pool = expected.data(), .copies = copies});
    DeviceBytes pool(before, random.below(5) == 0 ? 1 + random.below(17) : 0);
    DeviceArray<PageCopy> device_copies(copies);
    for (const Launching launching : kLaunchings) {
      pool.write(before);
      const Status done = run_on_gpu(launching, [&](DeviceStream stream) {
        return launch_copy_pages({.geometry = &geometry, .pool = pool.data(), .copies = device_copies.span()}, stream);
      });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_TRUE(pool.read() == expected) << "turn " << turn << ", " << drawn.name;
    }
  }
}

// Pages of compressed entries, where a token is a part of one.
TEST(GpuCopyPages, CopiesWholeEntriesOfCompressedGroups) {
  Random random(2);
  for (const std::uint32_t tokens_per_entry : {2U, 4U}) {
    const CacheGroup group{.name = "compressed",
                           .kind = GroupKind::Compressed,
                           .layers = layer_range(0, 3),
                           .components = {{.name = "a", .heads = 2, .dim = 24}, {.name = "b", .dim = 5}},
                           .tokens_per_entry = tokens_per_entry};
    const PoolGeometry geometry =
        PoolGeometry::create(PageGeometry::create(group, {.page_tokens = 16}).value(), {.page_count = 5}).value();
    for (std::uint32_t token_count = 0; token_count <= 16; ++token_count) {
      const std::vector<PageCopy> copies{{.source = PageId{4}, .target = PageId{1}, .token_count = token_count},
                                         {.source = PageId{3}, .target = PageId{3}, .token_count = token_count}};
      const std::vector<std::byte> before = random_bytes(random, geometry.pool_bytes());
      std::vector<std::byte> expected = before;
      copy_pages_on_host({.geometry = &geometry, .pool = expected.data(), .copies = copies});
      DeviceBytes pool(before);
      DeviceArray<PageCopy> device_copies(copies);
      ASSERT_TRUE(run_on_gpu(Launching::Directly, [&](DeviceStream stream) {
                    return launch_copy_pages(
                        {.geometry = &geometry, .pool = pool.data(), .copies = device_copies.span()}, stream);
                  }).has_value());
      ASSERT_TRUE(pool.read() == expected) << token_count << " tokens";
    }
  }
}

TEST(GpuCopyPages, LeavesOutWhatThePoolDoesNotHave) {
  Random random(3);
  for (int turn = 0; turn < 20; ++turn) {
    const DrawnPool drawn = draw_pool(random);
    const PoolGeometry& geometry = drawn.geometry;
    const std::uint32_t page_tokens = geometry.page().options().page_tokens;
    const std::vector<PageCopy> copies{
        {.source = PageId{geometry.page_count()}, .target = PageId{0}, .token_count = page_tokens},
        {.source = PageId{0}, .target = PageId{geometry.page_count()}, .token_count = page_tokens},
        {.source = PageId::none(), .target = PageId{0}, .token_count = page_tokens},
        {.source = PageId{0}, .target = PageId::none(), .token_count = 1},
        {.source = PageId{0}, .target = PageId{1}, .token_count = page_tokens + 1},
        {.source = PageId{0}, .target = PageId{1}, .token_count = 0xffffffff},
        {.source = PageId{0}, .target = PageId{1}, .token_count = 0},
        {.source = PageId{1}, .target = PageId{1}, .token_count = page_tokens}};
    const std::vector<std::byte> before = random_bytes(random, geometry.pool_bytes());
    DeviceBytes pool(before);
    DeviceArray<PageCopy> device_copies(copies);
    ASSERT_TRUE(run_on_gpu(Launching::Directly, [&](DeviceStream stream) {
                  return launch_copy_pages({.geometry = &geometry, .pool = pool.data(), .copies = device_copies.span()},
                                           stream);
                }).has_value());
    ASSERT_TRUE(pool.read() == before) << drawn.name;
  }
}

TEST(GpuMoveTokens, MovesInOrderAsTheHostDoes) {
  Random random(4);
  for (int turn = 0; turn < 150; ++turn) {
    const DrawnPool drawn = draw_pool(random);
    const PoolGeometry& geometry = drawn.geometry;
    // Few slots for many moves: what was moved moves on, and some moves go nowhere.
    const auto slot_count = static_cast<std::uint32_t>(testing::slot_count_of(geometry));
    const std::uint32_t used_count = std::min(slot_count, 2 + random.below(slot_count));
    std::vector<TokenMove> moves(1 + random.below(100));
    for (TokenMove& move : moves) {
      move = {.source_slot = random.below(used_count), .target_slot = random.below(used_count)};
    }
    const std::vector<std::byte> before = random_bytes(random, geometry.pool_bytes());
    std::vector<std::byte> expected = before;
    move_tokens_on_host({.geometry = &geometry, .pool = expected.data(), .moves = moves});
    DeviceBytes pool(before, random.below(5) == 0 ? 1 + random.below(17) : 0);
    DeviceArray<TokenMove> device_moves(moves);
    for (const Launching launching : kLaunchings) {
      pool.write(before);
      const Status done = run_on_gpu(launching, [&](DeviceStream stream) {
        return launch_move_tokens({.geometry = &geometry, .pool = pool.data(), .moves = device_moves.span()}, stream);
      });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_TRUE(pool.read() == expected) << "turn " << turn << ", " << drawn.name << ", " << moves.size() << " moves";
    }
  }
}

TEST(GpuMoveTokens, LeavesOutWhatThePoolDoesNotHave) {
  Random random(5);
  for (int turn = 0; turn < 20; ++turn) {
    const DrawnPool drawn = draw_pool(random);
    const PoolGeometry& geometry = drawn.geometry;
    const std::int64_t slot_count = testing::slot_count_of(geometry);
    // Among them, one that is possible: it goes on with what was there before.
    const std::vector<TokenMove> moves{
        {.source_slot = slot_count, .target_slot = 0}, {.source_slot = 0, .target_slot = slot_count},
        {.source_slot = kNoSlot, .target_slot = 0},    {.source_slot = 0, .target_slot = 1},
        {.source_slot = 1, .target_slot = kNoSlot},    {.source_slot = std::int64_t{1} << 40, .target_slot = 1}};
    const std::vector<std::byte> before = random_bytes(random, geometry.pool_bytes());
    std::vector<std::byte> expected = before;
    move_tokens_on_host({.geometry = &geometry, .pool = expected.data(), .moves = std::span(moves).subspan(3, 1)});
    DeviceBytes pool(before);
    DeviceArray<TokenMove> device_moves(moves);
    ASSERT_TRUE(run_on_gpu(Launching::Directly, [&](DeviceStream stream) {
                  return launch_move_tokens({.geometry = &geometry, .pool = pool.data(), .moves = device_moves.span()},
                                            stream);
                }).has_value());
    ASSERT_TRUE(pool.read() == expected) << drawn.name;
  }
}

TEST(GpuResetPages, GivesPagesTheBytesTheyBeginWith) {
  Random random(6);
  for (int turn = 0; turn < 150; ++turn) {
    const DrawnPool drawn = draw_pool(random);
    const PoolGeometry& geometry = drawn.geometry;
    std::vector<PageId> pages;
    for (const std::uint32_t page : shuffled_pages(random, geometry.page_count())) {
      if (random.below(2) == 0) pages.push_back(PageId{page});
    }
    const std::vector<std::byte> before = random_bytes(random, geometry.pool_bytes());
    std::vector<std::byte> expected = before;
    reset_pages_on_host({.geometry = &geometry, .pool = expected.data(), .pages = pages});
    pages.push_back(PageId{geometry.page_count()});  // none that there is
    pages.push_back(PageId::none());
    DeviceBytes pool(before, random.below(5) == 0 ? 1 + random.below(17) : 0);
    DeviceArray<PageId> device_pages(pages);
    for (const Launching launching : kLaunchings) {
      pool.write(before);
      const Status done = run_on_gpu(launching, [&](DeviceStream stream) {
        return launch_reset_pages({.geometry = &geometry, .pool = pool.data(), .pages = device_pages.span()}, stream);
      });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_TRUE(pool.read() == expected) << "turn " << turn << ", " << drawn.name;
    }
  }
}

// Longer than what travels with one launch, also when it is repeated to fill whole units.
TEST(GpuResetPages, TakesLongPatterns) {
  Random random(7);
  for (const std::uint32_t pattern_bytes : {1000U, 1024U, 1028U, 2050U, 5000U, 4999U}) {
    for (const std::uint32_t repeats : {1U, 3U}) {
      const CacheGroup group{.name = "long",
                             .layers = layer_range(0, 2),
                             .components = {{.name = "a",
                                             .element = ElementType::Bytes,
                                             .dim = pattern_bytes * repeats,
                                             .initial = random_bytes(random, pattern_bytes)}}};
      const PoolGeometry geometry =
          PoolGeometry::create(PageGeometry::create(group, {.page_tokens = 3}).value(), {.page_count = 4}).value();
      const std::vector<PageId> pages{PageId{3}, PageId{1}};
      const std::vector<std::byte> before = random_bytes(random, geometry.pool_bytes());
      std::vector<std::byte> expected = before;
      reset_pages_on_host({.geometry = &geometry, .pool = expected.data(), .pages = pages});
      DeviceBytes pool(before);
      DeviceArray<PageId> device_pages(pages);
      ASSERT_TRUE(run_on_gpu(Launching::Directly, [&](DeviceStream stream) {
                    return launch_reset_pages(
                        {.geometry = &geometry, .pool = pool.data(), .pages = device_pages.span()}, stream);
                  }).has_value());
      ASSERT_TRUE(pool.read() == expected) << pattern_bytes << " bytes, " << repeats << " times";
    }
  }
}

// Offsets above 2^32, where only the touched pages are compared.
TEST(GpuCopyPages, ReachesTheEndOfAPoolOfMoreThan4GiB) {
  const CacheGroup group{
      .name = "large", .layers = layer_range(0, 2), .components = {{.name = "k", .heads = 8, .dim = 128}}};
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    const PoolGeometry geometry = PoolGeometry::create(PageGeometry::create(group, {.page_tokens = 64}).value(),
                                                       {.page_count = 18'000, .byte_layout = byte_layout})
                                      .value();
    ASSERT_GT(geometry.pool_bytes(), std::uint64_t{4} << 30U);
    DeviceBytes pool(std::vector<std::byte>(geometry.pool_bytes()));
    Random random(8);
    const std::vector<std::byte> row = random_bytes(random, 2048);
    DeviceBytes source(row);
    // Written at the end, copied to the second page, moved within it, and read there.
    DeviceArray<std::int64_t> last_slot(std::vector<std::int64_t>{(std::int64_t{17'999} * 64) + 63});
    DeviceArray<PageCopy> copies(
        std::vector<PageCopy>{{.source = PageId{17'999}, .target = PageId{1}, .token_count = 64}});
    DeviceArray<TokenMove> moves(std::vector<TokenMove>{{.source_slot = 64 + 63, .target_slot = 70}});
    DeviceArray<std::int64_t> moved_slot(std::vector<std::int64_t>{70});
    DeviceBytes read(std::vector<std::byte>(2048));
    const Status done = run_on_gpu(Launching::Directly, [&](DeviceStream stream) -> Status {
      const auto append = launch_append({.geometry = &geometry,
                                         .pool = pool.data(),
                                         .layer_index = 1,
                                         .source = source.data(),
                                         .slots = last_slot.span()},
                                        stream);
      if (!append) return append;
      const auto copy =
          launch_copy_pages({.geometry = &geometry, .pool = pool.data(), .copies = copies.span()}, stream);
      if (!copy) return copy;
      const auto move = launch_move_tokens({.geometry = &geometry, .pool = pool.data(), .moves = moves.span()}, stream);
      if (!move) return move;
      return launch_read_rows({.geometry = &geometry,
                               .pool = pool.data(),
                               .layer_index = 1,
                               .target = read.data(),
                               .slots = moved_slot.span()},
                              stream);
    });
    ASSERT_TRUE(done.has_value()) << done.error().message;
    EXPECT_TRUE(read.read() == row);
  }
}

}  // namespace
}  // namespace quire
