// SPDX-License-Identifier: Apache-2.0
#include "layout/text.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/checked.h"

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

std::string quoted(std::string_view name) {
  return "'" + std::string(name) + "'";
}

std::string count_of(std::uint64_t count, std::string_view noun) {
  return with_separators(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

Result<std::uint64_t> product(const std::string& what, std::initializer_list<Factor> factors) {
  std::optional<std::uint64_t> result = 1;
  std::string shown;
  for (const Factor& factor : factors) {
    if (result) result = checked_multiply(*result, factor.value);
    if (!shown.empty()) shown += " x ";
    shown.append(with_separators(factor.value)).append(" ").append(factor.unit);
  }
  if (result) return *result;
  return fail(ErrorCode::InvalidArgument, what + " does not fit in 64 bits (" + shown + "): make it smaller");
}

}  // namespace quire
