// SPDX-License-Identifier: Apache-2.0
#include "transfer/swap_layout.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked.h"

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

Status check_fragment(const SwapConfig& config, const Fragment& fragment, std::uint64_t record_offset) {
  if (fragment.first == nullptr) return invalid_swap("without an address");
  if (fragment.record_offset != record_offset) {
    return invalid_swap("at " + std::to_string(fragment.record_offset) +
                        " of the record, where what came before ends at " + std::to_string(record_offset));
  }
  if (config.device_page_count > 1 && fragment.page_stride < fragment.bytes) {
    return invalid_swap("of " + std::to_string(fragment.bytes) + " bytes with " + std::to_string(fragment.page_stride) +
                        " from page to page");
  }
  if (!checked_multiply(fragment.page_stride, config.device_page_count)) {
    return invalid_swap("with " + std::to_string(fragment.page_stride) +
                        " bytes from page to page, and device_page_count is " +
                        std::to_string(config.device_page_count) + ": pages of 2^64 bytes or more");
  }
  return {};
}

// How many pieces a page will have. Sizes may be anything until they are checked, so this comes before any is made.
Result<std::uint64_t> count_pieces(const SwapConfig& config) {
  std::uint64_t record_bytes = 0;
  std::uint64_t piece_count = 0;
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    const std::string name = "SwapConfig::layers[" + std::to_string(l) + "]";
    const std::uint64_t layer_begin = record_bytes;
    for (const Fragment& fragment : config.layers[l]) {
      if (const Status status = check_fragment(config, fragment, record_bytes); !status) {
        return invalid_swap(name + " has a fragment " + status.error().message);
      }
      const auto end = checked_add(record_bytes, fragment.bytes);
      if (!end) return invalid_swap("SwapConfig::layers: a record has 2^64 bytes or more");
      record_bytes = *end;
      piece_count += (fragment.bytes / kFragmentBytesMax) + (fragment.bytes % kFragmentBytesMax == 0 ? 0 : 1);
    }
    if (record_bytes == layer_begin) return invalid_swap(name + " has no bytes");
  }
  if (record_bytes == 0) return invalid_swap("SwapConfig::layers is empty");
  if (config.record_stride < record_bytes) {
    return invalid_swap("SwapConfig::record_stride is " + std::to_string(config.record_stride) + ", and a record has " +
                        std::to_string(record_bytes) + " bytes");
  }
  if (!checked_multiply(config.record_stride, config.record_count)) {
    return invalid_swap("SwapConfig::record_stride is " + std::to_string(config.record_stride) + ", and record_count " +
                        std::to_string(config.record_count) + ": records of 2^64 bytes or more");
  }
  const auto work = checked_multiply(config.call_pages_max, piece_count);
  if (!work || *work > std::numeric_limits<std::uint32_t>::max()) {
    return invalid_swap("SwapConfig::call_pages_max is " + std::to_string(config.call_pages_max) + ", and a page has " +
                        std::to_string(piece_count) + " pieces: give fewer than 2^32 in all");
  }
  return piece_count;
}

}  // namespace

Result<SwapLayout> SwapLayout::create(const SwapConfig& config) {
  SwapLayout layout;
  QUIRE_TRY_ASSIGN(const std::uint64_t piece_count, count_pieces(config));
  layout.pieces_.reserve(piece_count);
  std::uint64_t bits = std::bit_cast<std::uintptr_t>(config.records) | config.record_stride;
  for (const std::vector<Fragment>& layer : config.layers) {
    layout.layer_pieces_.push_back(static_cast<std::uint32_t>(layout.pieces_.size()));
    for (const Fragment& fragment : layer) {
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
  }
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
