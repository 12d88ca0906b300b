// SPDX-License-Identifier: Apache-2.0
//
// Refusal: how a call about a sequence says no, such as "fork: sequence 3 has 40 tokens; at is 50". It knows the call
// and the sequence; whoever refuses says why, in pieces as layout/text.h takes them.
//
// immutable
#pragma once

#include <cstdint>
#include <string_view>

#include "layout/text.h"
#include "quire/result.h"

namespace quire {

struct Refusal {
  std::string_view call;
  std::uint32_t sequence = 0;

  template <typename... Pieces>
  [[nodiscard]] tl::unexpected<Error> invalid(const Pieces&... why) const {
    return quire::invalid(call, ": sequence ", plain(sequence), why...);
  }
  template <typename... Pieces>
  [[nodiscard]] tl::unexpected<Error> unsupported(const Pieces&... why) const {
    return quire::unsupported(call, ": sequence ", plain(sequence), why...);
  }
  template <typename... Pieces>
  [[nodiscard]] tl::unexpected<Error> unavailable(const Pieces&... why) const {
    return quire::unavailable(call, ": sequence ", plain(sequence), why...);
  }
};

}  // namespace quire
