// SPDX-License-Identifier: Apache-2.0
#include "transfer/device_flights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire {

Result<std::unique_ptr<DeviceFlights>> DeviceFlights::create(Device& device, const TransferStreams& streams,
                                                             std::uint32_t transfer_pages_max, const MoverHooks& hooks,
                                                             std::uint16_t rank) {
  auto flights = std::unique_ptr<DeviceFlights>(new DeviceFlights(device, hooks, rank));
  flights->streams_ = streams.given;
  flights->owns_streams_ = streams.given.empty();
  for (std::uint32_t i = 0; flights->owns_streams_ && i < streams.set_count; ++i) {
    SwapStreams& made = flights->streams_.emplace_back();
    for (DeviceStream* const stream : {&made.copies, &made.kernels, &made.more_kernels}) {
      QUIRE_TRY_ASSIGN(*stream, device.create_stream(streams.priority));
    }
  }
  flights->flights_.reserve(kFlightsMax);
  flights->device_pages_.reserve(transfer_pages_max);
  flights->records_.reserve(transfer_pages_max);
  flights->expected_.reserve(transfer_pages_max);
  return flights;
}

DeviceFlights::~DeviceFlights() {
  if (!owns_streams_) return;
  for (const SwapStreams& made : streams_) {
    for (const DeviceStream stream : {made.copies, made.kernels, made.more_kernels}) {
      if (stream.handle != nullptr) device_.destroy_stream(stream);
    }
  }
}

TransferFault DeviceFlights::claim(Flight& flight, std::uint32_t page_index) {
  const FlightOrder& order = flight.order;
  const PageTransfer& page = order.pages[page_index];
  if (hooks_.before_piece) {
    const TransferFault fault =
        hooks_.before_piece({.id = order.id, .kind = order.kind, .band = 0, .page_index = page_index});
    if (fault != TransferFault::None) return fault;
  }
  std::optional<std::uint64_t> checksum;
  if (order.kind == TransferKind::Load) {
    HostPages::Record record;
    if (const TransferFault fault = flight.pool.host->begin_read(page, record); fault != TransferFault::None) {
      return fault;
    }
    checksum = record.checksum;
  } else {
    std::span<std::byte> bytes;
    if (const TransferFault fault = flight.pool.host->begin_write(page, bytes); fault != TransferFault::None) {
      return fault;
    }
  }
  device_pages_.push_back(page.device_page);
  records_.push_back(RecordId{page.host_page.value - 1});
  if (checksum) expected_.push_back(*checksum);
  ++flight.claimed;
  return TransferFault::None;
}

// Of a path, what lies behind the first page that fails is of no use.
void DeviceFlights::start(const FlightOrder& order, const FlightPool& pool) {
  QUIRE_CHECK(has_room(), "a transfer for which there is no room, or not yet");
  Flight& flight = flights_.emplace_back();
  flight.order = order;
  flight.pool = pool;
  flight.streams = streams_[next_streams_++ % streams_.size()];
  flight.begin = Clock::now();
  device_pages_.clear();
  records_.clear();
  expected_.clear();
  const auto must_stop = [&order] { return order.must_stop->load(std::memory_order_relaxed); };
  for (std::uint32_t i = 0; i < order.pages.size() && flight.fault == TransferFault::None && !must_stop(); ++i) {
    flight.fault = claim(flight, i);
  }
  if (flight.claimed == 0 || must_stop()) return;
  if (const Status status = put_on_streams(flight); !status) flight.fault = TransferFault::Io;
}

Status DeviceFlights::put_on_streams(Flight& flight) {
  QUIRE_TRY_ASSIGN(flight.ticket, flight.pool.engine->try_start({.kind = flight.order.kind,
                                                                 .device_pages = device_pages_,
                                                                 .records = records_,
                                                                 .expected = expected_,
                                                                 .band_count = flight.order.band_count,
                                                                 .band_by_band = true,
                                                                 .streams = flight.streams}));
  QUIRE_CHECK(flight.ticket.has_value(), "a swap engine has fewer calls than a mover has flights");
  QUIRE_TRY_ASSIGN(flight.band_events, flight.pool.engine->band_events(*flight.ticket));
  return {};
}

// Only the last one can, since the next one begins behind its bands.
bool DeviceFlights::lacks_bands() const {
  if (flights_.empty()) return false;
  const Flight& last = flights_.back();
  return last.ticket && last.band_events.size() < last.order.band_count;
}

bool DeviceFlights::start_next_band() {
  if (!lacks_bands()) return false;
  Flight& flight = flights_.back();
  SwapEngine& engine = *flight.pool.engine;
  if (const Result<bool> started = engine.start_next_band(*flight.ticket); started) {
    flight.band_events = engine.band_events(*flight.ticket).value();
  } else {
    flight.ticket.reset();  // what was begun has ended
    flight.fault = TransferFault::Io;
  }
  return true;
}

// Whether the device has done with its pages.
bool DeviceFlights::is_over(Flight& flight) {
  if (!flight.ticket) return true;
  SwapEngine& engine = *flight.pool.engine;
  const Result<bool> is_done = engine.is_done(*flight.ticket);
  if (is_done && !*is_done) return false;
  if (!is_done) {
    // It cannot say, which does not mean that it has ended.
    flight.fault = TransferFault::Io;
    const SwapStreams& streams = flight.streams;
    for (const DeviceStream stream : {streams.copies, streams.kernels, streams.more_kernels}) {
      if (stream.handle != nullptr) (void)device_.synchronize(stream);
    }
  }
  const Result<SwapReport> report = engine.finish(*flight.ticket);
  if (!report && report.error().code == ErrorCode::Unavailable) return false;  // still on its way
  flight.ticket.reset();
  if (report && is_done) {
    flight.report = *report;
  } else {
    flight.fault = TransferFault::Io;
  }
  return true;
}

bool DeviceFlights::learn_bands(Flight& flight) {
  const std::uint32_t told_before = flight.bands_told;
  // The last band comes with the end.
  while (flight.ticket && flight.fault == TransferFault::None && flight.bands_told + 1 < flight.order.band_count) {
    const Result<bool> has_arrived = flight.pool.engine->has_arrived(*flight.ticket, flight.bands_told);
    if (!has_arrived || !*has_arrived) break;
    ++flight.bands_told;
  }
  return flight.bands_told != told_before;
}

std::optional<FlightNews> DeviceFlights::poll() {
  for (auto it = flights_.begin(); it != flights_.end(); ++it) {
    Flight& flight = *it;
    FlightNews news{.index = flight.order.index, .band_events = flight.band_events};
    if (is_over(flight)) {
      news.completion = end(flight);
      flights_.erase(it);
      return news;
    }
    news.has_fault = flight.fault != TransferFault::None;
    const bool has_new_fault = news.has_fault && !std::exchange(flight.is_fault_told, news.has_fault);
    const bool has_new_bands = learn_bands(flight);
    news.bands_done = flight.bands_told;
    const bool has_new_events = flight.events_told != flight.band_events.size();
    flight.events_told = flight.band_events.size();
    if (has_new_fault || has_new_bands || has_new_events) return news;
  }
  return std::nullopt;
}

Completion DeviceFlights::end(Flight& flight) {
  const FlightOrder& order = flight.order;
  Completion completion{.id = order.id, .kind = order.kind, .fault = flight.fault, .rank = rank_};
  std::uint32_t good_pages = 0;
  std::span<const std::uint64_t> checksums;
  if (flight.report) {
    good_pages = flight.report->good_pages;
    checksums = flight.report->checksums;
    completion.moved_bytes = flight.claimed * flight.pool.engine->record_bytes();
    if (good_pages < flight.claimed) completion.fault = TransferFault::Checksum;
  }
  const bool is_cancelled = order.must_stop->load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < flight.claimed; ++i) {
    const bool is_good = i < good_pages && !is_cancelled;
    release(flight, i, is_good ? std::optional(checksums.empty() ? 0 : checksums[i]) : std::nullopt);
  }
  if (is_cancelled) {
    completion.outcome = TransferOutcome::Cancelled;
    completion.fault = TransferFault::None;
  } else {
    completion.good_pages = good_pages;
    if (completion.fault != TransferFault::None) completion.outcome = TransferOutcome::Failed;
  }
  // Until the one before it had ended, it waited for that on the streams.
  const Clock::time_point begin = std::max(flight.begin, last_end_);
  last_end_ = Clock::now();
  const auto busy_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(last_end_ - begin).count();
  completion.busy_ns = std::max<TimeNs>(1, busy_ns);  // 0 would mean unknown.
  return completion;
}

// What a store has brought has this checksum, or there is nothing.
void DeviceFlights::release(const Flight& flight, std::uint32_t page_index, std::optional<std::uint64_t> checksum) {
  const PageTransfer& page = flight.order.pages[page_index];
  if (flight.order.kind == TransferKind::Load) {
    flight.pool.host->end_read(page);
  } else {
    flight.pool.host->end_write(page, checksum);
  }
}

}  // namespace quire
