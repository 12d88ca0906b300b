// SPDX-License-Identifier: Apache-2.0
//
// The clock by which deadlines of this module are kept.
#pragma once

#include <chrono>

#include "quire/types.h"

namespace quire {

[[nodiscard]] inline TimeNs monotonic_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace quire
