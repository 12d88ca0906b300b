// SPDX-License-Identifier: Apache-2.0
//
// AbsentNames: pages that a shared store is not asked for, because it did not have them a moment ago, or because what
// came from it was not right. Requests with one beginning come in bursts, and the store need not be asked by each. A
// small table in which new names push out old ones.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "quire/key_space.h"
#include "quire/types.h"

namespace quire {

class AbsentNames {
 public:
  AbsentNames() : entries_(kEntryCount) {}

  void add(std::uint32_t pool, const PageName& name, TimeNs until_ns) {
    entries_[slot_of(pool, name)] = {.name = name, .pool = pool, .until_ns = until_ns};
  }
  [[nodiscard]] bool has(std::uint32_t pool, const PageName& name, TimeNs now_ns) const {
    const Entry& entry = entries_[slot_of(pool, name)];
    return entry.name == name && entry.pool == pool && now_ns < entry.until_ns;
  }
  /// The same, or it was so once: nobody has put it since.
  [[nodiscard]] bool remembers(std::uint32_t pool, const PageName& name) const {
    const Entry& entry = entries_[slot_of(pool, name)];
    return entry.name == name && entry.pool == pool;
  }
  /// It has been put.
  void remove(std::uint32_t pool, const PageName& name) {
    Entry& entry = entries_[slot_of(pool, name)];
    if (entry.name == name && entry.pool == pool) entry = {};
  }

 private:
  static constexpr std::size_t kEntryCount = 4096;
  struct Entry {
    PageName name;
    std::uint32_t pool = 0;
    TimeNs until_ns = 0;
  };
  static std::size_t slot_of(std::uint32_t pool, const PageName& name) {
    return hash_bytes(name.bytes.data(), name.bytes.size(), pool) % kEntryCount;
  }

  std::vector<Entry> entries_;
};

}  // namespace quire
