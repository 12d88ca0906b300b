// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"
#include "quire/state_slots.h"

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

TEST(ModelLayout, TheDescriptionSaysWhatEachKindNeedsToResume) {
  CacheGroup window = row_group("near", {0, 1});
  window.kind = GroupKind::Window;
  window.window_tokens = 128;
  window.sink_tokens = 4;
  window.keys_rotated = false;
  window.retention = {.rule = RetentionRule::Every, .interval_tokens = 1'024};
  window.replay = {.tokens = 127};
  CacheGroup entries = row_group("entries", {0, 1, 2});
  entries.kind = GroupKind::Compressed;
  entries.tokens_per_entry = 128;
  CacheGroup state = row_group("state", {3});
  state.kind = GroupKind::Snapshot;
  state.slot_entries = 1;
  state.slot_history = 2;
  state.retention = {.rule = RetentionRule::Last};
  CacheGroup tail = row_group("tail", {2});
  tail.kind = GroupKind::Snapshot;
  tail.slot_entries = 8;
  tail.snapshot_entries = 4;
  tail.boundary_tokens = 4;
  tail.retention = {.rule = RetentionRule::Every, .interval_tokens = 2'048};
  CacheGroup fresh = tail;
  fresh.name = "fresh";
  fresh.snapshot_entries = 0;
  fresh.retention = {.rule = RetentionRule::None};
  std::vector<CacheGroup> groups = {row_group("far", {4}), window, entries, state, tail, fresh};
  const ModelLayout all = value_of(ModelLayout::create("all", groups));
  EXPECT_EQ("\n" + value_of(all.describe({.page_tokens = 256})), R"(
all: 5 layers, 21 bytes per token of context; pages of 256 tokens
  group    kind            layers  bytes per token  bytes per page  bytes per slot  to resume, it needs                                                        entry of a layer
  far      full                 1               20           5 KiB               -  all tokens                                                                 row: 10 bf16
  near     window 128 + 4       2               40          10 KiB               -  the last 127 tokens and the first 4, kept every 1,024, or a replay of 127  row: 10 bf16
  entries  compressed 128       3             0.47           120 B               -  all entries                                                                row: 10 bf16
  state    snapshot             1                -            20 B            60 B  a snapshot, kept at the end                                                row: 10 bf16
  tail     snapshot             1                -            80 B           160 B  a snapshot of the last 4 tokens, kept every 2,048                          row: 10 bf16
  fresh    snapshot             1                -               -           160 B  nothing, at multiples of 4                                                 row: 10 bf16
  a hit can end at multiples of 128 tokens where what it needs was kept
)");

  groups = {window, entries};
  groups[0].window_form = WindowForm::Ring;
  groups[0].slot_entries = 132;
  groups[0].retention = {.rule = RetentionRule::None};
  groups[0].replay = {};
  const ModelLayout own = value_of(ModelLayout::create("own", groups));
  EXPECT_EQ("\n" + value_of(own.describe({.page_tokens = 256})), R"(
own: 3 layers, 1 byte per token of context; pages of 256 tokens
  group    kind                  layers  bytes per token  bytes per page  bytes per slot  to resume, it needs                              entry of a layer
  near     window 128 + 4, ring       2                -               -        5.16 KiB  the last 127 tokens and the first 4, never kept  row: 10 bf16
  entries  compressed 128             3             0.47           120 B               -  all entries                                      row: 10 bf16
  no hits: what group 'near' needs to resume is never kept
)");
}

TEST(ModelLayout, SlotsGetRoomForDrafts) {
  const auto bytes_of = [](const ModelLayout& layout) { return value_of(StateSlots::create(layout, {})).slot_bytes(); };
  // A version of the state for each draft: 36 layers of 48 KiB and 2 MiB.
  const ModelLayout qwen = value_of(preset("qwen3-next-80b"));
  EXPECT_EQ(bytes_of(qwen), 77'266'944U);
  const ModelLayout with_three = value_of(qwen.with_drafts(3));
  EXPECT_EQ(with_three.name(), qwen.name());
  EXPECT_EQ(with_three.groups()[1].slot_history, 3U);
  EXPECT_EQ(bytes_of(with_three), 4 * 77'266'944U);
  EXPECT_EQ(value_of(with_three.with_drafts(1)).groups()[1].slot_history, 3U);
  EXPECT_EQ(bytes_of(value_of(qwen.with_drafts(0))), bytes_of(qwen));
  EXPECT_FALSE(qwen.with_drafts(kUint32Max).has_value());
  // Rows by position: the 4 of a snapshot, up to 3 behind it, and one for each draft.
  const ModelLayout flash = value_of(preset("deepseek-v4-flash"));
  const ModelLayout one = value_of(flash.with_drafts(1));
  EXPECT_EQ(one.groups()[3].slot_entries, 8U);
  EXPECT_EQ(one.groups()[4].slot_entries, 128U);
  const ModelLayout four = value_of(flash.with_drafts(4));
  EXPECT_EQ(four.groups()[3].slot_entries, 11U);
  EXPECT_EQ(four.groups()[4].slot_entries, 131U);
  EXPECT_FALSE(flash.with_drafts(kUint32Max).has_value());
  // Pages have room for any number.
  EXPECT_EQ(value_of(preset("gpt-oss-120b")->with_drafts(4)).groups()[1].slot_entries, 0U);
}

TEST(ModelLayout, ADescriptionOfImpossiblePagesIsAnError) {
  const ModelLayout layout = value_of(preset("llama-3-8b"));
  EXPECT_FALSE(layout.describe({.page_tokens = 0}).has_value());
  EXPECT_FALSE(layout.describe({.rank_count = 3}).has_value());
}

}  // namespace
}  // namespace quire
