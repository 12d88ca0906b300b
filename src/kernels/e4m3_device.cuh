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

/// Two values, neither of them NaN, to two codes: the lower half to the lower byte.
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

[[nodiscard]] __device__ inline bool is_finite(float scale) {
  return (__float_as_uint(scale) & 0x7f800000U) != 0x7f800000U;
}

/// What a code is worth with a scale, as bf16.
[[nodiscard]] __device__ inline std::uint32_t decode_value(std::uint32_t code, float scale) {
  if (!is_finite(scale)) return kBf16Nan;
  if ((code & 0x7fU) == kE4m3Nan) return ((code & 0x80U) << 8U) | kBf16Nan;
  return bf16_from_float(__fmul_rn(e4m3_to_float(static_cast<std::uint8_t>(code)), scale));
}

/// A code's bits are those of an fp32 that is 2^120 times too small, numbers below the least normal one included. Not
/// for NaN.
[[nodiscard]] __device__ inline float e4m3_value(std::uint32_t code) {
  return __fmul_rn(__uint_as_float(((code & 0x80U) << 24U) | ((code & 0x7fU) << 20U)), 0x1p120F);
}

/// Two codes, neither of them NaN, with a scale that is finite, to two bf16.
[[nodiscard]] __device__ inline std::uint32_t decode_pair(std::uint32_t codes, float scale) {
  const float low = __fmul_rn(e4m3_value(codes), scale);
  const float high = __fmul_rn(e4m3_value(codes >> 8U), scale);
  std::uint32_t pair = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Whether one of four codes is NaN.
[[nodiscard]] __device__ inline bool has_nan(std::uint32_t codes) {
  return (((codes & 0x7f7f7f7fU) + 0x01010101U) & 0x80808080U) != 0;
}

struct BlockScale {
  float scale;    ///< as it is stored
  float inverse;  ///< what values are multiplied by before they become codes
};

/// store_scale() of e4m3_rows.cc, without the storing.
[[nodiscard]] __device__ inline BlockScale scale_of(std::uint32_t greatest_bf16, ScaleForm form) {
  const float greatest = bf16_to_float(static_cast<std::uint16_t>(greatest_bf16));
  if (form == ScaleForm::Ue8m0) {
    const std::uint8_t byte = ue8m0_at_least(__fdiv_rn(fmaxf(greatest, 1e-4F), kE4m3Max));
    return {.scale = ue8m0_to_float(byte), .inverse = ue8m0_to_float(static_cast<std::uint8_t>(254 - byte))};
  }
  const float scale = fmaxf(__fdiv_rn(greatest, kE4m3Max), 0x1p-126F);
  return {.scale = scale, .inverse = __fdiv_rn(1.0F, scale)};
}

}  // namespace quire
