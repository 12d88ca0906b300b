// SPDX-License-Identifier: Apache-2.0
//
// HybridDevice: the byte work of HybridEngine where the cache's memory is a device's. Tables, copies of pages and of
// states, appends and gathers are quire's kernels on a stream; the arithmetic of the layers stays with the engine,
// which gets gathered rows and gives those that it has computed.
//
//     prepare(plan)                                 the plan, deltas, moves, copies, state copies
//     for each layer:
//       gather_last, gather_selected, gather_ring   K, V or entries, from 8 bits to bf16 …
//       read_states                                 … or states as they are
//       append                                      what the layer leaves behind
//     save(plan)                                    snapshots
//
// Every function waits until what it does is done, and gives what is wrong, or an empty text. State copies and slots
// were checked by the engine.
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

#include "device_exchange.h"
#include "device_plan.h"
#include "hybrid_memory.h"
#include "quantised_rows.h"
#include "quire/device.h"
#include "quire/device_plan_buffer.h"
#include "quire/result.h"
#include "step_kernels.h"

namespace tiny_engine {

struct HybridDeviceConfig {
  quire::Device* device = nullptr;  ///< it and the kernels outlive this
  StepKernels* kernels = nullptr;
  std::vector<quire::CacheGroup> groups;  ///< K, V and entries are stored in 8 bits
  HybridMemory memory;                    ///< in the device's memory
  std::uint32_t sequence_count_max = 0;
  std::uint32_t row_columns = 0;
  std::uint64_t plan_bytes_max = std::uint64_t{256} << 10U;
  std::uint64_t exchange_bytes = std::uint64_t{4} << 20U;  ///< of all rows of a layer, in and out
};

struct GroupLayer {
  std::uint32_t group_index = 0;
  std::uint32_t layer_index = 0;  ///< in the group
};

/// Whose entries are gathered.
struct HeldSequence {
  std::int32_t row = 0;  ///< of the page table, or its state slot
  std::int32_t entry_count = 0;
};

class HybridDevice {
 public:
  [[nodiscard]] static quire::Result<std::unique_ptr<HybridDevice>> create(const HybridDeviceConfig& config);
  ~HybridDevice();
  HybridDevice(const HybridDevice&) = delete;
  HybridDevice& operator=(const HybridDevice&) = delete;

  [[nodiscard]] std::string prepare(const DevicePlan& plan);
  [[nodiscard]] std::string save(const DevicePlan& plan);

  // `held` becomes [sequences][entries] of each part, or of each component of a state.
  /// The last entries of each sequence, in pages.
  [[nodiscard]] std::string gather_last(const GroupLayer& layer, std::span<const HeldSequence> sequences,
                                        std::uint32_t entries_max, Rows& held);
  /// Entries by number, as many of each sequence; -1: none.
  [[nodiscard]] std::string gather_selected(const GroupLayer& layer, std::span<const HeldSequence> sequences,
                                            std::span<const std::int32_t> ids, Rows& held);
  /// The last entries of each sequence, in rings.
  [[nodiscard]] std::string gather_ring(const GroupLayer& layer, std::span<const HeldSequence> sequences,
                                        std::uint32_t entries_max, Rows& held);
  /// Rows of state slots: slot x entries of a slot + entry.
  [[nodiscard]] std::string read_states(const GroupLayer& layer, std::span<const std::int64_t> slots, Rows& held);

  /// Writes rows where the plan says, in pages or in rings …
  [[nodiscard]] std::string append(const DevicePlan& plan, const GroupLayer& layer, const Rows& rows);
  /// … or at these places of state slots.
  [[nodiscard]] std::string append(const GroupLayer& layer, std::span<const std::int64_t> slots, const Rows& rows);

 private:
  struct Group {
    PoolMemory rows;  // where its layers read and write: pages, or its part of the state slots
    std::optional<QuantisedRows> quantised;
  };
  /// What all gathers have.
  struct Gather {
    const GroupLayer& layer;
    std::span<const HeldSequence> sequences;
    std::uint32_t entries_max = 0;
    bool is_dense = false;  // each sequence has as many entries as it says, without gaps
  };

  explicit HybridDevice(const HybridDeviceConfig& config);
  [[nodiscard]] quire::Status open();
  [[nodiscard]] quire::Status upload(const DevicePlan& plan);
  [[nodiscard]] quire::Status apply_plan(const DevicePlan& plan);
  [[nodiscard]] quire::Status copy_states(std::span<const quire::StateCopy> copies);
  [[nodiscard]] quire::Result<std::size_t> place(std::size_t bytes);
  template <typename Element>
  [[nodiscard]] quire::Result<std::span<const Element>> bring(std::span<const Element> numbers);
  [[nodiscard]] quire::Result<quire::EntryTable> bring_table(const GroupLayer& layer,
                                                             std::span<const HeldSequence> sequences);
  template <typename Launch>
  [[nodiscard]] quire::Status gather(const Gather& what, Rows& held, Launch launch);
  [[nodiscard]] quire::Status read(const GroupLayer& layer, std::span<const std::int64_t> slots, Rows& held);
  [[nodiscard]] quire::Status start_append(const GroupLayer& layer, std::span<const std::int64_t> slots,
                                           const Rows& rows);
  [[nodiscard]] std::string finish(const quire::Status& status);

  const HybridDeviceConfig config_;
  std::vector<Group> groups_;
  DeviceExchange exchange_;
  std::size_t end_ = 0;  // of what is in the exchange
  std::unique_ptr<quire::DevicePlanBuffer> plans_;
  quire::UploadedPlan uploaded_;
  const std::byte* uploaded_staging_ = nullptr;  // whose plan that is
};

}  // namespace tiny_engine
