// SPDX-License-Identifier: Apache-2.0
//
// KeySpaceTable: the key spaces a cache knows, each with its root in the prefix tree. Ids carry a generation, so that
// one kept beyond drop() is recognised. A retired key space is no longer found but lives until its sequences have
// ended.
//
// single-threaded. add() allocates; it is not on the step path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "quire/key_space.h"
#include "quire/types.h"

namespace quire {

class KeySpaceTable {
 public:
  struct Entry {
    bool is_live = false;
    bool is_retired = false;
    bool wants_disk_drop = false;
    std::uint32_t generation = 0;
    std::uint32_t user_count = 0;  // live sequences and keeps
    std::uint64_t last_use = 0;
    RunId root;
    std::string canonical_form;
  };

  explicit KeySpaceTable(std::uint32_t count_max) : entries_(count_max) {}

  [[nodiscard]] std::optional<std::uint32_t> find(const KeySpace& key_space) const;
  /// The entry of an id, unless it was dropped.
  [[nodiscard]] std::optional<std::uint32_t> find(KeySpaceId id) const;
  /// A place for one more, or nothing when the table is full.
  [[nodiscard]] std::optional<std::uint32_t> find_free() const;
  /// Of the entries without users, the one used least recently; nothing if all have users.
  [[nodiscard]] std::optional<std::uint32_t> find_unused() const;

  void add(std::uint32_t index, const KeySpace& key_space, RunId root);
  /// Not found from here on.
  void retire(std::uint32_t index);
  void remove(std::uint32_t index);
  void touch(std::uint32_t index) { entries_[index].last_use = ++use_count_; }

  [[nodiscard]] Entry& operator[](std::uint32_t index) { return entries_[index]; }
  [[nodiscard]] const Entry& operator[](std::uint32_t index) const { return entries_[index]; }
  [[nodiscard]] KeySpaceId id(std::uint32_t index) const { return {index, entries_[index].generation}; }
  [[nodiscard]] std::uint32_t capacity() const { return static_cast<std::uint32_t>(entries_.size()); }
  /// All that live have an index below it. Most tables have room for many key spaces, and hold few.
  [[nodiscard]] std::uint32_t end() const { return end_; }
  [[nodiscard]] std::uint32_t live_count() const { return live_count_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::uint32_t> by_canonical_form_;
  std::uint32_t live_count_ = 0;
  std::uint32_t end_ = 0;
  std::uint64_t use_count_ = 0;
};

}  // namespace quire
