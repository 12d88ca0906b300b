// SPDX-License-Identifier: Apache-2.0
#include "quantised_rows.h"

#include <bit>
#include <cstring>
#include <utility>

#include "hybrid_model.h"

namespace tiny_engine {

// A bf16 is the upper half of an fp32; a double is rounded once, to the 8 bits that it keeps.
void to_bf16(std::span<const double> values, std::byte* target) {
  constexpr std::uint32_t kDropped = 45;  // bits of a double's fraction
  for (const double value : values) {
    auto bits = std::bit_cast<std::uint64_t>(value);
    bits += (std::uint64_t{1} << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1U);
    bits = bits >> kDropped << kDropped;
    const auto wide = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    const auto upper = static_cast<std::uint16_t>(wide >> 16U);
    std::memcpy(target, &upper, sizeof(upper));
    target += sizeof(upper);
  }
}

void from_bf16(const std::byte* source, std::span<double> values) {
  for (double& value : values) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, source, sizeof(upper));
    value = std::bit_cast<float>(std::uint32_t{upper} << 16U);
    source += sizeof(upper);
  }
}

std::optional<QuantisedRows> QuantisedRows::of(const quire::PoolGeometry& geometry) {
  std::vector<quire::QuantisedEntries> parts = quantised_parts(geometry);
  if (parts.empty()) return std::nullopt;
  return QuantisedRows(std::move(parts));
}

// Through a pool of one page.
void QuantisedRows::round(Rows& rows) const {
  const quire::PageGeometry& page = parts_.front().geometry().page();
  const std::vector<quire::QuantisedEntries> parts =
      quantised_parts(quire::PoolGeometry::create(page, {.page_count = 1}).value());
  std::vector<std::byte> pool(page.page_bytes());
  const QuantisedRows scratch(parts);
  constexpr std::int64_t kSlot = 0;
  for (std::size_t part = 0; part < rows.size(); ++part) {
    const std::size_t size = row_size(part);
    std::vector<std::byte> row(parts[part].row_bytes());
    for (std::size_t at = 0; at + size <= rows[part].size(); at += size) {
      const auto values = std::span(rows[part]).subspan(at, size);
      to_bf16(values, row.data());
      quire::append_quantised_on_host(
          {.entries = &parts[part], .pool = pool.data(), .source = row.data(), .slots = {&kSlot, 1}});
      scratch.load(pool.data(), 0, kSlot, part, values);
    }
  }
}

void QuantisedRows::append(std::byte* pool, std::uint32_t layer_index, std::span<const std::int64_t> slots,
                           const Rows& rows) const {
  for (std::size_t part = 0; part < rows.size(); ++part) {
    std::vector<std::byte> source(rows[part].size() * 2);
    to_bf16(rows[part], source.data());
    quire::append_quantised_on_host({.entries = &parts_[part],
                                     .pool = pool,
                                     .layer_index = layer_index,
                                     .source = source.data(),
                                     .slots = slots.first(rows[part].size() / row_size(part))});
  }
}

// A sequence of one page, of which one entry is selected.
void QuantisedRows::load(const std::byte* pool, std::uint32_t layer_index, std::int64_t slot, std::size_t part,
                         std::span<double> out) const {
  const auto entry_count = static_cast<std::int64_t>(parts_[part].geometry().page().entry_count());
  const auto page = static_cast<std::int32_t>(slot / entry_count);
  const auto entry = static_cast<std::int32_t>(slot % entry_count);
  const auto count = static_cast<std::int32_t>(entry_count);
  constexpr std::int32_t kRow = 0;
  std::vector<std::byte> row(parts_[part].row_bytes());
  quire::gather_selected_on_host({.entries = &parts_[part],
                                  .pool = pool,
                                  .layer_index = layer_index,
                                  .table = {.pages = &page, .rows = 1, .row_columns = 1, .entry_counts = {&count, 1}},
                                  .table_rows = {&kRow, 1},
                                  .ids = {&entry, 1},
                                  .ids_per_row = 1,
                                  .target = {.data = row.data(), .row_entries = 1}});
  from_bf16(row.data(), out);
}

}  // namespace tiny_engine
