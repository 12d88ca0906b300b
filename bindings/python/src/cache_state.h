// SPDX-License-Identifier: Apache-2.0
//
// CacheState: a quire::Cache as Python threads share it. A C++ cache belongs to one thread; here any thread may call
// it, one at a time.
//
// Two locks, and how they never wait for each other: who holds the GIL only ever *tries* the cache's mutex, and lets
// the GIL go before waiting for it. So whoever has the mutex may ask for the GIL back.
//
// Memory that Python looks at (pools, plans) stays as long as somebody does: an array owns a Lease, and the cache is
// destroyed with the last of them when it was closed before.
//
// thread-safe
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "casters.h"
#include "errors.h"
#include "quire/cache.h"

namespace quire::python {

namespace nb = nanobind;

/// Memory of the caller's that a cache uses.
struct Adopted {
  nb::object source;
  const void* data = nullptr;
};

/// A direct call to the disk tier: whom to tell, and what is read or written meanwhile.
struct DiskRequest {
  nb::object callback;
  nb::object memory;
};
struct DiskCall {
  std::shared_ptr<DiskRequest> request;
  DiskAnswer answer;
};

class CacheState : public std::enable_shared_from_this<CacheState> {
 public:
  explicit CacheState(std::unique_ptr<Cache> cache) : cache_(std::move(cache)) {}
  ~CacheState() { close(); }
  CacheState(const CacheState&) = delete;
  CacheState& operator=(const CacheState&) = delete;

  /// The cache and the right to call it, until the end of the scope. Needs the GIL, and has it afterwards. Python code
  /// that runs meanwhile, such as a destructor that the garbage collector calls, is told that the cache is busy.
  class Access {
   public:
    explicit Access(CacheState& state);
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    ~Access();

    Cache* operator->() const { return state_.cache_.get(); }
    Cache& operator*() const { return *state_.cache_; }

   private:
    CacheState& state_;
  };

  /// Calls are refused from here on. The cache is destroyed now, or with the last array of its memory.
  void close();
  [[nodiscard]] bool is_closed() const { return is_closed_.load(std::memory_order_relaxed); }

  /// The time as the cache was last told it, gone on since: what waits tell it, whatever clock the caller has. Under
  /// the GIL.
  [[nodiscard]] TimeNs now() const;
  void set_now(TimeNs now);

  /// Keeps the cache's memory where it is: what an array of it owns.
  [[nodiscard]] std::shared_ptr<Cache> lease() const { return cache_; }

  // Arrays of the pools' memory that are alive: while there are any, it may not move.
  std::atomic<std::int64_t> pool_arrays = 0;

  /// Where tokens of 64 bits become such of 32. Under the lock.
  std::vector<TokenId> scratch;

  // What Python gave and the cache uses: tensors, devices, the callback. Under the GIL.
  std::vector<nb::object> kept;
  std::vector<Adopted> adopted;
  nb::object ready_callback = nb::none();
  // What callbacks have to be told, gathered while the cache was busy. Under the lock.
  std::vector<SequenceId> ready_sequences;
  std::vector<DiskCall> disk_answers;

 private:
  TimeNs told_now_ = 0;
  std::chrono::steady_clock::time_point told_at_ = std::chrono::steady_clock::now();
  std::mutex mutex_;                     // guards the cache
  std::atomic<std::thread::id> holder_;  // who has the mutex
  std::shared_ptr<Cache> cache_;
  std::atomic<bool> is_closed_ = false;
};

/// Caches that are open when the interpreter ends are closed then, so that their files are.
void bind_closing_at_exit(nb::module_& module);
void close_at_exit(const std::shared_ptr<CacheState>& state);

}  // namespace quire::python
