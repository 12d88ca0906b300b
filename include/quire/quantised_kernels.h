// SPDX-License-Identifier: Apache-2.0
//
// Entries whose values are stored in 8 bits, in host memory: what a CPU engine of a hybrid model runs, and the judge of
// device kernels. Appending quantises rows of bf16 into the entries of a format (entry_formats.h), in pages of windows,
// in pages of compressed groups and in rings alike; gathering makes dense rows of bf16 of them again.
//
//     a row of bf16    [dim values][rope_dim values]
//     an entry         [dim codes]  [rope_dim bf16] [scales] [position]     in the places its components have
//
// K or V of several heads is an entry too: a row is [heads][dim values], without rope values, and each head has codes
// and scales of its own, in the places that its components give to their heads.
//
// A code is E4M3 (greatest 448, no infinities), a value is code * scale, and a block of consecutive values shares a
// scale. Rope values are copied bit for bit. With a being the greatest finite magnitude of a block, the scale is
//
//     fp32    a / 448, not below 2^-126
//     UE8M0   the least power of two not below max(a, 0.0001) / 448; a byte b stands for 2^(b - 127)
//
// so that a value comes back within 1/16 of itself where its code is a normal number, and always within 3.6 % of a with
// scales of fp32, 6.25 % with UE8M0; rounding to bf16 adds 2^-9 of it. Blocks far below the least scale (a < 2^-117;
// a < 0.0001) come back with the steps of that scale, zeros as zeros. What is not finite has no part in the scale: NaN
// is stored and comes back as NaN, an infinity as 448 * scale with its sign. A stored scale that is not finite makes
// its block NaN.
//
// Formats that do not fit are errors of QuantisedEntries::create. Slots, pages, layers and rows that lie outside stop
// the program, as do targets that are too small.
//
// thread-safe: calls on memory that does not overlap may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "quire/entry_formats.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/result.h"

namespace quire {

inline constexpr std::uint32_t kNoComponent = std::numeric_limits<std::uint32_t>::max();

/// Which components of a group are what in an entry.
struct QuantisedComponents {
  std::uint32_t values = kNoComponent;  ///< Fp8
  std::uint32_t scales = kNoComponent;  ///< Fp32, or Bytes for UE8M0, which may end with less than 8 bytes of padding
  std::uint32_t rope = kNoComponent;    ///< Bf16, or none
  std::uint32_t positions = kNoComponent;  ///< one Int32, or none
  std::uint32_t block_values = 0;          ///< values that share a scale; 0: all of them. The last block may be shorter
  friend bool operator==(const QuantisedComponents&, const QuantisedComponents&) = default;
};

enum class ScaleForm : std::uint8_t { Fp32, Ue8m0 };

/// Quantised entries in a pool of pages or of state slots. immutable.
class QuantisedEntries {
 public:
  /// Fails with InvalidArgument on components that the group does not have, that have another element type, on scales
  /// that are too few or too many for the values or have another number of heads, on rope values and positions of
  /// several heads, and on rope values beside values of several heads.
  [[nodiscard]] static Result<QuantisedEntries> create(PoolGeometry geometry, const QuantisedComponents& components);
  /// The components that use_format(group, format, prefix) gave the group. Fails also on formats without E4M3 values:
  /// with Unsupported where values have 4 bits (EntryFormat::value_bits).
  [[nodiscard]] static Result<QuantisedEntries> create(PoolGeometry geometry, const EntryFormat& format,
                                                       std::string_view prefix = "");

  [[nodiscard]] const PoolGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const QuantisedComponents& components() const { return components_; }
  [[nodiscard]] ScaleForm scale_form() const { return scale_form_; }
  /// On a rank.
  [[nodiscard]] std::uint32_t head_count() const { return head_count_; }
  /// Values of one head.
  [[nodiscard]] std::uint32_t dim() const { return dim_; }
  [[nodiscard]] std::uint32_t rope_dim() const { return rope_dim_; }
  /// Values that share a scale.
  [[nodiscard]] std::uint32_t block_values() const { return block_values_; }
  /// Of a row of bf16: dim() values for each head, then rope_dim().
  [[nodiscard]] std::uint64_t row_bytes() const { return 2 * ((std::uint64_t{head_count_} * dim_) + rope_dim_); }

 private:
  QuantisedEntries(PoolGeometry geometry, const QuantisedComponents& components)
      : geometry_(std::move(geometry)), components_(components) {}

  PoolGeometry geometry_;
  QuantisedComponents components_;
  ScaleForm scale_form_ = ScaleForm::Fp32;
  std::uint32_t head_count_ = 1;
  std::uint32_t dim_ = 0;
  std::uint32_t rope_dim_ = 0;
  std::uint32_t block_values_ = 0;
};

/// Rows of a step's tokens, or of the entries that they completed, in one layer.
struct AppendQuantisedParams {
  const QuantisedEntries* entries = nullptr;
  std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;  ///< in the group
  /// bf16 [rows][heads * dim + rope_dim].
  const std::byte* source = nullptr;
  std::uint64_t source_row_bytes = 0;  ///< from one row of `source` to the next; 0: they are dense
  /// One per row: page * entry_count + entry, or ring_slots(). kNoSlot is skipped. Of two rows at one slot the last
  /// stays.
  std::span<const std::int64_t> slots = {};
  std::span<const std::int32_t> positions = {};  ///< one per row where entries have a position, else empty
};
/// Writes each row at its slot: codes, scales and what pads them, rope values and the position.
void append_quantised_on_host(const AppendQuantisedParams& params);

/// Consecutive tokens of one sequence, and the ring in its state slot.
struct RingSlotsParams {
  std::uint32_t state_slot = 0;
  std::uint32_t ring_entries = 0;      ///< PageGeometry::entry_count() of the slot's geometry
  std::uint64_t first_position = 0;    ///< of the first token
  std::span<std::int64_t> slots = {};  ///< one per token: written
  std::uint32_t sink_tokens = 0;       ///< of the group, fewer than ring_entries
};
/// state_slot * ring_entries + ring_entry() of the position, as plans have them in append_slots: the sink's tokens come
/// first, the others go round in the room behind them. kNoSlot for those that a later one of the slots would overwrite:
/// by whom would depend on the order.
void ring_slots(const RingSlotsParams& params);

/// Pages of sequences, a row each, and how much of them is written.
struct EntryTable {
  const std::int32_t* pages = nullptr;  ///< [rows][row_columns]; entries of a page that is negative count as skipped
  std::uint32_t rows = 0;
  std::uint32_t row_columns = 0;
  /// [rows] floor(length / tokens_per_entry): a page's last entries may be another sequence's from before.
  std::span<const std::int32_t> entry_counts = {};
};

/// Dense rows of bf16, [rows][row_entries][heads * dim + rope_dim]. A gather writes the places from first_entry on, as
/// many as it is asked for, and fills those with zeros that get no entry; so a window and selected entries can share a
/// target.
struct GatherTarget {
  std::byte* data = nullptr;
  std::uint64_t row_entries = 0;
  std::uint64_t first_entry = 0;
  /// [rows] places that got an entry; empty: nobody asks
  std::span<std::int32_t> valid_counts = {};
};

struct GatherSelectedParams {
  const QuantisedEntries* entries = nullptr;
  const std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;
  EntryTable table = {};
  std::span<const std::int32_t> table_rows = {};  ///< [rows] whose entries a row selects from; negative: nobody's
  /// [rows][ids_per_row] entries of the sequence, from 0. -1, and all others that the sequence does not have, are
  /// skipped: their places become zeros, and stay where they are.
  std::span<const std::int32_t> ids = {};
  std::uint32_t ids_per_row = 0;
  GatherTarget target = {};
};
/// The entries that an indexer has chosen for each query.
void gather_selected_on_host(const GatherSelectedParams& params);

struct GatherLastParams {
  const QuantisedEntries* entries = nullptr;
  const std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;
  EntryTable table = {};
  std::span<const std::int32_t> table_rows = {};  ///< [rows] negative: no sequence
  std::uint32_t entries_max = 0;                  ///< of each row: the window, or the longest sequence's entries
  GatherTarget target = {};
};
/// The last entries of each sequence, oldest first, without gaps: all of them where entries_max is enough.
void gather_last_on_host(const GatherLastParams& params);

struct GatherRingParams {
  const QuantisedEntries* entries = nullptr;  ///< in a pool of state slots: each a ring of entry_count() places
  const std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;
  std::span<const std::int32_t> state_slots = {};  ///< [rows] negative: no sequence
  std::span<const std::int32_t> lengths = {};  ///< [rows] tokens of the sequence, those whose entries were dropped too
  std::uint32_t entries_max = 0;               ///< of each row, at most the ring's
  GatherTarget target = {};
};
/// The last tokens of each sequence, oldest first, without gaps. Where the group has a sink, its tokens come first, and
/// the others are the last of those behind it; entries_max has room for the sink.
void gather_ring_on_host(const GatherRingParams& params);

}  // namespace quire
