// SPDX-License-Identifier: Apache-2.0
#include "transfer/swap_lane.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::uint64_t kSlotAlignment = 256;
// Less than this in a slot costs more in calls than the overlap brings.
constexpr std::uint64_t kChunkBytesMin = std::uint64_t{8} << 20U;
// A call is cut into so many pieces, if they are not too small or too large: behind the last copy of a load, only the
// last piece is still to be scattered.
constexpr std::uint64_t kChunksWanted = 4;
// So few items are read where the host has written them: a copy ahead of the first kernel would take longer.
constexpr std::uint32_t kItemsReadOnHost = 16;

template <typename Id>
struct IdList {
  std::string_view name;
  std::string_view what;  // they are numbers of
  std::span<const Id> ids;
  std::uint32_t count = 0;  // of those that there are
};

template <typename Id>
Status check_range(const IdList<Id>& list) {
  for (std::size_t i = 0; i < list.ids.size(); ++i) {
    if (list.ids[i].value < list.count) continue;
    return invalid_swap(std::string(list.name) + "[" + std::to_string(i) + "] is " + std::to_string(list.ids[i].value) +
                        ": " + std::string(list.what) + " lie in [0, " + std::to_string(list.count) + ")");
  }
  return {};
}

}  // namespace

SwapLane::SwapLane(const SwapConfig& config, const SwapLayout& layout, TransferKind kind)
    : config_(config), layout_(layout), device_(*config.device), kind_(kind) {}

SwapLane::~SwapLane() {
  for (const Call& call : calls_) {
    if (call.is_on_its_way) settle(call.streams);
  }
  const auto destroy = [&](DeviceEvent event) {
    if (event.handle != nullptr) device_.destroy_event(event);
  };
  for (const Slot& slot : slots_) {
    destroy(slot.is_filled);
    destroy(slot.is_free);
  }
  for (const Call& call : calls_) {
    destroy(call.done);
    for (const DeviceEvent event : call.bands) destroy(event);
  }
  destroy(uploaded_);
  destroy(joined_);
}

Status SwapLane::open(const Fragment* pieces, const SwapPaths& paths) {
  pieces_ = pieces;
  paths_ = paths;
  const std::uint64_t record_room = round_up(layout_.record_bytes(), kSlotAlignment);
  const std::uint64_t third = config_.staging_bytes / kSlotCountMin / kSlotAlignment * kSlotAlignment;
  slot_bytes_ = std::max(record_room, std::min(third, config_.slot_bytes_max));
  slots_.resize(std::max<std::size_t>(kSlotCountMin, config_.staging_bytes / slot_bytes_));
  QUIRE_TRY_ASSIGN(staging_, DeviceMemoryBlock::allocate(device_, slot_bytes_ * slots_.size()));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].data = staging_.data() + (i * slot_bytes_);
    QUIRE_TRY_ASSIGN(slots_[i].is_filled, device_.create_event());
    QUIRE_TRY_ASSIGN(slots_[i].is_free, device_.create_event());
  }
  QUIRE_TRY_ASSIGN(uploaded_, device_.create_event());
  QUIRE_TRY_ASSIGN(joined_, device_.create_event());

  const std::uint32_t pages_max = config_.call_pages_max;
  const std::size_t call_count = config_.calls_in_flight_max;
  const std::size_t item_bytes = pages_max * sizeof(SwapItem);
  const std::size_t result_bytes = (pages_max + 1) * sizeof(std::uint64_t);
  QUIRE_TRY_ASSIGN(device_items_, DeviceMemoryBlock::allocate(device_, call_count * item_bytes));
  QUIRE_TRY_ASSIGN(sums_, DeviceMemoryBlock::allocate(device_, call_count * pages_max * sizeof(std::uint64_t)));
  QUIRE_TRY_ASSIGN(blocks_done_, DeviceMemoryBlock::allocate(device_, call_count * sizeof(std::uint32_t)));
  QUIRE_TRY_ASSIGN(host_items_, RegisteredMemory::allocate(device_, call_count * item_bytes, item_bytes));
  QUIRE_TRY_ASSIGN(results_, RegisteredMemory::allocate(device_, call_count * result_bytes, result_bytes));
  calls_.resize(call_count);
  for (std::size_t i = 0; i < call_count; ++i) {
    Call& call = calls_[i];
    call.items = {reinterpret_cast<SwapItem*>(host_items_.data() + (i * item_bytes)), pages_max};
    call.items_on_device = reinterpret_cast<SwapItem*>(device_items_.data() + (i * item_bytes));
    call.sums = reinterpret_cast<std::uint64_t*>(sums_.data()) + (i * pages_max);
    call.blocks_done = reinterpret_cast<std::uint32_t*>(blocks_done_.data()) + i;
    auto* const results = reinterpret_cast<std::uint64_t*>(results_.data() + (i * result_bytes));
    call.checksums = {results, pages_max};
    call.first_bad = results + pages_max;
    QUIRE_TRY_ASSIGN(call.done, device_.create_event());
    for (std::uint32_t l = 0; l < layout_.layer_count(); ++l) {
      QUIRE_TRY_ASSIGN(const DeviceEvent event, device_.create_event());
      call.bands.push_back(event);
    }
  }
  const std::size_t copies_max = std::size_t{pages_max} * std::max(1U, layout_.stretch_count());
  copy_targets_.reserve(copies_max);
  copy_sources_.reserve(copies_max);
  copy_bytes_.reserve(copies_max);
  band_.stretches.reserve(layout_.pieces().size());
  named_.resize(kind_ == TransferKind::Load ? config_.device_page_count : config_.record_count);
  return {};
}

Status SwapLane::check(const SwapOrder& order) {
  if (order.device_pages.size() != order.records.size()) {
    return invalid_swap("device_pages has " + std::to_string(order.device_pages.size()) + " pages and records " +
                        std::to_string(order.records.size()) + ": give as many of each");
  }
  if (!order.expected.empty()) {
    if (kind_ == TransferKind::Store || !config_.checksums) {
      return invalid_swap(kind_ == TransferKind::Store ? "expected is for loads: a store makes checksums"
                                                       : "expected is given, and SwapConfig::checksums is off");
    }
    if (order.expected.size() != order.records.size()) {
      return invalid_swap("expected has " + std::to_string(order.expected.size()) + " checksums for " +
                          std::to_string(order.records.size()) + " pages: give one for each, or none");
    }
  }
  if (order.device_pages.size() > config_.call_pages_max) {
    return invalid_swap("device_pages has " + std::to_string(order.device_pages.size()) +
                        " pages: SwapConfig::call_pages_max is " + std::to_string(config_.call_pages_max));
  }
  if (order.band_count == 0 || order.band_count > layout_.layer_count()) {
    return invalid_swap("band_count is " + std::to_string(order.band_count) + ": give 1 to " +
                        std::to_string(layout_.layer_count()) + ", a layer at least for each");
  }
  if (order.streams.copies.handle == nullptr) {
    return invalid_swap("streams.copies is missing: work goes on streams of the caller's, never on the default stream");
  }
  return check_ids(order);
}

Status SwapLane::check_ids(const SwapOrder& order) {
  QUIRE_TRY(check_range<PageId>(
      {.name = "device_pages", .what = "pages", .ids = order.device_pages, .count = config_.device_page_count}));
  QUIRE_TRY(check_range<RecordId>(
      {.name = "records", .what = "records", .ids = order.records, .count = config_.record_count}));
  const bool is_load = kind_ == TransferKind::Load;
  const std::string_view name = is_load ? "device_pages" : "records";
  if (++named_call_ == 0) {
    std::ranges::fill(named_, Named{});
    named_call_ = 1;
  }
  for (std::uint32_t i = 0; i < order.records.size(); ++i) {
    const std::uint32_t target = is_load ? order.device_pages[i].value : order.records[i].value;
    Named& named = named_[target];
    if (named.call == named_call_) {
      return invalid_swap(std::string(name) + "[" + std::to_string(i) + "] is " + std::to_string(target) + ", as " +
                          std::string(name) + "[" + std::to_string(named.place) +
                          "] is: two pages cannot go to one place");
    }
    named = {.call = named_call_, .place = i};
  }
  return {};
}

Result<std::optional<SwapTicket>> SwapLane::try_start(const SwapOrder& order) {
  if (broken_) return tl::unexpected(*broken_);
  QUIRE_TRY(check(order));
  const auto free_call = std::ranges::find(calls_, false, &Call::is_on_its_way);
  if (free_call == calls_.end()) return std::nullopt;
  Call& call = *free_call;
  ++call.generation;
  call.page_count = static_cast<std::uint32_t>(order.device_pages.size());
  call.band_count = order.band_count;
  call.bands_started = 0;
  call.path = order.path.value_or(call.page_count <= paths_.few_pages_max ? paths_.few : paths_.many);
  call.has_expected = !order.expected.empty();
  call.apart.reset();
  call.streams = order.streams;
  if (call.streams.kernels.handle == nullptr) call.streams.kernels = call.streams.copies;
  if (call.streams.more_kernels.handle == nullptr) call.streams.more_kernels = call.streams.kernels;
  if (const Status status = begin(order, call); !status) return break_off(call, status.error());
  const std::uint32_t bands = order.band_by_band ? 1 : call.band_count;
  while (call.bands_started < bands) {
    if (const Status status = run_next_band(call); !status) return break_off(call, status.error());
  }
  call.is_on_its_way = true;
  return SwapTicket{
      .kind = kind_, .index = static_cast<std::uint32_t>(free_call - calls_.begin()), .generation = call.generation};
}

Result<bool> SwapLane::start_next_band(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(Call * call, find(ticket));
  if (call->bands_started == call->band_count) return false;
  if (broken_) {
    give_up(*call);
    return tl::unexpected(*broken_);
  }
  if (const Status status = run_next_band(*call); !status) return break_off(*call, status.error());
  return true;
}

// What was begun must not write to pages that the caller believes to be its own.
void SwapLane::give_up(Call& call) {
  settle(call.streams);
  call.is_on_its_way = false;
}

// The device has failed.
tl::unexpected<Error> SwapLane::break_off(Call& call, const Error& error) {
  give_up(call);
  const std::string_view kinds = kind_ == TransferKind::Load ? "loads" : "stores";
  broken_ = Error{error.code, "no more " + std::string(kinds) + ", since the device has failed: " + error.message};
  return tl::unexpected(error);
}

void SwapLane::settle(const SwapStreams& streams) {
  (void)device_.synchronize(streams.copies);
  if (streams.kernels != streams.copies) (void)device_.synchronize(streams.kernels);
  if (streams.more_kernels != streams.kernels) (void)device_.synchronize(streams.more_kernels);
}

// What comes ahead of the bands.
Status SwapLane::begin(const SwapOrder& order, Call& call) {
  const bool has_copies = call.path != SwapPath::Direct;
  if (order.after.handle != nullptr) {
    // Not on a stream that this call puts nothing on: others are not to wait with it.
    const bool is_one_stream = call.streams.kernels == call.streams.copies;
    if (has_copies) QUIRE_TRY(device_.wait(call.streams.copies, order.after));
    if (has_kernels(call) && !(has_copies && is_one_stream)) QUIRE_TRY(device_.wait(call.streams.kernels, order.after));
  }
  for (std::uint32_t i = 0; i < call.page_count; ++i) {
    call.items[i] = {.device_page = order.device_pages[i].value,
                     .host_page = order.records[i].value,
                     .expected = call.has_expected ? order.expected[i] : 0};
  }
  call.ends_with_its_band = call.path == SwapPath::Direct && finishes_by_itself(call);
  return call.page_count != 0 && has_kernels(call) ? upload(call) : Status();
}

Status SwapLane::run_next_band(Call& call) {
  const std::uint32_t band = call.bands_started;
  use_band(call.band_count, band);
  switch (call.path) {
    case SwapPath::Whole:
      QUIRE_TRY(run_whole(call, band));
      break;
    case SwapPath::Staged:
      QUIRE_TRY(run_staged(call, band));
      break;
    case SwapPath::Direct:
      QUIRE_TRY(run_direct(call, band));
      break;
  }
  ++call.bands_started;
  return call.bands_started == call.band_count ? end(call) : Status();
}

// Most calls have one band: it is laid out once.
void SwapLane::use_band(std::uint32_t band_count, std::uint32_t band_index) {
  if (band_count_ == band_count && band_index_ == band_index) return;
  layout_.band(band_count, band_index, band_);
  band_count_ = band_count;
  band_index_ = band_index;
}

// The items go to the device before any kernel of the call. Not on the stream of the copies, where they would wait for
// those of earlier calls.
Status SwapLane::upload(Call& call) {
  call.kernel_items = call.items.data();
  if (call.page_count > kItemsReadOnHost) {
    call.kernel_items = call.items_on_device;
    QUIRE_TRY(device_.copy(reinterpret_cast<std::byte*>(call.items_on_device),
                           reinterpret_cast<const std::byte*>(call.items.data()), call.page_count * sizeof(SwapItem),
                           call.streams.kernels));
  }
  if (call.path != SwapPath::Staged || call.streams.more_kernels == call.streams.kernels) return {};
  QUIRE_TRY(device_.record(uploaded_, call.streams.kernels));
  return device_.wait(call.streams.more_kernels, uploaded_);
}

std::byte* SwapLane::record_of(const SwapItem& item) const {
  return config_.records + (item.host_page * config_.record_stride);
}

void SwapLane::add_copy(std::byte* on_device, std::byte* on_host, std::size_t bytes) {
  const bool is_load = kind_ == TransferKind::Load;
  copy_targets_.push_back(is_load ? on_device : on_host);
  copy_sources_.push_back(is_load ? on_host : on_device);
  copy_bytes_.push_back(bytes);
}

Status SwapLane::flush_copies(DeviceStream stream) {
  const CopyList copies{.targets = copy_targets_, .sources = copy_sources_, .bytes = copy_bytes_};
  const Status status = copy_bytes_.size() == 1
                            ? device_.copy(copy_targets_[0], copy_sources_[0], copy_bytes_[0], stream)
                            : device_.copy_all(copies, stream);
  copy_targets_.clear();
  copy_sources_.clear();
  copy_bytes_.clear();
  return status;
}

Status SwapLane::copy_slot(const Call& call, const Slot& slot, std::uint32_t first_item, std::uint32_t count) {
  const std::uint64_t room = round_up(band_.bytes, kSlotAlignment);
  for (std::uint32_t i = 0; i < count; ++i) {
    add_copy(slot.data + (i * room), record_of(call.items[first_item + i]) + band_.record_begin, band_.bytes);
  }
  return flush_copies(call.streams.copies);
}

Status SwapLane::copy_stretches(const Call& call, std::uint32_t first_item, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const SwapItem& item = call.items[first_item + i];
    for (const Fragment& stretch : band_.stretches) {
      add_copy(stretch.first + (item.device_page * stretch.page_stride), record_of(item) + stretch.record_offset,
               stretch.bytes);
    }
  }
  return flush_copies(call.streams.copies);
}

MoveFragmentsParams SwapLane::kernel_params(Call& call, std::uint32_t first_item, std::uint32_t count) const {
  return {.way = kind_ == TransferKind::Load ? FragmentWay::FromRecords : FragmentWay::ToRecords,
          .access_bytes = layout_.access_bytes(),
          .block_count_max = config_.staged_blocks,
          .fragments = {pieces_ + band_.first_piece, band_.pieces.size()},
          .items = {call.kernel_items + first_item, count},
          .are_items_on_host = call.kernel_items == call.items.data(),
          .sums = {call.sums + first_item, config_.checksums ? count : 0},
          .record_begin = band_.record_begin};
}

std::uint32_t SwapLane::pages_per_chunk(const Call& call, std::uint64_t page_bytes, std::uint64_t chunk_max) const {
  const std::uint64_t wanted = call.page_count * page_bytes / kChunksWanted;
  const std::uint64_t bytes = std::min(std::max(wanted, kChunkBytesMin), chunk_max);
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, bytes / page_bytes));
}

// What comes on `later` runs behind all that is on `earlier` by now.
Status SwapLane::put_behind(DeviceStream earlier, DeviceStream later) {
  if (earlier == later) return {};
  QUIRE_TRY(device_.record(joined_, earlier));
  return device_.wait(later, joined_);
}

Status SwapLane::run_whole(Call& call, std::uint32_t band) {
  const bool is_load = kind_ == TransferKind::Load;
  const SwapStreams& streams = call.streams;
  const std::uint32_t chunk_pages =
      config_.checksums ? pages_per_chunk(call, band_.bytes, slot_bytes_) : std::max(1U, call.page_count);
  for (std::uint32_t first = 0; first < call.page_count; first += chunk_pages) {
    const std::uint32_t count = std::min(chunk_pages, call.page_count - first);
    QUIRE_TRY(copy_stretches(call, first, count));
    if (!config_.checksums) continue;
    if (is_load) QUIRE_TRY(put_behind(streams.copies, streams.kernels));
    MoveFragmentsParams params = kernel_params(call, first, count);
    params.way = FragmentWay::SumOnly;
    QUIRE_TRY(device_.move_fragments(params, streams.kernels));
  }
  if (is_load || !config_.checksums) return device_.record(call.bands[band], streams.copies);
  // Who waits for a store may overwrite its pages: they have been copied by then, and summed too.
  QUIRE_TRY(put_behind(streams.copies, streams.kernels));
  return device_.record(call.bands[band], streams.kernels);
}

Status SwapLane::run_staged(Call& call, std::uint32_t band) {
  const bool is_load = kind_ == TransferKind::Load;
  const SwapStreams& streams = call.streams;
  const std::uint64_t room = round_up(band_.bytes, kSlotAlignment);
  const std::uint32_t chunk_pages = pages_per_chunk(call, room, slot_bytes_);
  for (std::uint32_t first = 0; first < call.page_count; first += chunk_pages) {
    const std::uint32_t count = std::min(chunk_pages, call.page_count - first);
    Slot& slot = slots_[next_slot_ % slots_.size()];
    // Neighbouring pieces on streams of their own: where the engine's kernels hold all multiprocessors, both go as soon
    // as one gives way, while the second of two on one stream would come too late for that.
    const DeviceStream kernels = next_slot_ % 2 == 0 ? streams.kernels : streams.more_kernels;
    ++next_slot_;
    MoveFragmentsParams params = kernel_params(call, first, count);
    params.records = slot.data;
    params.record_stride = room;
    if (is_load) {
      QUIRE_TRY(device_.wait(streams.copies, slot.is_free));
      QUIRE_TRY(copy_slot(call, slot, first, count));
      QUIRE_TRY(device_.record(slot.is_filled, streams.copies));
      QUIRE_TRY(device_.wait(kernels, slot.is_filled));
      QUIRE_TRY(device_.move_fragments(params, kernels));
      QUIRE_TRY(device_.record(slot.is_free, kernels));
    } else {
      QUIRE_TRY(device_.wait(kernels, slot.is_free));
      QUIRE_TRY(device_.move_fragments(params, kernels));
      QUIRE_TRY(device_.record(slot.is_filled, kernels));
      QUIRE_TRY(device_.wait(streams.copies, slot.is_filled));
      QUIRE_TRY(copy_slot(call, slot, first, count));
      QUIRE_TRY(device_.record(slot.is_free, streams.copies));
    }
    if (kernels != streams.kernels) call.apart = is_load ? slot.is_free : slot.is_filled;
  }
  if (!is_load) return device_.record(call.bands[band], streams.copies);
  QUIRE_TRY(join_kernels(call));
  return device_.record(call.bands[band], streams.kernels);
}

// A direct call in one band is one kernel, which can do what another one would have to be waited for.
bool SwapLane::finishes_by_itself(const Call& call) const {
  return config_.checksums && call.band_count == 1 && call.page_count != 0;
}

Status SwapLane::run_direct(Call& call, std::uint32_t band) {
  MoveFragmentsParams params = kernel_params(call, 0, call.page_count);
  params.record_order = RecordOrder::ByHostPage;
  params.records = config_.records + band_.record_begin;
  params.record_stride = config_.record_stride;
  params.block_count_max = config_.direct_blocks;
  if (call.ends_with_its_band) {
    params.finish = finish_params(call);
    params.blocks_done = call.blocks_done;
  }
  if (call.page_count != 0) QUIRE_TRY(device_.move_fragments(params, call.streams.kernels));
  return device_.record(call.bands[band], call.streams.kernels);
}

// What the second kernel stream has done so far comes before what the first one does next.
Status SwapLane::join_kernels(Call& call) {
  if (!call.apart) return {};
  const DeviceEvent event = *call.apart;
  call.apart.reset();
  return device_.wait(call.streams.kernels, event);
}

FinishChecksumsParams SwapLane::finish_params(Call& call) const {
  return {.items = {call.kernel_items, call.page_count},
          .sums = {call.sums, call.page_count},
          .record_bytes = layout_.record_bytes(),
          .checksums = call.checksums.first(call.page_count),
          .first_bad = call.has_expected ? call.first_bad : nullptr};
}

Status SwapLane::end(Call& call) {
  if (call.ends_with_its_band) return {};
  const SwapStreams& streams = call.streams;
  if (has_kernels(call)) QUIRE_TRY(join_kernels(call));
  if (config_.checksums) QUIRE_TRY(device_.finish_checksums(finish_params(call), streams.kernels));
  // Done is what all streams have done: behind the kernels of a staged store there are copies, and else kernels are
  // last.
  if (!has_kernels(call)) return device_.record(call.done, streams.copies);
  if (call.path != SwapPath::Staged || kind_ == TransferKind::Load) return device_.record(call.done, streams.kernels);
  QUIRE_TRY(put_behind(streams.kernels, streams.copies));
  return device_.record(call.done, streams.copies);
}

// As long as bands are missing, `done` is that of an earlier call.
Result<bool> SwapLane::has_ended(const Call& call) {
  if (call.bands_started < call.band_count) return false;
  return device_.has_happened(call.ends_with_its_band ? call.bands[0] : call.done);
}

Result<SwapLane::Call*> SwapLane::find(SwapTicket ticket) {
  if (ticket.index < calls_.size()) {
    Call& call = calls_[ticket.index];
    if (call.is_on_its_way && call.generation == ticket.generation) return &call;
  }
  return invalid_swap("this swap is unknown: it was never started, or is finished");
}

Result<SwapLane::Call*> SwapLane::find(SwapTicket ticket, std::uint32_t band) {
  QUIRE_TRY_ASSIGN(Call * call, find(ticket));
  if (band < call->band_count) return call;
  return invalid_swap("the swap has " + std::to_string(call->band_count) + " bands: there is no band " +
                      std::to_string(band));
}

Result<std::span<const DeviceEvent>> SwapLane::band_events(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(const Call* call, find(ticket));
  return std::span<const DeviceEvent>(call->bands).first(call->bands_started);
}

Result<bool> SwapLane::has_arrived(SwapTicket ticket, std::uint32_t band) {
  QUIRE_TRY_ASSIGN(const Call* call, find(ticket, band));
  if (band >= call->bands_started) return false;
  return device_.has_happened(call->bands[band]);
}

Status SwapLane::wait_on(DeviceStream stream, SwapTicket ticket, std::uint32_t band) {
  QUIRE_TRY_ASSIGN(const Call* call, find(ticket, band));
  if (band < call->bands_started) return device_.wait(stream, call->bands[band]);
  return fail(ErrorCode::Unavailable, "band " + std::to_string(band) + " of the swap is not on its streams, where " +
                                          std::to_string(call->bands_started) +
                                          " are by now: start_next_band() puts it there");
}

Result<bool> SwapLane::is_done(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(const Call* call, find(ticket));
  return has_ended(*call);
}

Status SwapLane::wait_for(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(Call * call, find(ticket));
  for (const DeviceStream stream : {call->streams.kernels, call->streams.copies, call->streams.more_kernels}) {
    const Result<bool> is_over = has_ended(*call);
    if (!is_over) return break_off(*call, is_over.error());
    if (*is_over) break;
    if (const Status status = device_.synchronize(stream); !status) return break_off(*call, status.error());
  }
  return {};
}

Result<SwapReport> SwapLane::finish(SwapTicket ticket) {
  QUIRE_TRY_ASSIGN(Call * call, find(ticket));
  if (call->bands_started < call->band_count) {
    return fail(ErrorCode::Unavailable, std::to_string(call->bands_started) + " of " +
                                            std::to_string(call->band_count) +
                                            " bands of the swap are on its streams: start_next_band() first");
  }
  const Result<bool> is_done = has_ended(*call);
  if (is_done && !*is_done) return fail(ErrorCode::Unavailable, "the swap is on its way: ask is_done() first");
  if (!is_done) return break_off(*call, is_done.error());
  call->is_on_its_way = false;
  SwapReport report{.page_count = call->page_count, .good_pages = call->page_count};
  if (config_.checksums) report.checksums = call->checksums.first(call->page_count);
  if (call->has_expected && call->page_count != 0) report.good_pages = static_cast<std::uint32_t>(*call->first_bad);
  return report;
}

}  // namespace quire
