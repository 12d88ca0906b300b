// SPDX-License-Identifier: Apache-2.0
//
// Whether a value of a shared store is the extent that its key says. Nothing of either is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quire {

/// The parts of a key as write_extent_key() makes them. Its texts lie in the key.
struct ExtentKeyText {
  std::string_view key_space;  ///< 16 digits
  std::string_view name;       ///< 64 digits
  std::uint64_t layout = 0;
  std::uint32_t page_count = 0;
};
/// None when no cache with this prefix would write such a key.
[[nodiscard]] std::optional<ExtentKeyText> parse_extent_key(std::string_view key, std::string_view prefix);

/// Empty when the value is what the key says, else why not.
[[nodiscard]] std::string extent_fault(const ExtentKeyText& key, std::span<const std::byte> value);

}  // namespace quire
