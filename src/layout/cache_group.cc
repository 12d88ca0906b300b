// SPDX-License-Identifier: Apache-2.0
#include "quire/cache_group.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace quire {
namespace {

std::vector<std::byte> little_endian(std::uint32_t value, std::uint32_t bytes) {
  std::vector<std::byte> pattern;
  for (std::uint32_t i = 0; i < bytes; ++i) pattern.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xffU));
  return pattern;
}

}  // namespace

std::vector<std::byte> fp32_pattern(float value) {
  return little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

std::vector<std::byte> bf16_pattern(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t half = 0x7fffU + ((bits >> 16U) & 1U);  // of the lowest bit that stays; ties go to even
  return little_endian((bits + half) >> 16U, 2);
}

std::vector<std::byte> int32_pattern(std::int32_t value) {
  return little_endian(static_cast<std::uint32_t>(value), 4);
}

std::vector<std::uint32_t> layer_range(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> layers(count);
  std::iota(layers.begin(), layers.end(), first);
  return layers;
}

}  // namespace quire
