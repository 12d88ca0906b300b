// SPDX-License-Identifier: Apache-2.0
//
// A mover's workers where there is an accelerator: one for each direction, which puts transfers on streams.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "quire/mover.h"
#include "quire/result.h"
#include "store/host_store.h"
#include "transfer/device_flights.h"
#include "transfer/mover_impl.h"
#include "transfer/swap_lane.h"
#include "transfer/transfer_table.h"

namespace quire {
namespace {

// Between two looks at what an accelerator does; a page of 2 MiB takes about as long.
constexpr auto kPollInterval = std::chrono::microseconds(25);

// What a stream would wait for is known already.
Status status_of(TransferId id, TransferOutcome outcome) {
  if (outcome == TransferOutcome::Ok || outcome == TransferOutcome::Empty) return {};
  if (outcome == TransferOutcome::Cancelled) return fail(ErrorCode::Cancelled, text_of(id) + " was cancelled");
  return fail(ErrorCode::Io, text_of(id) + " has failed: not all of its pages arrive");
}

tl::unexpected<Error> not_on_its_way(TransferId id, std::string_view why) {
  return fail(ErrorCode::Unavailable, text_of(id) + " is queued, and not on its way" + std::string(why));
}

tl::unexpected<Error> not_on_its_streams(TransferId id, std::uint32_t band, std::string_view why) {
  return fail(ErrorCode::Unavailable,
              "band " + std::to_string(band) + " of " + text_of(id) + " is not on its streams" + std::string(why));
}

}  // namespace

// Of all parts, whose layers count on.
Result<std::vector<std::vector<Fragment>>> Mover::Impl::Pool::fragments() const {
  std::vector<std::vector<Fragment>> all;
  std::uint64_t part_offset = 0;
  for (std::size_t i = 0; i < device.size(); ++i) {
    const PoolGeometry& geometry = geometries[i];
    std::vector<std::vector<Fragment>> layers;
    if (tensors[i].empty()) {
      layers = fragments_of(geometry, device[i].memory);
    } else {
      QUIRE_TRY_ASSIGN(layers, fragments_of(geometry.page(), tensors[i]));
    }
    for (std::vector<Fragment>& layer : layers) {
      for (Fragment& fragment : layer) fragment.record_offset += part_offset;
      all.push_back(std::move(layer));
    }
    part_offset += geometry.page().page_bytes();
  }
  return all;
}

// The same memory may be of the accelerator for several engines, but their rings are their own.
Status Mover::Impl::open_engines() {
  const std::uint64_t staging_bytes = config.staging_bytes != 0 ? config.staging_bytes : kStagingBytes;
  for (Pool& pool : pools) {
    QUIRE_TRY_ASSIGN(std::vector<std::vector<Fragment>> layers, pool.fragments());
    const HostStoreConfig store_config = pool.store_config(config.checksums);
    QUIRE_TRY_ASSIGN(pool.engine,
                     SwapEngine::open({.device = config.accelerator,
                                       .layers = std::move(layers),
                                       .device_page_count = pool.device_page_count(),
                                       .records = pool.records.data(),
                                       .record_stride = *HostStore::memory_bytes(store_config) / pool.host_page_count,
                                       .record_count = pool.host_page_count,
                                       .checksums = config.checksums,
                                       .load_paths = config.load_paths,
                                       .store_paths = config.store_paths,
                                       .call_pages_max = config.transfer_pages_max,
                                       .calls_in_flight_max = DeviceFlights::kFlightsMax,
                                       .staging_bytes = std::max<std::uint64_t>(1, staging_bytes / pools.size())}));
  }
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    const TransferStreams& streams = kind == TransferKind::Load ? config.load_streams : config.store_streams;
    QUIRE_TRY_ASSIGN(
        flights[static_cast<std::size_t>(kind)],
        DeviceFlights::create(*config.accelerator, streams, config.transfer_pages_max, hooks, config.rank));
  }
  return {};
}

// Puts transfers on streams, a band at a time, and looks after those that are there. With many pages, putting all bands
// there may take longer than the device takes for the first one: each is told as soon as it is there.
void Mover::Impl::work_with_accelerator(TransferKind kind) {
  pthread_setname_np(pthread_self(), kind == TransferKind::Load ? "quire-load" : "quire-store");
  const auto direction = static_cast<std::size_t>(kind);
  DeviceFlights& own = *flights[direction];
  while (true) {
    bool has_changed = own.start_next_band() || start_next_flight(kind);
    while (const std::optional<FlightNews> news = own.poll()) {
      has_changed = true;
      const MutexLock lock(mutex);
      tell(*news);
    }
    if (has_changed) continue;
    const bool is_empty = own.is_empty();
    const MutexLock lock(mutex);
    if (is_empty && is_stopping) return;
    if (!is_empty) {
      has_work[direction].wait_until(mutex, std::chrono::steady_clock::now() + kPollInterval);
    } else if (is_paused || !table.has_queued(kind)) {
      has_work[direction].wait(mutex);
    }
  }
}

// The next transfer of the queue, if there is one and it may go.
bool Mover::Impl::start_next_flight(TransferKind kind) {
  DeviceFlights& own = *flights[static_cast<std::size_t>(kind)];
  if (!own.has_room()) return false;
  FlightOrder order;
  const Pool* pool = nullptr;
  {
    const MutexLock lock(mutex);
    if (is_stopping || is_paused) return false;
    const std::optional<std::uint32_t> index = table.take(kind);
    if (!index) return false;
    const TransferTable::Record& record = table.record(*index);
    order = {.index = *index,
             .id = record.id,
             .kind = kind,
             .band_count = record.band_count,
             .pages = table.pages(*index),
             .must_stop = &record.must_stop};
    pool = &pools[record.pool_index];
  }
  own.start(order, {.host = pool->store.get(), .engine = pool->engine.get()});
  return true;
}

void Mover::Impl::tell(const FlightNews& news) {
  TransferTable::Record& record = table.record(news.index);
  if (!news.completion) {
    record.band_events = news.band_events;
    record.bands_done = news.bands_done;
    record.has_fault = record.has_fault || news.has_fault;
    if (blocked_count != 0) has_news.notify_all();
    return;
  }
  const std::size_t count_before = table.completion_count();
  table.finish(news.index, *news.completion);
  signal_completion(count_before);
}

// Making the stream wait needs nothing that the worker holds while it puts the next band on streams. Nor the mutex: a
// stream that is full may keep the caller in wait(). Should the transfer end just then, a later one may use the event
// again, and the stream waits for a band of that one as well, which depends on nobody who waits.
Status Mover::wait_on(DeviceStream stream, TransferId id, std::uint32_t band, TimeNs timeout_ns) {
  Impl& impl = *impl_;
  if (impl.config.accelerator == nullptr) {
    return fail(ErrorCode::Unsupported, "waiting on a stream: the mover has no accelerator");
  }
  const Impl::Clock::time_point deadline = Impl::deadline_in(timeout_ns);
  MutexLock lock(impl.mutex);
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_band(id, band));
  const TransferTable::Record& record = impl.table.record(index);
  const auto is_queued = [&] { return record.state == TransferTable::State::Queued; };
  const auto is_being_put = [&] {
    return record.state == TransferTable::State::Running && !record.has_fault && band >= record.band_events.size();
  };
  while (is_queued() || is_being_put()) {
    const auto not_there = [&](std::string_view why) {
      return is_queued() ? not_on_its_way(id, why) : not_on_its_streams(id, band, why);
    };
    if (impl.is_stopping) return not_there(": the mover is being destroyed");
    if (is_queued() && impl.is_paused) return not_there(": the mover is paused");
    if (Impl::Clock::now() >= deadline) return not_there(" yet");
    impl.wait_for_news(index, deadline);
  }
  if (const auto known = impl.answer(index, band)) return status_of(id, *known);
  const DeviceEvent event = record.band_events[band];
  impl.begin_blocking(index);
  lock.unlock();
  Status status = impl.config.accelerator->wait(stream, event);
  lock.lock();
  impl.end_blocking(index);
  return status;
}

}  // namespace quire
