// SPDX-License-Identifier: Apache-2.0
//
// Mutex, MutexLock and Condition: those of the standard library, with the annotations by which clang's -Wthread-safety
// proves that a member is touched only under the mutex that guards it. Members say so:
//
//     Mutex mutex_;                              // guards what follows
//     std::uint32_t count_ QUIRE_GUARDED_BY(mutex_) = 0;
//     void grow() QUIRE_REQUIRES(mutex_);        // the caller holds it
//
// thread-safe
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define QUIRE_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define QUIRE_THREAD_ANNOTATION(attribute)
#endif
#define QUIRE_GUARDED_BY(mutex) QUIRE_THREAD_ANNOTATION(guarded_by(mutex))
#define QUIRE_REQUIRES(mutex) QUIRE_THREAD_ANNOTATION(requires_capability(mutex))
#define QUIRE_ACQUIRE(...) QUIRE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define QUIRE_RELEASE(...) QUIRE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace quire {

class QUIRE_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() QUIRE_ACQUIRE() { mutex_.lock(); }
  void unlock() QUIRE_RELEASE() { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

/// Holds a mutex until the end of the scope, or with breaks that unlock() and lock() make.
class QUIRE_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) QUIRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() QUIRE_RELEASE() {
    if (is_held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() QUIRE_RELEASE() {
    mutex_.unlock();
    is_held_ = false;
  }
  void lock() QUIRE_ACQUIRE() {
    mutex_.lock();
    is_held_ = true;
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

/// What waits for it gives the mutex up meanwhile. Wakes without a reason: whoever waits looks again.
class Condition {
 public:
  void wait(Mutex& mutex) QUIRE_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void wait_until(Mutex& mutex, std::chrono::steady_clock::time_point deadline) QUIRE_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    (void)condition_.wait_until(lock, deadline);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace quire
