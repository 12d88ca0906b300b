// SPDX-License-Identifier: Apache-2.0
//
// HybridEngine: runs the model of hybrid_model.h for one step at a time, on pools, state slots and what a plan's arrays
// say. Between steps it keeps what a device would keep: a page table for each group. Everything else that a step needs
// is read through those tables or in the state slot that the plan names; K, V, entries and states are doubles, so
// nothing is lost in the cache.
//
// A plan that names places outside pools, tables, slots or step is reported, not followed.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device_plan.h"
#include "hybrid_model.h"
#include "key_finder.h"
#include "pool_memory.h"
#include "quire/cache.h"
#include "quire/types.h"
#include "state_memory.h"

namespace tiny_engine {

struct HybridMemory {
  std::vector<std::optional<PoolMemory>> pools;  ///< by group; nothing where it has no pages
  StateMemory states;
};
/// A cache's own memory.
[[nodiscard]] HybridMemory memory_of(const quire::Cache& cache);

struct HybridEngineOptions {
  std::uint32_t sequence_count_max = 0;  ///< rows of the page tables
  std::uint32_t row_columns = 0;
  std::uint32_t page_tokens = 0;
  bool applies_copies = true;  ///< of pages and states; false: the cache does
};

/// Copyable: a copy has its own tables, and the same memory until memory() is changed.
class HybridEngine {
 public:
  /// `weights` must outlive the engine.
  HybridEngine(const HybridWeights& weights, HybridMemory memory, const HybridEngineOptions& options);

  /// What a plan asks for before its step, even when the step is then aborted: deltas, moves, copies, state copies.
  [[nodiscard]] std::string prepare(const DevicePlan& plan);
  /// Computes the queries with these tokens and stores what they leave behind; fills `logits` with a row of the
  /// vocabulary per query. Empty, or what is wrong with the plan; memory may then be half written.
  [[nodiscard]] std::string forward(const DevicePlan& plan, std::span<const quire::TokenId> tokens,
                                    std::vector<double>& logits);
  /// What a plan asks for when its tokens are computed: snapshots.
  [[nodiscard]] std::string save(const DevicePlan& plan);

  [[nodiscard]] HybridMemory& memory() { return memory_; }
  [[nodiscard]] const HybridWeights& weights() const { return weights_; }

 private:
  /// One sequence's queries in a step.
  struct Chunk {
    std::uint32_t first_query = 0;
    std::uint32_t query_count = 0;
    std::uint32_t position = 0;  // of the first
    std::uint32_t slot = 0;      // its state
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

  [[nodiscard]] std::string apply_states(std::span<const quire::StateCopy> copies);
  [[nodiscard]] std::string read_chunks(const DevicePlan& plan, std::size_t query_count,
                                        std::vector<Chunk>& chunks) const;
  /// What each query sees of a group with pages, by group; of others nothing.
  [[nodiscard]] std::string find_keys(const DevicePlan& plan, std::size_t query_count,
                                      std::vector<KeyLists>& keys) const;

  [[nodiscard]] Rows project_keys(const Work& work) const;
  [[nodiscard]] std::string run_attention(const Work& work, const KeyLists& keys);
  [[nodiscard]] std::string run_ring(const Work& work);
  [[nodiscard]] std::string store_ring(const Work& work, const Rows& rows);
  [[nodiscard]] std::string run_compressor(const Work& work, const KeyLists& keys);
  void load_compressor_row(const Work& work, const Chunk& chunk, const Rows& rows, std::int64_t position,
                           std::uint32_t series, std::span<double> value, std::span<double> gate) const;
  void compress(const Work& work, const Chunk& chunk, const Rows& rows, std::uint32_t position,
                std::span<double> entry) const;
  void store_compressor_rows(const Work& work, const Rows& rows);
  void run_recurrence(const Work& work);
  [[nodiscard]] const quire::CacheGroup& group_of(std::uint32_t group_index) const {
    return groups_.groups[group_index];
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
