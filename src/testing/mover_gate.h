// SPDX-License-Identifier: Apache-2.0
//
// MoverGate: where a test holds the workers of a mover before they copy a piece, or makes a piece fail, so that no test
// has to wait for time to pass. It outlives the mover.
//
// thread-safe
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "quire/transfer.h"
#include "transfer/mover_peer.h"

namespace quire::testing {

/// Workers are here before each piece; with an accelerator, before each page of a transfer that is being started. Open
/// at first.
class MoverGate {
 public:
  using Which = std::function<bool(const PieceStart& piece)>;

  /// From now on pieces that `which` picks stand before the gate; others that stand there pass.
  void close(Which which = [](const PieceStart&) { return true; }) {
    const std::lock_guard lock(mutex_);
    which_ = std::move(which);
    std::erase_if(held_, [&](const PieceStart& piece) { return !which_(piece); });
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    which_ = nullptr;
    held_.clear();
    changed_.notify_all();
  }
  /// The faults of pieces to come.
  void break_pieces(std::function<TransferFault(const PieceStart& piece)> fault_of) {
    const std::lock_guard lock(mutex_);
    fault_of_ = std::move(fault_of);
  }
  /// Waits until `count` workers stand before the gate, and says what the last of them is about to copy.
  PieceStart wait_for_held(std::uint32_t count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() >= count; });
    return held_.back();
  }
  /// Pieces that have passed, in order.
  std::vector<PieceStart> passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }

  TransferFault pass(const PieceStart& piece) {
    std::unique_lock lock(mutex_);
    if (which_ && which_(piece)) {
      held_.push_back(piece);
      changed_.notify_all();
      changed_.wait(lock, [&] { return !which_ || !which_(piece); });
    }
    passed_.push_back(piece);
    return fault_of_ ? fault_of_(piece) : TransferFault::None;
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Which which_;
  std::function<TransferFault(const PieceStart& piece)> fault_of_;
  std::vector<PieceStart> held_;
  std::vector<PieceStart> passed_;
};

}  // namespace quire::testing
