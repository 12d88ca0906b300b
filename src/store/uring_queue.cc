// SPDX-License-Identifier: Apache-2.0
#include "store/uring_queue.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/system_error.h"

namespace quire {
namespace {

// What the kernel takes as one registered buffer, and more than it moves for one request.
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 30U;
// Requests are handed to the kernel when they have so many bytes together, or with the next wait(): it merges
// neighbours that come together, and small ones cost it less. One that is this large starts at once, while the caller
// goes on.
constexpr std::uint64_t kBatchBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kNobody = ~std::uint64_t{0};

}  // namespace

std::unique_ptr<UringQueue> UringQueue::try_make(std::uint32_t depth, HostRegion& memory, const FileTable& files,
                                                 const FileCalls& calls, std::string& refusal) {
  std::unique_ptr<UringQueue> queue(new UringQueue(depth, files, calls));
  const int started = calls.start_ring(depth, &queue->ring_);
  if (started < 0) {
    refusal = "io_uring: " + errno_text(-started);
    return nullptr;
  }
  queue->is_started_ = true;
  // Registered or not: a request may reach over two pieces of registered memory, and needs them then.
  if (!calls.has_operation(&queue->ring_, IORING_OP_READ) || !calls.has_operation(&queue->ring_, IORING_OP_WRITE)) {
    refusal = "io_uring: without requests for memory that is not registered, as before Linux 5.6";
    return nullptr;
  }
  queue->memory_ = std::move(memory);
  queue->register_buffers(refusal);
  return queue;
}

UringQueue::UringQueue(std::uint32_t depth, const FileTable& files, const FileCalls& calls)
    : files_(files), calls_(calls), slots_(depth) {
  free_.reserve(depth);
  not_taken_.reserve(depth);
  failed_.reserve(depth);
  for (std::uint32_t i = depth; i != 0; --i) free_.push_back(i - 1);
}

UringQueue::~UringQueue() {
  std::array<IoResult, 1> result;
  while (free_.size() != slots_.size()) (void)wait(result);
  if (is_started_) ::io_uring_queue_exit(&ring_);
}

void UringQueue::register_buffers(std::string& refusal) {
  std::vector<iovec> pieces;
  for (std::uint64_t begin = 0; begin < memory_.bytes(); begin += kPieceBytes) {
    pieces.push_back({memory_.data() + begin, std::min<std::uint64_t>(kPieceBytes, memory_.bytes() - begin)});
  }
  const int registered = calls_.register_buffers(&ring_, pieces.data(), static_cast<unsigned>(pieces.size()));
  has_registered_buffers_ = registered == 0;
  if (!has_registered_buffers_) {
    refusal += "registered buffers: " + errno_text(-registered) + (registered == -ENOMEM ? "; see ulimit -l" : "");
  }
}

void UringQueue::submit(const IoRequest& request) {
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
  push(slot_index);
}

void UringQueue::push(std::uint32_t slot_index) {
  Slot& slot = slots_[slot_index];
  slot.entry = ::io_uring_get_sqe(&ring_);
  if (slot.entry == nullptr) {
    // Full of entries of failed requests, and of some that wait: the kernel may take them by now.
    (void)hand_over();
    slot.entry = ::io_uring_get_sqe(&ring_);
  }
  if (slot.entry == nullptr) {
    slot.transfer.error_number = EAGAIN;
    failed_.push_back(slot_index);
    return;
  }
  const std::span<std::byte> rest = slot.transfer.rest();
  const auto begin = static_cast<std::uint64_t>(rest.data() - memory_.data());
  const std::uint64_t piece = begin / kPieceBytes;
  const auto bytes = static_cast<unsigned>(std::min<std::uint64_t>(rest.size(), kPieceBytes));
  const std::uint64_t offset = slot.transfer.rest_offset();
  const bool is_read = slot.transfer.kind == IoKind::Read;
  const int file = slot.transfer.file;
  const bool is_registered = has_registered_buffers_ && (begin + bytes - 1) / kPieceBytes == piece;
  if (is_registered && is_read) {
    ::io_uring_prep_read_fixed(slot.entry, file, rest.data(), bytes, offset, static_cast<int>(piece));
  } else if (is_registered) {
    ::io_uring_prep_write_fixed(slot.entry, file, rest.data(), bytes, offset, static_cast<int>(piece));
  } else if (is_read) {
    ::io_uring_prep_read(slot.entry, file, rest.data(), bytes, offset);
  } else {
    ::io_uring_prep_write(slot.entry, file, rest.data(), bytes, offset);
  }
  ::io_uring_sqe_set_data64(slot.entry, slot_index);
  not_taken_.push_back(slot_index);
  not_taken_bytes_ += bytes;
  request_bytes_ = bytes;
  if (not_taken_bytes_ >= kBatchBytes) flush();
}

// The one place where entries go to the kernel: what it has taken is its own from then on, buffers included, and must
// not be among those that may still be failed.
int UringQueue::hand_over() {
  not_taken_bytes_ = 0;
  int taken = 0;
  do {
    taken = calls_.submit(&ring_);
  } while (taken == -EINTR);
  if (taken <= 0) return taken;
  // In the order of the ring; entries of failed requests, which mean nothing, lie before them.
  const unsigned left = ::io_uring_sq_ready(&ring_);
  const std::size_t kept = std::min<std::size_t>(left, not_taken_.size());
  const auto first_kept = not_taken_.end() - static_cast<std::ptrdiff_t>(kept);
  std::for_each(not_taken_.begin(), first_kept, [&](std::uint32_t slot) { slots_[slot].entry = nullptr; });
  not_taken_.erase(not_taken_.begin(), first_kept);
  return taken;
}

void UringQueue::flush() {
  while (!not_taken_.empty()) {
    const int taken = hand_over();
    if (taken > 0) continue;
    // The kernel is short of something that requests in flight give back: wait() tries again after one is done.
    const std::size_t taken_before = slots_.size() - free_.size() - not_taken_.size() - failed_.size();
    if (taken_before == 0) fail_what_is_not_taken(taken == 0 ? EAGAIN : -taken);
    return;
  }
}

void UringQueue::fail_what_is_not_taken(int error_number) {
  for (const std::uint32_t slot_index : not_taken_) {
    Slot& slot = slots_[slot_index];
    // Entries cannot be taken back, but they can be made to mean nothing when the kernel takes them one day.
    ::io_uring_prep_nop(slot.entry);
    ::io_uring_sqe_set_data64(slot.entry, kNobody);
    slot.entry = nullptr;
    slot.transfer.error_number = error_number;
    failed_.push_back(slot_index);
  }
  not_taken_.clear();
}

// Small requests are waited for several at a time. A thread that is woken for each one hands the next to the kernel one
// by one, too, and so it stays, at half the speed.
unsigned UringQueue::wanted_completions(std::size_t count_max) const {
  const std::size_t in_kernel = slots_.size() - free_.size() - not_taken_.size() - failed_.size();
  const std::uint64_t of_a_batch = kBatchBytes / request_bytes_;
  return static_cast<unsigned>(std::max<std::uint64_t>(1, std::min({of_a_batch, in_kernel / 4, count_max})));
}

std::span<IoResult> UringQueue::wait(std::span<IoResult> out) {
  QUIRE_CHECK(free_.size() != slots_.size() && !out.empty(), "waiting for nothing");
  std::size_t count = 0;
  while (true) {
    while (count < out.size() && !failed_.empty()) {
      finish(failed_.back(), out[count++]);
      failed_.pop_back();
    }
    io_uring_cqe* completion = nullptr;
    while (count < out.size() && ::io_uring_peek_cqe(&ring_, &completion) == 0) {
      const std::uint64_t slot_index = ::io_uring_cqe_get_data64(completion);
      const ssize_t answer = completion->res;
      ::io_uring_cqe_seen(&ring_, completion);
      if (slot_index == kNobody) continue;
      if (try_complete(static_cast<std::uint32_t>(slot_index), answer, out[count])) ++count;
    }
    flush();
    if (count != 0) return out.first(count);
    if (!failed_.empty()) continue;
    const int waited = calls_.wait(&ring_, wanted_completions(out.size()));
    // There is no way on: the kernel has the buffers and does not say when it is done with them.
    QUIRE_CHECK(waited == 0 || waited == -EINTR || waited == -EAGAIN, "io_uring refuses to wait for its completions");
  }
}

bool UringQueue::try_complete(std::uint32_t slot_index, ssize_t answer, IoResult& out) {
  if (slots_[slot_index].transfer.advance(answer)) {
    push(slot_index);
    return false;
  }
  finish(slot_index, out);
  return true;
}

void UringQueue::finish(std::uint32_t slot_index, IoResult& out) {
  const Slot& slot = slots_[slot_index];
  out.tag = slot.tag;
  const bool is_whole = slot.transfer.error_number == 0 && slot.transfer.rest().empty();
  out.status = is_whole ? Status{} : slot.transfer.status(files_.path(slot.file));
  free_.push_back(slot_index);
}

}  // namespace quire
