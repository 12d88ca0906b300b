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

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "casters.h"
#include "errors.h"
#include "quire/cache.h"

namespace quire::python {

namespace nb = nanobind;

/// Memory of the caller's that a cache uses: so many bytes, or pages of so many with a stride between them.
struct Adopted {
  nb::object source;
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t page_count = 1;
  std::uint64_t page_stride = 0;
  std::string name;  ///< of the setting, for errors
};

/// A direct call to the disk tier: whom to tell, and what is read or written meanwhile.
struct DiskRequest {
  nb::object callback;
  nb::object memory;
  bool is_answered = false;
};
struct DiskCall {
  std::shared_ptr<DiskRequest> request;
  DiskAnswer answer;
};

/// A callback of admit(), resume() or hold_on_host(), and what it is to be told. The function goes with the GIL.
struct ToldCall {
  std::shared_ptr<nb::object> callback;
  std::variant<SequenceId, HeldPrefix> argument;
};

/// A cache with what Python gave it and it uses, such as tensors and devices: they go when it has stopped using them.
/// In another process than the one that opened it, such as a forked child, it has no threads: there it is left as it
/// is.
struct HeldCache {
  HeldCache(std::unique_ptr<Cache> opened, std::vector<nb::object> used)
      : cache(std::move(opened)), kept(std::move(used)), process(::getpid()) {}
  HeldCache(const HeldCache&) = delete;
  HeldCache& operator=(const HeldCache&) = delete;
  ~HeldCache();

  std::unique_ptr<Cache> cache;
  std::vector<nb::object> kept;
  pid_t process;
};

/// Lets the GIL go until the end of the scope. The interpreter does not end meanwhile: a thread that asked for the GIL
/// then would be ended in the middle of C++ code. Once it is ending, nobody lets the GIL go any more.
class WithoutGil {
 public:
  WithoutGil() {
    if (!is_ending) release_.emplace();
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  static inline std::atomic<int> count = 0;  ///< of threads that have let it go, or are about to
  static inline bool is_ending = false;      ///< the interpreter; under the GIL

 private:
  struct Counted {
    Counted() { ++count; }
    ~Counted() { --count; }
  };
  Counted counted_;  // made first and destroyed last, with the GIL
  std::optional<nb::gil_scoped_release> release_;
};

class CacheState : public std::enable_shared_from_this<CacheState> {
 public:
  CacheState(std::unique_ptr<Cache> cache, std::vector<nb::object> kept, std::vector<Adopted> given)
      : adopted(std::move(given)), held_(std::make_shared<HeldCache>(std::move(cache), std::move(kept))) {}
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

    Cache* operator->() const { return state_.held_->cache.get(); }
    Cache& operator*() const { return *state_.held_->cache; }

   private:
    CacheState& state_;
  };

  /// The same for calls that read or write device memory, or have it read or written: they are refused once a tensor
  /// that the cache has adopted says that its memory is no longer where it was.
  class ByteAccess : public Access {
   public:
    explicit ByteAccess(CacheState& state);
  };

  /// Calls are refused from here on. The cache is destroyed now, or with the last array of its memory.
  void close();
  [[nodiscard]] bool is_closed() const { return is_closed_.load(std::memory_order_relaxed); }

  /// The time as the cache was last told it, gone on since: what waits tell it, whatever clock the caller has. Under
  /// the GIL.
  [[nodiscard]] TimeNs now() const;
  void set_now(TimeNs now);

  /// Keeps the cache's memory where it is: what an array of it owns.
  [[nodiscard]] std::shared_ptr<HeldCache> lease() const { return held_; }

  // Arrays of the pools' memory that are alive: while there are any, it may not move.
  std::atomic<std::int64_t> pool_arrays = 0;

  /// Where tokens of 64 bits become such of 32. Under the lock.
  std::vector<TokenId> scratch;

  // Under the GIL.
  std::vector<Step> dropped_steps;  ///< nobody can finish them any more: the next call aborts them
  std::vector<std::weak_ptr<DiskRequest>> disk_requests;
  std::vector<Adopted> adopted;  ///< changed under the lock only
  nb::object ready_callback = nb::none();
  bool reports_to_ranks = false;  ///< nothing is applied but by apply_ranks()
  // What callbacks have to be told, gathered while the cache was busy. Under the lock.
  std::vector<SequenceId> ready_sequences;
  std::vector<DiskCall> disk_answers;
  std::vector<ToldCall> told_calls;

 private:
  TimeNs told_now_ = 0;
  std::chrono::steady_clock::time_point told_at_ = std::chrono::steady_clock::now();
  std::mutex mutex_;                     // guards the cache
  std::atomic<std::thread::id> holder_;  // who has the mutex
  std::shared_ptr<HeldCache> held_;
  std::atomic<bool> is_closed_ = false;
};

/// Caches that are open when the interpreter ends are closed then, so that their files are.
void bind_closing_at_exit(nb::module_& module);
void close_at_exit(const std::shared_ptr<CacheState>& state);

}  // namespace quire::python
