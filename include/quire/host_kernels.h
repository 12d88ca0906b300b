// SPDX-License-Identifier: Apache-2.0
//
// The byte work of a step in host memory: what a CPU engine runs, and the judge of every device kernel. Each function
// takes a parameter struct, touches nothing but the bytes it names, and picks vector instructions the processor has.
// `pool` is where the geometry's first byte lies: Cache::device_memory() with Cache::geometry(), or an engine's own
// memory. Slots and pages must lie in the pool; one outside stops the program.
//
// thread-safe: calls on memory that does not overlap may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/state_slots.h"

namespace quire {

/// K or V (any component) of a step's tokens in one layer.
struct AppendParams {
  const PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;      ///< in the group
  std::uint32_t component_index = 0;  ///< in the group
  /// [tokens][heads on a rank][dim], as the model's projections give it.
  const std::byte* source = nullptr;
  /// From one token of `source` to the next; 0: they are dense. Larger than a token when K and V come fused.
  std::uint64_t source_token_bytes = 0;
  std::span<const std::int64_t> slots = {};  ///< one per token; kNoSlot is skipped
};
/// Writes each token at its slot.
void append_on_host(const AppendParams& params);

struct ReadRowsParams {
  const PoolGeometry* geometry = nullptr;
  const std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;      ///< in the group
  std::uint32_t component_index = 0;  ///< in the group
  /// [tokens][heads on a rank][dim]
  std::byte* target = nullptr;
  std::uint64_t target_token_bytes = 0;      ///< from one token of `target` to the next; 0: they are dense
  std::span<const std::int64_t> slots = {};  ///< one per token; kNoSlot reads as zeros
};
/// What append_on_host() wrote at the slots, as it was given: to look at a cache.
void read_rows_on_host(const ReadRowsParams& params);

struct CopyPagesParams {
  const PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  std::span<const PageCopy> copies = {};
};
/// Copies the first tokens of pages, in all layers.
void copy_pages_on_host(const CopyPagesParams& params);

struct MoveTokensParams {
  const PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  std::span<const TokenMove> moves = {};
};
/// Moves tokens from slot to slot, one after the other, in all layers.
void move_tokens_on_host(const MoveTokensParams& params);

struct CopyStatesParams {
  const StateSlots* slots = nullptr;
  std::byte* state = nullptr;  ///< the first slot's first byte
  std::uint32_t slot_count = 0;
  /// By group of the layout; null where a group has no pages.
  std::span<const PoolGeometry* const> geometries = {};
  std::span<std::byte* const> pools = {};
  std::span<const StateCopy> copies = {};
};
/// Resets, restores, saves and forks parts of state slots, in order. In a snapshot, entries stand by position:
///
///     a state          one entry, which is version position mod (slot_history + 1) of a slot
///     rows by position those of the last snapshot_entries tokens before `position`, the newest last
///     a ring           the sink's, then those of the last window_tokens tokens, the newest last
///
/// Entries before the first token have the group's initial bytes. A row of token t is entry ring_entry(t) of the slot,
/// in version position mod (slot_history + 1); a restored slot's other versions stay what they are, and so do the
/// entries of tokens that the snapshot has not. One at a position before which there are fewer tokens than it has
/// entries makes all others of the version initial. All layers and components; slots lie one after the other, and a
/// part's place in them is StatePart::offset. A slot, page or group that there is not stops the program, the null page
/// too.
void copy_states_on_host(const CopyStatesParams& params);

struct ResetPagesParams {
  const PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  std::span<const PageId> pages = {};  ///< of a pool of state slots: the numbers of the slots
};
/// Gives pages or state slots the bytes that their group's components begin with, in all layers; padding becomes zero.
void reset_pages_on_host(const ResetPagesParams& params);

struct ApplyDeltasParams {
  std::int32_t* table = nullptr;  ///< [rows][row_columns]
  std::uint32_t rows = 0;
  std::uint32_t row_columns = 0;
  std::span<const PageDelta> deltas = {};
};
/// table[row][column] = page for every delta.
void apply_deltas_on_host(const ApplyDeltasParams& params);

struct ListPagesParams {
  const std::int32_t* table = nullptr;  ///< [rows][row_columns]
  std::uint32_t rows = 0;
  std::uint32_t row_columns = 0;
  // Of a cascade level or of a layer window, as plans with PageTables::Rows have them.
  std::span<const std::int32_t> slice_rows = {};     ///< [slices] the table's row that lists a slice's pages
  std::span<const std::int32_t> first_columns = {};  ///< [slices] from this column on
  std::span<const std::int32_t> page_indptr =
      {};                                     ///< [slices + 1] ascending; slice i has page_indptr[i + 1] - [i] pages
  std::span<std::int32_t> page_indices = {};  ///< written from page_indptr[0] up to page_indptr[slices]
};
/// The lists of PageTables::Csr from a table of rows: page_indices[page_indptr[i] + k] is column first_columns[i] + k
/// of row slice_rows[i]. Slices without pages have no row.
void list_pages_on_host(const ListPagesParams& params);

}  // namespace quire
