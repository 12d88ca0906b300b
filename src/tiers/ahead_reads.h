// SPDX-License-Identifier: Apache-2.0
//
// AheadReads: which sequences run ahead on which loads. A sequence that is RunningAhead has pages in its rows that a
// load is still filling. It depends on that load, and not only on what the tree has in the end: if the load fails, the
// step has read wrong bytes, even where somebody else has computed the same page meanwhile.
//
// single-threaded
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

class AheadReads {
 public:
  void open(std::uint32_t sequence_count, std::uint32_t transfer_count) {
    words_ = (std::size_t{transfer_count} + 63) / 64;
    bits_.assign(sequence_count * words_, 0);
  }
  void add(std::uint32_t sequence, std::uint32_t load) { word(sequence, load) |= bit(load); }
  void remove(std::uint32_t sequence, std::uint32_t load) { word(sequence, load) &= ~bit(load); }
  void clear(std::uint32_t sequence) { std::ranges::fill(row(sequence), 0); }
  [[nodiscard]] bool has(std::uint32_t sequence, std::uint32_t load) const {
    return (bits_[(sequence * words_) + (load / 64)] & bit(load)) != 0;
  }
  [[nodiscard]] bool has_any(std::uint32_t sequence) const {
    return std::ranges::any_of(row(sequence), [](std::uint64_t each) { return each != 0; });
  }
  /// Calls visit(load) for each load that a sequence runs ahead on, in ascending order. It may remove that load.
  template <typename Visitor>
  void for_each(std::uint32_t sequence, Visitor&& visit) const {
    for (std::size_t i = 0; i < words_; ++i) {
      for (std::uint64_t left = row(sequence)[i]; left != 0; left &= left - 1) {
        visit(static_cast<std::uint32_t>((i * 64) + static_cast<std::size_t>(std::countr_zero(left))));
      }
    }
  }

 private:
  [[nodiscard]] static std::uint64_t bit(std::uint32_t load) { return std::uint64_t{1} << (load % 64); }
  [[nodiscard]] std::uint64_t& word(std::uint32_t sequence, std::uint32_t load) {
    return bits_[(sequence * words_) + (load / 64)];
  }
  [[nodiscard]] std::span<std::uint64_t> row(std::uint32_t sequence) {
    return std::span(bits_).subspan(sequence * words_, words_);
  }
  [[nodiscard]] std::span<const std::uint64_t> row(std::uint32_t sequence) const {
    return std::span(bits_).subspan(sequence * words_, words_);
  }

  std::size_t words_ = 0;
  std::vector<std::uint64_t> bits_;  // words_ for each sequence, a bit for each transfer
};

}  // namespace quire
