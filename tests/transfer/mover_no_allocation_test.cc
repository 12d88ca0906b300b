// SPDX-License-Identifier: Apache-2.0
//
// After open() neither callers nor workers allocate, whatever becomes of the transfers.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>

#include "quire/mover.h"
#include "testing/test_pool.h"
#include "tests/cache/allocation_counter.h"

namespace quire {
namespace {

TEST(MoverNoAllocation, TransfersDoNotAllocate) {
  constexpr TimeNs kLongNs = TimeNs{200} * 1'000'000'000;
  const testing::TestPool first({{.layers = 4, .layer_bytes = 64, .pages = 16}});
  const testing::TestPool second({{.layers = 1, .layer_bytes = 33, .pages = 8},
                                  {.layers = 3, .layer_bytes = 5, .pages = 8, .byte_layout = ByteLayout::LayerFirst}});
  const std::unique_ptr<Mover> mover =
      Mover::open({.pools = {first.for_mover(8), second.for_mover(4)}, .queue_depth_max = 4, .transfer_pages_max = 4})
          .value();
  std::array<PageTransfer, 4> pages;
  std::array<Completion, 8> completions;
  std::uint32_t index = 0;
  std::uint32_t ended_count = 0;
  const auto run = [&](std::uint32_t round_count) {
    for (std::uint32_t round = 0; round < round_count; ++round) {
      for (std::uint32_t i = 0; i < pages.size(); ++i) {
        pages[i] = {.device_page = PageId{i}, .host_page = PageId{1 + i}, .host_generation = round / 2};
      }
      const TransferId id{.index = ++index};
      const bool is_wrong = round % 7 == 6;
      if (is_wrong) pages[2].name_tag = 5;
      (void)mover->try_submit({.id = id,
                               .kind = round % 2 == 0 ? TransferKind::Store : TransferKind::Load,
                               .band_count = static_cast<std::uint16_t>(1 + (round % 4)),
                               .pool_index = static_cast<std::uint16_t>(round / 4 % 2),
                               .pages = round % 11 == 10 ? std::span<const PageTransfer>() : pages});
      if (round % 5 == 4) (void)mover->cancel(id);
      (void)mover->wait(id, 0, round % 3 == 0 ? 0 : kLongNs);
      (void)mover->cancel(id);
      ended_count += static_cast<std::uint32_t>(mover->poll(completions).size());
      if (round % 50 == 49) {
        mover->pause();
        mover->resume();
      }
    }
  };
  run(2000);
  const std::uint64_t before = allocation_count;
  run(20'000);
  EXPECT_EQ(allocation_count, before);
  EXPECT_GT(ended_count, 10'000U);
}

}  // namespace
}  // namespace quire
