// SPDX-License-Identifier: Apache-2.0
//
// Appending with every codec against a twin that goes value by value through PoolGeometry::offset_of. Pools start as
// random bytes and are compared whole, so that a byte written beside the named ones shows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/lazy_array.h"
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
using testing::entry_offset;
using testing::NamedCodec;
using testing::QuantisedCase;
using testing::Random;

std::int64_t slot_count_of(const QuantisedEntries& entries) {
  return std::int64_t{entries.geometry().page_count()} * entries.geometry().page().entry_count();
}

std::vector<std::byte> random_bytes(Random& random, std::uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

void append_naively(const AppendQuantisedParams& params) {
  const QuantisedEntries& entries = *params.entries;
  const QuantisedComponents& parts = entries.components();
  const std::uint64_t stride = params.source_row_bytes != 0 ? params.source_row_bytes : entries.row_bytes();
  const auto place = [&](std::size_t row, std::uint32_t component, std::uint32_t head = 0) {
    return params.pool + entry_offset(entries, params.slots[row], params.layer_index, component, head);
  };
  for (std::size_t i = 0; i < params.slots.size(); ++i) {
    if (params.slots[i] == kNoSlot) continue;
    std::vector<std::uint16_t> row(entries.dim());
    for (std::uint32_t head = 0; head < entries.head_count(); ++head) {
      std::memcpy(row.data(), params.source + (i * stride) + (head * 2 * row.size()), 2 * row.size());
      const std::uint64_t scales_bytes = entries.geometry().page().components()[parts.scales].head_bytes;
      const testing::NaiveRow encoded =
          testing::encode_naively(row, entries.block_values(), entries.scale_form(), scales_bytes);
      std::memcpy(place(i, parts.values, head), encoded.codes.data(), encoded.codes.size());
      std::memcpy(place(i, parts.scales, head), encoded.scales.data(), encoded.scales.size());
    }
    if (parts.rope != kNoComponent) {
      std::memcpy(place(i, parts.rope), params.source + (i * stride) + (2 * row.size()),
                  std::size_t{2} * entries.rope_dim());
    }
    if (parts.positions != kNoComponent) std::memcpy(place(i, parts.positions), &params.positions[i], 4);
  }
}

// Half of the slots or so, each once, in random order.
std::vector<std::int64_t> draw_slots(Random& random, std::int64_t slot_count) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(slot_count), kNoSlot);
  for (std::int64_t slot = 0; slot < slot_count; ++slot) {
    if (random.below(2) == 0) slots[slot] = slot;
  }
  for (std::size_t i = slots.size(); i > 1; --i)
    std::swap(slots[i - 1], slots[random.below(static_cast<std::uint32_t>(i))]);
  return slots;
}

TEST(AppendQuantisedOnHost, WritesEachRowAtItsSlotAndNothingElse) {
  Random random(1);
  testing::for_each_quantised_case([&](const QuantisedCase& tested) {
    const QuantisedEntries& entries = tested.entries;
    const std::vector<std::int64_t> slots = draw_slots(random, slot_count_of(entries));
    const std::size_t row_values = entries.row_bytes() / 2;
    for (const std::size_t gap : {0, 5}) {  // values between two rows; 0: dense
      std::vector<std::uint16_t> source;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::vector<std::uint16_t> row = testing::random_row(random, row_values + gap);
        source.insert(source.end(), row.begin(), row.end());
      }
      source.resize(source.size() - gap);  // nothing behind the last one: reading there is a sanitizer's business
      std::vector<std::int32_t> positions;
      if (entries.components().positions != kNoComponent) {
        for (std::size_t i = 0; i < slots.size(); ++i) positions.push_back(static_cast<std::int32_t>(random.next()));
      }
      const std::vector<std::byte> before = random_bytes(random, entries.geometry().pool_bytes());
      std::vector<std::byte> expected = before;
      AppendQuantisedParams params{.entries = &entries,
                                   .pool = expected.data(),
                                   .layer_index = 1,
                                   .source = reinterpret_cast<const std::byte*>(source.data()),
                                   .source_row_bytes = gap == 0 ? 0 : 2 * (row_values + gap),
                                   .slots = slots,
                                   .positions = positions};
      append_naively(params);
      for (const NamedCodec& codec : codecs_here()) {
        std::vector<std::byte> pool = before;
        params.pool = pool.data();
        append_quantised_with(*codec.codec, params);
        ASSERT_TRUE(pool == expected) << tested.name << ", " << codec.name << ", gap " << gap;
      }
    }
  });
}

TEST(AppendQuantisedOnHost, OfTwoRowsAtOneSlotTheLastStays) {
  CacheGroup group{.name = "entries", .layers = {0}};
  use_format(group, fp8_records());
  const PoolGeometry geometry =
      PoolGeometry::create(PageGeometry::create(group, {.page_tokens = 2}).value(), {.page_count = 2}).value();
  const QuantisedEntries entries = QuantisedEntries::create(geometry, fp8_records()).value();
  Random random(2);
  std::vector<std::uint16_t> source = testing::random_row(random, 576);
  const std::vector<std::uint16_t> second = testing::random_row(random, 576);
  source.insert(source.end(), second.begin(), second.end());
  std::vector<std::byte> pool(geometry.pool_bytes());
  std::vector<std::byte> expected(geometry.pool_bytes());
  const std::vector<std::int64_t> twice{3, 3};
  append_quantised_on_host({.entries = &entries,
                            .pool = pool.data(),
                            .source = reinterpret_cast<const std::byte*>(source.data()),
                            .slots = twice});
  append_quantised_on_host({.entries = &entries,
                            .pool = expected.data(),
                            .source = reinterpret_cast<const std::byte*>(second.data()),
                            .slots = std::span(twice).first(1)});
  EXPECT_TRUE(pool == expected);
}

// Offsets above 2^32, in a pool of which only the touched pages exist.
TEST(AppendQuantisedOnHost, ReachesTheEndOfAPoolOfMoreThan4GiB) {
  CacheGroup group{.name = "entries", .layers = layer_range(0, 2)};
  use_format(group, fp8_rows_then_scales());
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    const PoolGeometry geometry = PoolGeometry::create(PageGeometry::create(group, {.page_tokens = 64}).value(),
                                                       {.page_count = 80'000, .byte_layout = byte_layout})
                                      .value();
    ASSERT_GT(geometry.pool_bytes(), std::uint64_t{5} << 30U);
    const QuantisedEntries entries = QuantisedEntries::create(geometry, fp8_rows_then_scales()).value();
    LazyMemory pool = LazyMemory::reserve(geometry.pool_bytes()).value();
    Random random(3);
    std::vector<std::uint16_t> row = testing::random_row(random, 512);
    row[0] = 0x4000;
    const std::int64_t slot = (std::int64_t{79'999} * 64) + 63;
    append_quantised_on_host({.entries = &entries,
                              .pool = pool.data(),
                              .layer_index = 1,
                              .source = reinterpret_cast<const std::byte*>(row.data()),
                              .slots = {&slot, 1}});
    const std::uint64_t rope = entry_offset(entries, slot, 1, entries.components().rope);
    ASSERT_GT(rope, std::uint64_t{4} << 30U);
    EXPECT_EQ(std::memcmp(pool.data() + rope, row.data() + 448, 128), 0);

    std::vector<std::uint16_t> gathered(512);
    const std::int32_t page = 79'999;
    const std::int32_t count = 64;
    const std::int32_t table_row = 0;
    const std::int32_t id = 63;
    gather_selected_on_host({.entries = &entries,
                             .pool = pool.data(),
                             .layer_index = 1,
                             .table = {.pages = &page, .rows = 1, .row_columns = 1, .entry_counts = {&count, 1}},
                             .table_rows = {&table_row, 1},
                             .ids = {&id, 1},
                             .ids_per_row = 1,
                             .target = {.data = reinterpret_cast<std::byte*>(gathered.data()), .row_entries = 1}});
    EXPECT_EQ(gathered, testing::read_naively(entries, pool.data(), slot, 1));
  }
}

TEST(RingSlots, AreThePositionsModuloTheRing) {
  std::vector<std::int64_t> slots(5);
  ring_slots({.state_slot = 3, .ring_entries = 8, .first_position = 6, .slots = slots});
  EXPECT_EQ(slots, (std::vector<std::int64_t>{30, 31, 24, 25, 26}));
}

TEST(RingSlots, OfAChunkLongerThanTheRingOnlyTheLastTokensGetOne) {
  std::vector<std::int64_t> slots(7);
  ring_slots({.state_slot = 1, .ring_entries = 3, .first_position = 100, .slots = slots});
  EXPECT_EQ(slots, (std::vector<std::int64_t>{kNoSlot, kNoSlot, kNoSlot, kNoSlot, 5, 3, 4}));  // 104, 105, 106
}

// As plans have them: write_ring_slots() is compared with ring_entry() too.
TEST(RingSlots, OfARingWithASinkAreItsEntries) {
  for (const std::uint32_t ring_entries : {2U, 3U, 7U}) {
    for (std::uint32_t sink = 0; sink < ring_entries; ++sink) {
      const CacheGroup group{.kind = GroupKind::Window, .sink_tokens = sink, .slot_entries = ring_entries};
      for (std::uint32_t first = 0; first < 20; ++first) {
        for (std::uint32_t count = 1; count < 20; ++count) {
          std::vector<std::int64_t> slots(count);
          ring_slots({.state_slot = 5,
                      .ring_entries = ring_entries,
                      .first_position = first,
                      .slots = slots,
                      .sink_tokens = sink});
          std::vector<std::int64_t> expected(count);
          for (std::uint32_t i = 0; i < count; ++i) {
            bool is_overwritten = false;
            for (std::uint32_t later = i + 1; later < count; ++later) {
              is_overwritten |= ring_entry(group, first + later) == ring_entry(group, first + i);
            }
            expected[i] = is_overwritten ? kNoSlot : (5 * ring_entries) + ring_entry(group, first + i);
          }
          ASSERT_EQ(slots, expected) << ring_entries << " entries, a sink of " << sink << ", from " << first;
        }
      }
    }
  }
}

TEST(RingSlots, ReachFarPositionsAndSlots) {
  std::vector<std::int64_t> slots(1);
  ring_slots({.state_slot = 4'000'000'000, .ring_entries = 128, .first_position = (1ULL << 40U) + 5, .slots = slots});
  EXPECT_EQ(slots[0], (std::int64_t{4'000'000'000} * 128) + 5);
  ring_slots({.ring_entries = 1, .slots = {}});
}

class AppendQuantisedDeathTest : public ::testing::Test {
 protected:
  static QuantisedEntries make_entries(const EntryFormat& format) {
    CacheGroup group{.name = "entries", .layers = layer_range(0, 2)};
    use_format(group, format);
    PageGeometry page = PageGeometry::create(group, {.page_tokens = 3}).value();
    return QuantisedEntries::create(PoolGeometry::create(std::move(page), {.page_count = 5}).value(), format).value();
  }
  void append(std::uint32_t layer, std::int64_t slot, std::uint64_t source_row_bytes = 0) {
    append_quantised_on_host({.entries = &entries_,
                              .pool = pool_.data(),
                              .layer_index = layer,
                              .source = source_.data(),
                              .source_row_bytes = source_row_bytes,
                              .slots = {&slot, 1}});
  }

  QuantisedEntries entries_ = make_entries(fp8_arrays());
  std::vector<std::byte> pool_ = std::vector<std::byte>(entries_.geometry().pool_bytes());
  std::vector<std::byte> source_ = std::vector<std::byte>(entries_.row_bytes());
};

TEST_F(AppendQuantisedDeathTest, AppendingOutsideThePoolStops) {
  append(1, 14);
  append(0, kNoSlot);
  EXPECT_DEATH(append(0, 15), "appending at a slot that the pool does not have");
  EXPECT_DEATH(append(0, -2), "appending at a slot that the pool does not have");
  EXPECT_DEATH(append(2, 0), "appending to a layer that the group does not have");
  EXPECT_DEATH(append(0, 0, entries_.row_bytes() - 1), "the source's rows overlap");
}

TEST_F(AppendQuantisedDeathTest, PositionsThatAreMissingOrTooManyStop) {
  const QuantisedEntries with_positions = make_entries(fp8_arrays_with_positions());
  std::vector<std::byte> pool(with_positions.geometry().pool_bytes());
  const std::int64_t slot = 0;
  const std::int32_t position = 7;
  AppendQuantisedParams params{
      .entries = &with_positions, .pool = pool.data(), .source = source_.data(), .slots = {&slot, 1}};
  EXPECT_DEATH(append_quantised_on_host(params), "as many positions as slots");
  params.positions = {&position, 1};
  append_quantised_on_host(params);
  params.entries = &entries_;
  params.pool = pool_.data();
  EXPECT_DEATH(append_quantised_on_host(params), "as many positions as slots");
}

TEST_F(AppendQuantisedDeathTest, ARingWithoutEntriesStops) {
  std::int64_t slot = 0;
  EXPECT_DEATH(ring_slots({.ring_entries = 0, .slots = {&slot, 1}}), "a ring has one entry at least");
  EXPECT_DEATH(ring_slots({.ring_entries = 2, .slots = {&slot, 1}, .sink_tokens = 2}), "room behind its sink");
}

}  // namespace
}  // namespace quire
