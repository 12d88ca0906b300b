// SPDX-License-Identifier: Apache-2.0
//
// Copies of states, on each set of instructions, against a twin that goes row by row through StateSlots::offset_of and
// PoolGeometry::offset_of. Memory starts as random bytes and is compared whole, so that a byte written beside the named
// ones shows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/copy_rows.h"
#include "kernels/host_kernels_with.h"
#include "quire/host_kernels.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::Random;
constexpr std::uint32_t kSlots = 4;
constexpr std::uint32_t kPages = 5;

std::vector<std::byte> random_bytes(Random& random, std::uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

/// State slots and pools of a layout, all bytes random.
struct Memory {
  std::vector<std::byte> state;
  std::vector<std::vector<std::byte>> pools;

  friend bool operator==(const Memory&, const Memory&) = default;
};

class Layout {
 public:
  Layout(const std::vector<CacheGroup>& groups, const PageOptions& options, ByteLayout byte_layout)
      : layout_(ModelLayout::create("states", groups).value()), slots_(StateSlots::create(layout_, options).value()) {
    geometries_.reserve(groups.size());
    for (const CacheGroup& group : groups) {
      std::optional<PoolGeometry>& geometry = geometries_.emplace_back();
      if (has_pages(group)) {
        geometry = PoolGeometry::create(PageGeometry::create(group, options).value(),
                                        {.page_count = kPages, .byte_layout = byte_layout})
                       .value();
      }
    }
    for (const std::optional<PoolGeometry>& geometry : geometries_) {
      pointers_.push_back(geometry ? &*geometry : nullptr);
    }
  }

  [[nodiscard]] const StateSlots& slots() const { return slots_; }
  [[nodiscard]] std::span<const CacheGroup> groups() const { return layout_.groups(); }
  [[nodiscard]] const PoolGeometry& geometry(std::int32_t group) const {
    return *pointers_[static_cast<std::size_t>(group)];
  }

  [[nodiscard]] Memory random_memory(Random& random) const {
    Memory memory{.state = random_bytes(random, kSlots * slots_.slot_bytes()), .pools = {}};
    for (const PoolGeometry* const geometry : pointers_) {
      memory.pools.push_back(random_bytes(random, geometry == nullptr ? 0 : geometry->pool_bytes()));
    }
    return memory;
  }

  void copy(CopyRows copy_rows, std::span<const StateCopy> copies, Memory& memory) const {
    const std::vector<std::byte*> pools = pools_of(memory);
    copy_states_with(copy_rows, params(copies, memory, pools));
  }
  void copy_on_host(std::span<const StateCopy> copies, Memory& memory) const {
    const std::vector<std::byte*> pools = pools_of(memory);
    copy_states_on_host(params(copies, memory, pools));
  }

 private:
  [[nodiscard]] static std::vector<std::byte*> pools_of(Memory& memory) {
    std::vector<std::byte*> pools;
    for (std::vector<std::byte>& pool : memory.pools) pools.push_back(pool.empty() ? nullptr : pool.data());
    return pools;
  }
  [[nodiscard]] CopyStatesParams params(std::span<const StateCopy> copies, Memory& memory,
                                        const std::vector<std::byte*>& pools) const {
    return {.slots = &slots_,
            .state = memory.state.data(),
            .slot_count = kSlots,
            .geometries = pointers_,
            .pools = pools,
            .copies = copies};
  }

  ModelLayout layout_;
  StateSlots slots_;
  std::vector<std::optional<PoolGeometry>> geometries_;
  std::vector<const PoolGeometry*> pointers_;
};

// The twin.

struct Row {
  std::uint32_t layer = 0;
  std::uint32_t component = 0;
  std::uint32_t head = 0;
};

class Twin {
 public:
  Twin(const Layout& layout, Memory& memory) : layout_(layout), memory_(memory) {}

  void run(const StateCopy& copy) {
    copy_ = copy;
    while (layout_.slots().parts()[part_].group_index != static_cast<std::uint32_t>(copy.group)) ++part_;
    const StatePart& part = layout_.slots().parts()[part_];
    const CacheGroup& group = part.geometry.group();
    const std::uint64_t slot_bytes = layout_.slots().slot_bytes();
    if (copy.kind == StateCopyKind::Reset || copy.kind == StateCopyKind::Fork) {
      const std::vector<std::byte> initial = part.geometry.initial_bytes();
      for (std::uint64_t byte = 0; byte < initial.size(); ++byte) {
        const std::uint64_t at = part.offset + byte;
        memory_.state[(copy.target * slot_bytes) + at] =
            copy.kind == StateCopyKind::Reset ? initial[byte] : memory_.state[(copy.source * slot_bytes) + at];
      }
      return;
    }
    for (std::uint32_t layer = 0; layer < part.geometry.layer_count(); ++layer) {
      for (std::uint32_t component = 0; component < group.components.size(); ++component) {
        for (std::uint32_t head = 0; head < part.geometry.heads_on_rank(component, 0).count; ++head) {
          if (copy.kind == StateCopyKind::Save) {
            save({layer, component, head}, group);
          } else {
            restore({layer, component, head}, group);
          }
        }
      }
    }
  }

 private:
  /// The token that a snapshot's entry is of; negative: of none yet.
  [[nodiscard]] std::int64_t token_of(const CacheGroup& group, std::uint32_t entry) const {
    if (group.kind == GroupKind::Snapshot) return std::int64_t{copy_.position} - group.snapshot_entries + entry;
    if (entry >= group.sink_tokens)
      return std::int64_t{copy_.position} - group.window_tokens + entry - group.sink_tokens;
    return static_cast<std::int32_t>(entry) < copy_.position ? std::int64_t{entry} : -1;
  }

  void save(const Row& row, const CacheGroup& group) {
    const std::uint32_t count = layout_.geometry(copy_.group).page().entry_count();
    for (std::uint32_t entry = 0; entry < count; ++entry) {
      const std::int64_t token = token_of(group, entry);
      for (std::uint64_t byte = 0; byte < row_bytes(row); ++byte) {
        *page_byte(row, copy_.target, entry, byte) =
            token < 0 ? initial_byte(row, group, byte)
                      : *slot_byte(row, copy_.source, ring_entry(group, static_cast<std::uint32_t>(token)), byte);
      }
    }
  }

  void restore(const Row& row, const CacheGroup& group) {
    const std::uint32_t count = layout_.geometry(copy_.group).page().entry_count();
    const std::uint32_t last = group.kind == GroupKind::Snapshot ? group.snapshot_entries : group.window_tokens;
    for (std::uint64_t byte = 0; byte < row_bytes(row); ++byte) {
      for (std::uint32_t entry = 0; copy_.position < static_cast<std::int32_t>(last) && entry < group.slot_entries;
           ++entry) {
        *slot_byte(row, copy_.target, entry, byte) = initial_byte(row, group, byte);
      }
      for (std::uint32_t entry = 0; entry < count; ++entry) {
        const std::int64_t token = token_of(group, entry);
        if (token < 0) continue;
        *slot_byte(row, copy_.target, ring_entry(group, static_cast<std::uint32_t>(token)), byte) =
            *page_byte(row, copy_.source, entry, byte);
      }
    }
  }

  [[nodiscard]] std::uint64_t row_bytes(const Row& row) const {
    return layout_.geometry(copy_.group).page().components()[row.component].head_bytes;
  }
  [[nodiscard]] static std::byte initial_byte(const Row& row, const CacheGroup& group, std::uint64_t byte) {
    const std::vector<std::byte>& pattern = group.components[row.component].initial;
    return pattern.empty() ? std::byte{0} : pattern[byte % pattern.size()];
  }
  std::byte* slot_byte(const Row& row, std::int32_t slot, std::uint32_t entry, std::uint64_t byte) {
    const CacheGroup& group = layout_.slots().parts()[part_].geometry.group();
    const std::uint64_t offset = layout_.slots().offset_of(
        {.part_index = part_,
         .version_index = static_cast<std::uint32_t>(copy_.position) % (group.slot_history + 1),
         .layer_index = row.layer,
         .component_index = row.component,
         .entry_index = entry,
         .head_index = row.head});
    return &memory_.state[(static_cast<std::uint64_t>(slot) * layout_.slots().slot_bytes()) + offset + byte];
  }
  std::byte* page_byte(const Row& row, std::int32_t page, std::uint32_t entry, std::uint64_t byte) {
    const std::uint64_t offset = layout_.geometry(copy_.group)
                                     .offset_of({.page = PageId{static_cast<std::uint32_t>(page)},
                                                 .layer_index = row.layer,
                                                 .component_index = row.component,
                                                 .token_index = entry,
                                                 .head_index = row.head});
    return &memory_.pools[static_cast<std::size_t>(copy_.group)][offset + byte];
  }

  const Layout& layout_;
  Memory& memory_;
  StateCopy copy_;
  std::uint32_t part_ = 0;
};

std::vector<std::byte> pattern_of(std::uint32_t bytes) {
  std::vector<std::byte> pattern;
  for (std::uint32_t i = 0; i < bytes; ++i) pattern.push_back(static_cast<std::byte>(0xC0 + i));
  return pattern;
}

/// Components of all kinds, some with initial patterns.
std::vector<Component> draw_components(Random& random) {
  std::vector<Component> components{{.name = "a", .heads = 2 * (1 + random.below(2)), .dim = 1 + random.below(40)}};
  if (random.below(2) == 0) {
    components.push_back({.name = "b", .element = ElementType::Fp32, .heads = 2, .dim = 3, .initial = pattern_of(12)});
  }
  if (random.below(2) == 0) {
    components.push_back({.name = "c",
                          .element = ElementType::Bytes,
                          .sharding = Sharding::Replicated,
                          .heads = 1,
                          .dim = 6,
                          .alignment = 8,
                          .initial = pattern_of(3)});
  }
  if (random.below(3) == 0) {
    for (const char* const name : {"payload", "scale"}) {
      components.push_back({.name = name,
                            .element = ElementType::Fp8,
                            .heads = 2,
                            .dim = 4,
                            .placement = Placement::Interleaved,
                            .alignment = 4,
                            .initial = pattern_of(2)});
    }
  }
  return components;
}

CacheGroup draw_group(Random& random, std::uint32_t index) {
  CacheGroup group{.name = "group " + std::to_string(index),
                   .layers = layer_range(0, 1 + random.below(3)),
                   .components = draw_components(random),
                   .retention = {.rule = RetentionRule::Last}};
  switch (random.below(4)) {
    case 0:
      group.kind = GroupKind::Full;
      group.retention = {};
      break;
    case 1:  // a recurrent state
      group.kind = GroupKind::Snapshot;
      group.slot_entries = 1;
      group.slot_history = random.below(4);
      break;
    case 2:  // rows by position
      group.kind = GroupKind::Snapshot;
      group.slot_entries = 1 + random.below(9);
      group.snapshot_entries = 1 + random.below(group.slot_entries);
      group.slot_history = random.below(3);
      break;
    default:
      group.kind = GroupKind::Window;
      group.window_form = WindowForm::Ring;
      group.window_tokens = 1 + random.below(8);
      group.sink_tokens = random.below(2) == 0 ? random.below(group.window_tokens) : 0;
      group.slot_entries = group.window_tokens + group.sink_tokens + random.below(4);
      group.keys_rotated = false;
      break;
  }
  return group;
}

StateCopy draw_copy(Random& random, const Layout& layout) {
  const std::span<const StatePart> parts = layout.slots().parts();
  StateCopy copy{
      .kind = static_cast<StateCopyKind>(random.below(4)),
      .group = static_cast<std::int32_t>(parts[random.below(static_cast<std::uint32_t>(parts.size()))].group_index),
      .position = static_cast<std::int32_t>(random.below(random.below(2) == 0 ? 12 : 100))};
  const auto slot = [&] { return static_cast<std::int32_t>(random.below(kSlots)); };
  const auto page = [&] { return static_cast<std::int32_t>(1 + random.below(kPages - 1)); };
  copy.source = copy.kind == StateCopyKind::Restore ? page() : slot();
  copy.target = copy.kind == StateCopyKind::Save ? page() : slot();
  return copy;
}

std::vector<CopyRows> copies_here() {
  std::vector<CopyRows> copies{pick_copy_rows(InstructionSet::Portable, Stores::Cached)};
  if (is_available(InstructionSet::Avx2)) {
    copies.push_back(pick_copy_rows(InstructionSet::Avx2, Stores::Cached));
    copies.push_back(pick_copy_rows(InstructionSet::Avx2, Stores::Streaming));
  }
  return copies;
}

TEST(CopyStatesOnHost, RandomCopiesOfRandomGroupsAreThoseOfTheTwin) {
  for (std::uint32_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<CacheGroup> groups;
    for (std::uint32_t i = 1 + random.below(4); i > 0; --i) groups.push_back(draw_group(random, i));
    const Layout layout(groups,
                        {.page_tokens = 1 + random.below(4),
                         .rank_count = 1 + random.below(2),
                         .head_order = random.below(2) == 0 ? HeadOrder::Nhd : HeadOrder::Hnd},
                        random.below(2) == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst);
    if (layout.slots().parts().empty()) continue;
    std::vector<StateCopy> copies;
    for (int i = 0; i < 12; ++i) copies.push_back(draw_copy(random, layout));
    const Memory before = layout.random_memory(random);
    Memory expected = before;
    for (const StateCopy& copy : copies) Twin(layout, expected).run(copy);
    for (const CopyRows copy_rows : copies_here()) {
      Memory memory = before;
      layout.copy(copy_rows, copies, memory);
      ASSERT_TRUE(memory == expected);
    }
    Memory memory = before;
    layout.copy_on_host(copies, memory);
    ASSERT_TRUE(memory == expected);
  }
}

// By hand: one layer, one component of one byte, so that a slot is its entries.

CacheGroup bytes_group(GroupKind kind, std::uint32_t slot_entries) {
  return {.name = "bytes",
          .kind = kind,
          .layers = {0},
          .components = {{.name = "a",
                          .element = ElementType::Bytes,
                          .sharding = Sharding::Replicated,
                          .heads = 1,
                          .dim = 1,
                          .initial = {std::byte{'.'}}}},
          .keys_rotated = false,
          .retention = {.rule = RetentionRule::Last},
          .slot_entries = slot_entries};
}

/// Slots of a single group, as text.
class TextStates {
 public:
  explicit TextStates(const CacheGroup& group) : layout_({group}, {}, ByteLayout::PageFirst) {
    memory_.state.resize(kSlots * layout_.slots().slot_bytes());
    memory_.pools.emplace_back(layout_.geometry(0).pool_bytes());
  }

  void write_slot(std::uint32_t slot, const std::string& text) { write(memory_.state, slot * text.size(), text); }
  void write_page(std::uint32_t page, const std::string& text) { write(memory_.pools[0], page * text.size(), text); }
  void run(const StateCopy& copy) { layout_.copy_on_host({&copy, 1}, memory_); }
  [[nodiscard]] std::string slot(std::uint32_t slot) const {
    return read(memory_.state, slot, layout_.slots().slot_bytes());
  }
  [[nodiscard]] std::string page(std::uint32_t page) const {
    return read(memory_.pools[0], page, layout_.geometry(0).page().page_bytes());
  }

 private:
  static void write(std::vector<std::byte>& bytes, std::size_t at, const std::string& text) {
    for (const char letter : text) bytes[at++] = static_cast<std::byte>(letter);
  }
  static std::string read(const std::vector<std::byte>& bytes, std::uint64_t index, std::uint64_t count) {
    std::string text;
    for (std::uint64_t i = 0; i < count; ++i) text += static_cast<char>(bytes[(index * count) + i]);
    return text;
  }

  Layout layout_;
  Memory memory_;
};

TEST(CopyStatesOnHost, AStateIsTheVersionOfItsPosition) {
  CacheGroup group = bytes_group(GroupKind::Snapshot, 1);
  group.slot_history = 2;
  TextStates states(group);
  states.write_slot(1, "abc");  // after 9, 10 and 8 tokens, say
  states.run({.kind = StateCopyKind::Save, .source = 1, .target = 3, .position = 10});
  EXPECT_EQ(states.page(3), "b");
  states.write_slot(2, "xyz");
  states.run({.kind = StateCopyKind::Restore, .source = 3, .target = 2, .position = 11});
  EXPECT_EQ(states.slot(2), "xyb");
  states.run({.kind = StateCopyKind::Fork, .source = 1, .target = 0});
  EXPECT_EQ(states.slot(0), "abc");
  states.run({.kind = StateCopyKind::Reset, .target = 1});
  EXPECT_EQ(states.slot(1), "...");
  EXPECT_EQ(states.slot(0), "abc");
}

TEST(CopyStatesOnHost, RowsStandByPositionTheNewestLast) {
  CacheGroup group = bytes_group(GroupKind::Snapshot, 6);
  group.snapshot_entries = 4;
  TextStates states(group);
  states.write_slot(1, "GHCDEF");  // tokens 2 to 7 of a text that counts in letters
  states.run({.kind = StateCopyKind::Save, .source = 1, .target = 2, .position = 8});
  EXPECT_EQ(states.page(2), "EFGH");
  states.write_slot(2, "123456");
  states.run({.kind = StateCopyKind::Restore, .source = 2, .target = 2, .position = 8});
  EXPECT_EQ(states.slot(2), "GH34EF");
}

TEST(CopyStatesOnHost, BeforeTheFirstTokenEverythingIsInitial) {
  CacheGroup group = bytes_group(GroupKind::Snapshot, 6);
  group.snapshot_entries = 4;
  TextStates states(group);
  states.write_slot(1, "AB3456");  // the others are from somebody before
  states.run({.kind = StateCopyKind::Save, .source = 1, .target = 2, .position = 2});
  EXPECT_EQ(states.page(2), "..AB");
  states.write_slot(2, "123456");
  states.run({.kind = StateCopyKind::Restore, .source = 2, .target = 2, .position = 2});
  EXPECT_EQ(states.slot(2), "AB....");
  states.run({.kind = StateCopyKind::Restore, .source = 2, .target = 2, .position = 0});
  EXPECT_EQ(states.slot(2), "......");
}

TEST(CopyStatesOnHost, ARingsSnapshotHasItsSinkFirst) {
  CacheGroup group = bytes_group(GroupKind::Window, 7);
  group.window_form = WindowForm::Ring;
  group.window_tokens = 4;
  group.sink_tokens = 2;
  TextStates states(group);
  states.write_slot(1, "ABHIJFG");  // the sink, then tokens 5 to 9 in turn: token 7 is the first behind it
  states.run({.kind = StateCopyKind::Save, .source = 1, .target = 2, .position = 10});
  EXPECT_EQ(states.page(2), "ABGHIJ");
  states.write_slot(2, "1234567");
  states.run({.kind = StateCopyKind::Restore, .source = 2, .target = 2, .position = 10});
  EXPECT_EQ(states.slot(2), "ABHIJ6G");
  // After 3 tokens, two of which are the sink, and of the last four the first was none.
  states.write_slot(3, "ABC4567");
  states.run({.kind = StateCopyKind::Save, .source = 3, .target = 3, .position = 3});
  EXPECT_EQ(states.page(3), "AB.ABC");
  states.run({.kind = StateCopyKind::Restore, .source = 3, .target = 2, .position = 3});
  EXPECT_EQ(states.slot(2), "ABC....");
}

TEST(CopyStatesOnHostDeathTest, WhatThereIsNotStopsTheProgram) {
  CacheGroup full{.name = "full", .layers = {0}, .components = {{.name = "k", .dim = 4}}};
  CacheGroup state = bytes_group(GroupKind::Snapshot, 1);
  CacheGroup unsaved = bytes_group(GroupKind::Snapshot, 3);
  unsaved.name = "unsaved";
  unsaved.snapshot_entries = 0;
  unsaved.retention = {.rule = RetentionRule::None};
  const Layout layout({full, state, unsaved}, {}, ByteLayout::PageFirst);
  Random random(1);
  Memory memory = layout.random_memory(random);
  const auto run = [&](const StateCopy& copy) { layout.copy_on_host({&copy, 1}, memory); };
  run({.kind = StateCopyKind::Save, .group = 1, .source = 3, .target = 4});
  run({.kind = StateCopyKind::Reset, .group = 2, .target = 3});
  EXPECT_DEATH(run({.kind = StateCopyKind::Reset, .group = 0}), "state of a group that has none");
  EXPECT_DEATH(run({.kind = StateCopyKind::Reset, .group = 3}), "state of a group that has none");
  EXPECT_DEATH(run({.kind = StateCopyKind::Reset, .group = -1}), "state of a group that has none");
  EXPECT_DEATH(run({.kind = StateCopyKind::Reset, .group = 1, .target = 4}), "state slot that there is not");
  EXPECT_DEATH(run({.kind = StateCopyKind::Fork, .group = 1, .source = -1}), "state slot that there is not");
  EXPECT_DEATH(run({.kind = StateCopyKind::Save, .group = 1, .source = 4, .target = 1}),
               "state slot that there is not");
  EXPECT_DEATH(run({.kind = StateCopyKind::Save, .group = 1, .target = 5}), "page that the pool does not have");
  EXPECT_DEATH(run({.kind = StateCopyKind::Save, .group = 1, .target = 0}), "page that the pool does not have");
  EXPECT_DEATH(run({.kind = StateCopyKind::Restore, .group = 1, .source = -1}), "page that the pool does not have");
  EXPECT_DEATH(run({.kind = StateCopyKind::Save, .group = 2, .target = 1}), "group that has no pages");
  EXPECT_DEATH(run({.kind = StateCopyKind::Save, .group = 1, .target = 1, .position = -1}), "before the first token");
}

}  // namespace
}  // namespace quire
