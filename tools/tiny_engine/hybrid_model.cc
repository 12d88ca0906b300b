// SPDX-License-Identifier: Apache-2.0
#include "hybrid_model.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "draws.h"
#include "quire/entry_formats.h"

namespace tiny_engine {
namespace {

using quire::CacheGroup;
using quire::Component;
using quire::GroupKind;
using quire::RetentionRule;

std::uint32_t doubles(std::uint32_t count) {
  return count * static_cast<std::uint32_t>(sizeof(double));
}

std::vector<std::byte> pattern_of(double value) {
  std::vector<std::byte> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

Component component(const char* name, std::uint32_t heads, std::uint32_t count) {
  return {.name = name, .element = quire::ElementType::Bytes, .heads = heads, .dim = doubles(count)};
}

// K and V of several heads in 8 bits: values, and behind them the scales of the heads.
std::vector<Component> fp8_component(const char* name, std::uint32_t heads, std::uint32_t count) {
  return {{.name = name, .element = quire::ElementType::Fp8, .heads = heads, .dim = count},
          {.name = std::string(name) + " scales", .element = quire::ElementType::Fp32, .heads = heads, .dim = 1}};
}

// With a scale of either form.
quire::EntryFormat entry_format(std::uint32_t head_dim, bool overlaps) {
  const quire::MixedRow row{.dim = head_dim / 2, .rope_dim = head_dim / 2};
  return overlaps ? quire::fp8_arrays(row) : quire::fp8_rows_then_scales(row);
}

bool keeps_more_than_entries(const HybridLayer& layer) {
  return layer.kind != LayerKind::Full && layer.kind != LayerKind::Compressed;
}

// While a window is rebuilt its layer gives something else than it did: nothing behind it may keep what follows from
// that, and no second layer may be rebuilt from it.
bool window_replay_is_exact(const HybridShape& shape, const HybridLayer& layer) {
  const auto at = std::ranges::find(shape.layers, layer);
  return std::none_of(at + 1, shape.layers.end(), keeps_more_than_entries);
}

CacheGroup main_group(const HybridShape& shape, const HybridLayer& layer) {
  CacheGroup group;
  std::vector<Component> keys_and_values = {component("k", shape.kv_heads, shape.head_dim),
                                            component("v", shape.kv_heads, shape.head_dim)};
  if (shape.stores_fp8) {
    keys_and_values = fp8_component("k", shape.kv_heads, shape.head_dim);
    const std::vector<Component> values = fp8_component("v", shape.kv_heads, shape.head_dim);
    keys_and_values.insert(keys_and_values.end(), values.begin(), values.end());
  }
  switch (layer.kind) {
    case LayerKind::Full:
      group.name = "full";
      group.components = keys_and_values;
      group.keys_rotated = shape.keys_rotated;
      break;
    case LayerKind::Window:
    case LayerKind::Ring:
      group.name = "window " + std::to_string(layer.window_tokens);
      group.kind = GroupKind::Window;
      group.components = keys_and_values;
      group.window_tokens = layer.window_tokens;
      group.retention = shape.window_retention;
      if (layer.kind == LayerKind::Ring) {
        group.name = "ring " + std::to_string(layer.window_tokens);
        group.window_form = quire::WindowForm::Ring;
        group.slot_entries = layer.window_tokens + shape.rewind_tokens;
        group.retention = shape.state_retention;
      }
      if (shape.declares_replay && layer.window_tokens > 1 && window_replay_is_exact(shape, layer)) {
        group.replay = {.tokens = layer.window_tokens - 1, .is_exact = true};
      }
      break;
    case LayerKind::Compressed:
    case LayerKind::Overlapped:
      group.name = (layer.kind == LayerKind::Compressed ? "entries " : "overlapped ") + std::to_string(layer.ratio);
      group.kind = GroupKind::Compressed;
      group.tokens_per_entry = layer.ratio;
      group.keys_rotated = shape.keys_rotated;
      group.overlap_tokens = layer.kind == LayerKind::Overlapped ? layer.ratio : 0;
      if (shape.stores_fp8) {
        quire::use_format(group, entry_format(shape.head_dim, group.overlap_tokens > 0));
      } else {
        group.components = {component("entry", 1, shape.head_dim)};
      }
      break;
    case LayerKind::Recurrent:
      group.name = "state";
      group.kind = GroupKind::Snapshot;
      group.components = {component("state", shape.query_heads, shape.head_dim * shape.head_dim),
                          component("last_k", shape.query_heads, shape.head_dim)};
      group.retention = shape.state_retention;
      group.slot_entries = 1;
      group.slot_history = shape.rewind_tokens;
      break;
  }
  return group;
}

// Rows of tokens that are not part of an entry yet, and of those before that the next entry is made of as well.
CacheGroup rows_group(const HybridShape& shape, const HybridLayer& layer) {
  const bool overlaps = layer.kind == LayerKind::Overlapped;
  const std::uint32_t series = series_of(layer.kind);
  CacheGroup group;
  group.name = "rows of " + main_group(shape, layer).name;
  group.kind = GroupKind::Snapshot;
  group.components = {component("values", series, shape.head_dim), component("gates", series, shape.head_dim)};
  group.components[1].initial = pattern_of(kClosedGate);
  group.slot_entries = (overlaps ? 2 : 1) * layer.ratio + shape.rewind_tokens;
  group.snapshot_entries = overlaps ? layer.ratio : 0;
  group.boundary_tokens = layer.ratio;
  group.retention = {.rule = RetentionRule::None};
  if (overlaps) {
    group.retention = shape.state_retention;
    if (group.retention.rule == RetentionRule::Every) {
      const std::uint32_t interval = group.retention.interval_tokens;
      group.retention.interval_tokens = (interval + layer.ratio - 1) / layer.ratio * layer.ratio;
    }
    if (shape.declares_replay) group.replay = {.tokens = layer.ratio, .is_exact = true};
  }
  return group;
}

}  // namespace

HybridWeights make_hybrid_weights(const HybridShape& shape, std::uint64_t seed) {
  // As sharp as in model.cc, and for the same reason.
  constexpr double kSharp = 1.6;
  Draws draws(seed);
  HybridWeights weights{.shape = shape, .embedding = draws.matrix(shape.vocabulary, shape.width, 3.0)};
  const std::uint32_t query_rows = shape.query_heads * shape.head_dim;
  for (const HybridLayer& kind : shape.layers) {
    HybridLayerWeights layer;
    layer.norm = draws.norm(shape.width);
    layer.query = draws.matrix(query_rows, shape.width, kSharp);
    if (is_compressor(kind.kind)) {
      const std::uint32_t series = series_of(kind.kind);
      layer.value = draws.matrix(series * shape.head_dim, shape.width, 1.0);
      layer.gate = draws.matrix(series * shape.head_dim, shape.width, 1.0);
      layer.place_bias = draws.matrix(series * kind.ratio, shape.head_dim, 2.0).values;
      layer.entry_norm = draws.norm(shape.head_dim);
    } else {
      const bool is_recurrent = kind.kind == LayerKind::Recurrent;
      const std::uint32_t rows = is_recurrent ? query_rows : shape.kv_heads * shape.head_dim;
      layer.key = draws.matrix(rows, shape.width, is_recurrent ? 1.0 : kSharp);
      layer.value = draws.matrix(rows, shape.width, 1.0);
      if (is_recurrent) layer.gate = draws.matrix(shape.query_heads, shape.width, 1.0);
    }
    layer.output = draws.matrix(shape.width, query_rows, 2.0);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = draws.norm(shape.width);
  weights.head = draws.matrix(shape.vocabulary, shape.width, 2.0);
  return weights;
}

HybridGroups hybrid_groups(const HybridShape& shape) {
  HybridGroups result;
  const auto place_in = [&result](const CacheGroup& group, std::uint32_t layer) {
    auto at = std::ranges::find(result.groups, group.name, &CacheGroup::name);
    if (at == result.groups.end()) at = result.groups.insert(at, group);
    at->layers.push_back(layer);
    return static_cast<std::uint32_t>(at - result.groups.begin());
  };
  for (std::uint32_t i = 0; i < shape.layers.size(); ++i) {
    const HybridLayer& layer = shape.layers[i];
    LayerPlace place{.group_index = place_in(main_group(shape, layer), i)};
    place.layer_index = static_cast<std::uint32_t>(result.groups[place.group_index].layers.size()) - 1;
    if (is_compressor(layer.kind)) place.rows_group_index = place_in(rows_group(shape, layer), i);
    result.places.push_back(place);
  }
  return result;
}

std::vector<quire::QuantisedEntries> quantised_parts(const quire::PoolGeometry& geometry) {
  const CacheGroup& group = geometry.page().group();
  if (group.components.front().element != quire::ElementType::Fp8) return {};
  if (group.kind == GroupKind::Compressed) {
    const quire::EntryFormat format = entry_format(2 * group.components.front().dim, group.overlap_tokens > 0);
    return {quire::QuantisedEntries::create(geometry, format).value()};
  }
  return {quire::QuantisedEntries::create(geometry, {.values = 0, .scales = 1}).value(),
          quire::QuantisedEntries::create(geometry, {.values = 2, .scales = 3}).value()};
}

}  // namespace tiny_engine
