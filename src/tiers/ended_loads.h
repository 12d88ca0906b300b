// SPDX-License-Identifier: Apache-2.0
//
// EndedLoads: how the last load with each index of the book ended. A mover forgets what has ended after a while, and
// threads of an engine may ask for a layer of a load later than that.
//
// thread-safe
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "quire/transfer.h"

namespace quire {

class EndedLoads {
 public:
  void open(std::uint32_t transfer_count) {
    ends_ = std::make_unique<std::atomic<std::uint64_t>[]>(transfer_count);
    count_ = transfer_count;
  }
  void add(TransferId id, TransferOutcome outcome) {
    ends_[id.index].store(encode(id, outcome), std::memory_order_release);
  }
  /// Nothing: the load is on its way, or was never known.
  [[nodiscard]] std::optional<TransferOutcome> find(TransferId id) const {
    if (id.index >= count_) return std::nullopt;
    const std::uint64_t end = ends_[id.index].load(std::memory_order_acquire);
    if (end >> 8U != id.generation || (end & 0xFFU) == 0) return std::nullopt;
    return static_cast<TransferOutcome>((end & 0xFFU) - 1);
  }

 private:
  [[nodiscard]] static std::uint64_t encode(TransferId id, TransferOutcome outcome) {
    return (std::uint64_t{id.generation} << 8U) | (static_cast<std::uint64_t>(outcome) + 1);
  }

  std::unique_ptr<std::atomic<std::uint64_t>[]> ends_;  // NOLINT(modernize-avoid-c-arrays): atomics do not move
  std::uint32_t count_ = 0;
};

}  // namespace quire
