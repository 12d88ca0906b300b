// SPDX-License-Identifier: Apache-2.0
#include "transfer/device_flights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire {

Result<std::unique_ptr<DeviceFlights>> DeviceFlights::create(Device& device, std::uint32_t transfer_pages_max,
                                                             const MoverHooks& hooks, std::uint16_t rank) {
  auto flights = std::unique_ptr<DeviceFlights>(new DeviceFlights(device, hooks, rank));
  for (DeviceStream* const stream :
       {&flights->streams_.copies, &flights->streams_.kernels, &flights->streams_.more_kernels}) {
    QUIRE_TRY_ASSIGN(*stream, device.create_stream(StreamPriority::High));
  }
  flights->flights_.reserve(kFlightsMax);
  flights->device_pages_.reserve(transfer_pages_max);
  flights->host_pages_.reserve(transfer_pages_max);
  flights->expected_.reserve(transfer_pages_max);
  return flights;
}

DeviceFlights::~DeviceFlights() {
  for (const DeviceStream stream : {streams_.copies, streams_.kernels, streams_.more_kernels}) {
    if (stream.handle != nullptr) device_.destroy_stream(stream);
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
  host_pages_.push_back(PageId{page.host_page.value - 1});
  if (checksum) expected_.push_back(*checksum);
  ++flight.claimed;
  return TransferFault::None;
}

// Of a path, what lies behind the first page that fails is of no use.
void DeviceFlights::start(const FlightOrder& order, const FlightPool& pool) {
  QUIRE_CHECK(has_room(), "more transfers on their way than there is room for");
  Flight& flight = flights_.emplace_back();
  flight.order = order;
  flight.pool = pool;
  flight.begin = Clock::now();
  device_pages_.clear();
  host_pages_.clear();
  expected_.clear();
  for (std::uint32_t i = 0; i < order.pages.size() && flight.fault == TransferFault::None; ++i) {
    flight.fault = claim(flight, i);
  }
  if (flight.claimed == 0) return;
  if (const Status status = put_on_streams(flight); !status) {
    for (std::uint32_t i = 0; i < flight.claimed; ++i) release(flight, i, std::nullopt);
    flight.claimed = 0;
    flight.fault = TransferFault::Io;
  }
}

Status DeviceFlights::put_on_streams(Flight& flight) {
  QUIRE_TRY_ASSIGN(flight.ticket, flight.pool.engine->try_start({.kind = flight.order.kind,
                                                                 .device_pages = device_pages_,
                                                                 .host_pages = host_pages_,
                                                                 .expected = expected_,
                                                                 .band_count = flight.order.band_count,
                                                                 .streams = streams_}));
  QUIRE_CHECK(flight.ticket.has_value(), "a swap engine has fewer calls than a mover has flights");
  return {};
}

bool DeviceFlights::learn_bands(Flight& flight) {
  const std::uint32_t told_before = flight.bands_told;
  // The last band comes with the end.
  while (flight.fault == TransferFault::None && flight.bands_told + 1 < flight.order.band_count) {
    const Result<bool> has_arrived = flight.pool.engine->has_arrived(*flight.ticket, flight.bands_told);
    if (!has_arrived || !*has_arrived) break;
    ++flight.bands_told;
  }
  return flight.bands_told != told_before;
}

std::optional<FlightNews> DeviceFlights::poll() {
  for (auto it = flights_.begin(); it != flights_.end(); ++it) {
    Flight& flight = *it;
    FlightNews news{.index = flight.order.index};
    bool is_new = flight.fault != TransferFault::None && !flight.is_fault_told;
    flight.is_fault_told = flight.fault != TransferFault::None;
    bool is_over = !flight.ticket.has_value();
    if (flight.ticket) {
      const Result<bool> is_done = flight.pool.engine->is_done(*flight.ticket);
      is_over = !is_done || *is_done;
      if (!is_over) is_new = learn_bands(flight) || is_new;
    }
    if (!is_over && !is_new) continue;
    if (is_over) {
      news.completion = end(flight);
      news.has_fault = news.completion->fault != TransferFault::None;
      news.bands_done = flight.bands_told;
      flights_.erase(it);
      return news;
    }
    news.has_fault = flight.fault != TransferFault::None;
    news.bands_done = flight.bands_told;
    return news;
  }
  return std::nullopt;
}

Completion DeviceFlights::end(Flight& flight) {
  const FlightOrder& order = flight.order;
  Completion completion{.id = order.id, .kind = order.kind, .fault = flight.fault, .rank = rank_};
  std::uint32_t good_pages = 0;
  std::span<const std::uint64_t> checksums;
  if (flight.ticket) {
    const Result<SwapReport> report = flight.pool.engine->finish(*flight.ticket);
    if (report) {
      good_pages = report->good_pages;
      checksums = report->checksums;
      completion.moved_bytes = flight.claimed * flight.pool.engine->record_bytes();
      if (good_pages < flight.claimed) completion.fault = TransferFault::Checksum;
    } else {
      completion.fault = TransferFault::Io;
    }
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
  const auto busy_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - flight.begin).count();
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

Status DeviceFlights::wait_on(DeviceStream stream, TransferId id, std::uint32_t band) {
  const auto flight = std::ranges::find_if(
      flights_, [&](const Flight& each) { return each.order.id == id && each.ticket.has_value(); });
  if (flight == flights_.end()) {
    return fail(ErrorCode::Unavailable, "waiting for a band of a transfer that is not on its way");
  }
  return flight->pool.engine->wait_on(stream, *flight->ticket, band);
}

}  // namespace quire
