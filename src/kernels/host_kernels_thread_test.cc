// SPDX-License-Identifier: Apache-2.0
//
// Threads that append to, copy and move different pages do not disturb each other.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "quire/host_kernels.h"

namespace quire {
namespace {

constexpr std::uint32_t kPageTokens = 4;
constexpr std::uint32_t kThreads = 4;
constexpr std::uint32_t kPagesEach = 8;

TEST(HostKernelThreads, CallsOnDifferentPagesRunAtTheSameTime) {
  const ModelLayout model = ModelLayout::simple({.layers = 2, .kv_heads = 2, .head_dim = 12}).value();
  const PoolGeometry geometry =
      PoolGeometry::create(PageGeometry::create(model.groups()[0], {.page_tokens = kPageTokens}).value(),
                           {.page_count = std::uint64_t{kThreads} * kPagesEach})
          .value();
  std::vector<std::byte> pool(geometry.pool_bytes());
  const std::uint64_t row_bytes = geometry.page().components()[0].token;

  const auto work = [&](std::uint32_t thread) {
    const std::uint32_t first_page = thread * kPagesEach;
    const std::vector<std::byte> source(row_bytes * kPageTokens, std::byte(thread + 1));
    std::vector<std::int64_t> slots(kPageTokens);
    for (std::uint32_t i = 0; i < kPageTokens; ++i) slots[i] = (std::int64_t{first_page} * kPageTokens) + i;
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      for (std::uint32_t component = 0; component < 2; ++component) {
        append_on_host({.geometry = &geometry,
                        .pool = pool.data(),
                        .layer_index = layer,
                        .component_index = component,
                        .source = source.data(),
                        .slots = slots});
      }
    }
    std::vector<PageCopy> copies;
    for (std::uint32_t page = 1; page + 1 < kPagesEach; ++page) {
      copies.push_back({.source = PageId{first_page}, .target = PageId{first_page + page}, .token_count = kPageTokens});
    }
    copy_pages_on_host({.geometry = &geometry, .pool = pool.data(), .copies = copies});
    constexpr std::int64_t kLastPage = std::int64_t{kPagesEach - 1} * kPageTokens;
    std::vector<TokenMove> moves(kPageTokens);
    for (std::uint32_t i = 0; i < kPageTokens; ++i) {
      moves[i] = {.source_slot = slots[i], .target_slot = slots[i] + kLastPage};
    }
    move_tokens_on_host({.geometry = &geometry, .pool = pool.data(), .moves = moves});
  };
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();

  const std::uint64_t bytes_each = geometry.pool_bytes() / kThreads;
  for (std::uint64_t i = 0; i < pool.size(); ++i) ASSERT_EQ(pool[i], std::byte(1 + (i / bytes_each))) << "byte " << i;
}

}  // namespace
}  // namespace quire
