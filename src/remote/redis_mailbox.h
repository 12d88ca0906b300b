// SPDX-License-Identifier: Apache-2.0
//
// RedisMailbox: what goes between callers of a store and its worker: batches and cancellations one way, answers the
// other. All room is there from the start; what does not fit is refused.
//
//   free ── try_submit() ──► submitted ── take() ──► the worker's ── answer() ──► answered ── poll() ──► free
//
// thread-safe
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "quire/remote_store.h"
#include "quire/result.h"

namespace quire {

class RedisMailbox {
 public:
  struct Taken {
    std::uint32_t place = 0;  ///< what answer() is to be told
    RemoteBatch batch;
    TimeNs submitted_at_ns = 0;
  };

  [[nodiscard]] static Result<std::unique_ptr<RedisMailbox>> make(std::uint32_t batch_count_max,
                                                                  std::uint32_t object_count_max);

  // ── callers
  [[nodiscard]] bool try_submit(const RemoteBatch& batch, TimeNs now);
  void cancel(std::uint64_t id);
  [[nodiscard]] std::span<RemoteAnswer> poll(std::span<RemoteAnswer> out);
  [[nodiscard]] RemoteStatus status() const;
  [[nodiscard]] int answers_event() const { return answers_event_.get(); }
  void stop();

  // ── the worker
  [[nodiscard]] int work_event() const { return work_event_.get(); }
  /// What has come since the last call: batches, ids to cancel. False: the worker is to stop.
  [[nodiscard]] bool take(std::vector<Taken>& batches, std::vector<std::uint64_t>& cancelled);
  /// The batch's memory is the caller's again.
  void answer(std::uint32_t place, const RemoteAnswer& answer);
  /// Objects that have no use of the worker's room any more, possibly long after their batch was answered.
  void give_back_objects(std::uint32_t count);
  /// What callers are told. batch_count is the mailbox's own, waiting_bytes are counted as they come and go.
  void publish(const RemoteStatus& status);
  void add_waiting_bytes(std::uint64_t bytes) { waiting_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void remove_waiting_bytes(std::uint64_t bytes) { waiting_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  /// Wakes the worker, from whatever thread.
  void wake();

 private:
  enum class State : std::uint8_t { Free, Submitted, Working, Answered };
  struct Place {
    State state = State::Free;
    bool is_cancelled = false;
    RemoteBatch batch;
    TimeNs submitted_at_ns = 0;
    RemoteAnswer answer;
  };

  RedisMailbox(std::uint32_t batch_count_max, std::uint32_t object_count_max);

  Descriptor work_event_;
  Descriptor answers_event_;
  const std::uint32_t object_count_max_;
  std::atomic<std::uint64_t> waiting_bytes_ = 0;

  mutable Mutex mutex_;  // guards what follows
  std::vector<Place> places_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> free_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> submitted_ QUIRE_GUARDED_BY(mutex_);  // in order
  std::vector<std::uint64_t> cancelled_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> answered_ QUIRE_GUARDED_BY(mutex_);  // in order, from first_answer_ on
  std::size_t first_answer_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::uint32_t object_count_ QUIRE_GUARDED_BY(mutex_) = 0;
  RemoteStatus status_ QUIRE_GUARDED_BY(mutex_);
  bool is_stopping_ QUIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace quire
