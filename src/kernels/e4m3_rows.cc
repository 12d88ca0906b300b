// SPDX-License-Identifier: Apache-2.0
#include "kernels/e4m3_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/e4m3.h"

// As in copy_rows.cc: functions with a target attribute, so that no header's function is compiled for it.
#if defined(__x86_64__)
#pragma GCC diagnostic push
#if !defined(__clang__)  // GCC 12 warns of what its own header leaves undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#define QUIRE_AVX2 [[gnu::target("avx2,f16c")]]
#define QUIRE_AVX512 [[gnu::target("avx512f,avx512bw,avx512vl,f16c")]]
#endif

namespace quire {
namespace {

constexpr std::array<float, 256> make_decode_table() {
  std::array<float, 256> table{};
  for (std::uint32_t code = 0; code < table.size(); ++code) {
    table[code] = e4m3_to_float(static_cast<std::uint8_t>(code));
  }
  return table;
}
constexpr std::array<float, 256> kDecodeTable = make_decode_table();

template <typename T>
T load_as(const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof(T));
  return value;
}

template <typename T>
void store_as(std::byte* target, T value) {
  std::memcpy(target, &value, sizeof(T));
}

// Blocks of any length, also the ends of those that are no whole number of vectors.
struct PortableBlocks {
  // The bits of the greatest finite magnitude.
  static std::uint16_t greatest(const std::byte* source, std::uint64_t count) {
    std::uint16_t greatest = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto magnitude = static_cast<std::uint16_t>(load_as<std::uint16_t>(source + (2 * i)) & 0x7fffU);
      if (magnitude < kBf16Infinity) greatest = std::max(greatest, magnitude);
    }
    return greatest;
  }
  static void encode(std::byte* codes, const std::byte* source, std::uint64_t count, float inverse) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const float value = bf16_to_float(load_as<std::uint16_t>(source + (2 * i)));
      codes[i] = static_cast<std::byte>(e4m3_from_float(value * inverse));
    }
  }
  static void decode(std::byte* target, const std::byte* codes, std::uint64_t count, float scale) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const float value = kDecodeTable[std::to_integer<std::uint8_t>(codes[i])];
      store_as(target + (2 * i), bf16_from_float(value * scale));
    }
  }
};

#if defined(__x86_64__)

constexpr std::uint64_t kVectorValues = 16;

QUIRE_AVX2 inline __m256i round_to_bf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
  return _mm256_srli_epi32(rounded, 16);
}

// 8 values to codes in 32 bits each: e4m3_from_float with both its cases computed.
QUIRE_AVX2 inline __m256i encode_vector(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
  const __m256 clamped = _mm256_min_ps(magnitude, _mm256_set1_ps(kE4m3Max));
  const __m256i exact = _mm256_castps_si256(clamped);
  const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(exact, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(exact, _mm256_set1_epi32(0x7ffff)), is_odd), 20);
  const __m256i normal = _mm256_sub_epi32(rounded, _mm256_set1_epi32((127 - 7) << 3));
  const __m256 magic = _mm256_set1_ps(0x1p14F);
  const __m256i small =
      _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(clamped, magic)), _mm256_castps_si256(magic));
  const __m256 is_small = _mm256_cmp_ps(clamped, _mm256_set1_ps(0x1p-6F), _CMP_LT_OQ);
  __m256i codes = _mm256_blendv_epi8(normal, small, _mm256_castps_si256(is_small));
  codes = _mm256_blendv_epi8(codes, _mm256_set1_epi32(kE4m3Nan), _mm256_castps_si256(is_nan));
  return _mm256_or_si256(codes, _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80)));
}

struct Avx2Blocks {
  QUIRE_AVX2 static std::uint16_t greatest(const std::byte* source, std::uint64_t count) {
    __m256i greatest = _mm256_setzero_si256();
    std::uint64_t at = 0;
    for (; at + kVectorValues <= count; at += kVectorValues) {
      const __m256i magnitude = _mm256_and_si256(load(source + (2 * at)), _mm256_set1_epi16(0x7fff));
      const __m256i is_finite = _mm256_cmpgt_epi16(_mm256_set1_epi16(kBf16Infinity), magnitude);
      greatest = _mm256_max_epi16(greatest, _mm256_and_si256(magnitude, is_finite));
    }
    const __m128i half = _mm_max_epi16(_mm256_castsi256_si128(greatest), _mm256_extracti128_si256(greatest, 1));
    // The instruction finds the least of eight.
    const __m128i least = _mm_minpos_epu16(_mm_sub_epi16(_mm_set1_epi16(0x7fff), half));
    const auto found = static_cast<std::uint16_t>(0x7fff - _mm_extract_epi16(least, 0));
    return std::max(found, PortableBlocks::greatest(source + (2 * at), count - at));
  }
  QUIRE_AVX2 static void encode(std::byte* codes, const std::byte* source, std::uint64_t count, float inverse) {
    const __m256 factor = _mm256_set1_ps(inverse);
    std::uint64_t at = 0;
    for (; at + kVectorValues <= count; at += kVectorValues) {
      const __m256i bits = load(source + (2 * at));
      const __m256i low = encode_vector(_mm256_mul_ps(widen(_mm256_castsi256_si128(bits)), factor));
      const __m256i high = encode_vector(_mm256_mul_ps(widen(_mm256_extracti128_si256(bits, 1)), factor));
      // Packing works in halves of 128 bits; the permutation puts them in order again.
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0b11'01'10'00);
      const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + at), bytes);
    }
    PortableBlocks::encode(codes + at, source + (2 * at), count - at, inverse);
  }
  // A code's bits are those of an fp16 that is 2^8 times too small, numbers below the least normal one included.
  QUIRE_AVX2 static void decode(std::byte* target, const std::byte* codes, std::uint64_t count, float scale) {
    const __m256 factor = _mm256_set1_ps(scale);
    const __m256 bias = _mm256_set1_ps(0x1p8F);  // not in the scale: large ones would become infinite
    const __m256i magnitude = _mm256_set1_epi16(0x3f80);
    std::uint64_t at = 0;
    for (; at + kVectorValues <= count; at += kVectorValues) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at));
      const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
      const __m256i plain = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<std::int16_t>(0xbf80)));
      const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(plain, magnitude), magnitude);
      const __m256i halves = _mm256_xor_si256(plain, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x3f80 ^ 0x7e00)));
      const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
      const __m256i packed = _mm256_packus_epi32(round_to_bf16(_mm256_mul_ps(_mm256_mul_ps(low, bias), factor)),
                                                 round_to_bf16(_mm256_mul_ps(_mm256_mul_ps(high, bias), factor)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + (2 * at)),
                          _mm256_permute4x64_epi64(packed, 0b11'01'10'00));
    }
    if (at < count) PortableBlocks::decode(target + (2 * at), codes + at, count - at, scale);
  }

 private:
  QUIRE_AVX2 static __m256i load(const std::byte* source) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  }
  QUIRE_AVX2 static __m256 widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
};

// The magnitudes of codes 0 to 127 as bf16, which holds them exactly.
constexpr std::array<std::uint16_t, 128> make_magnitudes() {
  std::array<std::uint16_t, 128> table{};
  for (std::uint32_t code = 0; code < table.size(); ++code) {
    table[code] = bf16_from_float(e4m3_to_float(static_cast<std::uint8_t>(code)));
  }
  return table;
}
alignas(64) constexpr std::array<std::uint16_t, 128> kMagnitudes = make_magnitudes();

// 16 products to bf16, in the upper halves.
QUIRE_AVX512 inline __m512i scaled(__m512i upper_halves, __m512 factor) {
  const __m512i bits = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(upper_halves), factor));
  const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd);
}

// What the 128 magnitudes become with one scale: four registers, in which two instructions look 32 codes up.
struct Products {
  __m512i a, b, c, d;
};

QUIRE_AVX512 inline __m512i multiply(__m512i magnitudes, __m512 factor) {
  const __m512i even = scaled(_mm512_slli_epi32(magnitudes, 16), factor);
  const __m512i odd = scaled(_mm512_and_si512(magnitudes, _mm512_set1_epi32(static_cast<int>(0xffff0000U))), factor);
  return _mm512_mask_blend_epi16(0xaaaaaaaaU, _mm512_srli_epi32(even, 16), odd);
}

QUIRE_AVX512 inline Products products_with(float scale) {
  const auto* const magnitudes = reinterpret_cast<const __m512i*>(kMagnitudes.data());
  const __m512i a = _mm512_load_si512(magnitudes);
  const __m512i b = _mm512_load_si512(magnitudes + 1);
  const __m512i c = _mm512_load_si512(magnitudes + 2);
  const __m512i d = _mm512_load_si512(magnitudes + 3);
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  const std::uint32_t exponent = bits >> 23U;  // of negative scales it is large
  constexpr std::uint32_t kFar = 100;          // from where on products might leave the range of normal numbers
  if ((bits & 0x7fffffU) == 0 && exponent > 127 - kFar && exponent < 127 + kFar) {
    // A power of two: its exponent is added to those of all but 0, code 0, and NaN, code 127.
    const __m512i shift = _mm512_set1_epi16(static_cast<std::int16_t>((static_cast<int>(exponent) - 127) * 128));
    return {.a = _mm512_mask_add_epi16(a, 0xfffffffeU, a, shift),
            .b = _mm512_add_epi16(b, shift),
            .c = _mm512_add_epi16(c, shift),
            .d = _mm512_mask_add_epi16(d, 0x7fffffffU, d, shift)};
  }
  const __m512 factor = _mm512_set1_ps(scale);
  return {.a = multiply(a, factor), .b = multiply(b, factor), .c = multiply(c, factor), .d = multiply(d, factor)};
}

struct Avx512Blocks {
  QUIRE_AVX512 static std::uint16_t greatest(const std::byte* source, std::uint64_t count) {
    return Avx2Blocks::greatest(source, count);
  }
  // As encode_vector of AVX2.
  QUIRE_AVX512 static void encode(std::byte* codes, const std::byte* source, std::uint64_t count, float inverse) {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m512 magic = _mm512_set1_ps(0x1p14F);
    std::uint64_t at = 0;
    for (; at + kVectorValues <= count; at += kVectorValues) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + (2 * at)));
      const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
      const __m512 values = _mm512_mul_ps(_mm512_castsi512_ps(wide), factor);
      const __m512i bits = _mm512_castps_si512(values);
      const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
      const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
      const __m512 clamped = _mm512_min_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(kE4m3Max));
      const __m512i exact = _mm512_castps_si512(clamped);
      const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(exact, 20), _mm512_set1_epi32(1));
      const __m512i rounded =
          _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(exact, _mm512_set1_epi32(0x7ffff)), is_odd), 20);
      const __m512i normal = _mm512_sub_epi32(rounded, _mm512_set1_epi32((127 - 7) << 3));
      const __mmask16 is_small = _mm512_cmp_ps_mask(clamped, _mm512_set1_ps(0x1p-6F), _CMP_LT_OQ);
      const __m512i sum = _mm512_castps_si512(_mm512_add_ps(clamped, magic));
      __m512i found = _mm512_mask_sub_epi32(normal, is_small, sum, _mm512_castps_si512(magic));
      found = _mm512_mask_mov_epi32(found, is_nan, _mm512_set1_epi32(kE4m3Nan));
      const __m512i signs = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + at), _mm512_cvtepi32_epi8(_mm512_or_si512(found, signs)));
    }
    if (at < count) PortableBlocks::encode(codes + at, source + (2 * at), count - at, inverse);
  }
  // 448 values with one scale take half the time that they take when each is converted and multiplied.
  QUIRE_AVX512 static void decode(std::byte* target, const std::byte* codes, std::uint64_t count, float scale) {
    const Products products = products_with(scale);
    constexpr std::uint64_t kValues = 2 * kVectorValues;
    std::uint64_t at = 0;
    for (; at + kValues <= count; at += kValues) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at));
      const __m512i words = _mm512_cvtepu8_epi16(bytes);
      const __mmask32 is_upper = _mm256_test_epi8_mask(bytes, _mm256_set1_epi8(0x40));
      const __m512i lower = _mm512_permutex2var_epi16(products.a, words, products.b);  // by the lowest six bits
      const __m512i upper = _mm512_permutex2var_epi16(products.c, words, products.d);
      const __m512i magnitudes = _mm512_mask_blend_epi16(is_upper, lower, upper);
      const __m512i signs = _mm512_and_si512(_mm512_slli_epi16(words, 8), _mm512_set1_epi16(-0x8000));
      _mm512_storeu_si512(target + (2 * at), _mm512_xor_si512(magnitudes, signs));
    }
    if (at < count) Avx2Blocks::decode(target + (2 * at), codes + at, count - at, scale);
  }
};

#endif

// Writes a block's scale and gives what its values are multiplied by before they become codes.
float store_scale(std::byte* scales, std::uint64_t block, ScaleForm form, float greatest) {
  if (form == ScaleForm::Ue8m0) {
    const std::uint8_t byte = ue8m0_at_least(std::max(greatest, 1e-4F) / kE4m3Max);
    scales[block] = static_cast<std::byte>(byte);
    return ue8m0_to_float(static_cast<std::uint8_t>(254 - byte));  // the inverse: what is added is 127 twice
  }
  const float scale = std::max(greatest / kE4m3Max, 0x1p-126F);
  store_as(scales + (block * sizeof(float)), scale);
  return 1.0F / scale;
}

float load_scale(const std::byte* scales, std::uint64_t block, ScaleForm form) {
  if (form == ScaleForm::Ue8m0) return ue8m0_to_float(std::to_integer<std::uint8_t>(scales[block]));
  return load_as<float>(scales + (block * sizeof(float)));
}

constexpr std::uint64_t scale_bytes(ScaleForm form) {
  return form == ScaleForm::Fp32 ? sizeof(float) : 1;
}

// Inlined into functions that have the instructions, so that the loops over blocks can be inlined in turn.
template <typename Blocks>
[[gnu::always_inline]] inline void encode_row(const EncodeRow& row, const E4m3Shape& shape) {
  std::uint64_t block = 0;
  for (std::uint64_t at = 0; at < shape.dim; at += shape.block_values, ++block) {
    const std::uint64_t count = std::min(shape.block_values, shape.dim - at);
    const std::byte* const source = row.source + (2 * at);
    const float greatest = bf16_to_float(Blocks::greatest(source, count));
    const float inverse = store_scale(row.scales, block, shape.scale_form, greatest);
    Blocks::encode(row.codes + at, source, count, inverse);
  }
  const std::uint64_t written = block * scale_bytes(shape.scale_form);
  std::fill_n(row.scales + written, shape.scales_bytes - written, std::byte{0});
}

template <typename Blocks>
[[gnu::always_inline]] inline void decode_row(const DecodeRow& row, const E4m3Shape& shape) {
  std::uint64_t block = 0;
  for (std::uint64_t at = 0; at < shape.dim; at += shape.block_values, ++block) {
    const std::uint64_t count = std::min(shape.block_values, shape.dim - at);
    const float scale = load_scale(row.scales, block, shape.scale_form);
    if (std::isfinite(scale)) [[likely]] {
      Blocks::decode(row.target + (2 * at), row.codes + at, count, scale);
    } else {
      // Which NaN a product of two is depends on the processor.
      for (std::uint64_t i = at; i < at + count; ++i) store_as(row.target + (2 * i), kBf16Nan);
    }
  }
}

constexpr E4m3Codec kPortableCodec{
    .encode = [](const EncodeRow& row, const E4m3Shape& shape) { encode_row<PortableBlocks>(row, shape); },
    .decode = [](const DecodeRow& row, const E4m3Shape& shape) { decode_row<PortableBlocks>(row, shape); }};

#if defined(__x86_64__)
QUIRE_AVX2 void encode_row_avx2(const EncodeRow& row, const E4m3Shape& shape) {
  encode_row<Avx2Blocks>(row, shape);
}
QUIRE_AVX2 void decode_row_avx2(const DecodeRow& row, const E4m3Shape& shape) {
  decode_row<Avx2Blocks>(row, shape);
}
QUIRE_AVX512 void encode_row_avx512(const EncodeRow& row, const E4m3Shape& shape) {
  encode_row<Avx512Blocks>(row, shape);
}
QUIRE_AVX512 void decode_row_avx512(const DecodeRow& row, const E4m3Shape& shape) {
  decode_row<Avx512Blocks>(row, shape);
}
constexpr E4m3Codec kAvx2Codec{.encode = encode_row_avx2, .decode = decode_row_avx2};
constexpr E4m3Codec kAvx512Codec{.encode = encode_row_avx512, .decode = decode_row_avx512};
#endif

}  // namespace

const E4m3Codec& pick_e4m3_codec(InstructionSet instructions) {
  QUIRE_CHECK(is_available(instructions), "the processor does not have these instructions");
#if defined(__x86_64__)
  if (instructions == InstructionSet::Avx512) return kAvx512Codec;
  if (instructions == InstructionSet::Avx2) return kAvx2Codec;
#endif
  return kPortableCodec;
}

const E4m3Codec& best_e4m3_codec() {
  static const E4m3Codec& best = pick_e4m3_codec(best_instructions());
  return best;
}

}  // namespace quire
