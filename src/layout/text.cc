// SPDX-License-Identifier: Apache-2.0
#include "layout/text.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace quire {

std::string with_separators(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t position = text.size(); position > 3;) {
    position -= 3;
    text.insert(position, 1, ',');
  }
  return text;
}

std::string readable_bytes(std::uint64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes >> (10 * (unit + 1)) != 0) ++unit;

  const std::uint64_t unit_bytes = std::uint64_t{1} << (10 * unit);
  if (bytes % unit_bytes == 0) return std::to_string(bytes / unit_bytes) + " " + kUnits[unit];
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", static_cast<double>(bytes) / static_cast<double>(unit_bytes),
                kUnits[unit]);
  return text.data();
}

}  // namespace quire
