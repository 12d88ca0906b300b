// SPDX-License-Identifier: Apache-2.0
//
// Amounts as people write and read them: "100k", "2.5M", "95.4 GiB", and lists of them on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire {

/// A whole number above 0 with an optional suffix: k, M and G are decimal, and a fraction may stand before them.
[[nodiscard]] Result<std::uint64_t> parse_amount(std::string_view text);
/// Amounts with commas between them, each at most once, in the order given.
[[nodiscard]] Result<std::vector<std::uint64_t>> parse_amounts(std::string_view text);
/// The parts of a list between its commas; empty ones are errors.
[[nodiscard]] Result<std::vector<std::string>> parse_names(std::string_view text);

/// "512", "100k", "93.8M": three digits or fewer.
[[nodiscard]] std::string amount_text(std::uint64_t amount);
/// "512 bytes", "97.7 MiB": three digits or fewer.
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace quire
