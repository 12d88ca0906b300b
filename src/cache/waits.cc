// SPDX-License-Identifier: Apache-2.0
//
// Cache: callbacks of admitted sequences, and calls that poll and apply until something has happened.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

// In slices, because a load has a limit of time of its own, which the cache notices when it is told the time.
constexpr TimeNs kSliceNs = 50'000'000;
constexpr TimeNs kNsPerMs = 1'000'000;

TimeNs system_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A signal ends it early, which the caller's loop does not mind.
void wait_for_event(int event_fd, TimeNs timeout_ns) {
  pollfd wanted{.fd = event_fd, .events = POLLIN, .revents = 0};
  (void)::poll(&wanted, event_fd < 0 ? 0 : 1, static_cast<int>((timeout_ns + kNsPerMs - 1) / kNsPerMs));
}

}  // namespace

// Callbacks

void Cache::Impl::tell_when_ready(std::uint32_t index, bool is_ready, ReadyCallback callback) {
  if (!callback) return;
  ready_callbacks[index] = std::move(callback);
  if (is_ready) call_ready({index, sequences[index].generation});
}

void Cache::Impl::call_ready(SequenceId id) {
  if (!sequences.find(id)) return;  // it has ended meanwhile, and its place may be another's
  const ReadyCallback callback = std::exchange(ready_callbacks[id.index], nullptr);
  if (callback) callback(id);
}

// Waits

// Polls and applies until `is_done` says so, or fails.
template <typename IsDone>
Result<bool> Cache::Impl::wait_until(Cache& cache, const WaitOptions& options, IsDone&& is_done) {
  if (options.timeout_ns && *options.timeout_ns < 0) {
    return invalid("timeout_ns is ", plain(*options.timeout_ns), ": give a time from 0 on, or none for no limit");
  }
  const TimeNs told = tiers->parts.now;
  const TimeNs begin = system_now();
  const auto now = [&] { return options.now ? options.now() : told + (system_now() - begin); };
  const TimeNs start = now();
  for (;;) {
    QUIRE_TRY_ASSIGN(const std::span<const Completion> ended, cache.poll());
    // A callback may have told the cache a later time.
    QUIRE_TRY(cache.apply(ended, options.now ? now() : std::max(now(), tiers->parts.now)));
    QUIRE_TRY_ASSIGN(const bool is_over, is_done());
    if (is_over) return true;
    TimeNs left = kSliceNs;
    if (options.timeout_ns) left = std::min(left, *options.timeout_ns - (now() - start));
    if (left <= 0) return false;
    if (options.wait) {
      options.wait(cache.event_fd(), left);
    } else {
      wait_for_event(cache.event_fd(), left);
    }
  }
}

Result<bool> Cache::wait_until_ready(const Sequence& sequence, const WaitOptions& options) {
  Impl& impl = *impl_;
  const auto is_ready = [&]() -> Result<bool> {
    QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
    const SequenceSlot& slot = impl.sequences[index];
    if (slot.is_waiting()) return Refusal{"wait_until_ready", index}.invalid(Impl::not_running(slot));
    return slot.is_ready() || !slot.is_loading();
  };
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.may_apply_alone("wait_until_ready"));
  QUIRE_TRY_ASSIGN(const bool is_ready_now, is_ready());
  if (is_ready_now) return true;
  if (impl.tiers->parts.mover == nullptr) {
    return unsupported(
        "wait_until_ready: the engine moves pages itself, and only it can apply what became of them: see "
        "take_transfers()");
  }
  return impl.wait_until(*this, options, is_ready);
}

Result<bool> Cache::wait_until_flushed(const WaitOptions& options) {
  Impl& impl = *impl_;
  const auto is_flushed = [&]() -> Result<bool> {
    if (impl.tiers->parts.is_paused) {
      return unavailable("wait_until_flushed: transfers are paused, so nothing is written; see resume_transfers()");
    }
    return flush();
  };
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.may_apply_alone("wait_until_flushed"));
  QUIRE_TRY_ASSIGN(const bool is_flushed_now, is_flushed());
  if (is_flushed_now) return true;
  if (impl.tiers->parts.mover == nullptr) {
    return unsupported("wait_until_flushed: the engine moves pages itself, and only it can apply what became of them");
  }
  return impl.wait_until(*this, options, is_flushed);
}

}  // namespace quire
