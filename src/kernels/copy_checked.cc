// SPDX-License-Identifier: Apache-2.0
#include "kernels/copy_checked.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "kernels/checksum_keys.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define QUIRE_AVX2 [[gnu::target("avx2")]]
#endif

namespace quire {
namespace {

constexpr std::uint64_t kWordBytes = kChecksumWordBytes;
constexpr std::uint64_t kBlockBytes = kChecksumBlockBytes;

constexpr WordKeys kWordKeys = make_word_keys();

constexpr bool are_good(WordKeys keys) {
  std::sort(std::begin(keys.of), std::end(keys.of));
  return keys.of[0] != 0 && std::adjacent_find(std::begin(keys.of), std::end(keys.of)) == std::end(keys.of);
}
static_assert(are_good(kWordKeys),
              "a key of 0 would not see its word, and equal ones not that their words changed places");

// As many bytes as a word has or fewer, which begin `skipped` bytes behind the word's beginning.
std::uint64_t load_word(const std::byte* source, std::uint64_t bytes, std::uint64_t skipped = 0) {
  if constexpr (std::endian::native == std::endian::little) {
    std::uint32_t word = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&word) + skipped, source, bytes);
    return word;
  } else {
    std::uint64_t word = 0;
    for (std::uint64_t i = 0; i < bytes; ++i) word |= std::to_integer<std::uint64_t>(source[i]) << (8 * (skipped + i));
    return word;
  }
}

// Bytes of one block, which begin at `offset` of it.
std::uint64_t sum_in_block(const std::byte* source, std::uint64_t bytes, std::uint64_t offset) {
  std::uint64_t sum = 0;
  std::uint64_t at = 0;
  if (const std::uint64_t skipped = offset % kWordBytes; skipped != 0) {
    at = std::min(bytes, kWordBytes - skipped);
    sum += kWordKeys.of[offset / kWordBytes] * load_word(source, at, skipped);
  }
  const std::uint32_t* key = kWordKeys.of + ((offset + at) / kWordBytes);
  for (; at + kWordBytes <= bytes; at += kWordBytes) sum += *key++ * load_word(source + at, kWordBytes);
  if (at < bytes) sum += *key * load_word(source + at, bytes - at);
  return sum;
}

// Calls `in_block(source, target, bytes, offset in the block)` for each block's share, and adds up what it answers.
template <typename InBlock>
[[gnu::always_inline]] inline ChecksumPart for_each_block(const CopyPart& part, InBlock in_block) {
  ChecksumPart total;
  std::uint64_t at = 0;
  while (at < part.bytes) {
    const std::uint64_t offset = (part.offset + at) % kBlockBytes;
    const std::uint64_t bytes = std::min(part.bytes - at, kBlockBytes - offset);
    std::byte* const target = part.target == nullptr ? nullptr : part.target + at;
    total.sum += block_key((part.offset + at) / kBlockBytes) * in_block(part.source + at, target, bytes, offset);
    at += bytes;
  }
  return total;
}

void copy_portable(const CopyPart& part) {
  if (part.bytes != 0) std::memcpy(part.target, part.source, part.bytes);
}

ChecksumPart sum_portable(const CopyPart& part) {
  return for_each_block(part, [](const std::byte* source, std::byte* /*target*/, std::uint64_t bytes,
                                 std::uint64_t offset) { return sum_in_block(source, bytes, offset); });
}

// A block is still in the first-level cache when it is summed.
ChecksumPart copy_summed_portable(const CopyPart& part) {
  return for_each_block(part,
                        [](const std::byte* source, std::byte* target, std::uint64_t bytes, std::uint64_t offset) {
                          std::memcpy(target, source, bytes);
                          return sum_in_block(source, bytes, offset);
                        });
}

constexpr CheckedCopier kPortable{
    .copy_summed = copy_summed_portable, .copy = copy_portable, .sum = sum_portable, .settle = [] {}};

#if defined(__x86_64__)

constexpr std::uint64_t kVector = 32;
// From here on stores around the caches pay: a target that is not fetched only to be overwritten makes whole pages 1.2
// times (64 KiB) to 1.6 times (4 MiB) as fast as memcpy, on memory that is in no cache (Zen 4).
constexpr std::uint64_t kStreamedBytes = 2048;
// How far ahead of the copy the source is asked for, into the next part at the end of one: parts of 2 KiB that lie
// apart go at 1.3 times memcpy's speed instead of 0.9. Twice as far brings nothing.
constexpr std::uint64_t kAheadBytes = 1024;

enum class To : std::uint8_t { Nowhere, Cache, Memory };

template <To kTo>
QUIRE_AVX2 inline void store(std::byte* target, __m256i vector) {
  if constexpr (kTo == To::Cache) _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), vector);
  if constexpr (kTo == To::Memory) _mm256_stream_si256(reinterpret_cast<__m256i*>(target), vector);
}

// Two sums of 4 products each: of the even words, and of the odd ones.
struct Sums {
  __m256i even;
  __m256i odd;
};

QUIRE_AVX2 inline void add_vector(Sums& sums, __m256i words, __m256i keys) {
  sums.even = _mm256_add_epi64(sums.even, _mm256_mul_epu32(words, keys));
  sums.odd = _mm256_add_epi64(sums.odd, _mm256_mul_epu32(_mm256_srli_epi64(words, 32), _mm256_srli_epi64(keys, 32)));
}

QUIRE_AVX2 inline std::uint64_t total(const Sums& a, const Sums& b) {
  const __m256i four = _mm256_add_epi64(_mm256_add_epi64(a.even, a.odd), _mm256_add_epi64(b.even, b.odd));
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(two)) + static_cast<std::uint64_t>(_mm_extract_epi64(two, 1));
}

QUIRE_AVX2 inline __m256i load(const void* source) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(source));
}

// The bytes that a block of the part should be asking for.
inline const std::byte* ahead_of(const CopyPart& part, std::uint64_t at) {
  const std::uint64_t ahead = at + kAheadBytes;
  if (ahead < part.bytes || part.next_source == nullptr) return part.source + std::min(ahead, part.bytes);
  return part.next_source + (ahead - part.bytes);
}

QUIRE_AVX2 void stream_avx2(const CopyPart& part) {
  std::uint64_t at = 0;
  while (at + kBlockBytes <= part.bytes) {
    const std::byte* ahead = ahead_of(part, at);
    for (const std::uint64_t end = at + kBlockBytes; at < end; at += 4 * kVector, ahead += 4 * kVector) {
      __builtin_prefetch(ahead, 0, 3);
      __builtin_prefetch(ahead + (2 * kVector), 0, 3);
      const __m256i a = load(part.source + at);
      const __m256i b = load(part.source + at + kVector);
      const __m256i c = load(part.source + at + (2 * kVector));
      const __m256i d = load(part.source + at + (3 * kVector));
      store<To::Memory>(part.target + at, a);
      store<To::Memory>(part.target + at + kVector, b);
      store<To::Memory>(part.target + at + (2 * kVector), c);
      store<To::Memory>(part.target + at + (3 * kVector), d);
    }
  }
  if (at < part.bytes) std::memcpy(part.target + at, part.source + at, part.bytes - at);
}

// The share of one block, which begins at `offset` of it. Meanwhile asks for as many bytes from `ahead` on.
template <To kTo>
QUIRE_AVX2 inline std::uint64_t in_block_avx2(const CopyPart& part, std::uint64_t bytes, std::uint64_t offset,
                                              const std::byte* ahead) {
  Sums a{_mm256_setzero_si256(), _mm256_setzero_si256()};
  Sums b = a;
  std::uint64_t at = std::min(bytes, (kWordBytes - (offset % kWordBytes)) % kWordBytes);
  std::uint64_t rest = at == 0 ? 0 : sum_in_block(part.source, at, offset);
  if (kTo != To::Nowhere && at != 0) std::memcpy(part.target, part.source, at);
  const std::uint32_t* key = kWordKeys.of + ((offset + at) / kWordBytes);
  for (; at + (2 * kVector) <= bytes; at += 2 * kVector, key += 2 * kVector / kWordBytes) {
    __builtin_prefetch(ahead + at, 0, 3);
    const __m256i x = load(part.source + at);
    const __m256i y = load(part.source + at + kVector);
    store<kTo>(part.target + at, x);
    store<kTo>(part.target + at + kVector, y);
    add_vector(a, x, load(key));
    add_vector(b, y, load(key + (kVector / kWordBytes)));
  }
  if (at < bytes) {
    rest += sum_in_block(part.source + at, bytes - at, offset + at);
    if constexpr (kTo != To::Nowhere) std::memcpy(part.target + at, part.source + at, bytes - at);
  }
  return total(a, b) + rest;
}

template <To kTo>
QUIRE_AVX2 ChecksumPart pass_avx2(const CopyPart& part) {
  ChecksumPart sum;
  for (std::uint64_t at = 0; at < part.bytes;) {
    const std::uint64_t offset = (part.offset + at) % kBlockBytes;
    const std::uint64_t bytes = std::min(part.bytes - at, kBlockBytes - offset);
    const CopyPart share{.target = kTo == To::Nowhere ? nullptr : part.target + at, .source = part.source + at};
    sum.sum +=
        block_key((part.offset + at) / kBlockBytes) * in_block_avx2<kTo>(share, bytes, offset, ahead_of(part, at));
    at += bytes;
  }
  return sum;
}

ChecksumPart sum_avx2(const CopyPart& part) {
  return pass_avx2<To::Nowhere>(part);
}

// Stores around the caches need aligned vectors: at the beginning, and then in every block, which all but the first one
// begin at a multiple of 1 KiB of the record.
bool can_stream(const CopyPart& part) {
  return part.next_use == NextUse::Later && part.bytes >= kStreamedBytes &&
         std::bit_cast<std::uintptr_t>(part.target) % kVector == 0 && part.offset % kVector == 0;
}

ChecksumPart copy_summed_avx2(const CopyPart& part) {
  return can_stream(part) ? pass_avx2<To::Memory>(part) : pass_avx2<To::Cache>(part);
}

void copy_avx2(const CopyPart& part) {
  if (can_stream(part)) {
    stream_avx2(part);
  } else {
    copy_portable(part);
  }
}

constexpr CheckedCopier kAvx2{
    .copy_summed = copy_summed_avx2, .copy = copy_avx2, .sum = sum_avx2, .settle = [] { _mm_sfence(); }};

#endif

}  // namespace

const CheckedCopier& pick_checked_copier(InstructionSet instructions) {
  QUIRE_CHECK(is_available(instructions), "the processor does not have these instructions");
#if defined(__x86_64__)
  if (instructions >= InstructionSet::Avx2) return kAvx2;
#endif
  return kPortable;
}

const CheckedCopier& best_checked_copier() {
  static const CheckedCopier& best = pick_checked_copier(best_instructions());
  return best;
}

}  // namespace quire
