// SPDX-License-Identifier: Apache-2.0
//
// For what another process or thread does in its own time: asks again and again, with a limit that is only reached when
// something is wrong.
#pragma once

#include <poll.h>

#include <chrono>

namespace quire::testing {

template <typename Question>
[[nodiscard]] bool comes_true(Question question) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!question()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    (void)poll(nullptr, 0, 2);
  }
  return true;
}

}  // namespace quire::testing
