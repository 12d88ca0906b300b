// SPDX-License-Identifier: Apache-2.0
#include "pool/offered_pages.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

Result<OfferedPages> OfferedPages::create(std::uint32_t page_count) {
  OfferedPages pages;
  pages.page_count_ = page_count;
  pages.counts_[static_cast<std::size_t>(State::Engine)] = page_count;
  QUIRE_TRY_ASSIGN(pages.states_, LazyArray<State>::create(page_count));
  QUIRE_TRY_ASSIGN(pages.released_, LazyArray<PageId>::create(page_count));
  return pages;
}

void OfferedPages::release(std::span<const PageId> pages) {
  for (const PageId page : pages) {
    const std::size_t end = std::size_t{released_head_} + count(State::Released);
    released_[end % page_count_] = page;
    move(page, State::Held, State::Released);
  }
}

std::span<PageId> OfferedPages::take_released(std::span<PageId> out) {
  const std::size_t taken = std::min<std::size_t>(out.size(), count(State::Released));
  for (std::size_t i = 0; i < taken; ++i) {
    out[i] = released_[released_head_];
    released_head_ = (released_head_ + 1) % page_count_;
    move(out[i], State::Released, State::Engine);
  }
  return out.first(taken);
}

void OfferedPages::move(PageId page, State from, State to) {
  QUIRE_CHECK(page.value < page_count_ && states_[page.value] == from, "an offered page is not where it should be");
  --counts_[static_cast<std::size_t>(from)];
  ++counts_[static_cast<std::size_t>(to)];
  states_[page.value] = to;
}

Status OfferedPages::check_invariants() const {
  std::array<std::uint32_t, 3> counts{};
  for (std::uint32_t i = 0; i < page_count_; ++i) ++counts[static_cast<std::size_t>(states_[i])];
  if (counts != counts_) return fail(ErrorCode::Corrupt, "offered pages: the counts per state are wrong");
  for (std::uint32_t i = 0; i < count(State::Released); ++i) {
    const PageId page = released_[(std::size_t{released_head_} + i) % page_count_];
    if (page.value >= page_count_ || states_[page.value] != State::Released) {
      return fail(ErrorCode::Corrupt, "offered pages: the ring holds a page that is not released");
    }
  }
  return {};
}

}  // namespace quire
