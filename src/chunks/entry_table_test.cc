// SPDX-License-Identifier: Apache-2.0
#include "chunks/entry_table.h"

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

// Hashes that differ in few bits: nearly everything shares a home, a tag or both.
std::uint64_t bad_hash(std::uint32_t key) {
  return (std::uint64_t{key % 3} << 32U) | (key % 5);
}

TEST(EntryTable, FindsEverythingAmongCollisions) {
  constexpr std::uint32_t kCapacity = 24;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    testing::Random random(seed);
    EntryTable table = *EntryTable::create(kCapacity);
    std::array<std::uint32_t, kCapacity> keys{};  // of entries
    std::map<std::uint32_t, std::uint32_t> twin;  // from key to entry
    std::vector<std::uint32_t> free_entries;
    for (std::uint32_t entry = 0; entry < kCapacity; ++entry) free_entries.push_back(entry);
    const auto find = [&](std::uint32_t key) {
      return table.find(bad_hash(key), [&](std::uint32_t entry) { return keys[entry] == key; });
    };
    for (int step = 0; step < 2000; ++step) {
      const std::uint32_t key = random.below(40);
      const std::uint32_t slot = find(key);
      ASSERT_EQ(slot != EntryTable::kNone, twin.contains(key)) << "seed " << seed << ", step " << step;
      if (slot != EntryTable::kNone) {
        ASSERT_EQ(table.entry(slot), twin.at(key));
        free_entries.push_back(twin.at(key));
        twin.erase(key);
        table.erase(slot, [&](std::uint32_t entry) { return bad_hash(keys[entry]); });
      } else if (!free_entries.empty()) {
        const std::uint32_t entry = free_entries.back();
        free_entries.pop_back();
        keys[entry] = key;
        twin[key] = entry;
        table.insert(bad_hash(key), entry);
      }
      ASSERT_EQ(table.size(), twin.size());
      for (const auto& [each, entry] : twin) ASSERT_EQ(table.entry(find(each)), entry);
    }
  }
}

TEST(EntryTable, AnotherEntryTakesASlot) {
  EntryTable table = *EntryTable::create(1);
  table.insert(7, 0);
  const std::uint32_t slot = table.find(7, [](std::uint32_t) { return true; });
  table.set_entry(slot, 3);
  EXPECT_EQ(table.entry(slot), 3U);
  EXPECT_EQ(table.size(), 1U);
}

}  // namespace
}  // namespace quire
