// SPDX-License-Identifier: Apache-2.0
#include "hybrid_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "oracle_arithmetic.h"
#include "oracle_fp8.h"

namespace tiny_engine {
namespace {

using namespace oracle;  // NOLINT(google-build-using-namespace)

class HybridOracle {
 public:
  HybridOracle(const HybridWeights& weights, std::span<const OracleToken> tokens)
      : weights_(weights), shape_(weights.shape), tokens_(tokens) {
    for (const OracleToken& token : tokens) {
      position_.push_back(token.previous < 0 ? 0 : position_[static_cast<std::size_t>(token.previous)] + 1);
      const double* row = &weights.embedding.values[static_cast<std::size_t>(token.token) * shape_.width];
      hidden_.emplace_back(row, row + shape_.width);
    }
  }

  std::vector<Vector> logits() {
    for (std::size_t i = 0; i < shape_.layers.size(); ++i) {
      std::vector<Vector> inputs;
      for (const Vector& hidden : hidden_) {
        inputs.push_back(normalized(hidden, weights_.layers[i].norm, shape_.norm_epsilon));
      }
      const std::vector<Vector> heads = run_layer(shape_.layers[i], weights_.layers[i], inputs);
      for (std::size_t j = 0; j < hidden_.size(); ++j) {
        const Vector added = product(weights_.layers[i].output, heads[j]);
        for (std::uint32_t k = 0; k < shape_.width; ++k) hidden_[j][k] += added[k];
      }
    }
    std::vector<Vector> result;
    for (const Vector& hidden : hidden_) {
      result.push_back(product(weights_.head, normalized(hidden, weights_.final_norm, shape_.norm_epsilon)));
    }
    return result;
  }

 private:
  struct Key {
    Vector key;
    Vector value;
  };

  [[nodiscard]] std::vector<Vector> run_layer(const HybridLayer& kind, const HybridLayerWeights& layer,
                                              const std::vector<Vector>& inputs) const {
    switch (kind.kind) {
      case LayerKind::Full:
      case LayerKind::Window:
      case LayerKind::Ring:
        return attend(kind, layer, inputs);
      case LayerKind::Compressed:
      case LayerKind::Overlapped:
        return attend_entries(kind, layer, inputs);
      case LayerKind::Recurrent:
        return recur(layer, inputs);
    }
    return {};
  }

  /// A token and those before it, nearest first, no more than `count`.
  [[nodiscard]] std::vector<std::size_t> path(std::size_t token, std::size_t count) const {
    std::vector<std::size_t> result;
    for (auto at = static_cast<std::int32_t>(token); at >= 0 && result.size() < count;
         at = tokens_[static_cast<std::size_t>(at)].previous) {
      result.push_back(static_cast<std::size_t>(at));
    }
    return result;
  }

  [[nodiscard]] Vector head_of(const Vector& all, std::uint32_t head) const {
    return part(all, std::size_t{head} * shape_.head_dim, shape_.head_dim);
  }

  /// All heads of one query over keys with as many heads as they have.
  [[nodiscard]] Vector softmax_sum(const HybridLayerWeights& layer, const Vector& input, std::int64_t position,
                                   const std::vector<const Key*>& keys) const {
    const Vector query = product(layer.query, input);
    Vector heads;
    for (std::uint32_t head = 0; head < shape_.query_heads; ++head) {
      const Vector turned = rotated(head_of(query, head), static_cast<double>(position), shape_.rope_base);
      Vector mixed(shape_.head_dim, 0.0);
      Vector scores;
      for (const Key* key : keys) {
        const auto kv_heads = static_cast<std::uint32_t>(key->key.size()) / shape_.head_dim;
        const std::uint32_t kv_head = head * kv_heads / shape_.query_heads;
        scores.push_back(dot(turned, head_of(key->key, kv_head)) / std::sqrt(static_cast<double>(shape_.head_dim)));
      }
      weigh(scores);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto kv_heads = static_cast<std::uint32_t>(keys[i]->value.size()) / shape_.head_dim;
        const Vector value = head_of(keys[i]->value, head * kv_heads / shape_.query_heads);
        for (std::uint32_t j = 0; j < shape_.head_dim; ++j) mixed[j] += scores[i] * value[j];
      }
      heads.insert(heads.end(), mixed.begin(), mixed.end());
    }
    return heads;
  }

  static void weigh(Vector& scores) {
    if (scores.empty()) return;
    const double highest = *std::max_element(scores.begin(), scores.end());
    double total = 0.0;
    for (double& score : scores) total += score = std::exp(score - highest);
    for (double& score : scores) score /= total;
  }

  /// Which tokens a token sees, nearest first, and where RoPE has them. A window of the sequence hides tokens from
  /// layers that keep everything, and moves those of its sink; others go by the text alone.
  struct Seen {
    std::size_t token = 0;
    std::int64_t position = 0;
  };
  [[nodiscard]] bool has_slid(std::size_t query, LayerKind kind) const {
    const bool keeps_all = kind == LayerKind::Full || is_compressor(kind);
    return keeps_all && tokens_[query].visible_tokens > 0 && position_[query] >= tokens_[query].visible_tokens;
  }
  [[nodiscard]] std::int64_t rope_position(std::size_t query, LayerKind kind) const {
    return has_slid(query, kind) ? std::int64_t{tokens_[query].visible_tokens} - 1 : position_[query];
  }
  [[nodiscard]] std::vector<Seen> seen_by(std::size_t query, const HybridLayer& kind) const {
    const std::int64_t own = position_[query];
    const std::int64_t sink = tokens_[query].sink_tokens;
    const std::int64_t recent = tokens_[query].visible_tokens - sink;
    const std::int64_t query_position = rope_position(query, kind.kind);
    const bool slid = has_slid(query, kind.kind);
    const bool has_window = !is_compressor(kind.kind) && kind.window_tokens > 0;
    std::vector<Seen> seen;
    for (const std::size_t at : path(query, tokens_.size())) {
      const bool is_sink = slid && position_[at] < sink;
      if (slid && !is_sink && own - position_[at] >= recent) continue;
      const std::int64_t position = is_sink ? position_[at] : query_position - (own - position_[at]);
      if (has_window && query_position - position >= kind.window_tokens) continue;
      seen.push_back({.token = at, .position = position});
    }
    return seen;
  }

  /// Each head of a row, turned for a position.
  [[nodiscard]] Vector turned(const Vector& row, std::int64_t position) const {
    Vector result;
    for (std::uint32_t head = 0; head < row.size() / shape_.head_dim; ++head) {
      const Vector part = rotated(head_of(row, head), static_cast<double>(position), shape_.rope_base);
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }
  /// A query over keys that are stored turned, or are turned here.
  [[nodiscard]] Vector attend_seen(const HybridLayerWeights& layer, const Vector& input, std::int64_t position,
                                   const std::vector<Seen>& seen, const std::vector<Key>& all, bool is_rotated) const {
    std::vector<Key> copies;
    if (!is_rotated) {
      for (const Seen& each : seen) {
        copies.push_back({.key = turned(all[each.token].key, each.position), .value = all[each.token].value});
      }
    }
    std::vector<const Key*> keys;
    for (std::size_t i = 0; i < seen.size(); ++i) keys.push_back(is_rotated ? &all[seen[i].token] : &copies[i]);
    return softmax_sum(layer, input, position, keys);
  }

  [[nodiscard]] std::vector<Vector> attend(const HybridLayer& kind, const HybridLayerWeights& layer,
                                           const std::vector<Vector>& inputs) const {
    const bool is_rotated = shape_.keys_rotated || kind.kind != LayerKind::Full;
    std::vector<Key> all;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Key key{.key = product(layer.key, inputs[i]), .value = product(layer.value, inputs[i])};
      if (is_rotated) key.key = turned(key.key, position_[i]);
      for (std::uint32_t head = 0; head < shape_.kv_heads && shape_.stores_fp8; ++head) {
        store_block(key.key, std::size_t{head} * shape_.head_dim, shape_.head_dim, false);
        store_block(key.value, std::size_t{head} * shape_.head_dim, shape_.head_dim, false);
      }
      all.push_back(std::move(key));
    }
    std::vector<Vector> heads;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      heads.push_back(attend_seen(layer, inputs[i], rope_position(i, kind.kind), seen_by(i, kind), all, is_rotated));
    }
    return heads;
  }

  // An entry is that of the token that completes it.
  [[nodiscard]] std::vector<Vector> attend_entries(const HybridLayer& kind, const HybridLayerWeights& layer,
                                                   const std::vector<Vector>& inputs) const {
    std::vector<Vector> values;
    std::vector<Vector> gates;
    for (const Vector& input : inputs) {
      values.push_back(product(layer.value, input));
      gates.push_back(product(layer.gate, input));
    }
    const auto ratio = static_cast<std::int64_t>(kind.ratio);
    std::vector<Key> entries(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if ((position_[i] + 1) % ratio != 0) continue;
      const std::vector<std::size_t> made_of = path(i, kind.ratio * series_of(kind.kind));
      Vector sum(shape_.head_dim);
      for (std::uint32_t j = 0; j < shape_.head_dim; ++j) {
        Vector scores;
        for (const std::size_t at : made_of) {
          const std::int64_t series = (position_[i] - position_[at]) / ratio;
          const auto row = static_cast<std::size_t>((series * ratio) + (position_[at] % ratio));
          const double bias = layer.place_bias[(row * shape_.head_dim) + j];
          scores.push_back(gates[at][(static_cast<std::size_t>(series) * shape_.head_dim) + j] + bias);
        }
        weigh(scores);
        for (std::size_t k = 0; k < made_of.size(); ++k) {
          const std::int64_t series = (position_[i] - position_[made_of[k]]) / ratio;
          sum[j] += scores[k] * values[made_of[k]][(static_cast<std::size_t>(series) * shape_.head_dim) + j];
        }
      }
      Vector entry = normalized(sum, layer.entry_norm, shape_.norm_epsilon);
      if (shape_.keys_rotated) entry = turned(entry, position_[i] + 1 - ratio);
      if (shape_.stores_fp8) {
        const std::size_t half = shape_.head_dim / 2;
        store_block(entry, 0, half, kind.kind == LayerKind::Compressed);
        for (std::size_t j = half; j < entry.size(); ++j) entry[j] = as_bf16(entry[j]);
      }
      entries[i] = {.key = entry, .value = entry};
    }
    // A token sees an entry when it sees all of its tokens, and has it where it has the first of them.
    std::vector<Vector> heads;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::vector<Seen> tokens = seen_by(i, kind);
      std::vector<Seen> seen;
      for (std::size_t j = 0; j + kind.ratio <= tokens.size(); ++j) {
        const Seen& first = tokens[j + kind.ratio - 1];
        const bool is_whole = position_[tokens[j].token] - position_[first.token] == ratio - 1;
        if (entries[tokens[j].token].key.empty() || !is_whole) continue;
        seen.push_back({.token = tokens[j].token, .position = first.position});
      }
      heads.push_back(attend_seen(layer, inputs[i], rope_position(i, kind.kind), seen, entries, shape_.keys_rotated));
    }
    return heads;
  }

  // Without a state: each token sums over all before it, weighted by the decays in between.
  [[nodiscard]] std::vector<Vector> recur(const HybridLayerWeights& layer, const std::vector<Vector>& inputs) const {
    std::vector<Vector> keys;
    std::vector<Vector> values;
    std::vector<Vector> decays;
    for (const Vector& input : inputs) {
      keys.push_back(product(layer.key, input));
      values.push_back(product(layer.value, input));
      decays.push_back(product(layer.gate, input));
      for (double& decay : decays.back()) decay = 0.5 + (0.5 / (1.0 + std::exp(-decay)));
    }
    std::vector<Vector> mixed = keys;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (tokens_[i].previous < 0) continue;
      const Vector& before = keys[static_cast<std::size_t>(tokens_[i].previous)];
      for (std::size_t j = 0; j < before.size(); ++j) mixed[i][j] += 0.5 * before[j];
    }
    std::vector<Vector> heads;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Vector query = product(layer.query, inputs[i]);
      Vector all;
      for (std::uint32_t head = 0; head < shape_.query_heads; ++head) {
        Vector sum(shape_.head_dim, 0.0);
        double weight = 1.0;
        for (const std::size_t at : path(i, inputs.size())) {
          const double score = weight * dot(head_of(query, head), head_of(mixed[at], head)) / shape_.head_dim;
          const Vector value = head_of(values[at], head);
          for (std::uint32_t j = 0; j < shape_.head_dim; ++j) sum[j] += score * value[j];
          weight *= decays[at][head];
        }
        all.insert(all.end(), sum.begin(), sum.end());
      }
      heads.push_back(std::move(all));
    }
    return heads;
  }

  const HybridWeights& weights_;
  const HybridShape& shape_;
  std::span<const OracleToken> tokens_;
  std::vector<std::int64_t> position_;
  std::vector<Vector> hidden_;
};

}  // namespace

std::vector<std::vector<double>> oracle_logits(const HybridWeights& weights, std::span<const OracleToken> tokens) {
  return HybridOracle(weights, tokens).logits();
}

}  // namespace tiny_engine
