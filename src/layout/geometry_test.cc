// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::uint32_t kUint32Max = std::numeric_limits<std::uint32_t>::max();

CacheGroup attention_group(std::uint32_t layers, std::uint32_t heads, std::uint32_t dim,
                           ElementType element = ElementType::Fp16) {
  return {.name = "full",
          .layers = layer_range(0, layers),
          .components = {{.name = "k", .element = element, .heads = heads, .dim = dim},
                         {.name = "v", .element = element, .heads = heads, .dim = dim}}};
}

CacheGroup row_group(std::uint32_t layers, std::uint32_t dim, ElementType element) {
  return {.name = "full",
          .layers = layer_range(0, layers),
          .components = {{.name = "latent", .element = element, .sharding = Sharding::Replicated, .dim = dim}}};
}

PageGeometry make_page(const CacheGroup& group, const PageOptions& options) {
  auto page = PageGeometry::create(group, options);
  EXPECT_TRUE(page.has_value()) << page.error().message;
  return *page;
}

PoolGeometry make_pool(const PageGeometry& page, const PoolOptions& options) {
  auto pool = PoolGeometry::create(page, options);
  EXPECT_TRUE(pool.has_value()) << pool.error().message;
  return *pool;
}

std::string page_error(const CacheGroup& group, const PageOptions& options) {
  const auto page = PageGeometry::create(group, options);
  if (page) return "no error";
  EXPECT_EQ(page.error().code, ErrorCode::InvalidArgument);
  return page.error().message;
}

std::string pool_error(const PageGeometry& page, const PoolOptions& options) {
  const auto pool = PoolGeometry::create(page, options);
  if (pool) return "no error";
  EXPECT_EQ(pool.error().code, ErrorCode::InvalidArgument);
  return pool.error().message;
}

std::string gigabytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
  return text;
}

/// Calls visit(row, row_bytes) for every row of the pool.
template <typename Visit>
void for_each_row(const PoolGeometry& pool, Visit visit) {
  const PageGeometry& page = pool.page();
  for (std::uint32_t page_index = 0; page_index < pool.page_count(); ++page_index) {
    for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
      for (std::uint32_t component = 0; component < page.components().size(); ++component) {
        for (std::uint32_t token = 0; token < page.options().page_tokens; ++token) {
          for (std::uint32_t head = 0; head < page.heads_on_rank(component, 0).count; ++head) {
            visit(RowLocation{.page = PageId{page_index},
                              .layer_index = layer,
                              .component_index = component,
                              .token_index = token,
                              .head_index = head},
                  page.components()[component].head_bytes);
          }
        }
      }
    }
  }
}

std::string place(const PoolGeometry& pool) {
  return std::string(pool.byte_layout() == ByteLayout::PageFirst ? "page-first " : "layer-first ") +
         (pool.page().options().head_order == HeadOrder::Nhd ? "NHD" : "HND") + ", page_tokens " +
         std::to_string(pool.page().options().page_tokens) + ", ranks " +
         std::to_string(pool.page().options().rank_count) + ", layers " + std::to_string(pool.page().layer_count());
}

/// Every byte of the pool belongs to exactly one row.
void expect_rows_tile_the_pool(const PoolGeometry& pool) {
  std::vector<int> owners(pool.pool_bytes(), 0);
  for_each_row(pool, [&](const RowLocation& row, std::uint64_t row_bytes) {
    const std::uint64_t offset = pool.offset_of(row);
    ASSERT_EQ(offset, pool.strides().offset_of(row)) << place(pool);
    ASSERT_LE(offset + row_bytes, pool.pool_bytes()) << place(pool);
    for (std::uint64_t byte = offset; byte < offset + row_bytes; ++byte) ++owners[byte];
  });
  for (std::size_t byte = 0; byte < owners.size(); ++byte) {
    ASSERT_EQ(owners[byte], 1) << "byte " << byte << ", " << place(pool);
  }
}

void expect_all_layouts_tile(const CacheGroup& group, std::uint32_t rank_count) {
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    for (const HeadOrder head_order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
      for (const std::uint32_t page_tokens : {1U, 2U, 5U}) {
        for (const std::uint64_t page_count : {1U, 3U}) {
          const PageGeometry page =
              make_page(group, {.page_tokens = page_tokens, .rank_count = rank_count, .head_order = head_order});
          expect_rows_tile_the_pool(make_pool(page, {.page_count = page_count, .byte_layout = byte_layout}));
        }
      }
    }
  }
}

// ── Sizes ──

TEST(PageGeometry, OneTokenOfEightHeadsOf256IsEightKibibytes) {
  const PageGeometry page = make_page(attention_group(1, 8, 256), {.page_tokens = 1});
  EXPECT_EQ(page.page_bytes(), 8'192U);
  EXPECT_EQ(page.token_bytes(), 8'192U);
  EXPECT_EQ(page.layer_bytes(), 8'192U);
}

TEST(PageGeometry, FourGibibytesHold524288PagesOfEightKibibytes) {
  const PageGeometry page = make_page(attention_group(1, 8, 256), {.page_tokens = 1});
  const std::uint64_t page_count = page.page_count_within(std::uint64_t{4} << 30);
  EXPECT_EQ(page_count, 524'288U);
  EXPECT_EQ(gigabytes(make_pool(page, {.page_count = page_count}).pool_bytes()), "4.000");
}

TEST(PageGeometry, TwoThousandKibibytesHold250PagesOfEightKibibytes) {
  const PageGeometry page = make_page(attention_group(1, 8, 256), {.page_tokens = 1});
  const std::uint64_t page_count = page.page_count_within(std::uint64_t{2'000} * 1'024);
  EXPECT_EQ(page_count, 250U);
  EXPECT_EQ(gigabytes(make_pool(page, {.page_count = page_count}).pool_bytes()), "0.002");
}

TEST(PageGeometry, OnlyWholePagesCount) {
  const PageGeometry page = make_page(attention_group(1, 8, 256), {.page_tokens = 1});
  EXPECT_EQ(page.page_count_within(0), 0U);
  EXPECT_EQ(page.page_count_within(8'191), 0U);
  EXPECT_EQ(page.page_count_within(8'192), 1U);
  EXPECT_EQ(page.page_count_within(2 * 8'192 - 1), 1U);
}

TEST(PageGeometry, PageBytesFollowTheFormulaOfKeysAndValues) {
  const ElementType elements[] = {ElementType::Bf16, ElementType::Fp16, ElementType::Fp32, ElementType::Fp8,
                                  ElementType::Int8};
  const std::uint64_t sizes[] = {2, 2, 4, 1, 1};
  for (const std::uint32_t heads : {1U, 2U, 8U, 12U}) {
    for (const std::uint32_t dim : {1U, 64U, 80U, 128U}) {
      for (const std::uint32_t layers : {1U, 3U, 80U}) {
        for (const std::uint32_t page_tokens : {1U, 16U, 17U}) {
          for (const std::uint32_t ranks : {1U, 2U, 4U}) {
            if (heads % ranks != 0) continue;
            for (std::size_t i = 0; i < std::size(elements); ++i) {
              const PageGeometry page = make_page(attention_group(layers, heads, dim, elements[i]),
                                                  {.page_tokens = page_tokens, .rank_count = ranks});
              const std::uint64_t expected = 2ULL * heads * dim * layers * page_tokens / ranks * sizes[i];
              EXPECT_EQ(page.page_bytes(), expected);
              EXPECT_EQ(page.token_bytes(), expected / page_tokens);
              EXPECT_EQ(page.layer_bytes(), expected / layers);
            }
          }
        }
      }
    }
  }
}

TEST(PageGeometry, AMebibytePageCountsInPoolsBeyondFourGibibytes) {
  const PageGeometry page = make_page(attention_group(32, 8, 64), {.page_tokens = 16});
  ASSERT_EQ(page.page_bytes(), 1U << 20);
  const PoolGeometry pool = make_pool(page, {.page_count = 1'000'000});
  EXPECT_EQ(pool.pool_bytes(), 1'000'000ULL << 20);
  EXPECT_EQ(pool.offset_of({.page = PageId{999'999}}), 999'999ULL << 20);
}

// ── Ranks ──

TEST(PageGeometry, RanksDivideTheHeads) {
  const PageGeometry page = make_page(attention_group(4, 8, 16), {.page_tokens = 2, .rank_count = 4});
  EXPECT_EQ(page.heads_on_rank(0, 0), (HeadRange{.first = 0, .count = 2}));
  EXPECT_EQ(page.heads_on_rank(0, 1), (HeadRange{.first = 2, .count = 2}));
  EXPECT_EQ(page.heads_on_rank(1, 3), (HeadRange{.first = 6, .count = 2}));
}

TEST(PageGeometry, MoreRanksThanHeadsStoreOneHeadEach) {
  const PageGeometry page = make_page(attention_group(4, 2, 16), {.page_tokens = 2, .rank_count = 6});
  EXPECT_EQ(page.page_bytes(), make_page(attention_group(4, 1, 16), {.page_tokens = 2}).page_bytes());
  const std::uint32_t heads[] = {0, 0, 0, 1, 1, 1};
  for (std::uint32_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(page.heads_on_rank(0, rank), (HeadRange{.first = heads[rank], .count = 1})) << rank;
  }
}

TEST(PageGeometry, RanksTogetherStoreEveryHeadEquallyOften) {
  for (const std::uint32_t heads : {1U, 2U, 6U, 8U}) {
    for (std::uint32_t ranks = 1; ranks <= 24; ++ranks) {
      if (heads % ranks != 0 && ranks % heads != 0) continue;
      const PageGeometry page = make_page(attention_group(1, heads, 4), {.rank_count = ranks});
      std::vector<std::uint32_t> copies(heads, 0);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const HeadRange range = page.heads_on_rank(0, rank);
        for (std::uint32_t head = range.first; head < range.first + range.count; ++head) ++copies.at(head);
      }
      EXPECT_EQ(copies, std::vector<std::uint32_t>(heads, ranks <= heads ? 1 : ranks / heads));
    }
  }
}

TEST(PageGeometry, EveryRankStoresAReplicatedRowWhole) {
  for (const std::uint32_t ranks : {1U, 3U, 8U}) {
    const PageGeometry page =
        make_page(row_group(61, 576, ElementType::Bf16), {.page_tokens = 64, .rank_count = ranks});
    EXPECT_EQ(page.page_bytes(), 61U * 64 * 576 * 2);
    EXPECT_EQ(page.heads_on_rank(0, ranks - 1), (HeadRange{.first = 0, .count = 1}));
  }
}

TEST(PageGeometry, AnUnevenSplitNamesTheNearestRankCountsThatWork) {
  EXPECT_EQ(page_error(attention_group(1, 8, 4), {.rank_count = 3}),
            "group 'full': the 8 heads of component 'k' cannot be split evenly over rank_count = 3: the nearest "
            "that work are 2 and 4 (a divisor or a multiple of the head count)");
  EXPECT_NE(page_error(attention_group(1, 12, 4), {.rank_count = 5}).find("are 4 and 6 "), std::string::npos);
  EXPECT_NE(page_error(attention_group(1, 7, 4), {.rank_count = 6}).find("are 1 and 7 "), std::string::npos);
  EXPECT_NE(page_error(attention_group(1, 8, 4), {.rank_count = 20}).find("are 16 and 24 "), std::string::npos);
}

// ── Offsets ──

TEST(PoolGeometry, RowsOfKeysAndValuesTileThePoolInAllFourLayouts) {
  for (const std::uint32_t heads : {1U, 2U, 6U}) {
    for (const std::uint32_t layers : {1U, 4U}) {
      for (const std::uint32_t ranks : {1U, 2U, 6U}) {
        expect_all_layouts_tile(attention_group(layers, heads, 3), ranks);
      }
    }
  }
}

TEST(PoolGeometry, OpaqueRowsTileThePoolInAllFourLayouts) {
  for (const std::uint32_t ranks : {1U, 5U}) expect_all_layouts_tile(row_group(3, 41, ElementType::Bytes), ranks);
}

TEST(PoolGeometry, ComponentsOfDifferentShapesTileThePoolInAllFourLayouts) {
  const CacheGroup group = {
      .name = "mixed",
      .layers = {1, 4, 9},
      .components = {
          {.name = "k", .element = ElementType::Fp8, .heads = 4, .dim = 5},
          {.name = "k_scale", .element = ElementType::Fp32, .heads = 4, .dim = 1},
          {.name = "v", .element = ElementType::Bf16, .heads = 2, .dim = 3},
          {.name = "row", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = 7},
          {.name = "rows", .element = ElementType::Int8, .sharding = Sharding::Replicated, .heads = 3, .dim = 2},
      }};
  for (const std::uint32_t ranks : {1U, 2U, 4U, 8U}) expect_all_layouts_tile(group, ranks);
}

// The order of all rows by address, spelt out with plain nested arrays: [layer or page][…][component][token
// or head].
TEST(PoolGeometry, OffsetsAreThoseOfPlainNestedArrays) {
  constexpr std::uint64_t kPages = 3, kLayers = 2, kTokens = 4, kHeads = 5, kDim = 6;
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    for (const HeadOrder head_order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
      const PoolGeometry pool = make_pool(
          make_page(attention_group(kLayers, kHeads, kDim), {.page_tokens = kTokens, .head_order = head_order}),
          {.page_count = kPages, .byte_layout = byte_layout});
      for_each_row(pool, [&](const RowLocation& row, std::uint64_t row_bytes) {
        ASSERT_EQ(row_bytes, kDim * 2);
        const std::uint64_t outer = byte_layout == ByteLayout::PageFirst ? row.page.value * kLayers + row.layer_index
                                                                         : row.layer_index * kPages + row.page.value;
        const std::uint64_t inner = head_order == HeadOrder::Nhd ? row.token_index * kHeads + row.head_index
                                                                 : row.head_index * kTokens + row.token_index;
        const std::uint64_t expected = ((outer * 2 + row.component_index) * kTokens * kHeads + inner) * row_bytes;
        ASSERT_EQ(pool.offset_of(row), expected) << place(pool);
      });
    }
  }
}

TEST(PoolGeometry, PageFirstKeepsAPageTogether) {
  const PageGeometry page = make_page(attention_group(3, 2, 4), {.page_tokens = 2});
  const PoolGeometry pool = make_pool(page, {.page_count = 4});
  EXPECT_EQ(pool.byte_layout(), ByteLayout::PageFirst);
  for_each_row(pool, [&](const RowLocation& row, std::uint64_t) {
    EXPECT_EQ(pool.offset_of(row) / page.page_bytes(), row.page.value);
  });
}

TEST(PoolGeometry, LayerFirstGivesEachLayerABaseAndAPageStride) {
  const PageGeometry page = make_page(attention_group(3, 2, 4), {.page_tokens = 2});
  const PoolGeometry pool = make_pool(page, {.page_count = 4, .byte_layout = ByteLayout::LayerFirst});
  EXPECT_EQ(pool.strides().page, page.layer_bytes());
  EXPECT_EQ(pool.strides().layer, 4 * page.layer_bytes());
  for_each_row(pool, [&](const RowLocation& row, std::uint64_t) {
    EXPECT_EQ(pool.offset_of(row) / pool.strides().layer, row.layer_index);
  });
}

TEST(PoolGeometry, StridesCanBeCopiedAsBytes) {
  static_assert(std::is_trivially_copyable_v<PoolStrides>);
  static_assert(std::is_standard_layout_v<PoolStrides>);
}

TEST(PoolGeometry, OffsetsBeyondFourGibibytesAreExact) {
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    for (const HeadOrder head_order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
      const PageGeometry page = make_page(attention_group(80, 8, 128), {.page_tokens = 256, .head_order = head_order});
      const PoolGeometry pool = make_pool(page, {.page_count = kUint32Max, .byte_layout = byte_layout});
      const RowLocation last = {
          .page = PageId{kUint32Max - 1}, .layer_index = 79, .component_index = 1, .token_index = 255, .head_index = 7};
      EXPECT_EQ(pool.offset_of(last) + 256, pool.pool_bytes()) << place(pool);
    }
  }
}

TEST(PoolGeometry, APoolJustBelow64BitsHasExactOffsets) {
  const PageGeometry page = make_page(attention_group(1, 1, kUint32Max / 2, ElementType::Bytes), {.page_tokens = 1});
  const PoolGeometry pool = make_pool(page, {.page_count = kUint32Max});
  EXPECT_EQ(pool.pool_bytes(), std::uint64_t{kUint32Max} * (kUint32Max - 1));
  EXPECT_EQ(pool.offset_of({.page = PageId{kUint32Max - 1}, .component_index = 1}) + kUint32Max / 2, pool.pool_bytes());
}

TEST(PoolGeometryDeathTest, ALocationOutsideThePoolStopsTheProgram) {
  const PoolGeometry pool =
      make_pool(make_page(attention_group(2, 4, 3), {.page_tokens = 5, .rank_count = 2}), {.page_count = 7});
  EXPECT_DEATH((void)pool.offset_of({.page = PageId{7}}), "no such page");
  EXPECT_DEATH((void)pool.offset_of({.page = PageId::none()}), "no such page");
  EXPECT_DEATH((void)pool.offset_of({.page = PageId{0}, .layer_index = 2}), "no such layer");
  EXPECT_DEATH((void)pool.offset_of({.page = PageId{0}, .component_index = 2}), "no such component");
  EXPECT_DEATH((void)pool.offset_of({.page = PageId{0}, .token_index = 5}), "no such token");
  EXPECT_DEATH((void)pool.offset_of({.page = PageId{0}, .head_index = 2}), "no such head");
}

// ── What is refused ──

TEST(PageGeometry, EmptyPartsAreRefusedByName) {
  EXPECT_EQ(page_error(attention_group(1, 1, 1), {.page_tokens = 0}),
            "group 'full': page_tokens is 0: use 1 or more, 16 is usual");
  EXPECT_EQ(page_error(attention_group(1, 1, 1), {.rank_count = 0}),
            "group 'full': rank_count is 0: use 1 when there is a single rank");
  EXPECT_EQ(page_error(attention_group(0, 1, 1), {}), "group 'full' has 0 layers: list the layers that it stores");
  EXPECT_EQ(page_error(attention_group(1, 0, 1), {}),
            "group 'full': component 'k' has 0 heads: a row without heads counts as 1");
  EXPECT_EQ(page_error(attention_group(1, 1, 0), {}),
            "group 'full': component 'k' has dim 0: give the number of elements of one row");
  EXPECT_EQ(page_error({.name = "g", .layers = {0}, .components = {}}, {}), "group 'g' has 0 components: give 1 to 8");
}

TEST(PageGeometry, BadListsAreRefused) {
  CacheGroup twice = attention_group(1, 1, 1);
  twice.layers = {3, 3};
  EXPECT_NE(page_error(twice, {}).find("out of order or twice"), std::string::npos);
  twice.layers = {3, 2};
  EXPECT_NE(page_error(twice, {}).find("out of order or twice"), std::string::npos);

  CacheGroup same_names = attention_group(1, 1, 1);
  same_names.components[1].name = "k";
  EXPECT_EQ(page_error(same_names, {}), "group 'full' has two components named 'k': rename one");

  CacheGroup unnamed = attention_group(1, 1, 1);
  unnamed.components[0].name.clear();
  EXPECT_NE(page_error(unnamed, {}).find("without a name"), std::string::npos);

  CacheGroup unknown = attention_group(1, 1, 1);
  unknown.components[0].element = static_cast<ElementType>(99);
  EXPECT_NE(page_error(unknown, {}).find("unknown element type"), std::string::npos);

  CacheGroup many = attention_group(1, 1, 1);
  for (int i = 2; i <= 8; ++i) many.components.push_back({.name = "extra" + std::to_string(i), .dim = 1});
  EXPECT_NE(page_error(many, {}).find("has 9 components"), std::string::npos);
  many.components.pop_back();
  EXPECT_EQ(page_error(many, {}), "no error");

  EXPECT_NE(page_error(attention_group(kLayersMax + 1, 1, 1), {}).find("at most 65,536"), std::string::npos);
}

TEST(PageGeometry, SizesBeyond64BitsAreRefusedWithTheirFactors) {
  EXPECT_EQ(page_error(attention_group(1, kUint32Max, kUint32Max), {.page_tokens = 16}),
            "group 'full': component 'k' of a page does not fit in 64 bits (16 tokens x 4,294,967,295 heads x "
            "8,589,934,590 bytes): make it smaller");
  // K fits, K and V together do not.
  EXPECT_NE(page_error(attention_group(1, kUint32Max, kUint32Max, ElementType::Fp8), {.page_tokens = 1})
                .find("one layer of a page does not fit in 64 bits (18,446,744,065,119,617,025 + "),
            std::string::npos);
  // One layer fits, two do not.
  EXPECT_EQ(page_error(attention_group(2, kUint32Max, 1U << 31, ElementType::Int8), {.page_tokens = 1}),
            "group 'full': a page does not fit in 64 bits (2 layers x 18,446,744,069,414,584,320 bytes): make it "
            "smaller");
}

TEST(PoolGeometry, SomethingElseMayLieBetweenPages) {
  const PageGeometry page = make_page(row_group(2, 6, ElementType::Bytes), {.page_tokens = 4});
  const PoolGeometry pool = make_pool(page, {.page_count = 3, .page_stride_bytes = 100});
  EXPECT_EQ(pool.pool_bytes(), 2U * 100 + 48);
  EXPECT_EQ(pool.offset_of({.page = PageId{2}, .layer_index = 1, .token_index = 3}), 2U * 100 + 24 + 18);
  EXPECT_EQ(pool_error(page, {.page_count = 3, .page_stride_bytes = 47}),
            "pool of group 'full': page_stride_bytes is 47, less than a page has, which is 48 bytes");
  EXPECT_EQ(pool_error(page, {.page_count = 3, .byte_layout = ByteLayout::LayerFirst, .page_stride_bytes = 48}),
            "pool of group 'full': page_stride_bytes is for ByteLayout::PageFirst: set it to 0");
}

TEST(PoolGeometry, PageCountsThatCannotBeAreRefused) {
  const PageGeometry page = make_page(attention_group(32, 8, 128), {});
  EXPECT_EQ(pool_error(page, {}),
            "pool of group 'full': page_count is 0: give room for one page at least, which is 2,097,152 bytes");
  EXPECT_EQ(pool_error(page, {.page_count = std::uint64_t{1} << 40}),
            "pool of group 'full': page_count is 1,099,511,627,776, but a pool has at most 4,294,967,295 "
            "pages: use "
            "larger pages or a smaller pool");
  const PageGeometry huge = make_page(attention_group(80, 8, kUint32Max), {.page_tokens = 16});
  EXPECT_EQ(pool_error(huge, {.page_count = kUint32Max}),
            "pool of group 'full' does not fit in 64 bits (4,294,967,295 pages x 175,921,860,403,200 bytes): "
            "make it "
            "smaller");
}

}  // namespace
}  // namespace quire
