// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <cstdint>
#include <utility>

#include "draws.h"

namespace tiny_engine {
Weights make_weights(const ModelShape& shape, std::uint64_t seed) {
  // Sharp attention and small embeddings: what a token sees must matter for its logits, or wrong bytes would not show.
  constexpr double kSharp = 1.6;
  Draws draws(seed);
  Weights weights{.shape = shape, .embedding = draws.matrix(shape.vocabulary, shape.width, 3.0)};
  const bool is_mla = shape.attention == AttentionKind::Mla;
  const std::uint32_t query_dim = is_mla ? shape.head_dim + shape.rope_dim : shape.head_dim;
  for (std::uint32_t i = 0; i < shape.layer_count; ++i) {
    LayerWeights layer;
    layer.attention_norm = draws.norm(shape.width);
    layer.query = draws.matrix(shape.query_heads * query_dim, shape.width, kSharp);
    if (is_mla) {
      layer.latent = draws.matrix(shape.latent_dim, shape.width, 1.0);
      layer.rope_key = draws.matrix(shape.rope_dim, shape.width, kSharp);
      layer.key_up = draws.matrix(shape.query_heads * shape.head_dim, shape.latent_dim, kSharp);
      layer.value_up = draws.matrix(shape.query_heads * shape.head_dim, shape.latent_dim, 1.0);
    } else {
      layer.key = draws.matrix(shape.kv_heads * shape.head_dim, shape.width, kSharp);
      layer.value = draws.matrix(shape.kv_heads * shape.head_dim, shape.width, 1.0);
    }
    layer.output = draws.matrix(shape.width, shape.query_heads * shape.head_dim, 2.0);
    layer.mlp_norm = draws.norm(shape.width);
    layer.gate = draws.matrix(shape.mlp_width, shape.width, 1.0);
    layer.up = draws.matrix(shape.mlp_width, shape.width, 1.0);
    layer.down = draws.matrix(shape.width, shape.mlp_width, 1.0);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = draws.norm(shape.width);
  weights.head = draws.matrix(shape.vocabulary, shape.width, 2.0);
  return weights;
}

}  // namespace tiny_engine
