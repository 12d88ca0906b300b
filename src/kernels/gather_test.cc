// SPDX-License-Identifier: Apache-2.0
//
// Gathering with every codec against a twin that reads entry by entry through PoolGeometry::offset_of. Targets start as
// bytes that must stay where nothing is to be written.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/quantised_kernels_with.h"
#include "quire/entry_formats.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/quantised_kernels.h"
#include "quire/state_slots.h"
#include "testing/quantised_twin.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::codecs_here;
using testing::NamedCodec;
using testing::QuantisedCase;
using testing::Random;

constexpr std::uint16_t kOld = 0xa5a5;
constexpr std::uint32_t kLayer = 1;

std::vector<std::byte> random_pool(Random& random, const QuantisedEntries& entries) {
  std::vector<std::byte> pool(entries.geometry().pool_bytes());
  for (std::byte& byte : pool) byte = static_cast<std::byte>(random.below(256));
  return pool;
}

// Dense rows, and where the next gather writes.
struct Rows {
  Rows(const QuantisedEntries& entries, std::size_t row_count, std::size_t entries_of_row, std::size_t first)
      : values(entries.row_bytes() / 2),
        row_entries(entries_of_row),
        first_entry(first),
        bits(row_count * row_entries * values, kOld),
        valid_counts(row_count, -7) {}
  GatherTarget target() {
    return {.data = reinterpret_cast<std::byte*>(bits.data()),
            .row_entries = row_entries,
            .first_entry = first_entry,
            .valid_counts = valid_counts};
  }
  void put(std::size_t row, std::size_t place, const std::vector<std::uint16_t>& entry) {
    std::ranges::copy(entry,
                      bits.begin() + static_cast<std::ptrdiff_t>(((row * row_entries) + first_entry + place) * values));
  }
  friend bool operator==(const Rows&, const Rows&) = default;

  std::size_t values;
  std::size_t row_entries;
  std::size_t first_entry;
  std::vector<std::uint16_t> bits;
  std::vector<std::int32_t> valid_counts;
};

// Two sequences on five pages: page 2 is unused, and the second's last page is half full.
struct Table {
  explicit Table(std::uint32_t count)
      : page_entries(count),
        entry_counts{static_cast<std::int32_t>(2 * count), static_cast<std::int32_t>(count + ((count + 1) / 2))} {}
  [[nodiscard]] EntryTable view() const {
    return {.pages = pages.data(), .rows = 2, .row_columns = 3, .entry_counts = entry_counts};
  }
  [[nodiscard]] std::int64_t slot(std::int32_t row, std::int32_t id) const {
    const auto entries = static_cast<std::int32_t>(page_entries);
    return (std::int64_t{pages[(row * 3) + (id / entries)]} * entries) + (id % entries);
  }

  std::uint32_t page_entries;
  std::vector<std::int32_t> pages{4, 0, -1, 3, 1, -1};
  std::vector<std::int32_t> entry_counts;
};

TEST(GatherSelectedOnHost, GivesTheChosenEntriesAndZerosForTheOthers) {
  Random random(1);
  testing::for_each_quantised_case([&](const QuantisedCase& tested) {
    const QuantisedEntries& entries = tested.entries;
    const Table table(entries.geometry().page().entry_count());
    const std::vector<std::byte> pool = random_pool(random, entries);
    const std::vector<std::int32_t> table_rows{1, 0, 1, -1, 0};
    constexpr std::uint32_t kIds = 21;
    std::vector<std::int32_t> ids(table_rows.size() * kIds);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(3 * table.page_entries)) - 1;
    ids[0] = -1;
    ids[1] = table.entry_counts[1];  // there is a place for it in the page, but no entry
    ids[2] = -2;
    ids[3] = 2'147'483'647;
    ids[4] = table.entry_counts[1] - 1;
    Rows expected(entries, table_rows.size(), kIds + 3, 2);
    for (std::size_t row = 0; row < table_rows.size(); ++row) {
      expected.valid_counts[row] = 0;
      for (std::size_t place = 0; place < kIds; ++place) {
        const std::int32_t id = ids[(row * kIds) + place];
        const bool is_valid = table_rows[row] >= 0 && id >= 0 && id < table.entry_counts[table_rows[row]];
        expected.put(row, place,
                     is_valid ? testing::read_naively(entries, pool.data(), table.slot(table_rows[row], id), kLayer)
                              : std::vector<std::uint16_t>(expected.values));
        expected.valid_counts[row] += is_valid ? 1 : 0;
      }
    }
    for (const NamedCodec& codec : codecs_here()) {
      Rows rows(entries, table_rows.size(), kIds + 3, 2);
      gather_selected_with(*codec.codec, {.entries = &entries,
                                          .pool = pool.data(),
                                          .layer_index = kLayer,
                                          .table = table.view(),
                                          .table_rows = table_rows,
                                          .ids = ids,
                                          .ids_per_row = kIds,
                                          .target = rows.target()});
      ASSERT_TRUE(rows == expected) << tested.name << ", " << codec.name;
    }
  });
}

TEST(GatherSelectedOnHost, SkipsEntriesWhosePageIsMissing) {
  CacheGroup group{.name = "entries", .layers = {0}};
  use_format(group, fp8_records());
  const PoolGeometry geometry =
      PoolGeometry::create(PageGeometry::create(group, {.page_tokens = 2}).value(), {.page_count = 3}).value();
  const QuantisedEntries entries = QuantisedEntries::create(geometry, fp8_records()).value();
  Random random(2);
  const std::vector<std::byte> pool = random_pool(random, entries);
  const std::vector<std::int32_t> pages{-1, 2};
  const std::int32_t count = 4;
  const std::int32_t table_row = 0;
  const std::vector<std::int32_t> ids{1, 2};
  Rows rows(entries, 1, 2, 0);
  gather_selected_on_host({.entries = &entries,
                           .pool = pool.data(),
                           .table = {.pages = pages.data(), .rows = 1, .row_columns = 2, .entry_counts = {&count, 1}},
                           .table_rows = {&table_row, 1},
                           .ids = ids,
                           .ids_per_row = 2,
                           .target = rows.target()});
  Rows expected(entries, 1, 2, 0);
  expected.put(0, 0, std::vector<std::uint16_t>(expected.values));
  expected.put(0, 1, testing::read_naively(entries, pool.data(), 4, 0));
  expected.valid_counts[0] = 1;
  EXPECT_TRUE(rows == expected);
}

TEST(GatherLastOnHost, GivesTheLastEntriesOldestFirstAndZerosBehindThem) {
  Random random(3);
  testing::for_each_quantised_case([&](const QuantisedCase& tested) {
    const QuantisedEntries& entries = tested.entries;
    const Table table(entries.geometry().page().entry_count());
    const std::vector<std::byte> pool = random_pool(random, entries);
    const std::vector<std::int32_t> table_rows{1, -1, 0};
    for (const std::uint32_t window : {1U, table.page_entries, 3 * table.page_entries}) {
      Rows expected(entries, table_rows.size(), window + 1, 1);
      for (std::size_t row = 0; row < table_rows.size(); ++row) {
        const std::int32_t count = table_rows[row] < 0 ? 0 : table.entry_counts[table_rows[row]];
        const std::int32_t first = std::max(0, count - static_cast<std::int32_t>(window));
        for (std::int32_t place = 0; place < static_cast<std::int32_t>(window); ++place) {
          expected.put(row, place,
                       first + place < count ? testing::read_naively(entries, pool.data(),
                                                                     table.slot(table_rows[row], first + place), kLayer)
                                             : std::vector<std::uint16_t>(expected.values));
        }
        expected.valid_counts[row] = count - first;
      }
      for (const NamedCodec& codec : codecs_here()) {
        Rows rows(entries, table_rows.size(), window + 1, 1);
        gather_last_with(*codec.codec, {.entries = &entries,
                                        .pool = pool.data(),
                                        .layer_index = kLayer,
                                        .table = table.view(),
                                        .table_rows = table_rows,
                                        .entries_max = window,
                                        .target = rows.target()});
        ASSERT_TRUE(rows == expected) << tested.name << ", " << codec.name << ", " << window;
      }
    }
  });
}

QuantisedEntries make_rings(const EntryFormat& format, std::uint32_t ring_entries, std::uint32_t sink_tokens = 0) {
  CacheGroup group{.name = "window",
                   .kind = GroupKind::Window,
                   .layers = layer_range(0, 2),
                   .keys_rotated = sink_tokens == 0,
                   .retention = {.rule = RetentionRule::None},
                   .window_tokens = ring_entries - sink_tokens,
                   .sink_tokens = sink_tokens,
                   .window_form = WindowForm::Ring,
                   .slot_entries = ring_entries};
  use_format(group, format);
  PageGeometry slot = PageGeometry::create_slot(group, {}).value();
  return QuantisedEntries::create(PoolGeometry::create(std::move(slot), {.page_count = 4}).value(), format).value();
}

// As a sequence grows chunk by chunk, its ring has the last tokens, whatever the chunks' lengths, and those of its
// sink.
TEST(GatherRingOnHost, GivesTheLastTokensThatWereAppendedOldestFirst) {
  Random random(4);
  const EntryFormat format = fp8_arrays_with_positions({.dim = 40, .rope_dim = 8});
  constexpr std::array<std::pair<std::uint32_t, std::uint32_t>, 6> kRings = {
      {{1, 0}, {2, 0}, {3, 0}, {32, 0}, {3, 1}, {32, 7}}};
  for (const auto& [ring_entries, sink] : kRings) {
    const QuantisedEntries entries = make_rings(format, ring_entries, sink);
    std::vector<std::byte> pool = random_pool(random, entries);
    std::vector<std::uint16_t> source;  // of all tokens
    std::int32_t length = 0;
    for (int chunk = 0; chunk < 30; ++chunk) {
      const std::uint32_t count = 1 + random.below(2 * ring_entries);
      std::vector<std::int64_t> slots(count);
      ring_slots({.state_slot = 2,
                  .ring_entries = ring_entries,
                  .first_position = static_cast<std::uint64_t>(length),
                  .slots = slots,
                  .sink_tokens = sink});
      std::vector<std::int32_t> positions(count);
      std::iota(positions.begin(), positions.end(), length);
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::vector<std::uint16_t> row = testing::random_row(random, 48);
        source.insert(source.end(), row.begin(), row.end());
      }
      append_quantised_on_host(
          {.entries = &entries,
           .pool = pool.data(),
           .layer_index = kLayer,
           .source = reinterpret_cast<const std::byte*>(source.data() + (std::ptrdiff_t{length} * 48)),
           .slots = slots,
           .positions = positions});
      length += static_cast<std::int32_t>(count);

      const std::vector<std::int32_t> state_slots{-1, 2};
      const std::vector<std::int32_t> lengths{5, length};
      const std::int32_t valid_count = std::min(length, static_cast<std::int32_t>(ring_entries));
      Rows expected(entries, 2, ring_entries, 0);
      for (std::uint32_t place = 0; place < ring_entries; ++place) {
        expected.put(0, place, std::vector<std::uint16_t>(48));
        expected.put(1, place, std::vector<std::uint16_t>(48));
      }
      for (std::int32_t place = 0; place < valid_count; ++place) {
        const std::int32_t position = place < static_cast<std::int32_t>(sink) ? place : length - valid_count + place;
        const std::int64_t slot = (std::int64_t{2} * ring_entries) +
                                  ring_entry(entries.geometry().page().group(), static_cast<std::uint32_t>(position));
        expected.put(1, place, testing::read_naively(entries, pool.data(), slot, kLayer));
        // The position that is stored there, and the rope values bit for bit: it is this token's entry.
        std::int32_t stored = -1;
        std::memcpy(&stored, pool.data() + testing::entry_offset(entries, slot, kLayer, 3), 4);
        ASSERT_EQ(stored, position);
        ASSERT_EQ(std::memcmp(pool.data() + testing::entry_offset(entries, slot, kLayer, 1),
                              source.data() + (std::ptrdiff_t{position} * 48) + 40, 16),
                  0);
      }
      expected.valid_counts = {0, valid_count};
      for (const NamedCodec& codec : codecs_here()) {
        Rows rows(entries, 2, ring_entries, 0);
        gather_ring_with(*codec.codec, {.entries = &entries,
                                        .pool = pool.data(),
                                        .layer_index = kLayer,
                                        .state_slots = state_slots,
                                        .lengths = lengths,
                                        .entries_max = ring_entries,
                                        .target = rows.target()});
        ASSERT_TRUE(rows == expected) << ring_entries << ", " << codec.name;
      }
    }
  }
}

TEST(GatherOnHost, OfNothingTouchesNothing) {
  const QuantisedEntries entries = make_rings(fp8_arrays(), 2);
  gather_selected_on_host({.entries = &entries});
  gather_last_on_host({.entries = &entries});
  gather_ring_on_host({.entries = &entries});
}

class GatherDeathTest : public ::testing::Test {
 protected:
  void last(std::int32_t table_row, std::int32_t entry_count, std::uint32_t entries_max = 4,
            std::uint32_t layer_index = 0) {
    gather_last_on_host(
        {.entries = &entries_,
         .pool = pool_.data(),
         .layer_index = layer_index,
         .table = {.pages = pages_.data(), .rows = 1, .row_columns = 2, .entry_counts = {&entry_count, 1}},
         .table_rows = {&table_row, 1},
         .entries_max = entries_max,
         .target = {.data = target_.data(), .row_entries = 4}});
  }
  void ring(std::int32_t state_slot, std::uint32_t entries_max) {
    const std::int32_t length = 9;
    gather_ring_on_host({.entries = &entries_,
                         .pool = pool_.data(),
                         .state_slots = {&state_slot, 1},
                         .lengths = {&length, 1},
                         .entries_max = entries_max,
                         .target = {.data = target_.data(), .row_entries = 4}});
  }

  QuantisedEntries entries_ = make_rings(fp8_arrays(), 2);  // 4 pages
  std::vector<std::byte> pool_ = std::vector<std::byte>(entries_.geometry().pool_bytes());
  std::vector<std::byte> target_ = std::vector<std::byte>(4 * entries_.row_bytes());
  std::vector<std::int32_t> pages_{3, 4};
};

TEST_F(GatherDeathTest, GatheringOutsideThePoolOrTheTableStops) {
  last(0, 2);
  EXPECT_DEATH(last(0, 3), "gathering from a page that the pool does not have");
  EXPECT_DEATH(last(0, 5), "more entries than its row of the table has pages for");
  EXPECT_DEATH(last(1, 2), "gathering from a row that the table does not have");
  EXPECT_DEATH(last(0, 2, 4, 2), "gathering from a layer that the group does not have");
  ring(3, 2);
  EXPECT_DEATH(ring(4, 2), "gathering from a page that the pool does not have");
  EXPECT_DEATH(ring(3, 3), "gathering more entries than a ring has");
  entries_ = make_rings(fp8_arrays(), 5, 2);
  EXPECT_DEATH(ring(3, 1), "gathering fewer entries than a ring's sink has");
}

TEST_F(GatherDeathTest, ATargetThatIsTooSmallStops) {
  EXPECT_DEATH(last(0, 2, 5), "a row of the gather's target is too short");
  const std::int32_t count = 2;
  const std::int32_t table_row = 0;
  const std::vector<std::int32_t> ids{0, 1};
  std::vector<std::int32_t> valid_counts(2);
  GatherSelectedParams params{
      .entries = &entries_,
      .pool = pool_.data(),
      .table = {.pages = pages_.data(), .rows = 1, .row_columns = 2, .entry_counts = {&count, 1}},
      .table_rows = {&table_row, 1},
      .ids = ids,
      .ids_per_row = 2,
      .target = {.data = target_.data(), .row_entries = 4, .first_entry = 2}};
  gather_selected_on_host(params);
  params.target.first_entry = 3;
  EXPECT_DEATH(gather_selected_on_host(params), "a row of the gather's target is too short");
  params.target = {.data = target_.data(), .row_entries = 4, .valid_counts = valid_counts};
  EXPECT_DEATH(gather_selected_on_host(params), "another number of valid counts than of rows");
  params.target.valid_counts = {};
  params.ids_per_row = 3;
  EXPECT_DEATH(gather_selected_on_host(params), "gathering needs ids_per_row ids for every row");
  params.ids_per_row = 2;
  params.table.entry_counts = {};
  EXPECT_DEATH(gather_selected_on_host(params), "another number of entry counts than of rows");
}

}  // namespace
}  // namespace quire
