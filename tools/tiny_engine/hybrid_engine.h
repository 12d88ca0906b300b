// SPDX-License-Identifier: Apache-2.0
//
// HybridEngine: runs the model of hybrid_model.h for one step at a time, on pools, state slots and what a plan's arrays
// say. Between steps it keeps what a device would keep: a page table for each group. Everything else that a step needs
// is read through those tables or in the state slot that the plan names. States are doubles; so are K, V and entries,
// or they are rounded to 8 bits and a step sees of its own tokens what later ones will.
//
// The memory is the host's, read row by row; or a device's, whose rows HybridDevice gathers for each layer.
//
// A plan that names places outside pools, tables, slots or step is reported, not followed.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device_plan.h"
#include "hybrid_device.h"
#include "hybrid_memory.h"
#include "hybrid_model.h"
#include "key_finder.h"
#include "pool_memory.h"
#include "quantised_rows.h"
#include "quire/types.h"
#include "state_memory.h"

namespace tiny_engine {

/// Sees which rows of K attention layers with pages read and write: tests compare what is read with who wrote it.
class KeyWatch {
 public:
  virtual ~KeyWatch() = default;
  /// A query of the step sees the key of another step at this position, and this is what lies there. Empty, or what is
  /// wrong with that.
  [[nodiscard]] virtual std::string on_read(const GroupLayer& layer, std::size_t query, std::uint32_t position,
                                            std::span<const double> key) = 0;
  /// What lies in the append slot of a query, once the layer has written it.
  virtual void on_append(const GroupLayer& layer, std::size_t query, std::span<const double> key) = 0;
};

struct HybridEngineOptions {
  std::uint32_t sequence_count_max = 0;  ///< rows of the page tables
  std::uint32_t row_columns = 0;
  std::uint32_t page_tokens = 0;
  bool applies_copies = true;  ///< of pages and states; false: the cache does
  /// The memory is a device's, and this does what is done there; plans have page tables of Rows, in one level.
  HybridDevice* device = nullptr;
  KeyWatch* key_watch = nullptr;  ///< not with a device
};

/// Copyable: a copy has its own tables, and the same memory until memory() is changed.
class HybridEngine {
 public:
  /// `weights` must outlive the engine.
  HybridEngine(const HybridWeights& weights, HybridMemory memory, const HybridEngineOptions& options);

  /// Returns when a layer of a group with pages has arrived, of all that the step reads; otherwise, what is wrong.
  using LayerWait = std::function<std::string(const GroupLayer& layer)>;
  /// Waits for the snapshots that the plan fills state slots from, each with all its layers. Comes before the plan's
  /// state copies, whoever makes these.
  [[nodiscard]] std::string wait_for_snapshots(const DevicePlan& plan, const LayerWait& wait) const;
  /// What a plan asks for before its step, even when the step is then aborted: deltas, moves, copies, state copies.
  [[nodiscard]] std::string prepare(const DevicePlan& plan);
  /// Computes the queries with these tokens and stores what they leave behind; fills `logits` with a row of the
  /// vocabulary per query. Empty, or what is wrong with the plan; memory may then be half written. `wait`, if given, is
  /// asked for each layer with pages, right before these are read.
  [[nodiscard]] std::string forward(const DevicePlan& plan, std::span<const quire::TokenId> tokens,
                                    std::vector<double>& logits, const LayerWait& wait = {});
  /// What a plan asks for when its tokens are computed: snapshots.
  [[nodiscard]] std::string save(const DevicePlan& plan);

  [[nodiscard]] HybridMemory& memory() { return memory_; }
  [[nodiscard]] const HybridWeights& weights() const { return weights_; }

 private:
  /// One sequence's queries in a step.
  struct Chunk {
    std::uint32_t first_query = 0;
    std::uint32_t query_count = 0;
    std::uint32_t position = 0;           // of the first, in the text
    std::uint32_t rope_end = UINT32_MAX;  // positions for RoPE stay below, in groups that keep everything
    std::uint32_t slot = 0;               // its state
    std::uint32_t index = 0;              // in the plan's entries
  };
  /// A layer's inputs, and what comes out: a row of all heads per query.
  struct Work {
    const DevicePlan& plan;
    const std::vector<Chunk>& chunks;
    const HybridLayerWeights& weights;
    HybridLayer kind;
    LayerPlace place;
    std::span<const double> inputs;
    std::span<double> heads;
  };
  using KeyLists = std::vector<std::vector<KeyReference>>;
  /// By group and, in full ones, by the window of the layer.
  using KeysOfGroups = std::map<std::pair<std::uint32_t, std::uint32_t>, KeyLists>;
  /// Where a layer's K, V or entries are: in the host's memory by slot, or as they were gathered on a device.
  struct Store {
    PoolMemory pool;
    std::optional<QuantisedRows> quantised;
    Rows held;                         // [chunks][entries_max], with what each chunk has before `ends` …
    std::vector<HeldSequence> chunks;  // … which are these
    std::uint32_t entries_max = 0;
  };
  /// An entry of a chunk's sequence, by number and by slot.
  struct EntryPlace {
    std::uint32_t chunk_index = 0;
    std::uint32_t number = 0;
    std::int64_t slot = 0;
  };

  [[nodiscard]] std::string check_states(std::span<const quire::StateCopy> copies) const;
  [[nodiscard]] std::string apply_states(std::span<const quire::StateCopy> copies);
  [[nodiscard]] std::string read_chunks(const DevicePlan& plan, std::size_t query_count,
                                        std::vector<Chunk>& chunks) const;
  /// What each query sees of groups with pages.
  [[nodiscard]] std::string find_keys(const DevicePlan& plan, std::size_t query_count, KeysOfGroups& keys) const;
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> keys_of_layer(std::size_t layer_index) const {
    const HybridLayer& layer = weights_.shape.layers[layer_index];
    return {groups_.places[layer_index].group_index, layer.kind == LayerKind::Full ? layer.window_tokens : 0};
  }

  // Memory: what a layer reads and writes of it.
  [[nodiscard]] Store open_store(const Work& work) const;
  /// On a device: what `store` says of each chunk, and for compressors what its entries are.
  [[nodiscard]] std::string gather_last(const Work& work, Store& store) const;
  [[nodiscard]] std::string gather_ring(const Work& work, Store& store) const;
  [[nodiscard]] std::string gather_entries(const Work& work, Store& store) const;
  void load(const Work& work, const Store& store, const EntryPlace& place, std::uint32_t part,
            std::span<double> out) const;
  [[nodiscard]] std::string append(const Work& work, const Store& store, const Rows& rows) const;
  [[nodiscard]] std::string read_states(const GroupLayer& layer, std::span<const std::int64_t> slots, Rows& held) const;
  [[nodiscard]] std::string append_states(const GroupLayer& layer, std::span<const std::int64_t> slots,
                                          const Rows& rows) const;

  [[nodiscard]] Rows project_keys(const Work& work) const;
  [[nodiscard]] std::string run_attention(const Work& work, const KeyLists& keys);
  void show_appended(const Work& work, const Store& store) const;
  [[nodiscard]] std::string run_ring(const Work& work);
  [[nodiscard]] std::string check_ring_slots(std::span<const std::int64_t> slots, std::uint32_t slot_entries,
                                             std::size_t token_count) const;
  [[nodiscard]] std::string run_compressor(const Work& work, const KeyLists& keys);
  void compress(const Work& work, const Chunk& chunk, const Rows& rows, const Rows& held, std::uint32_t position,
                std::span<double> entry) const;
  void load_compressor_row(const Work& work, const Chunk& chunk, const Rows& rows, const Rows& held,
                           std::int64_t position, std::uint32_t series, std::span<double> value,
                           std::span<double> gate) const;
  [[nodiscard]] std::string store_compressor_rows(const Work& work, const Rows& rows) const;
  [[nodiscard]] std::string run_recurrence(const Work& work);
  [[nodiscard]] const quire::CacheGroup& group_of(std::uint32_t group_index) const {
    return groups_.groups[group_index];
  }
  /// Where RoPE has a query of the chunk in a layer.
  [[nodiscard]] static std::uint32_t rope_position(const Work& work, const Chunk& chunk, std::uint32_t query) {
    const bool keeps_all = work.kind.kind == LayerKind::Full || is_compressor(work.kind.kind);
    return keeps_all ? std::min(chunk.position + query, chunk.rope_end - 1) : chunk.position + query;
  }
  [[nodiscard]] std::size_t heads_size() const {
    return std::size_t{weights_.shape.query_heads} * weights_.shape.head_dim;
  }

  const HybridWeights& weights_;
  HybridGroups groups_;
  HybridMemory memory_;
  HybridEngineOptions options_;
  std::vector<PageTable> tables_;  // by group
};

}  // namespace tiny_engine
