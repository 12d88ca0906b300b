// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace

Result<ModelLayout> preset(std::string_view name) {
  for (const KnownModel& model : kKnownModels) {
    if (model.name == name) return make_layout(model);
  }
  std::string known;
  for (const KnownModel& model : kKnownModels) {
    known.append(known.empty() ? "" : ", ").append(model.name);
  }
  return fail(ErrorCode::InvalidArgument, "unknown preset '" + std::string(name) + "': the known ones are " + known +
                                              "; describe any other model with ModelLayout::create");
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const KnownModel& model : kKnownModels) names.push_back(model.name);
  return names;
}

}  // namespace quire
