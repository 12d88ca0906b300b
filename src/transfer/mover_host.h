// SPDX-License-Identifier: Apache-2.0
//
// MoverHost: the host pages of an engine's mover, as tiers below the host check and use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/mover.h"
#include "store/host_pages.h"

namespace quire {

struct MoverHost {
  struct Pool {
    HostPages* pages = nullptr;  ///< the mover's own
    std::uint32_t page_count = 0;
    std::uint64_t page_bytes = 0;
  };
  [[nodiscard]] static std::vector<Pool> pools(Mover& mover);
  /// In which all host pages lie.
  [[nodiscard]] static std::span<std::byte> memory(Mover& mover);
  /// What it writes into completions.
  [[nodiscard]] static std::uint16_t rank(const Mover& mover);
};

}  // namespace quire
