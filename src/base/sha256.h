// SPDX-License-Identifier: Apache-2.0
//
// SHA-256, for names that are compared instead of what they name. Allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace quire {

[[nodiscard]] std::array<std::byte, 32> sha256(std::span<const std::byte> bytes);

}  // namespace quire
