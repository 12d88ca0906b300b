// SPDX-License-Identifier: Apache-2.0
//
// Entries of E4M3 values, appended and gathered beside the host twins: formats of usual and odd sizes, one head and
// several. Every bit is compared, also of NaN and of what is not to be written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/device_kernels.h"
#include "quire/entry_formats.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/quantised_kernels.h"
#include "testing/quantised_twin.h"
#include "testing/seeded_run.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/geometries.h"

namespace quire {
namespace {

using testing::DeviceArray;
using testing::DeviceBytes;
using testing::kLaunchings;
using testing::Launching;
using testing::QuantisedCase;
using testing::Random;
using testing::random_bytes;
using testing::run_on_gpu;

constexpr std::uint32_t kLayer = 1;

std::vector<std::byte> random_source(Random& random, std::size_t rows, std::uint64_t row_bytes, std::uint64_t stride) {
  std::vector<std::byte> source = random_bytes(random, rows * stride);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::vector<std::uint16_t> values = testing::random_row(random, row_bytes / 2);
    std::memcpy(source.data() + (row * stride), values.data(), row_bytes);
  }
  return source;
}

struct SourceShape {
  std::uint64_t gap = 0;  // bytes between two rows; 0: they are dense
  std::size_t misalignment = 0;
  std::size_t pool_misalignment = 0;
};

void expect_appended(Random& random, const QuantisedEntries& entries, const SourceShape& shape,
                     const std::string& name) {
  const std::uint64_t stride = entries.row_bytes() + shape.gap;
  std::vector<std::int64_t> slots = testing::draw_slots(random, testing::slot_count_of(entries.geometry()));
  const std::vector<std::byte> source = random_source(random, slots.size(), entries.row_bytes(), stride);
  std::vector<std::int32_t> positions;
  if (entries.components().positions != kNoComponent) {
    for (std::size_t i = 0; i < slots.size(); ++i) positions.push_back(static_cast<std::int32_t>(random.next()));
  }
  const std::vector<std::byte> before = random_bytes(random, entries.geometry().pool_bytes());
  std::vector<std::byte> expected = before;
  AppendQuantisedParams params{.entries = &entries,
                               .pool = expected.data(),
                               .layer_index = kLayer,
                               .source = source.data(),
                               .source_row_bytes = shape.gap == 0 ? 0 : stride,
                               .slots = slots,
                               .positions = positions};
  append_quantised_on_host(params);
  // Nothing is written for what the pool does not have.
  for (std::int64_t& slot : slots) {
    if (slot == kNoSlot && random.below(2) == 0) slot = testing::slot_count_of(entries.geometry()) + slot + 1;
  }
  DeviceBytes pool(before, shape.pool_misalignment);
  DeviceBytes device_source(source, shape.misalignment);
  DeviceArray<std::int64_t> device_slots(slots);
  DeviceArray<std::int32_t> device_positions(positions);
  params.pool = pool.data();
  params.source = device_source.data();
  params.slots = device_slots.span();
  params.positions = device_positions.span();
  for (const Launching launching : kLaunchings) {
    pool.write(before);
    const Status done =
        run_on_gpu(launching, [&](DeviceStream stream) { return launch_append_quantised(params, stream); });
    ASSERT_TRUE(done.has_value()) << done.error().message;
    ASSERT_TRUE(pool.read() == expected) << name << ", gap " << shape.gap;
  }
}

TEST(GpuAppendQuantised, WritesWhatTheHostWrites) {
  Random random(1);
  const auto draw_misalignment = [&] { return random.below(6) == 0 ? 1 + random.below(17) : 0; };
  testing::for_each_quantised_case([&](const QuantisedCase& tested) {
    for (const std::uint64_t gap : {0, 16, 5}) {
      if (HasFatalFailure()) return;
      const SourceShape shape{
          .gap = gap, .misalignment = draw_misalignment(), .pool_misalignment = draw_misalignment()};
      expect_appended(random, tested.entries, shape, tested.name);
    }
  });
}

QuantisedEntries entries_of_format(const EntryFormat& format, std::uint32_t page_tokens, std::uint32_t page_count) {
  CacheGroup group{.name = "entries", .layers = layer_range(0, 2)};
  use_format(group, format);
  PageGeometry page = PageGeometry::create(group, {.page_tokens = page_tokens}).value();
  return QuantisedEntries::create(PoolGeometry::create(std::move(page), {.page_count = page_count}).value(), format)
      .value();
}

// Entries with which a warp's lanes have 1, 2, 3 and 4 units of eight values each, full and not; and others that are
// just not to be cut in that way, or whose scales are shared by lanes that are no group.
std::vector<QuantisedCase> cases_of_units() {
  std::vector<QuantisedCase> cases;
  const auto add = [&](const std::string& name, QuantisedEntries entries) {
    cases.push_back({.name = name, .entries = std::move(entries)});
  };
  for (const ScaleForm form : {ScaleForm::Fp32, ScaleForm::Ue8m0}) {
    const std::vector<testing::HeadsShape> shapes = {
        {.dim = 8},
        {.dim = 128, .block_values = 8},
        {.dim = 248, .block_values = 64},
        {.dim = 256},
        {.dim = 264, .block_values = 128},
        {.dim = 504, .block_values = 256},
        {.dim = 512, .block_values = 32},
        {.dim = 520},
        {.dim = 768, .block_values = 256},
        {.dim = 776, .block_values = 16},
        {.dim = 1016},
        {.dim = 1024, .block_values = 128},
        {.heads = 3, .dim = 64, .block_values = 32},
        {.heads = 8, .dim = 128},
        {.heads = 128, .dim = 8},
        // Appending cannot share their scales.
        {.dim = 96, .block_values = 24},
        {.dim = 1024, .block_values = 512},
        {.heads = 3, .dim = 40, .block_values = 16},
        {.heads = 2, .dim = 448},
        // Too many units.
        {.dim = 1032, .block_values = 64},
        {.heads = 9, .dim = 128, .block_values = 128},
    };
    for (testing::HeadsShape shape : shapes) {
      shape.scale_form = form;
      for (const Placement placement : {Placement::Area, Placement::Interleaved}) {
        shape.placement = placement;
        add(std::to_string(shape.heads) + " * " + std::to_string(shape.dim) + " by " +
                std::to_string(shape.block_values) + (form == ScaleForm::Fp32 ? ", fp32" : ", ue8m0") +
                (placement == Placement::Area ? "" : ", in records"),
            testing::entries_of_heads(shape, {.page_tokens = 16}, {.page_count = 3}));
      }
    }
  }
  for (const MixedRow row : std::initializer_list<MixedRow>{{.dim = 448, .rope_dim = 64},
                                                            {.dim = 512, .rope_dim = 64},
                                                            {.dim = 192, .rope_dim = 64},
                                                            {.dim = 64, .rope_dim = 8},
                                                            {.dim = 256, .rope_dim = 256},
                                                            {.dim = 768, .rope_dim = 192},
                                                            // Lanes would have rope values in two units.
                                                            {.dim = 16, .rope_dim = 320},
                                                            {.dim = 248, .rope_dim = 272}}) {
    for (const EntryFormat& format :
         {fp8_arrays(row), fp8_arrays_with_positions(row), fp8_rows_then_scales(row), fp8_records(row)}) {
      add(std::string(format.name) + " of " + std::to_string(row.dim) + " and " + std::to_string(row.rope_dim),
          entries_of_format(format, 16, 3));
    }
  }
  return cases;
}

TEST(GpuAppendQuantised, WritesWhatTheHostWritesWithAnyNumberOfUnits) {
  Random random(7);
  for (const QuantisedCase& tested : cases_of_units()) {
    for (const std::uint64_t gap : {0, 16}) {
      expect_appended(random, tested.entries, {.gap = gap}, tested.name);
      if (HasFatalFailure()) return;
    }
  }
}

// So many that a warp has several in a row, the last one fewer, and some are left out.
TEST(GpuAppendQuantised, WritesWhatTheHostWritesOfManyRows) {
  Random random(8);
  for (const EntryFormat& format :
       {fp8_rows_then_scales(), fp8_records(), fp8_arrays_with_positions({.dim = 64, .rope_dim = 8})}) {
    expect_appended(random, entries_of_format(format, 16, 3'333), {}, std::string(format.name));
    if (HasFatalFailure()) return;
  }
}

// One head of values in arrays, and nothing else.
QuantisedEntries entries_of(std::uint32_t dim, std::uint32_t block_values, ScaleForm form, std::uint32_t page_count) {
  return testing::entries_of_heads({.dim = dim, .block_values = block_values, .scale_form = form}, {.page_tokens = 16},
                                   {.page_count = page_count});
}

// Rows for all slots, in their order, become the host's bytes.
void expect_appended_as_on_host(const QuantisedEntries& entries, const std::vector<std::uint16_t>& source,
                                std::uint32_t row_count) {
  std::vector<std::int64_t> slots(row_count);
  for (std::uint32_t i = 0; i < row_count; ++i) slots[i] = i;
  std::vector<std::byte> expected(entries.geometry().pool_bytes());
  AppendQuantisedParams params{.entries = &entries,
                               .pool = expected.data(),
                               .layer_index = kLayer,
                               .source = reinterpret_cast<const std::byte*>(source.data()),
                               .slots = slots};
  append_quantised_on_host(params);
  DeviceBytes pool(std::vector<std::byte>(entries.geometry().pool_bytes()));
  DeviceArray<std::uint16_t> device_source(source);
  DeviceArray<std::int64_t> device_slots(slots);
  params.pool = pool.data();
  params.source = reinterpret_cast<const std::byte*>(device_source.data());
  params.slots = device_slots.span();
  ASSERT_TRUE(run_on_gpu(Launching::Directly, [&](DeviceStream stream) {
                return launch_append_quantised(params, stream);
              }).has_value());
  ASSERT_TRUE(pool.read() == expected);
}

// Every bf16 with every other one of its kind as the greatest of its block.
TEST(GpuAppendQuantised, EveryValueBecomesTheHostsCodeWithManyScales) {
  for (const ScaleForm form : {ScaleForm::Fp32, ScaleForm::Ue8m0}) {
    for (const auto& [dim, block_values] : {std::pair{64U, 0U}, std::pair{63U, 0U}, std::pair{72U, 24U}}) {
      constexpr std::uint32_t kRows = 65'536 / 32;
      const QuantisedEntries entries = entries_of(dim, block_values, form, kRows / 16);
      for (const std::uint32_t greatest : {0x0001U, 0x0080U, 0x2f00U, 0x3f80U, 0x43e0U, 0x43e1U, 0x7f7fU, 0x7f80U}) {
        std::vector<std::uint16_t> source(std::size_t{kRows} * dim, static_cast<std::uint16_t>(greatest));
        for (std::uint32_t bits = 0; bits < 65'536; ++bits) {
          // In the place of the greatest value of its row, which is not always one of those below it.
          source[(std::size_t{bits / 32} * dim) + (bits % 32)] = static_cast<std::uint16_t>(bits);
        }
        SCOPED_TRACE("greatest " + std::to_string(greatest) + ", " + std::to_string(dim) + " values");
        expect_appended_as_on_host(entries, source, kRows);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(GpuAppendQuantised, EveryGreatestValueGivesTheHostsScale) {
  constexpr std::uint32_t kRows = 0x7f80;  // the finite ones
  constexpr std::uint32_t kDim = 8;
  for (const ScaleForm form : {ScaleForm::Fp32, ScaleForm::Ue8m0}) {
    const QuantisedEntries entries = entries_of(kDim, 0, form, kRows / 16);
    std::vector<std::uint16_t> source(std::size_t{kRows} * kDim);
    for (std::uint32_t row = 0; row < kRows; ++row) {
      for (std::uint32_t i = 0; i < kDim; ++i) {
        source[(row * kDim) + i] = static_cast<std::uint16_t>((i % 2 << 15U) | (row - std::min(row, i * 11)));
      }
    }
    expect_appended_as_on_host(entries, source, kRows);
    if (HasFatalFailure()) return;
  }
}

// Dense rows on both sides, and where a gather writes.
class Gathered {
 public:
  Gathered(Random& random, const QuantisedEntries& entries, std::size_t rows, std::uint64_t places, bool is_aligned)
      : row_entries_(places + 3),
        before_(random_bytes(random, rows * row_entries_ * entries.row_bytes())),
        counts_before_(rows, -7),
        expected_(before_),
        expected_counts_(counts_before_),
        target_(before_, is_aligned ? 0 : 1 + random.below(17)),
        counts_(counts_before_) {}

  [[nodiscard]] GatherTarget on_host() {
    return {.data = expected_.data(), .row_entries = row_entries_, .first_entry = 2, .valid_counts = expected_counts_};
  }
  [[nodiscard]] GatherTarget on_device() {
    return {
        .data = target_.data(), .row_entries = row_entries_, .first_entry = 2, .valid_counts = counts_.mutable_span()};
  }
  void start_again() {
    target_.write(before_);
    counts_.write(counts_before_);
  }
  [[nodiscard]] bool is_same() const { return target_.read() == expected_ && counts_.read() == expected_counts_; }

 private:
  std::uint64_t row_entries_;
  std::vector<std::byte> before_;
  std::vector<std::int32_t> counts_before_;
  std::vector<std::byte> expected_;
  std::vector<std::int32_t> expected_counts_;
  DeviceBytes target_;
  DeviceArray<std::int32_t> counts_;
};

// Sequences on the pages of a pool, with holes, and more columns than they need.
struct Table {
  Table(Random& random, const QuantisedEntries& entries, std::uint32_t row_count, std::uint32_t columns)
      : rows(row_count), row_columns(columns), page_entries(entries.geometry().page().entry_count()) {
    for (std::uint32_t i = 0; i < rows * row_columns; ++i) {
      const auto page = static_cast<std::int32_t>(random.below(entries.geometry().page_count()));
      pages.push_back(random.below(5) == 0 ? -1 - page : page);
    }
    for (std::uint32_t row = 0; row < rows; ++row) {
      entry_counts.push_back(static_cast<std::int32_t>(random.below((row_columns * page_entries) + 1)));
    }
    entry_counts[0] = static_cast<std::int32_t>(row_columns * page_entries);
    if (rows > 2) entry_counts[1] = -3;
    for (std::uint32_t i = 0; i < 2 * rows; ++i)
      table_rows.push_back(static_cast<std::int32_t>(random.below(rows + 1)) - 1);
    // On the device, what there is not counts as what is not asked for.
    device_pages = pages;
    for (std::int32_t& page : device_pages) {
      if (page < 0 && random.below(2) == 0)
        page = static_cast<std::int32_t>(entries.geometry().page_count()) - 1 - page;
    }
    device_rows = table_rows;
    for (std::int32_t& row : device_rows) {
      if (row < 0 && random.below(2) == 0)
        row = static_cast<std::int32_t>(rows) + static_cast<std::int32_t>(random.below(9));
    }
  }
  [[nodiscard]] EntryTable view() const {
    return {.pages = pages.data(), .rows = rows, .row_columns = row_columns, .entry_counts = entry_counts};
  }

  std::uint32_t rows;
  std::uint32_t row_columns;
  std::uint32_t page_entries;
  std::vector<std::int32_t> pages;
  std::vector<std::int32_t> entry_counts;
  std::vector<std::int32_t> table_rows;
  std::vector<std::int32_t> device_pages;
  std::vector<std::int32_t> device_rows;
};

// The same on the device.
class DeviceTable {
 public:
  explicit DeviceTable(const Table& table)
      : rows_(table.rows),
        row_columns_(table.row_columns),
        pages_(table.device_pages),
        entry_counts_(table.entry_counts),
        table_rows_(table.device_rows) {}
  [[nodiscard]] EntryTable view() {
    return {.pages = pages_.data(), .rows = rows_, .row_columns = row_columns_, .entry_counts = entry_counts_.span()};
  }
  [[nodiscard]] std::span<const std::int32_t> table_rows() { return table_rows_.span(); }

 private:
  std::uint32_t rows_;
  std::uint32_t row_columns_;
  DeviceArray<std::int32_t> pages_;
  DeviceArray<std::int32_t> entry_counts_;
  DeviceArray<std::int32_t> table_rows_;
};

struct SelectedShape {
  std::uint32_t table_rows = 1;
  std::uint32_t columns = 1;
  std::uint32_t ids_per_row = 1;
};

void expect_selected(Random& random, const QuantisedEntries& entries, const SelectedShape& shape, bool is_aligned,
                     const std::string& name) {
  const Table table(random, entries, shape.table_rows, shape.columns);
  std::vector<std::int32_t> ids(table.table_rows.size() * shape.ids_per_row);
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(random.below((table.row_columns * table.page_entries) + 3)) - 1;
  }
  ids[0] = std::numeric_limits<std::int32_t>::max();
  ids.back() = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::byte> content = random_bytes(random, entries.geometry().pool_bytes());
  Gathered gathered(random, entries, table.table_rows.size(), shape.ids_per_row, is_aligned);
  GatherSelectedParams params{.entries = &entries,
                              .pool = content.data(),
                              .layer_index = kLayer,
                              .table = table.view(),
                              .table_rows = table.table_rows,
                              .ids = ids,
                              .ids_per_row = shape.ids_per_row,
                              .target = gathered.on_host()};
  gather_selected_on_host(params);
  DeviceBytes pool(content);
  DeviceTable device_table(table);
  DeviceArray<std::int32_t> device_ids(ids);
  params.pool = pool.data();
  params.table = device_table.view();
  params.table_rows = device_table.table_rows();
  params.ids = device_ids.span();
  params.target = gathered.on_device();
  for (const Launching launching : kLaunchings) {
    gathered.start_again();
    const Status done =
        run_on_gpu(launching, [&](DeviceStream stream) { return launch_gather_selected(params, stream); });
    ASSERT_TRUE(done.has_value()) << done.error().message;
    ASSERT_TRUE(gathered.is_same()) << name;
  }
}

TEST(GpuGatherSelected, GivesWhatTheHostGives) {
  Random random(2);
  testing::for_each_quantised_case([&](const QuantisedCase& tested) {
    if (HasFatalFailure()) return;
    const SelectedShape shape{
        .table_rows = 1 + random.below(4), .columns = 1 + random.below(4), .ids_per_row = 1 + random.below(40)};
    expect_selected(random, tested.entries, shape, random.below(4) != 0, tested.name);
  });
}

TEST(GpuGatherSelected, GivesWhatTheHostGivesWithAnyNumberOfUnits) {
  Random random(9);
  for (const QuantisedCase& tested : cases_of_units()) {
    expect_selected(random, tested.entries, {.table_rows = 3, .columns = 3, .ids_per_row = 9}, true, tested.name);
    if (HasFatalFailure()) return;
  }
}

// So many that a warp has several in a row, the last one of a row fewer.
TEST(GpuGatherSelected, GivesWhatTheHostGivesOfManyPlaces) {
  Random random(10);
  for (const EntryFormat& format : {fp8_rows_then_scales(), fp8_records(), fp8_arrays({.dim = 64, .rope_dim = 8})}) {
    expect_selected(random, entries_of_format(format, 16, 40), {.table_rows = 12, .columns = 20, .ids_per_row = 2'111},
                    true, std::string(format.name));
    if (HasFatalFailure()) return;
  }
}

void expect_last(Random& random, const QuantisedEntries& entries, const Table& table, std::uint32_t entries_max,
                 const std::string& name) {
  const std::vector<std::byte> content = random_bytes(random, entries.geometry().pool_bytes());
  Gathered gathered(random, entries, table.table_rows.size(), entries_max, random.below(4) != 0);
  GatherLastParams params{.entries = &entries,
                          .pool = content.data(),
                          .layer_index = kLayer,
                          .table = table.view(),
                          .table_rows = table.table_rows,
                          .entries_max = entries_max,
                          .target = gathered.on_host()};
  gather_last_on_host(params);
  DeviceBytes pool(content);
  DeviceTable device_table(table);
  params.pool = pool.data();
  params.table = device_table.view();
  params.table_rows = device_table.table_rows();
  params.target = gathered.on_device();
  for (const Launching launching : kLaunchings) {
    gathered.start_again();
    const Status done = run_on_gpu(launching, [&](DeviceStream stream) { return launch_gather_last(params, stream); });
    ASSERT_TRUE(done.has_value()) << done.error().message;
    ASSERT_TRUE(gathered.is_same()) << name << ", the last " << entries_max;
  }
}

TEST(GpuGatherLast, GivesWhatTheHostGives) {
  Random random(3);
  testing::for_each_quantised_case([&](const QuantisedCase& tested) {
    if (HasFatalFailure()) return;
    const Table table(random, tested.entries, 1 + random.below(4), 1 + random.below(4));
    expect_last(random, tested.entries, table, random.below((table.row_columns * table.page_entries) + 4), tested.name);
  });
}

// More pages than a warp has lanes, and more places than there are warps for each.
TEST(GpuGatherLast, GivesWhatTheHostGivesOfLongSequences) {
  Random random(4);
  for (const std::uint32_t columns : {32U, 33U, 200U, 1000U}) {
    const QuantisedEntries entries = entries_of(16, 0, ScaleForm::Fp32, 7);
    const Table table(random, entries, 3, columns);
    for (const std::uint32_t entries_max : {columns * 16, (columns * 8) + 5, 100U}) {
      expect_last(random, entries, table, entries_max, std::to_string(columns) + " columns");
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GpuGatherRing, GivesWhatTheHostGives) {
  Random random(5);
  for (int turn = 0; turn < 60; ++turn) {
    const std::uint32_t window = 1 + random.below(40);
    const std::uint32_t sink = random.below(2) == 0 ? random.below(window) : 0;
    CacheGroup group{.name = "ring",
                     .kind = GroupKind::Window,
                     .layers = layer_range(0, 2),
                     .keys_rotated = false,
                     .retention = {.rule = RetentionRule::None},
                     .window_tokens = window,
                     .sink_tokens = sink,
                     .window_form = WindowForm::Ring,
                     .slot_entries = window + sink + random.below(5)};
    const EntryFormat format = turn % 2 == 0 ? fp8_arrays_with_positions() : fp8_records({.dim = 131, .rope_dim = 33});
    use_format(group, format);
    const QuantisedEntries entries =
        QuantisedEntries::create(
            PoolGeometry::create(PageGeometry::create_slot(group, {}).value(), {.page_count = 6}).value(), format)
            .value();
    const std::uint32_t entries_max = sink + random.below(group.slot_entries - sink + 1);
    std::vector<std::int32_t> state_slots(1 + random.below(9));
    std::vector<std::int32_t> lengths(state_slots.size());
    for (std::size_t row = 0; row < state_slots.size(); ++row) {
      state_slots[row] = static_cast<std::int32_t>(random.below(7)) - 1;
      lengths[row] = static_cast<std::int32_t>(random.below(row % 2 == 0 ? 20 : 500)) - 2;
    }
    const std::vector<std::byte> content = random_bytes(random, entries.geometry().pool_bytes());
    Gathered gathered(random, entries, state_slots.size(), entries_max, random.below(4) != 0);
    GatherRingParams params{.entries = &entries,
                            .pool = content.data(),
                            .layer_index = kLayer,
                            .state_slots = state_slots,
                            .lengths = lengths,
                            .entries_max = entries_max,
                            .target = gathered.on_host()};
    gather_ring_on_host(params);
    for (std::int32_t& slot : state_slots) {
      if (slot < 0 && random.below(2) == 0) slot = 6 + static_cast<std::int32_t>(random.below(9));
    }
    DeviceBytes pool(content);
    DeviceArray<std::int32_t> device_slots(state_slots);
    DeviceArray<std::int32_t> device_lengths(lengths);
    params.pool = pool.data();
    params.state_slots = device_slots.span();
    params.lengths = device_lengths.span();
    params.target = gathered.on_device();
    for (const Launching launching : kLaunchings) {
      gathered.start_again();
      const Status done =
          run_on_gpu(launching, [&](DeviceStream stream) { return launch_gather_ring(params, stream); });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_TRUE(gathered.is_same()) << "turn " << turn;
    }
  }
}

// Every code with every kind of scale, all ways through the kernel: a table of rows of 256 codes.
TEST(GpuGatherSelected, EveryCodeIsWorthWhatTheHostSays) {
  Random random(6);
  for (const ScaleForm form : {ScaleForm::Fp32, ScaleForm::Ue8m0}) {
    for (const std::uint32_t dim : {256U, 257U, 1032U}) {
      const QuantisedEntries entries = entries_of(dim, 0, form, 40);
      const std::uint32_t entry_count = 40 * 16;
      std::vector<std::byte> content = random_bytes(random, entries.geometry().pool_bytes());
      for (std::uint32_t entry = 0; entry < entry_count; ++entry) {
        const std::uint64_t values = testing::entry_offset(entries, entry, kLayer, entries.components().values);
        const std::uint64_t scales = testing::entry_offset(entries, entry, kLayer, entries.components().scales);
        for (std::uint32_t i = 0; i < 256; ++i) content[values + i] = static_cast<std::byte>(i);
        // All exponents, with signs, what is not normal and what is not finite.
        std::uint32_t bits =
            (entry << 23U) | (entry % 3 == 0 ? 0 : static_cast<std::uint32_t>(random.next() & 0x7fffffU));
        if (form == ScaleForm::Ue8m0) bits = entry;
        std::memcpy(content.data() + scales, &bits, form == ScaleForm::Fp32 ? 4 : 1);
      }
      std::vector<std::int32_t> pages(40);
      std::vector<std::int32_t> ids(entry_count);
      for (std::int32_t i = 0; i < 40; ++i) pages[static_cast<std::size_t>(i)] = i;
      for (std::uint32_t i = 0; i < entry_count; ++i) ids[i] = static_cast<std::int32_t>(i);
      const std::vector<std::int32_t> count{static_cast<std::int32_t>(entry_count)};
      const std::vector<std::int32_t> table_row{0};
      Gathered gathered(random, entries, 1, entry_count, true);
      GatherSelectedParams params{.entries = &entries,
                                  .pool = content.data(),
                                  .layer_index = kLayer,
                                  .table = {.pages = pages.data(), .rows = 1, .row_columns = 40, .entry_counts = count},
                                  .table_rows = table_row,
                                  .ids = ids,
                                  .ids_per_row = entry_count,
                                  .target = gathered.on_host()};
      gather_selected_on_host(params);
      DeviceBytes pool(content);
      DeviceArray<std::int32_t> device_pages(pages);
      DeviceArray<std::int32_t> device_count(count);
      DeviceArray<std::int32_t> device_row(table_row);
      DeviceArray<std::int32_t> device_ids(ids);
      params.pool = pool.data();
      params.table = {.pages = device_pages.data(), .rows = 1, .row_columns = 40, .entry_counts = device_count.span()};
      params.table_rows = device_row.span();
      params.ids = device_ids.span();
      params.target = gathered.on_device();
      ASSERT_TRUE(run_on_gpu(Launching::Directly, [&](DeviceStream stream) {
                    return launch_gather_selected(params, stream);
                  }).has_value());
      ASSERT_TRUE(gathered.is_same()) << dim << " values";
    }
  }
}

// Nothing to do is nothing to launch, so none of this needs an address.
TEST(GpuKernels, OfNothingLaunchNothing) {
  const QuantisedEntries entries = entries_of(16, 0, ScaleForm::Fp32, 2);
  const PoolGeometry& geometry = entries.geometry();
  const std::int32_t offset = 0;
  for (const Launching launching : kLaunchings) {
    const Status done = run_on_gpu(launching, [&](DeviceStream stream) -> Status {
      for (const Status& launched :
           {launch_append({.geometry = &geometry}, stream), launch_read_rows({.geometry = &geometry}, stream),
            launch_copy_pages({.geometry = &geometry}, stream), launch_move_tokens({.geometry = &geometry}, stream),
            launch_copy_states({}, stream), launch_reset_pages({.geometry = &geometry}, stream),
            launch_apply_deltas({}, stream), launch_list_pages({.page_indptr = {&offset, 1}}, stream),
            launch_append_quantised({.entries = &entries}, stream),
            launch_gather_selected({.entries = &entries}, stream), launch_gather_last({.entries = &entries}, stream),
            launch_gather_ring({.entries = &entries}, stream)}) {
        if (!launched.has_value()) return launched;
      }
      return {};
    });
    EXPECT_TRUE(done.has_value()) << done.error().message;
  }
}

}  // namespace
}  // namespace quire
