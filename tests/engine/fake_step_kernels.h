// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a step on a FakeDevice: the host twins, each when its turn on the stream comes. Whatever a kernel is
// told to touch must be the device's memory: an address of the host's, which a GPU would stumble over, stops the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "quire/host_kernels.h"
#include "quire/quantised_kernels.h"
#include "testing/fake_device.h"
#include "tools/tiny_engine/step_kernels.h"

namespace quire::testing {

class FakeStepKernels : public tiny_engine::StepKernels {
 public:
  explicit FakeStepKernels(FakeDevice& device) : device_(device) {}

  [[nodiscard]] Status append(const AppendParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add_pool(*params.geometry, params.pool);
    touched.add(params.slots.data(), params.slots.size());
    touched.add(params.source, params.slots.size() * token_bytes(*params.geometry, params.component_index));
    return device_.launch(touched.take(), [params] { append_on_host(params); }, stream);
  }
  [[nodiscard]] Status read_rows(const ReadRowsParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add_pool(*params.geometry, params.pool);
    touched.add(params.slots.data(), params.slots.size());
    touched.add(params.target, params.slots.size() * token_bytes(*params.geometry, params.component_index));
    return device_.launch(touched.take(), [params] { read_rows_on_host(params); }, stream);
  }
  [[nodiscard]] Status copy_pages(const CopyPagesParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add_pool(*params.geometry, params.pool);
    touched.add(params.copies.data(), params.copies.size());
    return device_.launch(touched.take(), [params] { copy_pages_on_host(params); }, stream);
  }
  [[nodiscard]] Status move_tokens(const MoveTokensParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add_pool(*params.geometry, params.pool);
    touched.add(params.moves.data(), params.moves.size());
    return device_.launch(touched.take(), [params] { move_tokens_on_host(params); }, stream);
  }
  [[nodiscard]] Status apply_deltas(const ApplyDeltasParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add(params.table, std::size_t{params.rows} * params.row_columns);
    touched.add(params.deltas.data(), params.deltas.size());
    return device_.launch(touched.take(), [params] { apply_deltas_on_host(params); }, stream);
  }
  [[nodiscard]] Status copy_states(const CopyStatesParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add(params.state, params.slot_count * params.slots->slot_bytes());
    for (std::size_t i = 0; i < params.pools.size(); ++i) {
      if (params.pools[i] != nullptr) touched.add_pool(*params.geometries[i], params.pools[i]);
    }
    // These are the caller's again when the launcher returns.
    const auto run = [params, geometries = std::vector(params.geometries.begin(), params.geometries.end()),
                      pools = std::vector(params.pools.begin(), params.pools.end()),
                      copies = std::vector(params.copies.begin(), params.copies.end())] {
      CopyStatesParams own = params;
      own.geometries = geometries;
      own.pools = pools;
      own.copies = copies;
      copy_states_on_host(own);
    };
    return device_.launch(touched.take(), run, stream);
  }
  [[nodiscard]] Status append_quantised(const AppendQuantisedParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add_pool(params.entries->geometry(), params.pool);
    touched.add(params.slots.data(), params.slots.size());
    touched.add(params.source, params.slots.size() * params.entries->row_bytes());
    return device_.launch(touched.take(), [params] { append_quantised_on_host(params); }, stream);
  }
  [[nodiscard]] Status gather_selected(const GatherSelectedParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add(params.ids.data(), params.ids.size());
    touched.add_gather(params, params.table_rows);
    touched.add_table(params.table);
    return device_.launch(touched.take(), [params] { gather_selected_on_host(params); }, stream);
  }
  [[nodiscard]] Status gather_last(const GatherLastParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add_gather(params, params.table_rows);
    touched.add_table(params.table);
    return device_.launch(touched.take(), [params] { gather_last_on_host(params); }, stream);
  }
  [[nodiscard]] Status gather_ring(const GatherRingParams& params, DeviceStream stream) override {
    Touched touched;
    touched.add(params.lengths.data(), params.lengths.size());
    touched.add_gather(params, params.state_slots);
    return device_.launch(touched.take(), [params] { gather_ring_on_host(params); }, stream);
  }
  [[nodiscard]] Status attend(const tiny_engine::PagedAttentionParams& params, DeviceStream stream) override {
    return device_.launch(
        touched_by(params),
        [params] {
          for (std::int32_t query = 0; query < params.plan.query_count; ++query) {
            for (std::uint32_t head = 0; head < params.shape.query_heads; ++head) {
              tiny_engine::attend_paged(params, query, head);
            }
          }
        },
        stream);
  }

 private:
  class Touched {
   public:
    template <typename Element>
    void add(const Element* data, std::size_t count) {
      all_.push_back(std::as_bytes(std::span(data, data == nullptr ? 0 : count)));
    }
    void add_pool(const PoolGeometry& geometry, const std::byte* pool) { add(pool, geometry.pool_bytes()); }
    /// What all gathers have: a pool, a sequence for each row of the target, and that.
    template <typename Params>
    void add_gather(const Params& params, std::span<const std::int32_t> sequences) {
      add_pool(params.entries->geometry(), params.pool);
      add(sequences.data(), sequences.size());
      add(params.target.data, sequences.size() * params.target.row_entries * params.entries->row_bytes());
      add(params.target.valid_counts.data(), params.target.valid_counts.size());
    }
    void add_table(const EntryTable& table) {
      add(table.pages, std::size_t{table.rows} * table.row_columns);
      add(table.entry_counts.data(), table.entry_counts.size());
    }
    [[nodiscard]] std::vector<std::span<const std::byte>> take() { return std::move(all_); }

   private:
    std::vector<std::span<const std::byte>> all_;
  };

  [[nodiscard]] static std::size_t token_bytes(const PoolGeometry& geometry, std::uint32_t component) {
    return geometry.page().group().components[component].heads * geometry.page().components()[component].head_bytes;
  }

  [[nodiscard]] static std::vector<std::span<const std::byte>> touched_by(
      const tiny_engine::PagedAttentionParams& params) {
    const tiny_engine::PagedPlan& plan = params.plan;
    const auto entries = static_cast<std::size_t>(plan.entry_count);
    const auto queries = static_cast<std::size_t>(plan.query_count);
    Touched touched;
    touched.add(plan.query_positions, queries);
    touched.add(plan.query_indptr, entries + 1);
    touched.add(plan.seq_lens, entries);
    touched.add(plan.visible_tokens, entries);
    touched.add(plan.tree_indptr, entries + 1);
    touched.add(plan.tree_nodes, static_cast<std::size_t>(plan.tree_node_count));
    touched.add(plan.append_slots, queries);
    for (const tiny_engine::PagedLevel& level : std::span(plan.levels).first(plan.level_count)) {
      for (const std::int32_t* offsets : {level.query_indptr, level.page_indptr}) touched.add(offsets, entries + 1);
      for (const std::int32_t* numbers : {level.rows, level.first_columns, level.last_page_tokens, level.window_offsets,
                                          level.sink_tokens, level.first_keys, level.key_offsets}) {
        touched.add(numbers, entries);
      }
    }
    touched.add(plan.table, static_cast<std::size_t>(plan.table_rows * plan.table_columns));
    touched.add(plan.page_indices, static_cast<std::size_t>(plan.page_index_count));
    touched.add(plan.block_table, entries * static_cast<std::size_t>(plan.block_columns));
    const std::size_t heads = queries * params.shape.query_heads;
    touched.add(params.pool, static_cast<std::size_t>(plan.page_count) * params.strides.page);
    touched.add(params.queries, heads * params.shape.key_dim);
    touched.add(params.rows[0], queries * params.shape.kv_heads * params.row_dims[0]);
    touched.add(params.rows[1], queries * params.shape.kv_heads * params.row_dims[1]);
    touched.add(params.turns, static_cast<std::size_t>(params.position_count) * params.shape.rope_dim);
    touched.add(params.mixed, heads * params.shape.value_dim);
    touched.add(params.problem, 1);
    return touched.take();
  }

  FakeDevice& device_;
};

}  // namespace quire::testing
