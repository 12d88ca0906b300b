// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "arithmetic.h"
#include "quire/host_kernels.h"

namespace tiny_engine {
namespace {

constexpr std::uint32_t kKeys = 0;  // Gqa's components
constexpr std::uint32_t kValues = 1;
constexpr std::uint32_t kLatent = 0;  // Mla's only one: latent row, then the key that all heads share

/// What each of the step's queries sees, in layers with this window if there is one.
std::string list_keys(const KeyFinder& finder, const StagedLayerWindow* layer_window, std::size_t query_count,
                      std::vector<std::vector<KeyReference>>& keys) {
  keys.resize(query_count);
  for (std::size_t i = 0; i < query_count; ++i) {
    const auto query = static_cast<std::int32_t>(i);
    std::string problem =
        layer_window != nullptr ? finder.find(query, *layer_window, keys[i]) : finder.find(query, keys[i]);
    if (!problem.empty()) return problem;
    for (const KeyReference& key : keys[i]) {
      if (key.slot == quire::kNoSlot && static_cast<std::size_t>(key.query) >= query_count) {
        return "a key is of no query";
      }
    }
  }
  return "";
}

/// The plan's lists for a window of layers, if it has some.
const StagedLayerWindow* find_layer_window(const DevicePlan& plan, std::uint32_t window_tokens) {
  const std::vector<StagedLayerWindow>& windows = plan.groups.front().layer_windows;
  const auto found = std::ranges::find(windows, window_tokens, &StagedLayerWindow::window_tokens);
  return found == windows.end() ? nullptr : &*found;
}

}  // namespace

quire::CacheGroup cache_group(const ModelShape& shape, bool keys_rotated) {
  const auto doubles = [](std::uint32_t count) { return count * static_cast<std::uint32_t>(sizeof(double)); };
  quire::CacheGroup group{
      .name = "full", .layers = quire::layer_range(0, shape.layer_count), .keys_rotated = keys_rotated};
  if (shape.attention == AttentionKind::Mla) {
    group.components = {{.name = "latent",
                         .element = quire::ElementType::Bytes,
                         .sharding = quire::Sharding::Replicated,
                         .dim = doubles(shape.latent_dim + shape.rope_dim)}};
    return group;
  }
  for (const char* name : {"k", "v"}) {
    group.components.push_back(
        {.name = name, .element = quire::ElementType::Bytes, .heads = shape.kv_heads, .dim = doubles(shape.head_dim)});
  }
  return group;
}

Engine::Engine(const Weights& weights, PoolMemory pool, const EngineOptions& options)
    : weights_(weights),
      attention_(attention_shape(weights.shape, options.keys_rotated)),
      pool_(std::move(pool)),
      options_(options),
      table_(options.sequence_count_max, options.row_columns),
      states_(options.sequence_count_max, 0) {}

void Engine::set_receiver(std::int32_t receiver, PoolMemory pool) {
  std::erase_if(receivers_, [receiver](const Receiver& other) { return other.number == receiver; });
  receivers_.push_back({.number = receiver, .pool = std::move(pool)});
}

const Engine::Receiver* Engine::find_receiver(std::int32_t number) const {
  for (const Receiver& receiver : receivers_) {
    if (receiver.number == number) return &receiver;
  }
  return nullptr;
}

std::string Engine::prepare(const DevicePlan& plan) {
  if (plan.groups.size() != 1) return "this engine's model has one cache group";
  if (options_.device != nullptr) {
    std::string problem = options_.device->prepare(plan);
    return problem.empty() ? send_stored(plan) : problem;
  }
  const StagedGroup& group = plan.groups.front();
  if (std::string problem = apply_deltas(table_, plan.read(group.deltas)); !problem.empty()) return problem;
  if (options_.applies_copies) {
    std::string problem = apply_moves(pool_, plan.read(group.moves), plan.read(group.move_indptr));
    if (problem.empty()) problem = apply_copies(pool_, plan.read(group.copies));
    if (!problem.empty()) return problem;
  }
  return send_stored(plan);
}

std::string Engine::send_stored(const DevicePlan& plan) {
  const quire::PageGeometry& page = pool_.geometry.page();
  const std::uint32_t page_tokens = page.options().page_tokens;
  for (const quire::SendRun& run : plan.read(plan.groups.front().sends)) {
    const Receiver* receiver = find_receiver(run.receiver);
    if (receiver == nullptr) return "a send has no such receiver";
    if (options_.device != nullptr) {
      std::vector<std::int64_t> local_slots(static_cast<std::size_t>(std::max(run.token_count, 0)));
      std::vector<std::int64_t> remote_slots(local_slots.size());
      std::iota(local_slots.begin(), local_slots.end(), run.local_slot);
      std::iota(remote_slots.begin(), remote_slots.end(), run.remote_slot);
      const std::string problem = options_.device->send(receiver->pool, local_slots, remote_slots);
      if (!problem.empty()) return problem;
      continue;
    }
    for (std::int32_t i = 0; i < run.token_count; ++i) {
      const std::int64_t source = run.local_slot + i;
      const std::int64_t target = run.remote_slot + i;
      if (!has_slot(pool_, source) || !may_write(receiver->pool, target)) return "a send leaves the pool";
      const std::uint32_t target_page_tokens = receiver->pool.geometry.page().options().page_tokens;
      for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
        for (std::uint32_t component = 0; component < page.components().size(); ++component) {
          for (std::uint32_t head = 0; head < page.group().components[component].heads; ++head) {
            const auto row_at = [&](std::int64_t slot, std::uint32_t tokens) {
              return quire::RowLocation{.page = {static_cast<std::uint32_t>(slot / tokens)},
                                        .layer_index = layer,
                                        .component_index = component,
                                        .token_index = static_cast<std::uint32_t>(slot % tokens),
                                        .head_index = head};
            };
            std::memcpy(receiver->pool.bytes + receiver->pool.geometry.offset_of(row_at(target, target_page_tokens)),
                        pool_.bytes + pool_.geometry.offset_of(row_at(source, page_tokens)),
                        page.components()[component].head_bytes);
          }
        }
      }
    }
  }
  return "";
}

std::string Engine::send_new(const DevicePlan& plan, std::uint32_t layer_index, const Rows& rows) {
  const auto remote_slots = plan.read(plan.groups.front().remote_slots);
  const auto receivers = plan.read(plan.groups.front().receivers);
  if (remote_slots.size() != receivers.size()) return "remote_slots and receivers differ in length";
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    if ((receivers[i] < 0) != (remote_slots[i] == quire::kNoSlot)) return "a token is sent nowhere";
    if (receivers[i] >= 0 && find_receiver(receivers[i]) == nullptr) return "a token has no such receiver";
  }
  std::vector<std::int64_t> slots;
  for (const Receiver& receiver : receivers_) {
    slots.assign(remote_slots.begin(), remote_slots.end());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (receivers[i] != receiver.number) slots[i] = quire::kNoSlot;
    }
    if (slots.empty()) continue;
    const std::string problem = options_.device != nullptr
                                    ? options_.device->append_to(receiver.pool, layer_index, slots)
                                    : append_rows(receiver.pool, slots, layer_index, rows);
    if (!problem.empty()) return problem;
  }
  return "";
}

Rows Engine::project(const LayerWeights& layer, std::span<const double> inputs,
                     std::span<const std::int32_t> positions) const {
  const ModelShape& shape = weights_.shape;
  const std::size_t count = inputs.size() / shape.width;
  if (shape.attention == AttentionKind::Mla) {
    const std::size_t row = shape.latent_dim + shape.rope_dim;
    Rows rows(1, std::vector<double>(count * row));
    for (std::size_t i = 0; i < count; ++i) {
      const auto input = row_of(inputs, i, shape.width);
      const auto stored = row_of(rows[kLatent], i, row);
      multiply(layer.latent, input, stored.first(shape.latent_dim));
      multiply(layer.rope_key, input, stored.subspan(shape.latent_dim));
      if (options_.keys_rotated) rotate(stored.subspan(shape.latent_dim), positions[i], shape.rope_base);
    }
    return rows;
  }
  const std::size_t row = std::size_t{shape.kv_heads} * shape.head_dim;
  Rows rows(2, std::vector<double>(count * row));
  for (std::size_t i = 0; i < count; ++i) {
    const auto input = row_of(inputs, i, shape.width);
    multiply(layer.key, input, row_of(rows[kKeys], i, row));
    multiply(layer.value, input, row_of(rows[kValues], i, row));
    for (std::uint32_t head = 0; options_.keys_rotated && head < shape.kv_heads; ++head) {
      rotate(row_of(rows[kKeys], (i * shape.kv_heads) + head, shape.head_dim), positions[i], shape.rope_base);
    }
  }
  return rows;
}

void Engine::load(const KeyReference& key, std::uint32_t layer_index, std::uint32_t component, const Rows& rows,
                  std::span<double> out) const {
  if (key.slot == quire::kNoSlot) {
    const auto row = row_of(rows[component], static_cast<std::size_t>(key.query), out.size());
    std::copy(row.begin(), row.end(), out.begin());
    return;
  }
  load_row(pool_, key.slot, layer_index, component, out);
}

// Of Mla, absorbed: queries and outputs are projected instead of every key, so attention runs on latent rows.
void Engine::project_query(const LayerWeights& layer, std::span<const double> input, std::int32_t position,
                           std::span<double> query) const {
  const ModelShape& shape = weights_.shape;
  const std::size_t dim = shape.head_dim;
  if (shape.attention == AttentionKind::Gqa) {
    multiply(layer.query, input, query);
    for (std::uint32_t head = 0; head < shape.query_heads; ++head) {
      rotate(row_of(query, head, dim), position, shape.rope_base);
    }
    return;
  }
  const std::size_t query_dim = dim + shape.rope_dim;
  std::vector<double> plain(shape.query_heads * query_dim);
  multiply(layer.query, input, plain);
  std::fill(query.begin(), query.end(), 0.0);
  for (std::uint32_t head = 0; head < shape.query_heads; ++head) {
    const auto own = row_of(query, head, attention_.key_dim);
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::uint32_t j = 0; j < shape.latent_dim; ++j) {
        own[j] += plain[(head * query_dim) + i] * layer.key_up.values[(((head * dim) + i) * shape.latent_dim) + j];
      }
    }
    const auto turned = own.subspan(shape.latent_dim);
    std::copy_n(&plain[(head * query_dim) + dim], shape.rope_dim, turned.begin());
    rotate(turned, position, shape.rope_base);
  }
}

void Engine::attend_one(std::uint32_t layer_index, std::span<const double> query, std::span<const KeyReference> keys,
                        const Rows& rows, std::span<double> mixed) const {
  std::vector<OnlineSoftmax> sums;
  sums.reserve(attention_.query_heads);
  for (std::uint32_t head = 0; head < attention_.query_heads; ++head) {
    sums.emplace_back(row_of(mixed, head, attention_.value_dim));
  }
  const bool has_values = attention_.value_component != 0;  // else they are the first numbers of keys
  std::vector<double> key(attention_.kv_heads * std::size_t{attention_.key_dim});
  std::vector<double> value(has_values ? attention_.kv_heads * std::size_t{attention_.value_dim} : 0);
  for (const KeyReference& reference : keys) {
    load(reference, layer_index, 0, rows, key);
    if (has_values) load(reference, layer_index, attention_.value_component, rows, value);
    for (std::uint32_t head = 0; attention_.turns_keys && head < attention_.kv_heads; ++head) {
      rotate(row_of(key, head, attention_.key_dim).subspan(attention_.rope_begin, attention_.rope_dim),
             reference.position, weights_.shape.rope_base);
    }
    for (std::uint32_t head = 0; head < attention_.query_heads; ++head) {
      const std::uint32_t kv_head = head / (attention_.query_heads / attention_.kv_heads);
      const auto key_row = row_of(key, kv_head, attention_.key_dim);
      const double score = dot(row_of(query, head, attention_.key_dim), key_row) / attention_.divisor;
      sums[head].add(score,
                     has_values ? row_of(value, kv_head, attention_.value_dim) : key_row.first(attention_.value_dim));
    }
  }
  for (OnlineSoftmax& sum : sums) sum.finish();
}

void Engine::project_heads(const LayerWeights& layer, std::span<const double> mixed, std::span<double> heads) const {
  const ModelShape& shape = weights_.shape;
  if (shape.attention == AttentionKind::Gqa) {
    std::copy(mixed.begin(), mixed.end(), heads.begin());
    return;
  }
  for (std::size_t row = 0; row < heads.size(); ++row) {
    heads[row] = dot(row_of(layer.value_up.values, row, shape.latent_dim),
                     row_of(mixed, row / shape.head_dim, shape.latent_dim));
  }
}

std::string Engine::find_keys(const DevicePlan& plan, std::size_t query_count, KeyLists& all_keys,
                              KeyLists& near_keys) const {
  const KeyFinder finder(plan, table_,
                         {.page_tokens = pool_.geometry.page().options().page_tokens,
                          .page_count = pool_.geometry.page_count(),
                          .new_keys = options_.appends_first ? NewKeys::Appended : NewKeys::FromStep});
  std::string problem = list_keys(finder, nullptr, query_count, all_keys);
  const std::uint32_t window_tokens = weights_.shape.layer_window;
  if (!problem.empty() || window_tokens == 0) return problem;
  return list_keys(finder, find_layer_window(plan, window_tokens), query_count, near_keys);
}

std::string Engine::attend(const DevicePlan& plan, std::uint32_t layer_index, std::span<const double> queries,
                           const KeyLists& keys, const Rows& rows, std::span<double> mixed) {
  if (options_.device != nullptr) return attend_on_device(plan, layer_index, queries, rows, mixed);
  if (std::string problem = send_new(plan, layer_index, rows); !problem.empty()) return problem;
  const auto append_slots = plan.read(plan.groups.front().append_slots);
  if (options_.appends_first) {
    if (std::string problem = append_rows(pool_, append_slots, layer_index, rows); !problem.empty()) return problem;
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    attend_one(layer_index, row_of(queries, i, attention_.query_heads * std::size_t{attention_.key_dim}), keys[i], rows,
               row_of(mixed, i, attention_.query_heads * std::size_t{attention_.value_dim}));
  }
  return options_.appends_first ? "" : append_rows(pool_, append_slots, layer_index, rows);
}

std::string Engine::attend_on_device(const DevicePlan& plan, std::uint32_t layer_index, std::span<const double> queries,
                                     const Rows& rows, std::span<double> mixed) {
  DeviceStep& device = *options_.device;
  const std::uint32_t window_tokens = layer_window_of(weights_.shape, layer_index);
  std::string problem = device.load(queries, rows);
  if (problem.empty()) problem = send_new(plan, layer_index, rows);
  if (problem.empty() && options_.appends_first) problem = device.append(plan, layer_index);
  if (problem.empty()) {
    problem = device.attend(plan, {.layer_index = layer_index,
                                   .layer_window = window_tokens > 0 ? find_layer_window(plan, window_tokens) : nullptr,
                                   .reads_appended = options_.appends_first});
  }
  if (problem.empty() && !options_.appends_first) problem = device.append(plan, layer_index);
  return problem.empty() ? device.finish_layer(mixed) : problem;
}

std::string Engine::forward(const DevicePlan& plan, std::span<const quire::TokenId> tokens, std::vector<double>& logits,
                            const LayerWait& wait) {
  const ModelShape& shape = weights_.shape;
  const std::size_t count = tokens.size();
  const auto positions = plan.read(plan.query_positions);
  if (positions.size() < count || plan.groups.front().append_slots.count < count)
    return "the plan has fewer queries than tokens";
  if (shape.layer_window > 0 && find_layer_window(plan, shape.layer_window) == nullptr) {
    return "the plan has no lists for the window of the model's layers";
  }
  KeyLists all_keys;
  KeyLists near_keys;  // in layers with a window
  if (options_.device == nullptr) {
    if (std::string problem = find_keys(plan, count, all_keys, near_keys); !problem.empty()) return problem;
  }

  std::vector<double> hidden(count * shape.width);
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = row_of(weights_.embedding.values, static_cast<std::size_t>(tokens[i]), shape.width);
    std::copy(row.begin(), row.end(), row_of(hidden, i, shape.width).begin());
  }
  const std::size_t query_row = attention_.query_heads * std::size_t{attention_.key_dim};
  const std::size_t mixed_row = attention_.query_heads * std::size_t{attention_.value_dim};
  std::vector<double> inputs(hidden.size());
  std::vector<double> queries(count * query_row);
  std::vector<double> mixed(count * mixed_row);
  std::vector<double> heads(shape.query_heads * std::size_t{shape.head_dim});
  std::vector<double> added(shape.width);
  std::vector<double> gate(shape.mlp_width);
  std::vector<double> up(shape.mlp_width);
  for (std::uint32_t layer_index = 0; layer_index < shape.layer_count; ++layer_index) {
    const LayerWeights& layer = weights_.layers[layer_index];
    const KeyLists& keys = layer_window_of(shape, layer_index) > 0 ? near_keys : all_keys;
    for (std::size_t i = 0; i < count; ++i) {
      const auto input = row_of(inputs, i, shape.width);
      rms_norm(row_of(hidden, i, shape.width), layer.attention_norm, shape.norm_epsilon, input);
      project_query(layer, input, positions[i], row_of(queries, i, query_row));
    }
    const Rows rows = project(layer, inputs, positions);
    if (std::string problem = wait ? wait(layer_index) : ""; !problem.empty()) return problem;
    if (std::string problem = attend(plan, layer_index, queries, keys, rows, mixed); !problem.empty()) return problem;
    for (std::size_t i = 0; i < count; ++i) {
      const auto own = row_of(hidden, i, shape.width);
      const auto input = row_of(inputs, i, shape.width);
      project_heads(layer, row_of(mixed, i, mixed_row), heads);
      multiply(layer.output, heads, added);
      for (std::uint32_t j = 0; j < shape.width; ++j) own[j] += added[j];
      rms_norm(own, layer.mlp_norm, shape.norm_epsilon, input);
      multiply(layer.gate, input, gate);
      multiply(layer.up, input, up);
      for (std::uint32_t j = 0; j < shape.mlp_width; ++j) gate[j] *= up[j] / (1.0 + std::exp(-gate[j]));
      multiply(layer.down, gate, added);
      for (std::uint32_t j = 0; j < shape.width; ++j) own[j] += added[j];
    }
  }
  logits.resize(count * shape.vocabulary);
  for (std::size_t i = 0; i < count; ++i) {
    const auto input = row_of(inputs, i, shape.width);
    rms_norm(row_of(hidden, i, shape.width), weights_.final_norm, shape.norm_epsilon, input);
    multiply(weights_.head, input, row_of(logits, i, shape.vocabulary));
  }
  return "";
}

std::string Engine::fold_states(const DevicePlan& plan, std::span<const std::uint64_t> values,
                                std::vector<std::uint64_t>& before) {
  const auto slots = plan.read(plan.state_slots);
  before.assign(values.size(), 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i >= slots.size() || slots[i] < 0 || static_cast<std::size_t>(slots[i]) >= states_.size()) {
      return "an entry has no such state slot";
    }
    std::uint64_t& state = states_[static_cast<std::size_t>(slots[i])];
    before[i] = state;
    if (values[i] != 0) state = scramble(state ^ values[i]);
  }
  return "";
}

}  // namespace tiny_engine
