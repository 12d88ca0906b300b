// SPDX-License-Identifier: Apache-2.0
#include "hybrid_device.h"

#include <algorithm>
#include <utility>

namespace tiny_engine {

using quire::ErrorCode;
using quire::fail;
using quire::Result;
using quire::Status;

namespace {

std::vector<std::int32_t> rows_of(std::span<const HeldSequence> sequences) {
  std::vector<std::int32_t> rows;
  for (const HeldSequence& sequence : sequences) rows.push_back(sequence.row);
  return rows;
}

}  // namespace

HybridDevice::HybridDevice(const HybridDeviceConfig& config) : config_(config), exchange_(*config.device) {
  for (std::uint32_t i = 0; i < config.groups.size(); ++i) {
    const PoolMemory rows = quire::has_slot(config.groups[i]) ? config.memory.state_pool(i) : *config.memory.pools[i];
    groups_.push_back({.rows = rows, .quantised = QuantisedRows::of(rows.geometry)});
  }
}

HybridDevice::~HybridDevice() = default;

Result<std::unique_ptr<HybridDevice>> HybridDevice::create(const HybridDeviceConfig& config) {
  std::unique_ptr<HybridDevice> device(new HybridDevice(config));
  QUIRE_TRY(device->open());
  return device;
}

Status HybridDevice::open() {
  quire::DevicePlanBufferConfig plans{.device = config_.device, .plan_bytes_max = config_.plan_bytes_max};
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const quire::CacheGroup& group = config_.groups[i];
    if (group.kind != quire::GroupKind::Snapshot && !groups_[i].quantised) {
      return fail(ErrorCode::Unsupported, group.name + ": on a device, K, V and entries are stored in 8 bits");
    }
    plans.tables.push_back(
        {.rows = config_.sequence_count_max, .row_columns = quire::has_slot(group) ? 0 : config_.row_columns});
  }
  QUIRE_TRY(exchange_.open(config_.exchange_bytes / DeviceExchange::kUnitBytes));
  QUIRE_TRY_ASSIGN(plans_, quire::DevicePlanBuffer::create(plans));
  return {};
}

// What a plan asks for

Status HybridDevice::upload(const DevicePlan& plan) {
  // All that is looked at of a plan are its bytes and its deltas.
  std::vector<quire::GroupPlan> groups(plan.groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].deltas = plan.read(plan.groups[i].deltas);
  const quire::AttentionPlan staged{.groups = groups, .staging = plan.staging()};
  // Nothing is on its way: every call waits.
  QUIRE_TRY_ASSIGN(const std::optional<quire::UploadedPlan> uploaded, plans_->try_upload(staged, exchange_.stream()));
  if (!uploaded) return fail(ErrorCode::Unavailable, "no plan can be uploaded, though nothing is on its way");
  uploaded_ = *uploaded;
  uploaded_staging_ = plan.staging().data();
  return {};
}

std::string HybridDevice::prepare(const DevicePlan& plan) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::optional<PoolMemory>& pool = config_.memory.pools[i];
    if (!pool) continue;
    const StagedGroup& group = plan.groups[i];
    std::string problem = check_moves(*pool, plan.read(group.moves), plan.read(group.move_indptr));
    if (problem.empty()) problem = check_copies(*pool, plan.read(group.copies));
    if (!problem.empty()) return config_.groups[i].name + ": " + problem;
  }
  return finish(apply_plan(plan));
}

Status HybridDevice::apply_plan(const DevicePlan& plan) {
  const quire::DeviceStream stream = exchange_.stream();
  QUIRE_TRY(upload(plan));
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    const StagedGroup& group = plan.groups[i];
    if (!quire::has_slot(config_.groups[i]) && group.deltas.count > 0) {
      const quire::DeviceTable& table = plans_->table(i);
      QUIRE_TRY(config_.kernels->apply_deltas({.table = table.pages,
                                               .rows = table.rows,
                                               .row_columns = table.row_columns,
                                               .deltas = uploaded_.on_device(plan.read(group.deltas))},
                                              stream));
    }
    const std::optional<PoolMemory>& pool = config_.memory.pools[i];
    if (pool && group.moves.count > 0) {
      QUIRE_TRY(config_.kernels->move_tokens(
          {.geometry = &pool->geometry, .pool = pool->bytes, .moves = uploaded_.on_device(plan.read(group.moves))},
          stream));
    }
    if (pool && group.copies.count > 0) {
      QUIRE_TRY(config_.kernels->copy_pages(
          {.geometry = &pool->geometry, .pool = pool->bytes, .copies = uploaded_.on_device(plan.read(group.copies))},
          stream));
    }
  }
  return copy_states(plan.read(plan.state_copies));
}

std::string HybridDevice::save(const DevicePlan& plan) {
  return finish(copy_states(plan.read(plan.state_saves)));
}

Status HybridDevice::copy_states(std::span<const quire::StateCopy> copies) {
  if (copies.empty()) return {};
  std::vector<const quire::PoolGeometry*> geometries;
  std::vector<std::byte*> pools;
  for (const std::optional<PoolMemory>& pool : config_.memory.pools) {
    geometries.push_back(pool ? &pool->geometry : nullptr);
    pools.push_back(pool ? pool->bytes : nullptr);
  }
  const StateMemory& states = config_.memory.states;
  return config_.kernels->copy_states({.slots = &states.slots(),
                                       .state = states.bytes(),
                                       .slot_count = states.slot_count(),
                                       .geometries = geometries,
                                       .pools = pools,
                                       .copies = copies},
                                      exchange_.stream());
}

// Whatever was begun has ended when the next call uses the exchange.
std::string HybridDevice::finish(const Status& status) {
  const Status waited = exchange_.wait();
  end_ = 0;
  if (!status) return status.error().message;
  return waited ? "" : waited.error().message;
}

// The exchange

Result<std::size_t> HybridDevice::place(std::size_t bytes) {
  const std::size_t at = end_;
  const std::size_t end = at + ((bytes + DeviceExchange::kUnitBytes - 1) / DeviceExchange::kUnitBytes);
  if (end > exchange_.unit_count()) return fail(ErrorCode::Unsupported, "a layer's rows need more exchange_bytes");
  end_ = end;
  return at;
}

template <typename Element>
Result<std::span<const Element>> HybridDevice::bring(std::span<const Element> numbers) {
  QUIRE_TRY_ASSIGN(const std::size_t at, place(numbers.size_bytes()));
  std::ranges::copy(numbers, exchange_.on_host<Element>(at));
  QUIRE_TRY(exchange_.bring(at, end_ - at));
  return std::span<const Element>(exchange_.on_device<Element>(at), numbers.size());
}

// Reading

Result<quire::EntryTable> HybridDevice::bring_table(const GroupLayer& layer, std::span<const HeldSequence> sequences) {
  const quire::DeviceTable& table = plans_->table(layer.group_index);
  std::vector<std::int32_t> counts(table.rows);
  for (const HeldSequence& sequence : sequences) {
    if (sequence.row < 0 || static_cast<std::uint32_t>(sequence.row) >= table.rows) {
      return fail(ErrorCode::InvalidArgument, "no such row of the page table");
    }
    counts[static_cast<std::size_t>(sequence.row)] = sequence.entry_count;
  }
  QUIRE_TRY_ASSIGN(const std::span<const std::int32_t> brought, bring(std::span<const std::int32_t>(counts)));
  return quire::EntryTable{
      .pages = table.pages, .rows = table.rows, .row_columns = table.row_columns, .entry_counts = brought};
}

// `launch` starts the gather of one part.
template <typename Launch>
Status HybridDevice::gather(const Gather& what, Rows& held, Launch launch) {
  const std::vector<quire::QuantisedEntries>& parts = groups_[what.layer.group_index].quantised->parts();
  const std::size_t row_count = what.sequences.size() * what.entries_max;
  const std::size_t first = end_;
  QUIRE_TRY_ASSIGN(const std::size_t counts, place(what.sequences.size() * sizeof(std::int32_t)));
  std::vector<std::size_t> places;
  for (const quire::QuantisedEntries& part : parts) {
    QUIRE_TRY_ASSIGN(const std::size_t at, place(row_count * part.row_bytes()));
    places.push_back(at);
    QUIRE_TRY(launch(
        part, quire::GatherTarget{.data = exchange_.on_device<std::byte>(at),
                                  .row_entries = what.entries_max,
                                  .valid_counts = {exchange_.on_device<std::int32_t>(counts), what.sequences.size()}}));
  }
  QUIRE_TRY(exchange_.fetch(first, end_ - first));
  QUIRE_TRY(exchange_.wait());
  for (std::size_t i = 0; i < what.sequences.size() && what.is_dense; ++i) {
    const auto all = static_cast<std::uint32_t>(what.sequences[i].entry_count);
    if (static_cast<std::uint32_t>(exchange_.on_host<std::int32_t>(counts)[i]) != std::min(all, what.entries_max)) {
      return fail(ErrorCode::InvalidArgument, "a sequence has other entries than the plan says");
    }
  }
  held.resize(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    held[i].resize(row_count * parts[i].row_bytes() / 2);
    from_bf16(exchange_.on_host<std::byte>(places[i]), held[i]);
  }
  return {};
}

std::string HybridDevice::gather_last(const GroupLayer& layer, std::span<const HeldSequence> sequences,
                                      std::uint32_t entries_max, Rows& held) {
  const auto run = [&]() -> Status {
    QUIRE_TRY_ASSIGN(const quire::EntryTable table, bring_table(layer, sequences));
    const std::vector<std::int32_t> rows = rows_of(sequences);
    QUIRE_TRY_ASSIGN(const std::span<const std::int32_t> table_rows, bring(std::span<const std::int32_t>(rows)));
    return gather({.layer = layer, .sequences = sequences, .entries_max = entries_max, .is_dense = true}, held,
                  [&](const quire::QuantisedEntries& part, const quire::GatherTarget& target) {
                    return config_.kernels->gather_last({.entries = &part,
                                                         .pool = groups_[layer.group_index].rows.bytes,
                                                         .layer_index = layer.layer_index,
                                                         .table = table,
                                                         .table_rows = table_rows,
                                                         .entries_max = entries_max,
                                                         .target = target},
                                                        exchange_.stream());
                  });
  };
  return finish(run());
}

std::string HybridDevice::gather_selected(const GroupLayer& layer, std::span<const HeldSequence> sequences,
                                          std::span<const std::int32_t> ids, Rows& held) {
  const auto ids_per_row = static_cast<std::uint32_t>(ids.size() / sequences.size());
  const auto run = [&]() -> Status {
    QUIRE_TRY_ASSIGN(const quire::EntryTable table, bring_table(layer, sequences));
    const std::vector<std::int32_t> rows = rows_of(sequences);
    QUIRE_TRY_ASSIGN(const std::span<const std::int32_t> table_rows, bring(std::span<const std::int32_t>(rows)));
    QUIRE_TRY_ASSIGN(const std::span<const std::int32_t> brought, bring(ids));
    return gather({.layer = layer, .sequences = sequences, .entries_max = ids_per_row}, held,
                  [&](const quire::QuantisedEntries& part, const quire::GatherTarget& target) {
                    return config_.kernels->gather_selected({.entries = &part,
                                                             .pool = groups_[layer.group_index].rows.bytes,
                                                             .layer_index = layer.layer_index,
                                                             .table = table,
                                                             .table_rows = table_rows,
                                                             .ids = brought,
                                                             .ids_per_row = ids_per_row,
                                                             .target = target},
                                                            exchange_.stream());
                  });
  };
  return finish(run());
}

std::string HybridDevice::gather_ring(const GroupLayer& layer, std::span<const HeldSequence> sequences,
                                      std::uint32_t entries_max, Rows& held) {
  const auto run = [&]() -> Status {
    const std::vector<std::int32_t> rows = rows_of(sequences);
    std::vector<std::int32_t> lengths;
    for (const HeldSequence& sequence : sequences) lengths.push_back(sequence.entry_count);
    QUIRE_TRY_ASSIGN(const std::span<const std::int32_t> slots, bring(std::span<const std::int32_t>(rows)));
    QUIRE_TRY_ASSIGN(const std::span<const std::int32_t> brought, bring(std::span<const std::int32_t>(lengths)));
    return gather({.layer = layer, .sequences = sequences, .entries_max = entries_max, .is_dense = true}, held,
                  [&](const quire::QuantisedEntries& part, const quire::GatherTarget& target) {
                    return config_.kernels->gather_ring({.entries = &part,
                                                         .pool = groups_[layer.group_index].rows.bytes,
                                                         .layer_index = layer.layer_index,
                                                         .state_slots = slots,
                                                         .lengths = brought,
                                                         .entries_max = entries_max,
                                                         .target = target},
                                                        exchange_.stream());
                  });
  };
  return finish(run());
}

std::string HybridDevice::read_states(const GroupLayer& layer, std::span<const std::int64_t> slots, Rows& held) {
  return finish(read(layer, slots, held));
}

Status HybridDevice::read(const GroupLayer& layer, std::span<const std::int64_t> slots, Rows& held) {
  const PoolMemory& pool = groups_[layer.group_index].rows;
  const quire::PageGeometry& page = pool.geometry.page();
  QUIRE_TRY_ASSIGN(const std::span<const std::int64_t> brought, bring(slots));
  held.resize(page.components().size());
  for (std::uint32_t component = 0; component < held.size(); ++component) {
    held[component].resize(slots.size() * page.group().components[component].heads *
                           page.components()[component].head_bytes / sizeof(double));
    QUIRE_TRY_ASSIGN(const std::size_t at, place(held[component].size() * sizeof(double)));
    QUIRE_TRY(config_.kernels->read_rows({.geometry = &pool.geometry,
                                          .pool = pool.bytes,
                                          .layer_index = layer.layer_index,
                                          .component_index = component,
                                          .target = exchange_.on_device<std::byte>(at),
                                          .slots = brought},
                                         exchange_.stream()));
    QUIRE_TRY(exchange_.fetch(at, end_ - at));
    QUIRE_TRY(exchange_.wait());
    std::copy_n(exchange_.on_host<double>(at), held[component].size(), held[component].begin());
  }
  return {};
}

// Writing

std::string HybridDevice::append(const DevicePlan& plan, const GroupLayer& layer, const Rows& rows) {
  if (uploaded_staging_ != plan.staging().data()) {
    if (const Status status = upload(plan); !status) return finish(status);
  }
  return finish(start_append(layer, uploaded_.on_device(plan.read(plan.groups[layer.group_index].append_slots)), rows));
}

std::string HybridDevice::append(const GroupLayer& layer, std::span<const std::int64_t> slots, const Rows& rows) {
  const auto run = [&]() -> Status {
    QUIRE_TRY_ASSIGN(const std::span<const std::int64_t> brought, bring(slots));
    return start_append(layer, brought, rows);
  };
  return finish(run());
}

// Slots behind those of the rows are padding.
Status HybridDevice::start_append(const GroupLayer& layer, std::span<const std::int64_t> slots, const Rows& rows) {
  const Group& group = groups_[layer.group_index];
  for (std::uint32_t part = 0; part < rows.size(); ++part) {
    if (group.quantised) {
      const quire::QuantisedEntries& entries = group.quantised->parts()[part];
      QUIRE_TRY_ASSIGN(const std::size_t at, place(rows[part].size() * 2));
      to_bf16(rows[part], exchange_.on_host<std::byte>(at));
      QUIRE_TRY(exchange_.bring(at, end_ - at));
      QUIRE_TRY(
          config_.kernels->append_quantised({.entries = &entries,
                                             .pool = group.rows.bytes,
                                             .layer_index = layer.layer_index,
                                             .source = exchange_.on_device<std::byte>(at),
                                             .slots = slots.first(rows[part].size() / group.quantised->row_size(part))},
                                            exchange_.stream()));
      continue;
    }
    QUIRE_TRY_ASSIGN(const std::span<const double> source, bring(std::span<const double>(rows[part])));
    QUIRE_TRY(config_.kernels->append({.geometry = &group.rows.geometry,
                                       .pool = group.rows.bytes,
                                       .layer_index = layer.layer_index,
                                       .component_index = part,
                                       .source = reinterpret_cast<const std::byte*>(source.data()),
                                       .slots = slots},
                                      exchange_.stream()));
  }
  return {};
}

}  // namespace tiny_engine
