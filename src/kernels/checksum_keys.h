// SPDX-License-Identifier: Apache-2.0
//
// The numbers of the checksum that copy_checked.h defines, for those who compute it: the host and the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"

namespace quire {

inline constexpr std::uint64_t kChecksumWordBytes = 4;
inline constexpr std::uint64_t kChecksumBlockWords = 256;
inline constexpr std::uint64_t kChecksumBlockBytes = kChecksumBlockWords * kChecksumWordBytes;

/// K: one for each word of a block.
struct alignas(64) WordKeys {
  std::uint32_t of[kChecksumBlockWords];  // NOLINT(modernize-avoid-c-arrays): the device has no std::array
};

constexpr WordKeys make_word_keys() {
  WordKeys keys{};
  for (std::uint64_t i = 0; i < kChecksumBlockWords; ++i) keys.of[i] = static_cast<std::uint32_t>(mix64(i) >> 32U);
  return keys;
}

/// B: of the block with this number.
constexpr std::uint64_t block_key(std::uint64_t block) {
  return mix64((std::uint64_t{1} << 32U) + block) | 1U;
}

}  // namespace quire
