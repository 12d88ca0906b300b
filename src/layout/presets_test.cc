// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"

namespace quire {
namespace {

TEST(ModelLayout, PresetsHaveThePublishedShapes) {
  struct Expected {
    std::string_view name;
    std::uint32_t layers;
    std::uint64_t token_bytes;
    std::vector<Component> components;
  };
  const Component k = {.name = "k", .element = ElementType::Bf16, .heads = 8, .dim = 128};
  const Component v = {.name = "v", .element = ElementType::Bf16, .heads = 8, .dim = 128};
  const Component row = {.name = "latent", .element = ElementType::Bf16, .sharding = Sharding::Replicated, .dim = 576};
  const Component record = {
      .name = "latent", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = 656};
  const Expected table[] = {
      {"llama-3-8b", 32, 131'072, {k, v}}, {"llama-3-70b", 80, 327'680, {k, v}},
      {"qwen3-8b", 36, 147'456, {k, v}},   {"qwen3-32b", 64, 262'144, {k, v}},
      {"deepseek-v3", 61, 70'272, {row}},  {"deepseek-v3-fp8", 61, 40'016, {record}},
  };

  std::vector<std::string_view> names;
  for (const Expected& expected : table) {
    names.push_back(expected.name);
    const auto layout = preset(expected.name);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    EXPECT_EQ(layout->name(), expected.name);
    EXPECT_EQ(layout->layer_count(), expected.layers) << expected.name;
    EXPECT_EQ(layout->token_bytes(), expected.token_bytes) << expected.name;
    ASSERT_EQ(layout->groups().size(), 1U) << expected.name;
    EXPECT_EQ(layout->groups()[0].kind, GroupKind::Full) << expected.name;
    EXPECT_EQ(layout->groups()[0].layers, layer_range(0, expected.layers)) << expected.name;
    EXPECT_EQ(layout->groups()[0].components, expected.components) << expected.name;
  }
  EXPECT_EQ(preset_names(), names);
}

TEST(ModelLayout, LlamaPageOfSixteenTokensIsTwoMebibytes) {
  const auto layout = preset("llama-3-8b");
  ASSERT_TRUE(layout.has_value());
  const auto page = PageGeometry::create(layout->groups()[0], {.page_tokens = 16});
  ASSERT_TRUE(page.has_value());
  EXPECT_EQ(page->page_bytes(), 2U << 20);
}

TEST(ModelLayout, TheLatentRowIsTheSameOnEveryRank) {
  for (const std::string_view name : {"deepseek-v3", "deepseek-v3-fp8"}) {
    const auto layout = preset(name);
    ASSERT_TRUE(layout.has_value());
    for (const std::uint32_t ranks : {1U, 7U, 16U}) {
      const auto page = PageGeometry::create(layout->groups()[0], {.page_tokens = 1, .rank_count = ranks});
      ASSERT_TRUE(page.has_value());
      EXPECT_EQ(page->page_bytes(), layout->token_bytes());
    }
  }
}

TEST(ModelLayout, AnUnknownPresetIsAnErrorThatListsTheKnownOnes) {
  const auto layout = preset("llama-4");
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(layout.error().message.find("unknown preset 'llama-4'"), std::string::npos);
  for (const std::string_view name : preset_names()) {
    EXPECT_NE(layout.error().message.find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace quire
