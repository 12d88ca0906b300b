// SPDX-License-Identifier: Apache-2.0
#include "cache_state.h"
#include "casters.h"

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

}  // namespace

CacheState::Access::Access(CacheState& state) : state_(state) {
  // Asked before anything is waited for: at the end of the interpreter, and in a forked child, that would be for ever.
  if (state.is_closed()) raise_closed();
  if (state.held_->process != ::getpid()) {
    raise(ErrorCode::Unsupported, "the cache belongs to the process that opened it: open one after fork()");
  }
  const std::thread::id self = std::this_thread::get_id();
  if (!state.mutex_.try_lock()) {
    if (state.holder_ == self) {
      raise(
          ErrorCode::Unavailable,
          "the cache is busy with another call of this thread: do not call it from a destructor or a tensor's methods");
    }
    const WithoutGil without;
    state.mutex_.lock();
  }
  if (state.is_closed()) {
    state.mutex_.unlock();
    raise_closed();
  }
  state.holder_ = self;
  state.held_->cache->set_owner_thread();
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
  if (held_->process == ::getpid() && !mutex_.try_lock()) {
    const WithoutGil without;
    mutex_.lock();
  }
  // With the GIL, so that whoever makes an array has either the cache or an answer.
  is_closed_ = true;
  const std::shared_ptr<HeldCache> last = std::move(held_);
  if (last != nullptr && last->process == ::getpid()) mutex_.unlock();
  ready_callback = nb::none();
  adopted.clear();
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
  nb::object close_all = nb::cpp_function([] {
    for (const std::weak_ptr<CacheState>& weak : std::exchange(open_states(), {})) {
      if (const std::shared_ptr<CacheState> state = weak.lock()) state->close();
    }
    // Calls of other threads end before the interpreter does: from here on they are refused with the GIL in hand.
    const nb::gil_scoped_release release;
    while (WithoutGil::count > 0) std::this_thread::yield();
  });
  nb::module_::import_("atexit").attr("register")(close_all);
  module.attr("_close_all") = close_all;
}

}  // namespace quire::python
