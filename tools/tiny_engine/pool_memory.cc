// SPDX-License-Identifier: Apache-2.0
#include "pool_memory.h"

#include <algorithm>
#include <cstring>

#include "quire/host_kernels.h"

namespace tiny_engine {

// Not a page: what no delta has filled must not be read.
PageTable::PageTable(std::uint32_t row_count, std::uint32_t column_count)
    : rows(row_count), columns(column_count), pages(std::size_t{row_count} * column_count, -1) {}

bool has_slot(const PoolMemory& pool, std::int64_t slot) {
  return slot >= 0 && static_cast<std::uint64_t>(slot) <
                          std::uint64_t{pool.geometry.page_count()} * pool.geometry.page().entry_count();
}

bool may_write(const PoolMemory& pool, std::int64_t slot) {
  return has_slot(pool, slot) && slot >= std::int64_t{pool.geometry.page().entry_count()};
}

std::string check_deltas(std::uint32_t rows, std::uint32_t columns, std::span<const quire::PageDelta> deltas) {
  for (const quire::PageDelta& delta : deltas) {
    const bool is_inside = delta.row >= 0 && static_cast<std::uint32_t>(delta.row) < rows && delta.column >= 0 &&
                           static_cast<std::uint32_t>(delta.column) < columns;
    if (!is_inside) return "a delta lies outside the page table";
  }
  return "";
}

std::string check_moves(const PoolMemory& pool, std::span<const quire::TokenMove> moves,
                        std::span<const std::int32_t> indptr) {
  for (const quire::TokenMove& move : moves) {
    if (!has_slot(pool, move.source_slot) || !may_write(pool, move.target_slot)) return "a move leaves the pool";
  }
  if (indptr.empty()) return moves.empty() ? "" : "moves belong to no sequence";
  if (indptr.front() != 0 || static_cast<std::size_t>(indptr.back()) != moves.size()) return "move_indptr misses moves";
  for (std::size_t i = 0; i + 1 < indptr.size(); ++i) {
    if (indptr[i] > indptr[i + 1] || indptr[i] < 0) return "move_indptr descends";
  }
  return "";
}

std::string check_copies(const PoolMemory& pool, std::span<const quire::PageCopy> copies) {
  const std::uint32_t page_count = pool.geometry.page_count();
  for (const quire::PageCopy& copy : copies) {
    if (copy.source.value >= page_count || copy.target.value >= page_count) return "a copy leaves the pool";
    if (copy.target == quire::kNullPage) return "a copy writes the null page";
    if (copy.token_count > pool.geometry.page().options().page_tokens) return "a copy is longer than a page";
  }
  return "";
}

std::string check_slots(const PoolMemory& pool, std::span<const std::int64_t> slots, std::size_t token_count) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == quire::kNoSlot) continue;
    if (!may_write(pool, slots[i])) return "a slot lies outside the pool or in the null page";
    if (i >= token_count) return "padding has a slot";
  }
  return "";
}

std::string apply_deltas(PageTable& table, std::span<const quire::PageDelta> deltas) {
  if (std::string problem = check_deltas(table.rows, table.columns, deltas); !problem.empty()) return problem;
  quire::apply_deltas_on_host(
      {.table = table.pages.data(), .rows = table.rows, .row_columns = table.columns, .deltas = deltas});
  return "";
}

std::string apply_moves(const PoolMemory& pool, std::span<const quire::TokenMove> moves,
                        std::span<const std::int32_t> indptr) {
  if (std::string problem = check_moves(pool, moves, indptr); !problem.empty() || indptr.empty()) return problem;
  for (std::size_t i = indptr.size() - 1; i-- > 0;) {
    quire::move_tokens_on_host({.geometry = &pool.geometry,
                                .pool = pool.bytes,
                                .moves = moves.subspan(static_cast<std::size_t>(indptr[i]),
                                                       static_cast<std::size_t>(indptr[i + 1] - indptr[i]))});
  }
  return "";
}

std::string apply_copies(const PoolMemory& pool, std::span<const quire::PageCopy> copies) {
  if (std::string problem = check_copies(pool, copies); !problem.empty()) return problem;
  quire::copy_pages_on_host({.geometry = &pool.geometry, .pool = pool.bytes, .copies = copies});
  return "";
}

std::string append_rows(const PoolMemory& pool, std::span<const std::int64_t> slots, std::uint32_t layer_index,
                        const Rows& rows) {
  for (std::uint32_t component = 0; component < rows.size(); ++component) {
    const std::uint64_t token_bytes = pool.geometry.page().group().components[component].heads *
                                      pool.geometry.page().components()[component].head_bytes;
    const std::size_t count =
        std::min<std::size_t>(slots.size(), rows[component].size() * sizeof(double) / token_bytes);
    if (std::string problem = check_slots(pool, slots, count); !problem.empty()) return problem;
    quire::append_on_host({.geometry = &pool.geometry,
                           .pool = pool.bytes,
                           .layer_index = layer_index,
                           .component_index = component,
                           .source = reinterpret_cast<const std::byte*>(rows[component].data()),
                           .slots = slots.first(count)});
  }
  return "";
}

void load_row(const PoolMemory& pool, std::int64_t slot, std::uint32_t layer_index, std::uint32_t component,
              std::span<double> out) {
  const quire::PageGeometry& page = pool.geometry.page();
  const std::uint32_t page_entries = page.entry_count();
  const std::uint32_t heads = page.group().components[component].heads;
  const std::size_t head_doubles = out.size() / heads;
  for (std::uint32_t head = 0; head < heads; ++head) {
    const std::uint64_t offset =
        pool.geometry.strides().offset_of({.page = {static_cast<std::uint32_t>(slot / page_entries)},
                                           .layer_index = layer_index,
                                           .component_index = component,
                                           .token_index = static_cast<std::uint32_t>(slot % page_entries),
                                           .head_index = head});
    std::memcpy(&out[head * head_doubles], pool.bytes + offset, head_doubles * sizeof(double));
  }
}

}  // namespace tiny_engine
