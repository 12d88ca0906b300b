// SPDX-License-Identifier: Apache-2.0
#include "pool/page_pool.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"

namespace quire {

namespace {

// What is worth copying to keep the ring short: 4 KiB of page ids.
constexpr std::uint32_t kFewPages = 1024;

}  // namespace

Result<PagePool> PagePool::create(const PagePoolConfig& config) {
  PagePool pool;
  pool.first_page_ = config.first_page;
  QUIRE_TRY(pool.resize(config.page_count));
  return pool;
}

bool PagePool::try_allocate(std::span<PageId> out) {
  if (out.size() > free_count()) return false;
  const auto count = static_cast<std::uint32_t>(out.size());
  // Never-used pages first: at the start they are the longest-free ones, and later there are none left.
  const std::uint32_t fresh_count = std::min(count, page_count_ - fresh_);
  for (PageId& page : out.first(fresh_count)) page = PageId{first_page_ + fresh_++};
  pop_free(out.subspan(fresh_count));
  PageState* const states = states_.data();
  for (const PageId page : out) states[page.value - first_page_] = PageState::Open;
  move_counts(count, PageState::Free, PageState::Open);
  return true;
}

void PagePool::release(std::span<const PageId> pages) {
  PageState* const states = states_.data();
  std::uint32_t* const extra_owners = extra_owners_.data();
  std::array<std::uint32_t, kPageStateCount> left{};
  std::uint32_t freed = 0;
  std::size_t run_begin = 0;  // pages from here on go back to the ring together
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::uint32_t index = index_of(pages[i]);
    PageState& state = states[index];
    QUIRE_CHECK(state != PageState::Free, "a page released twice");
    ++left[static_cast<std::size_t>(state)];
    if (extra_owners[index] > 0) [[unlikely]] {
      --extra_owners[index];
      state = PageState::Private;
      ++counts_[static_cast<std::size_t>(PageState::Private)];
      push_free(pages.subspan(run_begin, i - run_begin));
      run_begin = i + 1;
      continue;
    }
    state = PageState::Free;
    ++freed;
  }
  for (std::size_t i = 0; i < kPageStateCount; ++i) counts_[i] -= left[i];
  counts_[static_cast<std::size_t>(PageState::Free)] += freed;
  push_free(pages.subspan(run_begin));
}

void PagePool::fence(std::span<const PageId> pages) {
  for (const PageId page : pages) {
    const std::uint32_t index = index_of(page);
    PageState& state = states_[index];
    QUIRE_CHECK(state != PageState::Free && state != PageState::Fenced && extra_owners_[index] == 0,
                "fencing a page that is free, fenced or somebody else's too");
    move_counts(1, state, PageState::Fenced);
    state = PageState::Fenced;
  }
}

void PagePool::reopen(PageId page) {
  PageState& state = states_[index_of(page)];
  QUIRE_CHECK(state == PageState::Private && !is_shared(page), "reopening a page that is not private to one owner");
  state = PageState::Open;
  move_counts(1, PageState::Private, PageState::Open);
}

void PagePool::share(PageId page) {
  const PageState state = this->state(page);
  QUIRE_CHECK(state == PageState::Open || state == PageState::Private, "sharing a page that nobody owns");
  ++extra_owners_[index_of(page)];
}

void PagePool::unshare(PageId page) {
  QUIRE_CHECK(is_shared(page), "a page loses an owner it does not have");
  --extra_owners_[index_of(page)];
}

std::uint32_t PagePool::owner_count(PageId page) const {
  const PageState state = this->state(page);
  return state == PageState::Open || state == PageState::Private ? 1 + extra_owners_[index_of(page)] : 0;
}

void PagePool::move(std::span<const PageId> pages, PageState from, PageState to) {
  PageState* const states = states_.data();
  for (const PageId page : pages) {
    PageState& state = states[index_of(page)];
    QUIRE_CHECK(state == from, "a page is sealed or made private that is not open");
    QUIRE_CHECK(to != PageState::Sealed || !is_shared(page), "sealing a page that has other owners");
    state = to;
  }
  move_counts(static_cast<std::uint32_t>(pages.size()), from, to);
}

Status PagePool::resize(std::uint32_t page_count) {
  if (std::uint64_t{first_page_} + page_count >= PageId::kNoneValue) {
    return fail(ErrorCode::InvalidArgument,
                std::to_string(page_count) + " pages: page ids have 32 bits; use more tokens per page");
  }
  QUIRE_TRY(check_unused_from(page_count, /*ignores_fenced=*/false));
  // The ring is laid out anew for its new length: free pages keep their order, those beyond the new end are left out.
  QUIRE_TRY_ASSIGN(LazyArray<PageId> ring, LazyArray<PageId>::create(page_count));
  QUIRE_TRY(states_.grow(page_count));
  QUIRE_TRY(extra_owners_.grow(page_count));
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < ring_count_; ++i) {
    const PageId page = ring_[(std::size_t{ring_head_} + i) % page_count_];
    if (page.value - first_page_ < page_count) ring[kept++] = page;
  }
  ring_ = std::move(ring);
  ring_head_ = 0;
  ring_count_ = kept;
  fresh_ = std::min(fresh_, page_count);
  page_count_ = page_count;
  counts_[static_cast<std::size_t>(PageState::Free)] = ring_count_ + (page_count_ - fresh_);
  return {};
}

Status PagePool::check_unused_from(std::uint32_t page_count, bool ignores_fenced) const {
  for (std::uint32_t i = page_count; i < page_count_; ++i) {
    if (states_[i] == PageState::Free || (ignores_fenced && states_[i] == PageState::Fenced)) continue;
    return fail(ErrorCode::Unavailable,
                "cannot shrink the pool from " + std::to_string(page_count_) + " to " + std::to_string(page_count) +
                    " pages: page " + std::to_string(first_page_ + i) + " is " + std::string(to_string(states_[i])));
  }
  return {};
}

void PagePool::move_counts(std::uint32_t count, PageState from, PageState to) {
  counts_[static_cast<std::size_t>(from)] -= count;
  counts_[static_cast<std::size_t>(to)] += count;
}

void PagePool::pop_free(std::span<PageId> out) {
  const std::size_t first_part = std::min<std::size_t>(out.size(), page_count_ - ring_head_);
  std::copy_n(ring_.data() + ring_head_, first_part, out.data());
  std::copy_n(ring_.data(), out.size() - first_part, out.data() + first_part);
  ring_count_ -= static_cast<std::uint32_t>(out.size());
  ring_head_ = ring_wrap(std::uint64_t{ring_head_} + out.size());
  // Few free pages move back to the front: a pool that is mostly full then touches a small part of the ring, not all of
  // it in turn.
  if (ring_count_ <= kFewPages && ring_head_ >= kFewPages && page_count_ - ring_head_ >= ring_count_) {
    std::copy_n(ring_.data() + ring_head_, ring_count_, ring_.data());
    ring_head_ = 0;
  }
}

void PagePool::push_free(std::span<const PageId> pages) {
  const std::uint32_t end = ring_wrap(std::uint64_t{ring_head_} + ring_count_);
  const std::size_t first_part = std::min<std::size_t>(pages.size(), page_count_ - end);
  std::copy_n(pages.data(), first_part, ring_.data() + end);
  std::copy_n(pages.data() + first_part, pages.size() - first_part, ring_.data());
  ring_count_ += static_cast<std::uint32_t>(pages.size());
}

std::uint32_t PagePool::ring_wrap(std::uint64_t position) const {
  return static_cast<std::uint32_t>(position < page_count_ ? position : position - page_count_);
}

Status PagePool::check_invariants() const {
  const auto broken = [](const std::string& rule) { return fail(ErrorCode::Corrupt, "page pool: " + rule); };
  std::array<std::uint32_t, kPageStateCount> counts{};
  for (std::uint32_t i = 0; i < page_count_; ++i) {
    ++counts[static_cast<std::size_t>(states_[i])];
    if (i >= fresh_ && states_[i] != PageState::Free) return broken("a page that was never handed out is in use");
    const bool may_be_shared = states_[i] == PageState::Open || states_[i] == PageState::Private;
    if (extra_owners_[i] > 0 && !may_be_shared) return broken("a page has owners that cannot have any");
  }
  if (counts != counts_) return broken("the counts per state are wrong");
  if (ring_count_ + (page_count_ - fresh_) != free_count()) {
    return broken("the free pages are not those in the ring and the fresh ones");
  }
  std::vector<bool> seen(page_count_);
  for (std::uint32_t i = 0; i < ring_count_; ++i) {
    const PageId page = ring_[(std::size_t{ring_head_} + i) % page_count_];
    const std::uint32_t index = page.value - first_page_;
    if (index >= page_count_) return broken("the ring holds a page of another pool");
    if (index >= fresh_) return broken("the ring holds a page that was never handed out");
    if (seen[index]) return broken("a page is in the ring twice");
    if (states_[index] != PageState::Free) return broken("the ring holds a page that is not free");
    seen[index] = true;
  }
  return {};
}

}  // namespace quire
