// SPDX-License-Identifier: Apache-2.0
//
// Rows of bf16 to codes and scales and back, the inner loop of the quantised kernels; quire/quantised_kernels.h says
// what comes out. The instructions are picked once, by the processor; tests ask for each set, and all give the same
// bits.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/copy_rows.h"
#include "quire/quantised_kernels.h"

namespace quire {

/// What the rows of one call have in common.
struct E4m3Shape {
  std::uint64_t dim = 0;
  std::uint64_t block_values = 0;  ///< from 1; the last block may be shorter
  ScaleForm scale_form = ScaleForm::Fp32;
  std::uint64_t scales_bytes = 0;  ///< of a row; what follows the last scale is padding
};

struct EncodeRow {
  std::byte* codes;
  std::byte* scales;
  const std::byte* source;  ///< bf16
};

struct DecodeRow {
  std::byte* target;  ///< bf16
  const std::byte* codes;
  const std::byte* scales;
};

/// Nothing needs to be aligned; a row's parts must not overlap.
struct E4m3Codec {
  /// Writes zeros as padding.
  void (*encode)(const EncodeRow& row, const E4m3Shape& shape);
  void (*decode)(const DecodeRow& row, const E4m3Shape& shape);
};

/// The one that uses these instructions, which must be available.
[[nodiscard]] const E4m3Codec& pick_e4m3_codec(InstructionSet instructions);
/// The fastest one here.
[[nodiscard]] const E4m3Codec& best_e4m3_codec();

}  // namespace quire
