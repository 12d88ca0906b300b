// SPDX-License-Identifier: Apache-2.0
#include "transfer/swap_layout.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "base/check.h"

namespace quire {
namespace {

// Whether b goes on where a ends, on the device as in the record.
bool follows(const Fragment& a, const Fragment& b) {
  return a.page_stride == b.page_stride && a.first + a.bytes == b.first && a.record_offset + a.bytes == b.record_offset;
}

std::uint8_t widest_access(std::uint64_t all_bits) {
  if (all_bits % 16 == 0) return 16;
  return all_bits % 4 == 0 ? 4 : 1;
}

}  // namespace

Result<SwapLayout> SwapLayout::create(const SwapConfig& config) {
  SwapLayout layout;
  std::uint64_t bits = std::bit_cast<std::uintptr_t>(config.records) | config.record_stride;
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    layout.layer_pieces_.push_back(static_cast<std::uint32_t>(layout.pieces_.size()));
    const std::uint64_t layer_begin = layout.record_bytes_;
    for (const Fragment& fragment : config.layers[l]) {
      if (fragment.record_offset != layout.record_bytes_ || fragment.first == nullptr) {
        return fail(ErrorCode::InvalidArgument,
                    "SwapConfig::layers[" + std::to_string(l) + "] has a fragment " +
                        (fragment.first == nullptr ? "without an address"
                                                   : "at " + std::to_string(fragment.record_offset) +
                                                         " of the record, where what came before ends at " +
                                                         std::to_string(layout.record_bytes_)));
      }
      bits |= std::bit_cast<std::uintptr_t>(fragment.first) | fragment.page_stride | fragment.record_offset |
              fragment.bytes;
      for (std::uint64_t at = 0; at < fragment.bytes; at += kFragmentBytesMax) {
        layout.pieces_.push_back({.first = fragment.first + at,
                                  .page_stride = fragment.page_stride,
                                  .record_offset = fragment.record_offset + at,
                                  .bytes = std::min(kFragmentBytesMax, fragment.bytes - at)});
      }
      layout.record_bytes_ += fragment.bytes;
    }
    if (layout.record_bytes_ == layer_begin) {
      return fail(ErrorCode::InvalidArgument, "SwapConfig::layers[" + std::to_string(l) + "] has no bytes");
    }
  }
  if (layout.pieces_.empty()) return fail(ErrorCode::InvalidArgument, "SwapConfig::layers is empty");
  layout.layer_pieces_.push_back(static_cast<std::uint32_t>(layout.pieces_.size()));
  layout.access_bytes_ = widest_access(bits);
  SwapBand whole;
  layout.band(1, 0, whole);
  layout.stretch_count_ = static_cast<std::uint32_t>(whole.stretches.size());
  return layout;
}

void SwapLayout::band(std::uint32_t band_count, std::uint32_t band_index, SwapBand& out) const {
  const auto first_layer_of = [&](std::uint32_t i) {
    return static_cast<std::uint32_t>(std::uint64_t{layer_count()} * i / band_count);
  };
  out.first_piece = layer_pieces_[first_layer_of(band_index)];
  out.pieces =
      std::span(pieces_).subspan(out.first_piece, layer_pieces_[first_layer_of(band_index + 1)] - out.first_piece);
  QUIRE_CHECK(!out.pieces.empty(), "a band without layers");
  out.record_begin = out.pieces.front().record_offset;
  out.bytes = out.pieces.back().record_offset + out.pieces.back().bytes - out.record_begin;
  out.stretches.clear();
  for (const Fragment& piece : out.pieces) {
    if (!out.stretches.empty() && follows(out.stretches.back(), piece)) {
      out.stretches.back().bytes += piece.bytes;
    } else {
      out.stretches.push_back(piece);
    }
  }
}

}  // namespace quire
