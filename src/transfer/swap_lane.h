// SPDX-License-Identifier: Apache-2.0
//
// SwapLane: the loads or the stores of a SwapEngine: its staging ring, the calls on their way, and what they put on
// streams. Between streams there are events only, each about work that was put on a stream before, so no stream ever
// waits for something that a full queue could hold back.
//
//     load    copies    [wait for the slot] copy records to the slot ─┐            next slot …
//             kernels                                                 └► scatter the slot's records ─► slot is free
//     store   kernels   [wait for the slot] gather fragments ─┐
//             copies                                          └► copy the slot's records ─► slot is free
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/device.h"
#include "quire/swap.h"
#include "store/device_memory.h"
#include "transfer/swap_layout.h"

namespace quire {

/// Of a direction's ring, where nobody says: so much that the link still has work while kernels of the engine's hold
/// all multiprocessors for one or two milliseconds.
inline constexpr std::uint64_t kStagingBytes = std::uint64_t{96} << 20U;

class SwapLane {
 public:
  SwapLane(const SwapConfig& config, const SwapLayout& layout, TransferKind kind);
  ~SwapLane();
  SwapLane(const SwapLane&) = delete;
  SwapLane& operator=(const SwapLane&) = delete;

  /// Takes all memory and events. `pieces` are the layout's, on the device.
  [[nodiscard]] Status open(const Fragment* pieces, const SwapPaths& paths);

  [[nodiscard]] Result<std::optional<SwapTicket>> try_start(const SwapOrder& order);
  [[nodiscard]] Result<bool> start_next_band(SwapTicket ticket);
  [[nodiscard]] Result<std::span<const DeviceEvent>> band_events(SwapTicket ticket);
  [[nodiscard]] Result<bool> has_arrived(SwapTicket ticket, std::uint32_t band);
  [[nodiscard]] Status wait_on(DeviceStream stream, SwapTicket ticket, std::uint32_t band);
  [[nodiscard]] Result<bool> is_done(SwapTicket ticket);
  /// Until a call is done of which all bands are on their streams. Blocks.
  [[nodiscard]] Status wait_for(SwapTicket ticket);
  [[nodiscard]] Result<SwapReport> finish(SwapTicket ticket);
  [[nodiscard]] const SwapPaths& paths() const { return paths_; }

 private:
  static constexpr std::size_t kSlotCountMin = 3;

  // What a call needs until it is finished.
  struct Call {
    std::uint32_t generation = 0;
    bool is_on_its_way = false;
    bool has_expected = false;
    bool ends_with_its_band = false;  // the event of its only band is that of its end
    SwapPath path = SwapPath::Direct;
    std::uint32_t page_count = 0;
    std::uint32_t band_count = 0;
    std::uint32_t bands_started = 0;  // the others are not on the streams yet
    SwapStreams streams;
    /// The last event on the second kernel stream that the first one has not waited for.
    std::optional<DeviceEvent> apart;
    DeviceEvent done;                // behind the last band
    std::vector<DeviceEvent> bands;  // one for each layer
    std::span<SwapItem> items;       // that the host writes
    SwapItem* items_on_device = nullptr;
    const SwapItem* kernel_items = nullptr;  // of the two, those that kernels read
    std::uint64_t* sums = nullptr;           // on the device
    std::uint32_t* blocks_done = nullptr;    // on the device
    std::span<std::uint64_t> checksums;      // that the device writes
    std::uint64_t* first_bad = nullptr;
  };
  struct Slot {
    std::byte* data = nullptr;
    DeviceEvent is_filled;
    DeviceEvent is_free;
  };
  // Which targets a call has named, and at which place, without clearing anything between calls.
  struct Named {
    std::uint32_t call = 0;
    std::uint32_t place = 0;
  };

  [[nodiscard]] Status check(const SwapOrder& order);
  [[nodiscard]] Status check_ids(const SwapOrder& order);
  [[nodiscard]] Result<Call*> find(SwapTicket ticket);
  [[nodiscard]] Result<Call*> find(SwapTicket ticket, std::uint32_t band);
  [[nodiscard]] Status begin(const SwapOrder& order, Call& call);
  [[nodiscard]] Status run_next_band(Call& call);
  [[nodiscard]] bool has_kernels(const Call& call) const { return call.path != SwapPath::Whole || config_.checksums; }
  [[nodiscard]] Status upload(Call& call);
  [[nodiscard]] Status run_whole(Call& call, std::uint32_t band);
  [[nodiscard]] Status run_staged(Call& call, std::uint32_t band);
  [[nodiscard]] Status run_direct(Call& call, std::uint32_t band);
  [[nodiscard]] Status copy_slot(const Call& call, const Slot& slot, std::uint32_t first_item, std::uint32_t count);
  [[nodiscard]] Status copy_stretches(const Call& call, std::uint32_t first_item, std::uint32_t count);
  [[nodiscard]] Status flush_copies(DeviceStream stream);
  [[nodiscard]] MoveFragmentsParams kernel_params(Call& call, std::uint32_t first_item, std::uint32_t count) const;
  [[nodiscard]] Status put_behind(DeviceStream earlier, DeviceStream later);
  [[nodiscard]] Status join_kernels(Call& call);
  void use_band(std::uint32_t band_count, std::uint32_t band_index);
  [[nodiscard]] Result<bool> has_ended(const Call& call);
  [[nodiscard]] bool finishes_by_itself(const Call& call) const;
  [[nodiscard]] FinishChecksumsParams finish_params(Call& call) const;
  [[nodiscard]] Status end(Call& call);
  void add_copy(std::byte* on_device, std::byte* on_host, std::size_t bytes);
  [[nodiscard]] std::byte* record_of(const SwapItem& item) const;
  [[nodiscard]] std::uint32_t pages_per_chunk(const Call& call, std::uint64_t page_bytes,
                                              std::uint64_t chunk_max) const;
  [[nodiscard]] tl::unexpected<Error> break_off(Call& call, const Error& error);
  void give_up(Call& call);
  void settle(const SwapStreams& streams);

  const SwapConfig& config_;
  const SwapLayout& layout_;
  Device& device_;
  TransferKind kind_;
  SwapPaths paths_;
  const Fragment* pieces_ = nullptr;  // on the device

  DeviceMemoryBlock staging_;
  std::uint64_t slot_bytes_ = 0;
  std::vector<Slot> slots_;
  std::size_t next_slot_ = 0;
  DeviceEvent uploaded_;
  DeviceEvent joined_;

  DeviceMemoryBlock device_items_;
  DeviceMemoryBlock sums_;
  DeviceMemoryBlock blocks_done_;
  RegisteredMemory host_items_;
  RegisteredMemory results_;
  std::vector<Call> calls_;
  SwapBand band_;
  std::uint32_t band_count_ = 0;  // that band_ is one of
  std::uint32_t band_index_ = 0;

  std::vector<std::byte*> copy_targets_;
  std::vector<const std::byte*> copy_sources_;
  std::vector<std::size_t> copy_bytes_;

  std::vector<Named> named_;  // by target
  std::uint32_t named_call_ = 0;
  std::optional<Error> broken_;  // what further calls are told
};

}  // namespace quire
