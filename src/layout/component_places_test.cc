// SPDX-License-Identifier: Apache-2.0
//
// Areas, records, alignment and padding, seen through PageGeometry.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::uint32_t kUint32Max = std::numeric_limits<std::uint32_t>::max();

Component bytes_of(std::string name, std::uint32_t dim, Placement placement = Placement::Area) {
  return {.name = std::move(name),
          .element = ElementType::Bytes,
          .sharding = Sharding::Replicated,
          .dim = dim,
          .placement = placement};
}

CacheGroup group_of(std::vector<Component> components, std::uint32_t layers = 1) {
  return {.name = "g", .layers = layer_range(0, layers), .components = std::move(components)};
}

PageGeometry make_page(const CacheGroup& group, const PageOptions& options) {
  auto page = PageGeometry::create(group, options);
  EXPECT_TRUE(page.has_value()) << page.error().message;
  return *page;
}

std::string page_error(const CacheGroup& group, const PageOptions& options = {}) {
  const auto page = PageGeometry::create(group, options);
  if (page) return "no error";
  EXPECT_EQ(page.error().code, ErrorCode::InvalidArgument);
  return page.error().message;
}

struct Place {
  std::uint64_t offset;
  std::uint64_t token;
  friend bool operator==(Place, Place) = default;
};

std::vector<Place> places_of(const PageGeometry& page) {
  std::vector<Place> places;
  for (const ComponentStrides& component : page.components()) places.push_back({component.offset, component.token});
  return places;
}

TEST(Components, AreasFollowEachOtherAndRecordsHoldNeighboursTogether) {
  const CacheGroup group =
      group_of({bytes_of("a", 5), bytes_of("b", 3, Placement::Interleaved), bytes_of("c", 2, Placement::Interleaved),
                bytes_of("d", 7), bytes_of("e", 1, Placement::Interleaved)});
  const PageGeometry page = make_page(group, {.page_tokens = 4});
  EXPECT_EQ(places_of(page), (std::vector<Place>{{0, 5}, {20, 5}, {23, 5}, {40, 7}, {68, 1}}));
  EXPECT_EQ(page.layer_bytes(), 4U * (5 + 3 + 2 + 7 + 1));
}

TEST(Components, EveryEntryIsAligned) {
  CacheGroup group = group_of({bytes_of("a", 5), bytes_of("b", 3)});
  group.components[1].alignment = 4;
  const PageGeometry page = make_page(group, {.page_tokens = 3});
  EXPECT_EQ(places_of(page), (std::vector<Place>{{0, 5}, {16, 4}}));
  EXPECT_EQ(page.layer_bytes(), 28U);
  EXPECT_EQ(page.alignment(), 4U);
}

TEST(Components, ARecordIsAsLongAsItsAlignmentAsks) {
  CacheGroup group = group_of({bytes_of("a", 5, Placement::Interleaved), bytes_of("b", 2, Placement::Interleaved),
                               bytes_of("c", 3, Placement::Interleaved)});
  group.components[1].alignment = 8;
  const PageGeometry page = make_page(group, {.page_tokens = 2});
  EXPECT_EQ(places_of(page), (std::vector<Place>{{0, 16}, {8, 16}, {10, 16}}));
  EXPECT_EQ(page.layer_bytes(), 32U);
}

TEST(Components, ARecordMayHaveItsComponentsAtGivenOffsetsInAnyOrder) {
  CacheGroup group = group_of({bytes_of("a", 4, Placement::Interleaved), bytes_of("b", 4, Placement::Interleaved)});
  group.components[0].record_offset = 8;
  group.components[1].record_offset = 2;
  EXPECT_EQ(places_of(make_page(group, {.page_tokens = 2})), (std::vector<Place>{{8, 12}, {2, 12}}));
}

TEST(Components, RecordsKeepTheirHeadsTogetherInAnyHeadOrder) {
  Component k = {.name = "k", .element = ElementType::Int8, .heads = 3, .dim = 2, .placement = Placement::Interleaved};
  for (const HeadOrder order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
    const PageGeometry page =
        make_page(group_of({k, bytes_of("s", 1, Placement::Interleaved)}), {.page_tokens = 4, .head_order = order});
    EXPECT_EQ(page.components()[0].head, 2U);
    EXPECT_EQ(page.components()[0].token, 7U);
  }
}

TEST(Components, ALayersPartIsPaddedToItsMultiple) {
  CacheGroup group = group_of({bytes_of("a", 5)}, 3);
  group.layer_multiple_bytes = 12;
  const PageGeometry page = make_page(group, {.page_tokens = 4});
  EXPECT_EQ(page.layer_bytes(), 24U);
  EXPECT_EQ(page.page_bytes(), 72U);
  const auto pool = PoolGeometry::create(page, {.page_count = 2, .byte_layout = ByteLayout::LayerFirst});
  ASSERT_TRUE(pool.has_value());
  EXPECT_EQ(pool->offset_of({.page = PageId{1}, .layer_index = 2, .token_index = 3}), 2U * 48 + 24 + 15);
}

// Any mixture: rows never overlap, stand where their alignment allows, and lie inside their layer.
TEST(Components, RowsOfAnyMixtureAreApartAndAligned) {
  for (std::uint32_t seed = 0; seed < 2'000; ++seed) {
    std::uint32_t state = seed;
    const auto draw = [&state](std::uint32_t bound) {
      state = (state * 1'664'525U) + 1'013'904'223U;
      return (state >> 16U) % bound;
    };
    CacheGroup group = group_of({}, 1 + draw(2));
    for (std::uint32_t i = 0, count = 1 + draw(5); i < count; ++i) {
      group.components.push_back({.name = std::to_string(i),
                                  .element = ElementType::Bytes,
                                  .heads = 1 + draw(3),
                                  .dim = 1 + draw(9),
                                  .placement = draw(2) == 0 ? Placement::Area : Placement::Interleaved,
                                  .alignment = 1U << draw(4)});
    }
    if (draw(3) == 0) group.layer_multiple_bytes = 8 * (1 + draw(9));
    const PageGeometry page =
        make_page(group, {.page_tokens = 1 + draw(4), .head_order = draw(2) == 0 ? HeadOrder::Nhd : HeadOrder::Hnd});
    ASSERT_EQ(page.layer_bytes() % std::lcm(page.alignment(), group.layer_multiple_bytes), 0U) << seed;
    std::vector<int> owners(page.page_bytes(), 0);
    const auto pool = PoolGeometry::create(page, {.page_count = 1});
    for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
      for (std::uint32_t index = 0; index < group.components.size(); ++index) {
        for (std::uint32_t token = 0; token < page.options().page_tokens; ++token) {
          for (std::uint32_t head = 0; head < group.components[index].heads; ++head) {
            const std::uint64_t at = pool->offset_of({PageId{0}, layer, index, token, head});
            if (head == 0) {
              ASSERT_EQ(at % group.components[index].alignment, 0U) << seed;
            }
            ASSERT_LE(at + group.components[index].dim, (layer + 1) * page.layer_bytes()) << seed;
            for (std::uint32_t byte = 0; byte < group.components[index].dim; ++byte) {
              ASSERT_EQ(++owners[at + byte], 1) << seed;
            }
          }
        }
      }
    }
  }
}

// ── Initial bytes ──

TEST(Components, PatternsAreLittleEndian) {
  const auto bytes = [](std::initializer_list<int> values) {
    std::vector<std::byte> out;
    for (const int value : values) out.push_back(static_cast<std::byte>(value));
    return out;
  };
  EXPECT_EQ(fp32_pattern(1.0F), bytes({0, 0, 0x80, 0x3f}));
  EXPECT_EQ(fp32_pattern(-1e9F), bytes({0x28, 0x6b, 0x6e, 0xce}));
  EXPECT_EQ(bf16_pattern(1.0F), bytes({0x80, 0x3f}));
  EXPECT_EQ(bf16_pattern(-1e9F), bytes({0x6e, 0xce}));
  EXPECT_EQ(bf16_pattern(1.00390625F), bytes({0x80, 0x3f}));  // half way between two: the even one
  EXPECT_EQ(bf16_pattern(1.01171875F), bytes({0x82, 0x3f}));
  EXPECT_EQ(int32_pattern(-1), bytes({0xff, 0xff, 0xff, 0xff}));
}

TEST(Components, APageBeginsAsItsComponentsSay) {
  CacheGroup group = group_of({bytes_of("payload", 2, Placement::Interleaved),
                               {.name = "position",
                                .element = ElementType::Int32,
                                .sharding = Sharding::Replicated,
                                .dim = 1,
                                .placement = Placement::Interleaved,
                                .alignment = 4,
                                .initial = int32_pattern(-1)},
                               {.name = "gate",
                                .element = ElementType::Bf16,
                                .sharding = Sharding::Replicated,
                                .heads = 2,
                                .dim = 2,
                                .initial = bf16_pattern(-1e9F)}},
                              2);
  const std::vector<std::byte> bytes = make_page(group, {.page_tokens = 1}).initial_bytes();
  const std::vector<int> expected = {0,    0,    0,    0,    0xff, 0xff, 0xff, 0xff,
                                     0x6e, 0xce, 0x6e, 0xce, 0x6e, 0xce, 0x6e, 0xce};
  ASSERT_EQ(bytes.size(), 2 * expected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i % expected.size()]) << i;
  }
}

// ── What is refused ──

TEST(Components, WhatOverlapsIsRefusedWithItsBytes) {
  CacheGroup group = group_of({bytes_of("a", 448, Placement::Interleaved), bytes_of("b", 128, Placement::Interleaved)});
  group.components[1].record_offset = 440;
  EXPECT_EQ(page_error(group),
            "group 'g': components 'a' (bytes 0 to 447) and 'b' (bytes 440 to 567) of the record overlap: move one");
  group.components[1].record_offset = 448;
  EXPECT_EQ(page_error(group), "no error");
  group.components[0].record_offset = 570;
  EXPECT_NE(page_error(group).find("'a' (bytes 570 to 1,017) and 'b' (bytes 448 to 575)"), std::string::npos);
}

TEST(Components, AlignmentsThatCannotBeAreRefused) {
  CacheGroup group = group_of({bytes_of("a", 4, Placement::Interleaved)});
  for (const std::uint32_t alignment : {0U, 3U, 8'192U, kUint32Max}) {
    group.components[0].alignment = alignment;
    EXPECT_NE(page_error(group).find("component 'a' has alignment "), std::string::npos) << alignment;
  }
  group.components[0].alignment = 12;
  EXPECT_EQ(page_error(group), "group 'g': component 'a' has alignment 12: use a power of two, 1 to 4,096");

  group.components[0].alignment = 4;
  group.components[0].record_offset = 6;
  EXPECT_EQ(page_error(group),
            "group 'g': component 'a' begins at byte 6 of its record, which is no multiple of its alignment 4");

  group.components[0].record_offset = 8;
  group.layer_multiple_bytes = 6;
  EXPECT_EQ(page_error(group), "group 'g': layer_multiple_bytes is 6, no multiple of the alignment 4 of component 'a'");
  group.layer_multiple_bytes = 0;
  EXPECT_EQ(page_error(group), "group 'g': layer_multiple_bytes is 0: use 1 for no padding");
}

TEST(Components, AnOffsetInARecordNeedsARecord) {
  CacheGroup group = group_of({bytes_of("a", 4)});
  group.components[0].record_offset = 4;
  EXPECT_EQ(page_error(group),
            "group 'g': component 'a' has record_offset 4, but an area of its own: make it Interleaved");
}

TEST(Components, InitialPatternsFillWholeRows) {
  CacheGroup group = group_of({bytes_of("a", 6)});
  group.components[0].initial.resize(7);
  EXPECT_EQ(page_error(group), "group 'g': component 'a' has an initial pattern of 7 bytes, longer than its row of 6");
  group.components[0].initial.resize(4);
  EXPECT_EQ(page_error(group),
            "group 'g': component 'a' has an initial pattern of 4 bytes, which does not divide its row of 6");
  group.components[0].initial.resize(3);
  EXPECT_EQ(page_error(group), "no error");
}

TEST(Components, UnknownChoicesAreRefused) {
  CacheGroup group = group_of({bytes_of("a", 6)});
  group.components[0].placement = static_cast<Placement>(7);
  EXPECT_EQ(page_error(group), "group 'g': component 'a' has an unknown placement: use a Placement");
  group = group_of({bytes_of("a", 6)});
  group.components[0].sharding = static_cast<Sharding>(7);
  EXPECT_EQ(page_error(group), "group 'g': component 'a' has an unknown sharding: use a Sharding");
}

TEST(Components, RecordsBeyond64BitsAreRefused) {
  CacheGroup group =
      group_of({bytes_of("a", kUint32Max, Placement::Interleaved), bytes_of("b", kUint32Max, Placement::Interleaved)});
  EXPECT_EQ(
      page_error(group, {.page_tokens = kUint32Max}),
      "group 'g': a record per entry of a page does not fit in 64 bits (4,294,967,295 tokens x 8,589,934,590 bytes): "
      "make it smaller");
  group.components[0].heads = kUint32Max;
  group.components[1].heads = 3;
  EXPECT_NE(page_error(group, {.page_tokens = 1}).find("does not fit in 64 bits"), std::string::npos);
}

}  // namespace
}  // namespace quire
