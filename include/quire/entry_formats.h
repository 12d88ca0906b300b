// SPDX-License-Identifier: Apache-2.0
//
// Ways in which kernels lay out an entry, as components for a CacheGroup: formats that exist, by name, with their
// numbers as arguments. Sizes below are those of the default arguments. A value of 8 bits is E4M3; a scale of 8 bits is
// UE8M0, which stands for 2^(byte - 127).
//
//     CacheGroup group{.name = "full", .layers = layer_range(0, 61)};
//     use_format(group, fp8_records());
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/cache_group.h"

namespace quire {

struct EntryFormat {
  std::string_view name = {};
  std::vector<Component> components = {};
  std::uint32_t layer_multiple_bytes = 1;
  std::uint32_t block_values = 0;  ///< values that share a scale; 0: all of them, or there are no scales
  /// Of a value that has a scale: 8, one E4M3 to a byte, or 4, two to a byte, which QuantisedEntries does not know.
  std::uint32_t value_bits = 8;
};

/// Gives the group the format's components, behind those it has, and its padding. `prefix` goes before the names that
/// do not begin with it: with "index_", `values` becomes `index_values`, and `index_keys` stays as it is.
void use_format(CacheGroup& group, const EntryFormat& format, std::string_view prefix = "");

/// A row whose first `dim` values are stored in 8 bits, and whose last `rope_dim`, which carry the position, in bf16.
struct MixedRow {
  std::uint32_t dim = 448;
  std::uint32_t rope_dim = 64;
};

/// Arrays side by side: values, rope values, one fp32 scale per row, which begins as 1. 580 bytes.
[[nodiscard]] EntryFormat fp8_arrays(MixedRow row = {});
/// The same with the token's position, which begins as -1: for rings. 584 bytes.
[[nodiscard]] EntryFormat fp8_arrays_with_positions(MixedRow row = {});
/// [values and rope values of every row][8-bit scales of every row, one per 64 values, padded to 8 bytes], and a layer
/// padded to a multiple of a row: 576 + 8 bytes.
[[nodiscard]] EntryFormat fp8_rows_then_scales(MixedRow row = {});
/// Records of values, one fp32 scale per 128 of them, rope values. 656 bytes.
[[nodiscard]] EntryFormat fp8_records(MixedRow row = {.dim = 512, .rope_dim = 64});

/// Keys of an indexer: values of 8 bits, then one fp32 scale each. 132 bytes.
[[nodiscard]] EntryFormat index_keys_fp8(std::uint32_t dim = 128);
/// Values of 4 bits, two to a byte, then an 8-bit scale per 32 values. 68 bytes.
[[nodiscard]] EntryFormat index_keys_mxfp4(std::uint32_t dim = 128);
/// Values of 4 bits, two to a byte, then an E4M3 scale per 16 values. 72 bytes.
[[nodiscard]] EntryFormat index_keys_nvfp4(std::uint32_t dim = 128);

/// What a compressor keeps of a token until it is part of an entry: `series` rows of values and as many of gates, which
/// begin closed (-1e9). Two series where entries overlap, one for the tokens of an entry and one for those before it.
struct CompressorRow {
  std::uint32_t dim = 512;
  std::uint32_t series = 2;
};
/// Records of fp32 values, then gates. 8,192 bytes; 4,096 with one series.
[[nodiscard]] EntryFormat compressor_fp32(CompressorRow row = {});
/// Arrays of bf16, one for each series of values and gates. 4,096 bytes; 2,048 with one series.
[[nodiscard]] EntryFormat compressor_bf16(CompressorRow row = {});
/// A compressor that adds up as it goes: greatest gate, sum of weights, weighted sum, in fp32. 6,144 bytes, whatever
/// the number of tokens.
[[nodiscard]] EntryFormat compressor_running(std::uint32_t dim = 512);

/// One row of plain elements, aligned to 512 bytes. 1,024 bytes.
[[nodiscard]] EntryFormat plain_rows(std::uint32_t dim = 512, ElementType element = ElementType::Bf16);

}  // namespace quire
