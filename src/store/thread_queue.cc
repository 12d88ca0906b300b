// SPDX-License-Identifier: Apache-2.0
#include "store/thread_queue.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/system_error.h"

namespace quire {
namespace {

// Enough for a fast disk with large blocks: more threads than that wait for each other.
constexpr std::uint32_t kThreadsMax = 16;

}  // namespace

Result<std::unique_ptr<ThreadQueue>> ThreadQueue::make(std::uint32_t depth, HostRegion memory, const FileTable& files,
                                                       const FileCalls& calls) {
  std::unique_ptr<ThreadQueue> queue(new ThreadQueue(depth, std::move(memory), files, calls));
  QUIRE_TRY(queue->start());
  return queue;
}

ThreadQueue::ThreadQueue(std::uint32_t depth, HostRegion memory, const FileTable& files, const FileCalls& calls)
    : files_(files), calls_(calls), memory_(std::move(memory)), slots_(depth), waiting_(depth), done_(depth) {
  free_.reserve(depth);
  for (std::uint32_t i = depth; i != 0; --i) free_.push_back(i - 1);
}

Status ThreadQueue::start() {
  const BlockedSignals blocked;
  const std::uint32_t thread_count = std::min(depth(), kThreadsMax);
  threads_.reserve(thread_count);
  try {
    for (std::uint32_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    // Some are as good as all, only slower.
    if (threads_.empty()) {
      return fail(errno_code(error.code().value()), "starting a thread of a file queue: " + error.code().message());
    }
  }
  return {};
}

ThreadQueue::~ThreadQueue() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    has_work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::submit(const IoRequest& request) {
  check_request(request, memory());
  QUIRE_CHECK(!free_.empty(), "more requests than the queue is deep");
  const std::uint32_t slot_index = free_.back();
  free_.pop_back();
  slots_[slot_index] = {.transfer = {.kind = request.kind,
                                     .file = files_.descriptor(request.file),
                                     .offset = request.offset,
                                     .buffer = request.buffer},
                        .file = request.file,
                        .tag = request.tag};
  const MutexLock lock(mutex_);
  waiting_.push(slot_index);
  has_work_.notify_one();
}

std::span<IoResult> ThreadQueue::wait(std::span<IoResult> out) {
  QUIRE_CHECK(free_.size() != slots_.size() && !out.empty(), "waiting for nothing");
  const std::size_t free_before = free_.size();
  {
    const MutexLock lock(mutex_);
    while (done_.is_empty()) has_results_.wait(mutex_);
    while (!done_.is_empty() && free_.size() - free_before < out.size()) free_.push_back(done_.pop());
  }
  const std::size_t count = free_.size() - free_before;
  for (std::size_t i = 0; i < count; ++i) {
    const Slot& slot = slots_[free_[free_before + i]];
    out[i].tag = slot.tag;
    const bool is_whole = slot.transfer.error_number == 0 && slot.transfer.rest().empty();
    out[i].status = is_whole ? Status{} : slot.transfer.status(files_.path(slot.file));
  }
  return out.first(count);
}

// Requests that wait are done before the threads stop: a queue that is destroyed finishes its writes.
void ThreadQueue::work() {
  pthread_setname_np(pthread_self(), "quire-file");
  MutexLock lock(mutex_);
  while (true) {
    while (waiting_.is_empty() && !is_stopping_) has_work_.wait(mutex_);
    if (waiting_.is_empty()) return;
    const std::uint32_t slot_index = waiting_.pop();
    lock.unlock();
    slots_[slot_index].transfer.run(calls_);
    lock.lock();
    done_.push(slot_index);
    has_results_.notify_one();
  }
}

}  // namespace quire
