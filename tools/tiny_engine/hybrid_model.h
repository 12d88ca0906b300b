// SPDX-License-Identifier: Apache-2.0
//
// A model whose layers store different things. Every layer is an RMSNorm and one of the kinds below, added to the
// residual; what it gives depends on every number that its groups store, so that a byte that is lost, stale or another
// sequence's shows in the logits.
//
//   Full        K and V of every token; a layer with `window_tokens` sees the last of them only
//   Window      K and V of the last `window_tokens`, in pages
//   Ring        the same in the state slot
//   Compressed  an entry for every `ratio` tokens: the sum of their rows, weighted by a softmax over their gates in
//   each
//               dimension. A place among the tokens has a bias, so that their order counts. The entry is normalised,
//               turned by RoPE as at its first token, and is both K and V. A token sees the entries that are complete
//               once it is computed; with none, the layer adds nothing
//   Overlapped  an entry is made of twice as many tokens: its own, and by a second projection those before. Before the
//               first token there are rows with closed gates
//   Recurrent   S = decay * S + k v^T in each head, with a decay from the token; gives q S. k has half of the k before
//               mixed in, which is part of the state
//
// K, V and entries are stored as doubles, or rounded to 8 bits with scales, which is then what every token sees of
// them; states and rows are doubles.
//
// Layers of one kind with the same numbers make one group; a compressor has a second one for rows of tokens that are
// not part of an entry yet.
//
// immutable once made
#pragma once

#include <cstdint>
#include <vector>

#include "model.h"
#include "quire/cache_group.h"
#include "quire/layout.h"
#include "quire/quantised_kernels.h"

namespace tiny_engine {

enum class LayerKind : std::uint8_t { Full, Window, Ring, Compressed, Overlapped, Recurrent };

struct HybridLayer {
  LayerKind kind = LayerKind::Full;
  std::uint32_t window_tokens = 0;  ///< Window, Ring; Full, where the plan's layer_windows have it
  std::uint32_t ratio = 0;          ///< Compressed, Overlapped
  friend bool operator==(const HybridLayer&, const HybridLayer&) = default;
};

struct HybridShape {
  std::vector<HybridLayer> layers;
  std::uint32_t vocabulary = 32;
  std::uint32_t width = 16;
  std::uint32_t query_heads = 2;
  std::uint32_t kv_heads = 1;  ///< of K and V; compressed layers have one
  std::uint32_t head_dim = 8;
  double rope_base = 100.0;
  double norm_epsilon = 1e-6;

  /// K of full layers and entries are stored after RoPE. Otherwise they are turned where they are read, as windows of
  /// sequences need it; V is what is stored.
  bool keys_rotated = true;

  /// K, V and entries are E4M3. Each head of K and V has a scale; of an entry the second half is bf16.
  bool stores_fp8 = false;

  // What the cache is told. Tokens that can be taken back without computing them again:
  std::uint32_t rewind_tokens = 4;
  quire::GroupRetention window_retention = {};  ///< of windows in pages
  quire::GroupRetention state_retention = {.rule = quire::RetentionRule::Last};
  /// Groups for which computing a few tokens again gives the same bytes say so: compressors' rows and, where no layer
  /// behind it would keep what was computed without it, a window.
  bool declares_replay = false;
};

struct HybridLayerWeights {
  std::vector<double> norm;
  Matrix query;                    ///< query_heads * head_dim rows
  Matrix key;                      ///< kv_heads, or for Recurrent query_heads, times head_dim rows
  Matrix value;                    ///< the same; for compressors head_dim rows for each series
  Matrix gate;                     ///< of compressors, as value; of Recurrent query_heads rows: decays
  std::vector<double> place_bias;  ///< of compressors: [series][ratio][head_dim], added to gates
  std::vector<double> entry_norm;  ///< of compressors: head_dim
  Matrix output;
};

struct HybridWeights {
  HybridShape shape;
  Matrix embedding;
  std::vector<HybridLayerWeights> layers;
  std::vector<double> final_norm;
  Matrix head;
};

[[nodiscard]] HybridWeights make_hybrid_weights(const HybridShape& shape, std::uint64_t seed);

/// The groups of a layer: where it is in each, by index in the layout.
struct LayerPlace {
  std::uint32_t group_index = 0;
  std::uint32_t layer_index = 0;       ///< in its group, and in that of the rows
  std::uint32_t rows_group_index = 0;  ///< of compressors
};

struct HybridGroups {
  std::vector<quire::CacheGroup> groups;
  std::vector<LayerPlace> places;  ///< of each layer of the model
};
[[nodiscard]] HybridGroups hybrid_groups(const HybridShape& shape);

/// What a group stores in 8 bits, in its pages or its part of the state slots: K and V, or entries. Empty for doubles.
[[nodiscard]] std::vector<quire::QuantisedEntries> quantised_parts(const quire::PoolGeometry& geometry);

[[nodiscard]] constexpr bool is_compressor(LayerKind kind) {
  return kind == LayerKind::Compressed || kind == LayerKind::Overlapped;
}
/// Projections of a token in a compressor: the second is for the entry behind its own.
[[nodiscard]] constexpr std::uint32_t series_of(LayerKind kind) {
  return kind == LayerKind::Overlapped ? 2 : 1;
}
/// What gates are where there is no token.
inline constexpr double kClosedGate = -1e9;

}  // namespace tiny_engine
