// SPDX-License-Identifier: Apache-2.0
//
// DeviceFlights: one direction of a mover whose pages lie on a device. Transfers are put on streams, several behind
// each other so that the link is never idle, and watched by their events; nobody waits for the device, unless that
// fails. Band by band, because it takes a while to put many pages there: what has become of the others can be told in
// between. All bands of a transfer come before the first one of the next. A page of the host is claimed from the start
// of its transfer to its end, as long as the device may touch it. A transfer that is cancelled while its first band is
// being put moves nothing; from then on it goes its way, and is forgotten.
//
// single-threaded
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/device.h"
#include "quire/mover.h"
#include "quire/result.h"
#include "quire/swap.h"
#include "quire/transfer.h"
#include "store/host_pages.h"
#include "transfer/mover_peer.h"

namespace quire {

/// The pages of one of the mover's pools, on both sides.
struct FlightPool {
  HostPages* host = nullptr;
  SwapEngine* engine = nullptr;
};

struct FlightOrder {
  std::uint32_t index = 0;  ///< the mover's own
  TransferId id;
  TransferKind kind = TransferKind::Load;
  std::uint32_t band_count = 1;
  std::span<const PageTransfer> pages;  ///< valid until the transfer is over
  const std::atomic<bool>* must_stop = nullptr;
};

/// What has become of a transfer since it was last asked about.
struct FlightNews {
  std::uint32_t index = 0;
  std::span<const DeviceEvent> band_events;  ///< of the bands that are on the streams; valid as SwapEngine has it
  std::uint32_t bands_done = 0;
  bool has_fault = false;
  std::optional<Completion> completion;  ///< it is over
};

class DeviceFlights {
 public:
  static constexpr std::uint32_t kFlightsMax = TransferStreams::kSetCountMax;

  [[nodiscard]] static Result<std::unique_ptr<DeviceFlights>> create(Device& device, const TransferStreams& streams,
                                                                     std::uint32_t transfer_pages_max,
                                                                     const MoverHooks& hooks, std::uint16_t rank);
  ~DeviceFlights();
  DeviceFlights(const DeviceFlights&) = delete;
  DeviceFlights& operator=(const DeviceFlights&) = delete;

  /// For another one, behind all bands of those that are there.
  [[nodiscard]] bool has_room() const { return flights_.size() < kFlightsMax && !lacks_bands(); }
  [[nodiscard]] bool is_empty() const { return flights_.empty(); }
  /// Needs room. Puts its first band on the streams. What became of it is told by poll(), also when it could not be
  /// started.
  void start(const FlightOrder& order, const FlightPool& pool);
  /// Puts one more band on the streams, of the transfer that lacks some; false when none does.
  [[nodiscard]] bool start_next_band();
  /// Something new of one of them, the oldest first, if there is.
  [[nodiscard]] std::optional<FlightNews> poll();

 private:
  using Clock = std::chrono::steady_clock;
  struct Flight {
    FlightOrder order;
    FlightPool pool;
    SwapStreams streams;
    std::optional<SwapTicket> ticket;
    std::optional<SwapReport> report;  // when that is spent
    std::uint32_t claimed = 0;         // pages in front
    TransferFault fault = TransferFault::None;
    std::span<const DeviceEvent> band_events;
    std::size_t events_told = 0;
    std::uint32_t bands_told = 0;
    bool is_fault_told = false;
    Clock::time_point begin;
  };

  DeviceFlights(Device& device, const MoverHooks& hooks, std::uint16_t rank)
      : device_(device), hooks_(hooks), rank_(rank) {}
  [[nodiscard]] TransferFault claim(Flight& flight, std::uint32_t page_index);
  [[nodiscard]] Status put_on_streams(Flight& flight);
  [[nodiscard]] bool lacks_bands() const;
  [[nodiscard]] bool is_over(Flight& flight);
  [[nodiscard]] bool learn_bands(Flight& flight);
  [[nodiscard]] Completion end(Flight& flight);
  void release(const Flight& flight, std::uint32_t page_index, std::optional<std::uint64_t> checksum);

  Device& device_;
  const MoverHooks& hooks_;
  std::uint16_t rank_;
  std::vector<SwapStreams> streams_;  // taken in turn
  bool owns_streams_ = false;
  std::size_t next_streams_ = 0;
  std::vector<Flight> flights_;  // oldest first
  Clock::time_point last_end_;   // of any of them
  // Of the transfer that is being started.
  std::vector<PageId> device_pages_;
  std::vector<RecordId> records_;
  std::vector<std::uint64_t> expected_;
};

}  // namespace quire
