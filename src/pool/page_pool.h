// SPDX-License-Identifier: Apache-2.0
//
// PagePool: which pages of one tier are free, open, sealed or private. It hands out page ids and counts; it knows no
// bytes and no tokens. Free pages go out in the order they came back (first in, first out, lowest first at
// the start), so the same calls always give the same pages.
//
//     free ──try_allocate──► open ──seal──► sealed ──release──► free
//                             ├──make_private──► private ──release──► free       (an open page can be released too)
//                             └◄────reopen────── private
//
// An open or private page may have several owners: share() adds one, release() takes one away, and the page goes with
// its last. One that loses its writer or its place in the tree that way is private from then on. A page that a step in
// flight may still read is fenced between its release and its return: fence(), later release().
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

enum class PageState : std::uint8_t { Free, Open, Sealed, Private, Fenced };
inline constexpr std::size_t kPageStateCount = 5;

[[nodiscard]] constexpr std::string_view to_string(PageState state) {
  constexpr std::array<std::string_view, kPageStateCount> kNames = {"free", "open", "sealed", "private", "fenced"};
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
  /// A private page of one owner can be written again.
  void reopen(PageId page);
  /// One more owner of an open or private page.
  void share(PageId page);
  /// One owner less of a page that has several; the others go on as before.
  void unshare(PageId page);
  /// Takes an owner from each page; those without any are free.
  void release(std::span<const PageId> pages);
  /// Takes the last owner of each page; they stay out of use until release().
  void fence(std::span<const PageId> pages);

  /// More pages, or fewer. Refuses when a page in use lies above the new size. New pages go out before those that came
  /// back. Not for the step path: it allocates.
  [[nodiscard]] Status resize(std::uint32_t page_count);
  /// Refuses as resize() would once all fenced pages are released.
  [[nodiscard]] Status check_resize(std::uint32_t page_count) const {
    return check_unused_from(page_count, /*ignores_fenced=*/true);
  }

  [[nodiscard]] std::uint32_t page_count() const { return page_count_; }
  [[nodiscard]] std::uint32_t first_page() const { return first_page_; }
  [[nodiscard]] std::uint32_t count(PageState state) const { return counts_[static_cast<std::size_t>(state)]; }
  [[nodiscard]] std::uint32_t free_count() const { return count(PageState::Free); }
  [[nodiscard]] PageState state(PageId page) const { return states_[index_of(page)]; }
  [[nodiscard]] bool is_shared(PageId page) const { return extra_owners_[index_of(page)] > 0; }
  [[nodiscard]] std::uint32_t owner_count(PageId page) const;
  /// Names the first rule that does not hold, if any. O(pages).
  [[nodiscard]] Status check_invariants() const;

 private:
  friend struct PagePoolPeer;  // tests corrupt what check_invariants() must notice

  void move(std::span<const PageId> pages, PageState from, PageState to);
  void move_counts(std::uint32_t count, PageState from, PageState to);
  [[nodiscard]] Status check_unused_from(std::uint32_t page_count, bool ignores_fenced) const;
  void pop_free(std::span<PageId> out);
  void push_free(std::span<const PageId> pages);
  [[nodiscard]] std::uint32_t ring_wrap(std::uint64_t position) const;
  [[nodiscard]] std::uint32_t index_of(PageId page) const {
    const std::uint32_t index = page.value - first_page_;
    QUIRE_CHECK(index < page_count_, "a page id that is not of this pool");
    return index;
  }

  std::uint32_t page_count_ = 0;
  std::uint32_t first_page_ = 0;
  LazyArray<PageState> states_;
  LazyArray<std::uint32_t> extra_owners_;  // beyond the first
  // A ring of the free pages. Pages that have never been handed out are not in it: they go out first, from fresh_ on,
  // and a large pool costs memory only for the pages it has used.
  LazyArray<PageId> ring_;
  std::uint32_t ring_head_ = 0;
  std::uint32_t ring_count_ = 0;
  std::uint32_t fresh_ = 0;
  std::array<std::uint32_t, kPageStateCount> counts_{};
};

}  // namespace quire
