// SPDX-License-Identifier: Apache-2.0
//
// Numbers and names as people read them, for messages and tables.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire {

/// 1234567 as "1,234,567".
[[nodiscard]] std::string with_separators(std::uint64_t number);

/// In the largest binary unit that keeps the number at 1 or above, with two decimals unless it is exact: "2
/// MiB", "1.07 MiB", "656 B".
[[nodiscard]] std::string readable_bytes(std::uint64_t bytes);

/// The name in single quotes.
[[nodiscard]] std::string quoted(std::string_view name);

/// "1 page", "2,000 pages".
[[nodiscard]] std::string count_of(std::uint64_t count, std::string_view noun);

struct Factor {
  std::uint64_t value;
  std::string_view unit;
};

/// The product, or an error that shows the factors, so that the reader sees which one is absurd.
[[nodiscard]] Result<std::uint64_t> product(const std::string& what, std::initializer_list<Factor> factors);

}  // namespace quire
