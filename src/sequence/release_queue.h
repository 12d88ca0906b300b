// SPDX-License-Identifier: Apache-2.0
//
// ReleaseQueue: sequences whose handles were dropped, on whatever thread, until the cache's own thread ends them.
// Each slot index is in it at most once, so one link per slot is all the memory it needs.
//
// thread-safe: push() from any thread, drain() from the cache's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace quire {

class ReleaseQueue {
 public:
  explicit ReleaseQueue(std::uint32_t slot_count) : next_(slot_count) {}

  void push(std::uint32_t index) {
    std::uint32_t head = head_.load(std::memory_order_relaxed);
    do {
      next_[index] = head;
    } while (!head_.compare_exchange_weak(head, index, std::memory_order_release, std::memory_order_relaxed));
  }

  /// Calls release(index) for all that were pushed, in no particular order between threads.
  template <typename Release>
  void drain(Release&& release) {
    if (head_.load(std::memory_order_relaxed) == kNone) return;
    // The whole list is taken at once, so no element can come back in between and confuse the links.
    std::uint32_t index = head_.exchange(kNone, std::memory_order_acquire);
    while (index != kNone) {
      const std::uint32_t next = next_[index];
      release(index);
      index = next;
    }
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::atomic<std::uint32_t> head_{kNone};
  std::vector<std::uint32_t> next_;  // written by the pusher before it publishes the index
};

}  // namespace quire
