// SPDX-License-Identifier: Apache-2.0
//
// Copies of rows, the inner loop of the host kernels. A row is what one token stores in one layer, or one head of it:
// 64 bytes to a few KiB, each somewhere else. memcpy, called for each, waits for the target of every one; these loops
// ask for the next row while they copy one. The instructions are picked once, by the processor; tests ask for each set.
//
// Stores of a cached copy leave the rows in the caches, and read what was at the target first. Streaming ones go around
// the caches: faster where the target is in none of them, four times slower where it is.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

enum class InstructionSet : std::uint8_t {
  Portable,  ///< any processor
  Avx2,      ///< and F16C, which came before it
  Avx512,    ///< F, BW and VL; what gains nothing by them does with AVX2
};

enum class Stores : std::uint8_t {
  Cached,
  Streaming,  ///< a hint: rows too short for it are stored as ever, and so is everything by the portable copy
};

/// Whether this processor and system have the instructions.
[[nodiscard]] bool is_available(InstructionSet instructions);
/// The last of the sets that are available.
[[nodiscard]] InstructionSet best_instructions();

/// One row's way, or that of the first of a bundle. Without defaults, since arrays of it are filled before they are
/// read.
struct RowCopy {
  std::byte* target;
  const std::byte* source;
};

/// What the rows of one call have in common. They come in bundles of rows at equal distances: a token's heads, say.
struct RowShape {
  std::uint64_t row_bytes = 0;
  std::uint64_t bundle_rows = 1;
  std::uint64_t target_stride = 0;  ///< from one row of a bundle to the next
  std::uint64_t source_stride = 0;
};

/// Copies bundles of rows, in order. A row's own source and target must not overlap. What was copied is visible to
/// other threads as after any other store.
using CopyRows = void (*)(std::span<const RowCopy> bundles, const RowShape& shape);

/// The copy that uses these instructions, which must be available.
[[nodiscard]] CopyRows pick_copy_rows(InstructionSet instructions, Stores stores);
/// The fastest one here.
[[nodiscard]] CopyRows best_copy_rows(Stores stores);

}  // namespace quire
