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
  const auto count = static_cast<std::uint32_t>(pages.size());
  std::uint32_t open_count = 0;
  std::uint32_t private_count = 0;
  PageState* const states = states_.data();
  for (const PageId page : pages) {
    PageState& state = states[index_of(page)];
    QUIRE_CHECK(state != PageState::Free, "a page released twice");
    open_count += state == PageState::Open ? 1U : 0U;
    private_count += state == PageState::Private ? 1U : 0U;
    state = PageState::Free;
  }
  move_counts(open_count, PageState::Open, PageState::Free);
  move_counts(private_count, PageState::Private, PageState::Free);
  move_counts(count - open_count - private_count, PageState::Sealed, PageState::Free);
  push_free(pages);
}

void PagePool::move(std::span<const PageId> pages, PageState from, PageState to) {
  PageState* const states = states_.data();
  for (const PageId page : pages) {
    PageState& state = states[index_of(page)];
    QUIRE_CHECK(state == from, "a page is sealed or made private that is not open");
    state = to;
  }
  move_counts(static_cast<std::uint32_t>(pages.size()), from, to);
}

Status PagePool::resize(std::uint32_t page_count) {
  if (std::uint64_t{first_page_} + page_count >= PageId::kNoneValue) {
    return fail(ErrorCode::InvalidArgument,
                std::to_string(page_count) + " pages: page ids have 32 bits; use more tokens per page");
  }
  for (std::uint32_t i = page_count; i < page_count_; ++i) {
    if (states_[i] != PageState::Free) {
      return fail(ErrorCode::Unavailable,
                  "cannot shrink the pool from " + std::to_string(page_count_) + " to " + std::to_string(page_count) +
                      " pages: page " + std::to_string(first_page_ + i) + " is " + std::string(to_string(states_[i])));
    }
  }
  // The ring is laid out anew for its new length: free pages keep their order, those beyond the new end are left out.
  QUIRE_TRY_ASSIGN(LazyArray<PageId> ring, LazyArray<PageId>::create(page_count));
  QUIRE_TRY(states_.grow(page_count));
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

PageState PagePool::state(PageId page) const {
  return states_[index_of(page)];
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

std::uint32_t PagePool::index_of(PageId page) const {
  const std::uint32_t index = page.value - first_page_;
  QUIRE_CHECK(index < page_count_, "a page id that is not of this pool");
  return index;
}

Status PagePool::check_invariants() const {
  const auto broken = [](const std::string& rule) { return fail(ErrorCode::Corrupt, "page pool: " + rule); };
  std::array<std::uint32_t, 4> counts{};
  for (std::uint32_t i = 0; i < page_count_; ++i) {
    ++counts[static_cast<std::size_t>(states_[i])];
    if (i >= fresh_ && states_[i] != PageState::Free) return broken("a page that was never handed out is in use");
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
