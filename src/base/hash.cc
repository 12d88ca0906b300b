// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <xxhash.h>

// XXH3 has been final since then: before, each version gave other values.
static_assert(XXH_VERSION_NUMBER >= 800);

namespace quire {

std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace quire
