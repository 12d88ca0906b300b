// SPDX-License-Identifier: Apache-2.0
//
// E4M3 values on the device: e4m3.h, with its results to the last bit, and where processors have instructions for it,
// with these. NaNs are made by hand, since a product of the device forgets their sign.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/e4m3.h"
#include "kernels/launch.cuh"
#include "quire/quantised_kernels.h"

namespace quire {

/// Any address will do.
template <typename T>
[[nodiscard]] __device__ inline T load_bytes(const std::byte* source) {
  T value;
  for (std::uint32_t i = 0; i < sizeof(T); ++i) reinterpret_cast<std::byte*>(&value)[i] = source[i];
  return value;
}

template <typename T>
__device__ inline void store_bytes(std::byte* target, T value) {
  for (std::uint32_t i = 0; i < sizeof(T); ++i) target[i] = reinterpret_cast<const std::byte*>(&value)[i];
}

/// `inverse` is finite, so that only a NaN becomes one.
[[nodiscard]] __device__ inline std::uint32_t encode_value(std::uint32_t bf16, float inverse) {
  if ((bf16 & 0x7fffU) > kBf16Infinity) return ((bf16 >> 8U) & 0x80U) | kE4m3Nan;
  return e4m3_from_float(__fmul_rn(bf16_to_float(static_cast<std::uint16_t>(bf16)), inverse));
}

/// Two values to two codes, the lower half to the lower byte. The sign of a NaN is lost.
[[nodiscard]] __device__ inline std::uint32_t encode_pair(std::uint32_t pair, float inverse) {
  const float low = __fmul_rn(__uint_as_float(pair << 16U), inverse);
  const float high = __fmul_rn(__uint_as_float(pair & 0xffff0000U), inverse);
#if __CUDA_ARCH__ >= 890
  std::uint16_t codes = 0;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#else
  return e4m3_from_float(low) | (std::uint32_t{e4m3_from_float(high)} << 8U);
#endif
}

/// Four values to four codes. All of them get the signs of their values, which changes only those of NaN.
[[nodiscard]] __device__ inline std::uint32_t encode_four(std::uint32_t first, std::uint32_t second, float inverse) {
  const std::uint32_t codes = encode_pair(first, inverse) | (encode_pair(second, inverse) << 16U);
  return codes | (__byte_perm(first, second, 0x7531) & 0x80808080U);
}

[[nodiscard]] __device__ inline uint2 encode_eight(const uint4& values, float inverse) {
  return make_uint2(encode_four(values.x, values.y, inverse), encode_four(values.z, values.w, inverse));
}

/// The bits of the greatest finite magnitude of two bf16.
[[nodiscard]] __device__ inline std::uint32_t greatest_finite(std::uint32_t pair) {
  const std::uint32_t low = pair & 0x7fffU;
  const std::uint32_t high = (pair >> 16U) & 0x7fffU;
  return max(low < kBf16Infinity ? low : 0U, high < kBf16Infinity ? high : 0U);
}

[[nodiscard]] __device__ inline std::uint32_t greatest_finite(const uint4& values) {
  return max(max(greatest_finite(values.x), greatest_finite(values.y)),
             max(greatest_finite(values.z), greatest_finite(values.w)));
}

[[nodiscard]] __device__ inline bool is_finite(float scale) {
  return (__float_as_uint(scale) & 0x7f800000U) != 0x7f800000U;
}

/// What a code is worth with a scale, as bf16.
[[nodiscard]] __device__ inline std::uint32_t decode_value(std::uint32_t code, float scale) {
  if (!is_finite(scale)) return kBf16Nan;
  if ((code & 0x7fU) == kE4m3Nan) return ((code & 0x80U) << 8U) | kBf16Nan;
  return bf16_from_float(__fmul_rn(e4m3_to_float(static_cast<std::uint8_t>(code)), scale));
}

/// Two codes to what they are worth. NaN becomes anything.
[[nodiscard]] __device__ inline float2 e4m3_pair(std::uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  float2 values;
  asm("{\n"
      ".reg .b32 halves;\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.f16x2.e4m3x2 halves, %2;\n"
      "mov.b32 {low, high}, halves;\n"
      "cvt.f32.f16 %0, low;\n"
      "cvt.f32.f16 %1, high;\n"
      "}"
      : "=f"(values.x), "=f"(values.y)
      : "h"(static_cast<std::uint16_t>(codes)));
  return values;
#else
  // A code's bits are those of an fp32 that is 2^120 times too small, numbers below the least normal one included.
  const auto value = [](std::uint32_t code) {
    return __fmul_rn(__uint_as_float(((code & 0x80U) << 24U) | ((code & 0x7fU) << 20U)), 0x1p120F);
  };
  return make_float2(value(codes), value(codes >> 8U));
#endif
}

/// Two codes with a scale to two bf16. Not for NaN, nor a scale that is not finite.
[[nodiscard]] __device__ inline std::uint32_t decode_pair(std::uint32_t codes, float scale) {
  const float2 values = e4m3_pair(codes);
  const float low = __fmul_rn(values.x, scale);
  const float high = __fmul_rn(values.y, scale);
  std::uint32_t pair = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Two of four bytes as the upper bytes of halves.
inline constexpr std::uint32_t kLowerTwo = 0x1404;
inline constexpr std::uint32_t kUpperTwo = 0x3424;

/// A pair with NaN where the code is: `nan_bits` has bit 7 of its byte.
[[nodiscard]] __device__ inline std::uint32_t with_nan(std::uint32_t pair, std::uint32_t codes, std::uint32_t nan_bits,
                                                       std::uint32_t which) {
  const std::uint32_t mask = (__byte_perm(nan_bits, 0, which) >> 15U) * 0xffffU;
  const std::uint32_t nan = (__byte_perm(codes, 0, which) & 0x80008000U) | (kBf16Nan * 0x10001U);
  return (pair & ~mask) | (nan & mask);
}

/// Eight codes with a scale to eight bf16.
[[nodiscard]] __device__ inline uint4 decode_eight(uint2 codes, float scale) {
  uint4 values = make_uint4(decode_pair(codes.x, scale), decode_pair(codes.x >> 16U, scale),
                            decode_pair(codes.y, scale), decode_pair(codes.y >> 16U, scale));
  const std::uint32_t first = ((codes.x & 0x7f7f7f7fU) + 0x01010101U) & 0x80808080U;
  const std::uint32_t second = ((codes.y & 0x7f7f7f7fU) + 0x01010101U) & 0x80808080U;
  if ((first | second) != 0) {  // one question for all of them, and mostly the answer is no
    values = make_uint4(with_nan(values.x, codes.x, first, kLowerTwo), with_nan(values.y, codes.x, first, kUpperTwo),
                        with_nan(values.z, codes.y, second, kLowerTwo), with_nan(values.w, codes.y, second, kUpperTwo));
  }
  constexpr std::uint32_t kNanPair = kBf16Nan * 0x10001U;
  return is_finite(scale) ? values : make_uint4(kNanPair, kNanPair, kNanPair, kNanPair);
}

/// A scale as it is stored, in the low bits. UE8M0's NaN becomes infinity: what is not finite is all the same.
[[nodiscard]] __device__ inline float stored_scale(std::uint32_t bits, ScaleForm form) {
  // The byte 0 stands for 2^-127, the one power that is no normal fp32.
  return __uint_as_float(form == ScaleForm::Ue8m0 ? max(bits << 23U, 0x400000U) : bits);
}

struct BlockScale {
  float scale;    ///< as it is stored
  float inverse;  ///< what values are multiplied by before they become codes
};

/// 1 / value as __fdiv_rn has it, for values from 2^-126 up to 2^126: a guess, and a step of Newton's that rounds it.
[[nodiscard]] __device__ inline float reciprocal(float value) {
#ifdef __CUDA_ARCH__
  float guess = 0;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(value));
  return __fmaf_rn(__fmaf_rn(-value, guess, 1.0F), guess, guess);
#else
  return 1.0F / value;
#endif
}

/// store_scale() of e4m3_rows.cc, without the storing, and without its divisions: it gives the same for every bf16 that
/// is finite.
[[nodiscard]] __device__ inline BlockScale scale_of(std::uint32_t greatest_bf16, ScaleForm form) {
  const float greatest = __uint_as_float(greatest_bf16 << 16U);
  if (form == ScaleForm::Ue8m0) {
    // The greatest code is 1.75 * 2^8, so the power is 2^-8 times that of the number, up to a mantissa of 1.75.
    const std::uint32_t byte = ((__float_as_uint(fmaxf(greatest, 1e-4F)) + 0x1fffffU) >> 23U) - 8U;
    return {.scale = __uint_as_float(byte << 23U), .inverse = __uint_as_float((254U - byte) << 23U)};
  }
  constexpr float kFactor = 1.0F / kE4m3Max;
  const float guess = __fmul_rn(greatest, kFactor);
  const float quotient = __fmaf_rn(__fmaf_rn(-kE4m3Max, guess, greatest), kFactor, guess);
  const float scale = fmaxf(quotient, 0x1p-126F);
  return {.scale = scale, .inverse = reciprocal(scale)};
}

}  // namespace quire
