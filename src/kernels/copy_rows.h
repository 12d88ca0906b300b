// SPDX-License-Identifier: Apache-2.0
//
// Copies of rows, the inner loop of the host kernels. A row is what one token stores in one layer, or one head of it:
// 64 bytes to a few KiB, each somewhere else. memcpy, called for each, waits for the target of every one; these loops
// ask for the next row while they copy one. The instructions are picked once, by the processor; tests ask for each set.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

enum class InstructionSet : std::uint8_t {
  Portable,  ///< any processor
  Avx2,
};

/// Whether this processor and system have the instructions.
[[nodiscard]] bool is_available(InstructionSet instructions);

/// One row's way. Without defaults, since arrays of it are filled before they are read.
struct RowCopy {
  std::byte* target;
  const std::byte* source;
};

/// Copies rows of one length, in order. A row's own source and target must not overlap.
using CopyRows = void (*)(std::span<const RowCopy> rows, std::uint64_t row_bytes);

/// The copy that uses these instructions, which must be available.
[[nodiscard]] CopyRows pick_copy_rows(InstructionSet instructions);
/// The fastest one here.
[[nodiscard]] CopyRows best_copy_rows();

}  // namespace quire
