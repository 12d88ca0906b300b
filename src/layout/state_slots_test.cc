// SPDX-License-Identifier: Apache-2.0
#include "quire/state_slots.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

Component bytes_of(std::string name, std::uint32_t dim, std::uint32_t alignment = 1) {
  return {.name = std::move(name),
          .element = ElementType::Bytes,
          .sharding = Sharding::Replicated,
          .dim = dim,
          .alignment = alignment};
}

CacheGroup state_group(std::string name, std::vector<std::uint32_t> layers, std::vector<Component> components,
                       std::uint32_t entries = 1, std::uint32_t history = 0) {
  return {.name = std::move(name),
          .kind = GroupKind::Snapshot,
          .layers = std::move(layers),
          .components = std::move(components),
          .retention = {.rule = RetentionRule::Last},
          .slot_entries = entries,
          .slot_history = history};
}

CacheGroup full_group(std::string name) {
  return {.name = std::move(name), .layers = {0}, .components = {bytes_of("row", 8)}};
}

StateSlots make_slots(std::vector<CacheGroup> groups, const PageOptions& options = {}) {
  auto layout = ModelLayout::create("m", std::move(groups));
  EXPECT_TRUE(layout.has_value()) << layout.error().message;
  auto slots = StateSlots::create(*layout, options);
  EXPECT_TRUE(slots.has_value()) << slots.error().message;
  return *slots;
}

TEST(StateSlots, ALayoutWithoutStateHasEmptySlots) {
  const StateSlots slots = make_slots({full_group("full")});
  EXPECT_EQ(slots.slot_bytes(), 0U);
  EXPECT_TRUE(slots.parts().empty());
  EXPECT_TRUE(slots.initial_bytes().empty());
}

TEST(StateSlots, APartOfAllSlotsIsAPool) {
  const StateSlots slots = make_slots({state_group("a", {0, 1}, {bytes_of("x", 5)}),
                                       state_group("b", {1, 3}, {bytes_of("y", 6), bytes_of("z", 2)}, 3)});
  const PoolGeometry pool = slots.pool_of(1, 4).value();
  EXPECT_EQ(pool.page_count(), 4U);
  EXPECT_EQ(slots.parts()[1].offset + pool.pool_bytes(), 4 * slots.slot_bytes());
  for (std::uint32_t slot = 0; slot < 4; ++slot) {
    for (std::uint32_t component = 0; component < 2; ++component) {
      EXPECT_EQ(
          slots.parts()[1].offset +
              pool.offset_of({.page = PageId{slot}, .layer_index = 1, .component_index = component, .token_index = 2}),
          (slot * slots.slot_bytes()) +
              slots.offset_of({.part_index = 1, .layer_index = 1, .component_index = component, .entry_index = 2}));
    }
  }
  EXPECT_FALSE(slots.pool_of(0, 0).has_value());
}

TEST(StateSlots, PartsFollowEachOtherAligned) {
  const StateSlots slots = make_slots({state_group("a", {0, 1}, {bytes_of("x", 5)}), full_group("full"),
                                       state_group("b", {1}, {bytes_of("y", 6, 4), bytes_of("z", 1)}, 2),
                                       state_group("c", {0}, {bytes_of("u", 3)})});
  ASSERT_EQ(slots.parts().size(), 3U);
  EXPECT_EQ(slots.parts()[0].group_index, 0U);
  EXPECT_EQ(slots.parts()[1].group_index, 2U);
  EXPECT_EQ(slots.parts()[1].offset, 12U);
  EXPECT_EQ(slots.parts()[2].offset, 12U + 20);  // y: 8 + 8, z: 1 + 1, padded to 4
  EXPECT_EQ(slots.slot_bytes(), 36U);
  EXPECT_EQ(slots.alignment(), 4U);
}

TEST(StateSlots, EveryRowHasBytesOfItsOwn) {
  CacheGroup ring = state_group("ring", {0, 2, 5}, {bytes_of("row", 3), bytes_of("position", 4, 4)}, 5);
  ring.kind = GroupKind::Window;
  ring.window_tokens = 4;
  ring.window_form = WindowForm::Ring;
  CacheGroup state = state_group("state", {1, 3}, {{.name = "conv", .heads = 4, .dim = 3}, bytes_of("one", 1)}, 2, 3);
  state.components[0].placement = Placement::Interleaved;
  state.components[1].placement = Placement::Interleaved;
  for (const HeadOrder order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
    const StateSlots slots = make_slots({ring, state}, {.rank_count = 2, .head_order = order});
    std::vector<int> owners(slots.slot_bytes(), 0);
    for (std::uint32_t part = 0; part < slots.parts().size(); ++part) {
      const PageGeometry& geometry = slots.parts()[part].geometry;
      for (std::uint32_t version = 0; version <= geometry.group().slot_history; ++version) {
        for (std::uint32_t layer = 0; layer < geometry.layer_count(); ++layer) {
          for (std::uint32_t component = 0; component < geometry.components().size(); ++component) {
            for (std::uint32_t entry = 0; entry < geometry.group().slot_entries; ++entry) {
              for (std::uint32_t head = 0; head < geometry.heads_on_rank(component, 0).count; ++head) {
                const std::uint64_t offset = slots.offset_of({part, version, layer, component, entry, head});
                const std::uint64_t end = offset + geometry.components()[component].head_bytes;
                ASSERT_LE(end, slots.slot_bytes());
                for (std::uint64_t byte = offset; byte < end; ++byte) ASSERT_EQ(++owners[byte], 1);
              }
            }
          }
        }
      }
    }
  }
}

TEST(StateSlots, APoolOfAPartAgreesWithTheSlot) {
  const StateSlots slots = make_slots({state_group("a", {0, 1}, {bytes_of("x", 5), bytes_of("y", 2)}, 3, 1)});
  const StatePart& part = slots.parts()[0];
  const auto pool = PoolGeometry::create(part.geometry, {.page_count = 4});
  ASSERT_TRUE(pool.has_value());
  EXPECT_EQ(pool->offset_of({.page = PageId{3}, .layer_index = 1, .component_index = 1, .token_index = 3 + 2}),
            (3 * slots.slot_bytes()) +
                slots.offset_of({.version_index = 1, .layer_index = 1, .component_index = 1, .entry_index = 2}));
}

TEST(StateSlots, ASlotBeginsWithThePatternsOfItsComponents) {
  CacheGroup tail = state_group("tail", {0}, {bytes_of("kv", 2)}, 2);
  tail.components.push_back({.name = "gate", .element = ElementType::Bf16, .dim = 1, .initial = bf16_pattern(-1e9F)});
  const std::vector<std::byte> bytes = make_slots({state_group("a", {0}, {bytes_of("x", 1)}), tail}).initial_bytes();
  const std::vector<int> expected = {0, 0, 0, 0, 0, 0x6e, 0xce, 0x6e, 0xce};
  ASSERT_EQ(bytes.size(), expected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << i;
}

TEST(StateSlots, SlotsBeyond64BitsAreRefusedByGroup) {
  constexpr std::uint32_t kUint32Max = std::numeric_limits<std::uint32_t>::max();
  Component huge = {.name = "x", .element = ElementType::Bytes, .heads = kUint32Max, .dim = kUint32Max};
  huge.sharding = Sharding::Replicated;
  const auto layout = ModelLayout::create("m", {state_group("a", {0}, {huge}), state_group("b", {0}, {huge})});
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  const auto slots = StateSlots::create(*layout);
  ASSERT_FALSE(slots.has_value());
  EXPECT_EQ(slots.error().message,
            "layout 'm': with group 'b' a state slot does not fit in 64 bits (18,446,744,065,119,617,025 + "
            "18,446,744,065,119,617,025 bytes): make it smaller");
}

TEST(StateSlotsDeathTest, ARowOutsideTheSlotStopsTheProgram) {
  const StateSlots slots = make_slots({state_group("a", {0, 1}, {bytes_of("x", 5)}, 3, 1)});
  EXPECT_DEATH((void)slots.offset_of({.part_index = 1}), "no such part");
  EXPECT_DEATH((void)slots.offset_of({.version_index = 2}), "no such version");
  EXPECT_DEATH((void)slots.offset_of({.layer_index = 2}), "no such layer");
  EXPECT_DEATH((void)slots.offset_of({.component_index = 1}), "no such component");
  EXPECT_DEATH((void)slots.offset_of({.entry_index = 3}), "no such entry");
  EXPECT_DEATH((void)slots.offset_of({.head_index = 1}), "no such head");
}

}  // namespace
}  // namespace quire
