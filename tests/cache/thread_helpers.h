// SPDX-License-Identifier: Apache-2.0
//
// For tests of a cache with threads around it: one that drops handles, one that watches.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "quire/cache.h"

namespace quire {

/// A thread that drops handles it is given.
class Dropper {
 public:
  Dropper() : thread_([this] { run(); }) {}
  ~Dropper() {
    {
      const std::scoped_lock lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void drop(Sequence sequence) {
    {
      const std::scoped_lock lock(mutex_);
      handles_.push_back(std::move(sequence));
    }
    changed_.notify_all();
  }
  /// Waits until everything it was given is dropped.
  void finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return handles_.empty() && !is_dropping_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_stopping_ || !handles_.empty(); });
      if (handles_.empty()) return;
      Sequence handle = std::move(handles_.front());
      handles_.pop_front();
      is_dropping_ = true;
      lock.unlock();
      handle = Sequence();
      lock.lock();
      is_dropping_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sequence> handles_;
  bool is_dropping_ = false;
  bool is_stopping_ = false;
  std::thread thread_;  // the last: it uses the others
};

/// A thread that looks at the event of a cache, and is refused whatever else it asks.
class Watcher {
 public:
  explicit Watcher(const Cache& cache) : thread_([this, &cache, fd = cache.event_fd()] { run(cache, fd); }) {}
  ~Watcher() {
    is_stopping_ = true;
    thread_.join();
  }

 private:
  void run(const Cache& cache, int fd) const {
    while (!is_stopping_) {
      pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
      EXPECT_GE(::poll(&event, 1, /*milliseconds=*/1), 0);
      EXPECT_FALSE(cache.stats().has_value());
      EXPECT_GT(cache.config().sequence_count_max, 0U);
    }
  }

  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace quire
