// SPDX-License-Identifier: Apache-2.0
//
// PagePool: which pages of one tier are free, open, sealed or private. It hands out page ids and counts; it knows no
// bytes and no tokens. Free pages go out in the order they came back (first in, first out, lowest first at
// the start), so the same calls always give the same pages.
//
//     free ──try_allocate──► open ──seal──► sealed ──release──► free
//                             └──make_private──► private ──release──► free       (an open page can be released too)
//
// Any other transition is a bug in the caller and stops the program. O(1) per page; only resize() allocates.
//
// single-threaded
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/lazy_array.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

enum class PageState : std::uint8_t { Free, Open, Sealed, Private };

[[nodiscard]] constexpr std::string_view to_string(PageState state) {
  constexpr std::array<std::string_view, 4> kNames = {"free", "open", "sealed", "private"};
  return kNames[static_cast<std::size_t>(state)];
}

struct PagePoolConfig {
  std::uint32_t page_count = 0;  ///< pages that can be handed out
  std::uint32_t first_page = 0;  ///< the lowest id; ids below it belong to someone else (the null page)
};

class PagePool {
 public:
  [[nodiscard]] static Result<PagePool> create(const PagePoolConfig& config);

  /// All of `out`, now open, or nothing.
  [[nodiscard]] bool try_allocate(std::span<PageId> out);
  void seal(std::span<const PageId> pages) { move(pages, PageState::Open, PageState::Sealed); }
  void make_private(std::span<const PageId> pages) { move(pages, PageState::Open, PageState::Private); }
  void release(std::span<const PageId> pages);

  /// More pages, or fewer. Refuses when a page in use lies above the new size. New pages go out before those that came
  /// back. Not for the step path: it allocates.
  [[nodiscard]] Status resize(std::uint32_t page_count);

  [[nodiscard]] std::uint32_t page_count() const { return page_count_; }
  [[nodiscard]] std::uint32_t first_page() const { return first_page_; }
  [[nodiscard]] std::uint32_t count(PageState state) const { return counts_[static_cast<std::size_t>(state)]; }
  [[nodiscard]] std::uint32_t free_count() const { return count(PageState::Free); }
  [[nodiscard]] PageState state(PageId page) const;
  /// Names the first rule that does not hold, if any. O(pages).
  [[nodiscard]] Status check_invariants() const;

 private:
  friend struct PagePoolPeer;  // tests corrupt what check_invariants() must notice

  void move(std::span<const PageId> pages, PageState from, PageState to);
  void move_counts(std::uint32_t count, PageState from, PageState to);
  void pop_free(std::span<PageId> out);
  void push_free(std::span<const PageId> pages);
  [[nodiscard]] std::uint32_t ring_wrap(std::uint64_t position) const;
  [[nodiscard]] std::uint32_t index_of(PageId page) const;

  std::uint32_t page_count_ = 0;
  std::uint32_t first_page_ = 0;
  LazyArray<PageState> states_;
  // A ring of the free pages. Pages that have never been handed out are not in it: they follow, from fresh_ on, when
  // it is empty, so that a large pool costs memory only for the pages it has used.
  LazyArray<PageId> ring_;
  std::uint32_t ring_head_ = 0;
  std::uint32_t ring_count_ = 0;
  std::uint32_t fresh_ = 0;
  std::array<std::uint32_t, 4> counts_{};
};

}  // namespace quire
