// SPDX-License-Identifier: Apache-2.0
//
// Hashes for tables in memory and for headers in files. They place things and find damage, they never identify: whoever
// finds an entry by hash compares the whole key. (Names outside memory are cryptographic and live in wire/.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

/// XXH3 of the bytes under a seed, as in files. A secret seed keeps strangers from choosing tokens that collide.
[[nodiscard]] std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed);

/// A bijection that spreads every input bit over the whole word (splitmix64's finaliser).
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace quire
