// SPDX-License-Identifier: Apache-2.0
//
// HybridEngine: what each kind of layer reads, computes and leaves behind.
#include <algorithm>
#include <cmath>
#include <utility>

#include "arithmetic.h"
#include "hybrid_engine.h"
#include "quire/host_kernels.h"

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

// What a step sees of the rows that it stores.
Rows rounded(const Rows& rows, const std::optional<QuantisedRows>& quantised) {
  Rows result = rows;
  if (quantised) quantised->round(result);
  return result;
}

void append_components(const PoolMemory& pool, std::uint32_t layer_index, std::span<const std::int64_t> slots,
                       const Rows& rows) {
  for (std::uint32_t component = 0; component < rows.size(); ++component) {
    quire::append_on_host({.geometry = &pool.geometry,
                           .pool = pool.bytes,
                           .layer_index = layer_index,
                           .component_index = component,
                           .source = reinterpret_cast<const std::byte*>(rows[component].data()),
                           .slots = slots});
  }
}

}  // namespace

// Memory

HybridEngine::Store HybridEngine::open_store(const Work& work) const {
  const std::uint32_t group = work.place.group_index;
  const PoolMemory pool = quire::has_slot(group_of(group)) ? memory_.state_pool(group) : *memory_.pools[group];
  return {.pool = pool, .quantised = QuantisedRows::of(pool.geometry), .held = {}, .chunks = {}};
}

// All that the chunks' queries may see: with those of this step, whose pages have yet to get them.
std::string HybridEngine::gather_last(const Work& work, Store& store) const {
  if (options_.device == nullptr) return "";
  const std::uint32_t window = group_of(work.place.group_index).window_tokens;
  const auto rows = work.plan.read(work.plan.groups[work.place.group_index].levels.back().rows);
  std::uint32_t query_count_max = 0;
  for (const Chunk& chunk : work.chunks) {
    const std::uint32_t end = chunk.position + chunk.query_count;
    store.chunks.push_back({.row = rows[chunk.index], .entry_count = static_cast<std::int32_t>(end)});
    store.entries_max = std::max(store.entries_max, end);
    query_count_max = std::max(query_count_max, chunk.query_count);
  }
  if (window > 0) store.entries_max = std::min(store.entries_max, window - 1 + query_count_max);
  return options_.device->gather_last({work.place.group_index, work.place.layer_index}, store.chunks, store.entries_max,
                                      store.held);
}

std::string HybridEngine::gather_ring(const Work& work, Store& store) const {
  store.entries_max = group_of(work.place.group_index).window_tokens - 1;
  if (options_.device == nullptr || store.entries_max == 0) return "";
  for (const Chunk& chunk : work.chunks) {
    store.chunks.push_back(
        {.row = static_cast<std::int32_t>(chunk.slot), .entry_count = static_cast<std::int32_t>(chunk.position)});
  }
  return options_.device->gather_ring({work.place.group_index, work.place.layer_index}, store.chunks, store.entries_max,
                                      store.held);
}

// All entries but those that the step makes itself.
std::string HybridEngine::gather_entries(const Work& work, Store& store) const {
  if (options_.device == nullptr) return "";
  const StagedGroup& group = work.plan.groups[work.place.group_index];
  const auto rows = work.plan.read(group.levels.back().rows);
  const auto append_slots = work.plan.read(group.append_slots);
  for (const Chunk& chunk : work.chunks) {
    const std::uint32_t end = (chunk.position + chunk.query_count) / work.kind.ratio;
    store.chunks.push_back({.row = rows[chunk.index], .entry_count = static_cast<std::int32_t>(end)});
    store.entries_max = std::max(store.entries_max, end);
  }
  if (store.entries_max == 0) return "";
  std::vector<std::int32_t> ids(work.chunks.size() * store.entries_max, -1);
  for (const Chunk& chunk : work.chunks) {
    const auto end = static_cast<std::uint32_t>(store.chunks[chunk.index].entry_count);
    for (std::uint32_t number = 0; number < end; ++number) {
      const std::uint32_t completed_by = ((number + 1) * work.kind.ratio) - 1;
      const bool is_own = completed_by >= chunk.position &&
                          append_slots[chunk.first_query + (completed_by - chunk.position)] != quire::kNoSlot;
      if (!is_own) {
        ids[(std::size_t{chunk.index} * store.entries_max) + number] = static_cast<std::int32_t>(number);
      }
    }
  }
  return options_.device->gather_selected({work.place.group_index, work.place.layer_index}, store.chunks, ids,
                                          store.held);
}

void HybridEngine::load(const Work& work, const Store& store, const EntryPlace& place, std::uint32_t part,
                        std::span<double> out) const {
  if (options_.device != nullptr) {
    const auto end = static_cast<std::uint32_t>(store.chunks[place.chunk_index].entry_count);
    const std::uint32_t first = end - std::min(end, store.entries_max);
    const std::size_t index = (std::size_t{place.chunk_index} * store.entries_max) + (place.number - first);
    std::ranges::copy(row_of(store.held[part], index, out.size()), out.begin());
  } else if (store.quantised) {
    store.quantised->load(store.pool.bytes, work.place.layer_index, place.slot, part, out);
  } else {
    load_row(store.pool, place.slot, work.place.layer_index, part, out);
  }
}

std::string HybridEngine::append(const Work& work, const Store& store, const Rows& rows) const {
  const quire::CacheGroup& group = group_of(work.place.group_index);
  const auto slots = work.plan.read(work.plan.groups[work.place.group_index].append_slots);
  const std::size_t count = work.inputs.size() / weights_.shape.width;
  if (slots.size() < count) return "fewer append slots than tokens";
  std::string problem = quire::has_slot(group) ? check_ring_slots(slots, group.slot_entries, count)
                                               : check_slots(store.pool, slots, count);
  if (!problem.empty()) return problem;
  if (options_.device != nullptr) {
    return options_.device->append(work.plan, {work.place.group_index, work.place.layer_index}, rows);
  }
  if (store.quantised) {
    store.quantised->append(store.pool.bytes, work.place.layer_index, slots, rows);
  } else {
    append_components(store.pool, work.place.layer_index, slots.first(count), rows);
  }
  return "";
}

std::string HybridEngine::read_states(const GroupLayer& layer, std::span<const std::int64_t> slots, Rows& held) const {
  if (options_.device != nullptr) return options_.device->read_states(layer, slots, held);
  const PoolMemory pool = memory_.state_pool(layer.group_index);
  const quire::PageGeometry& page = pool.geometry.page();
  held.resize(page.components().size());
  for (std::uint32_t component = 0; component < held.size(); ++component) {
    held[component].resize(slots.size() * page.group().components[component].heads *
                           page.components()[component].head_bytes / sizeof(double));
    quire::read_rows_on_host({.geometry = &pool.geometry,
                              .pool = pool.bytes,
                              .layer_index = layer.layer_index,
                              .component_index = component,
                              .target = reinterpret_cast<std::byte*>(held[component].data()),
                              .slots = slots});
  }
  return "";
}

std::string HybridEngine::append_states(const GroupLayer& layer, std::span<const std::int64_t> slots,
                                        const Rows& rows) const {
  if (options_.device != nullptr) return options_.device->append(layer, slots, rows);
  append_components(memory_.state_pool(layer.group_index), layer.layer_index, slots, rows);
  return "";
}

// Attention over K and V

Rows HybridEngine::project_keys(const Work& work) const {
  const HybridShape& shape = weights_.shape;
  const std::size_t row = std::size_t{shape.kv_heads} * shape.head_dim;
  const std::size_t count = work.inputs.size() / shape.width;
  const bool is_rotated = group_of(work.place.group_index).keys_rotated;
  Rows rows(2, std::vector<double>(count * row));
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      const auto input = row_of(work.inputs, query, shape.width);
      multiply(work.weights.key, input, row_of(rows[kKeys], query, row));
      multiply(work.weights.value, input, row_of(rows[kValues], query, row));
      for (std::uint32_t head = 0; is_rotated && head < shape.kv_heads; ++head) {
        rotate(row_of(rows[kKeys], (query * shape.kv_heads) + head, shape.head_dim),
               static_cast<std::int32_t>(chunk.position + i), shape.rope_base);
      }
    }
  }
  return rows;
}

std::string HybridEngine::run_attention(const Work& work, const KeyLists& keys) {
  const HybridShape& shape = weights_.shape;
  Store store = open_store(work);
  if (std::string problem = gather_last(work, store); !problem.empty()) return problem;
  const std::size_t size = std::size_t{shape.kv_heads} * shape.head_dim;
  const Rows rows = project_keys(work);
  const Rows seen = rounded(rows, store.quantised);
  const bool is_rotated = group_of(work.place.group_index).keys_rotated;
  std::vector<double> key(size);
  std::vector<double> value(size);
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      Attention attention(shape, work.weights.query, row_of(work.inputs, query, shape.width),
                          rope_position(work, chunk, i), row_of(work.heads, query, heads_size()));
      for (const KeyReference& reference : keys[query]) {
        if (reference.slot == quire::kNoSlot) {
          const auto own = static_cast<std::size_t>(reference.query);
          std::ranges::copy(row_of(seen[kKeys], own, size), key.begin());
          std::ranges::copy(row_of(seen[kValues], own, size), value.begin());
        } else {
          const EntryPlace place{.chunk_index = chunk.index,
                                 .number = static_cast<std::uint32_t>(reference.position),
                                 .slot = reference.slot};
          load(work, store, place, kKeys, key);
          load(work, store, place, kValues, value);
          if (options_.key_watch != nullptr) {
            const GroupLayer layer{work.place.group_index, work.place.layer_index};
            if (std::string problem = options_.key_watch->on_read(layer, query, place.number, key); !problem.empty()) {
              return problem;
            }
          }
        }
        for (std::uint32_t head = 0; !is_rotated && head < shape.kv_heads; ++head) {
          rotate(row_of(key, head, shape.head_dim), reference.position, shape.rope_base);
        }
        attention.add(key, value);
      }
      attention.finish();
    }
  }
  if (std::string problem = append(work, store, rows); !problem.empty()) return problem;
  if (options_.key_watch != nullptr) show_appended(work, store);
  return "";
}

void HybridEngine::show_appended(const Work& work, const Store& store) const {
  const auto slots = work.plan.read(work.plan.groups[work.place.group_index].append_slots);
  std::vector<double> key(std::size_t{weights_.shape.kv_heads} * weights_.shape.head_dim);
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      if (slots[query] == quire::kNoSlot) continue;
      load(work, store, {.chunk_index = chunk.index, .number = chunk.position + i, .slot = slots[query]}, kKeys, key);
      options_.key_watch->on_append({work.place.group_index, work.place.layer_index}, query, key);
    }
  }
}

std::string HybridEngine::run_ring(const Work& work) {
  const HybridShape& shape = weights_.shape;
  const quire::CacheGroup& group = group_of(work.place.group_index);
  Store store = open_store(work);
  if (std::string problem = gather_ring(work, store); !problem.empty()) return problem;
  const std::size_t size = std::size_t{shape.kv_heads} * shape.head_dim;
  const Rows rows = project_keys(work);
  const Rows seen = rounded(rows, store.quantised);
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
          attention.add(row_of(seen[kKeys], own, size), row_of(seen[kValues], own, size));
          continue;
        }
        const EntryPlace place{.chunk_index = chunk.index,
                               .number = at,
                               .slot = (std::int64_t{chunk.slot} * group.slot_entries) + quire::ring_entry(group, at)};
        load(work, store, place, kKeys, key);
        load(work, store, place, kValues, value);
        attention.add(key, value);
      }
      attention.finish();
    }
  }
  return append(work, store, rows);
}

std::string HybridEngine::check_ring_slots(std::span<const std::int64_t> slots, std::uint32_t slot_entries,
                                           std::size_t token_count) const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == quire::kNoSlot) continue;
    if (i >= token_count) return "padding has a slot";
    if (slots[i] < 0 || slots[i] / slot_entries >= memory_.states.slot_count()) return "an append slot is in no ring";
  }
  return "";
}

// Compressors

// Rows of this step's tokens are in `rows`, earlier ones were in the state slot, all of which is in `held`; before the
// first token it has its initial bytes.
void HybridEngine::load_compressor_row(const Work& work, const Chunk& chunk, const Rows& rows, const Rows& held,
                                       std::int64_t position, std::uint32_t series, std::span<double> value,
                                       std::span<double> gate) const {
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
  const std::size_t row = (std::size_t{chunk.index} * group.slot_entries) + quire::ring_entry(group, at);
  std::ranges::copy(row_of(held[kRowValues], row, size).subspan(series * dim, dim), value.begin());
  std::ranges::copy(row_of(held[kRowGates], row, size).subspan(series * dim, dim), gate.begin());
}

// The entry that the token at `position` completes. The sums are kept online, a softmax for each dimension.
void HybridEngine::compress(const Work& work, const Chunk& chunk, const Rows& rows, const Rows& held,
                            std::uint32_t position, std::span<double> entry) const {
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
      load_compressor_row(work, chunk, rows, held, at, series, value, gate);
      const auto bias = row_of(work.weights.place_bias, (std::size_t{series} * ratio) + place, dim);
      for (std::size_t i = 0; i < dim; ++i) softmax[i].add(gate[i] + bias[i], std::span(value).subspan(i, 1));
    }
  }
  for (OnlineSoftmax& sum : softmax) sum.finish();
  rms_norm(sums, work.weights.entry_norm, shape.norm_epsilon, entry);
  if (group_of(work.place.group_index).keys_rotated) rotate(entry, static_cast<std::int32_t>(begin), shape.rope_base);
}

std::string HybridEngine::run_compressor(const Work& work, const KeyLists& keys) {
  const HybridShape& shape = weights_.shape;
  const std::size_t dim = shape.head_dim;
  const std::size_t size = series_of(work.kind.kind) * dim;
  const std::uint32_t ratio = work.kind.ratio;
  const std::size_t count = work.inputs.size() / shape.width;
  const auto append_slots = work.plan.read(work.plan.groups[work.place.group_index].append_slots);
  Store store = open_store(work);
  if (std::string problem = gather_entries(work, store); !problem.empty()) return problem;
  const GroupLayer rows_layer{work.place.rows_group_index, work.place.layer_index};
  const std::uint32_t slot_entries = group_of(work.place.rows_group_index).slot_entries;
  std::vector<std::int64_t> slots;
  for (const Chunk& chunk : work.chunks) {
    for (std::int64_t i = 0; i < slot_entries; ++i) slots.push_back((std::int64_t{chunk.slot} * slot_entries) + i);
  }
  Rows held;
  if (std::string problem = read_states(rows_layer, slots, held); !problem.empty()) return problem;

  Rows rows(2, std::vector<double>(count * size));
  for (std::size_t i = 0; i < count; ++i) {
    multiply(work.weights.value, row_of(work.inputs, i, shape.width), row_of(rows[kRowValues], i, size));
    multiply(work.weights.gate, row_of(work.inputs, i, shape.width), row_of(rows[kRowGates], i, size));
  }
  Rows entries(1, std::vector<double>(count * dim));  // those that this step completes, at the token that does it
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      const bool is_complete = (chunk.position + i + 1) % ratio == 0;
      if (!is_complete && append_slots[query] != quire::kNoSlot) return "a token that completes no entry has a slot";
      // Without a slot an entry with a page is in the cache already: the rows for it may be gone.
      const bool is_held = append_slots[query] == quire::kNoSlot && keys[query].back().slot != quire::kNoSlot;
      if (!is_complete || is_held) continue;
      compress(work, chunk, rows, held, chunk.position + i, row_of(entries[kEntry], query, dim));
    }
  }
  const Rows seen = rounded(entries, store.quantised);
  const bool is_rotated = group_of(work.place.group_index).keys_rotated;
  std::vector<double> entry(dim);
  std::vector<double> turned(dim);
  for (const Chunk& chunk : work.chunks) {
    for (std::uint32_t i = 0; i < chunk.query_count; ++i) {
      const std::size_t query = chunk.first_query + i;
      Attention attention(shape, work.weights.query, row_of(work.inputs, query, shape.width),
                          rope_position(work, chunk, i), row_of(work.heads, query, heads_size()));
      const std::vector<KeyReference>& seen_tokens = keys[query];
      for (std::size_t first = 0; first + ratio <= seen_tokens.size(); ++first) {
        const KeyReference& begin = seen_tokens[first];
        const KeyReference& last = seen_tokens[first + ratio - 1];
        // Tokens of one entry follow each other in one page, or in this step if they have none.
        const bool is_in_page = begin.slot != quire::kNoSlot;
        const std::int64_t number =
            is_in_page ? begin.slot : std::int64_t{chunk.position} + begin.query - chunk.first_query;
        const std::int64_t length =
            is_in_page && last.slot != quire::kNoSlot ? last.slot - begin.slot : last.query - begin.query;
        if (number % ratio != 0 || is_in_page != (last.slot != quire::kNoSlot) || length != ratio - 1) continue;
        if (last.query >= 0 && (!is_in_page || append_slots[static_cast<std::size_t>(last.query)] != quire::kNoSlot)) {
          std::ranges::copy(row_of(seen[kEntry], static_cast<std::size_t>(last.query), dim), entry.begin());
        } else {
          const EntryPlace place{.chunk_index = chunk.index,
                                 .number = static_cast<std::uint32_t>(first / ratio),
                                 .slot = begin.slot / ratio};
          load(work, store, place, kEntry, entry);
        }
        turned = entry;
        if (!is_rotated) rotate(turned, begin.position, shape.rope_base);
        attention.add(turned, entry);
      }
      attention.finish();
    }
  }
  if (std::string problem = store_compressor_rows(work, rows); !problem.empty()) return problem;
  return append(work, store, entries);
}

std::string HybridEngine::store_compressor_rows(const Work& work, const Rows& rows) const {
  const quire::CacheGroup& group = group_of(work.place.rows_group_index);
  // A token's row, or none where a later one would overwrite it.
  std::vector<std::int64_t> slots(work.inputs.size() / weights_.shape.width, quire::kNoSlot);
  for (const Chunk& chunk : work.chunks) {
    const std::uint32_t skipped = chunk.query_count > group.slot_entries ? chunk.query_count - group.slot_entries : 0;
    for (std::uint32_t i = skipped; i < chunk.query_count; ++i) {
      slots[chunk.first_query + i] =
          (std::int64_t{chunk.slot} * group.slot_entries) + quire::ring_entry(group, chunk.position + i);
    }
  }
  return append_states({work.place.rows_group_index, work.place.layer_index}, slots, rows);
}

// Recurrent states

std::string HybridEngine::run_recurrence(const Work& work) {
  const HybridShape& shape = weights_.shape;
  const std::size_t dim = shape.head_dim;
  const GroupLayer layer{work.place.group_index, work.place.layer_index};
  const std::int64_t version_count = group_of(work.place.group_index).slot_history + 1;
  const auto slot_of = [version_count](const Chunk& chunk, std::int64_t token_count) {
    return (chunk.slot * version_count) + (token_count % version_count);
  };
  std::vector<std::int64_t> slots;
  for (const Chunk& chunk : work.chunks) slots.push_back(slot_of(chunk, chunk.position));
  Rows held;
  if (std::string problem = read_states(layer, slots, held); !problem.empty()) return problem;
  slots.clear();
  Rows left(2);  // at these slots
  std::vector<double> query(heads_size());
  std::vector<double> key(heads_size());
  std::vector<double> value(heads_size());
  std::vector<double> decay(shape.query_heads);
  for (const Chunk& chunk : work.chunks) {
    const auto state = row_of(held[kState], chunk.index, heads_size() * dim);  // [head][key][value]
    const auto last_key = row_of(held[kLastKey], chunk.index, heads_size());
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
      slots.push_back(slot_of(chunk, std::int64_t{chunk.position} + i + 1));
      left[kState].insert(left[kState].end(), state.begin(), state.end());
      left[kLastKey].insert(left[kLastKey].end(), last_key.begin(), last_key.end());
    }
  }
  return append_states(layer, slots, left);
}

}  // namespace tiny_engine
