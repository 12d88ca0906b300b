// SPDX-License-Identifier: Apache-2.0
//
// A plan as a device has it: one copy of AttentionPlan::staging, and where in it each array lies. Everything the engine
// computes with is read from this copy, so what is not in the staging buffer cannot be used by accident.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/plan.h"
#include "quire/result.h"

namespace tiny_engine {

/// An array by its place in the staging buffer.
template <typename Element>
struct StagedArray {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

struct StagedLevel {
  StagedArray<std::int32_t> query_indptr;
  StagedArray<std::int32_t> page_indptr;
  StagedArray<std::int32_t> rows;
  StagedArray<std::int32_t> first_columns;
  StagedArray<std::int32_t> last_page_tokens;
  StagedArray<std::int32_t> window_offsets;
  StagedArray<std::int32_t> sink_tokens;
  StagedArray<std::int32_t> first_keys;
};

struct StagedLayerWindow {
  std::uint32_t window_tokens = 0;
  StagedArray<std::int32_t> page_indptr;
  StagedArray<std::int32_t> rows;
  StagedArray<std::int32_t> first_columns;
  StagedArray<std::int32_t> first_keys;
  StagedArray<std::int32_t> key_offsets;
};

/// What the layers of one cache group need.
struct StagedGroup {
  StagedArray<std::int64_t> append_slots;
  std::vector<StagedLevel> levels;
  std::vector<StagedLayerWindow> layer_windows;
  StagedArray<quire::PageDelta> deltas;
  StagedArray<std::int32_t> page_indices;
  StagedArray<std::int32_t> block_table;
  StagedArray<quire::TokenMove> moves;
  StagedArray<std::int32_t> move_indptr;
  StagedArray<quire::PageCopy> copies;
  StagedArray<std::int64_t> remote_slots;
  StagedArray<std::int32_t> receivers;
  StagedArray<quire::SendRun> sends;
};

/// One number of every element of an array: what a test changes.
struct StagedNumbers {
  std::string name;  ///< "seq_lens", "deltas.column"; arrays of groups, levels and layer windows go by one name in all
  std::uint32_t group_index = 0;
  std::uint32_t level_index = 0;
  std::uint64_t offset = 0;  ///< of the first, in the staging buffer
  std::uint64_t stride = 0;  ///< bytes from one to the next
  std::uint32_t width = 4;   ///< bytes of one: 4 or 8
  std::uint64_t count = 0;
};

/// Copyable; the arrays of a copy are its own. single-threaded
class DevicePlan {
 public:
  DevicePlan() = default;
  /// Copies the staging buffer. Fails when an array lies outside it or is not aligned.
  [[nodiscard]] static quire::Result<DevicePlan> upload(const quire::AttentionPlan& plan);

  template <typename Element>
  [[nodiscard]] std::span<const Element> read(const StagedArray<Element>& array) const {
    return {reinterpret_cast<const Element*>(buffer_.data() + array.offset), array.count};
  }

  /// All arrays, as they lie in the staging buffer.
  [[nodiscard]] std::span<const std::byte> staging() const { return buffer_; }

  /// Every number of every array, padding included.
  [[nodiscard]] std::vector<StagedNumbers> numbers() const;
  [[nodiscard]] std::int64_t number(const StagedNumbers& numbers, std::uint64_t index) const;
  void set_number(const StagedNumbers& numbers, std::uint64_t index, std::int64_t value);

  quire::PageTables page_tables = quire::PageTables::Rows;
  quire::PlanShape shape;
  StagedArray<std::int32_t> query_positions;
  StagedArray<std::int32_t> query_indptr;
  StagedArray<std::int32_t> seq_lens;
  StagedArray<std::int32_t> stored_lens;
  StagedArray<std::int32_t> visible_tokens;
  StagedArray<std::int32_t> context_lens;
  StagedArray<std::int32_t> state_slots;
  StagedArray<std::int32_t> tree_indptr;
  StagedArray<quire::TreeNode> tree_nodes;
  std::vector<StagedGroup> groups;  ///< in the order of the layout
  StagedArray<quire::StateCopy> state_copies;
  StagedArray<quire::StateCopy> state_saves;

 private:
  std::vector<std::byte> buffer_;
};

}  // namespace tiny_engine
