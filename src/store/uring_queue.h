// SPDX-License-Identifier: Apache-2.0
//
// UringQueue: reads and writes in flight through io_uring. Its memory is registered with the ring where that is
// allowed, so that the kernel need not look up and pin its pages for each request.
//
// A ring is made for the thread that uses it, because the kernel does better with one. When another thread takes over
// it is made anew; one that changes hands often is made for all threads.
//
// single-threaded; another thread may take over while nothing is in flight
#pragma once

#include <liburing.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/block_transfer.h"
#include "store/file_calls.h"
#include "store/file_system.h"
#include "store/file_table.h"
#include "store/host_region.h"

namespace quire {

class UringQueue final : public IoQueue {
 public:
  /// Takes the memory, unless there is no io_uring, or one that is too old: nullptr, and `refusal` says why. What else
  /// was refused is appended to it.
  [[nodiscard]] static std::unique_ptr<UringQueue> try_make(std::uint32_t depth, HostRegion& memory,
                                                            const FileTable& files, const FileCalls& calls,
                                                            std::string& refusal);
  ~UringQueue() override;
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  [[nodiscard]] std::span<std::byte> memory() override { return {memory_.data(), memory_.bytes()}; }
  [[nodiscard]] std::uint32_t depth() const override { return static_cast<std::uint32_t>(slots_.size()); }
  void submit(const IoRequest& request) override;
  [[nodiscard]] std::span<IoResult> wait(std::span<IoResult> out) override;

  [[nodiscard]] bool has_registered_buffers() const { return has_registered_buffers_; }

 private:
  struct Slot {
    BlockTransfer transfer;
    FileId file;
    std::uint64_t tag = 0;
    io_uring_sqe* entry = nullptr;  // while the kernel has not taken it
  };

  UringQueue(std::uint32_t depth, const FileTable& files, const FileCalls& calls);
  void register_buffers(std::string& refusal);
  void push(std::uint32_t slot_index);
  /// One call to the kernel: how many entries it has taken, or a negative errno.
  int hand_over();
  /// Until it has taken all, or will take no more now.
  void flush();
  void fail_what_is_not_taken(int error_number);
  [[nodiscard]] unsigned wanted_completions(std::size_t count_max) const;
  /// Of one request, if it has ended.
  [[nodiscard]] bool try_complete(std::uint32_t slot_index, ssize_t answer, IoResult& out);
  void finish(std::uint32_t slot_index, IoResult& out);

  const FileTable& files_;
  const FileCalls& calls_;
  HostRegion memory_;
  io_uring ring_{};
  bool is_started_ = false;
  bool has_registered_buffers_ = false;
  std::vector<Slot> slots_;
  // Indices of slots: a slot is free, not taken by the kernel, taken, or failed without the kernel.
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> not_taken_;
  std::uint64_t not_taken_bytes_ = 0;  // since the kernel was asked to take them
  std::uint64_t request_bytes_ = 1;    // of the last one
  std::vector<std::uint32_t> failed_;
};

}  // namespace quire
