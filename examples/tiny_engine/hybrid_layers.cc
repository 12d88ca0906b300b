// SPDX-License-Identifier: Apache-2.0
//
// HybridEngine: what each kind of layer reads, computes and leaves behind.
#include <algorithm>
#include <cmath>
#include <utility>

#include "arithmetic.h"
#include "hybrid_engine.h"

namespace tiny_engine {
namespace {

constexpr std::uint32_t kKeys = 0;  // components of groups with K and V
constexpr std::uint32_t kValues = 1;
constexpr std::uint32_t kEntry = 0;      // of compressed ones
constexpr std::uint32_t kRowValues = 0;  // of compressors' rows
constexpr std::uint32_t kRowGates = 1;
constexpr std::uint32_t kState = 0;  // of recurrent states
constexpr std::uint32_t kLastKey = 1;

/// Attention of one query, all heads, over keys that arrive one by one.
class Attention {
 public:
  Attention(const HybridShape& shape, const Matrix& projection, std::span<const double> input, std::uint32_t position,
            std::span<double> heads)
      : shape_(shape), query_(std::size_t{shape.query_heads} * shape.head_dim) {
    multiply(projection, input, query_);
    for (std::uint32_t head = 0; head < shape.query_heads; ++head) {
      rotate(row_of(query_, head, shape.head_dim), static_cast<std::int32_t>(position), shape.rope_base);
      sums_.emplace_back(heads.subspan(std::size_t{head} * shape.head_dim, shape.head_dim));
    }
  }

  /// K and V of as many heads as there are.
  void add(std::span<const double> keys, std::span<const double> values) {
    const std::size_t dim = shape_.head_dim;
    const std::size_t kv_heads = keys.size() / dim;
    for (std::size_t head = 0; head < shape_.query_heads; ++head) {
      const std::size_t kv_head = head / (shape_.query_heads / kv_heads);
      const double score =
          dot(row_of(query_, head, dim), row_of(keys, kv_head, dim)) / std::sqrt(static_cast<double>(dim));
      sums_[head].add(score, row_of(values, kv_head, dim));
    }
    has_keys_ = true;
  }
  /// A query without keys gives zeros.
  void finish() {
    for (OnlineSoftmax& sum : sums_) {
      if (has_keys_) sum.finish();
    }
  }

 private:
  const HybridShape& shape_;
  std::vector<double> query_;
  std::vector<OnlineSoftmax> sums_;
  bool has_keys_ = false;
};

}  // namespace

// Attention over K and V

Rows HybridEngine::project_keys(const Work& work) const {
  const HybridShape& shape = weights_.shape;
  const std::size_t row = std::size_t{shape.kv_heads} * shape.head_dim;
  const std::size_t count = work.inputs.size() / shape.width;
  Rows rows(2, std::vector<double>(count * row));
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      const auto input = row_of(work.inputs, query, shape.width);
      multiply(work.weights.key, input, row_of(rows[kKeys], query, row));
      multiply(work.weights.value, input, row_of(rows[kValues], query, row));
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
        rotate(row_of(rows[kKeys], (query * shape.kv_heads) + head, shape.head_dim),
               static_cast<std::int32_t>(chunk.position + i), shape.rope_base);
      }
    }
  }
  return rows;
}

std::string HybridEngine::run_attention(const Work& work, const KeyLists& keys) {
  const HybridShape& shape = weights_.shape;
  const PoolMemory& pool = *memory_.pools[work.place.group_index];
  const std::size_t size = std::size_t{shape.kv_heads} * shape.head_dim;
  const Rows rows = project_keys(work);
  std::vector<double> key(size);
  std::vector<double> value(size);
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      Attention attention(shape, work.weights.query, row_of(work.inputs, query, shape.width), chunk.position + i,
                          row_of(work.heads, query, heads_size()));
      for (const KeyReference& reference : keys[query]) {
        if (reference.slot == quire::kNoSlot) {
          const auto own = static_cast<std::size_t>(reference.query);
          attention.add(row_of(rows[kKeys], own, size), row_of(rows[kValues], own, size));
          continue;
        }
        load_row(pool, reference.slot, work.place.layer_index, kKeys, key);
        load_row(pool, reference.slot, work.place.layer_index, kValues, value);
        attention.add(key, value);
      }
      attention.finish();
    }
  }
  return append_rows(pool, work.plan.read(work.plan.groups[work.place.group_index].append_slots),
                     work.place.layer_index, rows);
}

std::string HybridEngine::run_ring(const Work& work) {
  const HybridShape& shape = weights_.shape;
  const quire::CacheGroup& group = group_of(work.place.group_index);
  const std::size_t size = std::size_t{shape.kv_heads} * shape.head_dim;
  const Rows rows = project_keys(work);
  std::vector<double> key(size);
  std::vector<double> value(size);
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      const std::uint32_t position = chunk.position + i;
      Attention attention(shape, work.weights.query, row_of(work.inputs, query, shape.width), position,
                          row_of(work.heads, query, heads_size()));
      const std::uint32_t first = position + 1 > group.window_tokens ? position + 1 - group.window_tokens : 0;
      for (std::uint32_t at = first; at <= position; ++at) {
        if (at >= chunk.position) {
          const std::size_t own = chunk.first_query + (at - chunk.position);
          attention.add(row_of(rows[kKeys], own, size), row_of(rows[kValues], own, size));
          continue;
        }
        const StateEntry entry{.group_index = work.place.group_index,
                               .slot = chunk.slot,
                               .layer_index = work.place.layer_index,
                               .entry_index = quire::ring_entry(group, at)};
        memory_.states.load(entry, kKeys, key);
        memory_.states.load(entry, kValues, value);
        attention.add(key, value);
      }
      attention.finish();
    }
  }
  return store_ring(work, rows);
}

std::string HybridEngine::store_ring(const Work& work, const Rows& rows) {
  const std::uint32_t slot_entries = group_of(work.place.group_index).slot_entries;
  const std::size_t size = std::size_t{weights_.shape.kv_heads} * weights_.shape.head_dim;
  const auto slots = work.plan.read(work.plan.groups[work.place.group_index].append_slots);
  const std::size_t count = work.inputs.size() / weights_.shape.width;
  if (slots.size() < count) return "fewer append slots than tokens";
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == quire::kNoSlot) continue;
    if (i >= count) return "padding has a slot";
    if (slots[i] < 0 || slots[i] / slot_entries >= memory_.states.slot_count()) return "an append slot is in no ring";
    const StateEntry entry{.group_index = work.place.group_index,
                           .slot = static_cast<std::uint32_t>(slots[i] / slot_entries),
                           .layer_index = work.place.layer_index,
                           .entry_index = static_cast<std::uint32_t>(slots[i] % slot_entries)};
    memory_.states.store(entry, kKeys, row_of(rows[kKeys], i, size));
    memory_.states.store(entry, kValues, row_of(rows[kValues], i, size));
  }
  return "";
}

// Compressors

// Rows of this step's tokens are in `rows`, earlier ones in the state slot; before the first token it has its initial
// bytes.
void HybridEngine::load_compressor_row(const Work& work, const Chunk& chunk, const Rows& rows, std::int64_t position,
                                       std::uint32_t series, std::span<double> value, std::span<double> gate) const {
  const std::size_t dim = weights_.shape.head_dim;
  const std::size_t size = series_of(work.kind.kind) * dim;
  if (position >= chunk.position) {
    const std::size_t query = chunk.first_query + (static_cast<std::size_t>(position) - chunk.position);
    std::ranges::copy(row_of(rows[kRowValues], query, size).subspan(series * dim, dim), value.begin());
    std::ranges::copy(row_of(rows[kRowGates], query, size).subspan(series * dim, dim), gate.begin());
    return;
  }
  const quire::CacheGroup& group = group_of(work.place.rows_group_index);
  const auto at = static_cast<std::uint32_t>(position < 0 ? position + group.slot_entries : position);
  const StateEntry entry{.group_index = work.place.rows_group_index,
                         .slot = chunk.slot,
                         .layer_index = work.place.layer_index,
                         .entry_index = quire::ring_entry(group, at)};
  std::vector<double> all(size);
  memory_.states.load(entry, kRowValues, all);
  std::ranges::copy(std::span(all).subspan(series * dim, dim), value.begin());
  memory_.states.load(entry, kRowGates, all);
  std::ranges::copy(std::span(all).subspan(series * dim, dim), gate.begin());
}

// The entry that the token at `position` completes. The sums are kept online, a softmax for each dimension.
void HybridEngine::compress(const Work& work, const Chunk& chunk, const Rows& rows, std::uint32_t position,
                            std::span<double> entry) const {
  const HybridShape& shape = weights_.shape;
  const std::size_t dim = shape.head_dim;
  const std::uint32_t ratio = work.kind.ratio;
  const std::uint32_t series_count = series_of(work.kind.kind);
  const std::uint32_t begin = position + 1 - ratio;
  std::vector<double> sums(dim);
  std::vector<OnlineSoftmax> softmax;
  for (std::size_t i = 0; i < dim; ++i) softmax.emplace_back(std::span(sums).subspan(i, 1));
  std::vector<double> value(dim);
  std::vector<double> gate(dim);
  for (std::uint32_t series = series_count; series-- > 0;) {  // the tokens before come first
    for (std::uint32_t place = 0; place < ratio; ++place) {
      const std::int64_t at = std::int64_t{begin} + place - (std::int64_t{series} * ratio);
      load_compressor_row(work, chunk, rows, at, series, value, gate);
      const auto bias = row_of(work.weights.place_bias, (std::size_t{series} * ratio) + place, dim);
      for (std::size_t i = 0; i < dim; ++i) softmax[i].add(gate[i] + bias[i], std::span(value).subspan(i, 1));
    }
  }
  for (OnlineSoftmax& sum : softmax) sum.finish();
  rms_norm(sums, work.weights.entry_norm, shape.norm_epsilon, entry);
  rotate(entry, static_cast<std::int32_t>(begin), shape.rope_base);
}

std::string HybridEngine::run_compressor(const Work& work, const KeyLists& keys) {
  const HybridShape& shape = weights_.shape;
  const PoolMemory& pool = *memory_.pools[work.place.group_index];
  const std::size_t dim = shape.head_dim;
  const std::size_t size = series_of(work.kind.kind) * dim;
  const std::uint32_t ratio = work.kind.ratio;
  const std::size_t count = work.inputs.size() / shape.width;
  const auto append_slots = work.plan.read(work.plan.groups[work.place.group_index].append_slots);
  Rows rows(2, std::vector<double>(count * size));
  for (std::size_t i = 0; i < count; ++i) {
    multiply(work.weights.value, row_of(work.inputs, i, shape.width), row_of(rows[kRowValues], i, size));
    multiply(work.weights.gate, row_of(work.inputs, i, shape.width), row_of(rows[kRowGates], i, size));
  }
  Rows entries(1, std::vector<double>(count * dim));  // those that this step completes, at the token that does it
  std::vector<double> entry(dim);
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      const std::uint32_t position = chunk.position + i;
      const bool is_last = (position + 1) % ratio == 0;
      if (!is_last && append_slots[query] != quire::kNoSlot) return "a token that completes no entry has a slot";
      // Without a slot the entry is in the cache already: the rows for it may be gone.
      if (append_slots[query] != quire::kNoSlot) {
        compress(work, chunk, rows, position, row_of(entries[kEntry], query, dim));
      }
      Attention attention(shape, work.weights.query, row_of(work.inputs, query, shape.width), position,
                          row_of(work.heads, query, heads_size()));
      for (std::uint32_t end = ratio; end <= position + 1; end += ratio) {
        const std::uint32_t completed_by = end - 1;
        if (completed_by >= chunk.position) {
          const std::size_t own = chunk.first_query + (completed_by - chunk.position);
          if (append_slots[own] != quire::kNoSlot) {
            attention.add(row_of(entries[kEntry], own, dim), row_of(entries[kEntry], own, dim));
            continue;
          }
        }
        if (completed_by >= keys[query].size()) return "an entry lies behind the listed pages";
        const std::int64_t token = keys[query][completed_by].slot;
        const std::int64_t slot = ((token / options_.page_tokens) * (options_.page_tokens / ratio)) +
                                  ((token % options_.page_tokens) / ratio);
        load_row(pool, slot, work.place.layer_index, kEntry, entry);
        attention.add(entry, entry);
      }
      attention.finish();
    }
  }
  store_compressor_rows(work, rows);
  return append_rows(pool, append_slots, work.place.layer_index, entries);
}

void HybridEngine::store_compressor_rows(const Work& work, const Rows& rows) {
  const quire::CacheGroup& group = group_of(work.place.rows_group_index);
  const std::size_t size = std::size_t{series_of(work.kind.kind)} * weights_.shape.head_dim;
  for (const Chunk& chunk : work.chunks) {
    const std::uint32_t skipped = chunk.query_count > group.slot_entries ? chunk.query_count - group.slot_entries : 0;
    for (std::uint32_t i = skipped; i < chunk.query_count; ++i) {
      const StateEntry entry{.group_index = work.place.rows_group_index,
                             .slot = chunk.slot,
                             .layer_index = work.place.layer_index,
                             .entry_index = quire::ring_entry(group, chunk.position + i)};
      memory_.states.store(entry, kRowValues, row_of(rows[kRowValues], chunk.first_query + i, size));
      memory_.states.store(entry, kRowGates, row_of(rows[kRowGates], chunk.first_query + i, size));
    }
  }
}

// Recurrent states

void HybridEngine::run_recurrence(const Work& work) {
  const HybridShape& shape = weights_.shape;
  const std::size_t dim = shape.head_dim;
  const std::uint32_t version_count = group_of(work.place.group_index).slot_history + 1;
  std::vector<double> state(heads_size() * dim);  // [head][key][value]
  std::vector<double> last_key(heads_size());
  std::vector<double> query(heads_size());
  std::vector<double> key(heads_size());
  std::vector<double> value(heads_size());
  std::vector<double> decay(shape.query_heads);
  for (const Chunk& chunk : work.chunks) {
    StateEntry entry{.group_index = work.place.group_index,
                     .slot = chunk.slot,
                     .version_index = chunk.position % version_count,
                     .layer_index = work.place.layer_index};
    memory_.states.load(entry, kState, state);
    memory_.states.load(entry, kLastKey, last_key);
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const auto input = row_of(work.inputs, chunk.first_query + i, shape.width);
      multiply(work.weights.query, input, query);
      multiply(work.weights.key, input, key);
      multiply(work.weights.value, input, value);
      multiply(work.weights.gate, input, decay);
      const auto heads = row_of(work.heads, chunk.first_query + i, heads_size());
      std::ranges::fill(heads, 0.0);
      for (std::size_t head = 0; head < shape.query_heads; ++head) {
        const double factor = 0.5 + (0.5 / (1.0 + std::exp(-decay[head])));
        for (std::size_t row = 0; row < dim; ++row) {
          const std::size_t at = (head * dim) + row;
          const double mixed = key[at] + (0.5 * last_key[at]);
          for (std::size_t column = 0; column < dim; ++column) {
            double& cell = state[(at * dim) + column];
            cell = (factor * cell) + (mixed * value[(head * dim) + column]);
            heads[(head * dim) + column] += query[at] * cell / static_cast<double>(dim);
          }
        }
      }
      std::ranges::copy(key, last_key.begin());
      // Those before would be overwritten by these.
      if (chunk.query_count - i > version_count) continue;
      entry.version_index = (chunk.position + i + 1) % version_count;
      memory_.states.store(entry, kState, state);
      memory_.states.store(entry, kLastKey, last_key);
    }
  }
}

}  // namespace tiny_engine
