// SPDX-License-Identifier: Apache-2.0
//
// SwapLayout: the fragments of a page as the three ways of a swap need them: cut to what a warp takes, and joined to
// stretches that a copy engine moves in one piece.
//
// immutable
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/swap.h"

namespace quire {

/// A mistake of the caller's.
[[nodiscard]] inline tl::unexpected<Error> invalid_swap(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Some layers of a page.
struct SwapBand {
  std::span<const Fragment> pieces;  ///< none longer than kFragmentBytesMax
  std::uint32_t first_piece = 0;     ///< in all pieces
  std::vector<Fragment> stretches;   ///< as long as they go
  std::uint64_t record_begin = 0;
  std::uint64_t bytes = 0;
};

class SwapLayout {
 public:
  /// Fails on layers without bytes, on fragments that do not follow each other in the record or whose pages overlap,
  /// and on sizes that do not fit into records, or into numbers.
  [[nodiscard]] static Result<SwapLayout> create(const SwapConfig& config);

  [[nodiscard]] std::uint32_t layer_count() const { return static_cast<std::uint32_t>(layer_pieces_.size()) - 1; }
  [[nodiscard]] std::uint64_t record_bytes() const { return record_bytes_; }
  [[nodiscard]] std::span<const Fragment> pieces() const { return pieces_; }
  /// What all addresses, lengths, strides and offsets are multiples of: 16, 4 or 1.
  [[nodiscard]] std::uint8_t access_bytes() const { return access_bytes_; }
  /// Of one page and all layers.
  [[nodiscard]] std::uint32_t stretch_count() const { return stretch_count_; }
  /// Layers as evenly as they go; `stretches` of `out` keeps its memory.
  void band(std::uint32_t band_count, std::uint32_t band_index, SwapBand& out) const;

 private:
  SwapLayout() = default;
  std::vector<Fragment> pieces_;
  std::vector<std::uint32_t> layer_pieces_;  // the first piece of each layer, and the end
  std::uint64_t record_bytes_ = 0;
  std::uint32_t stretch_count_ = 0;
  std::uint8_t access_bytes_ = 1;
};

}  // namespace quire
