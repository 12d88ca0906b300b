// SPDX-License-Identifier: Apache-2.0
//
// The codec of each set of instructions against a twin that goes value by value, bit for bit.
#include "kernels/e4m3_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/quantised_twin.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::codecs_here;
using testing::naive_bf16;
using testing::NaiveRow;
using testing::NamedCodec;
using testing::Random;

struct TestedShape {
  std::size_t dim;
  std::uint32_t block_values;
  ScaleForm form;
  std::size_t scales_bytes;

  [[nodiscard]] E4m3Shape shape() const {
    return {.dim = dim, .block_values = block_values, .scale_form = form, .scales_bytes = scales_bytes};
  }
  [[nodiscard]] std::string name() const {
    return std::to_string(dim) + " values, " + std::to_string(block_values) + " a block" +
           (form == ScaleForm::Fp32 ? ", fp32" : ", ue8m0");
  }
};

std::vector<TestedShape> shapes() {
  std::vector<TestedShape> shapes;
  for (const std::size_t dim : {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, 131, 447, 448, 512}) {
    for (const std::size_t block : {std::size_t{3}, std::size_t{64}, std::size_t{128}, dim}) {
      const std::size_t blocks = (dim + block - 1) / block;
      shapes.push_back({dim, static_cast<std::uint32_t>(block), ScaleForm::Fp32, 4 * blocks});
      shapes.push_back({dim, static_cast<std::uint32_t>(block), ScaleForm::Ue8m0, (blocks + 7) / 8 * 8});
    }
  }
  return shapes;
}

// Bytes with others around them that must stay, at an odd address.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes), memory_(bytes + (2 * kGuard), kFill) {}
  [[nodiscard]] std::byte* data() { return memory_.data() + kGuard; }
  [[nodiscard]] const std::uint8_t* bytes() { return reinterpret_cast<const std::uint8_t*>(data()); }
  [[nodiscard]] bool is_intact() const {
    const auto is_fill = [](std::byte byte) { return byte == kFill; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_fill) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), is_fill);
  }
  [[nodiscard]] bool holds(const void* expected) { return std::memcmp(data(), expected, bytes_) == 0; }

 private:
  static constexpr std::ptrdiff_t kGuard = 67;
  static constexpr std::byte kFill{0xa5};
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

TEST(E4m3Rows, EncodeAsTheTwinDoes) {
  Random random(1);
  for (const NamedCodec& tested : codecs_here()) {
    for (const TestedShape& shape : shapes()) {
      for (int turn = 0; turn < 8; ++turn) {
        const std::vector<std::uint16_t> row = testing::random_row(random, shape.dim);
        Guarded source(2 * shape.dim);
        std::memcpy(source.data(), row.data(), 2 * shape.dim);
        Guarded codes(shape.dim);
        Guarded scales(shape.scales_bytes);
        tested.codec->encode({.codes = codes.data(), .scales = scales.data(), .source = source.data()}, shape.shape());
        const NaiveRow expected = testing::encode_naively(row, shape.block_values, shape.form, shape.scales_bytes);
        ASSERT_TRUE(codes.holds(expected.codes.data())) << tested.name << ", " << shape.name();
        ASSERT_TRUE(scales.holds(expected.scales.data())) << tested.name << ", " << shape.name();
        ASSERT_TRUE(codes.is_intact() && scales.is_intact()) << tested.name << ", " << shape.name();
      }
    }
  }
}

TEST(E4m3Rows, DecodeAsTheTwinDoes) {
  Random random(2);
  for (const NamedCodec& tested : codecs_here()) {
    for (const TestedShape& shape : shapes()) {
      Guarded codes(shape.dim);
      Guarded scales(shape.scales_bytes);
      Guarded target(2 * shape.dim);
      for (std::size_t i = 0; i < shape.dim; ++i) codes.data()[i] = static_cast<std::byte>(random.below(256));
      for (std::size_t i = 0; i < shape.scales_bytes; ++i) scales.data()[i] = static_cast<std::byte>(random.below(256));
      tested.codec->decode({.target = target.data(), .codes = codes.data(), .scales = scales.data()}, shape.shape());
      const std::vector<std::uint16_t> expected =
          testing::decode_naively(codes.bytes(), shape.dim, scales.bytes(), shape.block_values, shape.form);
      ASSERT_TRUE(target.holds(expected.data())) << tested.name << ", " << shape.name();
      ASSERT_TRUE(target.is_intact()) << tested.name << ", " << shape.name();
    }
  }
}

TEST(E4m3Rows, EveryCodeDecodesWithEveryKindOfScale) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> fp32_scales = {0.0F,
                                    -0.0F,
                                    1.0F,
                                    -2.0F,
                                    0.1F,
                                    -3.7F,
                                    1e-30F,
                                    1e-38F,
                                    1e-41F,
                                    1e36F,
                                    1e38F,
                                    3e38F,
                                    kInfinity,
                                    -kInfinity,
                                    std::numeric_limits<float>::quiet_NaN(),
                                    std::bit_cast<float>(0xffffffffU)};
  for (int exponent = -149; exponent <= 127; ++exponent) fp32_scales.push_back(std::ldexp(1.0F, exponent));
  std::array<std::uint8_t, 256> codes{};
  for (std::uint32_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  const auto check = [&](const NamedCodec& tested, const void* scale, ScaleForm form) {
    std::array<std::uint16_t, 256> target{};
    tested.codec->decode({.target = reinterpret_cast<std::byte*>(target.data()),
                          .codes = reinterpret_cast<const std::byte*>(codes.data()),
                          .scales = static_cast<const std::byte*>(scale)},
                         {.dim = 256, .block_values = 256, .scale_form = form});
    const std::vector<std::uint16_t> expected =
        testing::decode_naively(codes.data(), 256, static_cast<const std::uint8_t*>(scale), 256, form);
    ASSERT_TRUE(std::equal(target.begin(), target.end(), expected.begin())) << tested.name;
  };
  for (const NamedCodec& tested : codecs_here()) {
    for (const float scale : fp32_scales) check(tested, &scale, ScaleForm::Fp32);
    for (const std::uint8_t scale : codes) check(tested, &scale, ScaleForm::Ue8m0);
  }
}

// Encodes a row and gives it back with fp32 accuracy: the codes and scales alone, without the rounding to bf16.
std::vector<double> there_and_back(const E4m3Codec& codec, const std::vector<std::uint16_t>& row,
                                   const TestedShape& shape) {
  std::vector<std::uint8_t> codes(shape.dim);
  std::vector<std::uint8_t> scales(shape.scales_bytes);
  codec.encode({.codes = reinterpret_cast<std::byte*>(codes.data()),
                .scales = reinterpret_cast<std::byte*>(scales.data()),
                .source = reinterpret_cast<const std::byte*>(row.data())},
               shape.shape());
  std::vector<double> values(shape.dim);
  for (std::size_t i = 0; i < shape.dim; ++i) {
    values[i] = testing::naive_e4m3(codes[i]) * testing::naive_scale(scales.data(), i / shape.block_values, shape.form);
  }
  return values;
}

TEST(E4m3Rows, ValuesComeBackWithinTheStatedBounds) {
  Random random(3);
  constexpr TestedShape kFp32{448, 448, ScaleForm::Fp32, 4};
  constexpr TestedShape kUe8m0{448, 64, ScaleForm::Ue8m0, 8};
  for (const NamedCodec& tested : codecs_here()) {
    for (const auto& [shape, part] : {std::pair{kFp32, 0.036}, std::pair{kUe8m0, 0.0625}}) {
      for (int turn = 0; turn < 300; ++turn) {
        std::vector<std::uint16_t> row(shape.dim);
        const std::uint32_t exponent = 120 + random.below(60);
        for (std::uint16_t& bits : row) {
          bits = static_cast<std::uint16_t>(
              (random.below(2) << 15U) | ((exponent - random.below(turn % 2 == 0 ? 4 : 20)) << 7U) | random.below(128));
        }
        const std::vector<double> values = there_and_back(*tested.codec, row, shape);
        for (std::size_t i = 0; i < shape.dim; ++i) {
          const auto block = row.begin() + static_cast<std::ptrdiff_t>(i / shape.block_values * shape.block_values);
          double greatest = 0;
          std::for_each(block, block + shape.block_values,
                        [&](std::uint16_t bits) { greatest = std::max(greatest, std::abs(double{naive_bf16(bits)})); });
          const double value = naive_bf16(row[i]);
          ASSERT_LE(std::abs(values[i] - value), part * greatest) << tested.name << ", " << value << " of " << greatest;
          // The least normal number is 2^-6, of a greatest between 224 and 448.
          if (std::abs(value) >= greatest * 0x1p-6 / 224) {
            ASSERT_LE(std::abs(values[i] - value), std::abs(value) * 0.0625 * (1 + 1e-6)) << tested.name;
          }
        }
      }
    }
  }
}

TEST(E4m3Rows, ZerosComeBackAsZerosAndTinyBlocksWithinTheLeastScale) {
  constexpr TestedShape kFp32{64, 64, ScaleForm::Fp32, 4};
  constexpr TestedShape kUe8m0{64, 64, ScaleForm::Ue8m0, 8};
  for (const NamedCodec& tested : codecs_here()) {
    for (const TestedShape& shape : {kFp32, kUe8m0}) {
      for (const double value : there_and_back(*tested.codec, std::vector<std::uint16_t>(64, 0x8000), shape)) {
        EXPECT_EQ(value, 0.0);
      }
      // 2^-133, the least bf16. Half the least step is 2^-10 times the least scale: 2^-126, or 2^-22.
      const double bound = shape.form == ScaleForm::Fp32 ? 0x1p-136 : 0x1p-32;
      for (const double value : there_and_back(*tested.codec, std::vector<std::uint16_t>(64, 1), shape)) {
        EXPECT_LE(std::abs(value - 0x1p-133), bound);
      }
    }
  }
}

TEST(E4m3Rows, WhatIsNotFiniteHasNoPartInTheScale) {
  constexpr TestedShape kFp32{64, 64, ScaleForm::Fp32, 4};
  constexpr TestedShape kUe8m0{64, 64, ScaleForm::Ue8m0, 8};
  for (const NamedCodec& tested : codecs_here()) {
    for (const TestedShape& shape : {kFp32, kUe8m0}) {
      std::vector<std::uint16_t> row(64, 0x3f80);  // 1
      const std::vector<double> without = there_and_back(*tested.codec, row, shape);
      row[3] = 0x7f80;   // infinity
      row[20] = 0xff80;  // -infinity
      row[40] = 0x7fc1;
      row[63] = 0xff81;
      const std::vector<double> values = there_and_back(*tested.codec, row, shape);
      const double greatest = shape.form == ScaleForm::Fp32 ? 1.0 : 448.0 / 256.0;  // 448 * scale
      EXPECT_NEAR(values[3], greatest, 1e-6);
      EXPECT_NEAR(values[20], -greatest, 1e-6);
      EXPECT_TRUE(std::isnan(values[40]) && std::isnan(values[63]));
      for (const std::size_t i : {0, 4, 19, 21, 39, 41, 62}) EXPECT_EQ(values[i], without[i]);
      // Nothing finite at all.
      const std::vector<double> infinite = there_and_back(*tested.codec, std::vector<std::uint16_t>(64, 0x7f80), shape);
      EXPECT_TRUE(std::ranges::all_of(infinite, [](double value) { return std::isfinite(value) && value > 0; }));
    }
  }
}

}  // namespace
}  // namespace quire
