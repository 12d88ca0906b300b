// SPDX-License-Identifier: Apache-2.0
//
// The weights of a small transformer, drawn from a seed. They are all that the engine and the oracle share: each has
// its own arithmetic, so a mistake in one cannot hide in the other.
//
// A layer: RMSNorm, attention, RMSNorm, gated MLP, each added to the residual. Attention is of one of two kinds:
//
//   Gqa   query heads share K and V heads; RoPE on all of K
//   Mla   a token has one latent row, from which every head's K and V are projected, and one rotated key for all heads
//
// Every second layer may have a window: there a token sees, of what it sees elsewhere, what is less than so many
// positions before it.
//
// RoPE turns the pairs (x[2i], x[2i + 1]) by position * rope_base^(-2i / dim).
//
// immutable once made
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tiny_engine {

enum class AttentionKind : std::uint8_t { Gqa, Mla };

struct ModelShape {
  AttentionKind attention = AttentionKind::Gqa;
  std::uint32_t layer_count = 2;
  std::uint32_t vocabulary = 48;
  std::uint32_t width = 24;
  std::uint32_t query_heads = 4;
  std::uint32_t kv_heads = 2;  ///< Gqa
  std::uint32_t head_dim = 8;
  std::uint32_t latent_dim = 12;  ///< Mla
  std::uint32_t rope_dim = 8;     ///< Mla: of the key that all heads share
  std::uint32_t mlp_width = 32;
  std::uint32_t layer_window = 0;  ///< layers 1, 3, … attend to so many last tokens only; 0: to all of them
  double rope_base = 100.0;
  double norm_epsilon = 1e-6;
};

/// values[row * columns + column]; a projection gives `rows` numbers from `columns`.
struct Matrix {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::vector<double> values;
};

struct LayerWeights {
  std::vector<double> attention_norm;
  Matrix query;     ///< per head: head_dim rows, for Mla followed by rope_dim rows
  Matrix key;       ///< Gqa: kv_heads * head_dim rows
  Matrix value;     ///< Gqa
  Matrix latent;    ///< Mla: latent_dim rows
  Matrix rope_key;  ///< Mla: rope_dim rows
  Matrix key_up;    ///< Mla: query_heads * head_dim rows from the latent row
  Matrix value_up;  ///< Mla
  Matrix output;
  std::vector<double> mlp_norm;
  Matrix gate;
  Matrix up;
  Matrix down;
};

/// The window of one layer, 0 for none.
[[nodiscard]] constexpr std::uint32_t layer_window_of(const ModelShape& shape, std::size_t layer_index) {
  return layer_index % 2 == 1 ? shape.layer_window : 0;
}

struct Weights {
  ModelShape shape;
  Matrix embedding;  ///< a row per token
  std::vector<LayerWeights> layers;
  std::vector<double> final_norm;
  Matrix head;
};

[[nodiscard]] Weights make_weights(const ModelShape& shape, std::uint64_t seed);

/// Scrambles 64 bits: what weights, samples and drafts are drawn with.
[[nodiscard]] constexpr std::uint64_t scramble(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31U);
}

/// Scrambled bits as a number in [0, 1).
[[nodiscard]] constexpr double unit_interval(std::uint64_t bits) {
  return static_cast<double>(bits >> 11U) * 0x1.0p-53;
}

}  // namespace tiny_engine
