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

#include "examples/tiny_engine/step_kernels.h"
#include "quire/host_kernels.h"
#include "testing/fake_device.h"

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
    touched.add(plan.window_tokens, entries);
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
