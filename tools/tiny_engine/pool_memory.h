// SPDX-License-Identifier: Apache-2.0
//
// The memory that an engine computes in: pools of pages, and the page tables of PageTables::Rows. What a plan asks of
// them is done by quire's own host kernels; before that it is checked, so that a plan that names places outside is
// reported and not followed.
//
// Every function gives what is wrong, or an empty text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/layout.h"
#include "quire/plan.h"

namespace tiny_engine {

/// A pool's bytes and where in them each row lies.
struct PoolMemory {
  quire::PoolGeometry geometry;
  std::byte* bytes = nullptr;
};

/// The table that a device keeps for PageTables::Rows.
struct PageTable {
  PageTable() = default;
  PageTable(std::uint32_t row_count, std::uint32_t column_count);

  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  std::vector<std::int32_t> pages;  ///< [rows][columns]
};

/// What this step's queries store in one layer: a vector of rows for each component.
using Rows = std::vector<std::vector<double>>;

/// Slots count the entries of all pages, those of the null page first.
[[nodiscard]] bool has_slot(const PoolMemory& pool, std::int64_t slot);
/// Everybody reads the null page, so nobody may write it.
[[nodiscard]] bool may_write(const PoolMemory& pool, std::int64_t slot);

// What is checked before anything is done, wherever that is done.
[[nodiscard]] std::string check_deltas(std::uint32_t rows, std::uint32_t columns,
                                       std::span<const quire::PageDelta> deltas);
[[nodiscard]] std::string check_moves(const PoolMemory& pool, std::span<const quire::TokenMove> moves,
                                      std::span<const std::int32_t> indptr);
[[nodiscard]] std::string check_copies(const PoolMemory& pool, std::span<const quire::PageCopy> copies);
/// Of a step with so many tokens: slots behind them are padding.
[[nodiscard]] std::string check_slots(const PoolMemory& pool, std::span<const std::int64_t> slots,
                                      std::size_t token_count);

[[nodiscard]] std::string apply_deltas(PageTable& table, std::span<const quire::PageDelta> deltas);
/// `indptr` says whose moves are whose; they are run last sequence first, since only a sequence's own moves depend on
/// each other.
[[nodiscard]] std::string apply_moves(const PoolMemory& pool, std::span<const quire::TokenMove> moves,
                                      std::span<const std::int32_t> indptr);
[[nodiscard]] std::string apply_copies(const PoolMemory& pool, std::span<const quire::PageCopy> copies);
/// Writes `rows` at `slots`, which may be longer: the rest is padding.
[[nodiscard]] std::string append_rows(const PoolMemory& pool, std::span<const std::int64_t> slots,
                                      std::uint32_t layer_index, const Rows& rows);
/// All heads of one component of the entry at a slot, one after the other.
void load_row(const PoolMemory& pool, std::int64_t slot, std::uint32_t layer_index, std::uint32_t component,
              std::span<double> out);

}  // namespace tiny_engine
