// SPDX-License-Identifier: Apache-2.0
//
// OfferedPages: which pages of an engine's own pool quire holds, and which it has given up but not yet told the engine
// about. The counterpart of PagePool where the engine hands out the pages.
//
//     the engine's ──hold──► held ──release──► released ──take_released──► the engine's
//
// single-threaded. Nothing allocates after create().
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/lazy_array.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

class OfferedPages {
 public:
  enum class State : std::uint8_t { Engine, Held, Released };

  /// Page ids lie in [0, page_count).
  [[nodiscard]] static Result<OfferedPages> create(std::uint32_t page_count);

  void hold(PageId page) { move(page, State::Engine, State::Held); }
  /// Takes back a hold() of this very call, as if it had not been.
  void unhold(PageId page) { move(page, State::Held, State::Engine); }
  void release(std::span<const PageId> pages);
  /// Released pages, oldest first, as many as fit.
  [[nodiscard]] std::span<PageId> take_released(std::span<PageId> out);

  [[nodiscard]] std::uint32_t page_count() const { return page_count_; }
  [[nodiscard]] std::uint32_t count(State state) const { return counts_[static_cast<std::size_t>(state)]; }
  /// Of an id below page_count().
  [[nodiscard]] State state(PageId page) const { return states_[page.value]; }
  [[nodiscard]] Status check_invariants() const;

 private:
  void move(PageId page, State from, State to);

  std::uint32_t page_count_ = 0;
  LazyArray<State> states_;
  LazyArray<PageId> released_;  // a ring
  std::uint32_t released_head_ = 0;
  std::array<std::uint32_t, 3> counts_{};
};

}  // namespace quire
