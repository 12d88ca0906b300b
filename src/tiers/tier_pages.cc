// SPDX-License-Identifier: Apache-2.0
#include "tiers/tier_pages.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutants.h"
#include "quire/plan.h"

namespace quire {

namespace {

tl::unexpected<Error> broken_pages(const std::string& rule) {
  return fail(ErrorCode::Corrupt, rule);
}

}  // namespace

Status TierPages::open_device(std::uint32_t page_count) {
  QUIRE_TRY_ASSIGN(device, PagePool::create({.page_count = page_count, .first_page = kNullPage.value + 1}));
  return fenced.reserve(page_count);
}

Status TierPages::open_offered(std::uint32_t page_count) {
  QUIRE_TRY_ASSIGN(offered, OfferedPages::create(page_count));
  return {};
}

Status TierPages::open_host(const HostConfig& config) {
  QUIRE_CHECK(config.page_count > 0 && !has_host(), "a host tier without pages, or a second one");
  const std::size_t device_end = std::size_t{device.page_count()} + 1;
  const std::size_t host_end = std::size_t{config.page_count} + 1;
  QUIRE_TRY_ASSIGN(host, PagePool::create({.page_count = config.page_count, .first_page = 1}));
  QUIRE_TRY_ASSIGN(generations_, LazyArray<std::uint32_t>::create(host_end));
  QUIRE_TRY_ASSIGN(host_readers_, LazyArray<std::uint32_t>::create(host_end));
  QUIRE_TRY_ASSIGN(device_readers_, LazyArray<std::uint32_t>::create(device_end));
  QUIRE_TRY_ASSIGN(settled_by_step_, LazyArray<std::uint64_t>::create(device_end));
  if (config.looks_ahead) {
    QUIRE_TRY_ASSIGN(settled_in_call_, LazyArray<std::uint64_t>::create(device_end));
  }
  lists_reads_ = config.lists_reads;
  return lists_reads_ ? reads_.reserve(static_cast<std::uint32_t>(device_end)) : Status{};
}

Status TierPages::add_lower(bool keeps_pages) {
  QUIRE_CHECK(has_host() || !keeps_pages, "pages go to lower tiers through the host");
  LowerCopies& copies = lower.emplace_back();
  if (!keeps_pages) return {};
  QUIRE_TRY_ASSIGN(copies.states, LazyArray<LowerCopies::State>::create(std::size_t{host.page_count()} + 1));
  return copies.waiting.reserve(host.page_count() + 1, LowerCopies::kListCount);
}

Status TierPages::grow_device(std::uint32_t page_count) {
  const std::size_t device_end = std::size_t{page_count} + 1;
  QUIRE_TRY(fenced.reserve(std::max(page_count, device.page_count())));
  if (!has_host()) return {};
  QUIRE_TRY(device_readers_.grow(device_end));
  QUIRE_TRY(settled_by_step_.grow(device_end));
  if (lists_reads_) QUIRE_TRY(reads_.reserve(page_count + 1));
  return settled_in_call_.size() > 0 ? settled_in_call_.grow(device_end) : Status{};
}

// Device pages

void TierPages::give_back(PageId page) {
  if (fences_reads() && is_read(page) && !device.is_shared(page)) {
    device.fence({&page, 1});  // end_device_read() frees it, or adds it to `fenced`
  } else if (device.is_shared(page) || fence_->is_quiet()) {
    device.release({&page, 1});
  } else {
    device.fence({&page, 1});
    fenced.push(page, fence_->last_user());
  }
}

void TierPages::release_device(PageId page) {
  if (offered) {
    offered->release({&page, 1});
  } else if (fences_reads() && is_read(page)) {
    device.fence({&page, 1});  // end_device_read() frees it, or adds it to `fenced`
  } else {
    device.release({&page, 1});
  }
}

void TierPages::free_fenced() {
  // Nobody waits for a step that was aborted, or for one that never came because its moves were made without it.
  if (!fence_->has_moves() && fence_->has_steps()) fenced.wait_at_most_for(fence_->last_user());
  fenced.release_before(fence_->first_user(), [this](PageId page) { device.release({&page, 1}); });
}

void TierPages::unfence(std::uint32_t page_count) {
  while (!fence_->has_steps() && device.free_count() < page_count && fenced.count() > 0) {
    const PageId page = fenced.pop();
    device.release({&page, 1});
  }
}

void TierPages::settle_later(PageId page) {
  settled_by_step_[page.value] = fence_->has_moves() ? fence_->next_number() : 0;
  if (settled_in_call_.size() > 0) settled_in_call_[page.value] = fence_->call_number();
}

bool TierPages::try_take_targets(std::span<PageId> out) {
  std::uint32_t tries = device.free_count();
  for (std::size_t taken = 0; taken < out.size();) {
    if (tries-- == 0) {
      device.release(out.first(taken));
      return false;
    }
    QUIRE_CHECK(device.try_allocate(out.subspan(taken, 1)), "pages that were counted are not there");
    if (is_settled(out[taken])) {
      ++taken;
    } else {
      device.release(out.subspan(taken, 1));  // it goes to the end of the free pages, which are tried once each
    }
  }
  return true;
}

// Host pages

void TierPages::release_host(PageId page) {
  for (LowerCopies& copies : lower) copies.forget(page);
  if (fences_reads() && host_readers_[page.value] > 0) {
    host.fence({&page, 1});
  } else {
    host.release({&page, 1});
  }
}

// Observers

GroupStats TierPages::stats() const {
  GroupStats stats = totals;
  stats.page_count = device_page_count();
  stats.sealed_pages = cached_page_count();
  stats.free_pages = offered ? stats.page_count - stats.sealed_pages : device.free_count();
  stats.open_pages = device.count(PageState::Open);
  stats.private_pages = device.count(PageState::Private);
  stats.fenced_pages = device.count(PageState::Fenced);
  stats.host_page_count = host.page_count();
  stats.host_free_pages = host.free_count();
  stats.host_sealed_pages = host.count(PageState::Sealed);
  return stats;
}

// Rules

Status TierPages::check(std::span<const std::uint32_t> device_reads, std::span<const std::uint32_t> host_reads) const {
  QUIRE_TRY(device.check_invariants());
  std::uint32_t fenced_count = fenced.count();
  std::uint32_t read_count = 0;
  for (std::uint32_t i = 1; i <= device.page_count() && has_host(); ++i) {
    if (device_reads[i] != device_readers_[i]) return broken_pages("the count of a device page's readers is wrong");
    read_count += device_reads[i] > 0 ? 1 : 0;
    fenced_count += device_reads[i] > 0 && device.state(PageId{i}) == PageState::Fenced ? 1 : 0;
  }
  if (read_count != read_page_count_) return broken_pages("the count of device pages that stores read is wrong");
  if (device.count(PageState::Fenced) != fenced_count) {
    return broken_pages("the fenced pages are not those that somebody may still use");
  }
  if (!has_host()) return {};
  QUIRE_TRY(host.check_invariants());
  for (std::uint32_t i = 1; i <= host.page_count(); ++i) {
    if (host_reads[i] != host_readers_[i]) return broken_pages("the count of a host page's readers is wrong");
    if (host.state(PageId{i}) == PageState::Fenced && host_reads[i] == 0)
      return broken_pages("a host page waits for nobody");
  }
  for (const LowerCopies& copies : lower) {
    if (!copies.is_on()) continue;
    std::uint32_t there = 0;
    std::uint32_t waiting = 0;
    for (std::uint32_t i = 1; i <= host.page_count(); ++i) {
      const LowerCopies::State state = copies.states[i];
      const bool waits = state == LowerCopies::State::Cold || state == LowerCopies::State::Hot;
      if (waits != copies.waiting.contains(i))
        return broken_pages("a host page waits for a lower tier in no list, or in vain");
      if (state != LowerCopies::State::None && host.state(PageId{i}) != PageState::Sealed) {
        return broken_pages("a host page that is not cached is, or is to be, in a lower tier");
      }
      there += state == LowerCopies::State::There ? 1 : 0;
      waiting += waits ? 1 : 0;
    }
    if (there != copies.there_count || waiting != copies.waiting.size()) {
      return broken_pages("the count of pages in a lower tier is wrong");
    }
  }
  return {};
}

}  // namespace quire
