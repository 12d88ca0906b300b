// SPDX-License-Identifier: Apache-2.0
//
// Numbers as people read them, for messages and tables.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

/// 1234567 as "1,234,567".
[[nodiscard]] std::string with_separators(std::uint64_t number);

/// In the largest binary unit that keeps the number at 1 or above, with two decimals unless it is exact: "2
/// MiB", "1.07 MiB", "656 B".
[[nodiscard]] std::string readable_bytes(std::uint64_t bytes);

}  // namespace quire
