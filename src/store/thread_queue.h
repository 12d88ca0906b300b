// SPDX-License-Identifier: Apache-2.0
//
// ThreadQueue: reads and writes in flight through threads that block, for systems without io_uring. A thread takes the
// oldest request under the mutex, moves its blocks without it, and comes back with how it ended: whoever has its result
// sees the bytes.
//
// single-threaded, but for its own threads
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "quire/result.h"
#include "store/block_transfer.h"
#include "store/file_calls.h"
#include "store/file_system.h"
#include "store/file_table.h"
#include "store/host_region.h"

namespace quire {

class ThreadQueue final : public IoQueue {
 public:
  [[nodiscard]] static Result<std::unique_ptr<ThreadQueue>> make(std::uint32_t depth, HostRegion memory,
                                                                 const FileTable& files, const FileCalls& calls);
  ~ThreadQueue() override;
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  [[nodiscard]] std::span<std::byte> memory() override { return {memory_.data(), memory_.bytes()}; }
  [[nodiscard]] std::uint32_t depth() const override { return static_cast<std::uint32_t>(slots_.size()); }
  void submit(const IoRequest& request) override;
  [[nodiscard]] std::span<IoResult> wait(std::span<IoResult> out) override;

 private:
  struct Slot {
    BlockTransfer transfer;
    FileId file;
    std::uint64_t tag = 0;
  };
  // Indices of slots, first in, first out. Never more than there are slots.
  class Line {
   public:
    explicit Line(std::uint32_t depth) : indices_(depth) {}
    [[nodiscard]] bool is_empty() const { return count_ == 0; }
    void push(std::uint32_t index) { indices_[(first_ + count_++) % indices_.size()] = index; }
    std::uint32_t pop() {
      const std::uint32_t index = indices_[first_];
      first_ = (first_ + 1) % indices_.size();
      --count_;
      return index;
    }

   private:
    std::vector<std::uint32_t> indices_;
    std::size_t first_ = 0;
    std::size_t count_ = 0;
  };

  ThreadQueue(std::uint32_t depth, HostRegion memory, const FileTable& files, const FileCalls& calls);
  [[nodiscard]] Status start();
  void work();

  const FileTable& files_;
  const FileCalls& calls_;
  HostRegion memory_;
  // A slot is the caller's, until it is in waiting_, and again when it was in done_; in between it is a thread's.
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;

  Mutex mutex_;  // guards what follows
  Condition has_work_;
  Condition has_results_;
  Line waiting_ QUIRE_GUARDED_BY(mutex_);
  Line done_ QUIRE_GUARDED_BY(mutex_);
  bool is_stopping_ QUIRE_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace quire
