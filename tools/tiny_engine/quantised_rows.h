// SPDX-License-Identifier: Apache-2.0
//
// QuantisedRows: what a group stores in 8 bits, as rows of doubles. A part is K, V or the entries of a compressor;
// quire takes and gives its rows in bf16. What a row is once it is stored and read again, round() says beforehand, so
// that a step sees of its own tokens what later steps will see of them.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pool_memory.h"
#include "quire/layout.h"
#include "quire/quantised_kernels.h"

namespace tiny_engine {

/// To the nearest, ties to even.
void to_bf16(std::span<const double> values, std::byte* target);
void from_bf16(const std::byte* source, std::span<double> values);

class QuantisedRows {
 public:
  /// In the group's pages, or in its part of the state slots. Nothing where it stores doubles.
  [[nodiscard]] static std::optional<QuantisedRows> of(const quire::PoolGeometry& geometry);

  [[nodiscard]] const std::vector<quire::QuantisedEntries>& parts() const { return parts_; }
  /// Numbers of a row.
  [[nodiscard]] std::size_t row_size(std::size_t part) const { return parts_[part].row_bytes() / 2; }
  void round(Rows& rows) const;

  // In the host's memory. Slots lie in the pool.
  void append(std::byte* pool, std::uint32_t layer_index, std::span<const std::int64_t> slots, const Rows& rows) const;
  void load(const std::byte* pool, std::uint32_t layer_index, std::int64_t slot, std::size_t part,
            std::span<double> out) const;

 private:
  explicit QuantisedRows(std::vector<quire::QuantisedEntries> parts) : parts_(std::move(parts)) {}

  std::vector<quire::QuantisedEntries> parts_;
};

}  // namespace tiny_engine
