// SPDX-License-Identifier: Apache-2.0
#include "sequence/key_space_table.h"

#include <algorithm>

namespace quire {

std::optional<std::uint32_t> KeySpaceTable::find(const KeySpace& key_space) const {
  const auto found = by_canonical_form_.find(key_space.canonical_form());
  return found == by_canonical_form_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::uint32_t> KeySpaceTable::find(KeySpaceId id) const {
  if (id.index >= entries_.size()) return std::nullopt;
  const Entry& entry = entries_[id.index];
  const bool is_known = entry.is_live && !entry.is_retired && entry.generation == id.generation;
  return is_known ? std::optional(id.index) : std::nullopt;
}

std::optional<std::uint32_t> KeySpaceTable::find_free() const {
  if (live_count_ == entries_.size()) return std::nullopt;
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].is_live) return i;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> KeySpaceTable::find_unused() const {
  std::optional<std::uint32_t> oldest;
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    if (!entries_[i].is_live || entries_[i].user_count > 0) continue;
    if (!oldest || entries_[i].last_use < entries_[*oldest].last_use) oldest = i;
  }
  return oldest;
}

void KeySpaceTable::add(std::uint32_t index, const KeySpace& key_space, RunId root) {
  Entry& entry = entries_[index];
  entry.canonical_form = key_space.canonical_form();
  by_canonical_form_.emplace(entry.canonical_form, index);
  entry.is_live = true;
  entry.is_retired = false;
  entry.user_count = 0;
  entry.root = root;
  ++live_count_;
  end_ = std::max(end_, index + 1);
  touch(index);
}

void KeySpaceTable::retire(std::uint32_t index) {
  entries_[index].is_retired = true;
  by_canonical_form_.erase(entries_[index].canonical_form);
}

void KeySpaceTable::remove(std::uint32_t index) {
  if (!entries_[index].is_retired) retire(index);
  const std::uint32_t generation = entries_[index].generation;
  entries_[index] = {};
  entries_[index].generation = generation + 1;
  --live_count_;
  while (end_ > 0 && !entries_[end_ - 1].is_live) --end_;
}

}  // namespace quire
