// SPDX-License-Identifier: Apache-2.0
//
// Cache: pause_transfers() holds transfers back; sleep() gives up the memory of the device for a while.
#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<bool> Cache::pause_transfers() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.has_host()) return unsupported("pause_transfers: the cache has no host tier");
  impl.tiers->parts.hand_over();
  impl.tiers->parts.is_paused = true;
  return impl.tiers->parts.book.live_count() == 0;
}

Status Cache::resume_transfers() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  impl.tiers->parts.is_paused = false;
  impl.tiers->work_in_background();
  return {};
}

Status Cache::Impl::require_awake(const char* call) const {
  if (tiers->parts.is_awake()) return {};
  return unavailable(call, ": the cache sleeps; wake() comes first");
}

Result<bool> Cache::sleep(Sleep how) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "sleep"));
  if (how > Sleep::DropAll) {
    return invalid("sleep: there is no way ", plain(static_cast<int>(how)), ": use KeepHost or DropAll");
  }
  TierParts& parts = impl.tiers->parts;
  if (parts.sleep_state == TierParts::SleepState::Asleep) return true;
  if (!impl.step_order.empty()) {
    return unavailable("sleep: step ", plain(impl.step_at(0).number), " is in flight; finish or abort it first");
  }
  for (std::uint32_t i = 0; i < impl.sequences.capacity(); ++i) {
    const SequenceSlot& slot = impl.sequences[i];
    if (slot.state == SequenceSlot::State::Free || slot.state == SequenceSlot::State::Waiting) continue;
    if (slot.admit_options.is_for_host) continue;  // of a hold, which is let go
    const bool is_on_host = slot.state == SequenceSlot::State::Saved && !slot.state_slot;
    if (is_on_host && how == Sleep::KeepHost) continue;
    return Refusal{"sleep", i}.unavailable(
        slot.is_waiting()
            ? " has pages on the host, or a state on the device; end it, or resume it and preempt it with "
              "Preempt::Drop, first"
            : " is admitted; end every sequence, or preempt it with Preempt::Drop, first");
  }
  if (impl.chunks != nullptr && impl.chunks->pin_count > 0) {
    return unavailable("sleep: ", impl.chunks->pin_count, " ChunkPins live; drop them first");
  }
  const bool is_first_call = parts.is_awake();
  parts.sleep_state = TierParts::SleepState::FallingAsleep;
  impl.make_moves();
  impl.end_keeps();
  impl.end_holds();
  const std::uint32_t page_count = impl.pool_page_count();
  if (how == Sleep::DropAll) {
    impl.tiers->cancel_all();
  } else if (impl.has_host() && !parts.is_paused) {
    // Each page is tried once: a copy that fails, or that makes room for another one, is not made again.
    for (const auto& group : parts.groups) {
      if (is_first_call && group->has_host()) group->want_all_copies();
    }
    impl.tiers->stores.start();
    impl.tiers->stores.start_leaving(page_count);
    parts.hand_over();
  }
  if (impl.tiers->parts.book.live_count() > 0) return false;
  if (how == Sleep::DropAll) {
    for (std::uint32_t i = 0; i < impl.key_spaces.end(); ++i) {
      if (!impl.key_spaces[i].is_live) continue;
      impl.counters.dropped_page_total +=
          impl.tiers->parts.history.drop_all(impl.key_spaces[i].root, ResidencyCause::Reset);
    }
    if (parts.mover != nullptr) {
      QUIRE_TRY(parts.mover->forget_host_pages());
      impl.host_region = parts.mover->host_region();  // the host memory may have lost its lock
    }
  } else {
    impl.tiers->parts.history.evict(page_count);
  }
  impl.drop_moves();  // the pages that they would move are gone
  QUIRE_CHECK(impl.history->device.free_count() == page_count, "a page is in use while nobody is");
  for (GroupMemory& memory : impl.history_memory) memory.own.discard();
  for (GroupRows& group : impl.groups) {
    QUIRE_CHECK(!group.has_pages() || group.pool().free_count() == group.pool().page_count(),
                "a page is in use while nobody is");
    group.memory.own.discard();
  }
  impl.own_state_memory.discard();
  parts.sleep_state = TierParts::SleepState::Asleep;
  return true;
}

Status Cache::wake() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  impl.tiers->parts.sleep_state = TierParts::SleepState::Awake;
  return {};
}

}  // namespace quire
