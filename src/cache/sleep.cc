// SPDX-License-Identifier: Apache-2.0
//
// Cache: standing still. Transfers can be held back, and the device's memory given up for a while.
#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<bool> Cache::pause_transfers() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.has_host()) return fail(ErrorCode::Unsupported, "pause_transfers: the cache has no host tier");
  impl.hand_over_transfers();
  impl.is_paused = true;
  return impl.live_transfer_count + impl.side_transfer_count == 0;
}

Status Cache::resume_transfers() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  impl.is_paused = false;
  impl.work_in_background();
  return {};
}

Status Cache::Impl::require_awake(const char* call) const {
  if (!is_asleep && !falls_asleep) return {};
  return fail(ErrorCode::Unavailable, std::string(call) + ": the cache sleeps; wake() comes first");
}

Result<bool> Cache::sleep(Sleep how) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "sleep"));
  if (how > Sleep::DropAll) {
    return fail(ErrorCode::InvalidArgument,
                "sleep: there is no way " + std::to_string(static_cast<int>(how)) + ": use KeepHost or DropAll");
  }
  if (impl.is_asleep) return true;
  if (!impl.step_order.empty()) {
    return fail(ErrorCode::Unavailable,
                "sleep: step " + std::to_string(impl.step_at(0).number) + " is in flight; finish or abort it first");
  }
  for (std::uint32_t i = 0; i < impl.sequences.capacity(); ++i) {
    const SequenceSlot& slot = impl.sequences[i];
    if (slot.state == SequenceSlot::State::Free || slot.state == SequenceSlot::State::Waiting) continue;
    if (slot.state == SequenceSlot::State::Saved && how == Sleep::KeepHost) continue;
    return fail(ErrorCode::Unavailable, "sleep: " + Impl::name_of(i) +
                                            (slot.is_waiting() ? " has pages on the host; end or resume it first"
                                                               : " is admitted; end or preempt every sequence first"));
  }
  impl.falls_asleep = true;
  impl.flush_moves();
  for (std::uint32_t i = 0; i < impl.keeps.size(); ++i) {
    if (impl.keeps[i].is_live) impl.end_keep(i);
  }
  const std::uint32_t page_count = impl.pool_page_count();
  if (how == Sleep::DropAll) {
    impl.cancel_all_transfers();
  } else if (impl.has_host() && !impl.is_paused) {
    impl.start_leaving(page_count);
    impl.hand_over_transfers();
  }
  if (impl.live_transfer_count + impl.side_transfer_count > 0) return false;
  if (how == Sleep::DropAll) {
    for (std::uint32_t i = 0; i < impl.key_spaces.capacity(); ++i) {
      if (!impl.key_spaces[i].is_live) continue;
      impl.counters.dropped_page_total += impl.drop_pages(impl.key_spaces[i].root, ResidencyCause::Reset);
    }
    if (impl.mover != nullptr) {
      QUIRE_TRY(impl.mover->forget_host_pages());
      impl.host_region = impl.mover->host_region();  // a lock may have been lost
    }
  } else {
    impl.evict(page_count);
  }
  impl.drop_moves();  // what they would move is gone
  QUIRE_CHECK(impl.pool.free_count() == page_count, "a page is in use while nobody is");
  impl.host_memory.discard();
  for (GroupMemory& group : impl.more_history) group.own.discard();
  for (SideGroup& side : impl.sides) {
    QUIRE_CHECK(!side.has_pages || side.pool.free_count() == side.pool.page_count(),
                "a page is in use while nobody is");
    side.memory.own.discard();
  }
  impl.own_state_memory.discard();
  impl.falls_asleep = false;
  impl.is_asleep = true;
  return true;
}

Status Cache::wake() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  impl.falls_asleep = false;
  impl.is_asleep = false;
  return {};
}

}  // namespace quire
