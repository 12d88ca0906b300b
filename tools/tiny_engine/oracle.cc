// SPDX-License-Identifier: Apache-2.0
#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "oracle_arithmetic.h"

namespace tiny_engine {
namespace {

using namespace oracle;  // NOLINT(google-build-using-namespace)

struct Seen {
  std::size_t index = 0;      // in the list of tokens
  double key_position = 0.0;  // as this query rotates it
};

class Oracle {
 public:
  Oracle(const Weights& weights, std::span<const OracleToken> tokens) : weights_(weights), tokens_(tokens) {
    for (const OracleToken& token : tokens) {
      const std::int32_t previous = token.previous;
      position_.push_back(previous < 0 ? 0 : position_[static_cast<std::size_t>(previous)] + 1);
      const double* row = &weights.embedding.values[static_cast<std::size_t>(token.token) * weights.shape.width];
      hidden_.emplace_back(row, row + weights.shape.width);
    }
  }

  std::vector<Vector> logits() {
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      run_layer(weights_.layers[i], layer_window_of(weights_.shape, i));
    }
    std::vector<Vector> result;
    result.reserve(hidden_.size());
    for (const Vector& hidden : hidden_) {
      result.push_back(product(weights_.head, normalized(hidden, weights_.final_norm, weights_.shape.norm_epsilon)));
    }
    return result;
  }

 private:
  /// Everything token `query` may look at, itself last, and the position it has itself.
  double collect_seen(std::size_t query, std::int64_t layer_window, std::vector<Seen>& seen) const {
    const OracleToken& token = tokens_[query];
    const std::int64_t own = position_[query];
    const auto window = static_cast<std::int64_t>(token.visible_tokens);
    const auto sink = static_cast<std::int64_t>(token.sink_tokens);
    const bool has_slid = window > 0 && own >= window;
    const std::int64_t query_position = has_slid ? window - 1 : own;
    seen.clear();
    for (auto at = static_cast<std::int64_t>(query); at >= 0; at = tokens_[static_cast<std::size_t>(at)].previous) {
      const std::int64_t key = position_[static_cast<std::size_t>(at)];
      const bool is_sink = has_slid && key < sink;
      if (has_slid && !is_sink && key <= own - (window - sink)) continue;
      const std::int64_t key_position = is_sink ? key : query_position - (own - key);
      if (layer_window > 0 && key_position <= query_position - layer_window) continue;
      seen.push_back({.index = static_cast<std::size_t>(at), .key_position = static_cast<double>(key_position)});
    }
    std::reverse(seen.begin(), seen.end());
    return static_cast<double>(query_position);
  }

  void run_layer(const LayerWeights& layer, std::int64_t layer_window) {
    const ModelShape& shape = weights_.shape;
    const std::size_t count = tokens_.size();
    std::vector<Vector> queries(count);
    // For each token and head the whole K (not rotated) and V; Mla's are expanded from the latent row.
    std::vector<std::vector<Vector>> keys(count);
    std::vector<std::vector<Vector>> values(count);
    std::vector<Vector> rope_keys(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Vector input = normalized(hidden_[i], layer.attention_norm, shape.norm_epsilon);
      queries[i] = product(layer.query, input);
      expand(layer, input, keys[i], values[i], rope_keys[i]);
    }
    std::vector<Seen> seen;
    for (std::size_t i = 0; i < count; ++i) {
      const double query_position = collect_seen(i, layer_window, seen);
      Vector heads;
      for (std::uint32_t head = 0; head < shape.query_heads; ++head) {
        const Vector mixed = attend(head, queries[i], query_position, seen, keys, values, rope_keys);
        heads.insert(heads.end(), mixed.begin(), mixed.end());
      }
      const Vector attended = product(layer.output, heads);
      for (std::uint32_t j = 0; j < shape.width; ++j) hidden_[i][j] += attended[j];
    }
    for (Vector& hidden : hidden_) run_mlp(layer, hidden);
  }

  void expand(const LayerWeights& layer, const Vector& input, std::vector<Vector>& keys, std::vector<Vector>& values,
              Vector& rope_key) const {
    const ModelShape& shape = weights_.shape;
    Vector all_keys;
    Vector all_values;
    std::uint32_t heads = shape.kv_heads;
    if (shape.attention == AttentionKind::Mla) {
      const Vector latent = product(layer.latent, input);
      all_keys = product(layer.key_up, latent);
      all_values = product(layer.value_up, latent);
      rope_key = product(layer.rope_key, input);
      heads = shape.query_heads;
    } else {
      all_keys = product(layer.key, input);
      all_values = product(layer.value, input);
    }
    for (std::uint32_t head = 0; head < heads; ++head) {
      keys.push_back(part(all_keys, std::size_t{head} * shape.head_dim, shape.head_dim));
      values.push_back(part(all_values, std::size_t{head} * shape.head_dim, shape.head_dim));
    }
  }

  Vector attend(std::uint32_t head, const Vector& query, double query_position, const std::vector<Seen>& seen,
                const std::vector<std::vector<Vector>>& keys, const std::vector<std::vector<Vector>>& values,
                const std::vector<Vector>& rope_keys) const {
    const ModelShape& shape = weights_.shape;
    const bool is_mla = shape.attention == AttentionKind::Mla;
    const std::uint32_t query_dim = is_mla ? shape.head_dim + shape.rope_dim : shape.head_dim;
    const std::uint32_t kv_head = is_mla ? head : head / (shape.query_heads / shape.kv_heads);
    const Vector own = part(query, std::size_t{head} * query_dim, query_dim);
    const Vector plain_query = part(own, 0, shape.head_dim);
    const Vector turned_query =
        is_mla ? rotated(part(own, shape.head_dim, shape.rope_dim), query_position, shape.rope_base)
               : rotated(plain_query, query_position, shape.rope_base);
    Vector scores;
    for (const Seen& at : seen) {
      const Vector& key = keys[at.index][kv_head];
      const double score = is_mla
                               ? dot(plain_query, key) +
                                     dot(turned_query, rotated(rope_keys[at.index], at.key_position, shape.rope_base))
                               : dot(turned_query, rotated(key, at.key_position, shape.rope_base));
      scores.push_back(score / std::sqrt(static_cast<double>(query_dim)));
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double total = 0.0;
    for (double& score : scores) total += score = std::exp(score - highest);
    Vector mixed(shape.head_dim, 0.0);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const Vector& value = values[seen[i].index][kv_head];
      for (std::uint32_t j = 0; j < shape.head_dim; ++j) mixed[j] += scores[i] / total * value[j];
    }
    return mixed;
  }

  void run_mlp(const LayerWeights& layer, Vector& hidden) const {
    const Vector input = normalized(hidden, layer.mlp_norm, weights_.shape.norm_epsilon);
    Vector gated = product(layer.gate, input);
    const Vector up = product(layer.up, input);
    for (std::size_t i = 0; i < gated.size(); ++i) gated[i] = gated[i] / (1.0 + std::exp(-gated[i])) * up[i];
    const Vector down = product(layer.down, gated);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] += down[i];
  }

  const Weights& weights_;
  std::span<const OracleToken> tokens_;
  std::vector<std::int64_t> position_;
  std::vector<Vector> hidden_;
};

}  // namespace

std::vector<std::vector<double>> oracle_logits(const Weights& weights, std::span<const OracleToken> tokens) {
  return Oracle(weights, tokens).logits();
}

std::vector<std::vector<double>> oracle_logits(const Weights& weights, const OracleText& text) {
  std::vector<OracleToken> tokens;
  for (std::size_t i = 0; i < text.tokens.size(); ++i) {
    const bool is_windowed = text.visible_tokens > 0 && i >= text.window_begin;
    tokens.push_back({.token = text.tokens[i],
                      .previous = static_cast<std::int32_t>(i) - 1,
                      .visible_tokens = is_windowed ? text.visible_tokens : 0,
                      .sink_tokens = is_windowed ? text.sink_tokens : 0});
  }
  return oracle_logits(weights, tokens);
}

}  // namespace tiny_engine
