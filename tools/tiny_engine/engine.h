// SPDX-License-Identifier: Apache-2.0
//
// Engine: runs the transformer of model.h for one step at a time, on the bytes of a page pool and on what a plan's
// arrays say. It keeps what a device would keep between steps: the page table of PageTables::Rows and a state per
// sequence. Attention reads the plan through KeyFinder; K and V are doubles, so nothing is lost in the cache.
//
// The pool may lie on a device: then everything that touches K and V is done there, by a DeviceStep, and the host has
// what its weights give.
//
// Reports a plan that names places outside pool, table or step, instead of going there.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device_plan.h"
#include "device_step.h"
#include "key_finder.h"
#include "model.h"
#include "pool_memory.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/types.h"

namespace tiny_engine {

struct EngineOptions {
  std::uint32_t sequence_count_max = 0;  ///< rows of the page table, and states
  std::uint32_t row_columns = 0;         ///< of the page table
  bool keys_rotated = true;              ///< as in the layout
  bool appends_first = false;            ///< writes K and V of a layer before attention, and reads them back from pages
  bool applies_copies = true;            ///< moves and copies too; false: Cache::apply_copies does
  /// Where the pool lies on a device: what works there, with the same options, and has the page table. It applies moves
  /// and copies, outlives the engine and serves no other.
  DeviceStep* device = nullptr;
};

/// The layout of what the engine stores.
[[nodiscard]] quire::CacheGroup cache_group(const ModelShape& shape, bool keys_rotated);

/// Copyable: a copy has its own table and states, and the same pool until set_pool().
class Engine {
 public:
  /// `weights` must outlive the engine.
  Engine(const Weights& weights, PoolMemory pool, const EngineOptions& options);

  /// What a plan asks for before its step, and even when the step is then aborted: deltas, moves, copies, sends.
  [[nodiscard]] std::string prepare(const DevicePlan& plan);
  /// Computes the queries with these tokens, writes K and V, and fills `logits` with a row of the vocabulary per query.
  /// Where pages are still arriving, `wait` is called before the keys of a layer are read, with its index, and gives
  /// what is wrong, if anything. Empty, or what is wrong with the plan; K and V may then be half written.
  using LayerWait = std::function<std::string(std::uint32_t layer_index)>;
  [[nodiscard]] std::string forward(const DevicePlan& plan, std::span<const quire::TokenId> tokens,
                                    std::vector<double>& logits, const LayerWait& wait = {});
  /// Mixes one number per entry into its sequence's state, 0 leaving it as it is; `before` gets what the states were.
  [[nodiscard]] std::string fold_states(const DevicePlan& plan, std::span<const std::uint64_t> values,
                                        std::vector<std::uint64_t>& before);

  /// A sequence's state by its state slot, for the host.
  [[nodiscard]] std::uint64_t& state(std::uint32_t state_slot) { return states_.at(state_slot); }
  /// Where what is sent to receiver number `receiver` goes, instead of where it went before.
  void set_receiver(std::int32_t receiver, PoolMemory pool);
  void set_pool(std::byte* bytes) { pool_.bytes = bytes; }
  [[nodiscard]] const Weights& weights() const { return weights_; }

 private:
  struct Receiver {
    std::int32_t number = 0;
    PoolMemory pool;
  };

  /// For each query the keys it sees.
  using KeyLists = std::vector<std::vector<KeyReference>>;

  [[nodiscard]] std::string send_stored(const DevicePlan& plan);
  [[nodiscard]] std::string send_new(const DevicePlan& plan, std::uint32_t layer_index, const Rows& rows);
  [[nodiscard]] std::string find_keys(const DevicePlan& plan, std::size_t query_count, KeyLists& all_keys,
                                      KeyLists& near_keys) const;
  [[nodiscard]] const Receiver* find_receiver(std::int32_t number) const;

  [[nodiscard]] Rows project(const LayerWeights& layer, std::span<const double> inputs,
                             std::span<const std::int32_t> positions) const;
  /// A query's rows for all heads, as they meet keys.
  void project_query(const LayerWeights& layer, std::span<const double> input, std::int32_t position,
                     std::span<double> query) const;
  /// Attention of all queries: a row of values for every query and head.
  [[nodiscard]] std::string attend(const DevicePlan& plan, std::uint32_t layer_index, std::span<const double> queries,
                                   const KeyLists& keys, const Rows& rows, std::span<double> mixed);
  [[nodiscard]] std::string attend_on_device(const DevicePlan& plan, std::uint32_t layer_index,
                                             std::span<const double> queries, const Rows& rows,
                                             std::span<double> mixed);
  void attend_one(std::uint32_t layer_index, std::span<const double> query, std::span<const KeyReference> keys,
                  const Rows& rows, std::span<double> mixed) const;
  /// What heads give, from the values of their keys.
  void project_heads(const LayerWeights& layer, std::span<const double> mixed, std::span<double> heads) const;
  /// Loads component `component` of a key, all heads.
  void load(const KeyReference& key, std::uint32_t layer_index, std::uint32_t component, const Rows& rows,
            std::span<double> out) const;

  const Weights& weights_;
  AttentionShape attention_;
  PoolMemory pool_;
  EngineOptions options_;
  PageTable table_;  // unused with a device
  std::vector<std::uint64_t> states_;
  std::vector<Receiver> receivers_;
};

}  // namespace tiny_engine
