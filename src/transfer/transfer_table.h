// SPDX-License-Identifier: Apache-2.0
//
// TransferTable: which transfers a mover has, in what order they run, and what became of them. A transfer goes through
//
//     add ──► queued ──take──► running ──finish──► finished ──► forgotten
//               └──────────────drop──────────────────▲
//
// A finished one has left a completion to poll(). It is remembered for those who ask late, until as many others have
// finished as there can be completions, so what has not been polled is always known. Room for the completion is taken
// by add(): it is there when the transfer ends. Everything is allocated by create().
//
// single-threaded, except for Record::must_stop
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "quire/device.h"
#include "quire/result.h"
#include "quire/transfer.h"

namespace quire {

struct TransferTableConfig {
  std::uint32_t queue_depth_max = 0;  ///< of each direction
  std::uint32_t transfer_pages_max = 0;
  std::uint32_t worker_count = 0;    ///< that many may run
  std::uint32_t remembered_min = 0;  ///< at least so many that have finished
  std::uint16_t rank = 0;            ///< for completions that no worker makes
};

class TransferTable {
 public:
  enum class State : std::uint8_t { Free, Queued, Running, Finished };

  struct Record {
    TransferId id;
    State state = State::Free;
    TransferKind kind = TransferKind::Load;
    TransferPriority priority = TransferPriority::Waiting;
    TransferOutcome outcome = TransferOutcome::Ok;  // of a finished one
    bool has_fault = false;                         // known before the end
    bool is_known = false;                          // by its id; false when the id has been given to another
    std::uint16_t band_count = 0;
    std::uint16_t pool_index = 0;
    std::uint32_t bands_done = 0;
    std::span<const DeviceEvent> band_events;  // on an accelerator: of the bands that are on its streams
    std::uint32_t page_count = 0;
    std::uint32_t slot = 0;          // where its pages lie until it has finished
    std::uint32_t waiter_count = 0;  // keeps it from being forgotten
    std::atomic<bool> must_stop = false;
  };

  [[nodiscard]] static Result<TransferTable> create(const TransferTableConfig& config);

  /// Neither queue nor completions nor memory are full.
  [[nodiscard]] bool has_room_for(TransferKind kind) const;
  /// Needs room, and an id that is not queued or running. Without pages it has finished.
  std::uint32_t add(const TransferPlan& plan);
  /// The next one of a direction, which then runs; none when its queue is empty.
  [[nodiscard]] std::optional<std::uint32_t> take(TransferKind kind);
  /// Takes a queued one out: it is cancelled.
  void drop(std::uint32_t index);
  /// Of one that runs.
  void finish(std::uint32_t index, const Completion& completion);
  /// The oldest completions, as many as fit.
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out);

  /// The last one of that id, if it is known.
  [[nodiscard]] std::optional<std::uint32_t> find(TransferId id) const;
  [[nodiscard]] Record& record(std::uint32_t index) { return records_[index]; }
  [[nodiscard]] std::span<Record> records() { return records_; }
  /// Of one that is queued or runs.
  [[nodiscard]] std::span<const PageTransfer> pages(std::uint32_t index) const;
  [[nodiscard]] std::size_t completion_count() const { return completion_count_; }
  [[nodiscard]] std::uint32_t remembered_count() const { return remembered_count_; }
  [[nodiscard]] bool has_queued(TransferKind kind) const { return queued_counts_[static_cast<std::size_t>(kind)] != 0; }
  [[nodiscard]] std::uint32_t queued_count() const { return queued_counts_[0] + queued_counts_[1]; }
  [[nodiscard]] std::uint32_t running_count() const { return running_count_; }

 private:
  TransferTable() = default;
  [[nodiscard]] static std::uint32_t queue_of(TransferKind kind, TransferPriority priority);
  [[nodiscard]] std::uint32_t oldest_forgettable() const;
  [[nodiscard]] std::uint32_t make_record();
  void end(std::uint32_t index, const Completion& completion);
  void learn(std::uint32_t index);
  void unlearn(std::uint32_t index);
  [[nodiscard]] std::size_t home_of(TransferId id) const;

  TransferTableConfig config_;
  std::uint32_t remembered_count_ = 0;
  std::vector<Record> records_;
  IndexLists lists_;  // four queues, those that have finished, and free ones
  std::array<std::uint32_t, 2> queued_counts_{};
  std::uint32_t running_count_ = 0;

  std::vector<std::uint32_t> free_slots_;  // a stack, so that those used last are used again
  LazyArray<PageTransfer> slot_pages_;

  // By id: open addressing, and nothing is left behind by what was removed. A cell is an index + 1.
  LazyArray<std::uint32_t> cells_;

  std::vector<Completion> completions_;  // a ring
  std::size_t first_completion_ = 0;
  std::size_t completion_count_ = 0;
};

}  // namespace quire
