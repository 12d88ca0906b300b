// SPDX-License-Identifier: Apache-2.0
//
// DevicePlanBuffer: plans where a device's kernels read them. A step's plan goes there in one copy, to the same address
// every time, so that a captured graph finds each array of a shape where it was; the page tables of PageTables::Rows
// are there too and stay.
//
//     const auto uploaded = *buffer->try_upload(plan, stream);      // nothing while all pinned slots are on their way
//     launch_apply_deltas(buffer->deltas_of(plan, *uploaded, 0), stream);
//     launch_append({…, .slots = uploaded->on_device(plan.groups[0].append_slots)}, stream);
//
// The bytes go through pinned slots of the buffer's own, used in turn: the plan's memory is the cache's again when
// try_upload() returns. A plan is overwritten by the next one, so all uploads, and the kernels that read them, are on
// one stream, or ordered by events. An upload is not captured: plans differ in length, and a graph would read the
// pinned slot of the step it was captured in. It goes on the stream before the graph.
//
// Works on any Device. Allocates nothing after create(), but for errors; waits for nothing. Destroying it waits for the
// copies that are on their way.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/device.h"
#include "quire/host_kernels.h"
#include "quire/plan.h"
#include "quire/result.h"

namespace quire {

/// The page table of a group, for PageTables::Rows.
struct DeviceTable {
  std::int32_t* pages = nullptr;  ///< [rows][row_columns], in the device's memory
  std::uint32_t rows = 0;         ///< CacheConfig::sequence_count_max
  std::uint32_t row_columns = 0;  ///< pages of context_tokens_max tokens; 0: the group has no table of its own
};

struct DevicePlanBufferConfig {
  Device* device = nullptr;  ///< outlives the buffer
  /// Of AttentionPlan::staging. About 12 bytes a token and 80 an entry, and what the page tables ship: 12 bytes for a
  /// new page with Rows, 4 for every page with Csr and Block.
  std::uint64_t plan_bytes_max = std::uint64_t{1} << 20U;
  std::uint32_t upload_count_max = 4;  ///< on their way at once: pinned slots
  /// Of each group of the layout, `pages` not set; compressed groups and later full ones have that of the first. Empty
  /// unless plans have Rows.
  std::vector<DeviceTable> tables = {};
  /// So many deltas of each table have a place of their own, where a graph may apply them; 0: none.
  std::uint32_t graph_deltas_max = 0;

  [[nodiscard]] Status validate() const;
};

/// A plan that is on its way to the device, behind what was on the stream before. Until the next upload.
class UploadedPlan {
 public:
  /// Where an array of the plan lies on the device; of any other memory, it stops the program.
  template <typename T>
  [[nodiscard]] std::span<const T> on_device(std::span<const T> array) const {
    return {reinterpret_cast<const T*>(place_of(std::as_bytes(array))), array.size()};
  }
  /// Whether graph_deltas_of() has the plan's deltas. Otherwise they were too many: apply deltas_of() before the graph,
  /// in which nothing is changed.
  [[nodiscard]] bool has_graph_deltas() const { return has_graph_deltas_; }

 private:
  friend class DevicePlanBuffer;
  [[nodiscard]] const std::byte* place_of(std::span<const std::byte> bytes) const;

  std::span<const std::byte> staging_;  // on the host; looked at for its address
  const std::byte* target_ = nullptr;   // on the device
  bool has_graph_deltas_ = false;
};

class DevicePlanBuffer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<DevicePlanBuffer>> create(const DevicePlanBufferConfig& config);
  ~DevicePlanBuffer();
  DevicePlanBuffer(const DevicePlanBuffer&) = delete;
  DevicePlanBuffer& operator=(const DevicePlanBuffer&) = delete;

  /// Puts the copy of a plan on the stream. Nothing when upload_count_max copies have not ended yet. Fails, and has
  /// done nothing, for a plan of more than plan_bytes_max bytes, or of fewer groups than there are tables. When the
  /// device fails in the middle, what was begun has ended before the error is returned.
  [[nodiscard]] Result<std::optional<UploadedPlan>> try_upload(const AttentionPlan& plan, DeviceStream stream);

  /// What a plan changes in the table of a group, for launch_apply_deltas(): once for every plan, in their order.
  [[nodiscard]] ApplyDeltasParams deltas_of(const AttentionPlan& plan, const UploadedPlan& uploaded,
                                            std::uint32_t group_index) const;
  /// The same for a graph: always graph_deltas_max of them at one address, filled up with some of row -1, which a
  /// kernel leaves out.
  [[nodiscard]] ApplyDeltasParams graph_deltas_of(std::uint32_t group_index) const;
  /// The table that a group has of its own. It starts as all null pages, and never moves.
  [[nodiscard]] const DeviceTable& table(std::uint32_t group_index) const;

 private:
  struct Impl;
  explicit DevicePlanBuffer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
