// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <utility>

#include "quire/swap.h"
#include "transfer/swap_lane.h"
#include "transfer/swap_layout.h"

namespace quire {
namespace {

// A quarter of an H200: the link is served by 8 of them, and 132 keep the copy engines from memory.
constexpr std::uint32_t kStagedBlocks = 32;
// Enough loads on their way to fill the link: 8 are nearly enough, and twice as many bring nothing in one direction
// (H200, PCIe 5).
constexpr std::uint32_t kDirectBlocks = 16;
constexpr std::uint32_t kCallPagesMax = 1U << 20U;
constexpr std::uint32_t kCallsMax = 1024;

Status check_between(std::string_view name, std::uint64_t value, std::uint64_t value_max) {
  if (value >= 1 && value <= value_max) return {};
  return invalid_swap("SwapConfig::" + std::string(name) + " is " + std::to_string(value) + ": give 1 to " +
                      std::to_string(value_max));
}

}  // namespace

std::string_view to_string(SwapPath path) {
  switch (path) {
    case SwapPath::Whole:
      return "whole";
    case SwapPath::Staged:
      return "staged";
    case SwapPath::Direct:
      return "direct";
  }
  return "unknown";
}

Status SwapConfig::validate() const {
  constexpr std::uint64_t kPagesMax = PageId::kNoneValue;
  if (device == nullptr) return invalid_swap("SwapConfig::device is missing");
  if (records == nullptr) return invalid_swap("SwapConfig::records is missing: say where the host's records lie");
  QUIRE_TRY(check_between("device_page_count", device_page_count, kPagesMax));
  QUIRE_TRY(check_between("record_count", record_count, kPagesMax));
  QUIRE_TRY(check_between("call_pages_max", call_pages_max, kCallPagesMax));
  QUIRE_TRY(check_between("calls_in_flight_max", calls_in_flight_max, kCallsMax));
  QUIRE_TRY(SwapLayout::create(*this));
  return {};
}

struct SwapEngine::Impl {
  Impl(SwapConfig the_config, SwapLayout the_layout)
      : config(std::move(the_config)),
        layout(std::move(the_layout)),
        load(config, layout, TransferKind::Load),
        store(config, layout, TransferKind::Store) {}

  [[nodiscard]] Status open();
  [[nodiscard]] Result<SwapLane*> lane(TransferKind kind);

  SwapConfig config;
  SwapLayout layout;
  DeviceMemoryBlock pieces;
  SwapLane load;
  SwapLane store;
};

Status SwapEngine::Impl::open() {
  Device& device = *config.device;
  const std::span<const Fragment> all = layout.pieces();
  QUIRE_TRY_ASSIGN(pieces, DeviceMemoryBlock::allocate(device, all.size_bytes()));
  QUIRE_TRY_ASSIGN(const RegisteredMemory source,
                   RegisteredMemory::allocate(device, all.size_bytes(), all.size_bytes()));
  std::memcpy(source.data(), all.data(), all.size_bytes());
  QUIRE_TRY_ASSIGN(const DeviceStream stream, device.create_stream(StreamPriority::High));
  Status copied = device.copy(pieces.data(), source.data(), all.size_bytes(), stream);
  const Status settled = device.synchronize(stream);
  device.destroy_stream(stream);
  QUIRE_TRY(std::move(copied));
  QUIRE_TRY(settled);
  if (!config.load_paths || !config.store_paths) {
    QUIRE_TRY_ASSIGN(const std::vector<SwapTiming> timings, measure_swaps(config));
    if (!config.load_paths) config.load_paths = choose_paths(timings, TransferKind::Load);
    if (!config.store_paths) config.store_paths = choose_paths(timings, TransferKind::Store);
  }
  const auto* const on_device = reinterpret_cast<const Fragment*>(pieces.data());
  QUIRE_TRY(load.open(on_device, *config.load_paths));
  return store.open(on_device, *config.store_paths);
}

Result<SwapLane*> SwapEngine::Impl::lane(TransferKind kind) {
  if (kind == TransferKind::Load) return &load;
  if (kind == TransferKind::Store) return &store;
  return invalid_swap("a swap is a load or a store");
}

SwapEngine::SwapEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SwapEngine::~SwapEngine() = default;

Result<std::unique_ptr<SwapEngine>> SwapEngine::open(const SwapConfig& config) {
  QUIRE_TRY(config.validate());
  QUIRE_TRY_ASSIGN(SwapLayout layout, SwapLayout::create(config));
  SwapConfig resolved = config;
  if (resolved.staging_bytes == 0) resolved.staging_bytes = kStagingBytes;
  if (resolved.staged_blocks == 0) resolved.staged_blocks = kStagedBlocks;
  if (resolved.direct_blocks == 0) resolved.direct_blocks = kDirectBlocks;
  auto impl = std::make_unique<Impl>(std::move(resolved), std::move(layout));
  QUIRE_TRY(impl->open());
  return std::unique_ptr<SwapEngine>(new SwapEngine(std::move(impl)));
}

Result<std::optional<SwapTicket>> SwapEngine::try_start(const SwapOrder& order) {
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(order.kind));
  return lane->try_start(order);
}

Result<bool> SwapEngine::start_next_band(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(ticket.kind));
  return lane->start_next_band(ticket);
}

Result<std::span<const DeviceEvent>> SwapEngine::band_events(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(ticket.kind));
  return lane->band_events(ticket);
}

Result<bool> SwapEngine::has_arrived(SwapTicket ticket, std::uint32_t band) {
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(ticket.kind));
  return lane->has_arrived(ticket, band);
}

Status SwapEngine::wait_on(DeviceStream stream, SwapTicket ticket, std::uint32_t band) {
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(ticket.kind));
  return lane->wait_on(stream, ticket, band);
}

Result<bool> SwapEngine::is_done(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(ticket.kind));
  return lane->is_done(ticket);
}

Result<SwapReport> SwapEngine::finish(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(ticket.kind));
  return lane->finish(ticket);
}

Result<SwapReport> SwapEngine::swap(const SwapOrder& order) {
  SwapOrder whole = order;
  whole.band_by_band = false;
  QUIRE_TRY_ASSIGN(const std::optional<SwapTicket> ticket, try_start(whole));
  if (!ticket) {
    return fail(ErrorCode::Unavailable,
                "as many swaps are on their way as SwapConfig::calls_in_flight_max allows: "
                "finish() one first");
  }
  QUIRE_TRY_ASSIGN(SwapLane * lane, impl_->lane(order.kind));
  QUIRE_TRY(lane->wait_for(*ticket));
  return lane->finish(*ticket);
}

const SwapPaths& SwapEngine::paths(TransferKind kind) const {
  return kind == TransferKind::Load ? impl_->load.paths() : impl_->store.paths();
}

std::uint64_t SwapEngine::record_bytes() const {
  return impl_->layout.record_bytes();
}

std::uint32_t SwapEngine::layer_count() const {
  return impl_->layout.layer_count();
}

}  // namespace quire
