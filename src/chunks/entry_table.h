// SPDX-License-Identifier: Apache-2.0
//
// EntryTable: finds entries, which lie elsewhere and have numbers, by a hash of some key of theirs. Open addressing, at
// most half full; what probed past a removed slot moves up, so there are no marks of removed ones and never a rehash.
//
// single-threaded
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/lazy_array.h"
#include "quire/result.h"

namespace quire {

class EntryTable {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// For up to `capacity` entries, at most 2^30.
  [[nodiscard]] static Result<EntryTable> create(std::uint32_t capacity) {
    EntryTable table;
    const std::uint32_t slot_count = std::bit_ceil(capacity * 2);
    QUIRE_TRY_ASSIGN(table.slots_, LazyArray<Slot>::create(slot_count));
    table.slots_.prefer_huge_pages();
    table.slot_mask_ = slot_count - 1;
    return table;
  }

  /// The slot of the entry with this hash for which is_wanted(entry) holds, or kNone.
  template <typename IsWanted>
  [[nodiscard]] std::uint32_t find(std::uint64_t hash, IsWanted is_wanted) const {
    for (std::uint32_t slot = home_of(hash);; slot = next(slot)) {
      const Slot& at = slots_[slot];
      if (at.entry_plus_1 == 0) return kNone;
      if (at.tag == tag_of(hash) && is_wanted(at.entry_plus_1 - 1)) return slot;
    }
  }
  [[nodiscard]] std::uint32_t entry(std::uint32_t slot) const { return slots_[slot].entry_plus_1 - 1; }
  /// Another entry with the same key takes the slot.
  void set_entry(std::uint32_t slot, std::uint32_t entry) { slots_[slot].entry_plus_1 = entry + 1; }

  void insert(std::uint64_t hash, std::uint32_t entry) {
    QUIRE_CHECK(size_ <= slot_mask_ / 2, "the table is full");
    std::uint32_t slot = home_of(hash);
    while (slots_[slot].entry_plus_1 != 0) slot = next(slot);
    slots_[slot] = {.tag = tag_of(hash), .entry_plus_1 = entry + 1};
    ++size_;
  }
  /// hash_of(entry) is the hash an entry was inserted with.
  template <typename HashOf>
  void erase(std::uint32_t slot, HashOf hash_of) {
    QUIRE_CHECK(slots_[slot].entry_plus_1 != 0, "erasing an empty slot");
    std::uint32_t hole = slot;
    for (std::uint32_t at = next(hole); slots_[at].entry_plus_1 != 0; at = next(at)) {
      const std::uint32_t home = home_of(hash_of(slots_[at].entry_plus_1 - 1));
      if (((at - home) & slot_mask_) < ((at - hole) & slot_mask_)) continue;
      slots_[hole] = std::exchange(slots_[at], {});
      hole = at;
    }
    slots_[hole] = {};
    --size_;
  }

  [[nodiscard]] std::uint32_t size() const { return size_; }

 private:
  struct Slot {
    std::uint32_t tag;
    std::uint32_t entry_plus_1;  // 0: empty
  };

  [[nodiscard]] static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32U); }
  [[nodiscard]] std::uint32_t home_of(std::uint64_t hash) const {
    return static_cast<std::uint32_t>(hash) & slot_mask_;
  }
  [[nodiscard]] std::uint32_t next(std::uint32_t slot) const { return (slot + 1) & slot_mask_; }

  LazyArray<Slot> slots_;
  std::uint32_t slot_mask_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace quire
