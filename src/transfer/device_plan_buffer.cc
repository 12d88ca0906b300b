// SPDX-License-Identifier: Apache-2.0
#include "quire/device_plan_buffer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "store/device_memory.h"

namespace quire {
namespace {

constexpr std::uint64_t kPlanAlignment = 16;  // of arrays
constexpr std::uint64_t kPinnedUnit = 4096;   // what is registered begins and ends at such addresses
constexpr PageDelta kNoDelta{.row = -1, .column = -1, .page = -1};

std::uint64_t whole_units(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool has_table(const DeviceTable& table) {
  return table.row_columns > 0;
}

}  // namespace

Status DevicePlanBufferConfig::validate() const {
  if (device == nullptr) return fail(ErrorCode::InvalidArgument, "DevicePlanBufferConfig::device is null");
  if (plan_bytes_max == 0 || upload_count_max == 0) {
    return fail(ErrorCode::InvalidArgument, "DevicePlanBufferConfig: plan_bytes_max and upload_count_max are above 0");
  }
  for (const DeviceTable& table : tables) {
    if (has_table(table) && table.rows == 0) {
      return fail(ErrorCode::InvalidArgument, "DevicePlanBufferConfig::tables: a table has columns, but no rows");
    }
  }
  // Far beyond what anybody pins, and what is added up below fits.
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 40U;
  const std::optional<std::uint64_t> plans = checked_multiply(plan_bytes_max, upload_count_max);
  if (!plans || *plans > kBytesMax) {
    return fail(ErrorCode::InvalidArgument, "DevicePlanBufferConfig: " + std::to_string(upload_count_max) +
                                                " plans of " + std::to_string(plan_bytes_max) +
                                                " bytes are more than can be pinned");
  }
  return {};
}

// A pinned slot, and the memory on the device:
//
//     graph deltas of table 0 │ of table 1 │ … │ the plan's staging
//
struct DevicePlanBuffer::Impl {
  struct Slot {
    std::byte* data = nullptr;
    DeviceEvent event;
    bool is_used = false;  // since the event was recorded
  };

  explicit Impl(DevicePlanBufferConfig settings) : config(std::move(settings)) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  [[nodiscard]] Status open();
  [[nodiscard]] Result<bool> is_free(Slot& slot) const;
  /// Gives whether the graph deltas are the plan's.
  [[nodiscard]] bool write(const AttentionPlan& plan, const Slot& slot) const;
  [[nodiscard]] std::span<const PageDelta> graph_deltas_in(std::byte* memory, std::size_t group_index) const;

  const DevicePlanBufferConfig config;
  std::vector<std::uint64_t> delta_offsets;  // of each group's graph deltas
  std::uint64_t plan_offset = 0;
  RegisteredMemory pinned;
  DeviceMemoryBlock memory;
  std::vector<DeviceMemoryBlock> table_memory;
  std::vector<DeviceTable> tables;
  std::vector<Slot> slots;
  std::size_t next_slot = 0;
};

DevicePlanBuffer::Impl::~Impl() {
  for (const Slot& slot : slots) {
    while (slot.is_used) {
      const Result<bool> has_happened = config.device->has_happened(slot.event);
      if (!has_happened || *has_happened) break;
      std::this_thread::yield();
    }
    if (slot.event.handle != nullptr) config.device->destroy_event(slot.event);
  }
}

Status DevicePlanBuffer::Impl::open() {
  Device& device = *config.device;
  for (const DeviceTable& table : config.tables) {
    delta_offsets.push_back(plan_offset);
    if (has_table(table)) {
      plan_offset += whole_units(std::uint64_t{config.graph_deltas_max} * sizeof(PageDelta), kPlanAlignment);
    }
  }
  // A copy lies in one slot, and so in one piece of what is registered.
  const std::uint64_t slot_bytes = whole_units(plan_offset + config.plan_bytes_max, kPinnedUnit);
  QUIRE_TRY_ASSIGN(pinned, RegisteredMemory::allocate(device, slot_bytes * config.upload_count_max, slot_bytes));
  QUIRE_TRY_ASSIGN(memory, DeviceMemoryBlock::allocate(device, plan_offset + config.plan_bytes_max));
  tables = config.tables;
  for (DeviceTable& table : tables) {
    const std::uint64_t bytes = std::uint64_t{table.rows} * table.row_columns * sizeof(std::int32_t);
    table.pages = nullptr;
    if (!has_table(table)) continue;
    QUIRE_TRY_ASSIGN(DeviceMemoryBlock block, DeviceMemoryBlock::allocate(device, bytes));
    table.pages = reinterpret_cast<std::int32_t*>(block.data());
    table_memory.push_back(std::move(block));
  }
  slots.reserve(config.upload_count_max);
  for (std::uint32_t i = 0; i < config.upload_count_max; ++i) {
    QUIRE_TRY_ASSIGN(const DeviceEvent event, device.create_event());
    slots.push_back({.data = pinned.data() + (i * slot_bytes), .event = event});
  }
  return {};
}

Result<bool> DevicePlanBuffer::Impl::is_free(Slot& slot) const {
  if (!slot.is_used) return true;
  QUIRE_TRY_ASSIGN(const bool has_happened, config.device->has_happened(slot.event));
  slot.is_used = !has_happened;
  return has_happened;
}

std::span<const PageDelta> DevicePlanBuffer::Impl::graph_deltas_in(std::byte* data, std::size_t group_index) const {
  return {reinterpret_cast<const PageDelta*>(data + delta_offsets[group_index]), config.graph_deltas_max};
}

bool DevicePlanBuffer::Impl::write(const AttentionPlan& plan, const Slot& slot) const {
  if (!plan.staging.empty()) std::memcpy(slot.data + plan_offset, plan.staging.data(), plan.staging.size());
  if (config.graph_deltas_max == 0) return false;
  bool fits = true;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    fits = fits && (!has_table(tables[i]) || plan.groups[i].deltas.size() <= config.graph_deltas_max);
  }
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (!has_table(tables[i])) continue;
    auto* const deltas = reinterpret_cast<PageDelta*>(slot.data + delta_offsets[i]);
    PageDelta* const end = fits ? std::ranges::copy(plan.groups[i].deltas, deltas).out : deltas;
    std::fill(end, deltas + config.graph_deltas_max, kNoDelta);
  }
  return fits;
}

const std::byte* UploadedPlan::place_of(std::span<const std::byte> bytes) const {
  if (bytes.empty()) return nullptr;
  const bool is_inside = std::less_equal<>{}(staging_.data(), bytes.data()) &&
                         std::less_equal<>{}(bytes.data() + bytes.size(), staging_.data() + staging_.size());
  QUIRE_CHECK(is_inside, "an array that is not of the uploaded plan");
  return target_ + (bytes.data() - staging_.data());
}

Result<std::unique_ptr<DevicePlanBuffer>> DevicePlanBuffer::create(const DevicePlanBufferConfig& config) {
  QUIRE_TRY(config.validate());
  auto impl = std::make_unique<Impl>(config);
  QUIRE_TRY(impl->open());
  return std::unique_ptr<DevicePlanBuffer>(new DevicePlanBuffer(std::move(impl)));
}

DevicePlanBuffer::DevicePlanBuffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DevicePlanBuffer::~DevicePlanBuffer() = default;

Result<std::optional<UploadedPlan>> DevicePlanBuffer::try_upload(const AttentionPlan& plan, DeviceStream stream) {
  Impl& impl = *impl_;
  if (plan.staging.size() > impl.config.plan_bytes_max) {
    return fail(ErrorCode::InvalidArgument, "uploading a plan of " + std::to_string(plan.staging.size()) +
                                                " bytes: DevicePlanBufferConfig::plan_bytes_max is " +
                                                std::to_string(impl.config.plan_bytes_max));
  }
  if (plan.groups.size() < impl.tables.size()) {
    return fail(ErrorCode::InvalidArgument, "uploading a plan of " + std::to_string(plan.groups.size()) +
                                                " groups: DevicePlanBufferConfig::tables has " +
                                                std::to_string(impl.tables.size()));
  }
  Impl::Slot& slot = impl.slots[impl.next_slot];
  QUIRE_TRY_ASSIGN(const bool is_free, impl.is_free(slot));
  if (!is_free) return std::nullopt;

  UploadedPlan uploaded;
  uploaded.staging_ = plan.staging;
  uploaded.target_ = impl.memory.data() + impl.plan_offset;
  uploaded.has_graph_deltas_ = impl.write(plan, slot);
  Device& device = *impl.config.device;
  QUIRE_TRY(device.copy(impl.memory.data(), slot.data, impl.plan_offset + plan.staging.size(), stream));
  const Status recorded = device.record(slot.event, stream);
  // Nobody would know when the slot is free again.
  if (!recorded) (void)device.synchronize(stream);
  QUIRE_TRY(recorded);
  slot.is_used = true;
  impl.next_slot = (impl.next_slot + 1) % impl.slots.size();
  return uploaded;
}

ApplyDeltasParams DevicePlanBuffer::deltas_of(const AttentionPlan& plan, const UploadedPlan& uploaded,
                                              std::uint32_t group_index) const {
  const DeviceTable& own = table(group_index);
  return {.table = own.pages,
          .rows = own.rows,
          .row_columns = own.row_columns,
          .deltas = uploaded.on_device(plan.groups[group_index].deltas)};
}

ApplyDeltasParams DevicePlanBuffer::graph_deltas_of(std::uint32_t group_index) const {
  const DeviceTable& own = table(group_index);
  return {.table = own.pages,
          .rows = own.rows,
          .row_columns = own.row_columns,
          .deltas = impl_->graph_deltas_in(impl_->memory.data(), group_index)};
}

const DeviceTable& DevicePlanBuffer::table(std::uint32_t group_index) const {
  QUIRE_CHECK(group_index < impl_->tables.size() && has_table(impl_->tables[group_index]),
              "a group that has no page table of its own on the device");
  return impl_->tables[group_index];
}

}  // namespace quire
