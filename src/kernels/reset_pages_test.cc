// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/entry_formats.h"
#include "quire/host_kernels.h"
#include "quire/layout.h"
#include "quire/state_slots.h"

namespace quire {
namespace {

constexpr std::byte kOld{0xa5};

// A pool in which pages 1 and 3 were reset, page by page and layer by layer.
void expect_initial_bytes(const PoolGeometry& geometry) {
  std::vector<std::byte> pool(geometry.pool_bytes(), kOld);
  const std::vector<PageId> pages{PageId{3}, PageId{1}};
  reset_pages_on_host({.geometry = &geometry, .pool = pool.data(), .pages = pages});
  const std::vector<std::byte> initial = geometry.page().initial_bytes();
  const std::uint64_t layer_bytes = geometry.page().layer_bytes();
  for (std::uint32_t page = 0; page < geometry.page_count(); ++page) {
    for (std::uint32_t layer = 0; layer < geometry.page().layer_count(); ++layer) {
      const std::byte* const bytes =
          pool.data() + (page * geometry.strides().page) + (layer * geometry.strides().layer);
      if (page == 1 || page == 3) {
        EXPECT_TRUE(std::equal(bytes, bytes + layer_bytes, initial.data() + (layer * layer_bytes))) << page;
      } else {
        EXPECT_TRUE(std::all_of(bytes, bytes + layer_bytes, [](std::byte byte) { return byte == kOld; })) << page;
      }
    }
  }
}

TEST(ResetPagesOnHost, GivesPagesTheirInitialBytesAndTouchesNoOthers) {
  CacheGroup group{.name = "entries", .layers = layer_range(0, 3)};
  group.components.push_back(
      {.name = "gates", .element = ElementType::Fp32, .heads = 4, .dim = 6, .initial = fp32_pattern(-1e9F)});
  use_format(group, fp8_rows_then_scales({.dim = 100, .rope_dim = 1}));
  use_format(group, fp8_arrays_with_positions({.dim = 9, .rope_dim = 2}), "ring_");
  for (const std::uint32_t page_tokens : {1U, 3U, 16U}) {
    for (const HeadOrder head_order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
      for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
        PageGeometry page =
            PageGeometry::create(group, {.page_tokens = page_tokens, .rank_count = 2, .head_order = head_order})
                .value();
        expect_initial_bytes(
            PoolGeometry::create(std::move(page), {.page_count = 5, .byte_layout = byte_layout}).value());
      }
    }
  }
}

TEST(ResetPagesOnHost, GivesStateSlotsTheirInitialBytes) {
  const StateSlots slots = StateSlots::create(preset("deepseek-v4-flash").value()).value();
  ASSERT_FALSE(slots.parts().empty());
  for (const StatePart& part : slots.parts()) {
    expect_initial_bytes(PoolGeometry::create(part.geometry, {.page_count = 4}).value());
  }
}

TEST(ResetPagesOnHostDeathTest, APageOutsideThePoolStops) {
  CacheGroup group{.name = "entries", .layers = {0}};
  use_format(group, fp8_arrays());
  const PoolGeometry geometry =
      PoolGeometry::create(PageGeometry::create(group, {.page_tokens = 2}).value(), {.page_count = 2}).value();
  std::vector<std::byte> pool(geometry.pool_bytes());
  const PageId outside{2};
  reset_pages_on_host({.geometry = &geometry, .pool = pool.data()});
  EXPECT_DEATH(reset_pages_on_host({.geometry = &geometry, .pool = pool.data(), .pages = {&outside, 1}}),
               "resetting a page that the pool does not have");
}

}  // namespace
}  // namespace quire
