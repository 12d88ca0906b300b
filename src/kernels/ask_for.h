// SPDX-License-Identifier: Apache-2.0
//
// Asks for bytes that will be read or written soon, and does not wait for them.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

/// As __builtin_prefetch has them. The first can wait for few lines of memory at a time: 24 on Zen 4.
enum class CacheLevel : std::uint8_t { Second = 2, First = 3 };

/// Every line of a part. Inlined always: GCC leaves calls out that do nothing else.
template <CacheLevel kLevel = CacheLevel::Second>
[[gnu::always_inline]] inline void ask_for(const std::byte* part, std::uint64_t bytes) {
  constexpr std::uint64_t kLineBytes = 64;
  if (bytes == 0) return;
  // As many times wherever the part begins, so that the end of the loop is foreseen; the last line may come twice.
  for (std::uint64_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(part + at, 0, static_cast<int>(kLevel));
  __builtin_prefetch(part + bytes - 1, 0, static_cast<int>(kLevel));
}

}  // namespace quire
