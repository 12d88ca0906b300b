// SPDX-License-Identifier: Apache-2.0
//
// Every number of 8 bits, and every bf16, against the formats' definitions.
#include "kernels/e4m3.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "testing/quantised_twin.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::naive_e4m3;
using testing::naive_to_bf16;
using testing::naive_to_e4m3;
using testing::Random;

TEST(E4m3, EveryCodeIsWhatTheFormatSays) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    const double expected = naive_e4m3(static_cast<std::uint8_t>(code));
    EXPECT_EQ(std::isnan(value), std::isnan(expected)) << code;
    if (!std::isnan(value)) {
      EXPECT_EQ(value, expected) << code;
    }
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6F);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9F);
}

TEST(E4m3, EveryCodeComesBackAsItself) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    EXPECT_EQ(e4m3_from_float(e4m3_to_float(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(E4m3, EveryBf16BecomesTheNearestCode) {
  for (std::uint32_t bits = 0; bits < 65'536; ++bits) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(e4m3_from_float(value), naive_to_e4m3(value)) << bits;
  }
}

TEST(E4m3, HalfWayBetweenTwoCodesTheEvenOneWinsAndBesideItTheNearer) {
  for (std::uint8_t code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((naive_e4m3(code) + naive_e4m3(code + 1)) / 2);
    const std::uint8_t above = code + 1;
    EXPECT_EQ(e4m3_from_float(middle), code % 2 == 0 ? code : above) << int{code};
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 1e9F)), above);
    EXPECT_EQ(e4m3_from_float(-middle), 0x80 | (code % 2 == 0 ? code : above));
  }
}

TEST(E4m3, WhatIsTooLargeSaturatesAndNanStaysNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(e4m3_from_float(449.0F), 0x7e);
  EXPECT_EQ(e4m3_from_float(1e30F), 0x7e);
  EXPECT_EQ(e4m3_from_float(kInfinity), 0x7e);
  EXPECT_EQ(e4m3_from_float(-kInfinity), 0xfe);
  EXPECT_EQ(e4m3_from_float(std::numeric_limits<float>::quiet_NaN()), 0x7f);
  EXPECT_EQ(e4m3_from_float(-std::numeric_limits<float>::quiet_NaN()), 0xff);
}

TEST(E4m3, ANormalValueComesBackWithinASixteenthOfItself) {
  Random random(1);
  for (int i = 0; i < 100'000; ++i) {
    const auto value =
        static_cast<float>(std::ldexp(1.0 + (random.below(1U << 23U) * 0x1p-23), -6 + int(random.below(14))));
    if (value > 448.0F) continue;
    EXPECT_LE(std::abs(e4m3_to_float(e4m3_from_float(value)) - value), value / 16) << value;
  }
}

TEST(Ue8m0, EveryByteIsAPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(ue8m0_to_float(static_cast<std::uint8_t>(byte)), std::ldexp(1.0, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_float(255)));
}

TEST(Ue8m0, ANumberGetsTheLeastPowerThatIsNotBelowIt) {
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const auto power = static_cast<float>(std::ldexp(1.0, exponent));
    EXPECT_EQ(ue8m0_at_least(power), exponent + 127);
    if (exponent < 127) {
      EXPECT_EQ(ue8m0_at_least(std::nextafter(power, 3e38F)), exponent + 128);
    }
  }
}

TEST(Bf16, NumbersRoundToTheNearestTiesToEven) {
  Random random(2);
  for (int i = 0; i < 1'000'000; ++i) {
    auto bits = static_cast<std::uint32_t>(random.next());
    if (i % 4 == 0) bits = (bits & 0xffff0000U) | 0x8000U;  // a tie
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    ASSERT_EQ(bf16_from_float(value), naive_to_bf16(value)) << bits;
  }
}

}  // namespace
}  // namespace quire
