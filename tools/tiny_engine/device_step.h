// SPDX-License-Identifier: Apache-2.0
//
// DeviceStep: the part of an engine's step that runs where the pages lie, when that is a device. Plans go there through
// a quire::DevicePlanBuffer, which has the page table too; rows that the host has projected go there layer by layer,
// are appended by the plan's slots, and attention reads the pool. Only what comes out of attention comes back.
//
//     prepare(plan)                     the plan, deltas, moves and copies
//     for each layer:
//       load(queries, rows)             what the host has computed
//       append(plan, layer)             before attention or behind it
//       attend(plan, layer, …)
//       finish_layer(mixed)             waits for the stream
//
// Every function gives what is wrong, or an empty text. A plan that names places outside of pool, table or step is
// reported, not followed.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device_plan.h"
#include "model.h"
#include "paged_attention.h"
#include "pool_memory.h"
#include "quire/device.h"
#include "quire/device_plan_buffer.h"
#include "quire/result.h"
#include "step_kernels.h"

namespace tiny_engine {

struct DeviceStepConfig {
  quire::Device* device = nullptr;  ///< it and the kernels outlive the step
  StepKernels* kernels = nullptr;
  PoolMemory pool;  ///< bytes are in the device's memory
  ModelShape shape;
  bool keys_rotated = true;
  quire::PageTables page_tables = quire::PageTables::Rows;
  std::uint32_t sequence_count_max = 0;
  std::uint32_t row_columns = 0;
  std::uint32_t step_tokens_max = 0;
  std::uint32_t context_tokens_max = 0;  ///< positions lie below
  std::uint64_t plan_bytes_max = std::uint64_t{256} << 10U;
};

/// How a model's layers attend to what the cache has of them.
[[nodiscard]] AttentionShape attention_shape(const ModelShape& shape, bool keys_rotated);

class DeviceStep {
 public:
  [[nodiscard]] static quire::Result<std::unique_ptr<DeviceStep>> create(const DeviceStepConfig& config);
  ~DeviceStep();
  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;

  /// What a plan asks for before its step. Waits until it is done.
  [[nodiscard]] std::string prepare(const DevicePlan& plan);
  /// Tokens that lie at `local_slots` go to `remote_slots` of another pool on the device, in all layers.
  [[nodiscard]] std::string send(const PoolMemory& target, std::span<const std::int64_t> local_slots,
                                 std::span<const std::int64_t> remote_slots);

  /// Brings a layer's queries and rows to the device.
  [[nodiscard]] std::string load(std::span<const double> queries, const Rows& rows);
  /// Writes the rows where the plan says …
  [[nodiscard]] std::string append(const DevicePlan& plan, std::uint32_t layer_index);
  /// … or at these slots of another pool on the device.
  [[nodiscard]] std::string append_to(const PoolMemory& target, std::uint32_t layer_index,
                                      std::span<const std::int64_t> slots);
  struct LayerAttention {
    std::uint32_t layer_index = 0;
    const StagedLayerWindow* layer_window = nullptr;  ///< null: the layer sees everything
    bool reads_appended = false;                      ///< the rows were appended before
  };
  [[nodiscard]] std::string attend(const DevicePlan& plan, const LayerAttention& layer);
  /// Waits, and fills `mixed` with what attention gave: [queries][query_heads][value_dim].
  [[nodiscard]] std::string finish_layer(std::span<double> mixed);

 private:
  struct Memory;
  explicit DeviceStep(const DeviceStepConfig& config);
  [[nodiscard]] quire::Status open();
  [[nodiscard]] quire::Status upload(const DevicePlan& plan);
  [[nodiscard]] quire::Status fill_turns();
  [[nodiscard]] quire::Status apply_plan(const DevicePlan& plan);
  [[nodiscard]] quire::Status start_attention(const DevicePlan& plan, const LayerAttention& layer);
  [[nodiscard]] quire::Status append_rows(const PoolMemory& target, std::uint32_t layer_index,
                                          std::span<const std::int64_t> slots);
  [[nodiscard]] quire::Status send_some(const PoolMemory& target, std::span<const std::int64_t> local_slots,
                                        std::span<const std::int64_t> remote_slots);
  /// Slots in the device's memory, in the first or second of two places.
  [[nodiscard]] quire::Result<std::span<const std::int64_t>> bring_slots(std::span<const std::int64_t> slots,
                                                                         std::size_t place);
  [[nodiscard]] quire::Status wait();
  [[nodiscard]] PagedLevel level_on_device(const DevicePlan& plan, const StagedLevel& level) const;
  template <typename Element>
  [[nodiscard]] std::span<const Element> on_device(const DevicePlan& plan, const StagedArray<Element>& array) const {
    return uploaded_.on_device(plan.read(array));
  }

  const DeviceStepConfig config_;
  const AttentionShape shape_;
  std::vector<std::uint32_t> row_dims_;  // numbers of a head, by component
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<quire::DevicePlanBuffer> plans_;
  quire::UploadedPlan uploaded_;
  const std::byte* uploaded_staging_ = nullptr;  // whose plan that is
  std::size_t token_count_ = 0;                  // of the layer that was loaded
};

}  // namespace tiny_engine
