// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/entry_formats.h"
#include "quire/layout.h"

namespace quire {
namespace {

// A model whose layers all store the same: K and V for each of `kv_heads`, or one row when that is 0.
struct KnownModel {
  std::string_view name;
  std::uint32_t layers;
  std::uint32_t kv_heads;
  std::uint32_t dim;
  ElementType element;
};

constexpr KnownModel kKnownModels[] = {
    {.name = "llama-3-8b", .layers = 32, .kv_heads = 8, .dim = 128, .element = ElementType::Bf16},
    {.name = "llama-3-70b", .layers = 80, .kv_heads = 8, .dim = 128, .element = ElementType::Bf16},
    {.name = "qwen3-8b", .layers = 36, .kv_heads = 8, .dim = 128, .element = ElementType::Bf16},
    {.name = "qwen3-32b", .layers = 64, .kv_heads = 8, .dim = 128, .element = ElementType::Bf16},
    // The latent row: 512 compressed dimensions and 64 that carry the rotary position.
    {.name = "deepseek-v3", .layers = 61, .kv_heads = 0, .dim = 512 + 64, .element = ElementType::Bf16},
    // The same row as a record: 512 fp8 values, 4 fp32 scales, 64 bf16 values.
    {.name = "deepseek-v3-fp8",
     .layers = 61,
     .kv_heads = 0,
     .dim = 512 + 4 * 4 + 64 * 2,
     .element = ElementType::Bytes},
};

Result<ModelLayout> make_layout(const KnownModel& model) {
  const std::string name(model.name);
  if (model.kv_heads > 0) {
    return ModelLayout::simple({.name = name,
                                .layers = model.layers,
                                .kv_heads = model.kv_heads,
                                .head_dim = model.dim,
                                .element = model.element});
  }
  return ModelLayout::create(
      name, {{.name = "full",
              .layers = layer_range(0, model.layers),
              .components = {
                  {.name = "latent", .element = model.element, .sharding = Sharding::Replicated, .dim = model.dim}}}});
}

// The other models are lists of groups.

std::vector<Component> keys_and_values(std::uint32_t kv_heads, std::uint32_t head_dim) {
  return {{.name = "k", .heads = kv_heads, .dim = head_dim}, {.name = "v", .heads = kv_heads, .dim = head_dim}};
}

// The layers below `count` that are among {first, first + step, …}, or all others.
std::vector<std::uint32_t> layers_every(std::uint32_t step, std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> layers;
  for (std::uint32_t layer = first; layer < count; layer += step) layers.push_back(layer);
  return layers;
}
std::vector<std::uint32_t> layers_other_than(const std::vector<std::uint32_t>& listed, std::uint32_t count) {
  std::vector<std::uint32_t> layers = layer_range(0, count);
  std::erase_if(layers, [&](std::uint32_t layer) { return std::ranges::binary_search(listed, layer); });
  return layers;
}

struct WindowModel {
  std::uint32_t layer_count;
  std::vector<std::uint32_t> full_layers;
  std::uint32_t window_tokens;
  std::vector<Component> components;
};

std::vector<CacheGroup> window_groups(const WindowModel& model) {
  return {{.name = "full", .layers = model.full_layers, .components = model.components},
          {.name = "window",
           .kind = GroupKind::Window,
           .layers = layers_other_than(model.full_layers, model.layer_count),
           .components = model.components,
           .window_tokens = model.window_tokens}};
}

std::vector<CacheGroup> gpt_oss_120b() {
  return window_groups({.layer_count = 36,
                        .full_layers = layers_every(2, 1, 36),
                        .window_tokens = 128,
                        .components = keys_and_values(8, 64)});
}

std::vector<CacheGroup> gemma_3_27b() {
  return window_groups({.layer_count = 62,
                        .full_layers = layers_every(6, 5, 62),
                        .window_tokens = 1'024,
                        .components = keys_and_values(16, 128)});
}

struct RecurrentModel {
  std::uint32_t layer_count;
  std::vector<std::uint32_t> full_layers;
  std::vector<Component> full_components;
  std::vector<Component> state_components;
};

std::vector<CacheGroup> recurrent_groups(const RecurrentModel& model) {
  return {{.name = "full", .layers = model.full_layers, .components = model.full_components},
          {.name = "state",
           .kind = GroupKind::Snapshot,
           .layers = layers_other_than(model.full_layers, model.layer_count),
           .components = model.state_components,
           .retention = {.rule = RetentionRule::Every, .interval_tokens = 4'096},
           .slot_entries = 1}};
}

std::vector<CacheGroup> qwen3_next_80b() {
  // 8,192 channels x 3 of the convolution, of which each of the 32 heads has 256.
  return recurrent_groups(
      {.layer_count = 48,
       .full_layers = layers_every(4, 3, 48),
       .full_components = keys_and_values(2, 256),
       .state_components = {{.name = "conv", .heads = 32, .dim = 256 * 3},
                            {.name = "state", .element = ElementType::Fp32, .heads = 32, .dim = 128 * 128}}});
}

std::vector<CacheGroup> jamba_1_5_mini() {
  return recurrent_groups(
      {.layer_count = 32,
       .full_layers = layers_every(8, 4, 32),
       .full_components = keys_and_values(8, 128),
       .state_components = {{.name = "conv", .heads = 8'192, .dim = 3},
                            {.name = "state", .element = ElementType::Fp32, .heads = 8'192, .dim = 16}}});
}

// A window in every layer; in some also an entry for every 4 tokens that an indexer chooses from, in some one for every
// 128. The compressors' rows that are not part of an entry yet are state. At a multiple of 128 those of the longer
// entries start anew; those of the shorter ones, which overlap, need 4 tokens.
std::vector<CacheGroup> compressed_groups(std::uint32_t layer_count, const std::vector<std::uint32_t>& layers_4,
                                          const std::vector<std::uint32_t>& layers_128) {
  CacheGroup window{
      .name = "window", .kind = GroupKind::Window, .layers = layer_range(0, layer_count), .window_tokens = 128};
  use_format(window, fp8_rows_then_scales());
  CacheGroup entries_4{.name = "entries_4",
                       .kind = GroupKind::Compressed,
                       .layers = layers_4,
                       .tokens_per_entry = 4,
                       .overlap_tokens = 4};
  use_format(entries_4, fp8_rows_then_scales());
  use_format(entries_4, index_keys_mxfp4());
  CacheGroup entries_128{
      .name = "entries_128", .kind = GroupKind::Compressed, .layers = layers_128, .tokens_per_entry = 128};
  use_format(entries_128, fp8_rows_then_scales());
  CacheGroup tail_4{.name = "tail_4",
                    .kind = GroupKind::Snapshot,
                    .layers = layers_4,
                    .retention = {.rule = RetentionRule::Every, .interval_tokens = 2'048},
                    .slot_entries = 8,
                    .snapshot_entries = 4,
                    .boundary_tokens = 4};
  use_format(tail_4, compressor_fp32());
  use_format(tail_4, compressor_fp32({.dim = 128}), "index_");
  CacheGroup tail_128{.name = "tail_128",
                      .kind = GroupKind::Snapshot,
                      .layers = layers_128,
                      .retention = {.rule = RetentionRule::None},
                      .slot_entries = 128,
                      .snapshot_entries = 0,
                      .boundary_tokens = 128};
  use_format(tail_128, compressor_fp32({.series = 1}));
  return {window, entries_4, entries_128, tail_4, tail_128};
}

std::vector<CacheGroup> deepseek_v4_flash() {
  return compressed_groups(43, layers_every(2, 2, 43), layers_every(2, 3, 43));
}

std::vector<CacheGroup> deepseek_v4_pro() {
  const std::vector<std::uint32_t> layers_4 = layers_every(2, 2, 61);
  return compressed_groups(61, layers_4, layers_other_than(layers_4, 61));
}

struct HybridModel {
  std::string_view name;
  std::vector<CacheGroup> (*groups)();
};

constexpr HybridModel kHybridModels[] = {
    {.name = "gpt-oss-120b", .groups = gpt_oss_120b},           {.name = "gemma-3-27b", .groups = gemma_3_27b},
    {.name = "qwen3-next-80b", .groups = qwen3_next_80b},       {.name = "jamba-1.5-mini", .groups = jamba_1_5_mini},
    {.name = "deepseek-v4-flash", .groups = deepseek_v4_flash}, {.name = "deepseek-v4-pro", .groups = deepseek_v4_pro},
};

}  // namespace

Result<ModelLayout> preset(std::string_view name) {
  for (const KnownModel& model : kKnownModels) {
    if (model.name == name) return make_layout(model);
  }
  for (const HybridModel& model : kHybridModels) {
    if (model.name == name) return ModelLayout::create(std::string(name), model.groups());
  }
  std::string known;
  for (const std::string_view each : preset_names()) known.append(known.empty() ? "" : ", ").append(each);
  return fail(ErrorCode::InvalidArgument, "unknown preset '" + std::string(name) + "': the known ones are " + known +
                                              "; describe any other model with ModelLayout::create");
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const KnownModel& model : kKnownModels) names.push_back(model.name);
  for (const HybridModel& model : kHybridModels) names.push_back(model.name);
  return names;
}

}  // namespace quire
