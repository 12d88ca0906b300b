// SPDX-License-Identifier: Apache-2.0
//
// Cache: resize() gives the history more device pages, or fewer. Window and snapshot groups keep the pages they have.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

/// One group of the history: where its pages lie now, and where they lie after the resize.
struct HistoryPart {
  GroupMemory& memory;
  PoolGeometry next;
  LazyMemory moved;  // new memory, where the byte layout moves pages when their number changes
};

std::vector<MoverPart> mover_parts(const std::vector<HistoryPart>& parts, bool is_next) {
  std::vector<MoverPart> made;
  for (const HistoryPart& part : parts) {
    const PoolGeometry& geometry = is_next ? part.next : *part.memory.geometry;
    made.push_back({.geometry = &geometry, .memory = part.memory.data, .tensors = {}});
  }
  return made;
}

}  // namespace

// The cached pages above the new size, all of which can move to pages that are free below it; or why the pool cannot
// shrink. Bytes of the engine's own cannot be moved here.
Result<std::vector<Cache::Impl::PagePlace>> Cache::Impl::pages_to_move(std::uint32_t page_count) const {
  const PagePool& pool = history->device;
  std::vector<PagePlace> found;
  if (pool.check_resize(page_count) || config.device.memory != DeviceMemory::Host) {
    QUIRE_TRY(pool.check_resize(page_count));
    return found;
  }
  std::uint32_t used_above = 0;
  for (std::uint32_t page = page_count + 1; page <= pool.page_count(); ++page) {
    used_above += pool.state(PageId{page}) != PageState::Free ? 1 : 0;
  }
  for (std::uint32_t i = 0; i < key_spaces.end(); ++i) {
    if (!key_spaces[i].is_live) continue;
    tree->for_each_run(key_spaces[i].root, [&](const RunView& run) {
      for (std::uint32_t place = 0; place < run.pages.size(); ++place) {
        const bool is_idle = run.tier == Tier::Device && run.pin_count == 0;
        if (is_idle && run.pages[place].value > page_count) found.push_back({run.run, place});
      }
    });
  }
  const std::uint32_t free_below = pool.free_count() - (pool.page_count() - page_count - used_above);
  if (found.size() < used_above || free_below < used_above) QUIRE_TRY(pool.check_resize(page_count));
  return found;
}

void Cache::Impl::move_below(std::span<const PagePlace> places, std::uint32_t page_count) {
  if (places.empty()) return;
  PagePool& pool = history->device;
  std::vector<PageId> targets(pool.free_count());
  QUIRE_CHECK(pool.try_allocate(targets), "free pages are not there");
  const auto above = std::ranges::partition(targets, [&](PageId page) { return page.value <= page_count; });
  pool.release({above.begin(), above.end()});
  targets.resize(targets.size() - above.size());
  QUIRE_CHECK(places.size() <= targets.size(), "there are fewer free pages below than were counted");
  for (const PagePlace& place : places) {
    const PageId target = targets.back();
    targets.pop_back();
    const PageId source = tree->pages(place.run)[place.index];
    for (const GroupMemory& memory : history_memory) {
      const PoolGeometry& geometry = *memory.geometry;
      const PoolStrides& strides = geometry.strides();
      const bool is_page_first = geometry.byte_layout() == ByteLayout::PageFirst;
      const std::uint32_t piece_count = is_page_first ? 1 : geometry.page().layer_count();
      const std::uint64_t bytes = geometry.page().page_bytes() / piece_count;
      for (std::uint32_t piece = 0; piece < piece_count; ++piece) {
        const std::uint64_t layer = piece * strides.layer;
        std::memcpy(memory.data + (target.value * strides.page) + layer,
                    memory.data + (source.value * strides.page) + layer, bytes);
      }
    }
    tiers->parts.history.renumber(place.run, place.index, target);
  }
  pool.release(targets);
}

Status Cache::resize(std::uint32_t page_count) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "resize"));
  if (impl.config.device.memory == DeviceMemory::Adopted) {
    return unsupported("resize: the pool's memory is the engine's; open a new cache on the new memory");
  }
  if (impl.config.device.memory == DeviceMemory::Accelerator) {
    return unsupported("resize: memory on an accelerator stays where it is; open a new cache");
  }
  TierParts& tier_parts = impl.tiers->parts;
  if (tier_parts.book.live_count() > 0) {
    return unavailable(
        "resize: ", plain(tier_parts.book.live_count()),
        " transfers are in flight; apply() their completions until pause_transfers() returns true, and call "
        "resume_transfers() behind resize()");
  }
  if (!impl.step_order.empty()) {
    return unavailable("resize: step ", plain(impl.step_at(0).number), " is in flight; finish or abort it first");
  }
  if (impl.move_count() > 0 && impl.config.device.memory != DeviceMemory::Host) {
    return unavailable("resize: moves of a committed tree are pending; plan a step first");
  }
  if (impl.pages_for(impl.context_tokens_max) > page_count) {
    return invalid("resize: ", page_count,
                   " pages cannot hold one sequence of context_tokens_max = ", impl.context_tokens_max,
                   " tokens, which needs ", impl.pages_for(impl.context_tokens_max));
  }
  QUIRE_TRY_ASSIGN(const std::vector<Impl::PagePlace> places, impl.pages_to_move(page_count));
  const std::uint32_t clean_reserve_pages = impl.clean_reserve_for(page_count);
  if (impl.has_host() && clean_reserve_pages > page_count) {
    return invalid("resize: ", page_count, " pages are fewer than host.clean_reserve_pages = ", clean_reserve_pages);
  }
  // What a user can see changes only when no call that could still fail is left; until then, failures are undone.
  const bool has_memory = impl.config.device.memory == DeviceMemory::Host;
  const bool keeps_place = impl.history_geometry().byte_layout() == ByteLayout::PageFirst;
  std::vector<HistoryPart> parts;
  for (GroupMemory& memory : impl.history_memory) {
    const PoolGeometry& before = *memory.geometry;
    QUIRE_TRY_ASSIGN(PoolGeometry next,
                     PoolGeometry::create(before.page(), {.page_count = std::uint64_t{page_count} + 1,
                                                          .byte_layout = before.byte_layout()}));
    HistoryPart& part = parts.emplace_back(HistoryPart{.memory = memory, .next = std::move(next), .moved = {}});
    if (!has_memory || keeps_place) continue;
    QUIRE_TRY_ASSIGN(part.moved, LazyMemory::reserve(part.next.pool_bytes()));
  }
  impl.make_moves();
  impl.move_below(places, page_count);
  QUIRE_TRY(impl.tree->grow(page_count));
  QUIRE_TRY(tier_parts.history.grow_device(page_count));
  // The mover reserves room for the new pages here. It hears below where they lie, when nothing can fail any more.
  if (tier_parts.mover != nullptr) QUIRE_TRY(tier_parts.mover->set_device(mover_parts(parts, /*is_next=*/true)));
  const std::uint32_t old_page_count = impl.history->device.page_count();
  const auto undo = [&] {  // cannot fail: there is room for the old number of pages
    (void)impl.tree->grow(old_page_count);
    if (tier_parts.mover != nullptr) (void)tier_parts.mover->set_device(mover_parts(parts, /*is_next=*/false));
  };
  if (Status status = impl.history->device.resize(page_count); !status) {
    undo();
    return status;
  }
  for (const HistoryPart& part : parts) {
    if (!has_memory || !keeps_place) break;
    if (Status status = part.memory.own.grow(part.next.pool_bytes()); !status) {
      QUIRE_CHECK(impl.history->device.resize(old_page_count), "pages that were just added are in use");
      undo();
      return status;
    }
  }
  for (HistoryPart& part : parts) {
    if (has_memory && !keeps_place) {
      const std::uint64_t before = part.memory.geometry->strides().layer;
      const std::uint64_t after = part.next.strides().layer;
      for (std::uint32_t layer = 0; layer < part.next.page().layer_count(); ++layer) {
        std::memcpy(part.moved.data() + (layer * after), part.memory.own.data() + (layer * before),
                    std::min(before, after));
      }
      part.memory.own = std::move(part.moved);
    }
    *part.memory.geometry = std::move(part.next);
    part.memory.data = part.memory.own.data();
    if (impl.history_index < impl.group_pools.size()) impl.group_pools[part.memory.group_index] = part.memory.data;
  }
  if (impl.has_lower()) tier_parts.name_log.set_device_page_count(page_count + 1);
  impl.tiers->stores.set_clean_reserve(clean_reserve_pages);
  if (tier_parts.mover != nullptr) {
    QUIRE_CHECK(tier_parts.mover->set_device(mover_parts(parts, /*is_next=*/false)),
                "the mover had room for the new pages");
  }
  return {};
}

}  // namespace quire
