// SPDX-License-Identifier: Apache-2.0
//
// KeyFinder: which keys a query of a step sees, where each lies and at which position RoPE has it. This is the part of
// an attention kernel that reads the plan; it uses nothing but the plan's arrays and the device's page table.
//
//     number j      0 … sink … stored_len … (earlier tree tokens) … seq_len - queries … seq_len
//     lies in       pages                   pages                   this step's K and V, or pages once appended
//
// A plan that makes no sense is reported, never followed out of bounds: tests change plans on purpose.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device_plan.h"
#include "pool_memory.h"

namespace tiny_engine {

/// Where this step's own keys are read.
enum class NewKeys : std::uint8_t {
  FromStep,  ///< as the step has computed them
  Appended,  ///< in their pages, where they have an append slot: for kernels that append first
  Held,  ///< in their pages, where they have none: they were there before, and what the step makes of them may differ
  InPages,  ///< in their pages, slot or not
};

struct KeyFinderConfig {
  std::uint32_t page_tokens = 0;
  std::uint32_t page_count = 0;  ///< of the pool; ids lie below
  NewKeys new_keys = NewKeys::FromStep;
  std::uint32_t group_index = 0;  ///< in the plan's groups
  /// Of a window group: W. Its lists are trimmed to what the step's queries see.
  std::uint32_t window_tokens = 0;
};

struct KeyReference {
  std::int64_t slot = quire::kNoSlot;  ///< in the pool …
  std::int32_t query = -1;             ///< … or, without one, the query of this step whose K and V it is
  std::int32_t position = 0;
};

/// Refers to its plan and table. single-threaded
class KeyFinder {
 public:
  KeyFinder(const DevicePlan& plan, const PageTable& table, const KeyFinderConfig& config);

  /// Fills `keys` with what query number `query` of the step sees. Empty, or what is wrong with the plan.
  [[nodiscard]] std::string find(std::int32_t query, std::vector<KeyReference>& keys) const;
  /// Likewise for layers with this window, one of the plan's: from its trimmed lists, without looking at the levels'
  /// own.
  [[nodiscard]] std::string find(std::int32_t query, const StagedLayerWindow& layer_window,
                                 std::vector<KeyReference>& keys) const;

 private:
  /// What the masks need to know of a query's entry.
  struct Entry {
    std::int32_t index = 0;
    std::int32_t first_query = 0;
    std::int32_t query_count = 0;
    std::int32_t seq_len = 0;
    std::int32_t stored_len = 0;
    std::int32_t window = 0;
    std::int32_t sink = 0;
    std::int32_t tree_begin = 0;  // in tree_nodes
    std::int32_t tree_count = 0;
    std::int32_t key_index = 0;     // the query's own number j
    std::int32_t text_index = 0;    // its place in the text: as key_index, but nodes of one depth have the same
    std::int32_t position = 0;      // for RoPE
    std::int32_t layer_window = 0;  // 0: none
  };
  struct Slice {
    StagedArray<std::int32_t> rows;
    StagedArray<std::int32_t> first_columns;
    std::int32_t index = 0;
    std::int32_t page_begin = 0;  // Csr: in page_indices
    std::int32_t page_count = 0;
    std::int32_t key_count = 0;
    std::int32_t first_key = 0;
    std::int32_t window_offset = 0;
    std::int32_t sink = 0;
  };

  [[nodiscard]] std::string read_entry(std::int32_t query, Entry& entry) const;
  [[nodiscard]] std::string read_slice(const StagedLevel& level, std::int32_t query, Slice& slice) const;
  [[nodiscard]] std::string read_trimmed(const StagedLayerWindow& layer_window, const Entry& entry, Slice& slice) const;
  /// How many keys the slice's pages hold.
  [[nodiscard]] std::string count_keys(std::int32_t last_page_tokens, Slice& slice) const;
  [[nodiscard]] std::string add_slice(const Entry& entry, const Slice& slice, std::vector<KeyReference>& keys) const;
  [[nodiscard]] std::string slot_of(const Entry& entry, const Slice& slice, std::int32_t key_in_slice,
                                    std::int64_t& slot) const;
  [[nodiscard]] std::int32_t text_index_of(const Entry& entry, std::int32_t key) const;
  [[nodiscard]] bool sees(const Entry& entry, std::int32_t key) const;

  const DevicePlan& plan_;
  const StagedGroup& group_;
  const PageTable& table_;
  KeyFinderConfig config_;
};

}  // namespace tiny_engine
