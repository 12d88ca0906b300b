// SPDX-License-Identifier: Apache-2.0
//
// What a Mover is made of: threads around a TransferTable. A worker takes the next transfer of its direction under the
// mutex, copies its pages without it, and comes back for every finished band and for the end. What is told to others,
// and the bytes before it, therefore goes through the mutex: whoever has heard of a completion sees the pages it
// speaks of. mover.cc has the calls and the workers that copy, mover_accelerator.cc those that keep streams busy.
//
// thread-safe
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/lazy_array.h"
#include "base/mutex.h"
#include "quire/mover.h"
#include "quire/result.h"
#include "store/host_store.h"
#include "transfer/device_flights.h"
#include "transfer/mover_peer.h"
#include "transfer/transfer_table.h"

namespace quire {

[[nodiscard]] inline tl::unexpected<Error> invalid_argument(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

[[nodiscard]] inline std::string text_of(TransferId id) {
  return "transfer " + std::to_string(id.index) + "." + std::to_string(id.generation);
}

/// Which pages a plan has named already, without clearing anything from one plan to the next.
class SeenPages {
 public:
  [[nodiscard]] Status reserve(std::uint32_t page_count) { return plans_.grow(page_count); }
  void begin_plan() {
    if (++plan_ != 0) return;
    std::fill_n(plans_.data(), plans_.size(), 0U);
    plan_ = 1;
  }
  [[nodiscard]] bool add(std::uint32_t page) { return std::exchange(plans_[page], plan_) != plan_; }

 private:
  LazyArray<std::uint32_t> plans_;  // the last one that named the page
  std::uint32_t plan_ = 0;
};

struct Mover::Impl {
  using Clock = std::chrono::steady_clock;

  // Pages that have their ids to themselves. Where they lie on the device changes under the mutex while nothing runs;
  // workers read it without.
  struct Pool {
    explicit Pool(const MoverPool& pool);
    [[nodiscard]] HostStoreConfig store_config(bool checksums) const;
    [[nodiscard]] std::uint32_t device_page_count() const { return geometries[0].page_count(); }
    [[nodiscard]] std::uint32_t layer_count() const { return store->layer_count(); }
    [[nodiscard]] Result<std::vector<std::vector<Fragment>>> fragments() const;

    std::vector<PoolGeometry> geometries;             // one for each part
    std::vector<DevicePages> device;                  // they, and where their pages lie
    std::vector<std::vector<AdoptedTensor>> tensors;  // of each part, where these are in place of that
    std::uint32_t host_page_count = 0;
    std::unique_ptr<HostStore> store;
    // With an accelerator.
    std::span<std::byte> records;  // registered with it
    std::unique_ptr<SwapEngine> engine;
  };

  // What a worker needs to know of a transfer while it copies.
  struct Work {
    std::uint32_t index = 0;
    TransferId id;
    TransferKind kind = TransferKind::Load;
    std::uint32_t band_count = 0;
    std::span<const PageTransfer> pages;
    const std::atomic<bool>* must_stop = nullptr;
    const Pool* pool = nullptr;
  };

  Impl(MoverConfig the_config, MoverHooks the_hooks, TransferTable the_table);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] Status prepare();
  [[nodiscard]] Status open_stores();
  [[nodiscard]] Status start();
  void bind_workers();
  void stop();

  [[nodiscard]] Status open_engines();
  [[nodiscard]] std::size_t worker_count() const;
  void work(TransferKind kind, std::span<ChecksumPart> sums);
  void work_with_accelerator(TransferKind kind);
  [[nodiscard]] bool start_next_flight(TransferKind kind);
  void tell(const FlightNews& news) QUIRE_REQUIRES(mutex);
  [[nodiscard]] Completion run(const Work& work, std::span<ChecksumPart> sums);
  [[nodiscard]] std::uint32_t run_band(const Work& work, std::uint32_t band, std::span<ChecksumPart> pages,
                                       Completion& completion);
  [[nodiscard]] TransferFault move_piece(const Work& work, const PieceStart& start, ChecksumPart& sum);
  void mark_band(const Work& work, std::uint32_t band);
  void mark_fault(const Work& work);

  [[nodiscard]] Status check_plan(const TransferPlan& plan) QUIRE_REQUIRES(mutex);
  [[nodiscard]] Status check_pages(const TransferPlan& plan) QUIRE_REQUIRES(mutex);
  [[nodiscard]] std::string text_of_pool(std::uint16_t pool_index) const;
  [[nodiscard]] Status check_idle(std::string_view what) QUIRE_REQUIRES(mutex);
  [[nodiscard]] Result<std::uint32_t> find_band(TransferId id, std::uint32_t band) QUIRE_REQUIRES(mutex);
  [[nodiscard]] std::optional<TransferOutcome> answer(std::uint32_t index, std::uint32_t band) QUIRE_REQUIRES(mutex);
  void wait_for_news(std::uint32_t index, Clock::time_point deadline) QUIRE_REQUIRES(mutex);
  void begin_blocking(std::uint32_t index) QUIRE_REQUIRES(mutex);
  void end_blocking(std::uint32_t index) QUIRE_REQUIRES(mutex);
  [[nodiscard]] static Clock::time_point deadline_in(TimeNs timeout_ns);
  void signal_completion(std::size_t count_before) QUIRE_REQUIRES(mutex);

  MoverConfig config;
  MoverHooks hooks;
  HostRegion region;  // of all pools; forgotten under the mutex while nothing runs
  std::vector<Pool> pools;
  int event_fd = -1;
  LazyArray<ChecksumPart> worker_sums;                    // transfer_pages_max of each worker
  std::array<std::unique_ptr<DeviceFlights>, 2> flights;  // with an accelerator: of the worker of each direction
  std::vector<std::thread> workers;

  Mutex mutex;  // guards what follows
  TransferTable table QUIRE_GUARDED_BY(mutex);
  SeenPages seen_on_device QUIRE_GUARDED_BY(mutex);
  SeenPages seen_on_host QUIRE_GUARDED_BY(mutex);
  bool is_paused QUIRE_GUARDED_BY(mutex) = false;
  bool is_stopping QUIRE_GUARDED_BY(mutex) = false;
  std::uint32_t blocked_count QUIRE_GUARDED_BY(mutex) = 0;  // callers in wait(), wait_on() and pause()
  std::array<Condition, 2> has_work;                        // of each direction: queued, resumed or stopping
  Condition has_news;  // a transfer has ended, a band is on streams or done, a pause has begun, or nobody is blocked
};

}  // namespace quire
