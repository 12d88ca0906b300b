// SPDX-License-Identifier: Apache-2.0
//
// Twins of the quantised kernels that go value by value, with numbers looked up in tables that are made from the
// formats' definitions; and the pools they are tried on. Nothing here knows how the kernels do it.
//
// single-threaded
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/copy_rows.h"
#include "kernels/e4m3_rows.h"
#include "quire/entry_formats.h"
#include "quire/layout.h"
#include "quire/quantised_kernels.h"
#include "testing/seeded_run.h"

namespace quire::testing {

/// By the definition of the format.
[[nodiscard]] inline double naive_e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The nearest of all codes; of two, the even one.
[[nodiscard]] inline std::uint8_t naive_to_e4m3(double value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  std::uint8_t best = 0;
  for (std::uint8_t code = 1; code < 0x7f; ++code) {
    const double distance = std::abs(std::abs(value) - naive_e4m3(code));
    const double best_distance = std::abs(std::abs(value) - naive_e4m3(best));
    if (std::isinf(value) || distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return sign | best;
}

[[nodiscard]] inline float naive_bf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16U;
  float value = 0;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

/// The nearer of the two neighbours; of two, the even one.
[[nodiscard]] inline std::uint16_t naive_to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto below = static_cast<std::uint16_t>(bits >> 16U);
  if (std::isnan(value)) return (below & 0x8000U) | 0x7fc0U;
  if (std::isinf(value)) return below;
  const auto above = static_cast<std::uint16_t>(below + 1);
  // Where there would be the next number, also if infinity stands in its place.
  const double next = (below & 0x7fffU) == 0x7f7fU ? std::ldexp(1.0, 128) : std::abs(naive_bf16(above));
  const double to_below = std::abs(value) - std::abs(double{naive_bf16(below)});
  const double to_above = next - std::abs(value);
  if (to_below == to_above) return below % 2 == 0 ? below : above;
  return to_below < to_above ? below : above;
}

/// A row of bf16 as bits: mostly ordinary numbers, some zeros, tiny and huge ones and what is not finite.
[[nodiscard]] inline std::vector<std::uint16_t> random_row(Random& random, std::size_t count) {
  std::vector<std::uint16_t> row(count);
  const std::uint32_t kind = random.below(4);  // of the row: all ordinary, some special, any bits, all zero
  for (std::uint16_t& bits : row) {
    const std::uint32_t exponent = kind == 2 ? random.below(256) : 115 + random.below(16);
    bits = static_cast<std::uint16_t>((random.below(2) << 15U) | (exponent << 7U) | random.below(128));
    if (kind == 3 || (kind == 1 && random.below(8) == 0)) bits &= 0x8000U;
    if (kind == 1 && random.below(16) == 0) bits = static_cast<std::uint16_t>(0x7f80U | (bits & 0x80ffU));
  }
  return row;
}

struct NaiveRow {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;  ///< bytes
};

/// The values of a row, without rope values.
[[nodiscard]] inline NaiveRow encode_naively(const std::vector<std::uint16_t>& row, std::uint32_t block_values,
                                             ScaleForm form, std::size_t scales_bytes) {
  NaiveRow encoded{.codes = {}, .scales = std::vector<std::uint8_t>(scales_bytes)};
  for (std::size_t first = 0; first < row.size(); first += block_values) {
    const std::size_t end = std::min<std::size_t>(row.size(), first + block_values);
    float greatest = 0;
    for (std::size_t i = first; i < end; ++i) {
      const float magnitude = std::abs(naive_bf16(row[i]));
      if (std::isfinite(magnitude)) greatest = std::max(greatest, magnitude);
    }
    float scale = std::max(greatest / 448.0F, 0x1p-126F);
    const std::size_t block = first / block_values;
    if (form == ScaleForm::Ue8m0) {
      int exponent = -127;
      while (std::ldexp(1.0, exponent) < std::max(greatest, 1e-4F) / 448.0) ++exponent;
      scale = std::ldexp(1.0F, exponent);
      encoded.scales[block] = static_cast<std::uint8_t>(exponent + 127);
    } else {
      std::memcpy(encoded.scales.data() + (block * 4), &scale, 4);
    }
    for (std::size_t i = first; i < end; ++i) {
      encoded.codes.push_back(naive_to_e4m3(naive_bf16(row[i]) * (1.0F / scale)));
    }
  }
  return encoded;
}

[[nodiscard]] inline float naive_scale(const std::uint8_t* scales, std::size_t block, ScaleForm form) {
  if (form == ScaleForm::Fp32) {
    float scale = 0;
    std::memcpy(&scale, scales + (block * 4), 4);
    return scale;
  }
  if (scales[block] == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0F, scales[block] - 127);
}

[[nodiscard]] inline std::vector<std::uint16_t> decode_naively(const std::uint8_t* codes, std::size_t dim,
                                                               const std::uint8_t* scales, std::uint32_t block_values,
                                                               ScaleForm form) {
  std::vector<std::uint16_t> row;
  for (std::size_t i = 0; i < dim; ++i) {
    const float scale = naive_scale(scales, i / block_values, form);
    if (!std::isfinite(scale)) {
      row.push_back(0x7fc0);
    } else if (std::isnan(naive_e4m3(codes[i]))) {
      row.push_back(static_cast<std::uint16_t>(0x7fc0U | ((codes[i] & 0x80U) << 8U)));
    } else {
      row.push_back(naive_to_bf16(static_cast<float>(naive_e4m3(codes[i])) * scale));
    }
  }
  return row;
}

/// Where a component of an entry lies in a pool.
[[nodiscard]] inline std::uint64_t entry_offset(const QuantisedEntries& entries, std::int64_t slot,
                                                std::uint32_t layer_index, std::uint32_t component_index,
                                                std::uint32_t head_index = 0) {
  const std::uint32_t entry_count = entries.geometry().page().entry_count();
  return entries.geometry().offset_of({.page = PageId{static_cast<std::uint32_t>(slot / entry_count)},
                                       .layer_index = layer_index,
                                       .component_index = component_index,
                                       .token_index = static_cast<std::uint32_t>(slot % entry_count),
                                       .head_index = head_index});
}

/// The row of bf16 that an entry stands for.
[[nodiscard]] inline std::vector<std::uint16_t> read_naively(const QuantisedEntries& entries, const std::byte* pool,
                                                             std::int64_t slot, std::uint32_t layer_index) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(pool);
  const QuantisedComponents& parts = entries.components();
  std::vector<std::uint16_t> row;
  for (std::uint32_t head = 0; head < entries.head_count(); ++head) {
    const std::vector<std::uint16_t> values =
        decode_naively(bytes + entry_offset(entries, slot, layer_index, parts.values, head), entries.dim(),
                       bytes + entry_offset(entries, slot, layer_index, parts.scales, head), entries.block_values(),
                       entries.scale_form());
    row.insert(row.end(), values.begin(), values.end());
  }
  row.resize(entries.row_bytes() / 2);
  if (parts.rope != kNoComponent) {
    std::memcpy(row.data() + entries.dim(), bytes + entry_offset(entries, slot, layer_index, parts.rope),
                std::size_t{2} * entries.rope_dim());
  }
  return row;
}

struct NamedCodec {
  const char* name;
  const E4m3Codec* codec;
};

/// One for each set of instructions that the processor has.
[[nodiscard]] inline std::vector<NamedCodec> codecs_here() {
  std::vector<NamedCodec> codecs;
  for (const auto& [name, instructions] :
       {std::pair{"portable", InstructionSet::Portable}, std::pair{"avx2", InstructionSet::Avx2},
        std::pair{"avx512", InstructionSet::Avx512}}) {
    if (is_available(instructions)) codecs.push_back({name, &pick_e4m3_codec(instructions)});
  }
  return codecs;
}

/// Entries of a format in a pool of a few pages, and what to call them.
struct QuantisedCase {
  std::string name;
  QuantisedEntries entries;
};

/// K of several heads, each with its scales: arrays, or records that K shares with V.
struct HeadsShape {
  std::uint32_t heads = 1;
  std::uint32_t dim = 1;
  std::uint32_t block_values = 0;
  ScaleForm scale_form = ScaleForm::Fp32;
  Placement placement = Placement::Area;
};

[[nodiscard]] inline QuantisedEntries entries_of_heads(const HeadsShape& shape, const PageOptions& page,
                                                       const PoolOptions& pool) {
  const std::uint32_t block_values = shape.block_values == 0 ? shape.dim : shape.block_values;
  const std::uint32_t blocks = (shape.dim + block_values - 1) / block_values;
  const bool is_fp32 = shape.scale_form == ScaleForm::Fp32;
  const Component scales{.name = "k_scales",
                         .element = is_fp32 ? ElementType::Fp32 : ElementType::Bytes,
                         .heads = shape.heads,
                         .dim = is_fp32 ? blocks : blocks + 3,
                         .placement = shape.placement};
  Component values{
      .name = "k", .element = ElementType::Fp8, .heads = shape.heads, .dim = shape.dim, .placement = shape.placement};
  Component other = values;
  other.name = "v";
  const CacheGroup group{.name = "heads", .layers = layer_range(0, 2), .components = {other, values, scales}};
  return QuantisedEntries::create(PoolGeometry::create(PageGeometry::create(group, page).value(), pool).value(),
                                  {.values = 1, .scales = 2, .block_values = shape.block_values})
      .value();
}

/// visit(QuantisedCase) for several heads, in both orders, and both byte layouts.
void for_each_case_of_heads(auto visit) {
  const std::vector<HeadsShape> shapes = {
      {.heads = 8, .dim = 128},
      {.heads = 4, .dim = 128, .block_values = 64, .scale_form = ScaleForm::Ue8m0},
      {.heads = 2, .dim = 64, .block_values = 32, .placement = Placement::Interleaved},
      {.heads = 3, .dim = 7},
      {.heads = 5, .dim = 33, .block_values = 10, .scale_form = ScaleForm::Ue8m0, .placement = Placement::Interleaved},
  };
  for (const HeadsShape& shape : shapes) {
    for (const std::uint32_t page_tokens : {1U, 3U, 16U}) {
      for (const HeadOrder head_order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
        for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
          visit(QuantisedCase{.name = std::to_string(shape.heads) + " heads of " + std::to_string(shape.dim) +
                                      ", pages of " + std::to_string(page_tokens) +
                                      (head_order == HeadOrder::Nhd ? ", nhd" : ", hnd") +
                                      (byte_layout == ByteLayout::PageFirst ? ", page-first" : ", layer-first"),
                              .entries = entries_of_heads(shape, {.page_tokens = page_tokens, .head_order = head_order},
                                                          {.page_count = 5, .byte_layout = byte_layout})});
        }
      }
    }
  }
}

/// visit(QuantisedCase) for formats of usual and odd sizes, page sizes and byte layouts, and for several heads.
void for_each_quantised_case(auto visit) {
  const std::vector<EntryFormat> formats = {
      fp8_arrays(),
      fp8_rows_then_scales(),
      fp8_records(),
      index_keys_fp8(),
      fp8_arrays_with_positions({.dim = 7, .rope_dim = 3}),
      fp8_rows_then_scales({.dim = 100, .rope_dim = 1}),
      fp8_records({.dim = 131, .rope_dim = 33}),
  };
  for (const EntryFormat& format : formats) {
    for (const std::uint32_t page_entries : {1U, 2U, 3U, 32U, 64U}) {
      for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
        CacheGroup group{.name = "entries", .layers = layer_range(0, 2)};
        group.components.push_back({.name = "other", .element = ElementType::Bytes, .dim = 3});
        use_format(group, format, "x_");
        PageGeometry page = PageGeometry::create(group, {.page_tokens = page_entries}).value();
        PoolGeometry pool =
            PoolGeometry::create(std::move(page), {.page_count = 5, .byte_layout = byte_layout}).value();
        visit(QuantisedCase{.name = std::string(format.name) + " of " + std::to_string(format.components[0].dim) +
                                    ", pages of " + std::to_string(page_entries) +
                                    (byte_layout == ByteLayout::PageFirst ? ", page-first" : ", layer-first"),
                            .entries = QuantisedEntries::create(std::move(pool), format, "x_").value()});
      }
    }
  }
  for_each_case_of_heads(visit);
}

}  // namespace quire::testing
