// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"

namespace quire {
namespace {

constexpr std::uint32_t kUint32Max = std::numeric_limits<std::uint32_t>::max();

template <typename T>
T value_of(const Result<T>& result) {
  EXPECT_TRUE(result.has_value()) << result.error().message;
  return *result;
}

std::string error_of(const Result<ModelLayout>& layout) {
  if (layout) return "no error";
  EXPECT_EQ(layout.error().code, ErrorCode::InvalidArgument);
  return layout.error().message;
}

CacheGroup row_group(std::string name, std::vector<std::uint32_t> layers) {
  return {.name = std::move(name),
          .layers = std::move(layers),
          .components = {{.name = "row", .sharding = Sharding::Replicated, .dim = 10}}};
}

TEST(ModelLayout, ASimpleLayoutIsOneFullGroupOfKeysAndValues) {
  const ModelLayout layout = value_of(
      ModelLayout::simple({.name = "tiny", .layers = 2, .kv_heads = 3, .head_dim = 4, .element = ElementType::Fp32}));
  EXPECT_EQ(layout.name(), "tiny");
  EXPECT_EQ(layout.layer_count(), 2U);
  EXPECT_EQ(layout.token_bytes(), 2U * 2 * 3 * 4 * 4);
  ASSERT_EQ(layout.groups().size(), 1U);
  EXPECT_EQ(layout.groups()[0],
            (CacheGroup{.name = "full",
                        .kind = GroupKind::Full,
                        .layers = {0, 1},
                        .components = {{.name = "k", .element = ElementType::Fp32, .heads = 3, .dim = 4},
                                       {.name = "v", .element = ElementType::Fp32, .heads = 3, .dim = 4}}}));
}

TEST(ModelLayout, AnOpaqueLayoutIsOneLayerOfBytes) {
  const ModelLayout layout = value_of(ModelLayout::opaque(1'000));
  EXPECT_EQ(layout.layer_count(), 1U);
  EXPECT_EQ(layout.token_bytes(), 1'000U);
  const PageGeometry page = value_of(PageGeometry::create(layout.groups()[0], {.page_tokens = 64, .rank_count = 3}));
  EXPECT_EQ(page.page_bytes(), 64'000U);
}

TEST(ModelLayout, GroupsAddUpAndMayShareLayers) {
  const ModelLayout layout = value_of(ModelLayout::create("two", {row_group("a", {0, 2, 4}), row_group("b", {1, 2})}));
  EXPECT_EQ(layout.groups().size(), 2U);
  EXPECT_EQ(layout.layer_count(), 4U);
  EXPECT_EQ(layout.token_bytes(), 3U * 20 + 2 * 20);
}

TEST(ModelLayout, ALayerRangeCountsFromItsFirstLayer) {
  EXPECT_EQ(layer_range(3, 4), (std::vector<std::uint32_t>{3, 4, 5, 6}));
  EXPECT_TRUE(layer_range(3, 0).empty());
}

TEST(ModelLayout, SimpleShapesThatCannotBeAreRefusedByField) {
  EXPECT_EQ(error_of(ModelLayout::simple({.layers = 0, .kv_heads = 1, .head_dim = 1})),
            "layout 'model': layers is 0: use 1 to 65,536");
  EXPECT_EQ(error_of(ModelLayout::simple({.layers = kUint32Max, .kv_heads = 1, .head_dim = 1})),
            "layout 'model': layers is 4,294,967,295: use 1 to 65,536");
  EXPECT_EQ(error_of(ModelLayout::simple({.layers = 1, .kv_heads = 0, .head_dim = 1})),
            "layout 'model': kv_heads is 0: use the model's number of K/V heads");
  EXPECT_EQ(error_of(ModelLayout::simple({.layers = 1, .kv_heads = 1, .head_dim = 0})),
            "layout 'model': head_dim is 0: use the size of one head");
  EXPECT_EQ(error_of(ModelLayout::opaque(0)), "opaque layout: token_bytes is 0: use 1 or more");
}

TEST(ModelLayout, GroupsThatCannotBeAreRefusedByName) {
  EXPECT_EQ(error_of(ModelLayout::create("m", {})), "layout 'm' has no groups: a model needs one at least");
  EXPECT_EQ(error_of(ModelLayout::create("m", {row_group("", {0})})),
            "layout 'm' has a group without a name: name it, as 'full'");
  EXPECT_EQ(error_of(ModelLayout::create("m", {row_group("a", {0}), row_group("a", {1})})),
            "layout 'm' has two groups named 'a': rename one");
  EXPECT_EQ(error_of(ModelLayout::create("m", {row_group("a", {0}), row_group("b", {})})),
            "layout 'm', group 'b' has 0 layers: list the layers that it stores");
}

TEST(ModelLayout, ATokenOfAllGroupsThatDoesNotFitIn64BitsIsRefused) {
  CacheGroup huge = row_group("a", {0});
  huge.components[0] = {.name = "row", .element = ElementType::Bytes, .heads = kUint32Max, .dim = kUint32Max};
  CacheGroup second = huge;
  second.name = "b";
  EXPECT_EQ(error_of(ModelLayout::create("m", {huge, second})),
            "layout 'm': a token of all groups does not fit in 64 bits (18,446,744,065,119,617,025 + "
            "18,446,744,065,119,617,025 bytes): make it smaller");
}

TEST(ModelLayout, TheDescriptionIsATableOfGroups) {
  EXPECT_EQ(value_of(value_of(preset("llama-3-8b")).describe()),
            "llama-3-8b: 32 layers, 131,072 bytes per token; pages of 16 tokens\n"
            "  group  kind  layers  entry of a layer    bytes per token  bytes per page\n"
            "  full   full      32  k, v: 8 x 128 bf16          131,072           2 MiB\n");
}

TEST(ModelLayout, TheDescriptionHasTheSizesOfOneRank) {
  EXPECT_EQ(value_of(value_of(preset("llama-3-8b")).describe({.page_tokens = 1, .rank_count = 4})),
            "llama-3-8b: 32 layers, 131,072 bytes per token; pages of 1 token; each of 4 ranks has\n"
            "  group  kind  layers  entry of a layer    bytes per token  bytes per page\n"
            "  full   full      32  k, v: 2 x 128 bf16           32,768          32 KiB\n");
}

TEST(ModelLayout, TheDescriptionShowsEveryGroupAndComponent) {
  const ModelLayout layout = value_of(ModelLayout::create(
      "mixed",
      {{.name = "attention",
        .layers = layer_range(0, 1'000),
        .components = {{.name = "k", .element = ElementType::Fp8, .heads = 8, .dim = 64},
                       {.name = "v", .element = ElementType::Fp8, .heads = 8, .dim = 64},
                       {.name = "scale", .element = ElementType::Fp32, .heads = 8, .dim = 1}}},
       {.name = "latent",
        .layers = {1'000},
        .components = {
            {.name = "record", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = 656}}}}));
  EXPECT_EQ(value_of(layout.describe({.page_tokens = 64})),
            "mixed: 1,001 layers, 1,056,656 bytes per token; pages of 64 tokens\n"
            "  group      kind  layers  entry of a layer                     bytes per token  bytes per page\n"
            "  attention  full   1,000  k, v: 8 x 64 fp8; scale: 8 x 1 fp32        1,056,000       64.45 MiB\n"
            "  latent     full       1  record: 656 bytes                                656          41 KiB\n");
}

TEST(ModelLayout, ADescriptionOfImpossiblePagesIsAnError) {
  const ModelLayout layout = value_of(preset("llama-3-8b"));
  EXPECT_FALSE(layout.describe({.page_tokens = 0}).has_value());
  EXPECT_FALSE(layout.describe({.rank_count = 3}).has_value());
}

}  // namespace
}  // namespace quire
