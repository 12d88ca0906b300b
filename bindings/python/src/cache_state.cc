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

}  // namespace

CacheState::Access::Access(CacheState& state) : state_(state) {
  const std::thread::id self = std::this_thread::get_id();
  if (!state.mutex_.try_lock()) {
    if (state.holder_ == self) {
      raise(
          ErrorCode::Unavailable,
          "the cache is busy with another call of this thread: do not call it from a destructor or a tensor's methods");
    }
    const nb::gil_scoped_release release;
    state.mutex_.lock();
  }
  if (state.is_closed()) {
    state.mutex_.unlock();
    raise(ErrorCode::InvalidArgument, "the cache is closed: open another one");
  }
  state.holder_ = self;
  state.cache_->set_owner_thread();
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
  if (!mutex_.try_lock()) {
    const nb::gil_scoped_release release;
    mutex_.lock();
  }
  // With the GIL, so that whoever makes an array has either the cache or an answer.
  is_closed_ = true;
  std::shared_ptr<Cache> last = std::move(cache_);
  mutex_.unlock();
  {
    const nb::gil_scoped_release release;
    last.reset();  // may wait for transfers
  }
  ready_callback = nb::none();
  if (pool_arrays == 0) {
    kept.clear();
    adopted.clear();
  }
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
  });
  nb::module_::import_("atexit").attr("register")(close_all);
  module.attr("_close_all") = close_all;
}

}  // namespace quire::python
