// SPDX-License-Identifier: Apache-2.0
//
// SmallIndexSet: a set of indices in [0, 65,536) that knows its lowest element: a bit for each index, a bit for each
// word of those that is not empty, and so on, so that everything takes three steps at most.
//
// single-threaded
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>

namespace quire {

class SmallIndexSet {
 public:
  static constexpr std::uint32_t kCapacity = 65'536;

  void insert(std::uint32_t index) {
    bits_[index / 64] |= bit(index);
    words_[index / 4'096] |= bit(index / 64);
    groups_ |= bit(index / 4'096);
  }
  void erase(std::uint32_t index) {
    bits_[index / 64] &= ~bit(index);
    if (bits_[index / 64] == 0) words_[index / 4'096] &= ~bit(index / 64);
    if (words_[index / 4'096] == 0) groups_ &= ~bit(index / 4'096);
  }
  [[nodiscard]] std::optional<std::uint32_t> lowest() const {
    if (groups_ == 0) return std::nullopt;
    const auto group = static_cast<std::uint32_t>(std::countr_zero(groups_));
    const auto word = (group * 64) + static_cast<std::uint32_t>(std::countr_zero(words_[group]));
    return (word * 64) + static_cast<std::uint32_t>(std::countr_zero(bits_[word]));
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t bit(std::uint32_t index) { return std::uint64_t{1} << (index % 64); }

  std::array<std::uint64_t, kCapacity / 64> bits_{};
  std::array<std::uint64_t, kCapacity / 4'096> words_{};
  std::uint64_t groups_ = 0;
};

}  // namespace quire
