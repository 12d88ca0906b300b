// SPDX-License-Identifier: Apache-2.0
#include "cache_state.h"
#include "casters.h"

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <new>

namespace quire::python {
namespace {

// Of all caches of the process; forgotten ones are taken out when another is added. Under the GIL.
std::vector<std::weak_ptr<CacheState>>& open_states() {
  static std::vector<std::weak_ptr<CacheState>> states;
  return states;
}

[[noreturn]] void raise_closed() {
  raise(ErrorCode::InvalidArgument, "the cache is closed: open another one");
}

[[noreturn]] void raise_busy() {
  raise(ErrorCode::Unavailable,
        "the cache is busy with another call of this thread: do not call it from a destructor or a tensor's methods");
}

}  // namespace

CacheState::Access::Access(CacheState& state) : state_(state) {
  // Asked before anything is waited for: at the end of the interpreter, and in a forked child, that would be for ever.
  if (state.is_closed()) raise_closed();
  if (state.held_->process != ::getpid()) {
    raise(ErrorCode::Unsupported, "the cache belongs to the process that opened it: open one after fork()");
  }
  const std::thread::id self = std::this_thread::get_id();
  if (!state.mutex_.try_lock()) {
    if (state.holder_ == self) raise_busy();
    const WithoutGil without;
    state.mutex_.lock();
  }
  if (state.is_closed()) {
    state.mutex_.unlock();
    raise_closed();
  }
  state.holder_ = self;
  state.held_->cache->set_owner_thread();
  // The newest first, as each takes later ones of its sequences with it. One that is over by now is none to abort.
  std::vector<Step> dropped = std::exchange(state.dropped_steps, {});
  std::ranges::sort(dropped, std::ranges::greater(), &Step::number);
  for (const Step& step : dropped) static_cast<void>(state.held_->cache->abort_step(step));
}

// Torch lets go of a storage's memory when it is resized; then a tensor says so by another address.
CacheState::ByteAccess::ByteAccess(CacheState& state) : Access(state) {
  for (const Adopted& adopted : state.adopted) {
    if (!nb::hasattr(adopted.source, "data_ptr")) continue;
    const auto address = nb::cast<std::uintptr_t>(adopted.source.attr("data_ptr")());
    if (address == reinterpret_cast<std::uintptr_t>(adopted.data)) continue;
    raise(ErrorCode::InvalidArgument,
          "a tensor that the cache has adopted was freed or moved (the data_ptr() of " + adopted.name +
              " has changed): keep its storage as it is until the cache is closed; close this cache now, what is on "
              "the device is lost");
  }
}

CacheState::Access::~Access() {
  state_.holder_ = std::thread::id();
  state_.mutex_.unlock();
}

TimeNs CacheState::now() const {
  return told_now_ + std::chrono::nanoseconds(std::chrono::steady_clock::now() - told_at_).count();
}

void CacheState::set_now(TimeNs now) {
  told_now_ = now;
  told_at_ = std::chrono::steady_clock::now();
}

void CacheState::close() {
  if (held_ == nullptr) return;
  std::shared_ptr<HeldCache> last;  // destroyed without the lock
  std::vector<Adopted> given;
  std::vector<std::weak_ptr<DiskRequest>> requests;
  {
    std::unique_lock lock(mutex_, std::defer_lock);
    // In a forked child whoever had the mutex is not there.
    if (held_->process == ::getpid() && !lock.try_lock()) {
      if (holder_ == std::this_thread::get_id()) raise_busy();
      is_closed_ = true;  // who comes now is refused: this would wait behind busy threads for ever
      const WithoutGil without;
      lock.lock();
    }
    // With the GIL, so that whoever makes an array has either the cache or an answer. Another thread may have been here
    // while this one waited: then there is nothing left to take.
    is_closed_ = true;
    last = std::move(held_);
    given = std::exchange(adopted, {});
    requests = std::exchange(disk_requests, {});
    dropped_steps.clear();
  }
  ready_callback = nb::none();
  for (const std::weak_ptr<DiskRequest>& weak : requests) {
    const std::shared_ptr<DiskRequest> request = weak.lock();
    if (request == nullptr || std::exchange(request->is_answered, true)) continue;
    try {
      request->callback(DiskAnswer{.outcome = TransferOutcome::Cancelled});
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("quire: a callback of the disk tier, at close()");
    }
  }
}

HeldCache::~HeldCache() {
  if (process != ::getpid()) {
    static_cast<void>(cache.release());
    return;
  }
  const WithoutGil without;
  cache.reset();  // may wait for transfers
}

void close_at_exit(const std::shared_ptr<CacheState>& state) {
  std::vector<std::weak_ptr<CacheState>>& states = open_states();
  std::erase_if(states, [](const std::weak_ptr<CacheState>& other) { return other.expired(); });
  states.push_back(state);
}

void bind_closing_at_exit(nb::module_& module) {
  // A child has none of the threads that had let the GIL go.
  if (::pthread_atfork(nullptr, nullptr, [] { WithoutGil::count = 0; }) != 0) throw std::bad_alloc();
  nb::object close_all = nb::cpp_function([] {
    for (const std::weak_ptr<CacheState>& weak : std::exchange(open_states(), {})) {
      if (const std::shared_ptr<CacheState> state = weak.lock()) state->close();
    }
    // Calls of other threads end before the interpreter does: from here on they are refused with the GIL in hand.
    WithoutGil::is_ending = true;
    const nb::gil_scoped_release release;
    while (WithoutGil::count > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  nb::module_::import_("atexit").attr("register")(close_all);
  module.attr("_close_all") = close_all;
}

}  // namespace quire::python
