// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"
#include "quire/state_slots.h"

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
  const std::vector<std::string_view> known = preset_names();
  EXPECT_TRUE(std::ranges::equal(names, std::span(known).first(names.size())));
}

ModelLayout layout_of(std::string_view name) {
  auto layout = preset(name);
  EXPECT_TRUE(layout.has_value()) << layout.error().message;
  return *std::move(layout);
}

const CacheGroup& group_of(const ModelLayout& layout, std::string_view name) {
  const auto group = std::ranges::find(layout.groups(), name, &CacheGroup::name);
  EXPECT_NE(group, layout.groups().end()) << name;
  return *group;
}

/// Bytes of the group's entries in all its layers.
std::uint64_t entry_bytes(const CacheGroup& group) {
  auto page = PageGeometry::create(group, {.page_tokens = group.tokens_per_entry});
  EXPECT_TRUE(page.has_value()) << page.error().message;
  return page->entry_bytes();
}

std::uint64_t slot_bytes(const CacheGroup& group) {
  auto slot = PageGeometry::create_slot(group, {});
  EXPECT_TRUE(slot.has_value()) << slot.error().message;
  return slot->page_bytes();
}

TEST(ModelLayout, WindowPresetsHaveThePublishedShapes) {
  struct Expected {
    std::string_view name;
    std::uint32_t layers;
    std::vector<std::uint32_t> full_layers;
    std::uint32_t window_layers;
    std::uint32_t window_tokens;
    std::uint64_t full_bytes;
    std::uint64_t window_bytes;
  };
  const Expected table[] = {
      {"gpt-oss-120b",
       36,
       {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35},
       18,
       128,
       36'864,
       36'864},
      {"gemma-3-27b", 62, {5, 11, 17, 23, 29, 35, 41, 47, 53, 59}, 52, 1'024, 81'920, 425'984},
  };
  for (const Expected& expected : table) {
    const ModelLayout layout = layout_of(expected.name);
    EXPECT_EQ(layout.layer_count(), expected.layers);
    ASSERT_EQ(layout.groups().size(), 2U);
    const CacheGroup& full = group_of(layout, "full");
    const CacheGroup& window = group_of(layout, "window");
    EXPECT_EQ(full.kind, GroupKind::Full);
    EXPECT_EQ(full.layers, expected.full_layers);
    EXPECT_EQ(entry_bytes(full), expected.full_bytes);
    EXPECT_EQ(layout.token_bytes(), expected.full_bytes);
    EXPECT_EQ(window.kind, GroupKind::Window);
    EXPECT_EQ(window.window_tokens, expected.window_tokens);
    EXPECT_EQ(window.layers.size(), expected.window_layers);
    EXPECT_EQ(window.layers.front(), 0U);
    EXPECT_EQ(entry_bytes(window), expected.window_bytes);
    EXPECT_EQ(layout.hit_multiple_tokens(), 1U);
  }
}

TEST(ModelLayout, RecurrentPresetsHaveThePublishedShapes) {
  struct Expected {
    std::string_view name;
    std::uint32_t layers;
    std::vector<std::uint32_t> full_layers;
    std::uint32_t state_layers;
    std::uint64_t full_bytes;
    std::uint64_t state_bytes;
  };
  const Expected table[] = {
      {"qwen3-next-80b", 48, {3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47}, 36, 24'576, 77'266'944},
      {"jamba-1.5-mini", 32, {4, 12, 20, 28}, 28, 16'384, 16'056'320},
  };
  for (const Expected& expected : table) {
    const ModelLayout layout = layout_of(expected.name);
    EXPECT_EQ(layout.layer_count(), expected.layers);
    EXPECT_EQ(group_of(layout, "full").layers, expected.full_layers);
    EXPECT_EQ(layout.token_bytes(), expected.full_bytes);
    const CacheGroup& state = group_of(layout, "state");
    EXPECT_EQ(state.kind, GroupKind::Snapshot);
    EXPECT_EQ(state.layers.size(), expected.state_layers);
    EXPECT_EQ(entry_bytes(state), expected.state_bytes);
    EXPECT_EQ(slot_bytes(state), expected.state_bytes);
    EXPECT_EQ(StateSlots::create(layout)->slot_bytes(), expected.state_bytes);
  }
}

TEST(ModelLayout, CompressedPresetsHaveThePublishedSchedules) {
  struct Expected {
    std::string_view name;
    std::uint32_t layers;
    std::uint32_t layers_4;
    std::uint32_t layers_128;
  };
  const Expected table[] = {{"deepseek-v4-flash", 43, 21, 20}, {"deepseek-v4-pro", 61, 30, 31}};
  for (const Expected& expected : table) {
    const ModelLayout layout = layout_of(expected.name);
    EXPECT_EQ(layout.layer_count(), expected.layers);
    const CacheGroup& window = group_of(layout, "window");
    const CacheGroup& entries_4 = group_of(layout, "entries_4");
    const CacheGroup& entries_128 = group_of(layout, "entries_128");
    EXPECT_EQ(window.layers, layer_range(0, expected.layers));
    EXPECT_EQ(window.window_tokens, 128U);
    EXPECT_EQ(entry_bytes(window), 584U * expected.layers);
    EXPECT_EQ(entries_4.layers.size(), expected.layers_4);
    EXPECT_EQ(entries_4.layers.front(), 2U);
    EXPECT_EQ(entries_4.tokens_per_entry, 4U);
    EXPECT_EQ(lookback_tokens(entries_4, 1'024), 4U);
    EXPECT_EQ(entry_bytes(entries_4), (584U + 68) * expected.layers_4);
    EXPECT_EQ(entries_128.layers.size(), expected.layers_128);
    EXPECT_EQ(entries_128.tokens_per_entry, 128U);
    EXPECT_EQ(lookback_tokens(entries_128, 1'024), 0U);
    EXPECT_EQ(entry_bytes(entries_128), 584U * expected.layers_128);
    EXPECT_EQ(PageGeometry::create(entries_128, {.page_tokens = 256})->layer_bytes(), 1'728U);
    EXPECT_EQ(slot_bytes(group_of(layout, "tail_4")), 8U * (8'192 + 2'048) * expected.layers_4);
    EXPECT_EQ(entry_bytes(group_of(layout, "tail_4")) * 4, 4U * (8'192 + 2'048) * expected.layers_4);
    EXPECT_EQ(slot_bytes(group_of(layout, "tail_128")), 128U * 4'096 * expected.layers_128);
    EXPECT_FALSE(has_pages(group_of(layout, "tail_128")));
    EXPECT_EQ(layout.page_multiple_tokens(), 128U);
    EXPECT_EQ(layout.hit_multiple_tokens(), 128U);
    // Entries of 4 tokens begin in layer 2 and alternate with those of 128.
    for (const std::uint32_t layer : entries_4.layers) EXPECT_EQ(layer % 2, 0U);
    EXPECT_EQ(std::ranges::count(entries_128.layers, 0U), expected.layers == 61 ? 1 : 0);
  }
}

TEST(ModelLayout, EveryPresetHasPagesAndCanBeDescribed) {
  const std::vector<std::string_view> names = preset_names();
  EXPECT_EQ(names.size(), 12U);
  for (const std::string_view name : names) {
    const ModelLayout layout = layout_of(name);
    const PageOptions options{.page_tokens = layout.page_multiple_tokens() * 2, .rank_count = 2};
    const auto text = layout.describe(options);
    ASSERT_TRUE(text.has_value()) << text.error().message;
    for (const CacheGroup& group : layout.groups()) EXPECT_NE(text->find(group.name), std::string::npos) << *text;
  }
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
