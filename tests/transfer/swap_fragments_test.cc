// SPDX-License-Identifier: Apache-2.0
//
// The fragments of pages: in a pool of quire's, and in tensors of the engine's, which must have every byte once.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/layout.h"
#include "quire/swap.h"

namespace quire {
namespace {

PageGeometry adopted_page(std::vector<Component> components, const PageOptions& options = {.page_tokens = 4}) {
  CacheGroup group{.name = "full", .layers = {3, 7}, .components = std::move(components)};
  return PageGeometry::create(std::move(group), options).value();
}

PageGeometry plain_page(const PageOptions& options = {.page_tokens = 4}) {
  return adopted_page({{.name = "k", .element = ElementType::Bytes, .heads = 2, .dim = 3},
                       {.name = "v", .element = ElementType::Bytes, .heads = 2, .dim = 5}},
                      options);
}

std::array<std::byte, 16> g_tensors;  // only addresses are taken

std::byte* tensor(std::size_t index) {
  return g_tensors.data() + index;
}

std::string refusal(const PageGeometry& page, const std::vector<AdoptedTensor>& tensors) {
  const auto made = fragments_of(page, tensors);
  if (made) return "it was taken";
  EXPECT_EQ(made.error().code, ErrorCode::InvalidArgument);
  return made.error().message;
}

TEST(SwapFragments, APoolHasOneForEachLayer) {
  const PageGeometry page = plain_page();
  const std::uint64_t layer_bytes = page.layer_bytes();
  ASSERT_EQ(layer_bytes, 64U);
  for (const ByteLayout layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    const PoolGeometry pool = PoolGeometry::create(page, {.page_count = 5, .byte_layout = layout}).value();
    const auto layers = fragments_of(pool, tensor(1));
    ASSERT_EQ(layers.size(), 2U);
    const bool is_page_first = layout == ByteLayout::PageFirst;
    for (std::size_t l = 0; l < 2; ++l) {
      ASSERT_EQ(layers[l].size(), 1U);
      EXPECT_EQ(layers[l][0].first, tensor(1) + (l * layer_bytes * (is_page_first ? 1 : 5)));
      EXPECT_EQ(layers[l][0].page_stride, layer_bytes * (is_page_first ? 2 : 1));
      EXPECT_EQ(layers[l][0].record_offset, l * layer_bytes);
      EXPECT_EQ(layers[l][0].bytes, layer_bytes);
    }
  }
}

TEST(SwapFragments, TensorsAreTakenInAnyOrder) {
  for (const HeadOrder heads : {HeadOrder::Nhd, HeadOrder::Hnd}) {
    const PageGeometry page = plain_page({.page_tokens = 4, .head_order = heads});
    const auto layers =
        fragments_of(
            page,
            std::vector<AdoptedTensor>{{.layer_index = 1, .component_index = 1, .data = tensor(3), .page_stride = 40},
                                       {.layer_index = 0, .data = tensor(0), .page_stride = 100},
                                       {.layer_index = 1, .component_index = 0, .data = tensor(2), .page_stride = 24}})
            .value();
    ASSERT_EQ(layers.size(), 2U);
    ASSERT_EQ(layers[0].size(), 1U);
    EXPECT_EQ(layers[0][0].first, tensor(0));
    EXPECT_EQ(layers[0][0].bytes, 64U);
    EXPECT_EQ(layers[0][0].page_stride, 100U);
    ASSERT_EQ(layers[1].size(), 2U);
    EXPECT_EQ(layers[1][0].first, tensor(2));
    EXPECT_EQ(layers[1][0].record_offset, 64U);
    EXPECT_EQ(layers[1][0].bytes, 24U);
    EXPECT_EQ(layers[1][1].first, tensor(3));
    EXPECT_EQ(layers[1][1].record_offset, 88U);
    EXPECT_EQ(layers[1][1].bytes, 40U);
  }
}

TEST(SwapFragments, OfOneRankTheyHaveItsHeads) {
  const PageGeometry page = plain_page({.page_tokens = 4, .rank_count = 2});
  const std::vector<AdoptedTensor> tensors = {
      {.layer_index = 0, .component_index = 0, .data = tensor(0), .page_stride = 12},
      {.layer_index = 0, .component_index = 1, .data = tensor(1), .page_stride = 20},
      {.layer_index = 1, .data = tensor(2), .page_stride = 32}};
  const auto layers = fragments_of(page, tensors).value();
  EXPECT_EQ(layers[0][0].bytes, 12U);
  EXPECT_EQ(layers[0][1].bytes, 20U);
  EXPECT_EQ(layers[1][0].bytes, 32U);
}

TEST(SwapFragments, WhatIsMissingIsSaid) {
  const PageGeometry page = plain_page();
  EXPECT_EQ(refusal(page, {}),
            "adopting tensors of group 'full': layer 0 has bytes in no tensor, from byte 0 of 64 on: a component is "
            "missing, or padding is where components are apart");
  EXPECT_EQ(refusal(page, {{.layer_index = 0, .data = tensor(0), .page_stride = 64},
                           {.layer_index = 1, .component_index = 0, .data = tensor(1), .page_stride = 24}}),
            "adopting tensors of group 'full': layer 1 has bytes in no tensor, from byte 24 of 64 on: a component is "
            "missing, or padding is where components are apart");
  EXPECT_EQ(refusal(page, {{.layer_index = 0, .component_index = 1, .data = tensor(0), .page_stride = 64}}),
            "adopting tensors of group 'full': layer 0 has bytes in no tensor, from byte 0 of 64 on: a component is "
            "missing, or padding is where components are apart");
}

TEST(SwapFragments, WhatIsGivenTwiceIsSaid) {
  const PageGeometry page = plain_page();
  const std::string wanted =
      "adopting tensors of group 'full': layer 1 has bytes in two tensors: components that share records, or are "
      "given "
      "twice, go together";
  const AdoptedTensor first{.layer_index = 0, .data = tensor(0), .page_stride = 64};
  const AdoptedTensor k{.layer_index = 1, .component_index = 0, .data = tensor(1), .page_stride = 64};
  const AdoptedTensor v{.layer_index = 1, .component_index = 1, .data = tensor(1), .page_stride = 64};
  const AdoptedTensor all{.layer_index = 1, .data = tensor(1), .page_stride = 64};
  EXPECT_EQ(refusal(page, {first, k, k, v}), wanted);
  EXPECT_EQ(refusal(page, {first, k, v, v}), wanted);
  EXPECT_EQ(refusal(page, {first, all, all}), wanted);
  EXPECT_EQ(refusal(page, {first, all, v}), wanted);
}

TEST(SwapFragments, ComponentsThatShareRecordsGoTogether) {
  const PageGeometry page =
      adopted_page({{.name = "values", .element = ElementType::Bytes, .dim = 8, .placement = Placement::Interleaved},
                    {.name = "scales", .element = ElementType::Bytes, .dim = 2, .placement = Placement::Interleaved}});
  EXPECT_EQ(refusal(page, {{.layer_index = 0, .component_index = 0, .data = tensor(0), .page_stride = 64},
                           {.layer_index = 0, .component_index = 1, .data = tensor(1), .page_stride = 64},
                           {.layer_index = 1, .data = tensor(2), .page_stride = 64}}),
            "adopting tensors of group 'full': layer 0 has bytes in two tensors: components that share records, or are "
            "given twice, go together");
  EXPECT_TRUE(fragments_of(page, std::vector<AdoptedTensor>{{.layer_index = 0, .data = tensor(0), .page_stride = 64},
                                                            {.layer_index = 1, .data = tensor(2), .page_stride = 64}})
                  .has_value());
}

TEST(SwapFragments, PaddingBetweenComponentsKeepsThemTogether) {
  const PageGeometry page = adopted_page({{.name = "k", .element = ElementType::Bytes, .dim = 3},
                                          {.name = "v", .element = ElementType::Bytes, .dim = 16, .alignment = 16}});
  ASSERT_EQ(page.layer_bytes(), 80U);
  EXPECT_NE(refusal(page, {{.layer_index = 0, .component_index = 0, .data = tensor(0), .page_stride = 64},
                           {.layer_index = 0, .component_index = 1, .data = tensor(0), .page_stride = 64},
                           {.layer_index = 1, .data = tensor(0), .page_stride = 80}})
                .find("layer 0 has bytes in no tensor, from byte 12 of 80 on"),
            std::string::npos);
}

TEST(SwapFragments, ATensorThatCannotBeIsRefused) {
  const PageGeometry page = plain_page();
  EXPECT_EQ(refusal(page, {{.layer_index = 2, .data = tensor(0), .page_stride = 64}}),
            "adopting tensors of group 'full': layer 2: there are 2, counted from 0");
  EXPECT_EQ(refusal(page, {{.layer_index = 1, .component_index = 2, .data = tensor(0), .page_stride = 64}}),
            "adopting tensors of group 'full': component 2 of layer 1: there are 2, counted from 0");
  EXPECT_EQ(refusal(page, {{.layer_index = 1, .component_index = 1, .page_stride = 64}}),
            "adopting tensors of group 'full': the tensor of layer 1, component 'v' has no address");
  EXPECT_EQ(refusal(page, {{.layer_index = 1, .data = tensor(0), .page_stride = 63}}),
            "adopting tensors of group 'full': the tensor of layer 1 has 63 bytes from page to page, and 64 in each");
  EXPECT_EQ(refusal(page, {{.layer_index = 0, .component_index = 0, .data = tensor(0), .page_stride = 23}}),
            "adopting tensors of group 'full': the tensor of layer 0, component 'k' has 23 bytes from page to page, "
            "and 24 in each");
}

}  // namespace
}  // namespace quire
