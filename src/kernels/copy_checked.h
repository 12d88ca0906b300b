// SPDX-License-Identifier: Apache-2.0
//
// Copies bytes and sums them up in the same pass. The checksum tells damage from what was stored; it is no secret and
// no name. It is a sum over places, so that parts of a record may be summed in any order, by anyone, and still give one
// value: threads, bands of layers, a GPU.
//
//     word t of a record   its bytes [4t, 4t + 4) as a number, the first byte lowest; bytes behind the end are 0
//     block j              its words [256j, 256j + 256): 1 KiB
//     sum                  over all blocks and words: B(j) * (K(t mod 256) * word t), modulo 2^64, where
//                          K(i) is the upper half of mix64(i), and B(j) = mix64(2^32 + j) | 1
//     checksum             mix64(sum ^ mix64(length of the record in bytes))
//
// A part is any range of the record's bytes: the sum of a part counts all other bytes as 0, and sums of parts that
// cover the record once add up to the record's. K is never 0 and no two are alike, and B is odd, so a single wrong
// word, or two words of one block that changed places, always change the sum; anything else remains unseen with a
// probability of about 2^-64, and 2^-32 for the worst pairs of single bits.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "kernels/copy_rows.h"

namespace quire {

/// The sum of some parts of a record.
struct ChecksumPart {
  std::uint64_t sum = 0;

  constexpr void add(ChecksumPart other) { sum += other.sum; }
  /// The checksum of a record of so many bytes, when all its parts have been added.
  [[nodiscard]] constexpr std::uint64_t finish(std::uint64_t record_bytes) const {
    return mix64(sum ^ mix64(record_bytes));
  }
  friend constexpr bool operator==(ChecksumPart, ChecksumPart) = default;
};

/// Where copied bytes will be looked for next.
enum class NextUse : std::uint8_t {
  Soon,   ///< in the caches, as far as they fit
  Later,  ///< in memory: large copies go around the caches
};

struct CopyPart {
  std::byte* target = nullptr;  ///< must not overlap the source
  const std::byte* source = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< of the part in its record
  NextUse next_use = NextUse::Soon;
  /// Where the next part will be read: asked for meanwhile. Nothing there is needed for anything else.
  const std::byte* next_source = nullptr;
};

/// Fast from a few hundred bytes on; 64-byte multiples, in offset and length, are the fastest.
struct CheckedCopier {
  /// Copies a part, and sums what was read.
  ChecksumPart (*copy_summed)(const CopyPart& part);
  /// Copies a part.
  void (*copy)(const CopyPart& part);
  /// Sums the source; there is no target.
  ChecksumPart (*sum)(const CopyPart& part);
  /// To be called behind the last of some copies, before anybody is told of them: what went around the caches is
  /// ordered by nothing else.
  void (*settle)();
};

/// The one that uses these instructions, which must be available.
[[nodiscard]] const CheckedCopier& pick_checked_copier(InstructionSet instructions);
/// The fastest one here.
[[nodiscard]] const CheckedCopier& best_checked_copier();

}  // namespace quire
